//! The genuine driver of this host.

use ghost_wire::result::SUCCESS;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Names another library to be the genuine driver; for tests.
const OVERRIDE: &str = "GHOST_LIBCUDA";

/// Where drivers are installed.
const DIRECTORIES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
];

struct Handle(*mut c_void);
// SAFETY: what dlopen gives out may be used by any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

static HANDLE: OnceLock<Option<Handle>> = OnceLock::new();

/// The address of the genuine driver's `symbol`.
pub(crate) fn symbol(symbol: &CStr) -> Option<*mut ()> {
    let handle = HANDLE.get_or_init(load).as_ref()?;
    // SAFETY: a handle that stays open, a text that ends.
    let found = unsafe { libc::dlsym(handle.0, symbol.as_ptr()) };
    (!found.is_null()).then_some(found.cast())
}

/// Whether there is one.
pub(crate) fn exists() -> bool {
    HANDLE.get_or_init(load).is_some()
}

/// The version of CUDA of the driver on this host, if there is one.
pub(crate) fn version() -> Option<u32> {
    let function = symbol(c"cuDriverGetVersion")?;
    // SAFETY: as `cuda.h` declares it.
    let function: unsafe extern "C" fn(*mut i32) -> u32 = unsafe { std::mem::transmute(function) };
    let mut version = 0;
    // SAFETY: room for a number.
    let code = unsafe { function(&raw mut version) };
    (code == SUCCESS)
        .then(|| u32::try_from(version).ok())
        .flatten()
}

fn load() -> Option<Handle> {
    let own = own().and_then(|path| identity(&path));
    if let Some(path) = std::env::var_os(OVERRIDE) {
        return open(Path::new(&path), own);
    }
    let mut paths = DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join("libcuda.so.1"));
    paths.find_map(|path| open(&path, own))
}

/// Opens the library, unless it is this one.
fn open(path: &Path, own: Option<(u64, u64)>) -> Option<Handle> {
    let found = identity(path)?;
    if Some(found) == own {
        return None;
    }
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a text that ends; the library's constructors are the driver's own.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(Handle(handle))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// The file that this code was loaded from.
fn own() -> Option<PathBuf> {
    // SAFETY: zeroes are a Dl_info; the address is one of this library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr((own as *const ()).cast(), &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = CStr::from_ptr(info.dli_fname).to_bytes();
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(name)))
    }
}
