//! The keys of a container: one vocabulary for files, commands, REST and documents.

use crate::name::sanitize;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! keys {
    ($($variant:ident $text:literal $mode:ident $per_gpu:literal $doc:literal,)*) => {
        /// A key of a container. The precedents are cgroup v2's files of like names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub enum Key {
            $(#[doc = $doc] #[serde(rename = $text)] $variant,)*
        }

        impl Key {
            /// All keys, in the order in which they are shown.
            pub const ALL: &'static [Key] = &[$(Key::$variant,)*];

            /// The key as typed.
            pub const fn as_str(self) -> &'static str {
                match self { $(Key::$variant => $text,)* }
            }

            /// What may be done with it.
            pub const fn mode(self) -> Mode {
                match self { $(Key::$variant => Mode::$mode,)* }
            }

            /// Whether a GPU may have a value of its own.
            pub const fn per_gpu(self) -> bool {
                match self { $(Key::$variant => $per_gpu,)* }
            }

            /// One sentence for help texts and `ghost(7)`.
            pub const fn doc(self) -> &'static str {
                match self { $(Key::$variant => $doc,)* }
            }
        }
    };
}

/// What may be done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Part of a container's spec: files, `limit` and REST may set it.
    Setting,
    /// Membership: may be written while the daemon runs, but no file keeps it.
    Members,
    /// Reported only.
    ReadOnly,
}

keys! {
    Weight "gpu.weight" Setting true "share of GPU time among those that want it, 1 to 10000, 100 by default; work-conserving",
    Max "gpu.max" Setting true "`MAX PERIOD`: at most MAX microseconds of GPU time in each PERIOD, on each GPU; `max` lifts it",
    Idle "gpu.idle" Setting false "1: runs only when nobody else wants the GPU",
    Latency "gpu.latency" Setting false "`target=USEC`: waiting time is protected, neighbours get short timeslices; `none` by default",
    Overflow "gpu.overflow" Setting false "where work goes that does not fit here: `never`, `auto`, `always` or a peer's name",
    Devices "gpu.devices" Setting false "GPUs asked for, separated by commas: UUIDs, indices or PCI addresses; `all` by default",
    DevicesEffective "gpu.devices.effective" ReadOnly false "GPUs granted, by UUID",
    MemoryMin "gpu.memory.min" Setting true "bytes kept for the container: others' allocations fail before they take them",
    MemoryLow "gpu.memory.low" Setting true "bytes kept for the container as far as possible: others that take them are counted",
    MemoryHigh "gpu.memory.high" Setting true "bytes beyond which the container gets less GPU time, never refused",
    MemoryMax "gpu.memory.max" Setting true "bytes beyond which allocations fail",
    MemoryCurrent "gpu.memory.current" ReadOnly false "bytes in use, keyed by GPU",
    MemoryPeak "gpu.memory.peak" ReadOnly false "most bytes ever in use, keyed by GPU",
    MemoryEvents "gpu.memory.events" ReadOnly false "how often `low`, `high`, `max` and `fail` happened to it and those below it, keyed by GPU",
    MemoryEventsLocal "gpu.memory.events.local" ReadOnly false "the same, without those below it",
    Stat "gpu.stat" ReadOnly false "`usage_usec nr_periods nr_throttled throttled_usec`, keyed by GPU",
    Pressure "gpu.pressure" ReadOnly false "time in which work waited, as pressure stall information; absent where no backend has an honest source",
    Procs "ghost.procs" Members false "members by pid",
    Cgroup "ghost.cgroup" Setting false "members by kernel cgroup: a cgroup v2 path; children that appear later belong too",
    Freeze "ghost.freeze" Setting false "1: no member's work runs on the GPU",
    Events "ghost.events" ReadOnly false "`populated` and `frozen`",
}

/// No key of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown key {text:?}{}", nearest.map(|k| format!(", did you mean {k}?")).unwrap_or_default())]
pub struct UnknownKey {
    /// What was typed, made fit for a terminal.
    pub text: String,
    /// The known key that is most like it, if one is.
    pub nearest: Option<Key>,
}

impl std::str::FromStr for Key {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        Key::ALL
            .iter()
            .copied()
            .find(|k| k.as_str() == text)
            .ok_or_else(|| {
                let nearest = Key::ALL
                    .iter()
                    .copied()
                    .map(|k| (strsim::jaro_winkler(k.as_str(), text), k))
                    .filter(|(likeness, _)| *likeness > 0.75)
                    .max_by(|a, b| a.0.total_cmp(&b.0))
                    .map(|(_, k)| k);
                UnknownKey {
                    text: sanitize(text),
                    nearest,
                }
            })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_get_the_nearest_key() {
        let e = "gpu.wieght".parse::<Key>().unwrap_err();
        assert_eq!(e.nearest, Some(Key::Weight));
        assert_eq!(
            e.to_string(),
            "unknown key \"gpu.wieght\", did you mean gpu.weight?"
        );
        assert_eq!("zzz".parse::<Key>().unwrap_err().nearest, None);
    }

    #[test]
    fn every_key_reads_back() {
        for key in Key::ALL {
            assert_eq!(key.as_str().parse(), Ok(*key));
            assert_eq!(
                serde_json::to_string(key).unwrap(),
                format!("{:?}", key.as_str())
            );
        }
    }
}
