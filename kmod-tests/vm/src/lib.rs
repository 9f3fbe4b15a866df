//! The woven driver in a virtual machine: what `ci/driver` built is put into an initramfs, QEMU boots
//! it without a GPU, and the guest's lines of TAP become results. No device is passed to the guest;
//! hooks below a GPU are not reached except by the module's test-only entry.

#![forbid(unsafe_code)]

use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

mod initramfs;
mod tap;

pub use initramfs::Initramfs;
pub use tap::{Report, TapError};

/// Why a guest gave no report.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// A part of the initramfs cannot be read, or the file cannot be written.
    #[error("cannot make the initramfs from {path}: {source}; run ci/driver again")]
    Initramfs {
        /// What was read or written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// QEMU does not start or cannot be read.
    #[error("cannot run qemu-system-x86_64: {0}; ci/setup installs it")]
    Qemu(io::Error),
}

/// What `ci/driver` built for one release.
#[derive(Clone, Debug)]
pub struct Driver {
    /// `535.261.03`.
    pub version: String,
    /// The folder with `nvidia.ko` and `nvidia-uvm.ko`.
    pub modules: PathBuf,
    /// The folder with `guest/init`, `guest/conformance` and `guest/count.so`, and `kernel/vmlinuz` where
    /// `modules` has none.
    pub built: PathBuf,
}

impl Driver {
    /// A release (`535.261.03`), or one of a branch (`535`), below `target/driver`, if it was built
    /// completely.
    pub fn find(release: &str) -> Option<Self> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/driver");
        let prefix = format!("{release}.");
        let mut versions: Vec<String> = std::fs::read_dir(&built)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| {
                // `535.261.03-debug` is asked for by its whole name.
                name == release || name.starts_with(&prefix) && !name.contains('-')
            })
            .filter(|name| built.join(name).join("made").exists())
            .collect();
        versions.sort();
        let version = versions.pop()?;
        Some(Self {
            modules: built.join(&version),
            version,
            built,
        })
    }

    /// Boots the guest with this driver and reads its report; the whole console goes to stderr. The
    /// machine is killed after `limit`; what is missing from the report then says so. `append` is
    /// added to the kernel's command line.
    pub fn boot(&self, limit: Duration, append: &str) -> Result<Report, VmError> {
        self.boot_with(limit, append, &[])
    }

    /// Boots as [`Driver::boot`] does, on one processor, and has the instructions counted that the guest
    /// names; the counts go to the file `out`, in the form that `count/count.c` tells of.
    pub fn count(&self, limit: Duration, append: &str, out: &Path) -> Result<Report, VmError> {
        let plugin = format!(
            "file={},out={}",
            self.built.join("guest/count.so").display(),
            out.display()
        );
        self.boot_with(
            limit,
            &format!("maxcpus=1 count=1 {append}"),
            &["-plugin", &plugin],
        )
    }

    fn boot_with(
        &self,
        limit: Duration,
        append: &str,
        arguments: &[&str],
    ) -> Result<Report, VmError> {
        let own = self.modules.join("kernel");
        let kernel = if own.exists() {
            own
        } else {
            self.built.join("kernel")
        };
        let mut image = Initramfs::new()
            .add("init", 0o755, &self.built.join("guest/init"))?
            .add("conformance", 0o755, &self.built.join("guest/conformance"))?
            .add("nvidia.ko", 0o644, &self.modules.join("nvidia.ko"))?
            .add("nvidia-uvm.ko", 0o644, &self.modules.join("nvidia-uvm.ko"))?;
        // A kernel that has it built in needs no module.
        let drm = kernel.join("drm.ko");
        if drm.exists() {
            image = image.add("drm.ko", 0o644, &drm)?;
        }
        let image = image.write()?;
        // `timeout` ends QEMU also if this process is killed by a signal to its group. KVM is not
        // used: the same everywhere, and nested guests hang on some hosts.
        let mut qemu = Command::new("timeout")
            .arg(limit.as_secs().to_string())
            .args([
                "qemu-system-x86_64",
                "-machine",
                "q35,accel=tcg",
                "-cpu",
                "max",
            ])
            .args(["-smp", "2", "-m", "2048", "-nodefaults", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio", "-kernel"])
            .arg(kernel.join("vmlinuz"))
            .arg("-initrd")
            .arg(image.path())
            .arg("-append")
            .arg(format!("console=ttyS0 quiet panic=-1 {append}"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(VmError::Qemu)?;
        let mut report = Report::default();
        if let Some(console) = qemu.stdout.take() {
            for line in BufReader::new(console).split(b'\n') {
                let line = line.map_err(VmError::Qemu)?;
                let line = String::from_utf8_lossy(&line);
                eprintln!("{}", line.trim_end());
                report.read(line.trim_end());
            }
        }
        qemu.wait().map_err(VmError::Qemu)?;
        Ok(report)
    }
}
