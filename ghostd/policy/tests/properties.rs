//! What holds of every step, whatever is wanted and seen. The little GPU checks the invariants,
//! and that a second step plans nothing, at each of its steps.

mod little;

use ghost_model::{Bytes, GpuSample, GroupSample, Micros, Reading, Sample};
use ghost_policy::tuning::{QUANTUM, ROUND_MAX};
use ghost_policy::{Memory, invariant, step};
use little::{Little, group_sample, name};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000;
/// No container that has groups here is above another, for own processes have a fixed weight.
const LEAVES: [&str; 7] = ["a", "b", "system", "t/x", "t/y", "u/v/w", "u/z"];

type Weights = BTreeMap<String, u64>;
/// For each container, whether each of its groups has work.
type Groups = Vec<(&'static str, Vec<bool>)>;

fn weight() -> impl Strategy<Value = u64> + use<> {
    prop_oneof![1u64..=10, 50u64..=500, 1u64..=10_000]
}

/// Containers of `leaves` with weights for each part of the name and one to three groups.
fn containers(weight: impl Strategy<Value = u64>) -> impl Strategy<Value = (Weights, Groups)> {
    let all = [
        "a", "b", "system", "t", "t/x", "t/y", "u", "u/v", "u/v/w", "u/z",
    ];
    let weights = prop::collection::vec(weight, all.len())
        .prop_map(move |w| all.iter().map(|s| s.to_string()).zip(w).collect());
    let groups = prop::sample::subsequence(LEAVES.to_vec(), 1..=LEAVES.len()).prop_flat_map(|l| {
        let each = prop::collection::vec(prop::collection::vec(any::<bool>(), 1..=3), l.len());
        each.prop_map(move |groups| l.iter().copied().zip(groups).collect())
    });
    (weights, groups)
}

fn build(
    weights: &BTreeMap<String, u64>,
    groups: &[(&str, Vec<bool>)],
    rename: impl Fn(&str) -> String,
    times: u64,
) -> Little {
    let mut l = Little::new(&[]);
    for (container, weight) in weights {
        l.set(
            &rename(container),
            &format!("gpu.weight={}", weight * times),
        );
    }
    for (container, works) in groups {
        for work in works {
            l.add(&rename(container), *work);
        }
    }
    l
}

/// What a group ends up with, by its id: no name in it.
fn outcome(l: &Little) -> Vec<(u64, u64, bool)> {
    l.groups
        .iter()
        .map(|g| (g.slice, g.used, g.paused))
        .collect()
}

fn reading<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Reading<T>> {
    (value, any::<u32>(), 0..3u8).prop_map(|(value, at, kind)| {
        let at = Micros(at.into());
        match kind {
            0 => Reading::Fresh { value, at },
            1 => Reading::Stale { value, at },
            _ => Reading::Missing,
        }
    })
}

prop_compose! {
    fn any_group()(
        id in 0..6u64,
        container in prop::sample::select(vec!["a", "t", "t/x", "t/x/y", "i", "system", "gone"]),
        slice in reading(any::<u64>().prop_map(Micros)),
        used in reading(any::<u64>().prop_map(Micros)),
        active in reading(any::<bool>()),
        paused: bool,
    ) -> GroupSample {
        GroupSample { slice, used, active, paused, ..group_sample(id, &name(container), 0) }
    }
}

prop_compose! {
    fn any_sample()(
        at in prop_oneof![0..5_000_000u64, any::<u64>()],
        gpus in prop::collection::vec(
            (0..2u8, prop::collection::vec(any_group(), 0..8)), 0..3),
    ) -> Sample {
        let gpu = |(n, groups): (u8, _)| GpuSample {
            gpu: format!("GPU-{n}").parse().unwrap(),
            groups,
            memory: [(name("t"), Bytes(7)), (name("i"), Bytes(n.into()))].into(),
        };
        Sample { at: Micros(at), gpus: gpus.into_iter().map(gpu).collect() }
    }
}

fn any_spec() -> impl Strategy<Value = String> {
    let setting = prop::sample::select(vec![
        "gpu.weight=1",
        "gpu.weight=10000",
        "gpu.max=1000 10000",
        "gpu.max=30%",
        "gpu.max=1000 1000000",
        "gpu.idle=1",
        "gpu.latency=target=100",
        "gpu.latency=target=100000",
        "ghost.freeze=1",
        "gpu.devices=GPU-1",
        "gpu.memory.high=0",
        "gpu.memory.high=6",
        "gpu.max=100%",
    ]);
    prop::collection::vec(setting, 0..3).prop_map(|s| s.join(";"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn total(
        specs in prop::collection::vec(prop::collection::vec(any_spec(), 4), 3),
        samples in prop::collection::vec(any_sample(), 1..12),
    ) {
        let mut memory = Memory::default();
        for (i, sample) in samples.iter().enumerate() {
            let mut l = Little::new(&[]);
            for (container, text) in ["a", "t", "t/x", "i"].iter().zip(&specs[i % 3]) {
                l.set(container, text);
            }
            let (next, plan) = step(memory.clone(), &l.desired, sample);
            prop_assert_eq!(invariant::plan(sample, &plan), Ok(()));
            prop_assert_eq!(invariant::memory(&next), Ok(()));
            prop_assert_eq!(&step(memory, &l.desired, sample), &(next.clone(), plan));
            memory = next;
        }
    }

    #[test]
    fn work_conserving_and_nobody_starves((weights, groups) in containers(weight())) {
        let mut l = build(&weights, &groups, str::to_owned, 1);
        l.run(SECOND);
        let before = outcome(&l);
        // In two rounds everybody had a turn, the longest ones counted.
        l.run(4 * ROUND_MAX.0);
        let after = outcome(&l);
        let used: u64 = after.iter().zip(&before).map(|(a, b)| a.1 - b.1).sum();
        let some = l.groups.iter().any(|g| g.work);
        prop_assert_eq!(used, if some { 4 * ROUND_MAX.0 } else { 0 });
        for ((a, b), g) in after.iter().zip(&before).zip(&l.groups) {
            prop_assert!(!g.work || a.1 > b.1, "{} starved: {:?}", g.container, l.slices());
        }
    }

    #[test]
    fn proportional_within_one_quantum(weights in prop::collection::vec(50u64..=1000, 2..6)) {
        let mut l = Little::new(&[]);
        for (i, weight) in weights.iter().enumerate() {
            l.set(&format!("c{i}"), &format!("gpu.weight={weight}"));
            l.add(&format!("c{i}"), true);
        }
        l.run(SECOND);
        let before = outcome(&l);
        let time = 5 * SECOND;
        l.run(time);
        let sum: u64 = weights.iter().sum();
        for (i, weight) in weights.iter().enumerate() {
            let used = outcome(&l)[i].1 - before[i].1;
            let wanted = time * weight / sum;
            // The slices are rounded down to a microsecond in some hundred rounds.
            let quantum = l.groups[i].slice + 1_000;
            prop_assert!(used.abs_diff(wanted) <= quantum, "{i}: {used} for {wanted}, {weights:?}");
        }
    }

    #[test]
    fn a_budget_is_exceeded_by_no_more_than_a_quantum_a_period(
        max in 1_000u64..=60_000,
        period in 10_000u64..=100_000,
        above in prop::option::of(1_000u64..=60_000),
        neighbour: bool,
        on in 1_000u64..400_000,
        off in 0u64..400_000,
    ) {
        let max = max.min(period);
        let mut l = Little::new(&[("t/a", &format!("gpu.max={max} {period}"), &[true, true])]);
        l.add("t/b", true);
        l.add("n", neighbour);
        let above = above.map(|above| above.min(period));
        if let Some(above) = above {
            l.set("t", &format!("gpu.max={above} {period}"));
        }
        let mut turn = on;
        for n in 0..20 {
            let before = (l.used("t/a"), l.used("t"));
            let end = (n + 1) * period;
            while l.at < end {
                if turn <= l.at {
                    l.groups[0].work = !l.groups[0].work || off == 0;
                    l.groups[1].work = l.groups[0].work;
                    turn += if l.groups[0].work { on } else { off };
                    continue;
                }
                l.run(turn.min(end) - l.at);
            }
            let used = (l.used("t/a") - before.0, l.used("t") - before.1);
            prop_assert!(used.0 <= max + QUANTUM.0, "{} of {max} in {n}", used.0);
            prop_assert!(used.1 <= above.unwrap_or(period) + QUANTUM.0, "{} in {n}", used.1);
        }
    }

    #[test]
    fn raising_a_weight_never_lowers_its_share(
        (mut weights, groups) in containers(weight()),
        which in 0usize..10,
        by in 1u64..5_000,
    ) {
        let share = |weights: &BTreeMap<String, u64>, of: &str| {
            let mut l = build(weights, &groups, str::to_owned, 1);
            l.step();
            let stats = l.memory.stats();
            stats.get(&(name(of), little::gpu())).map_or(0.0, |s| s.share)
        };
        let of = weights.keys().nth(which).unwrap().clone();
        let before = share(&weights, &of);
        *weights.get_mut(&of).unwrap() += by;
        weights.values_mut().for_each(|w| *w = (*w).min(10_000));
        prop_assert!(share(&weights, &of) >= before);
    }

    /// For each container: how much it uses, and its `gpu.memory.high`, which one of them raises.
    #[test]
    fn beyond_high_nobody_starves_nobody_else_loses_and_raising_it_takes_nothing(
        (weights, groups) in containers(weight()),
        memory in prop::collection::vec((0u64..100, 0u64..100), 10),
        which in 0usize..10,
        by in 1u64..100,
    ) {
        let names: Vec<String> = weights.keys().cloned().collect();
        let of = &names[which];
        let built = |highs: &dyn Fn(usize, u64) -> u64| {
            let mut l = build(&weights, &groups, str::to_owned, 1);
            for (i, (container, (used, high))) in names.iter().zip(&memory).enumerate() {
                let weight = weights[container];
                let high = highs(i, *high);
                l.set(container, &format!("gpu.weight={weight};gpu.memory.high={high}"));
                l.uses(container, *used);
            }
            l
        };
        let mut l = built(&|_, high| high);
        let mut raised = built(&|i, high| if i == which { high + by } else { high });
        l.step();
        raised.step();
        let share = |l: &Little, of: &str| {
            let stats = l.memory.stats();
            stats.get(&(name(of), little::gpu())).map_or(0.0, |s| s.share)
        };
        prop_assert!(share(&raised, of) >= share(&l, of));
        for sibling in names.iter().filter(|n| *n != of) {
            let apart = !name(sibling).is_within(&name(of)) && !name(of).is_within(&name(sibling));
            prop_assert!(!apart || share(&l, sibling) >= share(&raised, sibling), "{}", sibling);
        }
        l.run(SECOND);
        let before = outcome(&l);
        l.run(4 * ROUND_MAX.0);
        let used: u64 = outcome(&l).iter().zip(&before).map(|(a, b)| a.1 - b.1).sum();
        let some = l.groups.iter().any(|g| g.work);
        prop_assert_eq!(used, if some { 4 * ROUND_MAX.0 } else { 0 });
        for ((a, b), g) in outcome(&l).iter().zip(&before).zip(&l.groups) {
            prop_assert!(!g.work || a.1 > b.1, "{} starved: {:?}", g.container, l.slices());
        }
    }

    #[test]
    fn names_are_only_names((weights, groups) in containers(weight()), order: bool) {
        let rename = |text: &str| {
            let part = |part: &str| match part {
                "system" => "system".to_owned(),
                // To the other end of the alphabet, or each by as much.
                p if order => format!("{}-", (b'a' + b'z' - p.as_bytes()[0]) as char),
                p => format!("k.{p}"),
            };
            text.split('/').map(part).collect::<Vec<_>>().join("/")
        };
        let mut one = build(&weights, &groups, str::to_owned, 1);
        let mut other = build(&weights, &groups, rename, 1);
        one.run(3 * SECOND);
        other.run(3 * SECOND);
        prop_assert_eq!(outcome(&one), outcome(&other));
        prop_assert_eq!(one.actions, other.actions);
    }

    #[test]
    fn all_weights_times_k_is_the_same((weights, groups) in containers(1u64..=100), k in 2u64..=100) {
        let mut one = build(&weights, &groups, str::to_owned, 1);
        let mut other = build(&weights, &groups, str::to_owned, k);
        for _ in 0..4 {
            prop_assert_eq!(one.step(), other.step());
            one.run(700_000);
            other.run(700_000);
        }
        prop_assert_eq!(outcome(&one), outcome(&other));
    }

    #[test]
    fn a_steady_load_is_left_alone((weights, groups) in containers(weight())) {
        let mut l = build(&weights, &groups, str::to_owned, 1);
        l.run(2 * SECOND);
        let actions = l.actions;
        l.run(30 * SECOND);
        prop_assert_eq!(l.actions, actions);
    }

    #[test]
    fn an_idle_class_changes_no_share_of_others(weights in prop::collection::vec(weight(), 2..5)) {
        let mut l = Little::new(&[]);
        for (i, weight) in weights.iter().enumerate() {
            l.set(&format!("c{i}"), &format!("gpu.weight={weight}"));
            l.add(&format!("c{i}"), true);
        }
        let mut with = l.clone();
        with.set("i", "gpu.idle=1;gpu.weight=10000");
        with.add("i", true);
        l.step();
        with.step();
        prop_assert_eq!(l.slices(), &with.slices()[..weights.len()]);
    }
}
