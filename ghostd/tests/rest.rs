//! Every route, with what is right and what is wrong.

mod common;

use axum::body::Body;
use axum::http::Request;
use common::{Node, Place, ROOT};
use serde_json::{Value as Json, json};

#[tokio::test]
async fn a_container_s_life() {
    let place = Place::new();
    let node = Node::start(&place);
    let spec = json!({"gpu.weight": 200, "gpu.max": "50%", "gpu.memory.max": "24G",
                      "gpu.overflow": "big"});
    let body = json!({"name": "team", "spec": spec, "labels": {"who": "nlp"}});
    let made = node
        .call(ROOT, "POST", "/v1/containers?wait=30s", body)
        .await;
    assert_eq!(made.status, 201);
    assert_eq!(made.headers["location"], "/v1/containers/team");
    assert_eq!(made.headers["etag"], "\"1\"");
    let made = made.json();
    assert_eq!(
        made["spec"]["gpu.max"],
        json!({"max": 50000, "period": 100_000})
    );
    assert_eq!(made["spec"]["gpu.memory.max"], 24u64 << 30);
    assert_eq!(made["status"]["observed_generation"], 1);
    assert_eq!(made["status"]["state"], "empty");
    assert_eq!(made["status"]["effective"]["gpu.idle"], 0);
    assert_eq!(made["status"]["enforced_by"]["gpu.weight"], "daemon");
    assert_eq!(
        made["status"]["gpu.devices.effective"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let notes = made["status"]["notes"].to_string();
    assert!(
        notes.contains("gpu.overflow: big is no peer here"),
        "{notes}"
    );

    let job = node.create("team/job", json!({})).await;
    let path = "/v1/containers/team%2Fjob";
    assert_eq!(node.get(path).await["uid"], job["uid"]);

    let patch = json!({"spec": {"gpu.weight": 300}, "labels": {"a": "b"}});
    let changed = node
        .call(ROOT, "PATCH", &format!("{path}?wait=30s"), patch)
        .await
        .ok();
    assert_eq!(changed["generation"], 2);
    assert_eq!(changed["status"]["observed_generation"], 2);
    assert_eq!(changed["labels"], json!({"a": "b"}));
    let same = node
        .call(ROOT, "PATCH", path, json!({"spec": {"gpu.weight": 300}}))
        .await
        .ok();
    assert_eq!(same["generation"], 2, "nothing changed");

    // What was read may be written back.
    let mut document = node.get(path).await;
    document["spec"]["gpu.idle"] = 1.into();
    let put = node.call(ROOT, "PUT", path, document).await.ok();
    assert_eq!(put["spec"], json!({"gpu.weight": 300, "gpu.idle": 1}));
    let put = node
        .call(ROOT, "PUT", "/v1/containers/new", json!({}))
        .await;
    assert_eq!(put.status, 201);

    let reset = json!({"spec": {"gpu.weight": null}, "labels": {"a": null}});
    let reset = node.call(ROOT, "PATCH", path, reset).await.ok();
    assert_eq!(reset["spec"], json!({"gpu.idle": 1}));
    assert_eq!(reset.get("labels"), None);
    let reverted = node
        .call(ROOT, "POST", &format!("{path}/revert"), "")
        .await
        .ok();
    assert_eq!(reverted["spec"], json!({}));

    let stat = node.get(&format!("{path}/stat")).await;
    assert_eq!(stat["ghost.events"], json!({"populated": 0, "frozen": 0}));
    assert_eq!(
        node.get(&format!("{path}/sources")).await["items"],
        json!([])
    );

    let parent = node.call(ROOT, "DELETE", "/v1/containers/team", "").await;
    parent.refused(409, "conflict", "team/job");
    assert_eq!(node.call(ROOT, "DELETE", path, "").await.status, 204);
    assert_eq!(
        node.call(ROOT, "DELETE", "/v1/containers/team", "")
            .await
            .status,
        204
    );
    node.call(ROOT, "GET", path, "")
        .await
        .refused(404, "not-found", "team/job");
    node.stop().await;
}

#[tokio::test]
async fn bad_input_has_its_documented_refusal() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({})).await;
    let spec = |s: Json| json!({"spec": s}).to_string();
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let cases: &[(&str, &str, String, u16, &str, &str)] = &[
        (
            "PATCH",
            "/v1/containers/a",
            spec(json!({"gpu.wieght": 1})),
            400,
            "unknown-key",
            "did you mean gpu.weight?",
        ),
        (
            "PATCH",
            "/v1/containers/a",
            spec(json!({"gpu.weight": 0})),
            400,
            "invalid",
            "\"0\" is not a weight",
        ),
        (
            "PATCH",
            "/v1/containers/a",
            spec(json!({"gpu.memory.max": "24Q"})),
            400,
            "invalid",
            "\"24Q\"",
        ),
        (
            "PATCH",
            "/v1/containers/a",
            spec(json!({"gpu.stat": 1})),
            400,
            "invalid",
            "gpu.stat",
        ),
        (
            "PATCH",
            "/v1/containers/a",
            spec(json!({"gpu.devices": "7"})),
            404,
            "not-found",
            "\"7\"",
        ),
        (
            "PATCH",
            "/v1/containers/a",
            spec(json!({"device": {"GPU-ffff": {"gpu.weight": 1}}})),
            404,
            "not-found",
            "GPU-ffff",
        ),
        (
            "PATCH",
            "/v1/containers/a",
            "{".into(),
            400,
            "invalid",
            "body",
        ),
        ("PATCH", "/v1/containers/a", deep, 400, "invalid", "body"),
        (
            "PATCH",
            "/v1/containers/a",
            json!({"spek": {}}).to_string(),
            400,
            "unknown-key",
            "spek",
        ),
        (
            "PATCH",
            "/v1/containers/a",
            json!({"labels": {"a\u{1b}": "b"}}).to_string(),
            400,
            "invalid",
            "a?",
        ),
        (
            "PATCH",
            "/v1/containers/a?wait=1h",
            spec(json!({})),
            400,
            "invalid",
            "1h",
        ),
        (
            "PATCH",
            "/v1/containers/a?dry-run=1",
            spec(json!({})),
            400,
            "invalid",
            "dry-run",
        ),
        (
            "PATCH",
            "/v1/containers/b",
            spec(json!({})),
            404,
            "not-found",
            "\"b\"",
        ),
        (
            "PATCH",
            "/v1/containers/system",
            spec(json!({"ghost.cgroup": "/a"})),
            400,
            "invalid",
            "ghost.cgroup",
        ),
        (
            "GET",
            "/v1/containers/..%2Fetc",
            String::new(),
            400,
            "invalid",
            "\"../etc\"",
        ),
        (
            "GET",
            "/v1/containers/a%1B%5B31m",
            String::new(),
            400,
            "invalid",
            "a?[31m",
        ),
        (
            "GET",
            "/v1/containers/%FF",
            String::new(),
            400,
            "invalid",
            "UTF-8",
        ),
        (
            "POST",
            "/v1/containers",
            json!({"name": "../x"}).to_string(),
            400,
            "invalid",
            "\"../x\"",
        ),
        (
            "POST",
            "/v1/containers",
            json!({"name": "a"}).to_string(),
            409,
            "exists",
            "a exists",
        ),
        (
            "POST",
            "/v1/containers",
            json!({"name": "x/y"}).to_string(),
            404,
            "not-found",
            "no container x",
        ),
        (
            "POST",
            "/v1/containers",
            json!({"name": "system/y"}).to_string(),
            400,
            "invalid",
            "system",
        ),
        (
            "POST",
            "/v1/containers",
            "{}".into(),
            400,
            "invalid",
            "name",
        ),
        (
            "PUT",
            "/v1/containers/a",
            json!({"name": "b"}).to_string(),
            400,
            "invalid",
            "the name is not a",
        ),
        (
            "PUT",
            "/v1/containers/a/procs",
            json!({"pids": [4_000_000_000u32]}).to_string(),
            404,
            "not-found",
            "4000000000",
        ),
        (
            "PUT",
            "/v1/containers/a/procs",
            json!({"pids": [-1]}).to_string(),
            400,
            "invalid",
            "body",
        ),
        (
            "PUT",
            "/v1/containers/a/procs",
            json!({}).to_string(),
            400,
            "invalid",
            "0 members",
        ),
        (
            "PUT",
            "/v1/containers/a/procs",
            json!({"cgroups": ["/a/../b"]}).to_string(),
            400,
            "invalid",
            "/a/../b",
        ),
        (
            "PUT",
            "/v1/containers/system/procs",
            json!({"pids": [1]}).to_string(),
            400,
            "invalid",
            "system",
        ),
        (
            "DELETE",
            "/v1/containers/a/procs/1",
            String::new(),
            404,
            "not-found",
            "process 1",
        ),
        (
            "DELETE",
            "/v1/containers/a/procs/x",
            String::new(),
            400,
            "invalid",
            "",
        ),
        (
            "DELETE",
            "/v1/containers/system",
            String::new(),
            400,
            "invalid",
            "system",
        ),
        (
            "DELETE",
            "/v1/containers/b",
            String::new(),
            404,
            "not-found",
            "\"b\"",
        ),
        (
            "GET",
            "/v1/containers?limit=0",
            String::new(),
            400,
            "invalid",
            "limit",
        ),
        (
            "GET",
            "/v1/containers?page_token=..",
            String::new(),
            400,
            "invalid",
            "..",
        ),
        (
            "GET",
            "/v1/containers?x=1",
            String::new(),
            400,
            "invalid",
            "x",
        ),
        (
            "GET",
            "/v1/gpus/9",
            String::new(),
            404,
            "not-found",
            "\"9\"",
        ),
        (
            "GET",
            "/v1/nothing",
            String::new(),
            404,
            "not-found",
            "/v1/nothing",
        ),
        (
            "DELETE",
            "/v1/node",
            String::new(),
            405,
            "invalid",
            "DELETE",
        ),
        (
            "POST",
            "/v1/apply",
            json!([{"name": "p"}, {"name": "p"}]).to_string(),
            400,
            "invalid",
            "twice",
        ),
    ];
    for (method, path, body, status, kind, detail) in cases {
        let answer = node.call(ROOT, method, path, body).await;
        eprintln!("{method} {path}");
        answer.refused(*status, kind, detail);
    }
    let both = spec(json!({"gpu.weight": 0, "gpu.max": "200%"}));
    let errors = node
        .call(ROOT, "PATCH", "/v1/containers/a", both)
        .await
        .json()["errors"]
        .clone();
    assert_eq!(errors[0]["pointer"], "#/spec/gpu.max");
    assert_eq!(errors[1]["pointer"], "#/spec/gpu.weight");
    let event = Request::get("/v1/events")
        .header("Last-Event-ID", "x")
        .body(Body::empty());
    node.send(Some(ROOT), event.unwrap())
        .await
        .refused(400, "invalid", "Last-Event-ID");
    assert_eq!(
        node.get("/v1/containers/a").await["generation"],
        1,
        "none of it changed anything"
    );
    node.stop().await;
}

#[tokio::test]
async fn large_bodies_are_refused_whether_they_say_so_or_not() {
    let place = Place::new();
    let node = Node::start(&place);
    let announced = Request::post("/v1/containers")
        .header("content-length", "100000000")
        .body(Body::empty());
    let answer = node.send(Some(ROOT), announced.unwrap()).await;
    answer.refused(413, "invalid", "larger than 1048576");
    let sent = Request::post("/v1/containers").body(Body::from(vec![b' '; 100_000_000]));
    let answer = node.send(Some(ROOT), sent.unwrap()).await;
    answer.refused(413, "invalid", "larger than 1048576");
    node.stop().await;
}

#[tokio::test]
async fn changes_may_depend_on_a_generation() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({})).await;
    let request = |method: &str, path: &str, tag: &str, body: Json| {
        let builder = Request::builder()
            .method(method)
            .uri(path)
            .header("If-Match", tag);
        builder.body(Body::from(body.to_string())).unwrap()
    };
    let weight = |n: u32| json!({"spec": {"gpu.weight": n}});
    let path = "/v1/containers/a";
    let first = request("PATCH", path, "\"1\"", weight(5));
    assert_eq!(node.send(Some(ROOT), first).await.ok()["generation"], 2);
    let late = request("PATCH", path, "\"1\"", weight(6));
    node.send(Some(ROOT), late)
        .await
        .refused(412, "conflict", "generation 2");
    for (method, path) in [
        ("PUT", path),
        ("DELETE", path),
        ("POST", "/v1/containers/a/revert"),
    ] {
        let late = request(method, path, "\"1\"", json!({}));
        node.send(Some(ROOT), late)
            .await
            .refused(412, "conflict", "generation 2");
    }
    let none = request("PUT", "/v1/containers/b", "*", json!({}));
    node.send(Some(ROOT), none)
        .await
        .refused(412, "conflict", "does not exist");
    let odd = request("PATCH", path, "W/\"x\"", weight(6));
    node.send(Some(ROOT), odd)
        .await
        .refused(400, "invalid", "If-Match");
    assert_eq!(node.get(path).await["spec"]["gpu.weight"], 5);
    node.stop().await;
}

#[tokio::test]
async fn a_dry_run_and_a_temporary_change() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({"gpu.weight": 10})).await;
    let path = "/v1/containers/a";
    let patch = json!({"spec": {"gpu.weight": 20}});
    let dry = node
        .call(ROOT, "PATCH", &format!("{path}?dry_run=true"), &patch)
        .await
        .ok();
    assert_eq!(dry["spec"]["gpu.weight"], 20);
    assert_eq!(node.get(path).await["spec"]["gpu.weight"], 10);
    let now = node
        .call(ROOT, "PATCH", &format!("{path}?runtime=true"), &patch)
        .await
        .ok();
    assert_eq!(now["spec"]["gpu.weight"], 20);
    let sources = node.get(&format!("{path}/sources")).await;
    assert_eq!(sources["items"][0]["origin"], "runtime");
    node.stop().await;
    let node = Node::start(&place);
    assert_eq!(node.get(path).await["spec"]["gpu.weight"], 10);
    node.stop().await;
}

#[tokio::test]
async fn apply_makes_all_of_it_or_none() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("old", json!({})).await;
    let set = json!([
        {"name": "team/job", "spec": {"gpu.weight": 7}},
        {"name": "team", "labels": {"k": "v"}},
    ]);
    let dry = node
        .call(ROOT, "POST", "/v1/apply?dry_run=true&prune=true", &set)
        .await
        .ok();
    let what = |json: &Json| -> Vec<String> {
        let all = json["changes"].as_array().unwrap();
        let text = |c: &Json, k| c[k].as_str().unwrap().to_owned();
        all.iter()
            .map(|c| format!("{} {}", text(c, "name"), text(c, "what")))
            .collect()
    };
    assert_eq!(
        what(&dry),
        ["old deleted", "team created", "team/job created"]
    );
    assert_eq!(
        node.get("/v1/containers").await["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let bad = json!([{"name": "p"}, {"name": "q", "spec": {"gpu.weight": 0}}]);
    node.call(ROOT, "POST", "/v1/apply", bad)
        .await
        .refused(400, "invalid", "q: gpu.weight");
    node.call(ROOT, "GET", "/v1/containers/p", "")
        .await
        .refused(404, "not-found", "p");
    let done = node
        .call(ROOT, "POST", "/v1/apply?prune=true&wait=30s", &set)
        .await
        .ok();
    assert_eq!(what(&done), what(&dry));
    let again = node
        .call(ROOT, "POST", "/v1/apply?prune=true", &set)
        .await
        .ok();
    assert_eq!(what(&again), [""; 0]);
    node.stop().await;
}

#[tokio::test]
async fn lists_come_in_pages_and_by_label() {
    let place = Place::new();
    let node = Node::start(&place);
    let all: Vec<Json> = (0..1000)
        .map(|i| json!({"name": format!("c{i:04}"), "labels": {"odd": (i % 2).to_string()}}))
        .collect();
    node.call(ROOT, "POST", "/v1/apply?wait=30s", json!(all))
        .await
        .ok();
    let mut names: Vec<String> = Vec::new();
    let mut query = "limit=300".to_owned();
    loop {
        let page = node.get(&format!("/v1/containers?{query}")).await;
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 300);
        names.extend(items.iter().map(|c| c["name"].as_str().unwrap().to_owned()));
        match page["next_page_token"].as_str() {
            Some(token) => query = format!("limit=300&page_token={token}"),
            None => break,
        }
    }
    assert_eq!(names.len(), 1001, "with system");
    assert!(names.is_sorted());
    let odd = node.get("/v1/containers?label=odd%3D1").await;
    assert_eq!(odd["items"].as_array().unwrap().len(), 500);
    let any = node.get("/v1/containers?label=odd&limit=1000").await;
    assert_eq!(any["items"].as_array().unwrap().len(), 1000);
    assert_eq!(any.get("next_page_token"), None);
    assert_eq!(any["items"][7]["status"]["observed_generation"], 1);
    node.stop().await;
}

#[tokio::test]
async fn this_host_and_its_operation() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({"gpu.max": "30%"})).await;
    let gpus = node.get("/v1/gpus").await["items"].clone();
    let uuid = gpus[1]["uuid"].as_str().unwrap();
    assert_eq!(node.get(&format!("/v1/gpus/{uuid}")).await, gpus[1]);
    assert_eq!(node.get("/v1/gpus/1").await, gpus[1]);
    let host = node.get("/v1/node").await;
    assert_eq!(host["backend"], "sim");
    assert_eq!(host["gpus"], gpus);
    assert_eq!(
        node.get("/openapi.json").await["openapi"]
            .as_str()
            .unwrap()
            .split('.')
            .next(),
        Some("3")
    );
    for path in ["/healthz", "/readyz"] {
        assert_eq!(node.call(ROOT, "GET", path, "").await.text, "ok\n");
    }
    node.call(ROOT, "GET", "/v1/nothing/of/this", "").await;
    let metrics = node.call(ROOT, "GET", "/metrics", "").await.text;
    for line in [
        format!("ghost_gpu_time_seconds_total{{container=\"a\",gpu=\"{uuid}\"}} 0.0"),
        format!("ghost_gpu_throttled_periods_total{{container=\"a\",gpu=\"{uuid}\"}} 0.0"),
        format!("ghost_gpu_memory_bytes{{container=\"a\",gpu=\"{uuid}\"}} 0.0"),
        format!("ghost_spec_gpu_weight{{container=\"a\",gpu=\"{uuid}\"}} 100.0"),
        format!("ghost_spec_gpu_max_ratio{{container=\"a\",gpu=\"{uuid}\"}} 0.3"),
        format!("ghost_spec_gpu_memory_max_bytes{{container=\"a\",gpu=\"{uuid}\"}} inf"),
        "ghost_loop_errors_total{reason=\"apply\"} 0".into(),
        "ghost_http_requests_total{method=\"GET\",route=\"/v1/gpus/{gpu}\",status=\"200\"} 2"
            .into(),
        "ghost_http_requests_total{method=\"GET\",route=\"none\",status=\"404\"} 1".into(),
        format!(
            "ghost_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        ),
        "ghost_node_info{backend=\"sim\",driver=\"none\",patch=\"none\"} 1".into(),
    ] {
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"));
    node.stop().await;
}

#[tokio::test]
async fn the_checked_in_openapi_document_is_that_of_the_handlers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    let checked_in = std::fs::read_to_string(path).unwrap();
    let mut made = serde_json::to_string_pretty(&ghostd::http::openapi()).unwrap();
    made.push('\n');
    assert!(
        checked_in == made,
        "docs/openapi.json is not that of the handlers: `ghostd --print-openapi > docs/openapi.json`"
    );
}
