//! What a runtime sends with a listener: the container process state of the OCI runtime
//! specification. What is used of it is checked, the rest is left alone.

use ghost_model::Name;
use ghost_model::name::{NameError, sanitize};
use serde::Deserialize;

/// The most bytes of a state: its annotations are the runtime's users' own.
pub const MAX_STATE: usize = 256 << 10;
/// The most descriptors that may come with one.
pub const MAX_FDS: usize = 8;
/// What the specification calls the listener among the descriptors.
const LISTENER: &str = "seccompFd";

/// What is used of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The container: the profile's `listenerMetadata`.
    pub container: Name,
    /// Which of the descriptors is the listener.
    pub listener: usize,
    /// How many descriptors there are.
    pub fds: usize,
    /// The process, or its container's first where the runtime does not say.
    pub pid: Option<u32>,
}

/// Why bytes are no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// They are the beginning of one.
    #[error("the state of the container's process is cut off")]
    Incomplete,
    /// They are something else.
    #[error("no state of a container's process: {0}")]
    Json(String),
    /// More follows.
    #[error("something follows the state of the container's process")]
    Trailing,
    /// There is no listener, or more than one.
    #[error("fds: {0} of the descriptors are called \"seccompFd\": exactly one must be")]
    Listeners(usize),
    /// There are too many descriptors.
    #[error("fds: {0} descriptors: at most {MAX_FDS} are taken")]
    TooMany(usize),
    /// It does not say which container.
    #[error("no metadata: set \"listenerMetadata\" of the seccomp profile to the container's name")]
    NoContainer,
    /// It says none that can be.
    #[error("metadata: {0}")]
    Container(NameError),
    /// No process has this id.
    #[error("pid: {0} is not a process id")]
    Pid(i64),
}

#[derive(Deserialize)]
struct Message {
    fds: Vec<String>,
    #[serde(default)]
    pid: Option<i64>,
    #[serde(default)]
    metadata: Option<String>,
    #[serde(default)]
    state: Option<Container>,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default)]
    pid: Option<i64>,
}

/// Reads a state.
///
/// # Errors
/// [`StateError`]; [`StateError::Incomplete`] where more bytes may make one.
pub fn parse(bytes: &[u8]) -> Result<State, StateError> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<Message>();
    let message = match values.next() {
        None => return Err(StateError::Incomplete),
        Some(Err(e)) if e.is_eof() => return Err(StateError::Incomplete),
        Some(Err(e)) => return Err(StateError::Json(sanitize(&e.to_string()))),
        Some(Ok(message)) => message,
    };
    let rest = bytes.get(values.byte_offset()..).unwrap_or_default();
    if !rest.iter().all(u8::is_ascii_whitespace) {
        return Err(StateError::Trailing);
    }
    let fds = message.fds.len();
    if fds > MAX_FDS {
        return Err(StateError::TooMany(fds));
    }
    let is_it = |(i, name): (usize, &String)| (name == LISTENER).then_some(i);
    let listeners: Vec<usize> = message.fds.iter().enumerate().filter_map(is_it).collect();
    let [listener] = listeners[..] else {
        return Err(StateError::Listeners(listeners.len()));
    };
    let container = message.metadata.ok_or(StateError::NoContainer)?;
    // A process that joins a container has no id of its own in some runtimes' states.
    let first = message.state.and_then(|container| container.pid);
    let pids = [message.pid, first].into_iter().flatten();
    let pid = match pids.into_iter().find(|pid| *pid != 0) {
        Some(pid) => {
            let number = i32::try_from(pid)
                .ok()
                .and_then(|pid| u32::try_from(pid).ok());
            Some(number.ok_or(StateError::Pid(pid))?)
        }
        None => None,
    };
    Ok(State {
        container: container.parse().map_err(StateError::Container)?,
        listener,
        fds,
        pid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    fn state() -> Json {
        json!({
            "ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": 4711, "metadata": "team/a",
            "state": {
                "ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 4712,
                "bundle": "/b", "annotations": {"a": "b"}
            }
        })
    }

    fn with(change: impl FnOnce(&mut Json)) -> Result<State, StateError> {
        let mut json = state();
        change(&mut json);
        parse(json.to_string().as_bytes())
    }

    #[test]
    fn what_is_used_is_read_and_the_rest_is_left_alone() {
        let read = with(|_| ()).unwrap();
        assert_eq!(read.container.as_str(), "team/a");
        assert_eq!((read.listener, read.fds, read.pid), (0, 1, Some(4711)));
        let joined = with(|json| json["pid"] = 0.into()).unwrap();
        assert_eq!(joined.pid, Some(4712), "crun's exec says 0");
        let read = with(|json| {
            json["fds"] = json!(["other", "seccompFd"]);
            json["state"] = json!({"new": [1, 2]});
            json["pid"] = Json::Null;
            json["newer"] = json!({});
        });
        let read = read.unwrap();
        assert_eq!((read.listener, read.fds, read.pid), (1, 2, None));
        assert!(parse(format!("{}\n", state()).as_bytes()).is_ok());
    }

    #[test]
    fn what_is_used_must_be_right() {
        let refused = |change: fn(&mut Json)| with(change).unwrap_err();
        assert_eq!(refused(|j| j["fds"] = json!([])), StateError::Listeners(0));
        let twice = refused(|j| j["fds"] = json!(["seccompFd", "seccompFd"]));
        assert_eq!(twice, StateError::Listeners(2));
        assert_eq!(
            refused(|j| j["fds"] = json!(vec!["x"; 9])),
            StateError::TooMany(9)
        );
        assert_eq!(
            refused(|j| j["metadata"] = Json::Null),
            StateError::NoContainer
        );
        assert!(matches!(
            refused(|j| j["metadata"] = json!("../x")),
            StateError::Container(_)
        ));
        assert_eq!(refused(|j| j["pid"] = json!(-1)), StateError::Pid(-1));
        assert_eq!(
            refused(|j| j["pid"] = json!(1u64 << 31)),
            StateError::Pid(1 << 31)
        );
        assert!(matches!(
            refused(|j| j["pid"] = json!("7")),
            StateError::Json(_)
        ));
        assert!(matches!(refused(|j| *j = json!([])), StateError::Json(_)));
        assert_eq!(parse(b""), Err(StateError::Incomplete));
        let twice = format!("{}{}", state(), state());
        assert_eq!(parse(twice.as_bytes()), Err(StateError::Trailing));
    }

    proptest! {
        #[test]
        fn a_beginning_is_incomplete(cut: prop::sample::Index) {
            let whole = state().to_string();
            let part = &whole.as_bytes()[..cut.index(whole.len())];
            prop_assert_eq!(parse(part), Err(StateError::Incomplete));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
