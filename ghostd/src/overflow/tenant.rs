//! Whose work a session is, as the client says, and what container that makes here. Nothing of it
//! is trusted: a name is made fit, a value parses or the client is told.

use ghost_model::name::{MAX_COMPONENT, sanitize};
use ghost_model::{Key, Name, Spec, Value};
use ghost_wire::hello::{self, Hello, Tenant};

/// The container above those of all clients: its limits hold for all of them together.
pub const ABOVE: &str = "overflow";
/// What a client may say of its own container. The other keys are about the client's host, or
/// would take from others here.
pub const KEYS: [Key; 6] = [
    Key::Weight,
    Key::Max,
    Key::Idle,
    Key::Latency,
    Key::MemoryHigh,
    Key::MemoryMax,
];
/// Hexadecimal digits that keep names apart that are made fit alike.
const DIGITS: usize = 10;

/// The container of a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// `overflow/HOST-CONTAINER-DIGITS`.
    pub name: Name,
    /// Its settings.
    pub spec: Spec,
}

/// Reads a hello, and says why its client cannot be served as far as that follows from the bytes.
///
/// # Errors
/// A sentence for the client.
pub fn read_hello(bytes: &[u8]) -> Result<Hello, String> {
    let hello: Hello = hello::from_bytes(bytes).map_err(|e| {
        format!("the hello cannot be read ({e}): install the same release of Ghost on both hosts")
    })?;
    match hello::unlike(&hello) {
        None => Ok(hello),
        Some(why) => Err(why),
    }
}

/// The container that a tenant's work gets here.
///
/// # Errors
/// A sentence for the client, which names the key and the value.
pub fn place(tenant: &Tenant) -> Result<Place, String> {
    let mut spec = Spec::default();
    for (key, value) in &tenant.limits {
        let Some(key) = key.parse().ok().filter(|key| KEYS.contains(key)) else {
            continue;
        };
        let refused = |why: String| format!("the container's limits are refused: {key}: {why}");
        let value = Value::parse(key, value).map_err(|e| refused(e.to_string()))?;
        let set = spec.set(key, None, value);
        set.map_err(|e| refused(e.to_string()))?;
    }
    Ok(Place {
        name: name(tenant)?,
        spec,
    })
}

fn name(tenant: &Tenant) -> Result<Name, String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(tenant.host.len() as u64).to_le_bytes());
    hasher.update(tenant.host.as_bytes());
    hasher.update(tenant.container.as_bytes());
    let digest = hasher.finalize().to_hex();
    let digits = digest.get(..DIGITS).unwrap_or_default();
    let text = format!("{}-{}", tenant.host, tenant.container.replace('/', "."));
    let fit = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "._-".contains(c) => c,
        _ => '_',
    };
    let readable: String = text
        .trim_start_matches(['.', '-'])
        .chars()
        .map(fit)
        .take(MAX_COMPONENT - DIGITS - 1)
        .collect();
    let begin = if readable.is_empty() {
        "unnamed"
    } else {
        &readable
    };
    let name = format!("{ABOVE}/{begin}-{digits}");
    name.parse()
        .map_err(|e: ghost_model::name::NameError| sanitize(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tenant(host: &str, container: &str, limits: &[(&str, &str)]) -> Tenant {
        Tenant {
            host: host.into(),
            container: container.into(),
            limits: limits
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..Tenant::default()
        }
    }

    #[test]
    fn names_are_readable_and_stay_apart() {
        let of = |host, container| place(&tenant(host, container, &[])).unwrap().name;
        let name = of("node1", "team/job");
        assert!(
            name.as_str().starts_with("overflow/node1-team.job-"),
            "{name}"
        );
        assert_eq!(name, of("node1", "team/job"));
        assert_ne!(name, of("node1", "team.job"));
        assert_ne!(of("a-b", "c"), of("a", "b-c"));
        assert_ne!(of("a", "bc"), of("ab", "c"));
    }

    #[test]
    fn known_limits_are_taken_and_the_hosts_own_are_not() {
        let limits = [
            ("gpu.weight", "70"),
            ("gpu.max", "50%"),
            ("gpu.memory.max", "2G"),
            ("gpu.memory.min", "80G"),
            ("gpu.devices", "7"),
            ("ghost.cgroup", "/"),
            ("gpu.newer", "1"),
        ];
        let spec = place(&tenant("a", "b", &limits)).unwrap().spec;
        let keys: Vec<Key> = spec.iter().map(|(key, _, _)| key).collect();
        assert_eq!(keys, [Key::Weight, Key::Max, Key::MemoryMax]);
    }

    #[test]
    fn a_limit_that_does_not_parse_is_named() {
        let why = place(&tenant("a", "b", &[("gpu.memory.max", "lots")])).unwrap_err();
        assert!(
            why.contains("gpu.memory.max") && why.contains("\"lots\""),
            "{why}"
        );
    }

    proptest! {
        #[test]
        fn any_tenant_has_a_name(host: String, container: String) {
            let name = place(&tenant(&host, &container, &[])).unwrap().name;
            prop_assert_eq!(name.parent().map(String::from), Some(ABOVE.to_owned()));
        }

        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>) {
            let _ = read_hello(&bytes);
        }
    }
}
