//! One line of the store: a checksum and the change that it covers.

use ghost_model::value::CgroupPath;
use ghost_model::{Name, ProcId, Spec};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// What is known of one container that a restart must not lose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Its name.
    pub name: Name,
    /// Unique for ever.
    pub uid: String,
    /// Counts changes.
    #[serde(default)]
    pub generation: u64,
    /// The user who owns it.
    #[serde(default)]
    pub owner: u32,
    /// Whether a command created it; else it lives as long as its file.
    #[serde(default)]
    pub by_command: bool,
    /// Labels given by command.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Settings given by command.
    #[serde(default, with = "lenient")]
    pub over: Spec,
    /// Members by pid, of the boot named in `boot`.
    #[serde(default)]
    pub pids: Vec<ProcId>,
    /// Members by cgroup that were attached, of the boot named in `boot`.
    #[serde(default)]
    pub cgroups: Vec<String>,
    /// The boot in which the members lived.
    #[serde(default)]
    pub boot: String,
}

impl Saved {
    /// The attached cgroups that are still paths.
    pub fn cgroups(&self) -> Vec<CgroupPath> {
        self.cgroups.iter().filter_map(|c| c.parse().ok()).collect()
    }
}

/// What a container file declared when it was last good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFile {
    /// By container.
    pub containers: BTreeMap<Name, SavedDeclared>,
}

/// One container of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedDeclared {
    /// Its settings.
    #[serde(default, with = "lenient")]
    pub spec: Spec,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// A part of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Op {
    /// The container is now this.
    Put(Box<Saved>),
    /// The container is gone.
    Delete {
        /// Which.
        name: Name,
    },
    /// The container files, by path, are now these.
    Files {
        /// By path.
        files: BTreeMap<String, SavedFile>,
    },
}

/// A whole change: all of its parts are so, or none is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The parts, in order.
    pub ops: Vec<Op>,
}

/// Why a line is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not a checksum, a space and more.
    #[error("the line has no checksum")]
    Form,
    /// The checksum is of something else.
    #[error("the checksum does not match: the line is cut or was changed")]
    Checksum,
    /// The checksum is right, but this version cannot read the line.
    #[error("the line cannot be read: {0}")]
    Content(String),
}

/// `CRC32 JSON\n`.
pub(super) fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(record)?;
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend_from_slice(&json);
    line.push(b'\n');
    Ok(line)
}

/// The record of a line without its line end.
///
/// # Errors
/// [`RecordError`]
pub(super) fn decode<T: serde::de::DeserializeOwned>(line: &[u8]) -> Result<T, RecordError> {
    let (sum, json) = line.split_at_checked(8).ok_or(RecordError::Form)?;
    let json = json.strip_prefix(b" ").ok_or(RecordError::Form)?;
    let sum = std::str::from_utf8(sum)
        .ok()
        .and_then(|s| u32::from_str_radix(s, 16).ok())
        .ok_or(RecordError::Form)?;
    if sum != crc32fast::hash(json) {
        return Err(RecordError::Checksum);
    }
    serde_json::from_slice(json).map_err(|e| RecordError::Content(e.to_string()))
}

/// Specs as we once wrote them: a key or value that this version no longer knows is left out
/// and logged, and the others hold.
mod lenient {
    use super::{Json, Spec};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(spec: &Spec, s: S) -> Result<S::Ok, S::Error> {
        spec.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Spec, D::Error> {
        let json = Json::deserialize(d)?;
        let mut spec = Spec::default();
        if spec.merge_json(&json).is_ok() {
            return Ok(spec);
        }
        let Json::Object(fields) = json else {
            return Err(serde::de::Error::custom("a spec is an object"));
        };
        for (key, value) in fields {
            let one = Json::Object([(key.clone(), value)].into_iter().collect());
            if let Err(problem) = spec.merge_json(&one) {
                tracing::warn!(key, %problem, "a stored value is no longer understood and is left out");
            }
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn saved(name: &str, weight: u64) -> Saved {
        Saved {
            name: name.parse().unwrap(),
            uid: "u".into(),
            generation: weight,
            owner: 0,
            by_command: true,
            labels: BTreeMap::new(),
            over: Spec::try_from(serde_json::json!({ "gpu.weight": weight })).unwrap(),
            pids: vec![],
            cgroups: vec![],
            boot: String::new(),
        }
    }

    #[test]
    fn unknown_keys_of_another_version_do_not_cost_the_rest() {
        let mut json = serde_json::to_value(saved("a", 7)).unwrap();
        json["over"]["gpu.fancy"] = 1.into();
        json["more"] = 1.into();
        let back: Saved = serde_json::from_value(json).unwrap();
        assert_eq!(back, saved("a", 7));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(name in "[a-z]{1,8}", weight in 1u64..=10_000) {
            let record = Record { ops: vec![Op::Put(Box::new(saved(&name, weight)))] };
            let line = encode(&record).unwrap();
            prop_assert_eq!(line.last(), Some(&b'\n'));
            prop_assert_eq!(decode::<Record>(&line[..line.len() - 1]), Ok(record));
        }

        #[test]
        fn any_flipped_bit_and_any_cut_is_noticed(weight in 1u64..=10_000, at: prop::sample::Index, bit in 0u8..8, cut: prop::sample::Index) {
            let record = Record { ops: vec![Op::Put(Box::new(saved("a", weight)))] };
            let line = encode(&record).unwrap();
            let whole = &line[..line.len() - 1];
            let mut flipped = whole.to_vec();
            let i = at.index(flipped.len());
            flipped[i] ^= 1 << bit;
            // Upper and lower case hexadecimal digits are the same checksum.
            prop_assert!(decode::<Record>(&flipped).is_err() || flipped.eq_ignore_ascii_case(whole));
            prop_assert!(decode::<Record>(&whole[..cut.index(whole.len())]).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = decode::<Record>(&bytes);
        }
    }
}
