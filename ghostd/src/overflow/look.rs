//! What peers have free. They are asked when somebody wants to know: all at once, and once a second
//! at most, whoever asks.

use ghost_link::ConnectError;
use ghost_model::Bytes;
use ghost_model::name::sanitize;
use ghost_model::report::{Look, PeerGpu};
use ghost_wire::hello::{Room, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout_at};

/// A peer that has not answered by then has failed.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(1);

/// What was seen of all peers, by name.
pub(super) type Looks = Arc<BTreeMap<String, Look>>;

type Answer = oneshot::Receiver<Look>;

/// Asks peers.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    /// Held while peers are asked, so that who comes meanwhile gets the same answers.
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    at: Option<Instant>,
    /// Who was asked.
    ways: Vec<(String, Ticket)>,
    looks: Looks,
    /// Questions that are still out, one a peer at most: a resolver may take its time.
    out: BTreeMap<String, Answer>,
}

impl std::fmt::Debug for Last {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Last").field("looks", &self.looks).finish()
    }
}

impl Lookout {
    /// What those have to whom these are the ways. Peers are asked to the end, also for a caller
    /// that goes away: who comes and goes must not have them asked each time.
    pub(super) async fn look(self: &Arc<Self>, ways: Vec<(String, Ticket)>) -> Looks {
        let this = self.clone();
        let looks = tokio::spawn(async move { this.ask_all(ways).await });
        looks.await.unwrap_or_default()
    }

    async fn ask_all(&self, ways: Vec<(String, Ticket)>) -> Looks {
        let mut last = self.last.lock().await;
        if last.ways == ways && last.at.is_some_and(|at| at.elapsed() < HOLDS) {
            return last.looks.clone();
        }
        let mut out = std::mem::take(&mut last.out);
        // An answer that is there by now is too old, and one of another address is none.
        let same = |way: &(String, Ticket)| ways.contains(way);
        let asked_so: BTreeSet<&String> = last
            .ways
            .iter()
            .filter(|way| same(way))
            .map(|(name, _)| name)
            .collect();
        out.retain(|name, answer| {
            asked_so.contains(name) && answer.is_empty() && !answer.is_terminated()
        });
        let asked: Vec<(String, Answer)> = ways
            .iter()
            .map(|(name, way)| {
                let answer = out.remove(name).unwrap_or_else(|| ask(way.clone()));
                (name.clone(), answer)
            })
            .collect();
        let until = Instant::now() + PATIENCE;
        let mut looks = BTreeMap::new();
        for (name, mut answer) in asked {
            let look = match timeout_at(until, &mut answer).await {
                Ok(Ok(look)) => look,
                Ok(Err(_)) => failed("it could not be asked: ghostd has no thread left"),
                Err(_) => {
                    out.insert(name.clone(), answer);
                    failed(format!("it does not answer within {PATIENCE:?}"))
                }
            };
            looks.insert(name, look);
        }
        *last = Last {
            at: Some(Instant::now()),
            ways,
            looks: Arc::new(looks),
            out,
        };
        last.looks.clone()
    }
}

/// Asks a peer on a thread of its own, for names are resolved for as long as that takes.
fn ask(way: Ticket) -> Answer {
    let (tell, answer) = oneshot::channel();
    let question = move || {
        // Nobody may wait any more.
        let _ = tell.send(seen(ghost_link::look(&way, PATIENCE)));
    };
    let thread = std::thread::Builder::new().name("look".to_owned());
    // Without a thread the other end of the channel is gone, which says so.
    drop(thread.spawn(question) as io::Result<_>);
    answer
}

/// What a peer said, made fit to be shown.
fn seen(answer: Result<(Room, Duration), ConnectError>) -> Look {
    let (room, rtt) = match answer {
        Ok(answer) => answer,
        Err(error) => return failed(error.to_string()),
    };
    let gpus = room.gpus.into_iter().map(|space| PeerGpu {
        name: sanitize(&space.name),
        memory_total: Bytes(space.total),
        memory_free: Bytes(space.free.min(space.total)),
        busy_percent: space.busy.min(100),
    });
    Look::Reached {
        rtt_usec: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
        sessions: room.sessions,
        gpus: gpus.collect(),
    }
}

fn failed(reason: impl AsRef<str>) -> Look {
    Look::Failed {
        reason: sanitize(reason.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[tokio::test]
    async fn who_comes_and_goes_has_a_peer_asked_once() {
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Ticket {
            address: mute.local_addr().unwrap().to_string(),
            ..Ticket::default()
        };
        let ways = vec![("mute".to_owned(), way)];
        let lookout = Arc::new(Lookout::default());
        for _ in 0..5 {
            let gone = lookout.look(ways.clone());
            let gone = tokio::time::timeout(Duration::from_millis(20), gone).await;
            assert!(gone.is_err(), "it is mute");
        }
        let looks = lookout.look(ways).await;
        assert!(matches!(looks["mute"], Look::Failed { .. }), "{looks:?}");
        mute.set_nonblocking(true).unwrap();
        let asked = std::iter::from_fn(|| mute.accept().ok()).count();
        assert_eq!(asked, 1);
    }
}
