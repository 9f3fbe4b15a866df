//! `/etc/ghost/ghostd.toml` and the command line, which wins over it.

use clap::Parser;
use ghost_model::Micros;
use ghost_model::name::sanitize;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Read where no `--config` is given; it need not exist.
pub const DEFAULT_FILE: &str = "/etc/ghost/ghostd.toml";

/// The command line of `ghostd`.
#[derive(Clone, Debug, Default, Parser)]
#[command(
    name = "ghostd",
    version,
    about = "Ghost's daemon: shares GPUs between containers"
)]
pub struct Args {
    /// Daemon configuration
    #[arg(long, value_name = "FILE", env = "GHOSTD_CONFIG")]
    pub config: Option<PathBuf>,
    /// How to enforce: auto, stock or sim
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<BackendChoice>,
    /// Where to listen
    #[arg(long, value_name = "PATH", env = "GHOST_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Where containers, counters and the journal are kept
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Where sockets are made that end with the daemon
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Where container files lie
    #[arg(long, value_name = "DIR")]
    pub containers_dir: Option<PathBuf>,
    /// Print the OpenAPI document and exit
    #[arg(long)]
    pub print_openapi: bool,
    /// Decide every step of a journal again, say whether the plans are equal, and exit
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
}

/// Which backend to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// `patched` where `/dev/nvidia-ghost` answers, `stock` where another NVIDIA driver is loaded, else
    /// `sim`, which says so.
    #[default]
    Auto,
    /// NVIDIA's open kernel module with Ghost woven in.
    Patched,
    /// An unmodified NVIDIA driver.
    Stock,
    /// A GPU made of arithmetic.
    Sim,
}

/// Everything that may be configured, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where to listen.
    pub socket: PathBuf,
    /// The socket's group, whose members administer.
    pub socket_group: String,
    /// The socket's mode; 0o666 lets everybody look.
    pub socket_mode: u32,
    /// Where container runtimes hand over the listeners of seccomp filters; its group and mode are
    /// the socket's.
    pub notify_socket: PathBuf,
    /// Where containers, counters and the journal are kept.
    pub state_dir: PathBuf,
    /// Where sockets are made that end with the daemon.
    pub run_dir: PathBuf,
    /// Where container files lie.
    pub containers_dir: PathBuf,
    /// Which backend.
    pub backend: BackendChoice,
    /// GPUs of the simulated backend.
    pub sim_gpus: u32,
    /// The guardian's socket, for the stock backend.
    pub guardian: PathBuf,
    /// The directory of a stand-in for the driver, to test the stock backend without a GPU.
    pub standin: Option<PathBuf>,
    /// The loop's period where nothing happens.
    pub tick: Micros,
    /// How work of other hosts is taken, if it is.
    pub overflow: Option<Overflow>,
}

/// `[overflow]`: work of other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Where other hosts connect.
    pub listen: SocketAddr,
    /// The secret that they must know; without one, it is made under the state directory, and on
    /// loopback nobody is asked for one.
    pub token_file: Option<PathBuf>,
    /// Whether connections are TLS.
    pub tls: bool,
    /// The program that computes for a client; `None`: beside ghostd.
    pub executor: Option<PathBuf>,
    /// Whom executors run as where ghostd is root.
    pub user: String,
    /// The most sessions at a time.
    pub max_sessions: usize,
    /// Where executors keep images.
    pub cache_dir: PathBuf,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{path}: {source}: check the path given with --config")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has something in it that cannot be.
    #[error("{path}: {detail}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What, with the line where TOML itself is broken.
        detail: String,
    },
}

const KEYS: &[&str] = &[
    "socket",
    "socket_group",
    "socket_mode",
    "notify_socket",
    "state_dir",
    "run_dir",
    "containers_dir",
    "backend",
    "sim_gpus",
    "guardian",
    "standin",
    "tick_ms",
    "overflow",
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    socket: Option<PathBuf>,
    socket_group: Option<String>,
    socket_mode: Option<String>,
    notify_socket: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    run_dir: Option<PathBuf>,
    containers_dir: Option<PathBuf>,
    backend: Option<BackendChoice>,
    sim_gpus: Option<u32>,
    guardian: Option<PathBuf>,
    standin: Option<PathBuf>,
    tick_ms: Option<u64>,
    overflow: Option<OverflowTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverflowTable {
    listen: String,
    token_file: Option<PathBuf>,
    tls: Option<bool>,
    executor: Option<PathBuf>,
    user: Option<String>,
    max_sessions: Option<usize>,
    cache_dir: Option<PathBuf>,
}

impl OverflowTable {
    fn read(self, here: &Surroundings) -> Result<Overflow, String> {
        let listen: SocketAddr = self.listen.parse().map_err(|_| {
            format!(
                "overflow.listen: {:?} is no address: write IP:PORT, such as \"127.0.0.1:7000\"",
                sanitize(&self.listen)
            )
        })?;
        let max_sessions = self.max_sessions.unwrap_or(64);
        if !(1..=4096).contains(&max_sessions) {
            return Err(format!(
                "overflow.max_sessions: {max_sessions} is not within 1 and 4096"
            ));
        }
        Ok(Overflow {
            listen,
            token_file: self.token_file,
            tls: self.tls.unwrap_or(!listen.ip().is_loopback()),
            executor: self.executor,
            user: self.user.unwrap_or_else(|| "nobody".into()),
            max_sessions,
            cache_dir: self.cache_dir.unwrap_or_else(|| here.cache_dir()),
        })
    }
}

/// What the defaults depend on.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Whether ghostd runs as root.
    pub root: bool,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`.
    pub config_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<PathBuf>,
}

impl Surroundings {
    /// Of this process.
    pub fn here() -> Self {
        let dir = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        Surroundings {
            root: nix::unistd::geteuid().is_root(),
            runtime_dir: dir("XDG_RUNTIME_DIR"),
            state_home: dir("XDG_STATE_HOME"),
            home: dir("HOME"),
            config_home: dir("XDG_CONFIG_HOME"),
            cache_home: dir("XDG_CACHE_HOME"),
        }
    }

    fn home(&self) -> PathBuf {
        self.home.clone().unwrap_or_else(std::env::temp_dir)
    }

    fn run_dir(&self) -> PathBuf {
        match &self.runtime_dir {
            _ if self.root => "/run/ghost".into(),
            Some(dir) => dir.join("ghost"),
            None => self.home().join(".local/state/ghost/run"),
        }
    }

    fn state_dir(&self) -> PathBuf {
        match &self.state_home {
            _ if self.root => "/var/lib/ghost".into(),
            Some(dir) => dir.join("ghost"),
            None => self.home().join(".local/state/ghost"),
        }
    }

    fn cache_dir(&self) -> PathBuf {
        match &self.cache_home {
            _ if self.root => "/var/cache/ghost".into(),
            Some(dir) => dir.join("ghost"),
            None => self.home().join(".cache/ghost"),
        }
    }

    fn containers_dir(&self) -> PathBuf {
        match &self.config_home {
            _ if self.root => "/etc/ghost/containers.d".into(),
            Some(dir) => dir.join("ghost/containers.d"),
            None => self.home().join(".config/ghost/containers.d"),
        }
    }
}

impl Config {
    /// The configuration that a command line asks for, on this host.
    ///
    /// # Errors
    /// [`ConfigError`], which names the file and the line or key.
    pub fn load(args: &Args) -> Result<Config, ConfigError> {
        let path = args.config.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if args.config.is_none() && e.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(source) => {
                return Err(ConfigError::Read {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        Config::parse(&text, args, &Surroundings::here()).map_err(|detail| ConfigError::Content {
            path: path.to_owned(),
            detail,
        })
    }

    /// The same from a text, for hosts that are elsewhere.
    ///
    /// # Errors
    /// One line that names the key and what it takes.
    pub fn parse(text: &str, args: &Args, here: &Surroundings) -> Result<Config, String> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e
                .span()
                .and_then(|s| text.get(..s.start))
                .map_or(1, |before| before.matches('\n').count() + 1);
            format!("line {line}: {}", e.message())
        })?;
        if let Some(unknown) = table.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(unknown_key(unknown));
        }
        let file: File = table
            .try_into()
            .map_err(|e: toml::de::Error| e.message().to_owned())?;
        let socket_mode = match file.socket_mode.as_deref() {
            None => 0o660,
            Some(text) => u32::from_str_radix(text, 8)
                .ok()
                .filter(|m| *m <= 0o777)
                .ok_or_else(|| {
                    format!(
                        "socket_mode: {:?} is not a mode: write an octal text such as \"0660\"",
                        sanitize(text)
                    )
                })?,
        };
        let tick_ms = file.tick_ms.unwrap_or(50);
        if !(5..=1000).contains(&tick_ms) {
            return Err(format!("tick_ms: {tick_ms} is not within 5 and 1000"));
        }
        let sim_gpus = file.sim_gpus.unwrap_or(1);
        if !(1..=64).contains(&sim_gpus) {
            return Err(format!("sim_gpus: {sim_gpus} is not within 1 and 64"));
        }
        let overflow = file.overflow.map(|table| table.read(here)).transpose()?;
        let pick = |arg: &Option<PathBuf>, file: Option<PathBuf>, default: PathBuf| {
            arg.clone().or(file).unwrap_or(default)
        };
        let run_dir = pick(&args.run_dir, file.run_dir, here.run_dir());
        Ok(Config {
            socket: pick(&args.socket, file.socket, run_dir.join("ghostd.sock")),
            socket_group: file.socket_group.unwrap_or_else(|| "ghost".into()),
            socket_mode,
            notify_socket: file
                .notify_socket
                .unwrap_or_else(|| run_dir.join("notify.sock")),
            state_dir: pick(&args.state_dir, file.state_dir, here.state_dir()),
            containers_dir: pick(
                &args.containers_dir,
                file.containers_dir,
                here.containers_dir(),
            ),
            backend: args.backend.or(file.backend).unwrap_or_default(),
            sim_gpus,
            guardian: file
                .guardian
                .unwrap_or_else(|| run_dir.join("guardian.sock")),
            standin: file.standin,
            tick: Micros::from_millis(tick_ms),
            overflow,
            run_dir,
        })
    }
}

fn unknown_key(key: &str) -> String {
    let nearest = KEYS
        .iter()
        .map(|k| (strsim::jaro_winkler(k, key), k))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| format!(", did you mean {k}?"))
        .unwrap_or_default();
    format!("unknown key {:?}{nearest}", sanitize(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, &Args::default(), &Surroundings::default())
    }

    #[test]
    fn typos_and_bad_values_are_named() {
        for (text, want) in [
            ("sockt = \"/x\"", "did you mean socket?"),
            ("tick_ms = 0", "tick_ms"),
            ("socket_mode = \"rw\"", "\"rw\""),
            ("backend = \"vulkan\"", "vulkan"),
            ("\nsocket = ", "line 2"),
            ("[overflow]\nlisten = \"host\"", "overflow.listen: \"host\""),
            ("[overflow]\nport = 1", "port"),
            (
                "[overflow]\nlisten = \"[::1]:1\"\nmax_sessions = 0",
                "max_sessions: 0",
            ),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.contains(want), "{text:?} gave {e:?}");
        }
    }

    #[test]
    fn the_example_says_what_holds_without_it() {
        let example = include_str!("../systemd/ghostd.toml");
        let said: Vec<&str> = example
            .lines()
            .filter_map(|l| l.strip_prefix('#'))
            .filter(|l| !l.starts_with(' '))
            .collect();
        let root = Surroundings {
            root: true,
            ..Surroundings::default()
        };
        let parse = |text: &str| Config::parse(text, &Args::default(), &root).unwrap();
        assert_eq!(said.len(), KEYS.len() - 2, "all but standin and overflow");
        assert_eq!(parse(&said.join("\n")), parse(""));
        assert_eq!(parse(example), parse(""));
    }

    #[test]
    fn tls_is_on_beyond_this_host() {
        let at = |listen: &str| {
            let text = format!("[overflow]\nlisten = {listen:?}");
            parse(&text).unwrap().overflow.unwrap()
        };
        assert!(!at("127.0.0.1:7000").tls && !at("[::1]:7000").tls);
        assert!(at("0.0.0.0:7000").tls && at("192.0.2.1:7000").tls);
        assert_eq!(at("127.0.0.1:7000").user, "nobody");
        assert_eq!(parse("").unwrap().overflow, None);
    }

    #[test]
    fn the_command_line_wins_and_directories_follow_the_user() {
        let args = Args {
            socket: Some("/a.sock".into()),
            backend: Some(BackendChoice::Sim),
            ..Args::default()
        };
        let root = Surroundings {
            root: true,
            ..Surroundings::default()
        };
        let c = Config::parse("socket = \"/b.sock\"\nbackend = \"stock\"", &args, &root).unwrap();
        assert_eq!(c.socket, Path::new("/a.sock"));
        assert_eq!(c.backend, BackendChoice::Sim);
        assert_eq!(c.state_dir, Path::new("/var/lib/ghost"));
        let user = Surroundings {
            runtime_dir: Some("/run/user/7".into()),
            home: Some("/home/u".into()),
            ..Surroundings::default()
        };
        let c = Config::parse("", &Args::default(), &user).unwrap();
        assert_eq!(c.socket, Path::new("/run/user/7/ghost/ghostd.sock"));
        assert_eq!(c.state_dir, Path::new("/home/u/.local/state/ghost"));
    }
}
