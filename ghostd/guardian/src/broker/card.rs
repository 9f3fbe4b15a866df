//! The container's own card: the questions whose answer must not be the host's. The driver is
//! asked with copies, and the container's numbers are put into its answer.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use ghost_model::ProcId;
use ghost_rm::branch::BRANCHES;
use ghost_rm::card::{self, Lookup, Pid, Query};
use ghost_rm::tenant::{Call, ControlCall};
use ghost_rm::{Client, Status};
use nix::errno::Errno;

use super::Broker;
use super::books::{Card, MemoryId};
use super::calls::{Answer, Asked, Params};

impl Broker {
    /// Whether a control asks for what is the container's, on the loaded driver or, where that is
    /// not known, on any.
    pub(super) fn is_question(&self, control: &ControlCall) -> bool {
        let asks = |branch| card::query(branch, control.cmd, control.params_size);
        match self.driver.branch() {
            Some(branch) => asks(branch) != Lookup::NotOurs,
            None => BRANCHES.iter().any(|b| asks(b) != Lookup::NotOurs),
        }
    }
}

impl Asked<'_> {
    pub(super) fn control(&mut self, control: &ControlCall) -> Answer {
        if !self.broker.is_question(control) {
            return Answer::Allow;
        }
        let Some(branch) = self.broker.driver.branch() else {
            return self.on_driver(|asked, _| asked.unknown_driver());
        };
        match card::query(branch, control.cmd, control.params_size) {
            Lookup::NotOurs => Answer::Allow,
            Lookup::Ours(query) => self.on_driver(|asked, fd| asked.query(fd, control, query)),
            Lookup::UnknownSize { wanted } => self.on_driver(|asked, _| {
                let ControlCall {
                    cmd, params_size, ..
                } = control;
                asked.broker.note(
                    format!("control {cmd}"),
                    format!(
                        "control {cmd:#x} with {params_size} bytes of parameters was refused: \
                         driver branch {} is known to take {wanted}",
                        branch.major
                    ),
                );
                asked.refused(Status::NOT_SUPPORTED)
            }),
        }
    }

    fn query(&mut self, fd: BorrowedFd<'_>, control: &ControlCall, query: Query) -> Answer {
        let of = match self.card(fd, (control.client, control.object)) {
            Ok(of) => of,
            Err(answer) => return answer,
        };
        // Of a size that the branch is known to take.
        let length = control.params_size as usize;
        let mut params = Params {
            at: control.params_at,
            bytes: vec![0; length],
            length,
        };
        let read = self.read(params.at, &mut params.bytes);
        let list = query.list(&params.bytes);
        params
            .bytes
            .resize(length + list.map_or(0, |list| list.size), 0);
        let rest = params.bytes.get_mut(length..).unwrap_or_default();
        let read = read.and_then(|()| list.map_or(Ok(()), |list| self.read(list.at, rest)));
        if read.is_err() {
            return Answer::Return(Err(Errno::EFAULT as i32));
        }
        let processes = matches!(query, Query::Pids | Query::PidInfo);
        let Some(card) = self.view(control.client, of, processes) else {
            return self.refused(Status::NOT_SUPPORTED);
        };
        let asked = params.bytes.clone();
        card::prepare(query, &mut params.bytes, &card);
        match self.perform(fd, Some(&mut params.bytes)) {
            Ok(Status::OK) => {}
            Ok(_) => return self.write_back(None),
            Err(error) => return self.not_done(&error),
        }
        card::rewrite(query, &asked, &mut params.bytes, &card);
        let rest = params.bytes.get(length..).unwrap_or_default();
        match self.write(list.map(|list| (list.at, rest)).into_iter()) {
            Answer::Return(Ok(_)) => self.write_back(Some(&params)),
            answer => answer,
        }
    }

    /// Answers a call that tells the card's sizes in its argument.
    pub(super) fn sizes(&mut self, fd: BorrowedFd<'_>, call: &Call, device: MemoryId) -> Answer {
        let of = match self.card(fd, device) {
            Ok(of) => of,
            Err(answer) => return answer,
        };
        let Some(card) = self.view(device.0, of, false) else {
            return self.refused(Status::NOT_SUPPORTED);
        };
        match self.perform(fd, None) {
            Ok(Status::OK) => {}
            Ok(_) => return self.write_back(None),
            Err(error) => return self.not_done(&error),
        }
        card::rewrite_argument(call, &mut self.argument, &card);
        self.write_back(None)
    }

    /// The card as the client's container sees it; `None`, and a note, if it is not known.
    fn view(&self, client: Client, card: Card, processes: bool) -> Option<card::Card> {
        let state = self.broker.state();
        let books = state.keeper.books();
        let Some(view) = books.card_of(client, card) else {
            drop(state);
            let text = format!(
                "card {:#x} is not known: questions about it are refused",
                card.0
            );
            self.broker.note(format!("card {}", card.0), text);
            return None;
        };
        let own = match processes {
            true => books.processes_of(client),
            false => Default::default(),
        };
        drop(state);
        let seen_by = self.process()?.pid;
        let pids = own.into_iter().filter_map(|process| pid(process, seen_by));
        Some(card::Card {
            total: view.total.0,
            free: view.free.0,
            pids: pids.collect(),
        })
    }
}

/// A process as another one counts it; `None` if that one cannot see it, or it is gone.
fn pid(process: ProcId, seen_by: u32) -> Option<Pid> {
    let space = |pid: &str| std::fs::read_link(PathBuf::from(format!("/proc/{pid}/ns/pid"))).ok();
    let theirs = space(&seen_by.to_string())?;
    let host = process.pid;
    if space("self")? == theirs {
        return Some(Pid { host, seen: host });
    }
    // Only those of the very same space: what a container made inside of itself it must not be
    // shown by Ghost.
    if space(&host.to_string())? != theirs {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{host}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    let seen = line.split_ascii_whitespace().last()?.parse().ok()?;
    Some(Pid { host, seen })
}
