//! What the stand-in's driver has in memory: files, the clients on them, the objects of each
//! client, and the GPUs that they are on.

use std::collections::BTreeMap;

use ghost_backend::sim::gpu::{Gpu, Params};
use ghost_backend::sim::wire::{Progress, Request, Response};
use ghost_model::{GroupId, Micros};
use ghost_rm::abi::discover::{CLIENT_BASE, CLIENT_SPACE};
use ghost_rm::abi::memory::CLASS_DEVICE_MEMORY;
use ghost_rm::abi::{
    CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_DEVICE, CLASS_SUBDEVICE, CLASS_SUBDEVICE_DIAG,
};
use ghost_rm::{Channel, Client as ClientHandle, Object as ObjectHandle, Status};

use crate::memory::Memories;

/// Class of a Hopper channel.
pub const CLASS_CHANNEL: u32 = 0xC86F;
/// Class of the compute engine on a Hopper channel.
pub const CLASS_COMPUTE: u32 = 0xCBC0;
/// Class of the copy engine on a Hopper channel.
pub const CLASS_COPY: u32 = 0xC8B5;
/// Class of system memory.
pub const CLASS_SYSTEM_MEMORY: u32 = 0x3E;
/// Class of memory that the caller has already.
const CLASS_OS_DESCRIPTOR: u32 = 0x71;

/// Timeslice of a new channel group.
const SLICE: Micros = Micros(2048);
/// Where handles begin that the driver picks.
const FIRST_OBJECT: u32 = 0x5C00_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Control,
    Gpu(usize),
}

#[derive(Debug)]
struct File {
    node: Node,
    pid: u32,
    answer: Vec<u8>,
    reported: BTreeMap<GroupId, u64>,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) file: u64,
    pub(crate) pid: u32,
    pub(crate) objects: BTreeMap<u32, Object>,
    /// How often it was asked what a handle of its is.
    pub(crate) asked: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) class: u32,
    pub(crate) parent: u32,
    pub(crate) gpu: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Plain,
    Group {
        id: GroupId,
        uid: u32,
    },
    Channel {
        number: u32,
        context: u32,
        disables: u32,
    },
    /// Its number among [`Driver::memories`].
    Memory(u32),
}

impl Client {
    /// The handle of a new object of this client: the one that is wanted, or the first that is
    /// free for 0.
    pub(crate) fn handle(&self, root: u32, wanted: u32) -> Result<u32, Status> {
        match wanted {
            0 => (FIRST_OBJECT..)
                .find(|h| !self.objects.contains_key(h))
                .ok_or(Status::INSUFFICIENT_RESOURCES),
            taken if self.objects.contains_key(&taken) || taken == root => {
                Err(Status::INVALID_OBJECT_NEW)
            }
            free => Ok(free),
        }
    }
}

/// What the caller of an alloc wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) root: u32,
    pub(crate) parent: u32,
    pub(crate) new: u32,
    pub(crate) class: u32,
    /// Device instance, for a device.
    pub(crate) instance: u32,
    /// Bytes in whole pages, for memory.
    pub(crate) size: u64,
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) gpus: Vec<Gpu>,
    files: BTreeMap<u64, File>,
    pub(crate) clients: BTreeMap<u32, Client>,
    pub(crate) memories: Memories,
    pub(crate) violations: u64,
    // Time used by groups that are gone, of processes that still have a client.
    retired: BTreeMap<(u32, usize), u64>,
    opened: u64,
    last_client: u32,
    // For ids that are never used twice: groups, contexts, channels.
    made: u32,
}

impl Driver {
    pub(crate) fn new(gpus: u32, now: Micros) -> Self {
        Driver {
            gpus: (0..gpus)
                .map(|_| Gpu::new(Params::default(), now))
                .collect(),
            files: BTreeMap::new(),
            clients: BTreeMap::new(),
            memories: Memories::default(),
            violations: 0,
            retired: BTreeMap::new(),
            opened: 0,
            last_client: 0,
            made: 0,
        }
    }

    pub(crate) fn advance(&mut self, now: Micros) {
        self.gpus.iter_mut().for_each(|gpu| gpu.advance(now));
    }

    pub(crate) fn open(&mut self, node: Node, pid: u32) -> u64 {
        self.opened += 1;
        let file = File {
            node,
            pid,
            answer: Vec::new(),
            reported: BTreeMap::new(),
        };
        self.files.insert(self.opened, file);
        self.opened
    }

    /// The last descriptor of a file was closed.
    pub(crate) fn release(&mut self, file: u64) {
        self.files.remove(&file);
        let on_it = |(&handle, client): (&u32, &Client)| (client.file == file).then_some(handle);
        let clients: Vec<u32> = self.clients.iter().filter_map(on_it).collect();
        clients.into_iter().for_each(|c| self.remove_client(c));
    }

    pub(crate) fn is_control(&self, file: u64) -> bool {
        self.files
            .get(&file)
            .is_some_and(|f| f.node == Node::Control)
    }

    fn made(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    /// The client with this handle, if it is on this file.
    pub(crate) fn client_on(&self, file: u64, handle: u32) -> Result<&Client, Status> {
        let client = self.clients.get(&handle).filter(|c| c.file == file);
        client.ok_or(Status::INVALID_CLIENT)
    }

    /// Who calls is asked for only where that matters: for the kinds of objects that a process has.
    pub(crate) fn alloc(
        &mut self,
        file: u64,
        pid: impl FnOnce() -> u32,
        wanted: Wanted,
    ) -> Result<u32, Status> {
        if wanted.class == CLASS_CLIENT {
            let handle = (0..CLIENT_SPACE)
                .map(|n| CLIENT_BASE + (self.last_client + 1 + n) % CLIENT_SPACE)
                .find(|handle| !self.clients.contains_key(handle))
                .ok_or(Status::INSUFFICIENT_RESOURCES)?;
            self.last_client = handle - CLIENT_BASE;
            let client = Client {
                file,
                pid: pid(),
                objects: BTreeMap::new(),
                asked: 0,
            };
            self.clients.insert(handle, client);
            return Ok(handle);
        }
        let client = self.client_on(file, wanted.root)?;
        let parent = client.objects.get(&wanted.parent);
        let above = match parent {
            Some(parent) => parent.class,
            None if wanted.parent == wanted.root => CLASS_CLIENT,
            None => return Err(Status::INVALID_OBJECT_PARENT),
        };
        let allowed: &[u32] = match wanted.class {
            CLASS_DEVICE => &[CLASS_CLIENT],
            CLASS_SUBDEVICE | CLASS_CHANNEL_GROUP => &[CLASS_DEVICE],
            CLASS_DEVICE_MEMORY => &[CLASS_DEVICE, CLASS_SUBDEVICE],
            CLASS_SYSTEM_MEMORY | CLASS_OS_DESCRIPTOR => &[CLASS_DEVICE, CLASS_CLIENT],
            CLASS_SUBDEVICE_DIAG => &[CLASS_SUBDEVICE],
            CLASS_CHANNEL => &[CLASS_CHANNEL_GROUP],
            CLASS_COMPUTE | CLASS_COPY => &[CLASS_CHANNEL],
            _ => return Err(Status::INVALID_CLASS),
        };
        if !allowed.contains(&above) {
            return Err(Status::INVALID_OBJECT_PARENT);
        }
        let handle = client.handle(wanted.root, wanted.new)?;
        let gpu = match (wanted.class, parent) {
            (CLASS_DEVICE, _) => self.device(pid(), wanted.instance)?,
            (_, Some(parent)) => parent.gpu,
            (_, None) => 0,
        };
        let kind = self.make(gpu, wanted)?;
        if let Kind::Memory(id) = kind {
            self.memories.name(id, (wanted.root, handle));
        }
        let object = Object {
            class: wanted.class,
            parent: wanted.parent,
            gpu,
            kind,
        };
        if let Some(client) = self.clients.get_mut(&wanted.root) {
            client.objects.insert(handle, object);
        }
        self.follow_channels(wanted.root, wanted.parent);
        Ok(handle)
    }

    fn make(&mut self, gpu: usize, wanted: Wanted) -> Result<Kind, Status> {
        Ok(match wanted.class {
            CLASS_CHANNEL_GROUP => {
                let uid = self.made();
                let id = GroupId(uid.into());
                self.gpus
                    .get_mut(gpu)
                    .ok_or(Status::INVALID_DEVICE)?
                    .add(id, SLICE);
                Kind::Group { id, uid }
            }
            CLASS_CHANNEL => Kind::Channel {
                number: self.made(),
                context: self.made(),
                disables: 0,
            },
            CLASS_DEVICE_MEMORY if wanted.size > self.memory_free(gpu) => {
                return Err(Status::NO_MEMORY);
            }
            CLASS_DEVICE_MEMORY => {
                let id = self.made();
                self.memories.take(id, gpu, wanted.size);
                Kind::Memory(id)
            }
            _ => Kind::Plain,
        })
    }

    /// The driver gives a device only to a process that has the GPU's own node open.
    fn device(&self, pid: u32, instance: u32) -> Result<usize, Status> {
        let gpu = instance as usize;
        if gpu >= self.gpus.len() {
            return Err(Status::INVALID_DEVICE);
        }
        let open = |f: &File| f.node == Node::Gpu(gpu) && f.pid == pid;
        if !self.files.values().any(open) {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        Ok(gpu)
    }

    pub(crate) fn free(&mut self, file: u64, root: u32, old: u32) -> Result<(), Status> {
        let client = self.client_on(file, root)?;
        if old == root {
            self.remove_client(root);
            return Ok(());
        }
        if !client.objects.contains_key(&old) {
            return Err(Status::INVALID_OBJECT_OLD);
        }
        self.remove_object(root, old);
        Ok(())
    }

    fn remove_client(&mut self, handle: u32) {
        let Some(client) = self.clients.get(&handle) else {
            return;
        };
        let (pid, objects) = (client.pid, client.objects.keys().copied());
        for object in objects.collect::<Vec<_>>() {
            self.remove_object(handle, object);
        }
        self.clients.remove(&handle);
        if !self.clients.values().any(|c| c.pid == pid) {
            self.retired.retain(|&(of, _), _| of != pid);
        }
    }

    fn remove_object(&mut self, root: u32, handle: u32) {
        let Some(client) = self.clients.get_mut(&root) else {
            return;
        };
        let Some(object) = client.objects.remove(&handle) else {
            return;
        };
        let pid = client.pid;
        let below = |(&h, o): (&u32, &Object)| (o.parent == handle).then_some(h);
        let below: Vec<u32> = client.objects.iter().filter_map(below).collect();
        below.into_iter().for_each(|h| self.remove_object(root, h));
        if let Kind::Group { id, .. } = object.kind {
            let group = self.gpus.get_mut(object.gpu).and_then(|gpu| gpu.remove(id));
            let used = group.map_or(0, |g| g.used().0);
            *self.retired.entry((pid, object.gpu)).or_default() += used;
        }
        if let Kind::Memory(id) = object.kind {
            self.memories.forget(id, (root, handle));
        }
        self.follow_channels(root, object.parent);
    }

    /// A group runs as long as one of its channels may.
    fn follow_channels(&mut self, root: u32, handle: u32) {
        let Some((gpu, id)) = self.group_at(root, handle) else {
            return;
        };
        let mut disables = self
            .channels_of(root, handle)
            .map(|(_, _, _, d)| d)
            .peekable();
        let off = disables.peek().is_some() && disables.all(|d| d > 0);
        drop(disables);
        let Some(gpu) = self.gpus.get_mut(gpu) else {
            return;
        };
        match (gpu.group(id).map(|g| g.disables() > 0), off) {
            (Some(false), true) => gpu.disable(id),
            (Some(true), false) => drop(gpu.enable(id)),
            _ => {}
        }
    }

    pub(crate) fn object(&self, root: u32, handle: u32) -> Option<&Object> {
        self.clients.get(&root)?.objects.get(&handle)
    }

    pub(crate) fn group_at(&self, root: u32, handle: u32) -> Option<(usize, GroupId)> {
        match self.object(root, handle)? {
            Object {
                gpu,
                kind: Kind::Group { id, .. },
                ..
            } => Some((*gpu, *id)),
            _ => None,
        }
    }

    /// Handle, number, context and disables of each channel of a group.
    pub(crate) fn channels_of(
        &self,
        root: u32,
        group: u32,
    ) -> impl Iterator<Item = (u32, u32, u32, u32)> {
        let objects = self.clients.get(&root).into_iter().flat_map(|c| &c.objects);
        objects.filter_map(move |(&handle, object)| match object.kind {
            Kind::Channel {
                number,
                context,
                disables,
            } if object.parent == group => Some((handle, number, context, disables)),
            _ => None,
        })
    }

    /// Whether a group is on the compute engine.
    pub(crate) fn is_compute(&self, root: u32, group: u32) -> bool {
        let on = |channel: u32| {
            let objects = self
                .clients
                .get(&root)
                .into_iter()
                .flat_map(|c| c.objects.values());
            objects.filter(move |o| o.parent == channel)
        };
        self.channels_of(root, group)
            .any(|(channel, ..)| on(channel).any(|o| o.class == CLASS_COMPUTE))
    }

    /// Client, handle, GPU, id and uid of every group.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (u32, u32, usize, GroupId, u32)> {
        self.clients.iter().flat_map(|(&root, client)| {
            client
                .objects
                .iter()
                .filter_map(move |(&handle, o)| match o.kind {
                    Kind::Group { id, uid } => Some((root, handle, o.gpu, id, uid)),
                    _ => None,
                })
        })
    }

    /// Disables or enables one entry of a call: a channel, or a group with all of its channels.
    pub(crate) fn switch(
        &mut self,
        gpu: usize,
        entry: Channel,
        disable: bool,
    ) -> Result<(), Status> {
        let Channel {
            client: ClientHandle(root),
            object: ObjectHandle(handle),
        } = entry;
        let object = self.object(root, handle).filter(|o| o.gpu == gpu);
        let (group, channels) = match object {
            Some(o) if matches!(o.kind, Kind::Channel { .. }) => (o.parent, vec![handle]),
            Some(o) if matches!(o.kind, Kind::Group { .. }) => {
                let channels = self.channels_of(root, handle);
                (handle, channels.map(|(channel, ..)| channel).collect())
            }
            _ => return Err(Status::INVALID_CHANNEL),
        };
        for channel in channels {
            let objects = self.clients.get_mut(&root).map(|c| &mut c.objects);
            let object = objects.and_then(|o| o.get_mut(&channel));
            let Some(Kind::Channel { disables, .. }) = object.map(|o| &mut o.kind) else {
                continue;
            };
            match (disable, *disables) {
                (true, _) => *disables += 1,
                (false, 0) => self.violations += 1,
                (false, _) => *disables -= 1,
            }
        }
        self.follow_channels(root, group);
        Ok(())
    }

    /// GPU time that a process used while it has had a client, us.
    pub(crate) fn used(&self, pid: u32, gpu: usize) -> u64 {
        let of_it = |root: &u32| self.clients.get(root).is_some_and(|c| c.pid == pid);
        let groups = self
            .groups()
            .filter(|(root, _, on, ..)| *on == gpu && of_it(root));
        let used = groups.filter_map(|(_, _, _, id, _)| self.gpus.get(gpu)?.group(id));
        let gone = self.retired.get(&(pid, gpu)).copied().unwrap_or(0);
        gone + used.map(|g| g.used().0).sum::<u64>()
    }

    /// A line that a tenant writes to its control file: what its program would launch.
    pub(crate) fn tell(&mut self, file: u64, line: &[u8]) {
        let response = match serde_json::from_slice(line) {
            Ok(request) => self.answer(file, request),
            Err(e) => Response::Error(format!("not a request: {e}")),
        };
        let mut answer = serde_json::to_vec(&response).unwrap_or_default();
        answer.push(b'\n');
        if let Some(file) = self.files.get_mut(&file) {
            file.answer = answer;
        }
    }

    /// The answer to the last line.
    pub(crate) fn hear(&self, file: u64) -> &[u8] {
        self.files.get(&file).map_or(&[], |f| &f.answer)
    }

    fn answer(&mut self, file: u64, request: Request) -> Response {
        let on_it = |root: &u32| self.clients.get(root).is_some_and(|c| c.file == file);
        let own: Vec<(usize, GroupId)> = self
            .groups()
            .filter(|(root, handle, ..)| on_it(root) && self.is_compute(*root, *handle))
            .map(|(_, _, gpu, id, _)| (gpu, id))
            .collect();
        if own.is_empty() {
            return Response::Error("no compute channel group on this file".into());
        }
        let mut progress = Progress::default();
        for (gpu, id) in own {
            let Some(gpu) = self.gpus.get_mut(gpu) else {
                continue;
            };
            match &request {
                Request::Hello(hello) => gpu.set_load(id, hello.load()),
                Request::Slice { us } => gpu.set_slice(id, Micros(*us)),
                Request::Progress => {
                    let file = self.files.get_mut(&file);
                    if let (Some(group), Some(file)) = (gpu.group(id), file) {
                        progress.add(group, file.reported.entry(id).or_default());
                    }
                }
            }
        }
        match request {
            Request::Progress => Response::Progress(progress),
            _ => Response::Done,
        }
    }
}
