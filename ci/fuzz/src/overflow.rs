//! What other hosts send first.

use ghost_wire::hello::{self, Hello};
use ghostd::overflow::tenant::{ABOVE, place, read_hello};

/// A hello's bytes, and the container that they make.
pub fn overflow_hello(data: &[u8]) {
    let taken = read_hello(data);
    // Of whatever release, so that inputs that are kept stay of use.
    let Ok(said) = hello::from_bytes::<Hello>(data) else {
        assert!(taken.is_err());
        return;
    };
    let again = hello::from_bytes(&hello::to_bytes(&said));
    assert_eq!(again.as_ref(), Ok(&said), "what was read is read back");
    match place(&said.tenant) {
        Ok(made) => {
            let above = made.name.parent().map(String::from);
            assert_eq!(above.as_deref(), Some(ABOVE), "{}", made.name);
        }
        Err(why) => assert!(!why.chars().any(char::is_control), "{why:?}"),
    }
}
