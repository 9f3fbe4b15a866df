//! What was measured on a real driver, through real ioctls from real processes.

mod common;

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use ghost_model::Micros;
use ghost_notify::PidFd;
use ghost_rm::abi::{
    self, CLASS_CHANNEL_GROUP, CLASS_CLIENT, CLASS_SUBDEVICE, DeviceParams, discover,
};
use ghost_rm::{AllocForm, Channel, Client, Control, Gpu, Object, Session, Status};
use ghost_standin::tenant::{CONTEXT_BYTES, Tenant};
use ghost_standin::{CLASS_COMPUTE, GroupView};

use common::{Mounted, mount, telemetry, until};

const GPU: Gpu = Gpu {
    instance: 0,
    minor: 0,
};

/// Another process with a load, killed when dropped.
struct Load {
    child: Child,
    csv: PathBuf,
    _out: tempfile::TempDir,
}

impl Load {
    fn start(on: &Mounted, name: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghost-load"));
        command.arg(name).args(args).arg("--out").arg(out);
        command.arg("--dev").arg(on.standin.dir());
        let child = command.spawn().unwrap();
        let ready = out.join(format!("{name}.ready"));
        until("a load", || ready.exists());
        let csv = out.join(format!("{name}.csv"));
        Load {
            child,
            csv,
            _out: dir,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its compute group.
    fn group(&self, on: &Mounted) -> GroupView {
        let groups = on.standin.groups().into_iter();
        let mut own = groups.filter(|g| g.pid == self.pid() && g.compute);
        own.next().expect("it has a compute group")
    }

    /// The number of its control descriptor.
    fn control_fd(&self) -> RawFd {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let is = |path: &Path| path.ends_with("nvidiactl");
        let mut fds = fds
            .flatten()
            .filter(|e| std::fs::read_link(e.path()).is_ok_and(|p| is(&p)));
        fds.next()
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn session(on: &Mounted) -> Session {
    Session::open(on.standin.dir(), AllocForm::WithRights).unwrap()
}

fn none() -> Option<&'static mut DeviceParams> {
    None
}

#[test]
fn a_device_needs_its_node_and_both_forms_of_alloc_work() {
    let Some(on) = mount(2) else { return };
    for form in [AllocForm::WithRights, AllocForm::Short] {
        let mut own = Session::open(on.standin.dir(), form).unwrap();
        let handle = own.client();
        assert_eq!(handle.0 & 0xfff0_0000, discover::CLIENT_BASE);
        let refused = own.control().alloc(
            form,
            handle,
            handle.as_object(),
            Object(7),
            abi::CLASS_DEVICE,
            none(),
        );
        let status = refused.unwrap_err().status();
        assert_eq!(status, Some(Status::INSUFFICIENT_PERMISSIONS));
        own.subdevice(GPU).unwrap();
        let second = Gpu {
            instance: 1,
            minor: 1,
        };
        assert_ne!(own.subdevice(second).unwrap(), own.subdevice(GPU).unwrap());
    }
    until("the last close", || on.standin.clients().is_empty());
}

#[test]
fn refusals_have_the_drivers_statuses() {
    let Some(on) = mount(1) else { return };
    let mut tenant = Tenant::open(on.standin.dir(), 0).unwrap();
    let group = tenant.context().unwrap();
    let client = tenant.client();
    let stranger = session(&on);
    let timeslice = |control: Control<'_>, object| {
        control
            .get_timeslice(client, object)
            .map_err(|e| e.status().unwrap())
    };
    assert_eq!(timeslice(tenant.rm(), group), Ok(2048));
    assert_eq!(
        timeslice(stranger.control(), group),
        Err(Status::INVALID_CLIENT)
    );
    let missing = Object(0x5C00_FFFF);
    assert_eq!(
        timeslice(tenant.rm(), missing),
        Err(Status::OBJECT_NOT_FOUND)
    );
    let channel = tenant.channels(group)[0];
    assert_eq!(timeslice(tenant.rm(), channel), Err(Status::NOT_SUPPORTED));

    let alloc = |parent: Object, new, class| {
        let form = AllocForm::Short;
        let made = tenant
            .rm()
            .alloc(form, client, parent, Object(new), class, none());
        made.map_err(|e| e.status().unwrap())
    };
    let root = client.as_object();
    assert_eq!(alloc(root, group.0, 0x3E), Err(Status::INVALID_OBJECT_NEW));
    assert_eq!(alloc(root, 0, 0xBEEF), Err(Status::INVALID_CLASS));
    assert_eq!(alloc(root, 0, 0xA06C), Err(Status::INVALID_OBJECT_PARENT));
    assert_eq!(
        alloc(missing, 0, 0xA06C),
        Err(Status::INVALID_OBJECT_PARENT)
    );
    assert_eq!(alloc(root, 0, 0x3E).unwrap().0 & 0xffff_0000, 0x5C00_0000);
    let free = |object| {
        tenant
            .rm()
            .free(client, root, object)
            .map_err(|e| e.status().unwrap())
    };
    assert_eq!(free(missing), Err(Status::INVALID_OBJECT_OLD));
    assert_eq!(free(group), Ok(()));
    assert_eq!(
        free(channel),
        Err(Status::INVALID_OBJECT_OLD),
        "it went with its group"
    );
}

#[test]
fn a_duplicate_acts_on_its_owners_groups() {
    let Some(on) = mount(1) else { return };
    let load = Load::start(&on, "a", &["1000", "60"]);
    let other = Load::start(&on, "b", &["1000", "60"]);
    let GroupView { group, slice, .. } = load.group(&on);
    assert_eq!(slice, Micros(2048));
    let held = PidFd::open_pid(load.pid() as i32).unwrap();
    let set = |us| {
        held.with_fd(load.control_fd(), |fd| {
            let control = Control::new(fd);
            control.set_timeslice(group.client, group.object, us)?;
            control.get_timeslice(group.client, group.object)
        })
    };
    assert_eq!(set(8192).unwrap().unwrap(), 8192);
    let (a, b) = (load.group(&on).used, other.group(&on).used);
    until("work under the new slice", || {
        let a = load.group(&on).used.since(a).0 as f64;
        let b = other.group(&on).used.since(b).0 as f64;
        a + b > 100_000.0 && (a / (a + b) - 0.8).abs() < 0.08
    });
    set(0).unwrap().unwrap();
    let before = load.group(&on).used;
    let others = other.group(&on).completed;
    until("the neighbour's work", || {
        other.group(&on).completed > others + 20
    });
    assert!(
        load.group(&on).used.since(before) <= Micros(8192),
        "a zero slice stops it"
    );
}

#[test]
fn disables_nest_outlive_the_one_who_asked_and_stop_only_their_group() {
    let Some(on) = mount(1) else { return };
    let load = Load::start(&on, "a", &["1000", "60"]);
    let other = Load::start(&on, "b", &["1000", "60"]);
    let group = load.group(&on).group;
    let fd = load.control_fd();
    let held = PidFd::open_pid(load.pid() as i32).unwrap();
    let channels: Vec<Channel> = (0..8)
        .map(|n| Channel {
            client: group.client,
            object: Object(group.object.0 + 1 + 4 * n),
        })
        .collect();

    let mut own = session(&on);
    let subdevice = own.subdevice(GPU).unwrap();
    assert!(own.channel_enabled(GPU, channels[0]).unwrap());
    own.disable_channels(subdevice, &channels[..7], true)
        .unwrap();
    assert!(!load.group(&on).disabled, "one channel may still run");
    own.disable_channels(subdevice, &channels[7..], true)
        .unwrap();
    assert!(!own.channel_enabled(GPU, channels[0]).unwrap());
    assert!(load.group(&on).disabled);
    let before = load.group(&on).completed;
    // A second time, by the group's own handle.
    own.disable_channels(subdevice, &[group], true).unwrap();
    drop(own);
    assert!(on.standin.disabled_channels().iter().all(|&(_, n)| n == 2));
    assert_eq!(on.standin.disabled_channels().len(), 8);

    let others = other.group(&on).completed;
    until("the neighbour's work", || {
        other.group(&on).completed > others + 20
    });
    assert_eq!(load.group(&on).completed, before);
    let slice = held.with_fd(fd, |fd| {
        Control::new(fd).get_timeslice(group.client, group.object)
    });
    assert_eq!(slice.unwrap().unwrap(), 2048, "it answers while disabled");

    let mut own = session(&on);
    let subdevice = own.subdevice(GPU).unwrap();
    own.disable_channels(subdevice, &channels, false).unwrap();
    assert!(load.group(&on).disabled, "two disables need two enables");
    own.disable_channels(subdevice, &[group], false).unwrap();
    until("its work", || load.group(&on).completed > before + 20);
    assert_eq!(on.standin.violations(), 0);
    own.disable_channels(subdevice, &channels[..1], false)
        .unwrap();
    assert_eq!(on.standin.violations(), 1);
}

#[test]
fn a_disable_goes_up_to_the_first_channel_that_is_not_there() {
    let Some(on) = mount(2) else { return };
    let load = Load::start(&on, "a", &["0", "60"]);
    let group = load.group(&on).group;
    let channel = |object| Channel {
        client: group.client,
        object: Object(object),
    };
    let list = [1, 5, 0xff_ffff, 9].map(|n| channel(group.object.0 + n));
    let mut own = session(&on);
    let subdevice = own.subdevice(GPU).unwrap();
    let failed = own.disable_channels(subdevice, &list, true).unwrap_err();
    assert_eq!(failed.source.status(), Some(Status::INVALID_CHANNEL));
    let disabled: Vec<_> = on.standin.disabled_channels();
    assert_eq!(disabled, [(list[0], 1), (list[1], 1)]);
    // Channels are those of the subdevice's GPU.
    let second = Gpu {
        instance: 1,
        minor: 1,
    };
    let subdevice = own.subdevice(second).unwrap();
    let failed = own
        .disable_channels(subdevice, &list[..1], true)
        .unwrap_err();
    assert_eq!(failed.source.status(), Some(Status::INVALID_CHANNEL));
}

#[test]
fn a_client_lives_until_the_last_close_of_its_file() {
    let Some(on) = mount(1) else { return };
    let mut load = Load::start(&on, "a", &["1000", "60"]);
    let group = load.group(&on).group;
    let pid = load.pid();
    let alive = || on.standin.clients().iter().any(|c| c.pid == pid);
    let held = PidFd::open_pid(pid as i32).unwrap();
    held.with_fd(load.control_fd(), |fd| {
        load.end();
        // Ended and waited for, and its group still answers on the duplicate and computes.
        let control = Control::new(fd);
        control
            .set_timeslice(group.client, group.object, 5000)
            .unwrap();
        let completed = || on.standin.groups().iter().map(|g| g.completed).sum::<u64>();
        let before = completed();
        until("work of the dead", || completed() > before);
        assert!(alive());
    })
    .unwrap();
    until("the last close", || !alive());
    assert!(on.standin.groups().is_empty());

    let mut load = Load::start(&on, "b", &["1000", "60"]);
    load.end();
    until("the end without a duplicate", || {
        on.standin.clients().is_empty()
    });
}

#[test]
fn what_there_is_can_be_found() {
    let Some(on) = mount(1) else { return };
    let mut own = session(&on);
    let subdevice = own.subdevice(GPU).unwrap();
    let quiet = own.clients().unwrap();
    assert_eq!(quiet.clients, 1);
    let load = Load::start(&on, "a", &["0", "60", "--contexts", "2"]);
    let busy = own.clients().unwrap();
    assert!(busy.clients == 2 && busy.resources > quiet.resources);

    let gpus = own.attached().unwrap();
    assert_eq!(gpus.len(), 1);
    let information = "proc/driver/nvidia/gpus/0000:01:00.0/information";
    let information = std::fs::read_to_string(on.standin.dir().join(information)).unwrap();
    assert!(information.contains(&format!("GPU UUID: \t {}\n", gpus[0].uuid)));
    let version = on.standin.dir().join("proc/driver/nvidia/version");
    let version = std::fs::read_to_string(version).unwrap();
    let found: ghost_rm::DriverVersion = version.parse().unwrap();
    assert_eq!(found.to_string(), ghost_standin::VERSION);

    assert_eq!(own.pids(subdevice, CLASS_COMPUTE).unwrap(), [load.pid()]);
    let mut all = own.pids(subdevice, CLASS_SUBDEVICE).unwrap();
    all.sort_unstable();
    let mut both = [load.pid(), std::process::id()];
    both.sort_unstable();
    assert_eq!(all, both);

    let group = load.group(&on).group;
    assert!(own.newest_client().unwrap() > group.client);
    assert!(own.client_exists(group.client));
    assert!(!own.client_exists(Client(discover::CLIENT_BASE + 99)));
    let ids = own
        .group_ids(subdevice, group.client, group.object)
        .unwrap();
    assert_eq!(ids.contexts.len(), 8);

    let held = PidFd::open_pid(load.pid() as i32).unwrap();
    held.with_fd(load.control_fd(), |fd| {
        assert!(own.is_control_node(fd));
        let control = Control::new(fd);
        let class = |handle| {
            let class = control.class_of(group.client, Object(handle));
            class.map_err(|e| e.status().unwrap())
        };
        let groups = (0x5C00_0000..0x5C00_0400).filter(|&h| class(h) == Ok(CLASS_CHANNEL_GROUP));
        assert_eq!(
            groups.count(),
            8,
            "two contexts of one compute and three copy groups"
        );
        let channel = group.object.0 + 1;
        let parent = control.parent_of(group.client, Object(channel));
        assert_eq!(parent.unwrap(), group.object);
        assert_eq!(class(channel + 1), Ok(CLASS_COMPUTE));
        assert_eq!(class(1), Err(Status::OBJECT_NOT_FOUND));
        let subdevice = Object(0x5C00_0003);
        assert_eq!(control.gpu_of(group.client, subdevice).unwrap(), gpus[0].id);
    })
    .unwrap();
}

#[test]
fn telemetry_is_of_now() {
    let Some(on) = mount(2) else { return };
    assert_eq!(telemetry(&on)["processes"], serde_json::json!([]));
    let load = Load::start(&on, "a", &["1000", "60", "--gpu", "1"]);
    let all = telemetry(&on);
    let process = &all["processes"][0];
    assert_eq!(process["pid"], load.pid());
    assert_eq!(process["gpu"], all["gpus"][1]["uuid"]);
    assert_eq!(process["memory"], CONTEXT_BYTES);
    // What the driver takes for itself is counted to nobody.
    assert_eq!(all["gpus"][1]["memory_used"], CONTEXT_BYTES + (89 << 16));
    assert_eq!(all["gpus"][0]["memory_used"], 0);
    let used = |all: &serde_json::Value| all["processes"][0]["used_us"].as_u64().unwrap();
    let before = used(&all);
    until("GPU time", || used(&telemetry(&on)) > before + 10_000);
    // Who reads it in pieces reads one text, though it grows meanwhile.
    let mut file = std::fs::File::open(on.standin.dir().join("telemetry.json")).unwrap();
    let (mut text, mut piece) = (Vec::new(), [0; 16]);
    while let n @ 1.. = std::io::Read::read(&mut file, &mut piece).unwrap() {
        text.extend_from_slice(&piece[..n]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    serde_json::from_slice::<serde_json::Value>(&text).unwrap();
}

#[test]
fn bad_calls_are_refused_and_harm_nobody() {
    let Some(on) = mount(1) else { return };
    let tenant = Tenant::open(on.standin.dir(), 0).unwrap();
    let call = |number: u8, arg: &mut [u32]| {
        let request = abi::iowr(number, size_of_val(arg));
        // SAFETY: the kernel reads and writes no more of `arg` than the request's size, its own.
        unsafe { libc::ioctl(tenant.fd().as_raw_fd(), request as _, arg.as_mut_ptr()) }
    };
    assert_eq!(call(0x99, &mut [0; 8]), -1, "an unknown number");
    assert_eq!(
        call(abi::ESC_RM_CONTROL, &mut [0; 7]),
        -1,
        "an unknown size"
    );
    let root = tenant.client().0;
    // Parameters at an address that is not there, then of a wrong size, then far too many.
    for (address, size, status) in [
        (0x10u32, 8, Status::INVALID_ADDRESS),
        (0, 0, Status::INVALID_PARAM_STRUCT),
        (0x10, u32::MAX, Status::INVALID_PARAM_STRUCT),
    ] {
        let database = discover::CLIENT_DATABASE.number();
        let mut arg = [root, root, database, 0, address, 0, size, 0];
        assert_eq!(call(abi::ESC_RM_CONTROL, &mut arg), 0);
        assert_eq!(Status(arg[7]), status);
    }
    let node = std::fs::File::open(on.standin.dir().join("nvidia0")).unwrap();
    let refused = Control::new(node.as_fd()).alloc(
        AllocForm::Short,
        Client(0),
        Object(0),
        Object(0),
        CLASS_CLIENT,
        none(),
    );
    assert_eq!(
        refused.unwrap_err().status(),
        None,
        "a gpu's node is no control file"
    );
    assert_eq!(on.standin.clients().len(), 1);
}

#[test]
fn a_load_writes_what_burn_writes() {
    let Some(on) = mount(1) else { return };
    let backlog = Load::start(&on, "a", &["1000", "60", "--tamper-slice", "777"]);
    let periodic = Load::start(&on, "b", &["100", "60", "5"]);
    let lines = |csv: &Path| -> Vec<(f64, f64)> {
        let text = std::fs::read_to_string(csv).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let pair = |line: &str| {
            let (a, b) = line.split_once(',').unwrap();
            (a.parse().unwrap(), b.parse().unwrap())
        };
        whole.lines().map(pair).collect()
    };
    until("progress", || {
        lines(&backlog.csv).last().is_some_and(|l| l.1 > 10.0)
    });
    until("latencies", || lines(&periodic.csv).len() > 10);
    assert!(lines(&periodic.csv).iter().all(|&(_, ms)| ms >= 0.132));
    assert!(lines(&backlog.csv).is_sorted());
    until("tampering", || backlog.group(&on).slice == Micros(777));
}
