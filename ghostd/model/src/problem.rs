//! What went wrong, in the form in which REST sends it (RFC 9457) and from which `ghostctl`
//! makes its message and its exit code.

use crate::key::{Key, UnknownKey};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The eight kinds of refusal, and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Kind {
    /// A value or a document that cannot be.
    Invalid,
    /// A key that does not exist.
    UnknownKey,
    /// No such container, GPU or process.
    NotFound,
    /// The name is taken.
    Exists,
    /// Changed meanwhile, or still populated.
    Conflict,
    /// This backend or GPU cannot do it.
    Unsupported,
    /// The caller may not.
    Denied,
    /// Not now: the store is full, the daemon stops, a wait ran out.
    Unavailable,
}

/// One field of a document that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// What is wrong, in a sentence.
    pub detail: String,
    /// Where: a JSON pointer as a URI fragment, `#/spec/gpu.weight`.
    pub pointer: String,
}

/// A refusal. `detail` names the object, the key and the value; `hint` is a command that works as
/// typed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[error("{detail}")]
pub struct Problem {
    /// Which kind.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// One line that helps the caller.
    pub detail: String,
    /// What to type next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Field by field, where a document was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The request, to find it in the daemon's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl Problem {
    /// A problem with a sentence.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Problem {
            kind,
            detail: detail.into(),
            hint: None,
            errors: Vec::new(),
            request_id: None,
        }
    }

    /// A problem with one key of a spec.
    pub fn field(kind: Kind, key: Key, detail: impl fmt::Display) -> Self {
        Problem::new(kind, format!("{key}: {detail}")).at(key)
    }

    /// The same, pointing at a key of the spec.
    #[must_use]
    pub fn at(mut self, key: Key) -> Self {
        let detail = self.detail.clone();
        self.errors.push(FieldError {
            detail,
            pointer: format!("#/spec/{key}"),
        });
        self
    }

    /// The same with a command to type.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same said of an object: `gpu.weight: … ` becomes `"trainer": gpu.weight: …`.
    #[must_use]
    pub fn of(mut self, object: impl fmt::Display) -> Self {
        self.detail = format!("{object}: {}", self.detail);
        self
    }

    /// The HTTP status of this kind.
    pub const fn http_status(&self) -> u16 {
        match self.kind {
            Kind::Invalid | Kind::UnknownKey => 400,
            Kind::Denied => 403,
            Kind::NotFound => 404,
            Kind::Exists | Kind::Conflict => 409,
            Kind::Unsupported => 501,
            Kind::Unavailable => 503,
        }
    }
}

impl From<UnknownKey> for Problem {
    fn from(e: UnknownKey) -> Problem {
        Problem::new(Kind::UnknownKey, e.to_string())
    }
}

/// Exit codes of `ghostctl`, chosen where nvidia-smi, LSB and systemd agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Done.
    Done = 0,
    /// Failed for a reason that has no code of its own.
    Failed = 1,
    /// Bad arguments or configuration.
    Usage = 2,
    /// Not supported by this backend or GPU.
    Unsupported = 3,
    /// Permission denied.
    Denied = 4,
    /// Exists, changed meanwhile, still populated.
    Conflict = 5,
    /// No such container, GPU or key.
    NotFound = 6,
    /// ghostd is not running.
    NotRunning = 7,
    /// NVIDIA driver not loaded.
    NoDriver = 9,
    /// `--wait` ran out of time.
    TimedOut = 124,
    /// `run`: ghostctl itself failed.
    RunFailed = 125,
    /// `run`: the command cannot be executed.
    CannotExecute = 126,
    /// `run`: the command was not found.
    CommandNotFound = 127,
    /// Interrupted.
    Interrupted = 130,
}

impl From<&Problem> for ExitCode {
    fn from(problem: &Problem) -> ExitCode {
        match problem.kind {
            Kind::Invalid => ExitCode::Usage,
            Kind::UnknownKey | Kind::NotFound => ExitCode::NotFound,
            Kind::Exists | Kind::Conflict => ExitCode::Conflict,
            Kind::Unsupported => ExitCode::Unsupported,
            Kind::Denied => ExitCode::Denied,
            Kind::Unavailable => ExitCode::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_statuses() {
        let all = [
            (Kind::Invalid, "invalid", 400, 2),
            (Kind::UnknownKey, "unknown-key", 400, 6),
            (Kind::NotFound, "not-found", 404, 6),
            (Kind::Exists, "exists", 409, 5),
            (Kind::Conflict, "conflict", 409, 5),
            (Kind::Unsupported, "unsupported", 501, 3),
            (Kind::Denied, "denied", 403, 4),
            (Kind::Unavailable, "unavailable", 503, 1),
        ];
        for (kind, text, status, code) in all {
            let p = Problem::new(kind, "x");
            assert_eq!(p.http_status(), status);
            assert_eq!(ExitCode::from(&p) as u8, code);
            assert_eq!(serde_json::to_value(&p).unwrap()["type"], text);
        }
    }
}
