//! Backends that fail.

mod common;

use common::{Node, Place, ROOT};
use ghost_backend::sim::{self, Sim, SimBackend};
use ghost_backend::{Backend, Event, Failure};
use ghost_model::report::Process;
use ghost_model::{Action, Capabilities, GpuInfo, Members, Sample};
use ghostd::daemon::{Daemon, DaemonError, Sockets};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What is broken now.
#[derive(Clone, Default)]
struct Switches {
    refuses: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

/// A simulated GPU behind switches.
struct Faulty(SimBackend, Switches);

impl Backend for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn gpus(&mut self) -> Vec<GpuInfo> {
        self.0.gpus()
    }
    fn set_members(&mut self, members: &Members) {
        self.0.set_members(members);
    }
    fn sample(&mut self) -> Sample {
        assert!(!self.1.panics.load(Relaxed), "the test wants a panic");
        self.0.sample()
    }
    fn apply(&mut self, actions: &[Action]) -> Vec<Failure> {
        if self.1.refuses.load(Relaxed) {
            let fail = |action: &Action| Failure {
                action: action.clone(),
                cause: "the test refuses".into(),
            };
            return actions.iter().map(fail).collect();
        }
        self.0.apply(actions)
    }
    fn processes(&mut self) -> Vec<Process> {
        self.0.processes()
    }
    fn events(&mut self) -> Vec<Event> {
        self.0.events()
    }
}

fn start(place: &Place) -> (Node, Switches) {
    let sim = Sim::real_time(sim::Config::default());
    let switches = Switches::default();
    let backend = Faulty(sim.backend(), switches.clone());
    let daemon = Daemon::start(
        &place.config(""),
        Sockets::default(),
        || Ok::<_, DaemonError>(backend),
        || (),
    );
    (Node::of(daemon.unwrap(), sim), switches)
}

#[tokio::test]
async fn what_cannot_be_applied_is_not_called_in_force() {
    let place = Place::new();
    let (node, switches) = start(&place);
    let path = "/v1/containers/a";
    node.create("a", json!({})).await;
    let member = common::Member::start();
    member.works_on(&node.sim, 0);
    let pids = json!({"pids": [member.pid()]});
    node.call(ROOT, "PUT", "/v1/containers/a/procs", pids)
        .await
        .ok();
    switches.refuses.store(true, Relaxed);
    let freeze = json!({"spec": {"ghost.freeze": 1}});
    let late = node
        .call(ROOT, "PATCH", "/v1/containers/a?wait=300ms", freeze)
        .await
        .ok();
    assert_eq!(late["generation"], 2);
    assert_eq!(late["status"]["observed_generation"], 1);
    assert_eq!(late["status"]["ghost.events"]["frozen"], 0);
    assert_eq!(late["status"]["state"], "running");
    let shown = node.until(path, "the failure is shown", |c| {
        c["status"]["notes"]
            .to_string()
            .contains("the test refuses")
    });
    shown.await;
    let problems = node.get("/v1/node").await["problems"].to_string();
    assert!(problems.contains("the test refuses"), "{problems}");
    let metrics = node.call(ROOT, "GET", "/metrics", "").await.text;
    assert!(!metrics.contains("ghost_loop_errors_total{reason=\"apply\"} 0\n"));
    switches.refuses.store(false, Relaxed);
    node.until(path, "it is in force", |c| {
        c["status"]["observed_generation"] == 2
    })
    .await;
    node.until("/v1/node", "the failure is forgotten", |n| {
        n["problems"] == json!([])
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn a_loop_that_panics_ends_the_daemon() {
    let place = Place::new();
    let (node, switches) = start(&place);
    node.create("a", json!({"gpu.weight": 7})).await;
    switches.panics.store(true, Relaxed);
    let failed = tokio::time::timeout(Duration::from_secs(30), node.daemon.failed());
    assert!(matches!(failed.await, Ok(DaemonError::Ended("control"))));
    assert!(matches!(
        node.daemon.stop().await,
        Err(DaemonError::Ended("control"))
    ));
    let node = Node::start(&place);
    assert_eq!(node.get("/v1/containers/a").await["spec"]["gpu.weight"], 7);
    node.stop().await;
}
