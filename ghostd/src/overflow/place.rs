//! Where a program of a container computes: here, or on which peer.

use super::look::Looks;
use super::room;
use crate::control::Observed;
use crate::core::{Catalog, Entry};
use ghost_model::report::{Look, PeerGpu, Placement};
use ghost_model::value::Limit;
use ghost_model::{Bytes, Key, Kind, Problem, Value};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// What a program is taken to need at least, where its container says no more: a CUDA context has
/// some hundred MiB before it has computed anything.
const CONTEXT: Bytes = Bytes(1 << 30);
/// Peers this much farther than twice the nearest are no nearer than others to programs.
const SLACK_USEC: u64 = 200;

/// What a container needs, and what there is for it on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// On a GPU of a peer.
    there: Bytes,
    /// What is free on the GPU of this host that has the most; `None`: there is no GPU for it.
    here: Option<Bytes>,
    /// Whether it fits on one here.
    pub(super) fits: bool,
}

impl Need {
    /// A container needs the room that its `gpu.memory.max` leaves it yet.
    pub(super) fn of(entry: &Entry, catalog: &Catalog, now: &Observed) -> Need {
        let spec = entry.spec();
        let used = now.containers.get(&entry.name);
        let spaces = room::of(&entry.name, catalog, now);
        let fits = spaces.iter().any(|(gpu, space)| {
            let used = used.and_then(|seen| seen.memory.get(gpu)).copied();
            let max = spec.memory(Key::MemoryMax, gpu);
            let left = max.map(|max| max.0.saturating_sub(used.unwrap_or_default().0));
            let least = max.unwrap_or(CONTEXT).min(CONTEXT);
            space.free >= left.unwrap_or_default().max(least.0)
        });
        let there = match spec.get(Key::MemoryMax, None) {
            Some(Value::Limit(Limit::At(max))) => *max,
            _ => CONTEXT,
        };
        Need {
            there,
            here: spaces.iter().map(|(_, space)| Bytes(space.free)).max(),
            fits,
        }
    }
}

/// Work that does not fit here goes to a peer where it does, or stays.
pub(super) fn auto(need: &Need, peers: &Looks, drained: &BTreeSet<String>) -> Placement {
    if need.fits {
        return Placement::default();
    }
    let here = match need.here {
        Some(free) => format!("{} are free here", free.human()),
        None => "it may use no GPU here".to_owned(),
    };
    let wanted = need.there.human();
    match best(peers, drained, need.there, true) {
        Ok(peer) => Placement {
            on: Some(peer.to_owned()),
            why: Some(format!("{here}, {wanted} are wanted")),
        },
        Err(others) => Placement {
            on: None,
            why: Some(format!(
                "{here}, {wanted} are wanted, and no peer has them: {}",
                listed(&others)
            )),
        },
    }
}

/// Work goes to a peer, whatever is free here.
///
/// # Errors
/// No peer takes it.
pub(super) fn always(
    need: &Need,
    peers: &Looks,
    drained: &BTreeSet<String>,
) -> Result<Placement, Problem> {
    match best(peers, drained, need.there, false) {
        Ok(peer) => Ok(Placement {
            on: Some(peer.to_owned()),
            why: Some("it is the best of the peers now".to_owned()),
        }),
        Err(others) => {
            let detail = format!("always, and no peer takes it: {}", listed(&others));
            let hint = if others.is_empty() {
                "ghostctl peer add NAME HOST:PORT --token-file FILE --fingerprint SHA256"
            } else {
                "ghostctl peer list"
            };
            Err(Problem::field(Kind::Unavailable, Key::Overflow, detail).hint(hint))
        }
    }
}

fn listed(refusals: &[String]) -> String {
    match refusals {
        [] => "there is none".to_owned(),
        some => some.join("; "),
    }
}

/// The best peer for a need, or why none is, a peer each: with room, where that `must` be, near,
/// little used, with much room, in this order.
fn best<'a>(
    peers: &'a Looks,
    drained: &BTreeSet<String>,
    need: Bytes,
    must: bool,
) -> Result<&'a str, Vec<String>> {
    let mut refusals = Vec::new();
    let mut all: Vec<(&str, u64, &PeerGpu)> = Vec::new();
    for (name, look) in peers.iter() {
        match candidate(look).and_then(|(rtt, gpu)| match gpu.memory_free {
            _ if drained.contains(name) => Err("it is drained".to_owned()),
            free if must && free < need => Err(format!("{} are free", free.human())),
            _ => Ok((name.as_str(), rtt, gpu)),
        }) {
            Ok(candidate) => all.push(candidate),
            Err(why) => refusals.push(format!("{name}: {why}")),
        }
    }
    let nearest = all.iter().map(|(_, rtt, _)| *rtt).min().unwrap_or(0);
    let near = nearest.saturating_mul(2).saturating_add(SLACK_USEC);
    let rank = |(name, rtt, gpu): &(&'a str, u64, &PeerGpu)| {
        let (full, free) = (gpu.memory_free < need, Reverse(gpu.memory_free));
        (full, *rtt > near, gpu.busy_percent / 10, free, *name)
    };
    let best = all.iter().min_by_key(|one| rank(one));
    best.map(|(name, ..)| *name).ok_or(refusals)
}

/// How far a peer is that can take a program, and its GPU with the most room.
fn candidate(look: &Look) -> Result<(u64, &PeerGpu), String> {
    match look {
        Look::Failed { reason } => Err(reason.clone()),
        Look::Reached { sessions: 0, .. } => Err("it takes no more processes".to_owned()),
        Look::Reached { rtt_usec, gpus, .. } => {
            let roomiest = gpus.iter().max_by_key(|gpu| gpu.memory_free);
            let none = || "it shares no GPU".to_owned();
            roomiest.map(|gpu| (*rtt_usec, gpu)).ok_or_else(none)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn reached(rtt_usec: u64, sessions: u32, gpus: &[(u64, u8)]) -> Look {
        let gpu = |(free, busy_percent): &(u64, u8)| PeerGpu {
            name: "test".into(),
            memory_total: Bytes(80 << 30),
            memory_free: Bytes(free << 30),
            busy_percent: *busy_percent,
        };
        Look::Reached {
            rtt_usec,
            sessions,
            gpus: gpus.iter().map(gpu).collect(),
        }
    }

    fn peers(all: &[(&str, Look)]) -> Looks {
        let all = all
            .iter()
            .map(|(name, look)| ((*name).to_owned(), look.clone()));
        Arc::new(all.collect::<BTreeMap<_, _>>())
    }

    fn need(there: u64, here: Option<u64>, fits: bool) -> Need {
        Need {
            there: Bytes(there << 30),
            here: here.map(|free| Bytes(free << 30)),
            fits,
        }
    }

    fn chosen(all: &[(&str, Look)]) -> Option<String> {
        auto(&need(8, Some(2), false), &peers(all), &BTreeSet::new()).on
    }

    #[test]
    fn what_fits_here_stays_here() {
        let big = peers(&[("big", reached(100, 9, &[(70, 0)]))]);
        let stays = auto(&need(8, Some(9), true), &big, &BTreeSet::new());
        assert_eq!(stays, Placement::default());
        let goes = auto(&need(8, Some(2), false), &big, &BTreeSet::new());
        let want = "2.0G are free here, 8.0G are wanted";
        assert_eq!(
            (goes.on.as_deref(), goes.why.as_deref()),
            (Some("big"), Some(want))
        );
        let goes = auto(&need(1, None, false), &big, &BTreeSet::new());
        assert!(goes.why.unwrap().starts_with("it may use no GPU here"));
    }

    #[test]
    fn the_nearest_with_room_that_is_least_used_is_best() {
        let full = ("full", reached(100, 9, &[(7, 0)]));
        let far = ("far", reached(5000, 9, &[(70, 0)]));
        let busy = ("busy", reached(300, 9, &[(70, 95)]));
        let idle = ("idle", reached(100, 9, &[(1, 0), (9, 12)]));
        let crowded = ("crowded", reached(100, 0, &[(70, 0)]));
        let all = [full, far, busy, idle, crowded];
        for (n, want) in [(5, "idle"), (3, "busy"), (2, "far")] {
            assert_eq!(chosen(&all[..n]).as_deref(), Some(want));
        }
        assert_eq!(chosen(&all[..1]), None);
        // A few percent of use and microseconds of way are noise; more room is not.
        let a = ("a", reached(100, 9, &[(20, 3)]));
        let b = ("b", reached(350, 9, &[(30, 0)]));
        assert_eq!(chosen(&[a, b]).as_deref(), Some("b"));
    }

    #[test]
    fn why_nobody_takes_it_is_said_of_each() {
        let down = Look::Failed {
            reason: "it is down".into(),
        };
        let all = peers(&[
            ("down", down),
            ("full", reached(100, 9, &[(7, 0)])),
            ("none", reached(100, 9, &[])),
            ("out", reached(100, 9, &[(70, 0)])),
        ]);
        let drained = BTreeSet::from(["out".to_owned()]);
        let need = need(8, Some(2), false);
        let stays = auto(&need, &all, &drained);
        assert_eq!(stays.on, None);
        assert_eq!(
            stays.why.unwrap(),
            "2.0G are free here, 8.0G are wanted, and no peer has them: down: it is down; full: \
             7.0G are free; none: it shares no GPU; out: it is drained"
        );
        // Always: room is asked for only where there is a choice.
        assert_eq!(
            always(&need, &all, &drained).unwrap().on.as_deref(),
            Some("full")
        );
        let why = always(&need, &peers(&[]), &drained).unwrap_err();
        assert_eq!(why.kind, Kind::Unavailable);
        assert!(why.detail.contains("there is none"), "{why}");
    }

    proptest! {
        #[test]
        fn who_is_chosen_can_take_it(
            all in prop::collection::btree_map("[a-d]", (0..9000u64, 0..3u32, prop::collection::vec((0..80u64, 0..=100u8), 0..3)), 0..4),
            wanted in 1..80u64,
            out in prop::collection::btree_set("[a-d]", 0..3),
        ) {
            let looks: BTreeMap<String, Look> = all
                .iter()
                .map(|(name, (rtt, sessions, gpus))| (name.clone(), reached(*rtt, *sessions, gpus)))
                .collect();
            let fits = |name: &String| all.get(name).is_some_and(|(_, sessions, gpus)| {
                *sessions > 0 && !out.contains(name) && gpus.iter().any(|(free, _)| *free >= wanted)
            });
            let placed = auto(&need(wanted, Some(0), false), &Arc::new(looks), &out);
            match placed.on {
                Some(name) => prop_assert!(fits(&name)),
                None => prop_assert!(!all.keys().any(fits)),
            }
        }
    }
}
