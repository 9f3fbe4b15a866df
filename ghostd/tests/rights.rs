//! What a caller may who does not administer.

mod common;

use common::{Member, Node, Place, ROOT, call, until, user};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The user of the tests that is nobody's.
const STRANGER: u32 = 65_534;

#[tokio::test]
async fn strangers_look_and_change_nothing() {
    let place = Place::new();
    let node = Node::start(&place);
    node.create("a", json!({})).await;
    let stranger = user(4711);
    for path in [
        "/v1/containers",
        "/v1/containers/a",
        "/v1/node",
        "/v1/gpus",
        "/v1/peers",
        "/metrics",
    ] {
        node.call(stranger, "GET", path, "").await;
        assert_eq!(
            node.call(stranger, "GET", path, "").await.status,
            200,
            "{path}"
        );
    }
    let path = "/v1/containers/a";
    let lower = json!({"spec": {"gpu.weight": 1}}).to_string();
    let pids = json!({"pids": [std::process::id()]}).to_string();
    for (method, path, body) in [
        ("POST", "/v1/containers", json!({"name": "b"}).to_string()),
        ("PUT", "/v1/containers/b", "{}".into()),
        ("PUT", path, json!({"spec": {"gpu.weight": 1}}).to_string()),
        ("PATCH", path, lower),
        ("PATCH", path, json!({"owner": 4711}).to_string()),
        ("PATCH", path, json!({"labels": {"a": "b"}}).to_string()),
        ("DELETE", path, String::new()),
        ("PUT", "/v1/containers/a/procs", pids),
        ("DELETE", "/v1/containers/a/procs/1", String::new()),
        ("POST", "/v1/apply", "[]".into()),
        ("POST", "/v1/reload", String::new()),
        (
            "PUT",
            "/v1/peers/b",
            json!({"address": "[::1]:1"}).to_string(),
        ),
        ("DELETE", "/v1/peers/b", String::new()),
        ("POST", "/v1/peers/b/drain", String::new()),
        ("POST", "/v1/peers/b/join", String::new()),
        (
            "POST",
            "/v1/containers/a/ticket",
            json!({"on": "[::1]:1"}).to_string(),
        ),
    ] {
        let answer = node.call(stranger, method, path, body).await;
        eprintln!("{method} {path}");
        answer.refused(403, "denied", "4711");
    }
    assert_eq!(node.get(path).await["generation"], 1);
    node.stop().await;
}

#[tokio::test]
async fn an_owner_gets_tickets_to_peers_and_nobody_else_their_tokens() {
    let place = Place::new();
    let node = Node::start(&place);
    let owned = json!({"name": "a", "owner": 4711, "spec": {"gpu.weight": 70}});
    node.call(ROOT, "POST", "/v1/containers", owned).await.ok();
    let peer = json!({"address": "127.0.0.1:7000", "token": "a secret"});
    let put = node.call(ROOT, "PUT", "/v1/peers/near", peer).await;
    assert_eq!(put.status, 204);
    assert!(!node.get("/v1/peers").await.to_string().contains("a secret"));
    let (path, wish) = ("/v1/containers/a/ticket", json!({"on": "near"}));
    let ticket = node.call(user(4711), "POST", path, wish.clone()).await.ok();
    assert_eq!(ticket["token"], "a secret");
    assert_eq!(ticket["limits"], json!([["gpu.weight", "70"]]));
    let answer = node.call(user(4712), "POST", path, wish).await;
    answer.refused(403, "denied", "4712");
    let wish = json!({"on": "far"});
    let answer = node.call(ROOT, "POST", path, wish).await;
    answer.refused(404, "not-found", "no peer \"far\"");
    let path = "/v1/containers/a/placement";
    assert_eq!(node.get(path).await, json!({"on": null}));
    let placed = node.get(&format!("{path}?overflow=near")).await;
    assert_eq!(placed, json!({"on": "near"}));
    let odd = format!("{path}?overflow=a%20b");
    let answer = node.call(ROOT, "GET", &odd, json!(null)).await;
    answer.refused(400, "invalid", "\"a b\"");
    node.stop().await;
}

#[tokio::test]
async fn a_request_without_credentials_changes_nothing() {
    let place = Place::new();
    let node = Node::start(&place);
    let request = axum::http::Request::post("/v1/reload").body(axum::body::Body::empty());
    node.send(None, request.unwrap())
        .await
        .refused(403, "denied", "credentials");
    node.stop().await;
}

#[tokio::test]
async fn owners_lower_and_attach_their_own() {
    let place = Place::new();
    let node = Node::start(&place);
    let me = nix::unistd::geteuid().as_raw();
    // The members of this test are this user's, who does not administer here.
    let owner = user(me);
    let body = json!({"name": "mine", "owner": me, "spec": {"gpu.weight": 50, "gpu.max": "50%"}});
    assert_eq!(
        node.call(ROOT, "POST", "/v1/containers", body).await.status,
        201
    );
    let body = json!({"name": "other", "owner": 4711});
    assert_eq!(
        node.call(ROOT, "POST", "/v1/containers", body).await.status,
        201
    );
    let path = "/v1/containers/mine";
    let spec = |s: serde_json::Value| json!({"spec": s});

    for lower in [
        json!({"gpu.weight": 40}),
        json!({"gpu.max": "10%"}),
        json!({"ghost.freeze": 1}),
    ] {
        node.call(owner, "PATCH", path, spec(lower)).await.ok();
    }
    for (raise, key) in [
        (json!({"gpu.weight": 41}), "gpu.weight"),
        (json!({"gpu.weight": null}), "gpu.weight"),
        (json!({"gpu.max": "max"}), "gpu.max"),
        (json!({"ghost.freeze": 0}), "ghost.freeze"),
        (json!({"gpu.latency": "target=1000"}), "gpu.latency"),
        (json!({"ghost.cgroup": "/a"}), "ghost.cgroup"),
    ] {
        let answer = node.call(owner, "PATCH", path, spec(raise)).await;
        answer.refused(403, "denied", key);
        let runtime = node
            .call(
                owner,
                "PATCH",
                "/v1/containers/mine?runtime=true",
                spec(json!({"gpu.weight": 9999})),
            )
            .await;
        runtime.refused(403, "denied", "gpu.weight");
    }
    node.call(owner, "POST", "/v1/containers/mine/revert", "")
        .await
        .refused(403, "denied", "gpu.");
    node.call(owner, "DELETE", path, "")
        .await
        .refused(403, "denied", "delete");

    let member = Member::start();
    let pids = json!({"pids": [member.pid()]});
    let procs = "/v1/containers/mine/procs";
    node.call(owner, "PUT", procs, &pids).await.ok();
    node.call(owner, "PUT", "/v1/containers/other/procs", &pids)
        .await
        .refused(403, "denied", "4711 owns");
    // Another's process, and own ones that an administrator put under another's limits.
    let init = node
        .call(user(4711), "PUT", "/v1/containers/other/procs", &pids)
        .await;
    init.refused(403, "denied", &member.pid().to_string());
    node.call(ROOT, "PUT", "/v1/containers/other/procs", &pids)
        .await
        .ok();
    node.call(owner, "PUT", procs, &pids)
        .await
        .refused(403, "denied", "out of other");
    let detach = format!("/v1/containers/other/procs/{}", member.pid());
    node.call(owner, "DELETE", &detach, "")
        .await
        .refused(403, "denied", "take processes out");
    node.call(ROOT, "DELETE", &detach, "").await.ok();
    node.call(owner, "PUT", procs, &pids).await.ok();
    node.stop().await;
}

/// Run by the test below in a process of another user; alone it does nothing.
#[test]
fn as_stranger() {
    let Ok(socket) = std::env::var("GHOST_TEST_STRANGER") else {
        return;
    };
    assert_eq!(nix::unistd::geteuid().as_raw(), STRANGER);
    let socket = std::path::Path::new(&socket);
    let (status, text) = call(socket, "GET", "/v1/containers/a", "").unwrap();
    assert_eq!(status, 200, "{text}");
    let (status, text) = call(
        socket,
        "PATCH",
        "/v1/containers/a",
        "{\"spec\":{\"gpu.weight\":1}}",
    )
    .unwrap();
    assert_eq!(status, 403, "{text}");
    assert!(text.contains("user 65534"), "{text}");
    let (status, text) = call(
        socket,
        "PATCH",
        "/v1/containers/mine",
        "{\"spec\":{\"gpu.weight\":1}}",
    )
    .unwrap();
    assert_eq!(status, 200, "{text}");
}

#[test]
fn the_kernel_says_who_calls() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: another user's process takes root to start");
        return;
    }
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(place.path("ghostd.toml"), "socket_mode = \"0666\"\n").unwrap();
    let ghostd = place.spawn();
    for body in [
        json!({"name": "a"}),
        json!({"name": "mine", "owner": STRANGER}),
    ] {
        assert_eq!(ghostd.call("POST", "/v1/containers", body).unwrap().0, 201);
    }
    let test = place.path("test");
    std::fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    std::fs::set_permissions(&test, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&test)
        .args(["--exact", "as_stranger"])
        .env("GHOST_TEST_STRANGER", place.path("ghostd.sock"))
        .current_dir("/")
        .uid(STRANGER)
        .gid(STRANGER)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(ghostd.json("/v1/containers/mine")["spec"]["gpu.weight"], 1);
    assert_eq!(ghostd.json("/v1/containers/a")["spec"], json!({}));
    // By default only the socket's group gets as far as that.
    drop(ghostd);
    std::fs::write(place.path("ghostd.toml"), "").unwrap();
    let _ghostd = place.spawn();
    let mode = std::fs::metadata(place.path("ghostd.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    until("a log is there", || place.log().contains("is ready"));
}
