//! What `ghostctl` asks, prints and exits with, against a fake ghostd.

#[allow(dead_code, reason = "not every test uses all of it")]
mod common;

use common::{Done, Fake, GPU, ghostctl};
use serde_json::{Value as J, json};
use std::io::Write;
use std::process::Stdio;

fn json_of(text: &str) -> J {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A node with three containers of which one runs.
fn busy() -> Fake {
    Fake::start()
        .with("notebook", json!({"gpu.idle": 1}))
        .with("team", json!({}))
        .with(
            "trainer",
            json!({
                "gpu.weight": 200, "gpu.max": "50%", "gpu.memory.max": "24G",
                "device": {GPU: {"gpu.weight": 70}}
            }),
        )
        .status(
            "trainer",
            json!({
                "state": "running",
                "ghost.events": {"populated": 1, "frozen": 0},
                "gpu.memory.current": {GPU: 19_541_213_184u64},
                "gpu.memory.peak": {GPU: 24u64 << 30},
                "gpu.stat": {GPU: {
                    "usage_usec": 12_345_678, "usage_ratio": 0.4987, "nr_periods": 20,
                    "nr_throttled": 5, "throttled_usec": 250_000
                }},
                "ghost.procs": [{
                    "pid": 42, "command": "py\u{1b}[2Jthon", "container": "trainer",
                    "groups": {GPU: 1}, "memory": {GPU: 19_541_213_184u64}
                }]
            }),
        )
}

#[test]
fn without_a_daemon_the_code_is_7_and_the_hint_starts_it() {
    let done = Done::of(
        ghostctl(&["list", "--socket", "/nowhere/ghostd.sock"])
            .output()
            .unwrap(),
    );
    done.fails(
        7,
        "error: ghostd does not answer on /nowhere/ghostd.sock: No such file or directory (os error 2)\n\
         hint: systemctl start ghostd\n",
    );
}

#[test]
fn bad_arguments_are_2_and_name_what_is_wrong() {
    let fake = Fake::start().with("a", json!({}));
    for (args, want) in [
        (&["lst"][..], "list"),
        (&["create", "a/../b"], "container name"),
        (&["limit", "a"], "KEY=VALUE"),
        (&["run", "a"], "COMMAND"),
        (&["attach", "a", "0"], "0 is not in"),
        (&["attach", "a"], "<PID>"),
        (&["top", "-d", "1us"], "100ms"),
        (
            &["create", "b", "--weight", "0"],
            "error: b: gpu.weight: \"0\"",
        ),
        (&["limit", "a", "gpu.max=3%7"], "error: a: gpu.max: \"3%7\""),
        (&["limit", "a", "gpu.idle"], "no KEY=VALUE"),
        (&["attach", "a", "--cgroup", "/a/../b"], "\"/a/../b\""),
        (&["list", "--format", "nme"], "no column"),
        (&["status", "a", "--format", "name"], "no columns"),
    ] {
        let done = fake.run(args);
        assert_eq!(done.code, Some(2), "{args:?} gave {done:?}");
        assert!(done.err.contains(want), "{args:?} gave {:?}", done.err);
        assert_eq!(done.out, "", "{args:?}");
    }
}

#[test]
fn unknown_keys_and_names_are_6_with_the_nearest() {
    let fake = busy();
    fake.run(&["limit", "trainer", "gpu.wieght=1"]).fails(
        6,
        "error: trainer: unknown key \"gpu.wieght\", did you mean gpu.weight?\n",
    );
    fake.run(&["get", "trainer", "gpu.wieght"]).fails(
        6,
        "error: unknown key \"gpu.wieght\", did you mean gpu.weight?\n",
    );
    fake.run(&["status", "trianer"]).fails(
        6,
        "error: no container \"trianer\", did you mean trainer?\n\
         hint: ghostctl list -q\n",
    );
    fake.run(&["gpu", "show", "7"]).fails(
        6,
        "error: no GPU \"7\" on this host: `ghostctl gpu list` shows those that there are\n",
    );
}

#[test]
fn a_key_without_a_source_is_3() {
    busy().run(&["get", "trainer", "gpu.pressure"]).fails(
        3,
        "error: gpu.pressure on \"trainer\": not supported by backend \"stock\" (driver 595.45.04, unpatched)\n\
         hint: `ghostctl info` shows what this node enforces, key by key\n",
    );
}

#[test]
fn the_beginning_of_a_name_will_do_unless_it_is_two_or_the_verb_destroys() {
    let fake = busy().with("team/job", json!({}));
    assert_eq!(fake.run(&["get", "tra", "gpu.idle"]).ok(), "0\n");
    assert_eq!(fake.run(&["get", "note", "gpu.idle"]).ok(), "1\n");
    // The whole name wins over a beginning.
    assert_eq!(fake.run(&["get", "team", "gpu.idle"]).ok(), "0\n");
    fake.run(&["get", "t", "gpu.idle"]).fails(
        6,
        "error: t is the beginning of 3 containers' names: team, team/job, trainer\n",
    );
    let done = fake.run(&["delete", "note"]);
    assert_eq!(done.code, Some(6), "{done:?}");
    assert_eq!(
        fake.run(&["delete", "team/job"]).ok(),
        "team/job: deleted\n"
    );
    assert!(
        fake.requests()
            .contains(&"DELETE /v1/containers/team%2Fjob".into())
    );
}

#[test]
fn create_takes_flags_pairs_files_and_labels() {
    let fake = Fake::start();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        file,
        "[container.a]\ngpu.weight = 5\ngpu.idle = 1\nlabel.team = \"nlp\""
    )
    .unwrap();
    let path = file.path().to_str().unwrap();
    let args = [
        "create",
        "a",
        "-f",
        path,
        "gpu.idle=",
        "gpu.latency=target=5000",
        "--weight",
        "200",
        "--max",
        "50000/200000",
        "--memory-max",
        "24G",
        "--gpu",
        "0",
        "--label",
        "owner=ada",
    ];
    assert_eq!(fake.run(&args).ok(), "a: created (generation 1)\n");
    let request = fake.requests().pop().unwrap();
    let body = json_of(request.strip_prefix("POST /v1/containers ").unwrap());
    assert_eq!(
        body,
        json!({
            "name": "a",
            "spec": {
                "gpu.weight": 200, "gpu.max": {"max": 50000, "period": 200_000},
                "gpu.latency": {"target": 5000}, "gpu.devices": ["0"],
                "gpu.memory.max": 24u64 << 30
            },
            "labels": {"team": "nlp", "owner": "ada"}
        })
    );
    fake.run(&["create", "a"])
        .fails(5, "error: a exists already\n");
    let done = fake.run(&["create", "b", "-f", path]);
    assert_eq!(done.code, Some(6));
    assert!(
        done.err.contains("has no table [container.\"b\"]"),
        "{done:?}"
    );
}

#[test]
fn limit_says_old_and_new_and_resets() {
    let fake = busy();
    fake.inner.lock().unwrap().notes = vec!["11.2G is in use".into()];
    let done = fake.run(&[
        "limit",
        "trainer",
        "gpu.memory.max=8G",
        "gpu.weight=3",
        "gpu.idle=0",
    ]);
    assert_eq!(
        done.out,
        "trainer: gpu.memory.max 24G -> 8G (generation 2)\n\
         trainer: gpu.weight 200 -> 3 (generation 2)\n\
         trainer: gpu.idle stays 0 (generation 2)\n"
    );
    assert_eq!(done.err, "note: 11.2G is in use\n");
    assert_eq!(done.code, Some(0));
    fake.inner.lock().unwrap().notes.clear();
    assert_eq!(
        fake.run(&["limit", "trainer", "gpu.weight=", "--gpu", "0", "--runtime"])
            .ok(),
        "trainer: gpu.weight 70 -> 3 on GPU 0 (generation 3)\n"
    );
    assert_eq!(
        fake.requests().pop().unwrap(),
        format!(
            "PATCH /v1/containers/trainer?runtime=true {}",
            json!({"spec": {"device": {GPU: {"gpu.weight": null}}}})
        )
    );
    assert_eq!(
        fake.run(&["limit", "trainer", "gpu.max=max", "--dry-run"])
            .ok(),
        "trainer: gpu.max 50000 100000 -> max 100000 (dry run)\n"
    );
    assert_eq!(
        fake.run(&["get", "trainer", "gpu.max"]).ok(),
        "50000 100000\n"
    );
}

#[test]
fn wait_that_ran_out_is_124() {
    let fake = busy();
    fake.inner.lock().unwrap().stuck = Some(1);
    let done = fake.run(&["limit", "trainer", "gpu.weight=3", "--wait=20ms"]);
    assert_eq!(done.code, Some(124));
    assert_eq!(
        done.err,
        "error: trainer: the change is stored but was not in force after 20 ms\n\
         hint: ghostctl status trainer\n"
    );
    assert!(fake.requests().pop().unwrap().contains("?wait=20ms "));
    // Without --wait nobody asked.
    assert_eq!(fake.run(&["freeze", "trainer"]).code, Some(0));
    assert_eq!(
        fake.run(&["freeze", "trainer", "--wait=1ms"]).code,
        Some(124)
    );
}

#[test]
fn freeze_thaw_revert_and_attach() {
    let fake = busy();
    assert_eq!(
        fake.run(&["freeze", "tra"]).ok(),
        "trainer: frozen (generation 2)\n"
    );
    assert_eq!(fake.run(&["get", "trainer", "ghost.freeze"]).ok(), "1\n");
    assert_eq!(
        fake.run(&["thaw", "tra"]).ok(),
        "trainer: thawed (generation 3)\n"
    );
    assert_eq!(
        fake.run(&["revert", "trainer"]).ok(),
        "trainer: overrides dropped (generation 9)\n"
    );
    assert_eq!(
        fake.run(&["revert", "trainer"]).ok(),
        "trainer: had no overrides (generation 9)\n"
    );
    assert_eq!(
        fake.run(&["attach", "trainer", "41", "42"]).ok(),
        "trainer: attached processes 41, 42\n"
    );
    assert_eq!(
        fake.run(&["attach", "trainer", "--cgroup", "/system.slice/x.service"])
            .ok(),
        "trainer: attached cgroup /system.slice/x.service\n"
    );
    let members = fake.inner.lock().unwrap().members.clone();
    assert_eq!(
        members,
        [
            ("trainer".to_owned(), json!({"pids": [41, 42]})),
            (
                "trainer".to_owned(),
                json!({"cgroups": ["/system.slice/x.service"]})
            )
        ]
    );
}

#[test]
fn delete_of_a_populated_container_is_5_unless_forced() {
    let fake = busy();
    fake.run(&["delete", "trainer"])
        .fails(5, "error: trainer has processes\n");
    assert_eq!(
        fake.run(&["delete", "trainer", "--force"]).ok(),
        "trainer: deleted\n"
    );
}

#[test]
fn list_is_a_table_columns_json_or_names() {
    let fake = busy();
    assert_eq!(
        fake.run(&["list"]).ok(),
        "\
NAME      STATE    GPU  WEIGHT  TIME%  MAX%   MEMORY  HIGH  MAX    ENFORCED
notebook  empty    0    idle    -      -      -       -     -      daemon
team      empty    0    100     -      -      -       -     -      daemon
trainer   running  0    200*    49.87  50.00  18.2G   -     24.0G  daemon,nobody
"
    );
    assert_eq!(
        fake.run(&["list", "--format", "name,gpu.weight,state"])
            .ok(),
        format!(
            "\
NAME      gpu.weight                                               STATE
notebook  100                                                      empty
team      100                                                      empty
trainer   default=200,{GPU}=70  running
"
        )
    );
    assert_eq!(fake.run(&["list", "-q"]).ok(), "notebook\nteam\ntrainer\n");
    let all = json_of(&fake.run(&["list", "--json"]).ok());
    assert_eq!(all["items"][2]["spec"]["gpu.memory.max"], 24u64 << 30);
    let by_env = fake.command(&["list"]).env("GHOST_FORMAT", "json").output();
    assert_eq!(json_of(&Done::of(by_env.unwrap()).ok()), all);
    let both = fake
        .command(&["list", "--json"])
        .env("GHOST_FORMAT", "table")
        .output();
    assert_eq!(json_of(&Done::of(both.unwrap()).ok()), all);
}

#[test]
fn status_is_for_people_and_safe_for_their_terminal() {
    assert_eq!(
        busy().run(&["status", "trainer"]).ok(),
        format!(
            "\
trainer: running
  generation      1 (in force)
  gpu             0 {GPU}
  gpu.weight      200, enforced by daemon
  gpu.weight      70 on GPU 0, enforced by daemon
  gpu.max         50000 100000, enforced by daemon
  gpu.memory.max  24G, enforced by nobody
  time            GPU 0: 49.87 %, 12.3 s in all, throttled in 5 of 20 periods for 0.2 s
  memory          GPU 0: 18.2G, peak 24G
  process         42 py?[2Jthon, GPU 0: 1 channel group, 18.2G
"
        )
    );
}

#[test]
fn show_and_get_are_for_scripts() {
    let fake = busy();
    let shown = fake.run(&["show", "trainer"]).ok();
    for line in [
        "name=trainer",
        "state=running",
        "gpu.weight=200",
        &format!("gpu.weight[{GPU}]=70"),
        "gpu.max=50000 100000",
        "gpu.memory.max=25769803776",
        &format!("gpu.memory.current[{GPU}]=19541213184"),
        "ghost.procs=42",
        "ghost.events[populated]=1",
    ] {
        assert!(shown.lines().any(|l| l == line), "no {line} in {shown}");
    }
    assert!(!shown.contains("gpu.pressure"));
    assert_eq!(
        fake.run(&["show", "trainer", "--format", "gpu.max,state"])
            .ok(),
        "state=running\ngpu.max=50000 100000\n"
    );
    for (args, want) in [
        (&["gpu.memory.max"][..], "25769803776\n".to_owned()),
        (&["gpu.weight"], format!("default 200\n{GPU} 70\n")),
        (&["gpu.weight", "--gpu", "0"], "70\n".to_owned()),
        (
            &["gpu.memory.current", "--gpu", "GPU-aaaa"],
            "19541213184\n".to_owned(),
        ),
        (
            &["gpu.stat"],
            format!(
                "{GPU} usage_usec=12345678 nr_periods=20 nr_throttled=5 throttled_usec=250000\n"
            ),
        ),
        (&["ghost.events"], "populated 1\nfrozen 0\n".to_owned()),
        (&["ghost.cgroup"], String::new()),
        (
            &["gpu.max", "--json"],
            "{\n  \"max\": 50000,\n  \"period\": 100000\n}\n".to_owned(),
        ),
        (&["gpu.weight", "--gpu", "0", "--json"], "70\n".to_owned()),
    ] {
        assert_eq!(
            fake.run(&[&["get", "trainer"], args].concat()).ok(),
            want,
            "{args:?}"
        );
    }
}

#[test]
fn cat_names_the_source_of_each_value() {
    assert_eq!(
        busy().run(&["cat", "trainer"]).ok(),
        format!(
            "\
# /etc/ghost/containers.d/a.toml
gpu.weight = \"70\"
# override
gpu.max = \"50000 100000\"
device.\"{GPU}\".gpu.weight = \"7\"
"
        )
    );
}

#[test]
fn top_shows_what_is_wanted_and_what_is_used() {
    let fake = busy();
    assert_eq!(
        fake.run(&["top", "-n", "2", "-d", "100ms"]).ok(),
        "\
NAME     GPU  STATE    WEIGHT  WANTED  TIME%  MAX%   THROTTLED  MEMORY
trainer  0    running  70      100.00  49.87  50.00  5/20       18.2G

NAME     GPU  STATE    WEIGHT  WANTED  TIME%  MAX%   THROTTLED  MEMORY
trainer  0    running  70      100.00  49.87  50.00  5/20       18.2G
"
    );
    let lines = fake.run(&["top", "-n", "2", "-d", "100ms", "--json"]).ok();
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        assert_eq!(json_of(line)["items"][2]["name"], "trainer");
    }
}

#[test]
fn events_are_lines() {
    let fake = busy();
    assert_eq!(
        fake.run(&["events", "--since", "2"]).ok(),
        "3  2026-01-31T12:00:03Z  changed  trainer: change 3?[2J\n"
    );
    let since = ["events", "--since", "2026-01-31T12:00:02Z", "--json"];
    let lines = fake.run(&since).ok();
    let ids: Vec<J> = lines.lines().map(|l| json_of(l)["id"].clone()).collect();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn apply_sends_what_a_file_declares() {
    let fake = Fake::start();
    let mut command = fake.command(&["apply", "-f", "-", "--prune", "--dry-run"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = b"[container.trainer]\ngpu.weight = 70\nlabel.team = \"nlp\"\n";
    child.stdin.take().unwrap().write_all(text).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(
        done.ok(),
        "trainer: changed, gpu.weight 100 -> 70 (dry run)\nold: deleted (dry run)\n"
    );
    assert_eq!(
        fake.requests(),
        [format!(
            "POST /v1/apply?dry_run=true&prune=true {}",
            json!([{"labels": {"team": "nlp"}, "name": "trainer", "spec": {"gpu.weight": 70}}])
        )]
    );
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "[container.a]\ngpu.weight = 0").unwrap();
    let done = fake.run(&["apply", "-f", file.path().to_str().unwrap()]);
    assert_eq!(done.code, Some(2));
    assert!(done.err.contains(": a: gpu.weight: \"0\""), "{done:?}");
}

#[test]
fn gpus_and_the_honest_table() {
    let fake = busy();
    assert_eq!(
        fake.run(&["gpu", "list"]).ok(),
        format!(
            "\
GPU  UUID                                      PCI               NAME         MEMORY  TOTAL  STATE
0    {GPU}  00000000:3B:00.0  NVIDIA Test  1.5G    80.0G  shared
"
        )
    );
    assert_eq!(fake.run(&["gpu", "list", "-q"]).ok(), format!("{GPU}\n"));
    let shown = fake.run(&["gpu", "show", "0"]).ok();
    assert!(shown.contains("  memory  1.5G of 80G\n"), "{shown}");
    assert!(shown.contains("  trainer: 42 py?[2Jthon"), "{shown}");
    let info = fake.run(&["info"]).ok();
    for line in [
        "driver   595.45.04",
        "meter    channel time",
        "gpu.weight       daemon       share of GPU time",
        "gpu.memory.max   nobody       bytes beyond which",
    ] {
        assert!(info.contains(line), "no {line:?} in {info}");
    }
    assert_eq!(
        json_of(&fake.run(&["info", "--json"]).ok())["backend"],
        "stock"
    );
}

#[test]
fn check_ends_each_failed_line_with_the_command_that_fixes_it() {
    let done = Done::of(
        ghostctl(&["check", "--socket", "/nowhere/ghostd.sock"])
            .output()
            .unwrap(),
    );
    let line = done.out.lines().find(|l| l.starts_with("ghostd")).unwrap();
    assert!(line.contains("failed"), "{line}");
    assert!(line.ends_with(": `systemctl start ghostd`"), "{line}");
    assert!(matches!(done.code, Some(7 | 9)), "{done:?}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let fake = busy();
    let mut command = fake.command(&["list"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let done = Done::of(command.stdout(writer).output().unwrap());
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
}

#[test]
fn shells_get_names_from_the_daemon() {
    let fake = busy();
    let ask = |words: &[&str]| {
        let mut command = fake.command(&[]);
        let index = (words.len() - 1).to_string();
        command
            .env("GHOSTCTL_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", index)
            .env("_CLAP_IFS", "\n")
            .arg("--")
            .args(words);
        Done::of(command.output().unwrap()).ok()
    };
    assert_eq!(ask(&["ghostctl", "freeze", "t"]), "team\ntrainer");
    assert_eq!(
        ask(&["ghostctl", "limit", "trainer", "gpu.w"]),
        "gpu.weight="
    );
    assert_eq!(ask(&["ghostctl", "gpu", "show", "GPU"]), GPU);
    let script = Done::of(ghostctl(&["completion", "bash"]).output().unwrap()).ok();
    assert!(script.contains("GHOSTCTL_COMPLETE=\"bash\""), "{script}");
}

#[test]
fn a_bundle_has_everything_also_where_something_is_missing() {
    let fake = busy();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("b.json");
    let args = [
        "debug",
        "bundle",
        "-o",
        out.to_str().unwrap(),
        "--state-dir",
        "/nowhere",
    ];
    fake.run(&args).ok();
    let bundle = json_of(&std::fs::read_to_string(out).unwrap());
    assert_eq!(bundle["node"]["driver"], "595.45.04");
    assert_eq!(bundle["containers"][2]["name"], "trainer");
    assert_eq!(bundle["events"][0]["id"], 1);
    assert!(
        bundle["journal"]["error"]
            .as_str()
            .unwrap()
            .contains("/nowhere")
    );
}
