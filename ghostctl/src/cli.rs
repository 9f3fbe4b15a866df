//! The command line: every flag once. Help texts, man pages and completions come from here.

use crate::complete;
use clap::{Args, Parser, Subcommand, ValueHint};
use ghost_model::value::Overflow;
use ghost_model::{GpuId, Name};
use std::path::PathBuf;
use std::time::Duration;

/// Share GPUs among containers, and hold each to its share.
#[derive(Debug, Parser)]
#[command(
    name = "ghostctl",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Examples:
  ghostctl create trainer --weight 70
  ghostctl run trainer -- python train.py
  ghostctl limit trainer gpu.max=50% --wait
  ghostctl top

Exit codes:
  0 done, 1 failed, 2 bad arguments or configuration, 3 not supported here,
  4 permission denied, 5 conflict, 6 no such container, GPU or key,
  7 ghostd is not running, 9 NVIDIA driver not loaded, 124 --wait ran out of time;
  `run` passes the command's own, or 125 ghostctl failed, 126 cannot execute,
  127 command not found

Environment:
  GHOST_SOCKET  as --socket
  GHOST_FORMAT  as --format: table or json
  NO_COLOR      no colour, also on a terminal"
)]
pub struct Cli {
    /// Socket of ghostd [default: /run/ghost/ghostd.sock]
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        env = "GHOST_SOCKET",
        value_name = "PATH",
        value_hint = ValueHint::FilePath
    )]
    pub socket: Option<PathBuf>,

    /// Say on standard error what is asked of ghostd
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub verbose: bool,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a container
    Create(Create),
    /// Change a container's settings, all of them or none
    Limit(Limit),
    /// Run a command in a container
    Run(Run),
    /// Put running processes, or a kernel cgroup, into a container
    Attach(Attach),
    /// List containers
    List(List),
    /// Tell a person how a container does
    Status(One),
    /// Print everything of a container as KEY=value lines, for scripts
    Show(One),
    /// Print one value as a file would hold it
    Get(Get),
    /// Print each setting with the file that it came from
    Cat(One),
    /// Drop what `limit` changed; what the files say holds again
    Revert(Verb),
    /// Watch who uses the GPUs
    Top(Top),
    /// Print what happened
    Events(Events),
    /// Keep a container's work off the GPU until it is thawed
    Freeze(Wait),
    /// Let a frozen container's work run again
    Thaw(Wait),
    /// Delete a container; its processes go on outside of it
    Delete(Delete),
    /// Make containers be what a file says
    Apply(Apply),
    /// List GPUs, or show one
    #[command(subcommand)]
    Gpu(Gpu),
    /// Add, list and remove the hosts whose GPUs containers of this one may use
    #[command(subcommand)]
    Peer(Peer),
    /// Say what this node enforces, key by key
    Info(Reading),
    /// Check that Ghost can work here; each failed line ends with the command that fixes it
    Check(Reading),
    /// Print a seccomp profile by which an OCI runtime holds a container's GPU memory
    SeccompProfile(SeccompProfile),
    /// Print a completion script
    Completion(Completion),
    /// Look inside
    #[command(subcommand)]
    Debug(Debug),
    /// Join the container, then become the command; `run` starts this
    #[command(hide = true)]
    Enter(Enter),
}

/// Settings of a container, as flags and as KEY=VALUE.
#[derive(Debug, Default, Args)]
pub struct Limits {
    /// GPU to use, by index, UUID or PCI address; may be repeated
    #[arg(long = "gpu", value_name = "GPU", add = complete::gpus())]
    pub gpus: Vec<GpuId>,
    /// Share of GPU time among those that want it, 1 to 10000 [default: 100]
    #[arg(long, value_name = "N")]
    pub weight: Option<String>,
    /// Most GPU time, as a percentage or as MICROSECONDS/PERIOD
    #[arg(long, value_name = "50%|US/PERIOD")]
    pub max: Option<String>,
    /// Most GPU memory, beyond which allocations fail
    #[arg(long, value_name = "SIZE")]
    pub memory_max: Option<String>,
    /// GPU memory beyond which the container is slowed
    #[arg(long, value_name = "SIZE")]
    pub memory_high: Option<String>,
}

/// `create`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ghostctl create trainer --weight 200 --max 50%
  ghostctl create team/notebook gpu.idle=1 --label owner=ada
  ghostctl create trainer -f trainer.toml")]
pub struct Create {
    /// Name; `team/job` makes a container below `team`
    pub name: Name,
    /// Settings, such as gpu.latency=target=5000
    #[arg(value_name = "KEY=VALUE", add = complete::assignments())]
    pub settings: Vec<String>,
    #[command(flatten)]
    /// The same as flags
    pub limits: Limits,
    /// File with a table [container.NAME] to begin from; `-` is standard input
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Label for your own order; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

/// `limit`
#[derive(Debug, Args)]
#[command(after_help = "An empty value puts a key back to its default.

Examples:
  ghostctl limit trainer gpu.weight=70 gpu.max=50%
  ghostctl limit trainer gpu.memory.max=8G --gpu 0
  ghostctl limit trainer gpu.max= --wait")]
pub struct Limit {
    /// Container, or the beginning of its name if no other begins so
    #[arg(add = complete::containers())]
    pub name: Name,
    /// Settings; ghost(7) lists the keys
    #[arg(value_name = "KEY=VALUE", required = true, add = complete::assignments())]
    pub settings: Vec<String>,
    /// Set the values for this GPU only
    #[arg(long, value_name = "GPU", add = complete::gpus())]
    pub gpu: Option<GpuId>,
    /// Forget the change when ghostd restarts
    #[arg(long)]
    pub runtime: bool,
    /// Say what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Return once the change is in force [default time: 5s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
          default_missing_value = "5s", value_parser = duration)]
    pub wait: Option<Duration>,
}

/// `run`
#[derive(Debug, Args)]
#[command(
    after_help = "The container is made if it is not there. The command gets a kernel cgroup of its own, so
that its children belong to the container too. A seccomp filter, which they inherit, has their
allocations of GPU memory wait for Ghost's answer. An ordinary user's filter takes from the
command the right to gain privileges: sudo does not work in it.

A service of systemd becomes its program with --in-place: systemd then stops, watches and
restarts the program itself, and all of the service's cgroup is in the container.

Examples:
  ghostctl run trainer -- python train.py
  ghostctl run --rm --weight 30 --max 25% sweep -- ./sweep --quick
  ghostctl run --on bighost trainer -- python train.py
  ExecStart=/usr/bin/ghostctl run --in-place trainer -- /usr/bin/python3 /srv/train.py"
)]
pub struct Run {
    #[command(flatten)]
    /// Settings for a container that is made
    pub limits: Limits,
    /// Delete the container afterwards if this command made it
    #[arg(long)]
    pub rm: bool,
    /// Become the command, in the cgroup where this was started
    #[arg(long, conflicts_with = "rm")]
    pub in_place: bool,
    /// Compute on this peer, or here (`never`), or as gpu.overflow has it [default: the container's]
    #[arg(long, value_name = "PEER|HOST:PORT|never|auto|always", conflicts_with = "in_place",
          add = complete::peers())]
    pub on: Option<Overflow>,
    /// Run the command as this user
    #[arg(long, value_name = "USER", hide = true)]
    pub user: Option<String>,
    /// Container
    #[arg(add = complete::containers())]
    pub name: Name,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND",
          value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<std::ffi::OsString>,
}

/// `attach`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ghostctl attach trainer 4242
  ghostctl attach trainer --cgroup /system.slice/trainer.service")]
pub struct Attach {
    /// Container, or the beginning of its name if no other begins so
    #[arg(add = complete::containers())]
    pub name: Name,
    /// Processes; their children do not follow
    #[arg(value_name = "PID", required_unless_present = "cgroup",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
    /// A cgroup v2 path below its mount; all processes in it and below, later ones too
    #[arg(long, value_name = "PATH", conflicts_with = "pids")]
    pub cgroup: Option<String>,
}

/// How a reading command prints.
#[derive(Clone, Debug, Default, Args)]
pub struct Reading {
    /// Print JSON as the REST interface has it, whatever --format says
    #[arg(long)]
    pub json: bool,
    /// `table`, `json`, or the columns to print
    #[arg(long, env = "GHOST_FORMAT", value_name = "KEY,KEY")]
    pub format: Option<String>,
}

/// `list`
#[derive(Debug, Args)]
#[command(
    after_help = "Columns are those of the table in lower case, and any key of ghost(7).

Examples:
  ghostctl list
  ghostctl list --format name,state,gpu.max
  ghostctl list -q --label team=nlp"
)]
pub struct List {
    #[command(flatten)]
    /// How to print
    pub reading: Reading,
    /// Names only
    #[arg(short, long)]
    pub quiet: bool,
    /// Only containers with this label
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub label: Option<(String, String)>,
}

/// A reading command on one container.
#[derive(Debug, Args)]
pub struct One {
    /// Container, or the beginning of its name if no other begins so
    #[arg(add = complete::containers())]
    pub name: Name,
    #[command(flatten)]
    /// How to print
    pub reading: Reading,
}

/// A changing command on one container.
#[derive(Debug, Args)]
pub struct Verb {
    /// Container, or the beginning of its name if no other begins so
    #[arg(add = complete::containers())]
    pub name: Name,
}

/// `get`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ghostctl get trainer gpu.weight
  ghostctl get trainer gpu.memory.current --gpu 0")]
pub struct Get {
    /// Container, or the beginning of its name if no other begins so
    #[arg(add = complete::containers())]
    pub name: Name,
    /// Key; ghost(7) lists them
    #[arg(value_name = "KEY", add = complete::keys())]
    pub key: String,
    /// The value on this GPU
    #[arg(long, value_name = "GPU", add = complete::gpus())]
    pub gpu: Option<GpuId>,
    #[command(flatten)]
    /// How to print
    pub reading: Reading,
}

/// `top`
#[derive(Debug, Args)]
#[command(
    after_help = "One row for each container on each GPU. WANTED is the share that its weight gives it while
everybody wants the GPU. A program that is not always busy uses less than its share, and what
it leaves goes to the others: TIME% below WANTED is no fault of the limit.

Examples:
  ghostctl top
  ghostctl top -n 1 -d 5s --json"
)]
pub struct Top {
    #[command(flatten)]
    /// How to print
    pub reading: Reading,
    /// Stop after this many tables
    #[arg(short = 'n', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Time between tables
    #[arg(short = 'd', value_name = "INTERVAL", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

/// `events`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ghostctl events --since 10m
  ghostctl events -f --json")]
pub struct Events {
    /// Go on printing
    #[arg(short, long)]
    pub follow: bool,
    /// Only later ones: an event's id, a time (RFC 3339) or how long ago (10m)
    #[arg(long, value_name = "WHEN", value_parser = since)]
    pub since: Option<Since>,
    #[command(flatten)]
    /// How to print
    pub reading: Reading,
}

/// From where events are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// After this event.
    Id(u64),
    /// After this moment.
    Time(time::OffsetDateTime),
}

/// `freeze`, `thaw`
#[derive(Debug, Args)]
pub struct Wait {
    /// Container, or the beginning of its name if no other begins so
    #[arg(add = complete::containers())]
    pub name: Name,
    /// Return once it is in force [default time: 5s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
          default_missing_value = "5s", value_parser = duration)]
    pub wait: Option<Duration>,
}

/// `delete`
#[derive(Debug, Args)]
pub struct Delete {
    /// Container, its whole name
    #[arg(add = complete::containers())]
    pub name: Name,
    /// Also if processes or containers are in it; they move to the container above
    #[arg(long)]
    pub force: bool,
}

/// `apply`
#[derive(Debug, Args)]
#[command(after_help = "The file is one of those in /etc/ghost/containers.d.

Examples:
  ghostctl apply -f containers.toml --dry-run
  ghostctl apply -f - --prune < containers.toml")]
pub struct Apply {
    /// File with [container.NAME] tables; `-` is standard input
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Say what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Delete the containers that the file does not have, but for those of containers.d
    #[arg(long)]
    pub prune: bool,
}

/// `gpu`
#[derive(Debug, Subcommand)]
pub enum Gpu {
    /// List the GPUs of this host
    List(GpuList),
    /// Show one GPU and who is on it
    Show(GpuShow),
}

/// `gpu list`
#[derive(Debug, Args)]
pub struct GpuList {
    #[command(flatten)]
    /// How to print
    pub reading: Reading,
    /// UUIDs only
    #[arg(short, long)]
    pub quiet: bool,
}

/// `gpu show`
#[derive(Debug, Args)]
pub struct GpuShow {
    /// GPU, by index, UUID or PCI address
    #[arg(value_name = "GPU", add = complete::gpus())]
    pub gpu: GpuId,
    #[command(flatten)]
    /// How to print
    pub reading: Reading,
}

/// `peer`
#[derive(Debug, Subcommand)]
pub enum Peer {
    /// Add a peer, or change one
    Add(PeerAdd),
    /// List the peers
    List(Reading),
    /// Let programs begin on a peer again that was drained
    Join {
        /// Its name
        #[arg(value_name = "PEER", add = complete::peers())]
        name: String,
    },
    /// Have no program begin on a peer; those that compute there go on
    Drain {
        /// Its name
        #[arg(value_name = "PEER", add = complete::peers())]
        name: String,
    },
    /// Forget a peer
    Remove {
        /// Its name
        #[arg(value_name = "PEER", add = complete::peers())]
        name: String,
    },
}

/// `peer add`
#[derive(Debug, Args)]
#[command(
    after_help = "`ghostctl info` on the peer shows its address, the fingerprint of its certificate, and where its
token lies. Copy the token's file; it is not needed after this command.

Examples:
  ghostctl peer add bighost bighost.example:7000 --token-file token --fingerprint 3f0c...
  ghostctl run --on bighost trainer -- python train.py
  ghostctl limit trainer gpu.overflow=bighost"
)]
pub struct PeerAdd {
    /// Name, for gpu.overflow and `run --on`
    pub name: String,
    /// Where its ghostd takes work of other hosts
    #[arg(value_name = "HOST:PORT")]
    pub address: String,
    /// File with the secret that it asks for; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// Fingerprint of its certificate, without which it must be this host
    #[arg(long, value_name = "SHA256")]
    pub fingerprint: Option<String>,
}

/// `seccomp-profile`
#[derive(Debug, Args)]
#[command(
    after_help = "The profile is that of the OCI runtime specification (linux.seccomp in config.json), and what
podman takes. With it the runtime gives the container's allocations of GPU memory to Ghost, which
answers them by the limits of the Ghost container that the profile names.

Examples:
  ghostctl seccomp-profile --container trainer > trainer.json
  ghostctl seccomp-profile --base /usr/share/containers/seccomp.json --container trainer
  podman run --security-opt seccomp=trainer.json ..."
)]
pub struct SeccompProfile {
    /// Profile to merge into; `-` is standard input [default: one that allows all]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub base: Option<PathBuf>,
    /// Container; without one the profile's user has to set listenerMetadata
    #[arg(long, value_name = "NAME", add = complete::containers())]
    pub container: Option<Name>,
    /// Socket that the runtime gives the listener to [default: the one that ghostd names]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub listener: Option<PathBuf>,
}

/// `completion`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(ghostctl completion bash)
  ghostctl completion fish > ~/.config/fish/completions/ghostctl.fish")]
pub struct Completion {
    /// Shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    pub shell: String,
}

/// `debug`
#[derive(Debug, Subcommand)]
pub enum Debug {
    /// Say where ghostd's journal is, and print its last lines
    Journal {
        /// Where ghostd keeps its state [default: /var/lib/ghost]
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        state_dir: Option<PathBuf>,
        /// How many lines
        #[arg(short = 'n', value_name = "COUNT", default_value_t = 10)]
        lines: usize,
    },
    /// Run the policy over a journal again, and report where it decides otherwise
    Replay {
        /// Journal file
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Write what a bug report needs into one JSON file; no secrets, no file contents
    Bundle {
        /// Where to; `-` is standard output
        #[arg(short, long, value_name = "FILE", default_value = "ghost-bundle.json",
              value_hint = ValueHint::FilePath)]
        output: PathBuf,
        /// Where ghostd keeps its state [default: /var/lib/ghost]
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        state_dir: Option<PathBuf>,
    },
}

/// `enter`, which `run` starts and nobody types.
#[derive(Debug, Args)]
pub struct Enter {
    /// Directory of the cgroup to move into first
    #[arg(long)]
    pub join: Option<PathBuf>,
    /// Attach this process alone, for want of a cgroup of its own
    #[arg(long)]
    pub alone: bool,
    /// Become this user before the command begins
    #[arg(long)]
    pub user: Option<String>,
    /// Container
    pub name: Name,
    /// Command and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<std::ffi::OsString>,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".into()),
    }
}

/// `5s`, `200ms`, or a bare number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text
        .bytes()
        .all(|b| b.is_ascii_digit() || b == b'.')
        .then(|| text.parse::<f64>().ok())
        .flatten()
        .and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds
        .or_else(|| humantime::parse_duration(text).ok())
        .ok_or_else(|| "write a time such as 5s or 200ms".into())
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|d| {
        if d >= Duration::from_millis(100) {
            Ok(d)
        } else {
            Err("the shortest interval is 100ms".into())
        }
    })
}

fn since(text: &str) -> Result<Since, String> {
    use time::format_description::well_known::Rfc3339;
    if let Ok(id) = text.parse() {
        return Ok(Since::Id(id));
    }
    if let Ok(at) = time::OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(Since::Time(at));
    }
    humantime::parse_duration(text)
        .ok()
        .and_then(|ago| time::Duration::try_from(ago).ok())
        .and_then(|ago| time::OffsetDateTime::now_utc().checked_sub(ago))
        .map(Since::Time)
        .ok_or_else(|| "write an event's id, a time such as 2026-01-31T12:00:00Z, or 10m".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_and_moments() {
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        for bad in [
            "",
            "-1",
            "5 parsecs",
            "inf",
            "1e9",
            "9".repeat(400).as_str(),
        ] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
        assert!(interval("0").is_err());
        assert_eq!(since("17"), Ok(Since::Id(17)));
        assert!(
            matches!(since("2026-01-31T12:00:00Z"), Ok(Since::Time(t)) if t.unix_timestamp() == 1_769_860_800)
        );
        assert!(matches!(since("10m"), Ok(Since::Time(_))));
        assert!(since("yesterday").is_err() && since("99999999999y").is_err());
    }

    #[test]
    fn wait_takes_an_optional_time() {
        let wait = |args: &[&str]| {
            let all = [&["ghostctl", "limit", "a", "gpu.weight=1"], args].concat();
            match Cli::try_parse_from(all).map(|c| c.command) {
                Ok(Command::Limit(l)) => Ok(l.wait),
                other => Err(format!("{other:?}")),
            }
        };
        assert_eq!(wait(&[]), Ok(None));
        assert_eq!(wait(&["--wait"]), Ok(Some(Duration::from_secs(5))));
        assert_eq!(wait(&["--wait=20ms"]), Ok(Some(Duration::from_millis(20))));
    }
}
