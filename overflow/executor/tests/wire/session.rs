//! What a session does, by the wire alone.

use crate::client::{self, Client, Executor, bytes, floats, id};
use ghost_wire::api::op;
use ghost_wire::frame::ReplyKind;
use ghost_wire::hello::{self, Inject, Loaded};
use ghost_wire::message::*;
use ghost_wire::result::{INVALID_DEVICE, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE};
use ghost_wire::{Object, stats};

const N: u32 = 1000;

fn vadd_params(a: u64, b: u64, c: u64, n: u32) -> Vec<u8> {
    let mut params: Vec<u8> = [a, b, c].iter().flat_map(|at| at.to_le_bytes()).collect();
    params.extend(n.to_le_bytes());
    params
}

fn add_vectors(client: &mut Client) {
    let kernels = client.kernels();
    assert_eq!(kernels.1[0].params, [(0, 8), (8, 8), (16, 8), (24, 4)]);
    let vadd = client.function(&kernels, "vadd");
    let stream = client.stream(1);
    let size = u64::from(N) * 4;
    let [a, b, c] = [(); 3].map(|()| client.alloc(size));
    let x: Vec<f32> = (0..N).map(|i| i as f32).collect();
    let y: Vec<f32> = (0..N).map(|i| 2.0 * i as f32).collect();
    client.copy_in(a, &bytes(&x), stream);
    client.copy_in(b, &bytes(&y), stream);
    client.launch(vadd, N, stream, &vadd_params(a, b, c, N));
    let out = client.copy_out(true, c, size, stream);
    assert_eq!(client.answer(out).0, 0);
    assert!(client.others.is_empty());
    let sums: Vec<f32> = (0..N).map(|i| 3.0 * i as f32).collect();
    assert_eq!(floats(&client.data[&out]), sums);
}

#[test]
fn vectors_are_added() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    add_vectors(&mut client);
    client.say(false, &Bye {});
    executor.wait_empty();
}

#[test]
fn vectors_are_added_over_a_slow_path() {
    let executor = Executor::start(&[]);
    let inject = Inject {
        rtt_us: 5000,
        rate: 50 << 20,
    };
    let hello = ghost_wire::hello::Hello {
        inject,
        ..client::hello()
    };
    let mut client = Client::open_with(&executor, hello);
    let context = id(Object::Context, 1);
    let (what, device, flags) = (primary::RETAIN, 0, 0);
    // Named before it is retained, as the runtime does.
    client.say(false, &Use { context });
    client.say(
        false,
        &Primary {
            what,
            device,
            context,
            flags,
        },
    );
    add_vectors(&mut client);
}

#[test]
fn errors_of_what_is_not_waited_for_come_late() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let kernels = client.kernels();
    let vadd = client.function(&kernels, "vadd");
    let nothing = id(Object::Function, 99);
    let first = client.launch(nothing, N, 0, &vadd_params(0, 0, 0, 0));
    let second = client.launch(vadd, N, id(Object::Stream, 7), &vadd_params(0, 0, 0, 0));
    let third = client.row(op::cuMemFree_v2, false, &[0x10]);
    let sync = client.wait(wait::STREAM, 0);
    assert_eq!(client.answer(sync).0, 0);
    let late: Vec<_> = client.others.drain(..).map(|(reply, _)| reply).collect();
    assert!(late.iter().all(|reply| reply.kind == ReplyKind::Late));
    assert_eq!(
        (late[0].seq, late[0].op, late[0].code),
        (first, Launch::OP, INVALID_HANDLE)
    );
    assert_eq!((late[1].seq, late[1].code), (second, INVALID_HANDLE));
    assert_eq!((late[2].seq, late[2].op), (third, op::cuMemFree_v2));
    assert_eq!(late.len(), 3);
}

#[test]
fn data_larger_than_a_frame_goes_and_comes_in_parts() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let data: Vec<u8> = (0..9_000_001_u32).map(|i| (i * 7 % 251) as u8).collect();
    let len = data.len() as u64;
    let to = client.alloc(len);
    let copy = CopyIn {
        to,
        len,
        stream: 0,
        bulk: true,
        data: &[],
    };
    let seq = client.say(false, &copy);
    client.bulk(seq, &data);
    let out = client.copy_out(true, to, len, 0);
    assert_eq!(client.answer(out).0, 0);
    assert!(client.data[&out] == data);
}

#[test]
fn copies_of_several_streams_are_there_when_a_wait_says_so() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let streams = [1, 2, 3].map(|n| client.stream(n));
    let mut outs = vec![];
    for round in 0..20_u8 {
        for (n, stream) in streams.iter().enumerate() {
            let at = client.alloc(1000);
            let byte = round * 3 + n as u8;
            let fill = [at, byte.into(), 1000, *stream];
            client.row(op::cuMemsetD8Async, false, &fill);
            outs.push((client.copy_out(false, at, 1000, *stream), byte));
        }
    }
    for stream in streams {
        let sync = client.wait(wait::STREAM, stream);
        assert_eq!(client.answer(sync).0, 0);
    }
    for (seq, byte) in outs {
        assert!(client.data[&seq] == [byte; 1000], "{seq}");
    }
}

#[test]
fn boxes_are_copied() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let at = client.alloc(64 * 8);
    client.row(op::cuMemsetD8Async, false, &[at, 9, 64 * 8, 0]);
    let end = |place, at, pitch, from| End {
        place,
        at,
        pitch,
        height: 0,
        from,
        level: 0,
    };
    let host = end(place::HOST, 0, 0, [0; 3]);
    let device = end(place::DEVICE, at, 64, [4, 2, 0]);
    let data: Vec<u8> = (0..15).collect();
    let there = CopyBox {
        from: host,
        to: device,
        extent: [5, 3, 1],
        stream: 0,
        bulk: false,
        data: &data,
    };
    client.say(false, &there);
    let back = CopyBox {
        from: device,
        to: host,
        data: &[],
        ..there
    };
    let out = client.say(true, &back);
    assert_eq!(client.answer(out).0, 0);
    assert_eq!(client.data[&out], data);
    let all = client.copy_out(true, at, 64 * 8, 0);
    assert_eq!(client.answer(all).0, 0);
    let all = &client.data[&all];
    assert_eq!(all[2 * 64 + 3..2 * 64 + 10], [9, 0, 1, 2, 3, 4, 9]);
    assert_eq!(all.iter().filter(|byte| **byte == 9).count(), 512 - 15 + 1);
}

#[test]
fn a_function_of_the_programs_is_called_in_order() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let stream = client.stream(1);
    let at = client.alloc(100);
    client.row(op::cuMemsetD8Async, false, &[at, 1, 100, stream]);
    let before = client.copy_out(false, at, 100, stream);
    let token = 77;
    for with_status in [false, true] {
        client.say(
            false,
            &HostCall {
                token,
                stream,
                with_status,
            },
        );
    }
    client.row(op::cuMemsetD8Async, false, &[at, 2, 100, stream]);
    let after = client.copy_out(false, at, 100, stream);
    let sync = client.wait(wait::STREAM, stream);
    for _ in 0..2 {
        let (reply, _) = loop {
            let next = client.reply();
            if next.0.kind == ReplyKind::Callback {
                break next;
            }
        };
        assert_eq!((reply.seq, reply.code), (token, 0));
        assert!(client.data[&before] == [1; 100]);
        assert!(!client.data.contains_key(&after));
        // Another stream's work and waits go on meanwhile.
        let other = client.row(op::cuMemGetInfo_v2, true, &[1, 1]);
        assert_eq!(client.answer(other).0, 0);
        client.say(false, &CallbackDone { token });
    }
    assert_eq!(client.answer(sync).0, 0);
    assert!(client.data[&after] == [2; 100]);
}

#[test]
fn a_wait_holds_up_nothing_that_comes_later() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let (held, free) = (client.stream(1), client.stream(2));
    let token = 5;
    client.say(
        false,
        &HostCall {
            token,
            stream: held,
            with_status: false,
        },
    );
    let waits = client.wait(wait::STREAM, held);
    let at = client.alloc(16);
    client.row(op::cuMemsetD8Async, false, &[at, 3, 16, free]);
    let out = client.copy_out(true, at, 16, free);
    assert_eq!(client.answer(out).0, 0);
    assert!(client.data[&out] == [3; 16]);
    let answered = client
        .others
        .iter()
        .any(|(reply, _)| reply.seq == waits && reply.kind == ReplyKind::Answer);
    assert!(!answered);
    client.due(token);
    client.say(false, &CallbackDone { token });
    assert_eq!(client.answer(waits).0, 0);
}

#[test]
fn images_are_asked_for_once_and_must_be_what_they_are_called() {
    let cache = tempfile::tempdir().unwrap();
    let path = cache.path().to_str().unwrap();
    let executor = Executor::start(&["--cache", path]);
    let mut client = Client::ready(&executor);
    let image = client::KERNELS.as_bytes();
    let hash = *blake3::hash(image).as_bytes();
    let module = id(Object::Module, 1);
    let unknown = client.say(true, &Client::load(image, &hash, module, false));
    let (code, body) = client.answer(unknown);
    assert_eq!((code, hello::from_bytes(&body)), (0, Ok(Loaded::Needed)));
    let other = blake3::hash(b"another");
    let wrong = client.say(true, &Client::load(image, other.as_bytes(), module, true));
    client.bulk(wrong, image);
    let (code, body) = client.answer(wrong);
    assert_eq!(code, INVALID_IMAGE);
    assert!(matches!(hello::from_bytes(&body), Ok(Loaded::Failed { log }) if log.contains("hash")));
    client.kernels();
    // Another session of the same tenant's has it already.
    let mut client = Client::ready(&executor);
    let known = client.say(true, &Client::load(image, &hash, module, false));
    let (code, body) = client.answer(known);
    assert_eq!(code, 0);
    assert!(
        matches!(hello::from_bytes(&body), Ok(Loaded::Done { functions, .. }) if functions.len() == 1)
    );
    client.say(false, &Unload { id: module });
    let index = 0;
    let named = client.say(
        true,
        &Name {
            id: id(Object::Function, 1),
            of: module,
            index,
        },
    );
    assert_eq!(client.answer(named).0, INVALID_HANDLE);
}

#[test]
fn of_shared_memory_only_what_the_device_changed_comes_back() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let (at, len) = (0x6000_0000_0040_u64, 10_000);
    let share = Share { at, len, flags: 0 };
    let seq = client.say(true, &share);
    let (code, body) = client.answer(seq);
    assert_eq!(code, 0);
    let device = u64::from_le_bytes(body.try_into().unwrap());
    let data = &[7; 100][..];
    client.say(false, &WriteShared { at: at + 96, data });
    client.row(op::cuMemsetD8Async, false, &[device + 100, 8, 40, 0]);
    let sync = client.wait(wait::STREAM, 0);
    assert_eq!(client.answer(sync).0, 0);
    // Changes have no command.
    assert!(client.data.remove(&0) == Some(vec![8; 40]));
    let again = client.wait(wait::STREAM, 0);
    assert_eq!(client.answer(again).0, 0);
    assert_eq!(client.data.get(&0), None);
    let outside = client.say(
        true,
        &WriteShared {
            at: at + 9_950,
            data,
        },
    );
    assert_eq!(client.answer(outside).0, INVALID_VALUE);
    let ended = client.say(true, &Unshare { at });
    assert_eq!(client.answer(ended).0, 0);
    let twice = client.say(true, &Unshare { at });
    assert_eq!(client.answer(twice).0, INVALID_VALUE);
}

#[test]
fn an_answer_says_what_the_driver_said() {
    let executor = Executor::start(&[]);
    let mut client = Client::ready(&executor);
    let nothing = client.row(op::cuMemAlloc_v2, true, &[0]);
    assert_eq!(client.answer(nothing).0, INVALID_VALUE);
    let stranger = client.row(op::cuStreamIsCapturing, true, &[id(Object::Stream, 9)]);
    assert_eq!(client.answer(stranger).0, INVALID_HANDLE);
}

#[test]
fn commands_and_bytes_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats");
    let executor = Executor::start(&["--stats", file.to_str().unwrap()]);
    let mut client = Client::ready(&executor);
    add_vectors(&mut client);
    client.say(false, &Bye {});
    executor.wait_empty();
    let counters = stats::read(&std::fs::read(&file).unwrap());
    let count = |what: stats::Counter| counters[what as usize];
    // Retain, load, three allocations, a copy.
    assert_eq!(count(stats::Counter::Waited), 6);
    // All others but the last.
    assert_eq!(count(stats::Counter::Posted), client.seq - 7);
    assert!(count(stats::Counter::BytesUp) > 8000 + client::KERNELS.len() as u64);
    assert!(count(stats::Counter::BytesDown) > 4000);
}

#[test]
fn the_cpu_device_tells_of_its_memory_and_of_nothing_else() {
    let executor = Executor::start(&[]);
    let mut client = Client::open(&executor);
    let seq = client.say(true, &Monitor { device: 0 });
    let (code, body) = client.answer(seq);
    assert_eq!(code, 0);
    let readings: hello::Readings = hello::from_bytes(&body).unwrap();
    let [total, free, used] = readings.memory.unwrap();
    assert_eq!(total, client.welcome.devices[0].memory);
    assert_eq!(free + used, total);
    let rest = hello::Readings {
        memory: None,
        ..readings
    };
    assert_eq!(rest, hello::Readings::default());
    for device in [client.welcome.devices.len() as u32, u32::MAX] {
        let seq = client.say(true, &Monitor { device });
        assert_eq!(client.answer(seq), (INVALID_DEVICE, vec![]));
    }
}
