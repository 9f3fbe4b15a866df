//! What loads send to the simulator, and what it does then.

use ghost_backend::sim::wire::{Progress, Request, Response};
use ghost_backend::sim::{Config, Sim};
use ghost_model::{Micros, ProcId};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

/// Groups that run: more say nothing new.
const MAX_GROUPS: usize = 4;

/// Lines of requests, done one after the other on a GPU, and of answers.
pub fn sim_wire(data: &[u8]) {
    let sim = Sim::new(Config::default());
    let process = ProcId { pid: 7, start: 1 };
    let mut groups = Vec::new();
    for (line, now) in data.split(|&b| b == b'\n').take(16).zip(1..) {
        same::<Response>(line);
        match same::<Request>(line) {
            Some(Request::Hello(hello)) if groups.len() < MAX_GROUPS => {
                let group = sim.spawn(process, 0, hello.load());
                // Any refusal is as good.
                let _ = group.map(|id| sim.allocate(id, hello.memory));
                groups.extend(group.map(|id| (id, 0)));
            }
            Some(Request::Slice { us }) => {
                groups
                    .iter()
                    .for_each(|&(id, _)| sim.tamper(id, Micros(us)));
            }
            Some(Request::Progress) => {
                let mut progress = Progress::default();
                for (id, known) in &mut groups {
                    let group = sim.group(*id).expect("nobody closed it");
                    progress.add(&group, known);
                }
                assert!(progress.used_us <= sim.now().0, "{progress:?}");
            }
            _ => {}
        }
        sim.advance(Micros(now * 3000));
    }
}

fn same<T: Serialize + for<'a> Deserialize<'a> + PartialEq + Debug>(line: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(line).ok()?;
    let printed = serde_json::to_vec(&message).expect("no map has keys of another type");
    assert_eq!(
        serde_json::from_slice::<T>(&printed).ok().as_ref(),
        Some(&message)
    );
    Some(message)
}
