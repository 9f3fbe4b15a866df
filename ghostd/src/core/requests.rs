//! What may be asked of the core.

use super::entry::Entry;
use ghost_model::value::CgroupPath;
use ghost_model::{Name, Problem};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that can be asked of the core.
#[derive(Clone, Debug)]
pub enum Request {
    /// Makes a container. Legal for administrators, where the name is free and the container
    /// above exists.
    Create(Declaration),
    /// Makes a container, or gives one that exists exactly this spec and these labels. Legal as
    /// [`Request::Create`] and [`Request::Patch`] are.
    Replace {
        /// What it is to be.
        declaration: Declaration,
        /// Only if it has this generation.
        if_match: Option<IfMatch>,
        /// Say what would be, and change nothing.
        dry_run: bool,
    },
    /// Changes a container. Legal for administrators, and for its owner where every value takes
    /// and none gives.
    Patch {
        /// Which.
        name: Name,
        /// What is to change.
        patch: Patch,
        /// Only if it has this generation.
        if_match: Option<IfMatch>,
        /// Until the daemon ends.
        runtime: bool,
        /// Say what would be, and change nothing.
        dry_run: bool,
    },
    /// Drops what commands set, so that the file, or nothing, speaks. Legal as [`Request::Patch`].
    Revert {
        /// Which.
        name: Name,
        /// Only if it has this generation.
        if_match: Option<IfMatch>,
    },
    /// Ends a container. Legal for administrators, where no container is below it, no file
    /// declares it, and no process is in it unless `force`: its members then go to the one above.
    Delete {
        /// Which.
        name: Name,
        /// Also where it has processes.
        force: bool,
        /// Only if it has this generation.
        if_match: Option<IfMatch>,
    },
    /// Puts processes and cgroups into a container, and out of any other. Legal for
    /// administrators; for the container's owner where they are the owner's, and do not leave
    /// another's container.
    Attach {
        /// Which.
        name: Name,
        /// By pid; each must be there.
        pids: Vec<u32>,
        /// By cgroup; each must be there.
        cgroups: Vec<CgroupPath>,
    },
    /// Puts what a runtime began into a container: the cgroup of its process, or the process alone
    /// where the cgroup is not the container's own. Legal as [`Request::Attach`] is.
    Join {
        /// Which.
        name: Name,
        /// The process; `None`, or one that is not there, only asks whether the caller may.
        pid: Option<u32>,
        /// The runtime's process.
        runtime: u32,
    },
    /// Takes a process that was attached by pid out of a container. Legal for administrators.
    Detach {
        /// Which.
        name: Name,
        /// By pid.
        pid: u32,
    },
    /// Makes and changes all of these together, or none. Legal for administrators.
    Apply {
        /// What they are to be.
        containers: Vec<Declaration>,
        /// Delete what a command created and is not among them.
        prune: bool,
        /// Say what would be, and change nothing.
        dry_run: bool,
    },
    /// Reads the container files again. Legal for administrators.
    Reload,
}

/// A container as a document declares it.
#[derive(Clone, Debug)]
pub struct Declaration {
    /// Its name.
    pub name: Name,
    /// Its settings, not yet checked.
    pub spec: Json,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its owner; the caller, or whoever it is now, by default.
    pub owner: Option<u32>,
}

/// A JSON merge patch of a container, not yet checked.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    /// Of its settings.
    pub spec: Option<Json>,
    /// Of its labels; `None` takes one away.
    pub labels: BTreeMap<String, Option<String>>,
    /// Its new owner.
    pub owner: Option<u32>,
}

/// The condition of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// It exists.
    Any,
    /// It has this generation.
    Generation(u64),
}

/// What became of a request.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The containers that it was about, as they are now.
    pub touched: Vec<Arc<Entry>>,
    /// Whether the (first) container was made.
    pub created: bool,
    /// What changed, or would.
    pub changes: Vec<Change>,
    /// What is wrong with container files, after a reload.
    pub notes: Vec<String>,
    /// [`crate::control::Observed::revision`] reaches this when members are where they belong.
    pub revision: u64,
}

/// One change of one container.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Change {
    /// Which container.
    pub name: Name,
    /// `created`, `changed`, `frozen`, `thawed`, `attached` or `deleted`.
    #[schema(value_type = String)]
    pub what: &'static str,
    /// One line for people, with old and new value.
    pub detail: String,
    /// Its generation after it.
    pub generation: u64,
}

impl Refused {
    /// Why.
    pub fn into_problem(self) -> Problem {
        match self {
            Refused::Problem(problem) | Refused::Stale(problem) => problem,
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// For what it asks.
    #[error(transparent)]
    Problem(#[from] Problem),
    /// For its condition: the container changed meanwhile.
    #[error(transparent)]
    Stale(Problem),
}
