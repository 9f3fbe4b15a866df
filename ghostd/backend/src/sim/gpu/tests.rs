use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const MS: Load = Load::Backlog {
    kernel: Micros(1000),
};

/// Groups of the given slices and loads on a GPU of default costs, after `seconds`.
fn after(seconds: u64, groups: &[(u64, Load)]) -> Gpu {
    let mut gpu = Gpu::new(Params::default(), Micros(7));
    for (id, &(slice, load)) in (0..).zip(groups) {
        gpu.add(GroupId(id), Micros(slice));
        gpu.set_load(GroupId(id), load);
    }
    gpu.advance(Micros(7 + seconds * SECOND));
    gpu
}

/// Part of the time that each group computed.
fn shares(gpu: &Gpu, seconds: u64) -> Vec<f64> {
    let all = gpu.groups();
    all.map(|(_, g)| g.used().as_secs_f64() / seconds as f64)
        .collect()
}

/// Median and 99th percentile of a group's latencies, milliseconds.
fn latency(gpu: &Gpu, id: u64) -> (f64, f64) {
    let group = gpu.group(GroupId(id)).unwrap();
    let mut all: Vec<_> = group.latencies().iter().map(|l| l.0).collect();
    all.sort_unstable();
    let at = |part: usize| all[all.len() * part / 100] as f64 / 1000.0;
    (at(50), at(99))
}

#[test]
fn shares_and_losses_are_those_of_an_h200() {
    // Slices, the share of the first among both, the sum against alone; the last number is how
    // far the sum may be off: short slices cost a real GPU a little more than a switch.
    for (a, b, share, sum, off) in [
        (2048, 2048, 0.502, 0.907, 0.01),
        (500, 500, 0.502, 0.70, 0.03),
        (1000, 1000, 0.501, 0.83, 0.015),
        (7000, 3000, 0.703, 0.962, 0.01),
        (9000, 1000, 0.903, 0.964, 0.01),
        (3000, 1000, 0.754, 0.912, 0.01),
        (1000, 4000, 0.198, 0.92, 0.02),
        (14000, 6000, 0.701, 0.979, 0.01),
        (35000, 15000, 0.699, 0.987, 0.01),
        (97000, 3000, 0.970, 0.998, 0.01),
    ] {
        let gpu = after(20, &[(a, MS), (b, MS)]);
        let s = shares(&gpu, 20);
        let all = s[0] + s[1];
        assert!((all - sum).abs() <= off, "{a}/{b}: sum {all}, not {sum}");
        let first = s[0] / all;
        assert!((first - share).abs() < 0.01, "{a}/{b}: share {first}");
        let kernels = gpu.group(GroupId(0)).unwrap().completed() as f64;
        assert!((kernels - s[0] * 20_000.0).abs() <= 1.0);
    }
}

#[test]
fn many_groups_get_what_their_slices_say() {
    let gpu = after(
        20,
        &[(2500, MS), (2500, MS), (2500, MS), (2500, MS), (10000, MS)],
    );
    let s = shares(&gpu, 20);
    let all: f64 = s.iter().sum();
    assert!((all - 0.949).abs() < 0.01, "{all}");
    assert!((s[4] / all - 0.5).abs() < 0.01);

    let slices = [1, 2, 3, 5, 8, 13, 21, 34].map(|n| (n * 1000, MS));
    let s = shares(&after(60, &slices), 60);
    let all: f64 = s.iter().sum();
    assert!((all - 0.989).abs() < 0.01, "{all}");
    for (&(slice, _), share) in slices.iter().zip(s) {
        assert!((share / all - slice as f64 / 87_000.0).abs() < 0.003);
    }
}

#[test]
fn kernels_are_preempted_whatever_their_length() {
    let short = Load::Backlog {
        kernel: Micros(100),
    };
    let long = Load::Backlog {
        kernel: Micros(20_000),
    };
    for (a, b, want) in [(10_000, 10_000, 0.5), (10_000, 30_000, 0.25)] {
        let s = shares(&after(20, &[(a, short), (b, long)]), 20);
        assert!((s[0] / (s[0] + s[1]) - want).abs() < 0.01, "{s:?}");
    }
}

#[test]
fn alone_nothing_is_lost_and_nothing_switched() {
    let gpu = after(10, &[(2048, MS), (2048, Load::Idle)]);
    let group = gpu.group(GroupId(0)).unwrap();
    assert_eq!(group.completed(), 10_000);
    assert_eq!(group.used(), Micros(10 * SECOND));
    assert_eq!(group.switches(), 1);
}

#[test]
fn a_zero_slice_stops_a_group_and_still_costs_switches() {
    let s = shares(&after(10, &[(2000, MS), (0, MS)]), 10);
    assert!((s[0] - 0.84).abs() < 0.01, "{}", s[0]);
    assert_eq!(s[1], 0.0);
    let alone = after(10, &[(0, MS)]);
    assert_eq!(alone.group(GroupId(0)).unwrap().completed(), 0);
}

#[test]
fn disables_nest_and_cost_the_others_nothing() {
    let mut gpu = after(0, &[(2048, MS), (2048, MS)]);
    let b = GroupId(1);
    gpu.disable(b);
    gpu.disable(b);
    gpu.advance(Micros(7 + SECOND));
    assert_eq!(gpu.group(GroupId(0)).unwrap().completed(), 1000);
    assert!(gpu.enable(b));
    gpu.advance(Micros(7 + 2 * SECOND));
    assert_eq!(gpu.group(b).unwrap().used(), Micros::ZERO);
    assert!(gpu.enable(b));
    assert!(!gpu.enable(b), "it is not disabled any more");
    gpu.advance(Micros(7 + 3 * SECOND));
    assert!(gpu.group(b).unwrap().completed() > 400);
}

#[test]
fn latency_beside_long_kernels_follows_the_neighbours_slice() {
    let load = Load::Backlog {
        kernel: Micros(20_000),
    };
    let kernel = Load::Periodic {
        kernel: Micros(100),
        period: Micros(5000),
    };
    let alone = latency(&after(20, &[(2048, kernel)]), 0);
    assert_eq!(alone, (0.132, 0.132));
    for (slice, p50, p99) in [
        (2048, 1.386, 2.51),
        (500, 0.575, 0.952),
        (200, 0.414, 0.595),
        (100, 0.365, 0.515),
        (50, 0.337, 0.826),
        (0, 0.305, 0.398),
    ] {
        let (median, high) = latency(&after(20, &[(2048, kernel), (slice, load)]), 0);
        assert!((median - p50).abs() < 0.05, "{slice}: p50 {median}");
        // The real tail has stalls of the host in it, which the model has not.
        assert!(high < p99 + 0.03, "{slice}: p99 {high}");
    }
    let mut gpu = after(0, &[(2048, kernel), (2048, load)]);
    gpu.disable(GroupId(1));
    gpu.advance(Micros(20 * SECOND));
    assert_eq!(latency(&gpu, 0).1, 0.132);
}

#[test]
fn finite_and_duty_loads_end_when_they_should() {
    let gpu = after(
        1,
        &[(
            2048,
            Load::Finite {
                kernel: Micros(300),
                count: 7,
            },
        )],
    );
    let group = gpu.group(GroupId(0)).unwrap();
    assert_eq!((group.completed(), group.used()), (7, Micros(2100)));
    assert!(!group.has_work());

    // 10 ms on make four kernels of 3 ms, the last of which is finished after the end.
    let duty = Load::Duty {
        kernel: Micros(3000),
        on: Micros(10_000),
        off: Micros(10_000),
    };
    let gpu = after(1, &[(2048, duty)]);
    assert_eq!(gpu.group(GroupId(0)).unwrap().completed(), 4 * 50);
}

#[test]
fn a_new_slice_is_in_force_at_once_and_preemption_ends_one() {
    let mut gpu = after(0, &[(1_000_000, MS), (1000, MS)]);
    let used = |gpu: &Gpu| gpu.group(GroupId(1)).unwrap().used();
    gpu.advance(Micros(7 + 100_000));
    assert_eq!(used(&gpu), Micros::ZERO);
    gpu.set_slice(GroupId(0), Micros(1000));
    gpu.advance(Micros(7 + 110_000));
    assert!(used(&gpu) > Micros(2000));

    let mut gpu = after(0, &[(1_000_000, MS), (1000, MS)]);
    gpu.advance(Micros(7 + 5000));
    gpu.preempt(GroupId(0));
    gpu.advance(Micros(7 + 7000));
    assert_eq!(used(&gpu), Micros(1000));
}

fn load() -> impl Strategy<Value = Load> {
    let time = || (0u64..5000).prop_map(Micros);
    prop_oneof![
        Just(Load::Idle),
        time().prop_map(|kernel| Load::Backlog { kernel }),
        (time(), time()).prop_map(|(kernel, period)| Load::Periodic { kernel, period }),
        (time(), time(), time()).prop_map(|(kernel, on, off)| Load::Duty { kernel, on, off }),
        (time(), 0u64..50).prop_map(|(kernel, count)| Load::Finite { kernel, count }),
    ]
}

proptest! {
    #[test]
    fn time_is_never_made_and_how_the_clock_moves_changes_nothing(
        groups in proptest::collection::vec((0u64..5000, load(), 0u32..2), 0..6),
        switch in 0u64..300,
        steps in proptest::collection::vec(0u64..20_000, 1..20),
    ) {
        let params = Params { switch: Micros(switch), launch: Micros(32) };
        let mut gpu = Gpu::new(params, Micros(0));
        for (id, &(slice, load, disables)) in (0..).zip(&groups) {
            gpu.add(GroupId(id), Micros(slice));
            gpu.set_load(GroupId(id), load);
            for _ in 0..disables {
                gpu.disable(GroupId(id));
            }
        }
        let mut stepped = gpu.clone();
        for step in &steps {
            stepped.advance(Micros(stepped.now().0 + step));
        }
        gpu.advance(stepped.now());
        let state = |gpu: &Gpu| -> Vec<_> {
            gpu.groups().map(|(id, g)| (id, g.used(), g.completed(), g.switches())).collect()
        };
        prop_assert_eq!(state(&gpu), state(&stepped));
        let used: u64 = gpu.groups().map(|(_, g)| g.used().0).sum();
        prop_assert!(used <= gpu.now().0);
        for (id, group) in gpu.groups() {
            let (slice, _, disables) = groups[id.0 as usize];
            prop_assert!(group.used() == Micros(0) || (disables == 0 && slice > 0));
        }
    }
}
