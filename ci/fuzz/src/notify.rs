//! What container runtimes, or who claims to be one, send with a listener.

use ghostd::notify::state::{MAX_FDS, StateError, parse};

/// The state of a container's process.
pub fn notify_state(data: &[u8]) {
    match parse(data) {
        Ok(state) => {
            assert!(state.listener < state.fds && state.fds <= MAX_FDS);
            assert!(state.pid.is_none_or(|pid| pid > 0));
            let mut more = data.to_vec();
            more.extend(b" \n");
            assert_eq!(parse(&more), Ok(state), "white space says nothing");
            more.push(b'{');
            assert_eq!(parse(&more), Err(StateError::Trailing));
        }
        // What is whole, right or wrong, stays so whatever comes after it.
        Err(StateError::Incomplete) => {}
        Err(error) => {
            let mut more = data.to_vec();
            more.extend(b"{}");
            assert_ne!(parse(&more), Err(StateError::Incomplete), "{error}");
        }
    }
}
