//! The objects of one client of a tenant, read from a duplicate of the tenant's descriptor.
//!
//! The resource manager lists no objects, but tells of each handle whether it is there, its class
//! and its parent. CUDA gives out handles from a fixed base, upwards; so they are asked for one
//! after the other, some 3 us each, from where the last scan ended. No scan holds the duplicate
//! for longer than [`LONGEST`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ghost_rm::abi::{CLASS_CHANNEL_GROUP, CLASS_DEVICE, CLASS_SUBDEVICE};
use ghost_rm::{Client, Control, Object, RmError, Status};

/// CUDA's first handle.
const BASE: u32 = 0x5C00_0000;
/// Handles that a search in depth looks at, from where it begins.
const DEPTH: u32 = 0x8000;
/// Missing handles in a row that end a scan at the frontier: a context's own come without gaps
/// as wide.
const GAP: u32 = 256;
/// How long a duplicate is held.
const LONGEST: Duration = Duration::from_millis(4);

/// A channel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The driver's id of its GPU.
    pub(super) gpu_id: u32,
    /// Whether it computes; else it copies.
    pub(super) compute: bool,
}

/// A channel group that the broker tells of: a process asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) group: Object,
    /// Whether a compute engine was asked for on it.
    pub(super) computes: bool,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    device: Object,
    compute: bool,
}

/// What is known of one client.
#[derive(Debug)]
pub(super) struct Objects {
    client: Client,
    devices: BTreeMap<Object, u32>,
    groups: BTreeMap<Object, Node>,
    channels: BTreeMap<Object, Object>,
    /// The first handle past all that are there.
    frontier: u32,
    /// Where a scan at the frontier that was cut short goes on, with so many missing before.
    cut: Option<(u32, u32)>,
    /// Where a search in depth goes on, and ends.
    deep: Option<(u32, u32)>,
}

/// How far a scan is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// From the frontier to the first wide gap.
    Frontier,
    /// One piece of all handles, going on where the last one ended.
    Deep,
}

impl Objects {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            devices: BTreeMap::new(),
            groups: BTreeMap::new(),
            channels: BTreeMap::new(),
            frontier: BASE,
            cut: None,
            deep: None,
        }
    }

    /// Forgets what was found, to find what is there now.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.client);
    }

    /// The channel groups found so far whose GPU is known.
    pub(super) fn groups(&self) -> impl Iterator<Item = (Object, Found)> + '_ {
        self.groups.iter().filter_map(|(&group, node)| {
            let &gpu_id = self.devices.get(&node.device)?;
            let compute = node.compute;
            Some((group, Found { gpu_id, compute }))
        })
    }

    /// Whether a search in depth has begun and not come to its end.
    pub(super) fn is_searching(&self) -> bool {
        self.deep.is_some()
    }

    /// Takes in a group that was told of, if it is there: a handful of calls, where a scan is
    /// hundreds. `control` is on the tenant's file.
    ///
    /// # Errors
    /// As [`Objects::scan`].
    pub(super) fn learn(&mut self, control: Control<'_>, told: Asked) -> Result<(), RmError> {
        let (client, group) = (self.client, told.group);
        if !self.groups.contains_key(&group) {
            match control.class_of(client, group) {
                Ok(CLASS_CHANNEL_GROUP) => {}
                Err(error) if error.status() == Some(Status::INVALID_CLIENT) => return Err(error),
                // What was asked for was refused, or is gone.
                Ok(_) | Err(_) => return Ok(()),
            }
            let Ok(device) = control.parent_of(client, group) else {
                return Ok(());
            };
            if !self.devices.contains_key(&device)
                && let Ok(Some(gpu)) = control.gpu_of_parent(client, device)
            {
                self.devices.insert(device, gpu);
            }
            let compute = false;
            self.groups.insert(group, Node { device, compute });
        }
        if let Some(node) = self.groups.get_mut(&group) {
            node.compute |= told.computes;
        }
        Ok(())
    }

    /// Asks for some handles, for no longer than [`LONGEST`]. `control` is on the tenant's file.
    /// Whether it came to its end.
    ///
    /// # Errors
    /// The refusal if the client is not on that file (any more).
    pub(super) fn scan(&mut self, control: Control<'_>, reach: Reach) -> Result<bool, RmError> {
        let begun = Instant::now();
        let (mut handle, end, mut missing) = match (reach, self.deep) {
            (Reach::Frontier, _) => {
                let (handle, missing) = self.cut.take().unwrap_or((self.frontier, 0));
                (handle, u32::MAX, missing)
            }
            (Reach::Deep, Some((handle, end))) => (handle, end, 0),
            (Reach::Deep, None) => (self.frontier, self.frontier.saturating_add(DEPTH), 0),
        };
        while handle < end {
            if self.look(control, Object(handle))? {
                // Handles rise. What was missing before this one came may have come meanwhile,
                // and this one may be its child.
                if missing > 0 {
                    for earlier in handle - missing.min(GAP)..=handle {
                        self.look(control, Object(earlier))?;
                    }
                }
                missing = 0;
                self.frontier = self.frontier.max(handle + 1);
            } else {
                missing += 1;
            }
            handle += 1;
            if reach == Reach::Frontier && missing >= GAP {
                return Ok(true);
            }
            if handle.is_multiple_of(32) && begun.elapsed() >= LONGEST {
                match reach {
                    Reach::Deep => self.deep = Some((handle, end)),
                    Reach::Frontier => self.cut = Some((handle, missing)),
                }
                return Ok(false);
            }
        }
        // Next time from the beginning: handles that were freed may be used again.
        self.deep = None;
        self.frontier = BASE;
        Ok(true)
    }

    /// Whether there is such an object; keeps what matters of it.
    fn look(&mut self, control: Control<'_>, object: Object) -> Result<bool, RmError> {
        let client = self.client;
        let class = match control.class_of(client, object) {
            Ok(class) => class,
            Err(error) if error.status().is_some_and(|s| s != Status::INVALID_CLIENT) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        // An object may go at any moment; then it is of no interest.
        let parent = || control.parent_of(client, object).ok();
        if class == CLASS_DEVICE {
            return Ok(true);
        }
        if class == CLASS_SUBDEVICE {
            if let (Some(device), Ok(gpu)) = (parent(), control.gpu_of(client, object)) {
                self.devices.insert(device, gpu);
            }
        } else if class == CLASS_CHANNEL_GROUP {
            if let Some(device) = parent() {
                let compute = false;
                let node = self.groups.entry(object);
                node.or_insert(Node { device, compute }).device = device;
            }
        } else if is_channel(class) {
            if let Some(group) = parent() {
                self.channels.insert(object, group);
            }
        } else if is_compute(class)
            && let Some(channel) = parent()
            && let Some(group) = self.channels.get(&channel)
            && let Some(node) = self.groups.get_mut(group)
        {
            node.compute = true;
        }
        Ok(true)
    }
}

/// Channels of the chips since Kepler: 0xA16F, …, 0xC86F, …
fn is_channel(class: u32) -> bool {
    class > 0x9000 && class & 0xFF == 0x6F
}

/// Compute engines of the chips since Kepler: 0xA0C0, …, 0xCBC0, …
fn is_compute(class: u32) -> bool {
    class > 0x9000 && class & 0xFF == 0xC0
}
