//! `check`: what Ghost needs on this host. Each line that failed ends with the command that
//! fixes it.

use crate::cgroup;
use crate::cli::Reading;
use crate::client::{Client, Target, typed};
use crate::error::Error;
use crate::output::{self, Screen, Table};
use ghost_model::report::Node;
use ghost_model::{BackendKind, ExitCode, GpuState};
use nix::unistd::{Gid, Group, Uid};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `pidfd_getfd` came with this kernel.
const KERNEL: (u32, u32) = (5, 6);

/// One thing that must be so.
struct Check {
    name: &'static str,
    /// What was found, or what is wrong and the command that fixes it.
    found: Result<String, (String, String)>,
    /// The exit code where it is what failed.
    code: ExitCode,
}

impl Check {
    fn new(name: &'static str, found: Result<String, (String, String)>) -> Check {
        Check {
            name,
            found,
            code: ExitCode::Failed,
        }
    }

    fn code(mut self, code: ExitCode) -> Check {
        self.code = code;
        self
    }
}

fn fix<T>(wrong: impl Into<String>, command: impl Into<String>) -> Result<T, (String, String)> {
    Err((wrong.into(), command.into()))
}

pub(super) async fn check(client: &Client, args: Reading) -> Result<(), Error> {
    let json = args.json()?;
    let node: Result<Node, Error> = match client.get(Target::new("/v1/node")).await {
        Ok(document) => typed("/v1/node", document),
        Err(e) => Err(e),
    };
    let checks = all(client, &node);
    if json {
        let rows: Vec<_> = checks
            .iter()
            .map(|c| match &c.found {
                Ok(found) => json!({ "name": c.name, "ok": true, "detail": found }),
                Err((wrong, fix)) => {
                    json!({ "name": c.name, "ok": false, "detail": wrong, "fix": fix })
                }
            })
            .collect();
        output::document(&json!({ "checks": rows }))?;
    } else {
        let mut table = Table::new(&["CHECK", "", "FOUND"]);
        for c in &checks {
            let (ok, text) = match &c.found {
                Ok(found) => ("ok", found.clone()),
                Err((wrong, fix)) => ("failed", format!("{wrong}: `{fix}`")),
            };
            table.rows.push(vec![c.name.into(), ok.into(), text]);
        }
        // A command that is cut off cannot be typed.
        let screen = Screen {
            width: None,
            ..Screen::here()
        };
        output::print(&table.render(screen))?;
    }
    let failed: Vec<&Check> = checks.iter().filter(|c| c.found.is_err()).collect();
    match failed.first() {
        None => Ok(()),
        Some(first) => Err(Error::Checks(failed.len(), first.code)),
    }
}

fn all(client: &Client, node: &Result<Node, Error>) -> Vec<Check> {
    let mut checks = Vec::new();
    let backend = node.as_ref().ok().map(|n| n.capabilities.backend);
    if backend != Some(BackendKind::Sim) {
        checks.push(driver().code(ExitCode::NoDriver));
        checks.push(devices(Path::new("/dev")).code(ExitCode::NoDriver));
        checks.push(kernel(
            &fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default(),
        ));
        checks.push(seccomp(
            &fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default(),
        ));
    }
    checks.push(match cgroup::mount() {
        Some(path) => Check::new("cgroup v2", Ok(path.display().to_string())),
        None => Check::new(
            "cgroup v2",
            fix(
                "not mounted",
                "sudo mkdir -p /sys/fs/cgroup/unified && sudo mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified",
            ),
        ),
    });
    checks.push(group(client.socket()).code(ExitCode::Denied));
    checks.push(match node {
        Ok(node) => Check::new(
            "ghostd",
            Ok(format!(
                "{}, backend {}",
                node.version, node.capabilities.backend
            )),
        ),
        Err(e) => {
            let hint = e
                .hint()
                .unwrap_or_else(|| "journalctl -u ghostd -n 50".into());
            Check::new("ghostd", fix(e.to_string(), hint)).code(e.code())
        }
    });
    if let Ok(node) = node {
        if backend == Some(BackendKind::Stock) {
            checks.push(guardian(client, node));
        }
        checks.push(gpus(node));
    }
    checks
}

fn driver() -> Check {
    let found = match fs::read_to_string("/proc/driver/nvidia/version") {
        Ok(text) => Ok(text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(_) => fix("the NVIDIA driver is not loaded", "sudo modprobe nvidia"),
    };
    Check::new("driver", found)
}

fn devices(dev: &Path) -> Check {
    let gpus = fs::read_dir(dev)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| {
            let name = e.file_name();
            let number = name.to_str().and_then(|n| n.strip_prefix("nvidia"));
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        });
    let gpus = gpus.count();
    let found = if gpus > 0 && dev.join("nvidiactl").exists() {
        Ok(format!("{}/nvidiactl and {gpus} GPUs", dev.display()))
    } else {
        fix(
            format!("{}/nvidiactl or {0}/nvidia0 is missing", dev.display()),
            "sudo nvidia-modprobe -c 0 -u",
        )
    };
    Check::new("device files", found)
}

fn kernel(release: &str) -> Check {
    let release = release.trim();
    let mut parts = release.split(['.', '-']).map(|p| p.parse::<u32>().ok());
    let version = parts.next().flatten().zip(parts.next().flatten());
    let found = if version.is_some_and(|v| v >= KERNEL) {
        Ok(release.to_owned())
    } else {
        fix(
            format!(
                "{release:?} has no pidfd_getfd, which came with {}.{}",
                KERNEL.0, KERNEL.1
            ),
            "sudo apt install linux-image-generic && sudo reboot",
        )
    };
    Check::new("kernel", found)
}

/// Without it nobody holds memory.
fn seccomp(actions: &str) -> Check {
    let found = if actions.split_ascii_whitespace().any(|a| a == "user_notif") {
        Ok("user notification".into())
    } else {
        fix(
            "this kernel has no seccomp user notification, by which GPU memory is held",
            "sudo apt install linux-image-generic && sudo reboot",
        )
    };
    Check::new("seccomp", found)
}

fn group(socket: &Path) -> Check {
    let uid = Uid::effective();
    let owner = fs::metadata(socket).map(|m| m.uid());
    let found = if uid.is_root() {
        Ok("root".into())
    } else if owner.is_ok_and(|owner| owner == uid.as_raw()) {
        Ok("ghostd is this user's own".into())
    } else {
        match Group::from_name("ghost") {
            Ok(Some(ghost)) if in_group(ghost.gid) => Ok("member of ghost".into()),
            Ok(Some(_)) => fix(
                format!("user {uid} is no member of ghost, and may look only"),
                "sudo usermod -aG ghost $USER",
            ),
            _ => fix("there is no group ghost", "sudo groupadd --system ghost"),
        }
    };
    Check::new("group", found)
}

fn in_group(ghost: Gid) -> bool {
    Gid::effective() == ghost
        || nix::unistd::getgroups().is_ok_and(|groups| groups.contains(&ghost))
}

/// ghostd knows best whether its guardian answers.
fn guardian(client: &Client, node: &Node) -> Check {
    let notes = node.notes.iter().chain(&node.capabilities.notes);
    let lost = notes.into_iter().find(|n| n.contains("guardian"));
    let socket = client.socket().with_file_name("guardian.sock");
    let found = match lost {
        Some(note) => fix(note.clone(), "sudo systemctl start ghost-guardian"),
        None => Ok(socket.display().to_string()),
    };
    Check::new("guardian", found)
}

fn gpus(node: &Node) -> Check {
    let refused = node.gpus.iter().find_map(|g| match &g.state {
        GpuState::Refused(why) => Some(format!("GPU {} is left alone: {why}", g.index)),
        GpuState::Shared => None,
    });
    let found = match refused {
        _ if node.gpus.is_empty() => fix("there is none", "nvidia-smi -L"),
        Some(why) => fix(why, "ghostctl info"),
        None => Ok(format!("{} shared", node.gpus.len())),
    };
    Check::new("GPUs", found).code(ExitCode::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels() {
        for (release, ok) in [
            ("5.6.0", true),
            ("6.8.0-31-generic\n", true),
            ("5.15.0-1-amd64", true),
            ("5.4.0", false),
            ("4.19", false),
            ("", false),
            ("x.y", false),
        ] {
            assert_eq!(kernel(release).found.is_ok(), ok, "{release:?}");
        }
    }

    #[test]
    fn kernels_with_user_notification() {
        let all = "kill_process kill_thread trap errno user_notif trace log allow\n";
        assert!(seccomp(all).found.is_ok());
        for actions in ["", "kill_thread trap errno trace log allow\n"] {
            assert!(seccomp(actions).found.is_err(), "{actions:?}");
        }
    }

    #[test]
    fn device_files() {
        let dev = tempfile::tempdir().unwrap();
        assert!(devices(dev.path()).found.is_err());
        for name in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"] {
            fs::write(dev.path().join(name), "").unwrap();
        }
        let found = devices(dev.path()).found.unwrap();
        assert!(found.ends_with("nvidiactl and 2 GPUs"), "{found}");
    }
}
