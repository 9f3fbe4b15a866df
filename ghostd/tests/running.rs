//! A daemon at work: members, container files, restarts, events.

mod common;

use common::{Member, Node, Place, ROOT};
use serde_json::{Value as Json, json};
use std::time::Duration;

#[tokio::test]
async fn members_limits_and_freezing_reach_the_gpu() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({})).await;
    node.create("b", json!({})).await;
    let member = Member::start();
    let group = member.works_on(&node.sim, 0);
    // Membership by pid, then moved.
    for name in ["a", "b"] {
        let path = format!("/v1/containers/{name}/procs");
        let body = json!({"pids": [member.pid()]});
        let procs = node.call(ROOT, "PUT", &path, body).await.ok();
        assert_eq!(procs["items"][0]["pid"], member.pid());
        assert_eq!(procs["items"][0]["command"], "sleep");
    }
    assert_eq!(node.get("/v1/containers/a/procs").await["items"], json!([]));
    let path = "/v1/containers/b";
    node.until(path, "b runs", |c| c["status"]["state"] == "running")
        .await;

    let freeze = |on: u8| json!({"spec": {"ghost.freeze": on}});
    let frozen = node
        .call(ROOT, "PATCH", &format!("{path}?wait=30s"), freeze(1))
        .await
        .ok();
    assert_eq!(
        frozen["status"]["observed_generation"],
        frozen["generation"]
    );
    assert_eq!(frozen["status"]["state"], "frozen");
    assert_eq!(
        frozen["status"]["ghost.events"],
        json!({"populated": 1, "frozen": 1})
    );
    assert_eq!(
        node.sim.group(group).unwrap().disables(),
        1,
        "in force when it says so"
    );
    node.call(ROOT, "PATCH", &format!("{path}?wait=30s"), freeze(0))
        .await
        .ok();
    assert_eq!(node.sim.group(group).unwrap().disables(), 0);

    // Populated containers are not deleted by accident.
    node.call(ROOT, "DELETE", path, "")
        .await
        .refused(409, "conflict", "has processes");
    let uid = node.get(path).await["uid"].clone();
    node.call(ROOT, "DELETE", &format!("{path}?force=true"), "")
        .await
        .ok();
    node.until("/v1/node", "the member is a stranger", |n| {
        n["strangers"]
            .as_array()
            .unwrap()
            .iter()
            .any(|p| p["pid"] == member.pid())
    })
    .await;
    let again = node.create("b", json!({})).await;
    assert_ne!(again["uid"], uid);
    node.stop().await;
}

#[tokio::test]
async fn members_go_to_the_container_above_and_are_forgotten_when_they_end() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("t", json!({})).await;
    node.create("t/j", json!({})).await;
    let member = Member::start();
    let body = json!({"pids": [member.pid()]});
    node.call(ROOT, "PUT", "/v1/containers/t%2Fj/procs", body)
        .await
        .ok();
    node.call(ROOT, "DELETE", "/v1/containers/t%2Fj?force=true", "")
        .await
        .ok();
    let procs = node.get("/v1/containers/t/procs").await;
    assert_eq!(procs["items"][0]["pid"], member.pid());
    drop(member);
    node.until("/v1/containers/t/procs", "it is forgotten", |p| {
        p["items"] == json!([])
    })
    .await;
    let detach = node
        .call(ROOT, "DELETE", "/v1/containers/t/procs/1", "")
        .await;
    detach.refused(404, "not-found", "process 1");
    node.stop().await;
}

#[tokio::test]
async fn a_container_whose_last_process_ended_is_deleted_at_once() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({})).await;
    let member = Member::start();
    member.works_on(&node.sim, 0);
    let body = json!({"pids": [member.pid()]});
    node.call(ROOT, "PUT", "/v1/containers/a/procs", body)
        .await
        .ok();
    node.until("/v1/containers/a", "it is listed", |c| {
        c["status"]["state"] == "running"
    })
    .await;
    // The simulator is not told, so that its list still has the process.
    drop(member);
    node.call(ROOT, "DELETE", "/v1/containers/a", "").await.ok();
    node.stop().await;
}

#[tokio::test]
async fn container_files_reload_and_a_typo_costs_nothing() {
    let place = Place::new();
    place.file(
        "a.toml",
        "[container.f]\ngpu.weight = 200\nlabel.owner = \"4711\"\n",
    );
    let node = Node::start(&place);
    let path = "/v1/containers/f";
    let before = node.get(path).await;
    assert_eq!(
        (&before["spec"]["gpu.weight"], &before["owner"]),
        (&json!(200), &json!(4711))
    );
    let patch = json!({"spec": {"gpu.max": "10%"}});
    node.call(ROOT, "PATCH", path, patch).await.ok();
    let sources = node.get(&format!("{path}/sources")).await["items"].clone();
    assert!(
        sources[0]["origin"].as_str().unwrap().ends_with("a.toml"),
        "{sources}"
    );
    assert_eq!(sources[1]["origin"], "override");
    node.call(ROOT, "DELETE", path, "")
        .await
        .refused(409, "conflict", "a.toml");

    place.file("a.toml", "[container.f]\ngpu.wieght = 300\n");
    let reloaded = node.call(ROOT, "POST", "/v1/reload", "").await.ok();
    let note = reloaded["notes"][0].as_str().unwrap();
    assert!(
        note.contains("a.toml") && note.contains("gpu.wieght"),
        "{note}"
    );
    assert_eq!(
        node.get("/v1/node").await["problems"][0],
        reloaded["notes"][0]
    );
    assert_eq!(node.get(path).await["spec"]["gpu.weight"], 200);
    node.stop().await;

    // Also over a restart.
    let node = Node::start(&place);
    let restarted = node.get(path).await;
    assert_eq!(restarted["spec"]["gpu.weight"], 200);
    assert_eq!(restarted["uid"], before["uid"]);

    place.file("a.toml", "[container.f]\ngpu.weight = 300\n");
    let reloaded = node.call(ROOT, "POST", "/v1/reload", "").await.ok();
    assert_eq!(reloaded["notes"], json!([]));
    let after = node.get(path).await;
    assert_eq!(after["spec"]["gpu.weight"], 300);
    assert_eq!(
        after["spec"]["gpu.max"]["max"], 10_000,
        "the override stays"
    );
    assert_eq!(node.get("/v1/node").await["problems"], json!([]));

    std::fs::remove_file(place.path("containers.d/a.toml")).unwrap();
    node.call(ROOT, "POST", "/v1/reload", "").await.ok();
    node.call(ROOT, "GET", path, "")
        .await
        .refused(404, "not-found", "f");
    node.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_counters_and_a_replay_decides_the_same() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({"gpu.max": "30%"})).await;
    let member = Member::start();
    let group = member.works_on(&node.sim, 0);
    let body = json!({"pids": [member.pid()]});
    node.call(ROOT, "PUT", "/v1/containers/a/procs", body)
        .await
        .ok();
    let gpu = node.get("/v1/gpus/0").await["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    let usage = |c: &Json| {
        c["status"]["gpu.stat"][&gpu]["usage_usec"]
            .as_u64()
            .unwrap_or(0)
    };
    let path = "/v1/containers/a";
    node.until(path, "it was throttled", |c| {
        usage(c) > 50_000 && c["status"]["gpu.stat"][&gpu]["nr_throttled"].as_u64() > Some(1)
    })
    .await;
    node.create("b", json!({})).await;
    let before = usage(&node.get(path).await);
    let sim = node.sim.clone();
    node.stop().await;
    assert_eq!(
        sim.group(group).unwrap().disables(),
        0,
        "nothing stays paused"
    );

    let mut steps = 0;
    for file in std::fs::read_dir(place.path("state/journal")).unwrap() {
        let file = std::fs::File::open(file.unwrap().path()).unwrap();
        let replay = ghostd::journal::replay(std::io::BufReader::new(file)).unwrap();
        assert_eq!((replay.different, replay.unreadable), (vec![], 0));
        steps += replay.steps;
    }
    assert!(steps >= 3, "{steps}");

    let node = Node::on(&place, sim);
    let after = node.until(path, "it goes on", |c| usage(c) > before).await;
    assert_eq!(after["status"]["ghost.procs"][0]["pid"], member.pid());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_resume_where_a_reader_left() {
    let place = Place::new();
    let node = Node::start(&place);
    for name in ["a", "b", "c"] {
        node.create(name, json!({})).await;
    }
    let socket = place.path("ghostd.sock");
    let read = |last: Option<u64>, count: usize| {
        let socket = socket.clone();
        tokio::task::spawn_blocking(move || sse(&socket, last, count))
    };
    let all = read(Some(0), 4).await.unwrap();
    let names: Vec<&str> = all
        .iter()
        .map(|(_, e)| e["container"].as_str().unwrap_or("-"))
        .collect();
    assert_eq!(
        names,
        ["-", "a", "b", "c"],
        "the reload at the start, and three"
    );
    assert!(all.iter().all(|(id, e)| e["id"] == *id));
    let rest = read(Some(all[1].0), 2).await.unwrap();
    assert_eq!(rest, all[2..]);
    let live = read(None, 1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The reader may not be there yet: what comes after it is what counts.
    let pushed = async {
        for i in 0.. {
            let patch = json!({"spec": {"gpu.weight": i % 2 + 1}});
            node.call(ROOT, "PATCH", "/v1/containers/a", patch)
                .await
                .ok();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        live = live => assert_eq!(live.unwrap()[0].1["what"], "changed"),
        () = pushed => {}
    }
    node.stop().await;
}

/// Reads so many events, with their ids.
fn sse(socket: &std::path::Path, last: Option<u64>, count: usize) -> Vec<(u64, Json)> {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let last = last.map_or(String::new(), |id| format!("last-event-id: {id}\r\n"));
    write!(stream, "GET /v1/events HTTP/1.1\r\nhost: g\r\n{last}\r\n").unwrap();
    let mut out = Vec::new();
    let mut id = 0;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.parse().unwrap();
        } else if let Some(text) = line.strip_prefix("data: ") {
            out.push((id, serde_json::from_str(text).unwrap()));
        }
        if out.len() == count {
            break;
        }
    }
    out
}
