//! The containers of clients' work: made with the first session, gone after the last.

use super::tenant::Place;
use crate::caller::Caller;
use crate::core::{Declaration, Handle, Refused, Request};
use ghost_model::{Kind, Name, Problem, Spec};
use serde_json::Value as Json;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Marks what was made here, also for the ghostd after this one.
const LABEL: (&str, &str) = ("ghost.overflow", "session");
/// How often containers are looked for that have served.
const SWEEP: Duration = Duration::from_secs(2);

/// The containers in use.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    core: Handle,
    /// Sessions by container. Guards the numbers, and is held to change them only.
    uses: Arc<Mutex<HashMap<Name, usize>>>,
    /// Held while a container is made or swept away, so that none goes under a new session.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A container that does not go, until this is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    leases: Leases,
    pub(super) name: Name,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut uses = self.leases.lock();
        if let Some(count) = uses.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                uses.remove(&self.name);
            }
        }
    }
}

impl Leases {
    pub(super) fn new(core: Handle) -> Leases {
        Leases {
            core,
            uses: Arc::default(),
            turn: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, usize>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The container of a session. One that an administrator made keeps its own settings; ours gets
    /// those of its newest session.
    pub(super) async fn take(&self, place: &Place) -> Result<Lease, Problem> {
        let _turn = self.turn.lock().await;
        if let Some(above) = place.name.parent().filter(|above| !self.exists(above)) {
            let spec = Spec::default();
            self.declare(&Place { name: above, spec }).await?;
        }
        if self.is_ours(&place.name) || !self.exists(&place.name) {
            self.declare(place).await?;
        }
        *self.lock().entry(place.name.clone()).or_default() += 1;
        Ok(Lease {
            leases: self.clone(),
            name: place.name.clone(),
        })
    }

    async fn declare(&self, place: &Place) -> Result<(), Problem> {
        let declaration = Declaration {
            name: place.name.clone(),
            spec: Json::from(place.spec.clone()),
            labels: BTreeMap::from([(LABEL.0.to_owned(), LABEL.1.to_owned())]),
            owner: None,
        };
        let request = Request::Replace {
            declaration,
            if_match: None,
            dry_run: false,
        };
        let done = self.core.ask(Caller::daemon(), request).await;
        done.map(drop).map_err(Refused::into_problem)
    }

    fn exists(&self, name: &Name) -> bool {
        self.core.catalog().entries.contains_key(name)
    }

    fn is_ours(&self, name: &Name) -> bool {
        let catalog = self.core.catalog();
        let entry = catalog.entries.get(name);
        entry.is_some_and(|e| e.labels.get(LABEL.0).map(String::as_str) == Some(LABEL.1))
    }

    /// Takes away what was made here, serves nobody and is empty; also what a ghostd before this
    /// one left. Ends with its task.
    pub(super) async fn sweep(self) {
        loop {
            let turn = self.turn.lock().await;
            let catalog = self.core.catalog();
            // Those below go before those above.
            for name in catalog.entries.keys().rev() {
                if !self.is_ours(name) || self.lock().contains_key(name) {
                    continue;
                }
                let request = Request::Delete {
                    name: name.clone(),
                    force: false,
                    if_match: None,
                };
                match self.core.ask(Caller::daemon(), request).await {
                    Ok(_) => {}
                    // Something is still in it: the next look tries again.
                    Err(Refused::Problem(p)) if p.kind == Kind::Conflict => {}
                    Err(refused) => tracing::warn!(container = %name, "stays: {refused}"),
                }
            }
            drop(turn);
            tokio::time::sleep(SWEEP).await;
        }
    }
}
