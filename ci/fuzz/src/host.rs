//! What the kernel and the driver say; tenants choose some of the words.

use ghost_backend::cgroup::{self, Hierarchy};
use ghost_notify::ProcId;
use ghost_rm::DriverVersion;

/// `/proc/driver/nvidia/version`.
pub fn driver_version(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(version) = text.parse::<DriverVersion>() else {
        return;
    };
    let module = if version.open {
        "Open Kernel Module"
    } else {
        "Kernel Module"
    };
    let line = format!("NVRM version: NVIDIA UNIX {module}  {version}  Release Build");
    assert_eq!(line.parse(), Ok(version));
    // Known or not, it says so without a panic.
    let _ = version.branch().map_err(|e| e.to_string());
}

/// `/proc/PID/stat`: bytes as the whole line, and as the name of a program, which hides nothing.
pub fn proc_stat(data: &[u8]) {
    let _ = ProcId::of_stat(7, data);
    let mut line = b"7 (".to_vec();
    line.extend(data);
    line.extend(b") S 1 7 7 0 -1 4194304 9 0 0 0 1 2 0 0 20 0 1 0 4242 0 0\n");
    let start = ProcId::of_stat(7, &line).map(|id| id.start_ticks);
    assert_eq!(start.ok(), Some(4242));
}

/// `mountinfo` and `/proc/PID/cgroup`: lines of others do not hide the one that counts.
pub fn cgroup_files(data: &[u8]) {
    let _ = Hierarchy::parse(data);
    let _ = ghostctl::cgroup::mount_in(data);
    let mount = b"32 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
    let lines = [mount, data].concat();
    assert_eq!(Hierarchy::parse(&lines), Hierarchy::parse(mount));
    let found = ghostctl::cgroup::mount_in(&lines);
    assert_eq!(found.as_deref(), Some("/sys/fs/cgroup".as_ref()));

    let _ = cgroup::path_in(data);
    let _ = ghostctl::cgroup::own_in(data);
    // A cgroup may have any name, but for a line end.
    let name: Vec<u8> = data.iter().copied().filter(|&b| b != b'\n').collect();
    let lines = [b"1:name=systemd:/\n0::/job/", &*name, b"\n"].concat();
    for path in [cgroup::path_in(&lines), ghostctl::cgroup::own_in(&lines)] {
        assert!(path.is_some_and(|p| p.starts_with("/job")));
    }
}
