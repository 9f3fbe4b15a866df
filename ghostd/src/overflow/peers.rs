//! The hosts that containers of this one may use, and the tickets to them.

use super::secret::write_private;
use super::tenant;
use crate::core::Entry;
use ghost_model::name::{MAX_COMPONENT, sanitize};
use ghost_model::report::Peer;
use ghost_model::{Key, Kind, Problem, Value};
use ghost_wire::hello::Ticket;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why the peers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is none of ours.
    #[error("{path}: {source}: remove it, and add the peers again")]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// A peer with its secret.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Saved {
    address: String,
    #[serde(default)]
    token: String,
    #[serde(default)]
    fingerprint: String,
    /// Whether nothing new goes there.
    #[serde(default)]
    drained: bool,
}

impl Saved {
    /// A ticket for nobody yet.
    fn way(&self) -> Ticket {
        Ticket {
            address: self.address.clone(),
            token: self.token.clone(),
            fingerprint: self.fingerprint.clone(),
            ..Ticket::default()
        }
    }
}

/// A peer as it is added.
#[derive(Clone, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Added {
    /// `HOST:PORT`.
    pub address: String,
    /// The secret that it asks for; it is not shown again.
    #[serde(default)]
    pub token: String,
    /// SHA-256 of its certificate, hexadecimal; none: no TLS, which only this host itself may have.
    #[serde(default)]
    pub fingerprint: String,
}

impl std::fmt::Debug for Added {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Added({})", self.address)
    }
}

/// All peers. Kept in a file that only ghostd's user may read.
pub struct Peers {
    path: PathBuf,
    /// Guards the peers, and is held to read, or to change and write them.
    all: Mutex<BTreeMap<String, Saved>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peers({})", self.path.display())
    }
}

impl Peers {
    /// Those that `path` keeps; none if it is not there.
    ///
    /// # Errors
    /// [`PeersError`]
    pub fn open(path: &Path) -> Result<Peers, PeersError> {
        let path = path.to_owned();
        let all = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(PeersError::Read { path, source }),
            Ok(text) => match serde_json::from_slice(&text) {
                Ok(all) => all,
                Err(source) => return Err(PeersError::Content { path, source }),
            },
        };
        Ok(Peers {
            path,
            all: Mutex::new(all),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Saved>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, without their secrets.
    pub fn list(&self) -> Vec<Peer> {
        let all = self.lock();
        let show = |(name, saved): (&String, &Saved)| Peer {
            name: name.clone(),
            address: saved.address.clone(),
            fingerprint: (!saved.fingerprint.is_empty()).then(|| saved.fingerprint.clone()),
            token: !saved.token.is_empty(),
            drained: saved.drained,
            look: None,
        };
        all.iter().map(show).collect()
    }

    /// What lets this host ask each of them, by name.
    pub(super) fn ways(&self) -> Vec<(String, Ticket)> {
        let all = self.lock();
        let way = |(name, saved): (&String, &Saved)| (name.clone(), saved.way());
        all.iter().map(way).collect()
    }

    /// Whether the peer of this name is drained, if there is one.
    pub fn drained(&self, name: &str) -> Option<bool> {
        self.lock().get(name).map(|saved| saved.drained)
    }

    /// Adds one, or gives one other properties.
    ///
    /// # Errors
    /// What is wrong with it, or that it cannot be kept.
    pub fn put(&self, name: &str, added: Added) -> Result<(), Problem> {
        let invalid = |why: String| Problem::new(Kind::Invalid, why);
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let word = ["never", "auto", "always"].contains(&name);
        if name.is_empty() || name.len() > MAX_COMPONENT || word || !name.bytes().all(plain) {
            return Err(invalid(format!(
                "{:?} is no peer's name: use 1 to 64 letters, digits, '.', '_' or '-', and not \
                 never, auto or always",
                sanitize(name)
            )));
        }
        let local = check_address(&added.address)?;
        let fingerprint = added.fingerprint.to_ascii_lowercase();
        let whole = fingerprint.len() == 64 && fingerprint.bytes().all(|b| b.is_ascii_hexdigit());
        if !whole && !fingerprint.is_empty() {
            return Err(invalid(format!(
                "fingerprint: {:?} is no SHA-256 of 64 hexadecimal digits: `ghostctl info` on {} \
                 shows it",
                sanitize(&fingerprint),
                sanitize(name)
            )));
        }
        if fingerprint.is_empty() && !local {
            return Err(invalid(format!(
                "{} is another host: give the fingerprint of its certificate, which `ghostctl \
                 info` shows there",
                added.address
            )));
        }
        self.change(|all| {
            let saved = Saved {
                address: added.address,
                token: added.token.trim().to_owned(),
                fingerprint,
                drained: all.get(name).is_some_and(|old| old.drained),
            };
            all.insert(name.to_owned(), saved);
            Ok(())
        })
    }

    /// Has no program begin on a peer, or lets them again.
    ///
    /// # Errors
    /// There is none, or it cannot be kept.
    pub fn drain(&self, name: &str, drained: bool) -> Result<(), Problem> {
        self.change(|all| {
            all.get_mut(name).ok_or_else(|| missing(name))?.drained = drained;
            Ok(())
        })
    }

    /// Forgets one.
    ///
    /// # Errors
    /// There is none, or it cannot be kept.
    pub fn remove(&self, name: &str) -> Result<(), Problem> {
        self.change(|all| match all.remove(name) {
            Some(_) => Ok(()),
            None => Err(missing(name)),
        })
    }

    fn change(
        &self,
        how: impl FnOnce(&mut BTreeMap<String, Saved>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let mut all = self.lock();
        let mut new = all.clone();
        how(&mut new)?;
        let kept = serde_json::to_string_pretty(&new)
            .map_err(|e| e.to_string())
            .and_then(|text| write_private(&self.path, &text).map_err(|e| e.to_string()));
        kept.map_err(|e| {
            let detail = format!("the change was not made, for it cannot be stored: {e}");
            Problem::new(Kind::Unavailable, detail)
        })?;
        *all = new;
        Ok(())
    }

    /// What lets a process of `entry` in at `on`, a peer's name or an address of this host. `stats`
    /// is a directory for its counters.
    ///
    /// # Errors
    /// There is no such peer, or it is drained.
    pub fn ticket(&self, on: &str, entry: &Entry, stats: &Path) -> Result<Ticket, Problem> {
        let saved = self.lock().get(on).cloned();
        let peer = match saved {
            Some(saved) if saved.drained => return Err(drained(on)),
            Some(saved) => saved,
            None if !on.contains(':') => return Err(missing(on)),
            None if check_address(on)? => Saved {
                address: on.to_owned(),
                ..Saved::default()
            },
            None => {
                let on = sanitize(on);
                let why = format!("{on} is another host, and no peer of this one");
                let hint =
                    format!("ghostctl peer add NAME {on} --token-file FILE --fingerprint SHA256");
                return Err(Problem::new(Kind::NotFound, why).hint(hint));
            }
        };
        let spec = entry.spec();
        let limit = |key: &Key| {
            let value = spec.get(*key, None)?;
            let said = Value::default_of(*key).as_ref() != Some(value);
            said.then(|| (key.to_string(), value.to_string()))
        };
        Ok(Ticket {
            container: entry.name.to_string(),
            limits: tenant::KEYS.iter().filter_map(limit).collect(),
            stats: Some(stats.display().to_string()),
            ..peer.way()
        })
    }
}

/// Whether an address is this host's own.
fn check_address(text: &str) -> Result<bool, Problem> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address.ip().is_loopback());
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
    let whole = |(host, port): &(&str, &str)| {
        !host.is_empty()
            && host.len() <= 253
            && host.bytes().all(plain)
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match text.rsplit_once(':').filter(whole) {
        Some((host, _)) => Ok(host == "localhost"),
        None => {
            let why = format!("{:?} is no address: write HOST:PORT", sanitize(text));
            Err(Problem::new(Kind::Invalid, why))
        }
    }
}

fn drained(name: &str) -> Problem {
    let name = sanitize(name);
    let why = format!("peer {name} is drained: no program begins there");
    Problem::new(Kind::Unavailable, why).hint(format!("ghostctl peer join {name}"))
}

fn missing(name: &str) -> Problem {
    let why = format!("no peer {:?}", sanitize(name));
    Problem::new(Kind::NotFound, why).hint("ghostctl peer list")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn added(address: &str, token: &str, fingerprint: &str) -> Added {
        Added {
            address: address.into(),
            token: token.into(),
            fingerprint: fingerprint.into(),
        }
    }

    #[test]
    fn peers_are_kept_and_their_tokens_are_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overflow/peers.json");
        let peers = Peers::open(&path).unwrap();
        let sha = "AB".repeat(32);
        peers
            .put("big", added("big.example:7000", "a secret\n", &sha))
            .unwrap();
        let again = Peers::open(&path).unwrap();
        let [peer] = &again.list()[..] else {
            panic!("{:?}", again.list());
        };
        assert_eq!(
            (peer.address.as_str(), peer.token),
            ("big.example:7000", true)
        );
        assert_eq!(peer.fingerprint, Some(sha.to_lowercase()));
        let shown = serde_json::to_string(&again.list()).unwrap() + &format!("{again:?}");
        assert!(!shown.contains("a secret"), "{shown}");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        again.remove("big").unwrap();
        assert_eq!(again.remove("big").unwrap_err().kind, Kind::NotFound);
        assert!(Peers::open(&path).unwrap().list().is_empty());
    }

    #[test]
    fn nothing_new_goes_to_a_drained_peer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.json");
        let peers = Peers::open(&path).unwrap();
        let entry = Entry::new("job".parse().unwrap(), "u".into(), 0);
        let ticket = |peers: &Peers| peers.ticket("near", &entry, Path::new("/run/x"));
        peers.put("near", added("127.0.0.1:7000", "", "")).unwrap();
        assert_eq!(peers.drain("far", true).unwrap_err().kind, Kind::NotFound);
        assert!(ticket(&peers).is_ok() && peers.drained("near") == Some(false));
        peers.drain("near", true).unwrap();
        // It stays so: over another start, and with another address.
        let peers = Peers::open(&path).unwrap();
        peers.put("near", added("127.0.0.1:7001", "", "")).unwrap();
        assert!(peers.list()[0].drained && peers.drained("near") == Some(true));
        let why = ticket(&peers).unwrap_err();
        assert_eq!(why.kind, Kind::Unavailable);
        assert_eq!(why.hint.as_deref(), Some("ghostctl peer join near"));
        peers.drain("near", false).unwrap();
        assert_eq!(ticket(&peers).unwrap().address, "127.0.0.1:7001");
    }

    #[test]
    fn what_is_no_peer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let peers = Peers::open(&dir.path().join("peers.json")).unwrap();
        let sha = "0".repeat(64);
        for (name, address, fingerprint, want) in [
            ("auto", "h:1", sha.as_str(), "no peer's name"),
            ("a/b", "h:1", &sha, "no peer's name"),
            ("a", "h", &sha, "HOST:PORT"),
            ("a", "h:0", &sha, "HOST:PORT"),
            ("a", "h h:1", &sha, "HOST:PORT"),
            ("a", "h:1", "12", "no SHA-256"),
            ("a", "h:1", "", "another host"),
            ("a", "192.0.2.1:1", "", "another host"),
        ] {
            let why = peers
                .put(name, added(address, "", fingerprint))
                .unwrap_err();
            assert!(why.detail.contains(want), "{name} {address}: {why}");
        }
        peers.put("here", added("127.0.0.1:7000", "", "")).unwrap();
        peers.put("six", added("[::1]:7000", "", "")).unwrap();
    }
}
