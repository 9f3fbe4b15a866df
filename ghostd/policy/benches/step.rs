//! A step for 1,000 containers on 8 GPUs, two thirds of them in teams, some with budgets, all
//! with memory and some beyond their high, in the middle of their life: it must stay below a
//! millisecond.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use ghost_model::{
    Action, Bytes, GpuSample, GroupId, GroupSample, Micros, Name, Reading, Sample, Spec,
};
use ghost_policy::{Desired, Memory, step};
use std::hint::black_box;

const CONTAINERS: u64 = 1_000;
const GPUS: u64 = 8;
const TICK: u64 = 50_000;

fn name(n: u64) -> Name {
    let text = match n % 3 {
        0 => format!("job-{n}"),
        _ => format!("team-{}/job-{n}", n % 20),
    };
    text.parse().expect("a name")
}

fn desired() -> Desired {
    let mut desired = Desired::default();
    for n in 0..CONTAINERS {
        let mut spec = Spec::default();
        let weight = (1 + n % 500).to_string();
        spec.set_text("gpu.weight", None, &weight)
            .expect("a weight");
        if n % 10 == 0 {
            spec.set_text("gpu.max", None, "50%").expect("a budget");
        }
        if n % 7 == 0 {
            spec.set_text("gpu.memory.high", None, "500")
                .expect("bytes");
        }
        desired.containers.insert(name(n), spec);
    }
    desired
}

fn sample() -> Sample {
    let group = |n: u64| GroupSample {
        id: GroupId(n),
        pid: n as u32,
        container: name(n),
        slice: Reading::Missing,
        used: Reading::Missing,
        active: Reading::Missing,
        paused: false,
    };
    let gpus = (0..GPUS).map(|g| GpuSample {
        memory: (0..CONTAINERS).map(|n| (name(n), Bytes(n))).collect(),
        gpu: format!("GPU-{g}").parse().expect("a GPU"),
        groups: (0..CONTAINERS)
            .filter(|n| n % GPUS == g)
            .map(group)
            .collect(),
    });
    Sample {
        at: Micros::ZERO,
        gpus: gpus.collect(),
    }
}

/// The next sample: slices as asked for, one group in two with work.
fn pass(sample: &mut Sample, actions: &[Action]) {
    sample.at = sample.at + Micros(TICK);
    let at = sample.at;
    for on in &mut sample.gpus {
        let n = on.groups.len() as u64;
        for group in &mut on.groups {
            let works = group.id.0 / 8 % 2 == 0;
            let before = group.used.last().unwrap_or_default();
            let value = before + Micros(if works { TICK * 2 / n } else { 0 });
            group.used = Reading::Fresh { value, at };
            group.active = Reading::Fresh { value: works, at };
        }
    }
    let groups = |sample: &mut Sample, id: GroupId, set: &dyn Fn(&mut GroupSample)| {
        let all = sample.gpus.iter_mut().flat_map(|on| &mut on.groups);
        all.filter(|g| g.id == id).for_each(set);
    };
    for action in actions {
        if let Action::SetSlice { group, slice, .. } = action {
            let value = *slice;
            groups(sample, *group, &|g| g.slice = Reading::Fresh { value, at });
        }
    }
}

fn bench(c: &mut Criterion) {
    let desired = desired();
    let mut sample = sample();
    let mut memory = Memory::default();
    for _ in 0..60 {
        let (next, plan) = step(memory, &desired, &sample);
        memory = next;
        pass(&mut sample, &plan.actions);
    }
    c.bench_function("step, 1000 containers on 8 GPUs", |b| {
        let setup = || memory.clone();
        let run = |memory| black_box(step(memory, &desired, &sample));
        b.iter_batched(setup, run, BatchSize::LargeInput);
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
