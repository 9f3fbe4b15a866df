//! What a backend says of itself: which keys are held, and by whom.

use crate::key::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The three ways to enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum BackendKind {
    /// NVIDIA's open kernel module with Ghost woven in.
    Patched,
    /// An unmodified NVIDIA driver.
    Stock,
    /// A GPU made of arithmetic.
    Sim,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackendKind::Patched => "patched",
            BackendKind::Stock => "stock",
            BackendKind::Sim => "sim",
        })
    }
}

/// Who holds a key on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Enforcer {
    /// The driver: it holds without ghostd.
    Kernel,
    /// ghostd: it holds while ghostd (or its guardian) runs.
    Daemon,
    /// Ghost's libcuda.
    Shim,
    /// Some of a container's processes are held, some are not.
    Mixed,
    /// Nobody: the value is stored and shown, and binds nothing.
    Nobody,
}

impl fmt::Display for Enforcer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Enforcer::Kernel => "kernel",
            Enforcer::Daemon => "daemon",
            Enforcer::Shim => "shim",
            Enforcer::Mixed => "mixed",
            Enforcer::Nobody => "nobody",
        })
    }
}

/// What the backend in use can hold. Nothing is claimed that is not in here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Capabilities {
    /// Which backend.
    pub backend: BackendKind,
    /// The driver's version, where there is one.
    pub driver: Option<String>,
    /// The version of Ghost in the driver, where there is one.
    pub patch: Option<String>,
    /// For each settable key, who enforces it; keys that are not listed are enforced by nobody.
    pub enforced_by: BTreeMap<Key, Enforcer>,
    /// Where GPU time is measured, in a few words for people.
    pub meter: String,
    /// What a user should know: an unknown driver branch, a missing permission, …
    pub notes: Vec<String>,
}

impl Capabilities {
    /// Who enforces `key`.
    pub fn enforcer(&self, key: Key) -> Enforcer {
        self.enforced_by
            .get(&key)
            .copied()
            .unwrap_or(Enforcer::Nobody)
    }
}
