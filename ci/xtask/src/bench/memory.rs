//! Memory on the stand-in for the driver, with real processes, filters and kills: what a call costs,
//! what is left charged after deaths of every kind, and how long tenants wait.

use crate::checks::{Check, Limit, Report};
use crate::loads::{beside, last_processor, now_ms, quantile, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::{Context, Result, bail, ensure};
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const MIB: f64 = 1048576.0;
/// Tenants that are killed, and how many live at a time.
const KILLS: usize = 1000;
const AT_ONCE: usize = 8;
/// Tenants in a storm.
const STORM: usize = 6;
/// Processes that start at once.
const MANY: usize = 300;

pub(super) fn run(report: &mut Report) -> Result<()> {
    costs(report)?;
    kills(report)?;
    storms(report)?;
    many(report)
}

fn node(max: &str) -> Result<Node> {
    let node = Node::start(Kind::Standin)?;
    node.ctl(&["create", "a", "--memory-max", max])?;
    Ok(node)
}

/// A tenant that does these steps in container `a`; its pid is the child's.
fn tenant(node: &Node, steps: &[&str]) -> Result<Child> {
    let mut command = Command::new(beside("ghostctl")?);
    command
        .arg("--socket")
        .arg(node.socket())
        .args(["run", "--in-place", "a", "--"]);
    load(node, command, steps)
}

fn load(node: &Node, mut command: Command, steps: &[&str]) -> Result<Child> {
    command.arg(beside("ghost-load")?).arg("mem").args(steps);
    command.env("GHOST_DEV", node.standin("")?);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    command
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))
}

/// What a tenant said, once it has ended.
fn said(mut tenant: Child) -> Result<String> {
    let mut text = String::new();
    if let Some(out) = &mut tenant.stdout {
        out.read_to_string(&mut text)?;
    }
    tenant.wait()?;
    Ok(text)
}

/// Bytes charged to container `a`, and its peak.
fn charged(node: &Node) -> Result<(f64, f64)> {
    let a = node.get("/v1/containers/a")?;
    let sum = |key: &str| {
        let by_gpu = a["status"][key].as_object();
        let bytes = by_gpu.into_iter().flatten().filter_map(|(_, b)| b.as_f64());
        bytes.sum::<f64>()
    };
    Ok((sum("gpu.memory.current"), sum("gpu.memory.peak")))
}

/// The charge once it is `wanted`, or after 5 s.
fn settled(node: &Node, wanted: f64) -> Result<f64> {
    let begin = Instant::now();
    loop {
        let (now, _) = charged(node)?;
        if now == wanted || begin.elapsed().as_secs() >= 5 {
            return Ok(now);
        }
        sleep_ms(50.0);
    }
}

/// `kill -9` of a thousand tenants at some moment of their storm.
fn kills(report: &mut Report) -> Result<()> {
    let node = node("1G")?;
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut alive: Vec<(Child, f64)> = Vec::new();
    let (mut begun, mut killed, mut survived) = (0, 0, 0);
    while killed < KILLS {
        while alive.len() < AT_ONCE && begun < KILLS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let life = 20.0 + (random % 200) as f64;
            alive.push((tenant(&node, &["storm=60"])?, now_ms() + life));
            begun += 1;
        }
        let now = now_ms();
        for (tenant, end) in &mut alive {
            if *end <= now {
                // One that ended before has failed in some way.
                survived += usize::from(tenant.try_wait()?.is_none());
                tenant.kill().ok();
                tenant.wait()?;
                killed += 1;
            }
        }
        alive.retain(|(_, end)| *end > now);
        sleep_ms(1.0);
        if killed % 250 == 0 && killed > 0 {
            eprintln!("  {killed} killed");
        }
    }
    report.push(Check::new(
        format!("of {KILLS} tenants, at work when they were killed"),
        KILLS as f64,
        survived as f64,
        "",
        Limit::AtLeast,
    ));
    let (_, peak) = charged(&node)?;
    report.push(Check::new(
        "the most that was charged to a container of 1024 MiB",
        1024.0,
        peak / MIB,
        "MiB",
        Limit::AtMost,
    ));
    report.push(Check::new(
        format!("still charged after {KILLS} kills"),
        0.0,
        settled(&node, 0.0)?,
        "B",
        Limit::AtMost,
    ));
    Ok(())
}

/// Tenants that allocate and free all the time while ghostd or the guardian is killed. In the end
/// each holds 64 MiB, which must be what is charged.
fn storms(report: &mut Report) -> Result<()> {
    for victim in ["ghostd", "the guardian"] {
        let mut node = node("1G")?;
        // What one wants in the end others may still hold.
        let steps = ["storm=4", "take=64M", "hold=8"];
        let tenants: Vec<Child> = (0..STORM)
            .map(|_| tenant(&node, &steps))
            .collect::<Result<_>>()?;
        for _ in 0..3 {
            sleep_ms(1000.0);
            match victim {
                "ghostd" => {
                    node.kill_ghostd()?;
                    node.start_ghostd()?;
                }
                _ => {
                    node.kill_guardian()?;
                    node.start_guardian()?;
                }
            }
        }
        sleep_ms(3000.0);
        let wanted = STORM as f64 * 64.0 * MIB;
        report.push(Check::new(
            format!("{victim} killed three times in a storm: charged after"),
            wanted / MIB,
            settled(&node, wanted)? / MIB,
            "MiB",
            Limit::Within(0.0),
        ));
        let over = said(tenant(&node, &["alloc=900M", "alloc=64M"])?)?;
        let lines: Vec<&str> = over.lines().collect();
        let [refused, given] = lines.as_slice() else {
            bail!("a tenant after the storm said {over:?}");
        };
        let holds = refused.contains("out of memory") && !given.contains("out of memory");
        report.push(Check::new(
            format!("{victim} killed: the limit holds after"),
            1.0,
            f64::from(u8::from(holds)),
            "",
            Limit::AtLeast,
        ));
        let mut slowest: f64 = 0.0;
        for tenant in tenants {
            let text = said(tenant)?;
            let one = text
                .split_whitespace()
                .find_map(|w| w.strip_prefix("slowest_ms=")?.parse::<f64>().ok());
            slowest = slowest.max(one.with_context(|| format!("a tenant said {text:?}"))?);
        }
        report.push(Check::new(
            format!("{victim} killed: the longest that a tenant's call took"),
            1000.0,
            slowest,
            "ms",
            Limit::AtMost,
        ));
    }
    Ok(())
}

/// Many processes at once, each of which takes memory.
fn many(report: &mut Report) -> Result<()> {
    let node = node("100G")?;
    let mut spans = Vec::new();
    for held in [false, true] {
        let begin = Instant::now();
        let mut all = Vec::new();
        for _ in 0..MANY {
            let steps = ["alloc=2Mx8", "free=all"];
            all.push(match held {
                true => tenant(&node, &steps)?,
                false => load(&node, Command::new("env"), &steps)?,
            });
        }
        for one in all {
            let text = said(one)?;
            ensure!(text.contains("free ok"), "one of {MANY} said {text:?}");
        }
        spans.push(begin.elapsed().as_secs_f64());
    }
    report.push(Check::told(
        format!("{MANY} processes at once, without Ghost"),
        spans[0],
        "s",
    ));
    report.push(Check::told(
        format!("{MANY} processes at once, each by ghostctl run"),
        spans[1],
        "s",
    ));
    report.push(Check::new(
        format!("still charged after {MANY} processes"),
        0.0,
        settled(&node, 0.0)?,
        "B",
        Limit::AtMost,
    ));
    Ok(())
}

/// What the broker adds to a call, of what the least adds that a filter can: the same filter with
/// somebody who looks at nothing and lets all through.
fn costs(report: &mut Report) -> Result<()> {
    const TURNS: usize = 9;
    // All on one processor: a call that comes to another one takes ten times as long, with or
    // without.
    let all = sched_getaffinity(Pid::from_raw(0))?;
    sched_setaffinity(Pid::from_raw(0), &last_processor()?)?;
    let node = node("1G")?;
    let calls = [
        ("nothing", "a control that is let through"),
        ("alloc", "an allocation of 2 MiB"),
        ("free", "its free"),
    ];
    let mut added = [const { Vec::new() }; 3];
    let mut parts = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        let bare = said(load(&node, Command::new("env"), &["time=2000"])?)?;
        let least = said(load(
            &node,
            Command::new("env"),
            &["supervise", "time=2000"],
        )?)?;
        let held = said(tenant(&node, &["time=2000"])?)?;
        for (at, (call, _)) in calls.iter().enumerate() {
            let [bare, least, held] = [&bare, &least, &held].map(|text| took(text, call));
            let (bare, least, held) = (bare?, least?, held?);
            added[at].push(held - bare);
            parts[at].push((held - bare) / (least - bare));
        }
    }
    sched_setaffinity(Pid::from_raw(0), &all)?;
    for (at, (_, name)) in calls.iter().enumerate() {
        let (added, part) = (quantile(&mut added[at], 0.5), quantile(&mut parts[at], 0.5));
        report.push(Check::told(format!("{name}: added"), added, "us"));
        let name = format!("{name}: added, of the least that a filter adds");
        report.push(Check::told(name, part, ""));
    }
    Ok(())
}

/// A time that `ghost-load mem time=N` told.
fn took(said: &str, call: &str) -> Result<f64> {
    let mut words = said.split_whitespace();
    let time = words.find_map(|word| word.strip_prefix(call)?.strip_prefix('=')?.parse().ok());
    time.with_context(|| format!("a tenant said {said:?}"))
}
