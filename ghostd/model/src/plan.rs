//! What a policy asks of a backend: small actions, each of which may be done twice.

use crate::gpu::GpuId;
use crate::key::Key;
use crate::name::Name;
use crate::sample::GroupId;
use crate::units::Micros;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Action {
    /// Give a channel group this timeslice, and keep it there.
    SetSlice {
        /// The GPU.
        gpu: GpuId,
        /// The channel group.
        group: GroupId,
        /// The timeslice.
        slice: Micros,
    },
    /// Stop all channel groups of a container (not those of the containers below it), those
    /// that appear later included. `why` is for people.
    Pause {
        /// The GPU.
        gpu: GpuId,
        /// The container.
        container: Name,
        /// What asked for it.
        why: Why,
    },
    /// Let them run again.
    Resume {
        /// The GPU.
        gpu: GpuId,
        /// The container.
        container: Name,
    },
}

/// As a person would say it in a message.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::SetSlice { gpu, group, slice } => {
                let (group, slice) = (group.0, slice.0);
                write!(
                    f,
                    "timeslice of {slice} us for channel group {group} on {gpu}"
                )
            }
            Action::Pause {
                gpu,
                container,
                why,
            } => {
                let key = match why {
                    Why::Freeze => Key::Freeze,
                    Why::Max => Key::Max,
                    Why::Idle => Key::Idle,
                    Why::Devices => Key::Devices,
                };
                write!(f, "pause {container} on {gpu} ({key})")
            }
            Action::Resume { gpu, container } => {
                write!(f, "resume {container} on {gpu}")
            }
        }
    }
}

/// Why a container is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// `ghost.freeze`, its own or one above.
    Freeze,
    /// The budget of `gpu.max` is used up.
    Max,
    /// `gpu.idle`, and somebody else has work.
    Idle,
    /// `gpu.devices` does not grant this GPU.
    Devices,
}

/// What a step decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// In order; pauses come before slices, slices before resumes.
    pub actions: Vec<Action>,
    /// The moment at which the next step must be made at the latest, if there is one before the
    /// loop's own period: the end of a budget, the start of a period.
    pub wake: Option<Micros>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_said_in_words() {
        let gpu: GpuId = "GPU-57a4d000".parse().unwrap();
        let container: Name = "team/a".parse().unwrap();
        let pause = Action::Pause {
            gpu: gpu.clone(),
            container: container.clone(),
            why: Why::Freeze,
        };
        assert_eq!(
            pause.to_string(),
            "pause team/a on GPU-57a4d000 (ghost.freeze)"
        );
        let resume = Action::Resume { gpu, container };
        assert_eq!(resume.to_string(), "resume team/a on GPU-57a4d000");
    }
}
