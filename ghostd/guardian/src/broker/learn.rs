//! Whose a call is: the client, the container that it is charged to, and the card.

use std::os::fd::BorrowedFd;

use ghost_model::{Name, ProcId};
use ghost_rm::{Client, Control, Status};

use super::books::{Card, MemoryId};
use super::calls::{Answer, Asked};

impl Asked<'_> {
    /// Sees to it that a client, which the caller says is on its file, is known.
    pub(super) fn learn(&mut self, fd: BorrowedFd<'_>, client: Client) -> Result<(), Answer> {
        let Some(process) = self.process() else {
            return Err(Answer::Gone);
        };
        let owner = {
            let state = self.broker.state();
            state.keeper.books().tenant(client).map(|t| t.owner)
        };
        if owner == Some(process) {
            return Ok(());
        }
        let there = self.as_caller(|| Control::new(fd).class_of(client, client.as_object()));
        if let Err(error) = there.map_err(|error| self.not_done(&error))? {
            return Err(self.rm_refused(&error));
        }
        if let Some(owner) = owner
            && !self.broker.is_another(client, owner)
        {
            return Ok(());
        }
        let container = self.container(process);
        let opened = self.broker.state().keeper.open(client, process, &container);
        opened.map_err(|error| self.refuse(&error))?;
        self.broker.hold(process);
        self.broker.stir();
        Ok(())
    }

    /// Where a process is charged for the clients that it makes.
    fn container(&self, process: ProcId) -> Name {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        let groups = groups.unwrap_or_default();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let state = self.broker.state();
        let member = state.members.container_of(process, group);
        if member.is_system() {
            self.session.container.clone()
        } else {
            member
        }
    }

    /// The card that memory below `parent` is on, of a client that is on the caller's file.
    pub(super) fn card(&mut self, fd: BorrowedFd<'_>, parent: MemoryId) -> Result<Card, Answer> {
        self.learn(fd, parent.0)?;
        if let Some(card) = self.broker.state().place(parent) {
            return Ok(card);
        }
        let found = self.as_caller(|| Control::new(fd).gpu_of_parent(parent.0, parent.1));
        match found.map_err(|error| self.not_done(&error))? {
            Ok(Some(gpu)) => {
                self.broker.state().learn_place(parent, Card(gpu));
                Ok(Card(gpu))
            }
            // Through a subdevice the driver tells; a program that makes none is told no.
            Ok(None) => Err(self.refused(Status::INVALID_OBJECT_PARENT)),
            Err(error) => Err(self.rm_refused(&error)),
        }
    }
}
