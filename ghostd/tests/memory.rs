//! Limits of memory, from what is asked for to what people see, on simulated GPUs.

mod common;

use common::{Answer, Member, Node, Place, ROOT};
use ghost_backend::sim::{self, Sim};
use ghost_model::{Bytes, GroupId};
use serde_json::{Value as Json, json};

const G: u64 = 1 << 30;
/// What a simulated context takes.
const CONTEXT: u64 = 520 << 20;

async fn attach(node: &Node, container: &str, member: &Member) {
    let path = format!("/v1/containers/{}/procs", container.replace('/', "%2F"));
    let pids = json!({"pids": [member.pid()]});
    node.call(ROOT, "PUT", &path, pids).await.ok();
}

async fn limit(node: &Node, container: &str, spec: Json) -> Json {
    let path = format!("/v1/containers/{container}?wait=30s");
    node.call(ROOT, "PATCH", &path, json!({"spec": spec}))
        .await
        .ok()
}

/// A container with a process that has a context on the first GPU.
async fn working(node: &Node, container: &str, spec: Json) -> (Member, GroupId, String) {
    node.create(container, spec).await;
    let member = Member::start();
    attach(node, container, &member).await;
    let group = member.works_on(&node.sim, 0);
    (member, group, node.sim.gpu(0).to_string())
}

fn notes(document: &Json) -> String {
    document["status"]["notes"].to_string()
}

#[tokio::test]
async fn a_limit_refuses_and_people_see_it() {
    let place = Place::new();
    let node = Node::start(&place);
    let spec = json!({"gpu.memory.max": "8G", "gpu.memory.high": "max"});
    let (_member, group, gpu) = working(&node, "a", spec).await;
    let path = "/v1/containers/a";
    node.sim.allocate(group, Bytes(4 * G)).unwrap();
    for _ in 0..3 {
        let refused = node.sim.allocate(group, Bytes(4 * G)).unwrap_err();
        assert!(refused.to_string().contains("gpu.memory.max"), "{refused}");
    }
    let is = |d: &Json| d["status"]["gpu.memory.events"][&gpu]["max"] == 3;
    let document = node.until(path, "three refusals", is).await;
    let status = &document["status"];
    assert_eq!(status["gpu.memory.current"][&gpu], 4 * G + CONTEXT);
    assert_eq!(status["gpu.memory.peak"][&gpu], 4 * G + CONTEXT);
    let events = json!({"low": 0, "high": 0, "max": 3, "fail": 3});
    assert_eq!(status["gpu.memory.events"][&gpu], events);
    assert_eq!(status["gpu.memory.events.local"][&gpu], events);
    for key in ["max", "high", "low", "min"] {
        let by = &status["enforced_by"][format!("gpu.memory.{key}")];
        assert_eq!(by, "daemon", "{key}");
    }
    assert_eq!(notes(&document), "null");
    let stat = node.get("/v1/containers/a/stat").await;
    assert_eq!(stat["gpu.memory.events"][&gpu], events);
    assert_eq!(stat["gpu.memory.current"][&gpu], 4 * G + CONTEXT);

    let metrics: Answer = node.call(ROOT, "GET", "/metrics", "").await;
    let of = |event: &str, n: u64| {
        format!(
            "ghost_gpu_memory_events_total{{container=\"a\",gpu=\"{gpu}\",event=\"{event}\"}} {n}"
        )
    };
    for line in [of("max", 3), of("fail", 3), of("low", 0), of("high", 0)] {
        assert!(metrics.text.contains(&line), "{line}: {}", metrics.text);
    }
    let used = format!("ghost_gpu_memory_bytes{{container=\"a\",gpu=\"{gpu}\"}}");
    assert!(metrics.text.contains(&used), "{}", metrics.text);

    let told = node.daemon.app().events.after(0, 100);
    let told: Vec<_> = told.iter().filter(|e| e.what == "memory-max").collect();
    assert!(!told.is_empty());
    let detail = &told[0].detail;
    assert!(detail.contains("gpu.memory.max 8.0G"), "{detail}");
    assert_eq!(told[0].container.as_ref().map(|n| n.as_str()), Some("a"));

    let lowered = limit(&node, "a", json!({"gpu.memory.max": "2G"})).await;
    let text = notes(&lowered);
    assert!(text.contains("4.5G is in use"), "{text}");
    assert!(text.contains("fail until it falls below 2.0G"), "{text}");
    node.sim.allocate(group, Bytes(1)).unwrap_err();
    limit(&node, "a", json!({"gpu.memory.max": null})).await;
    node.sim.allocate(group, Bytes(20 * G)).unwrap();
    node.stop().await;
}

#[tokio::test]
async fn a_parent_s_limit_binds_the_sum_and_events_are_hierarchical() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("t", json!({"gpu.memory.max": "6G"})).await;
    let (_a, a, gpu) = working(&node, "t/a", json!({})).await;
    let (_b, b, _) = working(&node, "t/b", json!({"gpu.memory.max": "2G"})).await;
    node.sim.allocate(a, Bytes(3 * G)).unwrap();
    node.sim.allocate(b, Bytes(2 * G)).unwrap_err();
    node.sim.allocate(b, Bytes(G)).unwrap();
    node.sim.allocate(a, Bytes(2 * G)).unwrap_err();
    let is = |d: &Json| d["status"]["gpu.memory.events"][&gpu]["max"] == 2;
    let parent = node.until("/v1/containers/t", "both refusals", is).await;
    let status = &parent["status"];
    assert_eq!(status["gpu.memory.current"][&gpu], 4 * G + 2 * CONTEXT);
    assert_eq!(status["gpu.memory.events.local"][&gpu]["max"], 1);
    assert_eq!(status["gpu.memory.events"][&gpu]["fail"], 2);
    let below = node.get("/v1/containers/t%2Fb").await;
    assert_eq!(below["status"]["gpu.memory.events.local"][&gpu]["max"], 1);
    node.stop().await;
}

#[tokio::test]
async fn beyond_high_it_gets_less_time_until_use_is_back() {
    let place = Place::new();
    let node = Node::start(&place);
    let (member, group, gpu) = working(&node, "a", json!({"gpu.memory.high": "4G"})).await;
    let (_other, other, _) = working(&node, "b", json!({})).await;
    let slices = || {
        let slice = |group| node.sim.group(group).unwrap().slice().0;
        (slice(group), slice(other))
    };
    let until = async |what: &str, is: &dyn Fn() -> bool| {
        node.until("/v1/node", what, |_| is()).await;
    };
    until("equal slices", &|| slices() == (15_000, 15_000)).await;
    let hog = member.works_on(&node.sim, 1);
    let more = {
        let id = ghostd::proc::Proc::host().find(member.pid()).unwrap().id;
        node.sim.spawn(id, 0, sim::gpu::Load::Idle).unwrap()
    };
    node.sim.allocate(more, Bytes(4 * G)).unwrap();
    until("a tenth of the weight", &|| {
        let (mine, theirs) = slices();
        mine * 9 < theirs && theirs < mine * 11
    })
    .await;
    let document = node.get("/v1/containers/a").await;
    assert!(notes(&document).contains("a tenth"), "{}", notes(&document));
    assert_eq!(document["status"]["gpu.memory.events"][&gpu]["high"], 1);
    let events = node.daemon.app().events.after(0, 100);
    let high = events.iter().find(|e| e.what == "memory-high").unwrap();
    assert!(
        high.detail.contains("gpu.memory.high 4.0G"),
        "{}",
        high.detail
    );
    node.sim.close(more);
    node.sim.close(hog);
    until("equal slices again", &|| slices() == (15_000, 15_000)).await;
    node.stop().await;
}

#[tokio::test]
async fn the_peak_outlives_ghostd() {
    let place = Place::new();
    let node = Node::start(&place);
    let (member, group, gpu) = working(&node, "a", json!({})).await;
    node.sim.allocate(group, Bytes(4 * G)).unwrap();
    let peak = |d: &Json| d["status"]["gpu.memory.peak"][&gpu] == 4 * G + CONTEXT;
    node.until("/v1/containers/a", "the peak", peak).await;
    node.stop().await;
    drop(member);
    let again = Node::on(&place, Sim::real_time(sim::Config::default()));
    again
        .until("/v1/containers/a", "the peak again", peak)
        .await;
    let document = again.get("/v1/containers/a").await;
    assert_eq!(document["status"]["gpu.memory.current"].get(&gpu), None);
    again.stop().await;
}
