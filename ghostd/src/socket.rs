//! The files of unix sockets, and how many connections each user may have.

use crate::caller::{Admins, Caller};
use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

/// Why ghostd cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("{0}: another ghostd listens there: stop it, or choose another --socket")]
    InUse(PathBuf),
    /// A system call failed.
    #[error("{path}: cannot {what}: {source}")]
    System {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// Listens at `path` with this mode; the socket belongs to the group of `admins`, where there is
/// one and ghostd may give it. A socket that nobody listens on is replaced.
///
/// # Errors
/// [`SocketError`]
pub fn bind(path: &Path, mode: u32, admins: &Admins) -> Result<UnixListener, SocketError> {
    let failed = |what| {
        move |source| SocketError::System {
            path: path.to_owned(),
            what,
            source,
        }
    };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed("make its directory"))?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(SocketError::InUse(path.to_owned()));
    }
    if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
        fs::remove_file(path).map_err(failed("remove the old socket"))?;
    }
    let listener = UnixListener::bind(path).map_err(failed("listen"))?;
    if let Some(group) = admins.group()
        && let Err(error) = nix::unistd::chown(path, None, Some(group))
    {
        tracing::warn!(%error, "the socket keeps ghostd's own group");
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("set its mode"))?;
    Ok(listener)
}

/// Connections of one user who does not administer, of all of those, and of all who do. Each
/// kind has its own, so that none can shut the other out.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Of one user.
    pub each: usize,
    /// Of all who do not administer.
    pub strangers: usize,
    /// Of all who do.
    pub admins: usize,
}

/// Open connections by user.
#[derive(Clone, Debug)]
pub struct Places {
    most: Most,
    /// Guards the counts, and is held to change them only.
    open: Arc<Mutex<HashMap<u32, (bool, usize)>>>,
}

/// One open connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    uid: u32,
}

impl Places {
    /// All of them, free.
    pub fn new(most: Most) -> Places {
        Places {
            most,
            open: Arc::default(),
        }
    }

    /// One for this caller, if there is one.
    pub fn take(&self, caller: Caller) -> Option<Place> {
        let mut all = self.lock();
        let mine = all.get(&caller.uid).map_or(0, |(_, n)| *n);
        let kind: usize = all
            .values()
            .filter(|(admin, _)| *admin == caller.admin)
            .map(|(_, n)| *n)
            .sum();
        let fits = if caller.admin {
            kind < self.most.admins
        } else {
            kind < self.most.strangers && mine < self.most.each
        };
        if !fits {
            return None;
        }
        all.insert(caller.uid, (caller.admin, mine + 1));
        Some(Place {
            places: self.clone(),
            uid: caller.uid,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, (bool, usize)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.places.lock();
        if let Some((_, n)) = all.get_mut(&self.uid) {
            *n -= 1;
            if *n == 0 {
                all.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_cannot_shut_out_each_other_or_administrators() {
        let most = Most {
            each: 32,
            strangers: 256,
            admins: 1,
        };
        let places = Places::new(most);
        let caller = |uid, admin| Caller { uid, admin };
        let held: Vec<Place> = (0..most.each)
            .map_while(|_| places.take(caller(7, false)))
            .collect();
        assert_eq!(held.len(), most.each);
        assert!(places.take(caller(7, false)).is_none());
        assert!(places.take(caller(8, false)).is_some());
        let more: Vec<Place> = (100..)
            .map_while(|uid| places.take(caller(uid, false)))
            .collect();
        assert_eq!(held.len() + more.len(), most.strangers);
        let admin = places.take(caller(0, true));
        assert!(admin.is_some() && places.take(caller(0, true)).is_none());
        drop((held, more, admin));
        assert!(places.lock().is_empty());
    }
}
