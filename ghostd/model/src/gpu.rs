//! Which GPUs there are.

use crate::name::sanitize;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a person or a backend calls a GPU: a UUID (`GPU-8f6b1c2e-…`, or a unique beginning of
/// one), an index or a PCI address. Everything that Ghost prints or stores is the whole UUID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuId(String);

/// Why a text names no GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// Not a UUID, index or PCI address.
    #[error(
        "{0:?} does not name a GPU: use a UUID, an index or a PCI address as nvidia-smi prints them"
    )]
    Form(String),
    /// None here is called that.
    #[error("no GPU {0:?} on this host: `ghostctl gpu list` shows those that there are")]
    NotFound(String),
    /// More than one begins like that.
    #[error("{0:?} is the beginning of more than one GPU's UUID: write more of it")]
    Ambiguous(String),
}

impl GpuId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The whole UUID of the one GPU that this names.
    ///
    /// # Errors
    /// [`GpuError::NotFound`] and [`GpuError::Ambiguous`].
    pub fn resolve(&self, gpus: &[GpuInfo]) -> Result<GpuId, GpuError> {
        let is = |g: &&GpuInfo| {
            g.id == *self || g.index.to_string() == self.0 || g.pci.eq_ignore_ascii_case(&self.0)
        };
        if let Some(gpu) = gpus.iter().find(is) {
            return Ok(gpu.id.clone());
        }
        let long_enough = self.0.len() >= "GPU-".len() + 4;
        let mut like = gpus
            .iter()
            .filter(|g| long_enough && g.id.0.starts_with(&self.0));
        match (like.next(), like.next()) {
            (Some(gpu), None) => Ok(gpu.id.clone()),
            (Some(_), Some(_)) => Err(GpuError::Ambiguous(self.0.clone())),
            _ => Err(GpuError::NotFound(self.0.clone())),
        }
    }
}

impl std::str::FromStr for GpuId {
    type Err = GpuError;
    fn from_str(text: &str) -> Result<Self, GpuError> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b"-:.".contains(&b);
        if text.is_empty() || text.len() > 64 || !text.bytes().all(fine) {
            return Err(GpuError::Form(sanitize(text)));
        }
        Ok(GpuId(text.to_owned()))
    }
}

impl TryFrom<String> for GpuId {
    type Error = GpuError;
    fn try_from(text: String) -> Result<Self, GpuError> {
        text.parse()
    }
}

impl From<GpuId> for String {
    fn from(id: GpuId) -> String {
        id.0
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether Ghost shares a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum GpuState {
    /// Limits hold here.
    Shared,
    /// Left alone, and why: MIG is on, the driver branch is unknown, …
    Refused(String),
}

/// One GPU of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GpuInfo {
    /// Whole UUID.
    #[serde(rename = "uuid")]
    pub id: GpuId,
    /// As nvidia-smi counts.
    pub index: u32,
    /// `00000000:3B:00.0`.
    pub pci: String,
    /// Product name.
    pub name: String,
    /// Bytes of memory on the card.
    pub memory_total: Bytes,
    /// Bytes in use, by whomever; `None` where it could not be read.
    pub memory_used: Option<Bytes>,
    /// Whether Ghost shares it.
    #[serde(flatten)]
    pub state: GpuState,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(id: &str, index: u32) -> GpuInfo {
        GpuInfo {
            id: id.parse().unwrap(),
            index,
            pci: format!("00000000:{index:02X}:00.0"),
            name: "test".into(),
            memory_total: Bytes(1),
            memory_used: None,
            state: GpuState::Shared,
        }
    }

    #[test]
    fn resolves_by_uuid_index_pci_and_beginning() {
        let gpus = [gpu("GPU-aaaa1111", 0), gpu("GPU-aaaa2222", 1)];
        let find = |s: &str| s.parse::<GpuId>().unwrap().resolve(&gpus);
        assert_eq!(find("1").unwrap().as_str(), "GPU-aaaa2222");
        assert_eq!(find("00000000:00:00.0").unwrap().as_str(), "GPU-aaaa1111");
        assert_eq!(find("GPU-aaaa2").unwrap().as_str(), "GPU-aaaa2222");
        assert_eq!(
            find("GPU-aaaa"),
            Err(GpuError::Ambiguous("GPU-aaaa".into()))
        );
        assert!(matches!(find("2"), Err(GpuError::NotFound(_))));
        assert!(matches!(find("GPU-"), Err(GpuError::NotFound(_))));
        assert!("a b".parse::<GpuId>().is_err());
    }
}
