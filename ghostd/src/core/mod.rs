//! The one owner of what was asked for. Doors (REST, signals) send a [`Request`]; the core
//! decides whether it is legal, makes it durable, and hands the result to the control loop and to
//! the readers' snapshot.

mod changes;
mod draft;
mod entry;
mod files;
mod members;
mod requests;

pub(crate) use draft::missing;
pub use entry::{Entry, FileLayer};
pub use requests::{Change, Declaration, IfMatch, Outcome, Patch, Refused, Request};

use crate::caller::Caller;
use crate::control::{self, Observed};
use crate::events::Events;
use crate::proc::Proc;
use crate::store::{Op, SavedFile, Store};
use ghost_model::{Kind, Members, Name, Problem};
use ghost_policy::Desired;
use std::collections::{BTreeMap, btree_map};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Requests that may wait; more are told to come back.
const QUEUE: usize = 256;
/// How often the core looks whether members are still there.
const PRUNE: Duration = Duration::from_secs(2);

/// All containers, by name.
pub type Entries = BTreeMap<Name, Arc<Entry>>;

/// What readers see of the core.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// All containers.
    pub entries: Entries,
    /// What is wrong with the store and with container files.
    pub notes: Vec<String>,
}

struct Ask {
    caller: Caller,
    request: Request,
    answer: oneshot::Sender<Result<Outcome, Refused>>,
    /// Of the request, so that what the core logs names it.
    span: tracing::Span,
}

type Answered = oneshot::Receiver<Result<Outcome, Refused>>;

fn stopping() -> Problem {
    Problem::new(Kind::Unavailable, "ghostd is stopping")
}

enum Message {
    Ask(Box<Ask>),
    Stop,
}

/// The doors' end.
#[derive(Clone, Debug)]
pub struct Handle {
    queue: mpsc::SyncSender<Message>,
    catalog: watch::Receiver<Arc<Catalog>>,
}

impl Handle {
    /// Asks, and waits until the change is durable or refused.
    ///
    /// # Errors
    /// [`Refused`]
    pub async fn ask(&self, caller: Caller, request: Request) -> Result<Outcome, Refused> {
        let answered = self.send(caller, request)?;
        answered.await.map_err(|_| stopping())?
    }

    /// The same for a thread that may wait.
    ///
    /// # Errors
    /// [`Refused`]
    pub fn ask_blocking(&self, caller: Caller, request: Request) -> Result<Outcome, Refused> {
        let answered = self.send(caller, request)?;
        answered.blocking_recv().map_err(|_| stopping())?
    }

    fn send(&self, caller: Caller, request: Request) -> Result<Answered, Problem> {
        let (answer, answered) = oneshot::channel();
        let message = Message::Ask(Box::new(Ask {
            caller,
            request,
            answer,
            span: tracing::Span::current(),
        }));
        self.queue.try_send(message).map_err(|e| match e {
            mpsc::TrySendError::Full(_) => Problem::new(
                Kind::Unavailable,
                format!("{QUEUE} requests are waiting already: try again"),
            ),
            mpsc::TrySendError::Disconnected(_) => stopping(),
        })?;
        Ok(answered)
    }

    /// Ends the core after what waits already; later requests are told so.
    pub fn stop(&self) {
        // Without a core it has ended.
        let _ = self.queue.send(Message::Stop);
    }

    /// What is asked for, all of it, as of the last change.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.borrow().clone()
    }
}

/// What the core works with.
#[derive(Debug)]
pub struct Parts {
    /// Where changes become durable.
    pub store: Store,
    /// What was damaged in it.
    pub store_notes: Vec<String>,
    /// Where container files lie.
    pub directory: PathBuf,
    /// Where processes are looked up.
    pub proc: Proc,
    /// Where events go.
    pub events: Events,
    /// What is so.
    pub observed: watch::Receiver<Arc<Observed>>,
    /// Where the result goes.
    pub control: mpsc::Sender<control::Message>,
}

#[derive(Debug)]
struct Core {
    parts: Parts,
    boot: String,
    entries: Entries,
    files: BTreeMap<String, SavedFile>,
    file_notes: Vec<String>,
    revision: u64,
    published: watch::Sender<Arc<Catalog>>,
}

/// Reads the store and the container files, hands the result to the control loop and starts the
/// core's thread. It ends when it is told to, or when the last [`Handle`] is dropped.
///
/// # Errors
/// No `/proc`, or no thread.
pub fn start(parts: Parts) -> std::io::Result<(Handle, std::thread::JoinHandle<()>)> {
    let (queue, requests) = mpsc::sync_channel(QUEUE);
    let mut core = Core::new(parts)?;
    let handle = Handle {
        queue,
        catalog: core.published.subscribe(),
    };
    let thread = std::thread::Builder::new()
        .name("core".into())
        .spawn(move || core.serve(&requests))?;
    Ok((handle, thread))
}

impl Core {
    fn new(parts: Parts) -> std::io::Result<Core> {
        let boot = parts.proc.boot_id()?;
        let contents = parts.store.contents();
        let mut entries: Entries = contents
            .containers
            .values()
            .map(|saved| {
                (
                    saved.name.clone(),
                    Arc::new(Entry::from_saved(saved, &boot)),
                )
            })
            .collect();
        let files = contents.files.clone();
        for (path, file) in &files {
            for (name, declared) in &file.containers {
                if let Some(entry) = entries.get_mut(name) {
                    Arc::make_mut(entry).file = Some(FileLayer {
                        path: path.as_str().into(),
                        declared: declared.clone(),
                    });
                }
            }
        }
        if let btree_map::Entry::Vacant(system) = entries.entry(Name::system()) {
            let uid = parts.proc.new_uid()?;
            let entry = Entry::new(Name::system(), uid, Caller::daemon().uid);
            system.insert(Arc::new(entry));
        }
        let mut core = Core {
            parts,
            boot,
            entries,
            files,
            file_notes: Vec::new(),
            revision: 0,
            published: watch::Sender::default(),
        };
        for note in &core.parts.store_notes {
            tracing::error!("{note}");
        }
        if let Err(refused) = core.handle(Caller::daemon(), Request::Reload) {
            // The store cannot be written. What it holds is in force all the same.
            tracing::error!("container files are not read: {refused}");
            core.file_notes = vec![format!("container files are not read: {refused}")];
        }
        core.enforce(&core.entries.clone());
        core.show();
        Ok(core)
    }

    fn serve(&mut self, requests: &mpsc::Receiver<Message>) {
        loop {
            match requests.recv_timeout(PRUNE) {
                Ok(Message::Ask(ask)) => {
                    let ask = *ask;
                    let _span = ask.span.entered();
                    // Whoever asked may have hung up; what was done is done.
                    let _ = ask.answer.send(self.handle(ask.caller, ask.request));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => self.prune(),
                Ok(Message::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn handle(&mut self, caller: Caller, request: Request) -> Result<Outcome, Refused> {
        let observed = self.parts.observed.borrow().clone();
        let mut draft = draft::Draft {
            entries: self.entries.clone(),
            files: self.files.clone(),
            caller,
            observed: &observed,
            proc: &self.parts.proc,
            directory: &self.parts.directory,
            notes: Vec::new(),
        };
        let reload = matches!(request, Request::Reload);
        let done = draft.apply(request)?;
        let (entries, files, notes) = (draft.entries, draft.files, draft.notes);
        let changes = changes::changes(&self.entries, &entries);
        if !done.dry_run {
            self.commit(caller, entries.clone(), files, &changes)?;
            if reload {
                self.reloaded(notes.clone());
            }
        }
        Ok(Outcome {
            touched: done
                .touched
                .iter()
                .filter_map(|name| entries.get(name).cloned())
                .collect(),
            created: done.created,
            changes,
            notes,
            revision: self.revision,
        })
    }

    /// Makes it durable, then visible. It comes into force while it is being stored, since a
    /// freeze should not wait for a disk; if it cannot be stored, what was before is in force again.
    fn commit(
        &mut self,
        caller: Caller,
        entries: Entries,
        files: BTreeMap<String, SavedFile>,
        changes: &[Change],
    ) -> Result<(), Problem> {
        let mut ops: Vec<Op> = Vec::new();
        for name in self.entries.keys().filter(|n| !entries.contains_key(*n)) {
            ops.push(Op::Delete { name: name.clone() });
        }
        for (name, entry) in &entries {
            let stored = self.parts.store.contents().containers.get(name);
            let same = self
                .entries
                .get(name)
                .is_some_and(|old| Arc::ptr_eq(old, entry));
            if same && stored.is_some() {
                continue;
            }
            let saved = entry.to_saved(&self.boot);
            if stored != Some(&saved) {
                ops.push(Op::Put(Box::new(saved)));
            }
        }
        if files != self.files {
            ops.push(Op::Files {
                files: files.clone(),
            });
        }
        let changed = entries != self.entries || files != self.files;
        if changed {
            self.enforce(&entries);
        }
        if !ops.is_empty()
            && let Err(error) = self.parts.store.commit(ops)
        {
            tracing::error!(%error, %caller, "a change could not be stored and was not made");
            if changed {
                self.enforce(&self.entries.clone());
            }
            let detail = format!("the change was not made, for it cannot be stored: {error}");
            return Err(Problem::new(Kind::Unavailable, detail));
        }
        if !changed {
            return Ok(());
        }
        self.entries = entries;
        self.files = files;
        for change in changes {
            tracing::info!(
                container = %change.name,
                generation = change.generation,
                by = %caller,
                "{}: {}", change.what, change.detail
            );
            self.parts
                .events
                .push(change.what, Some(&change.name), change.detail.as_str());
        }
        self.show();
        Ok(())
    }

    fn reloaded(&mut self, notes: Vec<String>) {
        for note in &notes {
            tracing::error!("{note}");
        }
        let detail = match notes.len() {
            0 => format!("{} container files", self.files.len()),
            n => format!("{} container files, {n} problems", self.files.len()),
        };
        self.parts.events.push("reloaded", None, detail);
        self.file_notes = notes;
        self.show();
    }

    /// Tells the control loop what is wanted.
    fn enforce(&mut self, entries: &Entries) {
        self.revision += 1;
        let mut members = Members::default();
        let mut desired = Desired::default();
        let mut generations = BTreeMap::new();
        for (name, entry) in entries {
            let membership = entry.membership();
            let empty = membership.pids.is_empty() && membership.cgroups.is_empty();
            if !name.is_system() && !empty {
                members.0.insert(name.clone(), membership);
            }
            desired.containers.insert(name.clone(), entry.spec());
            generations.insert(entry.uid.clone(), entry.generation);
        }
        let wanted = control::Wanted {
            revision: self.revision,
            desired,
            members,
            generations: Arc::new(generations),
        };
        // Without a control loop the daemon is on its way out.
        let _ = self
            .parts
            .control
            .send(control::Message::Wanted(Box::new(wanted)));
    }

    /// Gives readers a new picture.
    fn show(&self) {
        let notes = self.parts.store_notes.iter().chain(&self.file_notes);
        self.published.send_replace(Arc::new(Catalog {
            entries: self.entries.clone(),
            notes: notes.cloned().collect(),
        }));
    }

    /// Forgets members that are gone.
    fn prune(&mut self) {
        let proc = &self.parts.proc;
        let mut entries = self.entries.clone();
        for entry in entries.values_mut() {
            let gone_pid = |p: &ghost_model::ProcId| !proc.is_alive(*p);
            let gone_cgroup = |c: &ghost_model::value::CgroupPath| proc.cgroup_owner(c).is_none();
            if entry.pids.iter().any(gone_pid) || entry.cgroups.iter().any(gone_cgroup) {
                let entry = Arc::make_mut(entry);
                entry.pids.retain(|p| !gone_pid(p));
                entry.cgroups.retain(|c| !gone_cgroup(c));
            }
        }
        if entries != self.entries
            && let Err(problem) = self.commit(Caller::daemon(), entries, self.files.clone(), &[])
        {
            // The next look tries again.
            tracing::warn!(%problem, "members that are gone stay in the store");
        }
    }
}
