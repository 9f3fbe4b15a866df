//! What lets a program compute on a peer: a ticket, which names the peer and has its secret, and
//! Ghost's libcuda and NVML in the place of the driver's. All lie in a directory of the program's own.

use crate::client::{Client, Target};
use crate::error::Error;
use crate::output;
use ghost_model::{Kind, Name, Problem};
use ghost_wire::hello::{TICKET_ENV, Ticket};
use hyper::Method;
use serde_json::json;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The environment variable that names Ghost's libcuda, for those who build it themselves.
const SHIM_ENV: &str = "GHOST_SHIM";
/// The names under which it may lie beside `ghostctl`: installed, and as cargo makes it.
const BESIDE: [&str; 2] = ["overflow/libcuda.so.1", "libghost_shim.so"];
/// Where a package puts it.
const INSTALLED: &str = "/usr/lib/ghost/overflow/libcuda.so.1";
/// The name that programs look for.
const LIBCUDA: &str = "libcuda.so.1";
/// The name of NVML that programs look for.
const NVML: &str = "libnvidia-ml.so.1";
/// The names under which Ghost's lies beside its libcuda: installed, and as cargo makes it.
const NVMLS: [&str; 2] = [NVML, "libghost_nvml.so"];
/// The dynamic linker's directories.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The right of one program to compute on a peer, until it ends.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    dir: TempDir,
    ticket: PathBuf,
    /// Where its processes count.
    stats: Option<PathBuf>,
    container: Name,
}

impl Elsewhere {
    /// Asks ghostd for a ticket and lays all out.
    ///
    /// # Errors
    /// There is no such peer or no libcuda of Ghost's, or the directory cannot be made.
    pub(crate) async fn new(client: &Client, name: &Name, on: &str) -> Result<Elsewhere, Error> {
        let shim = shim()?;
        let target = Target::container(name, "/ticket");
        let wish = json!({ "on": on });
        let answer = client
            .call(Method::POST, target, Some(&wish), Duration::ZERO)
            .await?;
        let mut ticket: Ticket = crate::client::typed("POST ticket", answer)?;
        // Not counted is better than not run.
        let about = json!({ "container": name, "peer": on });
        let stats = ticket.stats.take().map(PathBuf::from).filter(|dir| {
            let made = counters(dir, &about.to_string());
            if let Err(e) = &made {
                output::note(format!("calls are not counted: {}: {e}", dir.display()));
            }
            made.is_ok()
        });
        ticket.stats = stats.as_ref().map(|dir| dir.display().to_string());
        let failed = |e: io::Error| Error::io("the directory of the ticket", e);
        let dir = tempfile::Builder::new()
            .prefix("ghost-")
            .tempdir_in(runtime_dir());
        let dir = dir.map_err(failed)?;
        match nvml(&shim) {
            Some(nvml) => symlink(nvml, dir.path().join(NVML)).map_err(failed)?,
            None => output::note(format!(
                "NVML shows this host's devices: Ghost's {NVML} is not beside {}",
                shim.display()
            )),
        }
        symlink(shim, dir.path().join(LIBCUDA)).map_err(failed)?;
        let path = dir.path().join("ticket.json");
        let text = serde_json::to_string(&ticket).map_err(|e| failed(e.into()))?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(failed)?;
        Ok(Elsewhere {
            dir,
            ticket: path,
            stats,
            container: name.clone(),
        })
    }

    /// What the program's environment gets.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 2] {
        let mut path = OsString::from(self.dir.path());
        if let Some(others) = std::env::var_os(LIBRARY_PATH).filter(|others| !others.is_empty()) {
            path.push(":");
            path.push(others);
        }
        let ticket = self.ticket.clone().into_os_string();
        [(TICKET_ENV, ticket), (LIBRARY_PATH, path)]
    }

    /// Takes all of it away.
    pub(crate) async fn end(self, client: &Client) {
        if let Some(stats) = &self.stats {
            // ghostd counts when it is asked; afterwards the numbers are its own.
            let _ = client.get(Target::container(&self.container, "")).await;
            let _ = fs::remove_dir_all(stats);
        }
        if let Err(e) = self.dir.close() {
            output::note(format!("the ticket to the peer is left: {e}"));
        }
    }
}

/// A directory in which the program counts and ghostd reads.
fn counters(dir: &Path, about: &str) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)?;
    // Whatever the umask is: ghostd reads it without an administrator's rights over files.
    fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true);
    let mut file = file.open(dir.join("about.json"))?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(about.as_bytes())
}

/// A directory of this user's that does not outlive the host's run, where there is one.
fn runtime_dir() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let run = [own, Some("/run/ghost".into())].into_iter().flatten();
    let writable = |dir: &PathBuf| {
        dir.is_absolute() && nix::unistd::access(dir, nix::unistd::AccessFlags::W_OK).is_ok()
    };
    run.into_iter()
        .find(writable)
        .unwrap_or_else(std::env::temp_dir)
}

/// Ghost's NVML, which lies beside its libcuda.
fn nvml(shim: &Path) -> Option<PathBuf> {
    let mut all = NVMLS.iter().map(|name| shim.with_file_name(name));
    all.find(|path| path.exists())
}

/// Ghost's libcuda.
fn shim() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os(SHIM_ENV) {
        return fs::canonicalize(&path)
            .map_err(|e| Error::io(format!("{SHIM_ENV}={}", path.display()), e));
    }
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    let beside = beside
        .into_iter()
        .flat_map(|dir| BESIDE.map(|name| dir.join(name)));
    let mut all = beside.chain([PathBuf::from(INSTALLED)]);
    all.find(|path| path.exists()).ok_or_else(|| {
        let why = format!("Ghost's libcuda is not there: {INSTALLED} is what a package installs");
        Problem::new(Kind::Unsupported, why)
            .hint(format!(
                "{SHIM_ENV}=/path/to/libghost_shim.so ghostctl run ..."
            ))
            .into()
    })
}
