//! The seccomp filter of a program that `run` starts: its driver calls of GPU memory wait for an
//! answer, and ghostd is handed who answers.
//!
//! What is sent is what OCI runtimes send to a profile's `listenerPath`: the container process
//! state of the OCI runtime specification, with the listener as its only descriptor.

use crate::error::Error;
use ghost_model::{Name, Problem};
use ghost_notify::filter::{self, InstallError};
use ghost_notify::pass;
use ghost_rm::tenant::NUMBERS;
use serde_json::{Value as Json, json};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long ghostd may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than any answer.
const MOST: u64 = 64 << 10;

/// Puts the filter before this process and all that it will be and start, and has ghostd, at
/// `socket`, answer for it by what holds for the container `name`.
///
/// Within a filter that has a listener already nothing is done: the kernel allows one, and it
/// covers this process too. By whose limits it answers follows from membership.
///
/// # Errors
/// Why there is no filter, or why ghostd does not answer for it. The program must not begin then:
/// its calls would fail.
pub(crate) fn hold(socket: &Path, name: &Name) -> Result<(), Error> {
    match filter::install(NUMBERS) {
        Ok(listener) => hand_over(socket, name, listener),
        Err(InstallError::Nested) => Ok(()),
        Err(InstallError::System(source)) => {
            Err(Error::io("the seccomp filter of GPU memory", source))
        }
    }
}

fn hand_over(socket: &Path, name: &Name, listener: OwnedFd) -> Result<(), Error> {
    let stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => Error::SocketDenied(socket.into()),
        _ => Error::NotRunning {
            socket: socket.into(),
            source,
        },
    })?;
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Silent {
            request: "the hand-over of a seccomp listener".into(),
            after: PATIENCE,
        },
        _ => Error::io(socket.display().to_string(), e),
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let message = state(name, std::process::id()).to_string();
    pass::send(&stream, message.as_bytes(), &[listener.as_fd()]).map_err(failed)?;
    // From here on it is ghostd's alone: what nobody answers for is not to wait for ever.
    drop(listener);
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    let mut answer = Vec::new();
    let read = (&stream).take(MOST).read_to_end(&mut answer);
    read.map_err(failed)?;
    verdict(&answer)
}

fn state(name: &Name, pid: u32) -> Json {
    json!({
        "ociVersion": "1.0.2",
        "fds": ["seccompFd"],
        "pid": pid,
        "metadata": name,
        "state": {
            "ociVersion": "1.0.2", "id": format!("ghostctl-{pid}"), "status": "creating",
            "pid": pid, "bundle": "/"
        }
    })
}

fn verdict(answer: &[u8]) -> Result<(), Error> {
    if let Ok(problem) = serde_json::from_slice::<Problem>(answer) {
        return Err(problem.into());
    }
    match serde_json::from_slice::<Json>(answer) {
        Ok(answer) if answer["ok"] == true => Ok(()),
        _ => Err(Error::Answer {
            request: "the hand-over of a seccomp listener".into(),
            why: match answer {
                [] => "it closed the connection".into(),
                _ => String::from_utf8_lossy(answer).trim_end().to_owned(),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_model::Kind;

    #[test]
    fn only_ok_is_ok() {
        assert!(verdict(b"{\"ok\":true}\n").is_ok());
        for (answer, why) in [
            ("", "closed"),
            ("{}", "{}"),
            ("{\"ok\":false}\n", "false"),
            ("[", "["),
        ] {
            let error = verdict(answer.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Answer { .. }), "{answer:?}");
            assert!(error.to_string().contains(why), "{error}");
        }
        let problem = Problem::new(Kind::NotFound, "no container \"a\"");
        let error = verdict(&serde_json::to_vec(&problem).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "no container \"a\"");
    }
}
