//! What overflow costs the client, and how near its copies and its waits come to what TCP gives on
//! the same path in the same run: with the executor alone, and through ghostd's door with TLS and a
//! token. The executor runs on the CPU device: what that spends on a copy (one `memcpy`) is in the
//! figures.

use crate::checks::{Check, Limit, Report};
use crate::loads::{beside, quantile};
use crate::node::{Kind, Node};
use anyhow::{Context, Result, ensure};
use ghost_overflow_tests::{Executor, Place, Stage, Ticket, program};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

/// Size of a bulk copy in MiB, and of one write of the stream that it is compared with.
const COPY_MIB: usize = 128;
const WRITE: usize = 4 << 20;
/// Streams and round trips that are measured.
const STREAMS: usize = 8;
const TRIPS: usize = 5000;
/// A small command and its reply.
const ASKED: usize = 40;
const ANSWERED: usize = 32;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let stage = Stage::new()?;
    let executor = Executor::start(stage.path(), &["--device", "cpu"])?;
    let ticket = stage.ticket(executor.address());

    let said = stage
        .run(Place::There(&ticket), &program("posted"), &[])?
        .right()?;
    for (what, name) in [("fill", "posted fill"), ("launch", "posted launch")] {
        report.push(Check::new(
            format!("client's processor time of a {what} that is not waited for"),
            0.3,
            figure(&said.out, name)? / 1e3,
            "us",
            Limit::AtMost,
        ));
    }

    let (raw, trip) = (stream()?, trips()?);
    report.push(Check::told(
        "a TCP stream on the loopback",
        raw / 1e9,
        "GB/s",
    ));
    let plain = Way::measure(&stage, &ticket)?;
    for (way, rate) in plain.copies() {
        report.push(Check::told(
            format!("copies {way} of {COPY_MIB} MiB"),
            rate / 1e9,
            "GB/s",
        ));
        report.push(Check::new(
            format!("copies {way}, of the TCP stream (CPU device)"),
            0.9,
            rate / raw,
            "",
            Limit::AtLeast,
        ));
    }
    report.push(Check::told("TCP there and back, p50", trip * 1e6, "us"));
    report.push(Check::told(
        "a call that is waited for, p50",
        plain.waited * 1e6,
        "us",
    ));

    let tls = through_the_door(&stage)?;
    for ((way, rate), (_, alone)) in tls.copies().into_iter().zip(plain.copies()) {
        for (what, value, unit) in [
            ("", rate / 1e9, "GB/s"),
            (", of the TCP stream", rate / raw, ""),
            (", of those without", rate / alone, ""),
        ] {
            report.push(Check::told(
                format!("copies {way} by TLS and ghostd{what}"),
                value,
                unit,
            ));
        }
    }
    for (what, value, unit) in [
        (", p50", tls.waited * 1e6, "us"),
        (", of TCP there and back", tls.waited / trip, "x"),
        (", of one without", tls.waited / plain.waited, "x"),
    ] {
        report.push(Check::told(
            format!("a call that is waited for by TLS and ghostd{what}"),
            value,
            unit,
        ));
    }
    Ok(())
}

/// What a program finds of its way to the executor.
struct Way {
    /// Bytes a second.
    to: f64,
    from: f64,
    /// Seconds of a call that is waited for, the median.
    waited: f64,
}

impl Way {
    fn measure(stage: &Stage, ticket: &Ticket) -> Result<Way> {
        let size = COPY_MIB.to_string();
        let said = stage
            .run(Place::There(ticket), &program("path"), &[&size])?
            .right()?;
        Ok(Way {
            to: figure(&said.out, "in")?,
            from: figure(&said.out, "out")?,
            waited: figure(&said.out, "waited")?,
        })
    }

    fn copies(&self) -> [(&'static str, f64); 2] {
        [("in", self.to), ("out", self.from)]
    }
}

/// As a program of another host comes in: ghostd, TLS, a token, a container, an executor.
fn through_the_door(stage: &Stage) -> Result<Way> {
    let dir = tempfile::Builder::new().prefix("ghost-door-").tempdir()?;
    // The executor's user has to get in.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
    let [token, executor, cache] = ["token", "executor", "cache"].map(|name| dir.path().join(name));
    let secret = "what only the bench knows";
    fs::write(&token, secret)?;
    fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    // Also where there is a GPU.
    let genuine = beside("ghost-executor")?;
    let script = format!("#!/bin/sh\nexec {genuine:?} --device cpu \"$@\"\n");
    fs::write(&executor, script)?;
    fs::set_permissions(&executor, Permissions::from_mode(0o755))?;
    let door = format!(
        "[overflow]\nlisten = \"127.0.0.1:0\"\ntls = true\ntoken_file = {token:?}\n\
         executor = {executor:?}\ncache_dir = {cache:?}\n"
    );
    let node = Node::start_with(Kind::Sim, &door)?;
    let told = node.get("/v1/node")?;
    let told = |name: &str| {
        let text = told["overflow"][name].as_str();
        text.with_context(|| format!("ghostd tells no {name} of overflow"))
    };
    let ticket = Ticket {
        token: secret.to_owned(),
        fingerprint: told("fingerprint")?.to_owned(),
        ..stage.ticket(told("listen")?)
    };
    Way::measure(stage, &ticket).with_context(|| node.log("ghostd"))
}

/// The number behind `name` in what a program said.
fn figure(said: &str, name: &str) -> Result<f64> {
    let found = said.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.parse().ok()
    });
    found.with_context(|| format!("no {name:?} in {said:?}"))
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Bytes a second of the best of some streams, each acknowledged by a byte as a copy is by its
/// reply.
fn stream() -> Result<f64> {
    let (mut near, mut far) = pair()?;
    let reader = std::thread::spawn(move || -> std::io::Result<()> {
        // It lands in memory of its full size, as a copy does.
        let mut buffer = vec![1; COPY_MIB << 20];
        for _ in 0..STREAMS {
            for part in buffer.chunks_mut(WRITE) {
                far.read_exact(part)?;
            }
            far.write_all(&[1])?;
        }
        Ok(())
    });
    let data = vec![7; COPY_MIB << 20];
    let mut best: f64 = 0.0;
    for _ in 0..STREAMS {
        let begun = Instant::now();
        for part in data.chunks(WRITE) {
            near.write_all(part)?;
        }
        near.read_exact(&mut [0])?;
        best = best.max(data.len() as f64 / begun.elapsed().as_secs_f64());
    }
    let read = reader.join().ok().context("the reader panicked")?;
    read?;
    ensure!(best > 0.0, "nothing was sent");
    Ok(best)
}

/// Seconds of a round trip, the median.
fn trips() -> Result<f64> {
    let (mut near, mut far) = pair()?;
    let answers = std::thread::spawn(move || -> std::io::Result<()> {
        let mut asked = [0; ASKED];
        for _ in 0..TRIPS {
            far.read_exact(&mut asked)?;
            far.write_all(&[0; ANSWERED])?;
        }
        Ok(())
    });
    let mut took = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let begun = Instant::now();
        near.write_all(&[0; ASKED])?;
        near.read_exact(&mut [0; ANSWERED])?;
        took.push(begun.elapsed().as_secs_f64());
    }
    let answered = answers.join().ok().context("the other end panicked")?;
    answered?;
    Ok(quantile(&mut took, 0.5))
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn a_figure_is_found_by_its_whole_name() {
        let said = "posted fill 99.5\nin 3\n";
        assert_eq!(figure(said, "posted fill").ok(), Some(99.5));
        assert_eq!(figure(said, "in").ok(), Some(3.0));
        assert!(figure(said, "posted").is_err() && figure(said, "out").is_err());
    }
}
