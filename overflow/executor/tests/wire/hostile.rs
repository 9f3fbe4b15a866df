//! Clients that break the rules, or break off: their session ends, says why, and harms nobody.

use crate::client::{Client, Executor, id};
use ghost_wire::api::op;
use ghost_wire::frame::{Command, Data, DataKind};
use ghost_wire::kind::LIST_MAX;
use ghost_wire::message::*;
use ghost_wire::{Object, Op};
use std::io::Write;
use std::net::Shutdown;

/// Runs `break_rules` in a session; gives the text with which that ends.
fn end_of(executor: &Executor, break_rules: impl FnOnce(&mut Client) -> u64) -> String {
    let mut client = Client::ready(executor);
    break_rules(&mut client);
    client.bye()
}

#[test]
fn broken_commands_end_the_session_with_a_reason() {
    let executor = Executor::start(&[]);
    let mut others = Client::ready(&executor);
    let told = |why: &str, break_rules: &dyn Fn(&mut Client) -> u64| {
        let bye = end_of(&executor, break_rules);
        assert!(bye.contains(why), "{bye}");
    };
    told("no message", &|client| client.send(Op(0xeeee), false, &[]));
    // A row that does not cross.
    told("cuInit", &|client| client.row(op::cuInit, true, &[0]));
    told("too early", &|client| {
        client.row(op::cuMemAlloc_v2, true, &[])
    });
    told("left over", &|client| {
        client.row(op::cuMemAlloc_v2, true, &[1, 2])
    });
    told("Launch", &|client| client.send(Launch::OP, false, &[0; 80]));
    told("arguments", &|client| {
        let kernels = client.kernels();
        let vadd = client.function(&kernels, "vadd");
        client.launch(vadd, 1, 0, &[0; 27])
    });
    told("length of a list", &|client| {
        let node = id(Object::GraphNode, 1);
        let count = LIST_MAX as u64 + 1;
        client.row(op::cuGraphAddEmptyNode, true, &[node, 0, count])
    });
    told("what to wait for", &|client| client.wait(9, 0));
    told("too early", &|client| {
        let (to, len, stream, bulk) = (0, 100, 0, false);
        client.say(
            false,
            &CopyIn {
                to,
                len,
                stream,
                bulk,
                data: &[1],
            },
        )
    });
    told("size of a box", &|client| {
        let end = |place| End {
            place,
            at: 0,
            pitch: 0,
            height: 0,
            from: [0; 3],
            level: 0,
        };
        client.say(
            true,
            &CopyBox {
                from: end(place::DEVICE),
                to: end(place::HOST),
                extent: [u64::MAX, u64::MAX, 2],
                stream: 0,
                bulk: false,
                data: &[],
            },
        )
    });
    told("a frame of", &|client| {
        let header = Command {
            op: Op(1),
            waited: false,
            len: u32::MAX,
        }
        .to_bytes();
        client.commands.write_all(&header).unwrap();
        0
    });
    told("bulk data", &|client| {
        client.up.write_all(&[0xff; Data::SIZE]).unwrap();
        0
    });
    told("was due", &|client| {
        let (to, len, stream, bulk) = (0, 100, 0, true);
        client.say(
            false,
            &CopyIn {
                to,
                len,
                stream,
                bulk,
                data: &[],
            },
        );
        let (kind, len, seq, at) = (DataKind::Part, 4, 99, 0);
        client
            .up
            .write_all(&Data { kind, len, seq, at }.to_bytes())
            .unwrap();
        client.up.write_all(&[0; 4]).unwrap();
        seq
    });
    // The others were not touched.
    assert!(others.alloc(64) != 0);
}

#[test]
fn strange_handles_fail_the_call_only() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    for raw in [
        3,
        0x7f00_0000_1000,
        u64::MAX,
        id(Object::Event, 1),
        id(Object::Stream, 1),
    ] {
        let seq = client.row(op::cuStreamIsCapturing, true, &[raw]);
        assert_eq!(client.answer(seq).0, 400, "{raw:#x}");
        let seq = client.row(op::cuStreamDestroy_v2, true, &[raw]);
        assert_eq!(client.answer(seq).0, 400, "{raw:#x}");
        let (query, what) = (false, wait::EVENT);
        let seq = client.say(
            true,
            &Wait {
                what,
                handle: raw,
                query,
            },
        );
        assert_eq!(client.answer(seq).0, 400, "{raw:#x}");
        let seq = client.say(true, &DestroyContext { context: raw });
        assert_eq!(client.answer(seq).0, 201, "{raw:#x}");
        let seq = client.say(true, &Unload { id: raw });
        assert_eq!(client.answer(seq).0, 400, "{raw:#x}");
        client.say(false, &CallbackDone { token: raw });
    }
    // An id of the wrong kind for what is made.
    let made = client.row(op::cuStreamCreate, true, &[id(Object::Event, 4), 1]);
    client.answer(made);
    let used = client.row(op::cuEventDestroy_v2, true, &[id(Object::Event, 4)]);
    assert_eq!(client.answer(used).0, 400);
}

#[test]
fn connections_may_end_in_any_order() {
    let executor = Executor::start(&[]);
    for first in 0..4 {
        let client = Client::ready(&executor);
        let all = [&client.commands, &client.up, &client.replies, &client.down];
        all[first].shutdown(Shutdown::Both).unwrap();
        if first < 2 {
            executor.wait_empty();
        }
        drop(client);
        executor.wait_empty();
    }
}

#[test]
fn a_client_that_vanishes_in_the_middle_leaves_nothing() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let stream = client.stream(1);
    let at = client.alloc(1 << 20);
    // A function that never returns, a copy behind it, bulk data that never comes.
    let (token, with_status) = (1, false);
    client.say(
        false,
        &HostCall {
            token,
            stream,
            with_status,
        },
    );
    client.copy_out(false, at, 1 << 20, stream);
    client.wait(wait::STREAM, stream);
    let (to, len, bulk) = (at, 1 << 20, true);
    client.say(
        false,
        &CopyIn {
            to,
            len,
            stream,
            bulk,
            data: &[],
        },
    );
    let header = Command {
        op: Launch::OP,
        waited: false,
        len: 1000,
    }
    .to_bytes();
    client.commands.write_all(&header).unwrap();
    assert_eq!(executor.sessions().len(), 1);
    drop(client);
    executor.wait_empty();
}
