//! Names of containers. They form a tree, as cgroup paths do: `team/job` is a child of `team`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest component of a name, in bytes.
pub const MAX_COMPONENT: usize = 64;
/// Deepest tree that is accepted.
pub const MAX_DEPTH: usize = 8;
/// The container of GPU processes that nobody put anywhere. It always exists.
pub const SYSTEM: &str = "system";

/// A container's name: 1 to [`MAX_DEPTH`] components joined by `/`, each 1 to [`MAX_COMPONENT`]
/// bytes of `a-z A-Z 0-9 . _ -`, not beginning with a dot or a dash.
///
/// ```
/// use ghost_model::Name;
/// let job: Name = "team/job".parse().unwrap();
/// assert_eq!(job.parent().unwrap().as_str(), "team");
/// assert!("team/../etc".parse::<Name>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "container name {0:?} {1}: use 1 to 8 parts joined by '/', each of letters, digits, '.', '_' or '-' and starting with a letter, a digit or '_'"
)]
pub struct NameError(pub String, pub &'static str);

impl Name {
    /// The container of GPU processes that belong to no other.
    pub fn system() -> Self {
        Name(SYSTEM.to_owned())
    }

    /// Whether this is [`SYSTEM`].
    pub fn is_system(&self) -> bool {
        self.0 == SYSTEM
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The container above, or `None` at the top.
    pub fn parent(&self) -> Option<Name> {
        self.0
            .rsplit_once('/')
            .map(|(above, _)| Name(above.to_owned()))
    }

    /// The last component.
    pub fn leaf(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// This container and all above it, nearest first.
    pub fn lineage(&self) -> impl Iterator<Item = Name> {
        std::iter::successors(Some(self.clone()), Name::parent)
    }

    /// Whether this container is `other` or lies below it.
    pub fn is_within(&self, other: &Name) -> bool {
        self.0
            .strip_prefix(other.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// A stranger's text made fit for a terminal or a log: control characters become `?`, and what
/// is longer than 128 characters is cut.
pub fn sanitize(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(128)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if text.chars().nth(128).is_some() {
        out.push('…');
    }
    out
}

impl std::str::FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refuse = |why| Err(NameError(sanitize(text), why));
        if text.is_empty() {
            return refuse("is empty");
        }
        if text.split('/').count() > MAX_DEPTH {
            return refuse("is too deep");
        }
        for part in text.split('/') {
            if part.is_empty() {
                return refuse("has an empty part");
            }
            if part.len() > MAX_COMPONENT {
                return refuse("has a part longer than 64 bytes");
            }
            if part.starts_with(['.', '-']) {
                return refuse("has a part that starts with a dot or a dash");
            }
            if !part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            {
                return refuse("has a character that is not allowed");
            }
        }
        Ok(Name(text.to_owned()))
    }
}

/// Names order and hash as their text does, so that maps keyed by them can be asked with a `&str`.
impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_could_escape_or_confuse() {
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "..",
            "a/..",
            ".",
            "-x",
            "a b",
            "a\nb",
            "a\u{1b}[31m",
            "ä",
            "a/b/c/d/e/f/g/h/i",
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?} was accepted");
        }
        assert!("x".repeat(65).parse::<Name>().is_err());
        let text = "a\u{1b}[31m".parse::<Name>().unwrap_err().to_string();
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn tree() {
        let n: Name = "a/b/c".parse().unwrap();
        let up: Vec<_> = n.lineage().map(|n| n.to_string()).collect();
        assert_eq!(up, ["a/b/c", "a/b", "a"]);
        assert!(n.is_within(&"a/b".parse().unwrap()));
        assert!(!n.is_within(&"a/bc".parse().unwrap()));
        assert!(
            !"ab"
                .parse::<Name>()
                .unwrap()
                .is_within(&"a".parse().unwrap())
        );
    }
}
