//! What has bitten others who sent the driver's calls elsewhere: each a program that runs at 0, 1
//! and 30 ms of injected round trip. What can also be had wrong *here* runs here too.

use anyhow::{Context, Result};
use ghost_overflow_tests::{Executor, Inject, Place, Said, Stage, Ticket, program};
use ghost_wire::api::op;
use ghost_wire::api::{Class, ENTRIES, KNOWN, find};
use ghost_wire::stats::Counter;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const RTT_US: [u64; 3] = [0, 1_000, 30_000];

/// Runs `see` with a ticket for each round-trip time.
fn at_each(mut see: impl FnMut(&Stage, &Executor, &Ticket) -> Result<()>) -> Result<()> {
    let stage = Stage::new()?;
    let executor = Executor::start(stage.path(), &["--device", "cpu"])?;
    for rtt_us in RTT_US {
        let ticket = Ticket {
            inject: Inject { rtt_us, rate: 0 },
            ..stage.ticket(executor.address())
        };
        see(&stage, &executor, &ticket).with_context(|| format!("at {rtt_us} us"))?;
    }
    Ok(())
}

/// Runs a trap here and at each round-trip time; all say the same.
fn everywhere(name: &str, args: &[&str]) -> Result<()> {
    let stage = Stage::new()?;
    let here = stage.run(Place::Here, &program(name), args)?.right()?;
    assert!(!here.out.is_empty());
    at_each(|stage, _, ticket| {
        let there = stage.run(Place::There(ticket), &program(name), args)?;
        assert_eq!(there.right()?.out, here.out);
        Ok(())
    })
}

#[test]
fn an_error_that_was_not_waited_for_is_told_once() -> Result<()> {
    for by in ["context", "stream", "copy", "event"] {
        everywhere("late", &[by]).context(by)?;
    }
    Ok(())
}

#[test]
fn a_kernels_fault_is_told_by_the_next_wait() -> Result<()> {
    everywhere("fault", &[])
}

#[test]
fn a_small_request_does_not_overtake_a_big_one() -> Result<()> {
    everywhere("overtake", &[])
}

#[test]
fn a_source_is_free_when_the_call_returns() -> Result<()> {
    everywhere("reuse", &[])
}

#[test]
fn a_copy_out_is_there_at_the_next_sync() -> Result<()> {
    everywhere("out", &[])
}

#[test]
fn memory_that_only_the_program_writes_stays_as_it_is() -> Result<()> {
    everywhere("pinned", &[])
}

#[test]
fn a_limit_is_asked_for_once() -> Result<()> {
    everywhere("limits", &[])?;
    at_each(|stage, _, ticket| {
        let said = stage.run(Place::There(ticket), &program("limits"), &[])?;
        let waits = stage.waits(said.pid, op::cuCtxGetLimit)?;
        assert_eq!(
            waits, 5,
            "two lives, a launch, one that was set, one that there is not"
        );
        Ok(())
    })
}

/// Elsewhere only: a driver destroys a primary context that is released.
#[test]
fn a_context_that_is_only_named_is_retained_when_it_is_needed() -> Result<()> {
    at_each(|stage, _, ticket| {
        let said = stage.run(Place::There(ticket), &program("named"), &[])?;
        assert_eq!(said.right()?.out, "named: active when retained\n");
        Ok(())
    })
}

/// Elsewhere only: the CPU device has no such calls, the shim makes many of one.
#[test]
fn a_batch_is_its_parts() -> Result<()> {
    at_each(|stage, _, ticket| {
        let said = stage.run(Place::There(ticket), &program("batches"), &[])?;
        assert_eq!(said.right()?.out, "batches: of values, of copies\n");
        Ok(())
    })
}

#[test]
fn callbacks_keep_the_order_of_their_stream() -> Result<()> {
    everywhere("callbacks", &[])
}

#[test]
fn threads_wait_for_their_own_work() -> Result<()> {
    everywhere("threads", &[])
}

#[test]
fn whatever_threads_do_comes_out_as_they_did_it() -> Result<()> {
    for seed in ["1", "2", "3"] {
        everywhere("storm", &[seed]).context(seed)?;
    }
    Ok(())
}

#[test]
fn signals_interrupt_nothing() -> Result<()> {
    everywhere("signals", &[])
}

#[test]
fn the_library_may_be_closed_and_opened() -> Result<()> {
    everywhere("unload", &[])
}

#[test]
fn a_new_program_in_the_process_begins_afresh() -> Result<()> {
    everywhere("exec", &[])
}

#[test]
fn calls_after_the_exit_handlers_return() -> Result<()> {
    everywhere("exit", &[])
}

#[test]
fn a_forked_child_has_no_part_in_its_parents_connection() -> Result<()> {
    let child = program("vector_add");
    let child = child.to_str().context("no text")?;
    at_each(|stage, _, ticket| {
        let said = stage
            .run(Place::There(ticket), &program("fork"), &[child])?
            .right()?;
        assert!(said.out.contains("vector add of"), "{}", said.out);
        assert!(said.out.contains("the parent's work is whole"));
        Ok(())
    })
}

#[test]
fn a_million_tiny_copies_wait_for_next_to_nothing() -> Result<()> {
    at_each(|stage, _, ticket| {
        // The count is what matters, and a debug build is slow.
        let times = if ticket.inject.rtt_us == 1_000 {
            1_000_000
        } else {
            100_000
        };
        let said = stage
            .run(
                Place::There(ticket),
                &program("tiny"),
                &[&times.to_string()],
            )?
            .right()?;
        let waited = stage.counter(said.pid, Counter::Waited)?;
        let posted = stage.counter(said.pid, Counter::Posted)?;
        assert!(waited < 50, "{waited} calls were waited for");
        assert!(posted >= times, "{posted} calls were counted");
        Ok(())
    })
}

#[test]
fn only_the_visible_devices_are_there() -> Result<()> {
    let count = |said: &Said| {
        said.out
            .split(' ')
            .next()
            .and_then(|n| n.parse::<u32>().ok())
    };
    at_each(|stage, _, ticket| {
        let with = |value: Option<&str>| -> Result<Said> {
            let mut command = stage.command(Place::There(ticket), &program("info"))?;
            command.env_remove("CUDA_VISIBLE_DEVICES");
            command.envs(value.map(|v| ("CUDA_VISIBLE_DEVICES", v)));
            stage.start(&mut command)?.end(Duration::from_secs(60))
        };
        let all = with(None)?.right()?;
        assert!(count(&all).is_some_and(|n| n >= 1), "{}", all.out);
        let first = with(Some("0"))?.right()?;
        assert_eq!(count(&first), Some(1));
        for none in ["-1", ""] {
            let said = with(Some(none))?;
            assert_eq!(said.out, "no device\n", "with {none:?}: {}", said.err);
        }
        Ok(())
    })
}

#[test]
fn cu_init_answers_what_the_far_one_did() -> Result<()> {
    let stage = Stage::new()?;
    let answers = |place: Place<'_>, visible: &str| -> Result<String> {
        let mut command = stage.command(place, &program("begins"))?;
        command.env("CUDA_VISIBLE_DEVICES", visible);
        let said = stage.start(&mut command)?.end(Duration::from_secs(60))?;
        let said = said.right()?;
        assert_eq!(said.err, "", "with {visible:?}");
        Ok(said.out)
    };
    let choices = [
        ("0", "cuInit: 0 and 0; then 0, 0\n"),
        ("0,0", "cuInit: 101 and 101; then 3, 3\n"),
        ("-1", "cuInit: 100 and 100; then 3, 3\n"),
    ];
    for (visible, right) in choices {
        assert_eq!(answers(Place::Here, visible)?, right);
    }
    at_each(|_, _, ticket| {
        for (visible, right) in choices {
            assert_eq!(answers(Place::There(ticket), visible)?, right);
        }
        Ok(())
    })
}

#[test]
fn what_the_advertised_version_promises_is_there_and_nothing_newer() -> Result<()> {
    at_each(|stage, _, ticket| {
        let mut command = stage.command(Place::There(ticket), &program("procs"))?;
        let mut process = stage.start(&mut command)?;
        let entries: String = ENTRIES
            .iter()
            .map(|e| format!("{} {}\n", e.name, e.since))
            .collect();
        process.close(&entries)?;
        let said = process.end(Duration::from_secs(60))?.right()?;
        let mut lines = said.out.lines();
        let version: u32 = lines.next().context("nothing said")?.parse()?;
        assert!((11_040..=KNOWN).contains(&version), "{version}");
        let mut there = HashMap::new();
        for (entry, line) in ENTRIES.iter().zip(lines) {
            let (name, at) = line.rsplit_once(' ').context("a line of one word")?;
            assert_eq!(name, entry.name);
            there.insert((entry.name, entry.since), at.to_owned());
        }
        let (mut promised, mut newer) = (0, 0);
        for entry in ENTRIES {
            let at = there.get(&(entry.name, entry.since));
            let at = at.context("nothing said")?;
            if entry.since > version {
                // The newest form that there is, or none.
                let old = find(entry.name, version, false);
                let old = old.and_then(|(_, old)| there.get(&(old.name, old.since)));
                assert_eq!(at, old.map_or("0", |old| old.as_str()), "{}", entry.symbol);
                newer += 1;
            } else if entry.class != Class::Refused {
                assert_ne!(at, "0", "{}", entry.symbol);
                promised += 1;
            }
        }
        assert!(promised > 100 && newer > 3, "{promised} {newer}");
        Ok(())
    })
}

#[test]
fn what_is_not_carried_is_counted_and_named_once() -> Result<()> {
    at_each(|stage, _, ticket| {
        let said = stage
            .run(Place::There(ticket), &program("refused"), &[])?
            .right()?;
        assert_eq!(stage.counter(said.pid, Counter::Refused)?, 3);
        assert_eq!(said.err.matches("cuCtxDetach").count(), 1);
        Ok(())
    })
}

#[test]
fn counters_can_be_read_whatever_the_umask() -> Result<()> {
    let stage = Stage::new()?;
    let executor = Executor::start(stage.path(), &["--device", "cpu"])?;
    let ticket = stage.ticket(executor.address());
    let mut command = stage.command(Place::There(&ticket), Path::new("/bin/sh"))?;
    command.args(["-c", "umask 077; exec \"$0\""]);
    let said = stage.start(command.arg(program("info")))?;
    let said = said.end(Duration::from_secs(60))?.right()?;
    let file = stage.path().join("stats").join(said.pid.to_string());
    assert_eq!(file.metadata()?.permissions().mode() & 0o777, 0o644);
    Ok(())
}

#[test]
fn every_call_can_be_waited_for() -> Result<()> {
    at_each(|stage, _, ticket| {
        let ticket = Ticket {
            wait_always: true,
            ..ticket.clone()
        };
        for name in ["saxpy", "streams"] {
            let said = stage
                .run(Place::There(&ticket), &program(name), &[])?
                .right()?;
            assert_eq!(stage.counter(said.pid, Counter::Posted)?, 0);
            assert!(stage.counter(said.pid, Counter::Waited)? > 100);
        }
        Ok(())
    })
}

#[test]
fn who_does_not_know_the_token_is_refused() -> Result<()> {
    let stage = Stage::new()?;
    let executor = Executor::start(stage.path(), &["--device", "cpu", "--token", "right"])?;
    for (token, status) in [("right", 0), ("wrong", 1), ("", 1)] {
        let ticket = Ticket {
            token: token.to_owned(),
            ..stage.ticket(executor.address())
        };
        let said = stage.run(Place::There(&ticket), &program("vector_add"), &[])?;
        assert_eq!(said.status.code(), Some(status), "{token:?}: {}", said.err);
        assert_eq!(said.err.contains("token"), status == 1, "{}", said.err);
    }
    Ok(())
}

/// Elsewhere only: here it is the genuine library's.
#[test]
fn the_far_devices_are_those_of_nvml() -> Result<()> {
    at_each(|stage, _, ticket| {
        for visible in [None, Some("")] {
            let mut command = stage.command(Place::There(ticket), &program("nvml"))?;
            command.env_remove("CUDA_VISIBLE_DEVICES");
            command.envs(visible.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
            let said = stage.start(&mut command)?.end(Duration::from_secs(60))?;
            let out = said.right()?.out;
            let computes = if visible.is_none() {
                "; as CUDA has it"
            } else {
                ""
            };
            let device = "the first a Ghost CPU device (PTX interpreter)";
            assert_eq!(out, format!("nvml: 1 devices, {device}{computes}\n"));
        }
        Ok(())
    })
}

#[test]
fn nvml_says_that_nobody_listens() -> Result<()> {
    let stage = Stage::new()?;
    let ticket = stage.ticket("127.0.0.1:1");
    let said = stage.run(Place::There(&ticket), &program("nvml"), &[])?;
    assert_eq!(said.status.code(), Some(2));
    assert_eq!(said.out, "nvmlInit: 9\n");
    assert!(said.err.contains("127.0.0.1:1"), "{}", said.err);
    Ok(())
}
