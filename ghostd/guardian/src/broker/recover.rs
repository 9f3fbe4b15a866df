//! What a broker left that was killed: charges and calls of which nobody knows how they ended,
//! tenants that wait for an answer, and the listeners themselves.
//!
//! The listeners come back from ghostd, which keeps a duplicate of each, and from systemd's file
//! descriptor store. As long as somebody holds one, its calls wait.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use ghost_model::Name;
use ghost_notify::kick;
use ghost_rm::Client;
use ghost_rm::tenant::NUMBERS;
use sd_notify::NotifyState;

use super::Broker;
use super::books::{MemoryId, SessionId};
use super::sessions::Session;

/// Threads that have tenants' calls begin again: one tenant that is slow to stop must not keep the
/// others waiting.
const KICKERS: usize = 8;

/// The longest name that systemd keeps with a descriptor.
const MAX_NAME: usize = 255;

impl Broker {
    /// Puts the books in order by what the driver has. Where it does not say, what is charged
    /// stays, and is looked at again later.
    pub(super) fn recover(self: &Arc<Self>) {
        let (pending, calls, clients) = {
            let state = self.state();
            let books = state.keeper.books();
            let pending: Vec<_> = books.pending_names().collect();
            let calls: Vec<MemoryId> = books
                .calls()
                .map(|(_, _, call)| (call.client, call.object))
                .collect();
            let clients: Vec<Client> = books.tenants().map(|tenant| tenant.client).collect();
            (pending, calls, clients)
        };
        for (ticket, (client, object)) in pending {
            let there = self.driver.exists(client, object).unwrap_or(true);
            let resolved = self.state().keeper.resolve(ticket, there);
            self.written(resolved);
        }
        // A free may have been done and not written down.
        for id in calls {
            let ticket = self.state().keeper.books().ticket(id);
            if let Some(ticket) = ticket
                && self.driver.exists(id.0, id.1) == Some(false)
            {
                self.forget_memory(id, ticket);
            }
        }
        self.check_clients(&clients);
        let mut state = self.state();
        let owners: Vec<_> = state.keeper.books().tenants().map(|t| t.owner).collect();
        state.fresh = owners;
    }

    /// Takes up the listeners that systemd kept, and has the calls begin again that wait for an
    /// answer that will not come. What waits for a listener that ghostd has to hand over begins
    /// again too, and then waits to be received.
    pub fn resume(self: &Arc<Self>) {
        for (fd, session, container) in kept(self) {
            if let Err(error) = self.adopt(session, container, fd) {
                self.note("kept", format!("a listener that systemd kept: {error}"));
            }
        }
        let waiting = kick::waiting(NUMBERS);
        let each = waiting.len().div_ceil(KICKERS).max(1);
        for some in waiting.chunks(each) {
            let (broker, some) = (self.clone(), some.to_vec());
            std::thread::spawn(move || some.iter().for_each(|&tid| broker.kick(tid)));
        }
    }

    fn kick(&self, tid: i32) {
        if let Err(error) = kick::kick(tid)
            && error.kind() != std::io::ErrorKind::NotFound
            && error.raw_os_error() != Some(nix::errno::Errno::ESRCH as i32)
        {
            let text = format!("thread {tid} waits for an answer that will not come: {error}");
            self.note("kick", text);
        }
    }
}

/// The name under which systemd keeps a listener; `None` if it can have none.
fn name(session: &SessionId, container: &Name) -> Option<String> {
    let name = format!("{session}={container}");
    (name.len() <= MAX_NAME && !name.contains(':')).then_some(name)
}

/// Reads back what [`name`] wrote.
fn read_name(name: &str) -> Option<(SessionId, Name)> {
    let (session, container) = name.rsplit_once('=')?;
    Some((session.parse().ok()?, container.parse().ok()?))
}

/// The listeners that systemd kept.
fn kept(broker: &Broker) -> Vec<(OwnedFd, SessionId, Name)> {
    let Ok(fds) = sd_notify::listen_fds_with_names() else {
        return Vec::new();
    };
    fds.filter_map(|(fd, name)| {
        // SAFETY: systemd passed this descriptor to this process, whose main thread takes each of
        // them here, once.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let Some((session, container)) = read_name(&name) else {
            broker.note("kept", "a descriptor that systemd kept has another's name");
            return None;
        };
        Some((fd, session, container))
    })
    .collect()
}

/// Gives systemd a duplicate of a listener to keep, if this is its service.
pub(super) fn keep(broker: &Broker, session: &Session) {
    let Some(name) = name(&session.id, &session.container) else {
        return;
    };
    let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[session.listener.as_fd()]) {
        broker.note(
            "keep",
            format!("cannot have systemd keep a listener: {error}"),
        );
    }
}

/// Has systemd forget a listener.
pub(super) fn unkeep(session: &Session) {
    let Some(name) = name(&session.id, &session.container) else {
        return;
    };
    // systemd forgets by itself what nobody waits on.
    let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let (session, container): (SessionId, Name) =
            ("run-7=b".parse().unwrap(), "team/a.b".parse().unwrap());
        let kept = name(&session, &container).unwrap();
        assert_eq!(read_name(&kept), Some((session, container.clone())));
        assert_eq!(name(&"a:b".parse().unwrap(), &container), None);
        let long: Name = ["x".repeat(64), "y".repeat(64), "z".repeat(64)]
            .join("/")
            .parse()
            .unwrap();
        assert_eq!(name(&"s".repeat(64).parse().unwrap(), &long), None);
        assert_eq!(read_name("journald"), None);
    }
}
