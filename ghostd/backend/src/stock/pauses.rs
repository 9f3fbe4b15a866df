//! What is to be paused, kept so by the guardian.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use ghost_guardian::{ClientError, FailureKind, Guardian, Key, Keys, Pause};
use ghost_model::{Micros, Name};
use ghost_rm::Gpu;

/// How long a pause outlives the last sample.
const LEASE: Duration = Duration::from_millis(250);
/// No call on the guardian takes longer.
const TIMEOUT: Duration = Duration::from_millis(200);
/// After it was found away, it is looked for this much later.
const RETRY: Micros = Micros(500_000);

/// A pause that should be in force, and whom it is for.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) container: Name,
    pub(super) gpu: usize,
    pub(super) pause: Pause,
}

/// The pauses that are in force, and the connection that they hang on.
#[derive(Debug)]
pub(super) struct Pauses {
    socket: PathBuf,
    guardian: Option<Guardian>,
    held: BTreeMap<Key, Pause>,
    retry: Micros,
    problem: Option<String>,
}

/// Why pauses of one container are not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unpaused {
    pub(super) container: Name,
    pub(super) gpu: usize,
    pub(super) cause: String,
}

impl Pauses {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            guardian: None,
            held: BTreeMap::new(),
            retry: Micros::ZERO,
            problem: None,
        }
    }

    /// What keeps pauses from being held, if something does.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Whether the pause called `key` is in force.
    pub(super) fn is_held(&self, key: &str) -> bool {
        self.held.contains_key(key)
    }

    /// Whether nothing is paused.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Connects where there is no connection, and has the guardian ready for `gpus`: the first
    /// pause should be as quick as any.
    pub(super) fn connect(&mut self, gpus: impl Iterator<Item = Gpu>, now: Micros) {
        if self.guardian.is_some() {
            return;
        }
        for gpu in gpus {
            if self.ask(now, |guardian| guardian.ready(gpu)).is_err() {
                return;
            }
        }
    }

    /// Renews the leases of all that is held; what lapsed is not held any more.
    pub(super) fn renew(&mut self, now: Micros) {
        if self.held.is_empty() {
            return;
        }
        let lapsed = self.ask(now, |guardian| guardian.renew(Keys::All, LEASE));
        if let Ok(outcomes) = lapsed {
            let still: BTreeSet<&Key> = outcomes
                .iter()
                .filter(|outcome| outcome.error.is_none())
                .map(|outcome| &outcome.key)
                .collect();
            self.held.retain(|key, _| still.contains(key));
        }
    }

    /// Makes what is paused be `targets` and nothing else; says what could not be.
    pub(super) fn reconcile(&mut self, targets: Vec<Target>, now: Micros) -> Vec<Unpaused> {
        let wanted: BTreeSet<&Key> = targets.iter().map(|target| &target.pause.key).collect();
        let over: Vec<Key> = self
            .held
            .keys()
            .filter(|key| !wanted.contains(key))
            .cloned()
            .collect();
        let missing: Vec<Target> = targets
            .into_iter()
            .filter(|target| {
                let held = self.held.get(&target.pause.key);
                held.is_none_or(|held| held.channels != target.pause.channels)
            })
            .collect();
        let mut failed = Vec::new();
        if !over.is_empty()
            && self
                .ask(now, |guardian| guardian.resume(over.clone()))
                .is_ok()
        {
            self.held.retain(|key, _| !over.contains(key));
        }
        if missing.is_empty() {
            return failed;
        }
        let pauses: Vec<Pause> = missing.iter().map(|target| target.pause.clone()).collect();
        let unpaused = |target: &Target, cause: &str| Unpaused {
            container: target.container.clone(),
            gpu: target.gpu,
            cause: cause.to_owned(),
        };
        match self.ask(now, |guardian| guardian.pause(pauses)) {
            Ok(outcomes) => {
                for (target, outcome) in missing.iter().zip(outcomes) {
                    match outcome.error {
                        None => {
                            let key = target.pause.key.clone();
                            self.held.insert(key, target.pause.clone());
                        }
                        // The next look at the processes finds out.
                        Some(error) if error.kind == FailureKind::OwnerGone => {}
                        Some(error) => failed.push(unpaused(target, &error.detail)),
                    }
                }
            }
            Err(cause) => failed.extend(missing.iter().map(|target| unpaused(target, &cause))),
        }
        failed
    }

    /// The lease to begin with.
    pub(super) fn lease_us() -> u64 {
        LEASE.as_micros() as u64
    }

    /// Calls the guardian, connecting anew where need be. Whatever goes wrong ends the
    /// connection, and with it all that was paused through it.
    fn ask<R>(
        &mut self,
        now: Micros,
        call: impl FnOnce(&mut Guardian) -> Result<R, ClientError>,
    ) -> Result<R, String> {
        let connected = match self.guardian.take() {
            Some(guardian) => Ok(guardian),
            None if now < self.retry => {
                return Err(self.problem.clone().unwrap_or_default());
            }
            None => Guardian::connect(&self.socket, TIMEOUT),
        };
        let answer = connected.and_then(|mut guardian| {
            let answer = call(&mut guardian)?;
            Ok((guardian, answer))
        });
        match answer {
            Ok((guardian, answer)) => {
                self.guardian = Some(guardian);
                self.problem = None;
                Ok(answer)
            }
            Err(error) => {
                let mut cause = error.to_string();
                if let Some(source) = std::error::Error::source(&error) {
                    cause = format!("{cause} ({source})");
                }
                let cause = format!("{cause}: try `systemctl start ghost-guardian`");
                self.held.clear();
                self.retry = now + RETRY;
                self.problem = Some(cause.clone());
                Err(cause)
            }
        }
    }
}
