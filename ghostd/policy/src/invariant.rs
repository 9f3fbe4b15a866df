//! What holds of every step, as functions that every test calls.

use crate::memory::Memory;
use crate::share::ONE;
use crate::tuning::{MAX_SLICE, MIN_SLICE};
use ghost_model::{Action, GpuId, GroupId, Micros, Name, Plan, Sample};
use std::collections::BTreeSet;

/// What does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Pauses come before slices, slices before resumes.
    #[error("{0:?} stands after what must come later")]
    Order(Action),
    /// The same thing is asked for twice, or with its opposite.
    #[error("{0:?} is not the only one for its object")]
    Twice(Action),
    /// It concerns a GPU, group or container that the sample does not have.
    #[error("{0:?} concerns what is not there")]
    Nobody(Action),
    /// A slice is out of bounds.
    #[error("{0:?} is shorter than {MIN_SLICE} or longer than {MAX_SLICE} us")]
    Slice(Action),
    /// The next step is not later.
    #[error("wake at {0} is not after the sample at {1}")]
    Wake(Micros, Micros),
    /// Shares at the top of a GPU add up to more than its time.
    #[error("shares on {0} add up to {1} of {ONE}")]
    Shares(GpuId, u64),
    /// A bucket or a correction is out of bounds.
    #[error("memory is out of bounds: {0}")]
    Memory(String),
}

/// Whether a plan is one that a backend can carry out on what `sample` shows.
///
/// # Errors
/// The first [`Violation`].
pub fn plan(sample: &Sample, plan: &Plan) -> Result<(), Violation> {
    let there = groups(sample);
    let (groups, containers): (BTreeSet<_>, BTreeSet<_>) = there
        .map(|(gpu, id, name)| ((gpu, id), (gpu, name)))
        .unzip();
    let (mut slices, mut pauses) = (BTreeSet::new(), BTreeSet::new());
    let mut stage = 0;
    for action in &plan.actions {
        let (now, there, first) = match action {
            Action::SetSlice { gpu, group, slice } => {
                if !(MIN_SLICE..=MAX_SLICE).contains(slice) {
                    return Err(Violation::Slice(action.clone()));
                }
                let key = (gpu, *group);
                (1, groups.contains(&key), slices.insert(key))
            }
            Action::Pause { gpu, container, .. } | Action::Resume { gpu, container } => {
                let key = (gpu, container);
                let stage = if matches!(action, Action::Pause { .. }) {
                    0
                } else {
                    2
                };
                (stage, containers.contains(&key), pauses.insert(key))
            }
        };
        if now < stage {
            return Err(Violation::Order(action.clone()));
        }
        if !there {
            return Err(Violation::Nobody(action.clone()));
        }
        if !first {
            return Err(Violation::Twice(action.clone()));
        }
        stage = now;
    }
    match plan.wake {
        Some(wake) if wake <= sample.at => Err(Violation::Wake(wake, sample.at)),
        _ => Ok(()),
    }
}

/// Whether a memory is sound: its buckets are, and the shares on a GPU do not exceed its time.
///
/// # Errors
/// The first [`Violation`].
pub fn memory(memory: &Memory) -> Result<(), Violation> {
    for (gpu, on) in &memory.gpus {
        let top = on
            .containers
            .iter()
            .filter(|(name, _)| name.parent().is_none());
        let sum = top.map(|(_, c)| c.share).sum();
        if sum > ONE {
            return Err(Violation::Shares(gpu.clone(), sum));
        }
        let (low, high) = crate::tuning::FEEDBACK_RANGE;
        for (name, c) in &on.containers {
            let bucket = c.bucket.as_ref().is_none_or(crate::Bucket::is_valid);
            if !bucket || !(low..=high).contains(&c.factor) {
                return Err(Violation::Memory(format!("{name} on {gpu}: {c:?}")));
            }
        }
    }
    Ok(())
}

fn groups(sample: &Sample) -> impl Iterator<Item = (&GpuId, GroupId, &Name)> {
    let gpus = sample.gpus.iter();
    gpus.flat_map(|g| {
        g.groups
            .iter()
            .map(|group| (&g.gpu, group.id, &group.container))
    })
}
