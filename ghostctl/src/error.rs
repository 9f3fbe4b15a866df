//! Everything that ends a command early, the line that says so and the exit code.

use ghost_model::{ExitCode, Kind, Problem};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// ghostd, or the check that it would make, refused.
    #[error(transparent)]
    Problem(#[from] Problem),
    /// Nobody listens.
    #[error("ghostd does not answer on {}: {source}", socket.display())]
    NotRunning {
        /// Where it was sought.
        socket: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The socket is there, and not for us.
    #[error("ghostd's socket {} is not open to this user", .0.display())]
    SocketDenied(PathBuf),
    /// It listens and says nothing.
    #[error("ghostd did not answer {request} within {} s", after.as_secs())]
    Silent {
        /// `GET /v1/containers`
        request: String,
        /// How long was waited.
        after: Duration,
    },
    /// It said something that is not its language.
    #[error("{request}: ghostd gave an answer that this ghostctl does not understand: {why}")]
    Answer {
        /// `GET /v1/containers`
        request: String,
        /// What is wrong with it.
        why: String,
    },
    /// `--wait` ran out of time.
    #[error("{name}: the change is stored but was not in force after {} ms", after.as_millis())]
    TimedOut {
        /// The container.
        name: String,
        /// How long was waited.
        after: Duration,
    },
    /// A file or another program.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, to what.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// `run` could not start the command.
    #[error("{command}: {source}")]
    Execute {
        /// The command, made fit for a terminal.
        command: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Standard output is closed: nothing is wrong, and nobody is there to read more.
    #[error("standard output is closed")]
    Closed,
    /// `check` found something; its lines have said what.
    #[error("{0} of the checks failed")]
    Checks(usize, ExitCode),
}

impl Error {
    /// An [`Error::Io`].
    pub fn io(what: impl Into<String>, source: io::Error) -> Error {
        Error::Io {
            what: what.into(),
            source,
        }
    }

    /// A refusal of what was typed.
    pub fn usage(detail: impl Into<String>) -> Error {
        Problem::new(Kind::Invalid, detail).into()
    }

    /// The exit code.
    pub fn code(&self) -> ExitCode {
        match self {
            Error::Problem(p) => p.into(),
            Error::NotRunning { .. } => ExitCode::NotRunning,
            Error::SocketDenied(_) => ExitCode::Denied,
            Error::Silent { .. } | Error::Answer { .. } => ExitCode::Failed,
            Error::TimedOut { .. } => ExitCode::TimedOut,
            Error::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ExitCode::Denied,
                _ => ExitCode::Failed,
            },
            Error::Execute { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ExitCode::CommandNotFound,
                _ => ExitCode::CannotExecute,
            },
            Error::Closed => ExitCode::Done,
            Error::Checks(_, code) => *code,
        }
    }

    /// The exit code of `run`, whose other codes are its command's.
    pub fn run_code(&self) -> ExitCode {
        match self {
            Error::Execute { .. } => self.code(),
            _ => ExitCode::RunFailed,
        }
    }

    /// What to type next.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Problem(p) => p.hint.clone(),
            Error::NotRunning { .. } => Some("systemctl start ghostd".into()),
            Error::SocketDenied(_) => Some("sudo usermod -aG ghost $USER && newgrp ghost".into()),
            Error::Silent { .. } => Some("journalctl -u ghostd -n 50".into()),
            Error::Answer { .. } => Some(
                "`ghostctl --version` and `ghostctl info` show whether both are of one version"
                    .into(),
            ),
            Error::TimedOut { name, .. } => Some(format!("ghostctl status {name}")),
            _ => None,
        }
    }

    /// The lines for standard error: one for the error, one for each further field, one to type.
    pub fn report(&self) -> String {
        let mut out = format!("error: {}\n", printable(&self.to_string()));
        if let Error::Problem(p) = self {
            // The first field's sentence is often the end of the whole one's.
            let more = p.errors.iter().filter(|f| !p.detail.ends_with(&f.detail));
            for field in more {
                out += &format!("error: {}\n", printable(&field.detail));
            }
        }
        if let Some(hint) = self.hint() {
            out += &format!("hint: {}\n", printable(&hint));
        }
        out
    }
}

/// One line, without control characters: what a daemon or a tenant wrote must not move the
/// cursor.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_model::Key;

    #[test]
    fn codes() {
        let io = |kind| io::Error::from(kind);
        let socket = PathBuf::from("/x");
        for (error, code) in [
            (Problem::new(Kind::Unsupported, "x").into(), 3),
            (Problem::new(Kind::NotFound, "x").into(), 6),
            (Error::usage("x"), 2),
            (
                Error::NotRunning {
                    socket: socket.clone(),
                    source: io(io::ErrorKind::NotFound),
                },
                7,
            ),
            (Error::SocketDenied(socket), 4),
            (
                Error::TimedOut {
                    name: "a".into(),
                    after: Duration::ZERO,
                },
                124,
            ),
            (Error::io("x", io(io::ErrorKind::PermissionDenied)), 4),
            (Error::io("x", io(io::ErrorKind::NotFound)), 1),
            (
                Error::Execute {
                    command: "x".into(),
                    source: io(io::ErrorKind::NotFound),
                },
                127,
            ),
            (
                Error::Execute {
                    command: "x".into(),
                    source: io(io::ErrorKind::PermissionDenied),
                },
                126,
            ),
            (Error::Checks(1, ExitCode::NoDriver), 9),
        ] {
            assert_eq!(error.code() as u8, code, "{error}");
        }
    }

    #[test]
    fn a_report_is_lines_fit_for_a_terminal() {
        let mut problem = Problem::field(Kind::Invalid, Key::Weight, "\"0\u{1b}[31m\"")
            .at(Key::Weight)
            .of("trainer")
            .hint("`ghostctl info`");
        problem.errors.push(ghost_model::problem::FieldError {
            detail: "gpu.idle: \"7\"".into(),
            pointer: "#/spec/gpu.idle".into(),
        });
        assert_eq!(
            Error::from(problem).report(),
            "error: trainer: gpu.weight: \"0?[31m\"\nerror: gpu.idle: \"7\"\nhint: `ghostctl info`\n"
        );
    }
}
