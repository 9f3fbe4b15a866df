//! Each rule of the policy by example, on a little exact GPU.

mod little;

use ghost_model::plan::Why;
use ghost_model::{Action, Micros, Reading};
use ghost_policy::{Memory, step};
use little::{Little, assert_near, fresh, gpu, group_sample, name};

const SECOND: u64 = 1_000_000;

#[test]
fn weights_share_among_siblings_that_have_work() {
    let mut l = Little::new(&[
        ("a", "gpu.weight=70", &[true]),
        ("b", "gpu.weight=30", &[true]),
    ]);
    l.run(100_000);
    assert_eq!(l.slices(), [21_000, 9_000]);
    assert_near(l.shares(2 * SECOND, ["a", "b"]), [70.0, 30.0], 0.5);
    l.groups[0].work = false;
    assert_near(l.shares(SECOND, ["b"]), [100.0], 0.5);
}

#[test]
fn the_tree_is_shared_level_by_level() {
    let mut l = Little::new(&[
        ("team", "gpu.weight=100", &[]),
        ("team/a", "gpu.weight=300", &[true]),
        ("team/b", "gpu.weight=100", &[true]),
        ("other", "", &[true]),
    ]);
    l.run(100_000);
    assert_near(
        l.shares(3 * SECOND, ["team/a", "team/b", "other", "team"]),
        [37.5, 12.5, 50.0, 50.0],
        0.5,
    );
    l.groups[1].work = false;
    l.run(2 * SECOND);
    assert_near(l.shares(SECOND, ["team/a", "other"]), [50.0, 50.0], 0.5);
    let slices = l.slices();
    let joined = slices[0] / 4;
    assert!(
        slices[1].abs_diff(joined) <= 1,
        "b has what it would get: {slices:?}"
    );
    l.groups[1].work = true;
    l.run(100_000);
    assert_near(
        l.shares(3 * SECOND, ["team/a", "team/b", "other"]),
        [37.5, 12.5, 50.0],
        0.5,
    );
}

#[test]
fn own_processes_stand_beside_children_with_the_default_weight() {
    let mut l = Little::new(&[("t", "", &[true]), ("t/a", "gpu.weight=300", &[true])]);
    l.run(100_000);
    assert_eq!(l.slices(), [7_500, 22_500]);
}

#[test]
fn strangers_have_a_container_and_a_weight() {
    let mut l = Little::new(&[("a", "gpu.weight=300", &[true])]);
    l.add("system", true);
    l.run(100_000);
    assert_eq!(l.slices(), [22_500, 7_500]);
    l.set("system", "gpu.weight=300");
    l.run(100_000);
    assert_eq!(l.slices(), [22_500, 22_500]);
}

#[test]
fn beyond_high_a_weight_counts_a_tenth_until_use_is_back() {
    let mut l = Little::new(&[
        ("a", "gpu.memory.high=1000", &[true]),
        ("b", "", &[true]),
        ("c", "", &[false]),
    ]);
    l.uses("a", 1000);
    l.uses("b", 5000);
    l.run(100_000);
    assert_near(l.shares(2 * SECOND, ["a", "b"]), [50.0, 50.0], 0.5);
    l.uses("a", 1001);
    l.run(100_000);
    assert_near(
        l.shares(5 * SECOND, ["a", "b"]),
        [100.0 / 11.0, 1000.0 / 11.0],
        0.5,
    );
    l.groups[1].work = false;
    l.run(2 * SECOND);
    assert_near(l.shares(SECOND, ["a"]), [100.0], 0.1);
    l.groups[1].work = true;
    l.uses("a", 900);
    l.run(100_000);
    assert_near(l.shares(2 * SECOND, ["a", "b"]), [50.0, 50.0], 0.5);
}

#[test]
fn beyond_high_a_subtree_counts_less_once_and_is_shared_inside_as_before() {
    let mut l = Little::new(&[
        ("t", "gpu.memory.high=1000", &[]),
        ("t/a", "gpu.weight=300", &[true]),
        ("t/b", "", &[true]),
        ("n", "", &[true]),
    ]);
    l.uses("t", 1001);
    l.uses("t/a", 1001);
    l.run(100_000);
    let of = ["t", "t/a", "t/b", "n"];
    let eleventh = 100.0 / 11.0;
    let shares = l.shares(5 * SECOND, of);
    assert_near(
        shares,
        [eleventh, eleventh * 0.75, eleventh * 0.25, 10.0 * eleventh],
        0.5,
    );
    l.set("t/a", "gpu.weight=300;gpu.memory.high=1000");
    l.run(100_000);
    let shares = l.shares(5 * SECOND, of);
    let inside = [eleventh * 3.0 / 13.0, eleventh * 10.0 / 13.0];
    assert_near(
        shares,
        [eleventh, inside[0], inside[1], 10.0 * eleventh],
        0.5,
    );
}

#[test]
fn beyond_high_on_one_gpu_only_is_slow_on_that_one_only() {
    let mut l = Little::new(&[("a", "gpu.memory.high=1000", &[true]), ("b", "", &[true])]);
    l.uses("a", 1001);
    l.desired
        .containers
        .get_mut(&name("a"))
        .unwrap()
        .set_text("gpu.memory.high", Some(gpu()), "2000")
        .unwrap();
    l.run(100_000);
    assert_eq!(l.slices(), [15_000, 15_000]);
}

#[test]
fn ten_processes_get_no_more_than_one() {
    let mut l = Little::new(&[("a", "", &[true; 4]), ("b", "", &[true])]);
    l.run(100_000);
    assert_near(l.shares(2 * SECOND, ["a", "b"]), [50.0, 50.0], 0.5);
}

#[test]
fn one_of_four_processes_gets_the_whole_share_and_the_others_no_head_start() {
    let mut l = Little::new(&[("a", "", &[true, false, false, false]), ("b", "", &[true])]);
    l.run(2 * SECOND);
    assert_near(l.shares(2 * SECOND, ["a", "b"]), [50.0, 50.0], 0.5);
    let slices = l.slices();
    assert_eq!(
        slices[1],
        slices[0] / 2,
        "as if it were the second: {slices:?}"
    );
    l.groups[1].work = true;
    l.groups[2].work = true;
    l.run(200_000);
    assert_near(l.shares(2 * SECOND, ["a", "b"]), [50.0, 50.0], 0.5);
}

#[test]
fn no_slice_changes_where_a_container_at_the_top_sleeps_and_wakes() {
    let mut l = Little::new(&[("a", "", &[true]), ("b", "", &[true]), ("c", "", &[true])]);
    l.run(100_000);
    let (slices, actions) = (l.slices(), l.actions);
    for _ in 0..5 {
        l.groups[0].work = !l.groups[0].work;
        l.run(3 * SECOND);
    }
    assert_eq!((l.slices(), l.actions), (slices, actions));
}

#[test]
fn a_steady_load_plans_nothing() {
    let mut l = Little::new(&[
        ("a", "gpu.weight=97", &[true]),
        ("b", "gpu.weight=3", &[true]),
        ("c", "", &[true, true, false]),
    ]);
    l.run(3 * SECOND);
    let actions = l.actions;
    l.run(20 * SECOND);
    assert_eq!(l.actions, actions);
}

#[test]
fn one_that_wakes_after_long_waits_no_longer_than_a_short_round() {
    let mut l = Little::new(&[
        ("big", "gpu.weight=9800", &[false]),
        ("a", "", &[true]),
        ("b", "", &[true]),
    ]);
    l.run(3 * SECOND);
    let slices = l.slices();
    assert_eq!(slices[1..], [15_000, 15_000]);
    assert_eq!(slices[0], 50_000);
}

#[test]
fn a_cap_binds_alone_in_every_second() {
    let mut l = Little::new(&[("a", "gpu.max=30000 100000", &[true])]);
    l.run(50_000);
    for _ in 0..20 {
        assert_near(l.shares(SECOND, ["a"]), [30.0], 0.2);
        l.run(17_000);
    }
    let stat = l.stat("a");
    assert!(
        stat.nr_periods >= 200 && stat.nr_throttled == stat.nr_periods,
        "{stat:?}"
    );
    let seconds = stat.throttled_usec.as_secs_f64();
    assert!((seconds / l.at as f64 * 1e6 - 0.7).abs() < 0.01, "{stat:?}");
}

#[test]
fn a_cap_above_binds_the_sum_below() {
    let mut l = Little::new(&[
        ("t", "gpu.max=40000 100000", &[]),
        ("t/a", "gpu.max=10000 100000", &[true]),
        ("t/b", "", &[true]),
    ]);
    l.run(100_000);
    assert_near(
        l.shares(2 * SECOND, ["t", "t/a", "t/b"]),
        [40.0, 10.0, 30.0],
        0.5,
    );
}

#[test]
fn one_below_its_cap_is_not_throttled() {
    let mut l = Little::new(&[("a", "gpu.max=60000 100000", &[true]), ("b", "", &[true])]);
    l.run(200_000);
    assert_near(l.shares(5 * SECOND, ["a", "b"]), [50.0, 50.0], 0.5);
    let stat = l.stat("a");
    assert!(stat.nr_periods > 40 && stat.nr_throttled == 0, "{stat:?}");
}

#[test]
fn what_a_cap_leaves_the_others_have() {
    let mut l = Little::new(&[("a", "gpu.max=20%", &[true]), ("b", "", &[true])]);
    l.run(200_000);
    assert_near(l.shares(5 * SECOND, ["a", "b"]), [20.0, 80.0], 0.5);
}

#[test]
fn a_raised_limit_counts_at_once() {
    let mut l = Little::new(&[("a", "gpu.max=10%", &[true])]);
    l.run(150_000 - 50_000 + 30_000);
    assert_eq!(l.why("a"), Some(Why::Max));
    l.set("a", "gpu.max=90%");
    l.run(1_000);
    assert_eq!(l.why("a"), None);
    l.set("a", "");
    assert_near(l.shares(SECOND, ["a"]), [100.0], 0.1);
}

#[test]
fn idle_runs_only_when_nobody_else_wants_to() {
    let mut l = Little::new(&[("a", "", &[true]), ("i", "gpu.idle=1", &[true])]);
    l.run(50_000);
    assert_near(l.shares(2 * SECOND, ["a", "i"]), [100.0, 0.0], 0.1);
    assert_eq!(l.why("i"), Some(Why::Idle));
    l.groups[0].work = false;
    l.run(300_000);
    assert_near(l.shares(SECOND, ["i"]), [100.0], 0.1);
    assert_eq!(l.slices()[1], 200);
    l.groups[0].work = true;
    assert_near(l.shares(SECOND, ["a"]), [98.0], 2.0);
}

#[test]
fn a_child_of_an_idle_container_is_idle() {
    let mut l = Little::new(&[
        ("i", "gpu.idle=1", &[]),
        ("i/x", "", &[true]),
        ("a", "", &[true]),
    ]);
    l.step();
    assert_eq!(l.why("i/x"), Some(Why::Idle));
}

#[test]
fn freeze_devices_max_idle_in_this_order() {
    let mut l = Little::new(&[("a", "", &[true]), ("t/b", "gpu.idle=1", &[true])]);
    let why = |l: &mut Little, text: &str| {
        l.set("t", text);
        l.run(0);
        l.why("t/b")
    };
    assert_eq!(why(&mut l, ""), Some(Why::Idle));
    assert_eq!(why(&mut l, "gpu.devices=GPU-other"), Some(Why::Devices));
    assert_eq!(
        why(&mut l, "gpu.devices=GPU-other;ghost.freeze=1"),
        Some(Why::Freeze)
    );
    l.set("t/b", "");
    assert_eq!(why(&mut l, "gpu.devices=GPU-little"), None);
    l.groups[0].work = false;
    l.set("a", "ghost.freeze=1");
    assert_eq!(why(&mut l, "gpu.max=10%"), None);
    l.run(20_000);
    assert_eq!(l.why("t/b"), Some(Why::Max));
}

#[test]
fn a_latency_container_has_short_neighbours_within_its_share() {
    let mut l = Little::new(&[
        ("web", "gpu.latency=target=400", &[false]),
        ("a", "", &[true]),
    ]);
    l.run(100_000);
    assert_eq!(l.slices(), [10_000, 200]);
    l.groups[0].work = true;
    l.run(3 * SECOND);
    assert_eq!(l.slices(), [15_000, 15_000], "it is greedy");
    let actions = l.actions;
    l.run(5 * SECOND);
    assert_eq!(
        l.actions, actions,
        "and stays so while it takes its whole share"
    );
    l.groups[0].work = false;
    l.run(2 * SECOND);
    assert_eq!(l.slices(), [10_000, 200], "and was forgiven");
}

#[test]
fn neighbours_of_a_latency_container_keep_their_ratio() {
    let mut l = Little::new(&[
        ("web", "gpu.latency=target=1000", &[false]),
        ("a", "gpu.weight=100", &[true]),
        ("b", "gpu.weight=200", &[true]),
    ]);
    l.run(100_000);
    assert_eq!(l.slices(), [10_000, 200, 400]);
    l.run(15 * SECOND);
    assert_eq!(l.slices()[1..], [7_500, 15_000], "it did nothing for long");
}

#[test]
fn what_is_not_known_loosens_nothing() {
    let mut memory = Memory::default();
    let mut l = Little::new(&[("a", "gpu.max=30%", &[true]), ("i", "gpu.idle=1", &[true])]);
    let mut paused = false;
    let mut ran = 0;
    for at in (0..SECOND).step_by(1_000) {
        l.at = at;
        let mut sample = l.sample();
        for g in &mut sample.gpus[0].groups {
            (g.used, g.active) = (Reading::Missing, Reading::Missing);
        }
        sample.gpus[0].groups[0].paused = paused;
        let (next, plan) = step(memory, &l.desired, &sample);
        memory = next;
        for action in &plan.actions {
            match action {
                Action::Pause { container, .. } if *container == name("a") => paused = true,
                Action::Resume { container, .. } if *container == name("a") => paused = false,
                Action::Resume { container, .. } => panic!("{container} was resumed"),
                _ => {}
            }
        }
        ran += u64::from(!paused);
    }
    assert!((290..=310).contains(&ran), "{ran} of 1000 ms at 30 %");
}

#[test]
fn late_readings_are_put_right() {
    // Beside another it uses half of the time in which it may run; readings are 200 ms late.
    let mut memory = Memory::default();
    let mut l = Little::new(&[("a", "gpu.max=30%", &[true]), ("b", "", &[true])]);
    let (mut paused, mut used) = (false, vec![0u64]);
    for ms in 0..20_000u64 {
        used.push(used[ms as usize] + if paused { 0 } else { 500 });
        let at = ms * 1_000;
        let late = ms.saturating_sub(200) / 100 * 100;
        l.at = at;
        let mut sample = l.sample();
        sample.gpus[0].groups[0].paused = paused;
        sample.gpus[0].groups[0].used = fresh(Micros(used[late as usize]), late * 1_000);
        let (next, plan) = step(memory, &l.desired, &sample);
        memory = next;
        for action in &plan.actions {
            match action {
                Action::Pause { .. } => paused = true,
                Action::Resume { .. } => paused = false,
                Action::SetSlice { .. } => {}
            }
        }
    }
    let percent = (used[20_000] - used[10_000]) as f64 / 1e5;
    assert!((28.0..=30.5).contains(&percent), "{percent}");
}

#[test]
fn measured_shares_feed_back() {
    // The hardware gives `a` 5 % more of its slice than it was told to.
    let mut l = Little::new(&[("a", "", &[true]), ("b", "", &[true])]);
    let mut at = 0;
    let mut last = 0.0;
    while at < 40 * SECOND {
        let [a, b] = [l.groups[0].slice as f64 * 1.1, l.groups[1].slice as f64];
        last = a / (a + b);
        l.groups[0].used += (50_000.0 * last) as u64;
        l.groups[1].used += (50_000.0 * (1.0 - last)) as u64;
        at += 50_000;
        l.at = at;
        l.step();
    }
    assert!((last - 0.5).abs() < 0.01, "{last}");
    let actions = l.actions;
    assert!(actions < 12, "{actions}");
}

#[test]
fn what_was_used_before_is_not_held_against_a_share() {
    // `a` had the GPU to itself, and that becomes known only after `b` came.
    let mut l = Little::new(&[("a", "", &[true])]);
    let (mut memory, mut used, mut slices) = (Memory::default(), [0u64; 2], [2048; 2]);
    for step_at in 0..400u64 {
        let at = step_at * 50_000;
        l.at = at;
        if at == SECOND {
            l.add("b", true);
        }
        let shared = at > SECOND;
        used[0] += if shared { 25_000 } else { 50_000 };
        used[1] += if shared { 25_000 } else { 0 };
        let mut sample = l.sample();
        let settled = at >= SECOND + 300_000;
        for (i, group) in sample.gpus[0].groups.iter_mut().enumerate() {
            group.slice = fresh(Micros(slices[i]), at);
            group.used = match (i, settled) {
                (0, false) => fresh(Micros(0), 0),
                _ => fresh(Micros(used[i]), at),
            };
        }
        let (next, plan) = step(memory, &l.desired, &sample);
        memory = next;
        for action in plan.actions {
            if let Action::SetSlice { group, slice, .. } = action {
                slices[group.0 as usize] = slice.0;
            }
        }
    }
    assert_eq!(slices[0], slices[1]);
}

#[test]
fn one_that_only_began_is_not_held_back() {
    // `b` makes its context, which looks like work, and has some only a while later.
    let mut l = Little::new(&[("a", "", &[true]), ("b", "", &[true])]);
    for step_at in 0..400u64 {
        let at = step_at * 50_000;
        let b = if at < 700_000 { 4_000 } else { 25_000 };
        l.groups[0].used += 50_000 - b;
        l.groups[1].used += b;
        l.at = at;
        l.step();
    }
    let slices = l.slices();
    assert_eq!(slices[0], slices[1]);
}

#[test]
fn one_without_enough_work_is_not_corrected() {
    let mut l = Little::new(&[("a", "", &[true]), ("b", "", &[true])]);
    l.run(100_000);
    let slices = l.slices();
    for _ in 0..400 {
        l.at += 50_000;
        l.groups[0].used += 10_000;
        l.groups[1].used += 40_000;
        l.step();
    }
    assert_eq!(l.slices(), slices);
}

#[test]
fn use_outlives_groups() {
    let mut l = Little::new(&[("t/a", "", &[true, true])]);
    l.run(SECOND);
    l.groups.pop();
    l.run(SECOND);
    let stat = l.stat("t");
    assert_eq!(stat.usage_usec.0, 2 * SECOND);
    assert_eq!(stat.usage_ratio, Some(1.0));
    l.groups.clear();
    l.run(SECOND);
    assert_eq!(l.stat("t/a").usage_usec.0, 2 * SECOND);
    assert_eq!(l.stat("t/a").usage_ratio, Some(0.0));
    l.desired.containers.clear();
    l.step();
    assert!(l.memory.stats().is_empty());
}

#[test]
fn what_a_tenant_changed_is_set_again_and_what_failed_tried_again() {
    let mut l = Little::new(&[("a", "", &[true]), ("b", "ghost.freeze=1", &[true])]);
    l.run(100_000);
    let slice = l.slices()[0];
    l.groups[0].slice = 60_000;
    l.groups[1].paused = false;
    l.run(50_000);
    assert_eq!(l.slices()[0], slice);
    assert!(l.groups[1].paused);
}

#[test]
fn a_slice_that_cannot_be_read_is_set_once_a_second() {
    let mut l = Little::new(&[("a", "", &[true])]);
    let mut memory = Memory::default();
    let mut actions = 0;
    for at in (0..3 * SECOND).step_by(50_000) {
        l.at = at;
        let mut sample = l.sample();
        sample.gpus[0].groups[0].slice = Reading::Missing;
        let (next, plan) = step(memory, &l.desired, &sample);
        memory = next;
        actions += plan.actions.len();
    }
    assert_eq!(actions, 3);
}

#[test]
fn per_gpu_values_hold_on_their_gpu() {
    let mut l = Little::new(&[("a", "", &[true]), ("b", "", &[true])]);
    let weight = ghost_model::Value::parse(ghost_model::Key::Weight, "300").unwrap();
    let a = l.desired.containers.get_mut(&name("a")).unwrap();
    a.set(ghost_model::Key::Weight, Some(gpu()), weight)
        .unwrap();
    l.step();
    assert_eq!(l.slices(), [22_500, 7_500]);
    let other = ghost_model::Sample {
        at: Micros(1),
        gpus: vec![ghost_model::GpuSample {
            memory: std::collections::BTreeMap::new(),
            gpu: "GPU-other".parse().unwrap(),
            groups: vec![
                group_sample(1, &name("a"), 1),
                group_sample(2, &name("b"), 1),
            ],
        }],
    };
    let (_, plan) = step(Memory::default(), &l.desired, &other);
    let equal = |a: &Action| matches!(a, Action::SetSlice { slice, .. } if slice.0 == 15_000);
    assert_eq!(plan.actions.iter().filter(|a| equal(a)).count(), 2);
}

#[test]
fn memory_saved_and_read_back_is_the_same() {
    let mut l = Little::new(&[
        ("t/a", "gpu.max=30%", &[true, false]),
        ("i", "gpu.idle=1", &[true]),
        ("web", "gpu.latency=target=400", &[true]),
    ]);
    l.run(2 * SECOND + 1234);
    let saved = serde_json::to_string(&l.memory).unwrap();
    assert_eq!(serde_json::from_str::<Memory>(&saved).unwrap(), l.memory);
}

#[test]
fn a_clock_that_begins_anew_keeps_what_was_counted() {
    let mut l = Little::new(&[("a", "gpu.max=30%", &[true])]);
    l.run(SECOND);
    l.groups[0].used = 0;
    l.groups[0].paused = false;
    l.at = 7;
    l.step();
    assert_eq!(l.stat("a").usage_usec.0, 300_000);
    assert_near(l.shares(SECOND, ["a"]), [30.0], 0.5);
    assert!(l.stat("a").nr_periods >= 19);
}

#[test]
fn a_budget_of_a_latency_container_does_not_stir_its_neighbours() {
    let web = "gpu.latency=target=400;gpu.max=10%";
    let mut l = Little::new(&[("web", web, &[true]), ("a", "", &[true])]);
    l.run(2 * SECOND);
    let actions = l.actions;
    l.run(SECOND);
    assert_eq!(l.actions - actions, 20, "a pause and a resume each period");
    assert_eq!(l.slices(), [10_000, 200]);
}
