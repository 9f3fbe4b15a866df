use super::*;
use crate::client::{ClientError, Guardian};
use crate::double::{Driver, MemoryStore};
use crate::ledger::{Ledger, tests::BOOT};
use crate::protocol::{FailureKind, Keys, Pause};
use ghost_rm::{Channel, Client, Gpu, Object};
use std::process::Command;
use std::thread::JoinHandle;

const GPU: Gpu = Gpu {
    instance: 0,
    minor: 0,
};

fn channel(object: u32) -> Channel {
    Channel {
        client: Client(1),
        object: Object(object),
    }
}

fn pause(key: &str, object: u32, lease: Duration) -> Pause {
    Pause {
        key: key.into(),
        lease_us: lease.as_micros() as u64,
        gpu: GPU,
        owner: ProcId::of_pid(std::process::id() as i32).unwrap(),
        channels: vec![channel(object)],
    }
}

const LONG: Duration = Duration::from_secs(50);

/// A guardian in a thread, on a driver's double.
struct Running {
    driver: Driver,
    path: PathBuf,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Running {
    fn start(uids: Vec<u32>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = listen(&path).unwrap();
        let driver = Driver::default();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let for_thread = driver.clone();
        let thread = std::thread::spawn(move || {
            let store = MemoryStore(for_thread.clone());
            let (ledger, _) = Ledger::open(store, BOOT).unwrap();
            let pauses = Pauses::recover(for_thread, ledger, Instant::now());
            let mut server = Server::new(listener, uids, pauses, Box::new(|_| {}));
            server.run(stopped.as_fd(), None, || {}).unwrap();
        });
        Self {
            driver,
            path,
            stop,
            thread: Some(thread),
            _dir: dir,
        }
    }

    fn usual() -> Self {
        Self::start(vec![nix::unistd::getuid().as_raw()])
    }

    fn connect(&self) -> Guardian {
        Guardian::connect(&self.path, Duration::from_secs(5)).unwrap()
    }

    fn count(&self, object: u32) -> i64 {
        self.driver.count(GPU, channel(object))
    }

    /// Waits until `object` runs and says how long that took.
    fn until_runs(&self, object: u32) -> Duration {
        let start = Instant::now();
        while self.count(object) != 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "{object} stays");
            std::thread::sleep(Duration::from_micros(200));
        }
        start.elapsed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"x");
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

#[test]
fn pause_renew_list_resume() {
    let guardian = Running::usual();
    let mut client = guardian.connect();
    assert_eq!(client.ping().unwrap(), env!("CARGO_PKG_VERSION"));
    let outcomes = client
        .pause(vec![pause("a", 1, LONG), pause("b", 2, LONG)])
        .unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.error.is_none()));
    assert_eq!((guardian.count(1), guardian.count(2)), (1, 1));
    let renewed = client.renew(Keys::All, Duration::from_secs(20)).unwrap();
    assert_eq!(renewed.len(), 2);
    let mut other = guardian.connect();
    let listed = other.list().unwrap().pauses;
    assert_eq!(listed.len(), 2);
    assert!(
        listed
            .iter()
            .all(|pause| !pause.own && pause.left_us <= 20_000_000)
    );
    assert!(other.renew(Keys::All, LONG).unwrap().is_empty());
    client.resume(vec!["a".into(), "never".into()]).unwrap();
    assert_eq!((guardian.count(1), guardian.count(2)), (0, 1));
}

#[test]
fn a_client_that_is_gone_has_its_pauses_resumed_at_once() {
    let guardian = Running::usual();
    let mut client = guardian.connect();
    client.pause(vec![pause("a", 1, LONG)]).unwrap();
    let mut other = guardian.connect();
    other.pause(vec![pause("a", 2, LONG)]).unwrap();
    drop(client);
    let took = guardian.until_runs(1);
    assert!(took < Duration::from_millis(100), "{took:?}");
    assert_eq!(guardian.count(2), 1);
}

#[test]
fn a_client_that_hangs_loses_its_pauses_when_the_lease_ends() {
    let guardian = Running::usual();
    let mut client = guardian.connect();
    let lease = Duration::from_millis(60);
    let start = Instant::now();
    client.pause(vec![pause("a", 1, lease)]).unwrap();
    guardian.until_runs(1);
    let lasted = start.elapsed();
    assert!(lasted >= lease, "{lasted:?}");
    // A few ms when the machine is not busy with other tests.
    assert!(lasted < lease + Duration::from_millis(60), "{lasted:?}");
    let late = client.renew(Keys::Some(vec!["a".into()]), LONG).unwrap();
    let kind = late[0].error.as_ref().map(|error| error.kind);
    assert_eq!(kind, Some(FailureKind::NotPaused));
}

#[test]
fn rubbish_is_answered_and_ends_the_connection_alone() {
    let guardian = Running::usual();
    let mut other = guardian.connect();
    other.pause(vec![pause("a", 2, LONG)]).unwrap();
    for rubbish in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        b"GGD\x01\x03\0\0\0{]}",
        b"GGD\x09",
    ] {
        let mut stream = UnixStream::connect(&guardian.path).unwrap();
        let mine = protocol::encode(&Request::Pause(vec![pause("m", 1, LONG)])).unwrap();
        stream.write_all(&mine).unwrap();
        stream.write_all(rubbish).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let (first, taken) = protocol::decode::<Answer>(&bytes).unwrap().unwrap();
        assert!(matches!(first, Answer::Done(_)));
        if rubbish.len() >= 8 {
            let (last, _) = protocol::decode::<Answer>(&bytes[taken..])
                .unwrap()
                .unwrap();
            assert!(matches!(last, Answer::Refused { .. }), "{last:?}");
        }
        guardian.until_runs(1);
    }
    assert_eq!(guardian.count(2), 1);
}

#[test]
fn a_peer_that_stalls_in_a_frame_holds_up_nobody() {
    let guardian = Running::usual();
    let mut stalled = UnixStream::connect(&guardian.path).unwrap();
    let frame = protocol::encode(&Request::Ping).unwrap();
    stalled.write_all(&frame[..frame.len() - 1]).unwrap();
    guardian.connect().ping().unwrap();
}

#[test]
fn a_peer_that_reads_no_answers_is_dropped() {
    let guardian = Running::usual();
    let mut client = UnixStream::connect(&guardian.path).unwrap();
    client
        .set_write_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let batch = (0..9).map(|n| pause(&format!("{n}{}", "k".repeat(200)), 1, LONG));
    let first = protocol::encode(&Request::Pause(batch.collect())).unwrap();
    client.write_all(&first).unwrap();
    let list = protocol::encode(&Request::List).unwrap();
    let gone = (0..100_000).any(|_| client.write_all(&list).is_err());
    assert!(gone);
    guardian.until_runs(1);
}

#[test]
fn strangers_and_crowds_are_refused() {
    let guardian = Running::start(vec![4_000_000]);
    let mut stranger = guardian.connect();
    match stranger.ping() {
        Err(ClientError::Refused { detail, .. }) => assert!(detail.contains("uid"), "{detail}"),
        other => panic!("{other:?}"),
    }
    let guardian = Running::usual();
    let mut clients: Vec<Guardian> = (0..MAX_CLIENTS).map(|_| guardian.connect()).collect();
    for client in &mut clients {
        client.ping().unwrap();
    }
    assert!(matches!(
        guardian.connect().ping(),
        Err(ClientError::Refused { .. })
    ));
    clients.pop();
    // The place is free once the guardian saw the other go.
    let start = Instant::now();
    while guardian.connect().ping().is_err() {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn told_to_stop_it_resumes_everything() {
    let guardian = Running::usual();
    let mut client = guardian.connect();
    client.pause(vec![pause("a", 1, LONG)]).unwrap();
    let driver = guardian.driver.clone();
    drop(guardian);
    assert!(driver.none_disabled());
    assert!(client.ping().is_err());
}

#[test]
fn a_tenant_that_dies_paused_leaves_the_list() {
    let guardian = Running::usual();
    let mut client = guardian.connect();
    let mut tenant = Command::new("sleep").arg("60").spawn().unwrap();
    let of_tenant = Pause {
        owner: ProcId::of_pid(tenant.id() as i32).unwrap(),
        ..pause("a", 1, LONG)
    };
    client.pause(vec![of_tenant.clone()]).unwrap();
    tenant.kill().unwrap();
    tenant.wait().unwrap();
    let start = Instant::now();
    while !client.list().unwrap().pauses.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    let again = client.pause(vec![of_tenant]).unwrap();
    let kind = again[0].error.as_ref().map(|error| error.kind);
    assert_eq!(kind, Some(FailureKind::OwnerGone));
}
