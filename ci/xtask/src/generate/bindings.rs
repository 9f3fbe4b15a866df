//! `driver-patches/include/uapi/ghost.h`, the header of Ghost in the kernel module, as Rust.

use anyhow::{Context, Result};
use bindgen::MacroTypeVariation;
use std::path::Path;

/// Below the root.
pub(super) const FILE: &str = "ffi/uapi/src/sys.rs";

/// The text of [`FILE`]. Needs libclang, which `ci/setup` installs.
pub(super) fn text(root: &Path) -> Result<String> {
    let include = root.join("driver-patches/include");
    let header = include.join("uapi/ghost.h");
    let bindings = bindgen::builder()
        .header(header.to_str().context("the path of the header")?)
        // libclang comes without a compiler's own headers, and none is needed.
        .clang_args(["-nobuiltininc", "-I"])
        .clang_arg(include.to_string_lossy())
        .allowlist_type("ghost_.*")
        .allowlist_var("GHOST_.*")
        // Of a type that C guesses: the crate has its own.
        .blocklist_item("GHOST_MAX|GHOST_DEVICE")
        .derive_default(true)
        .layout_tests(false)
        .use_core()
        .ctypes_prefix("core::ffi")
        .default_macro_constant_type(MacroTypeVariation::Unsigned)
        .disable_header_comment()
        .raw_line("/* From driver-patches/include/uapi/ghost.h, by `cargo run -p xtask -- gen`. */")
        .generate()
        .with_context(|| header.display().to_string())?;
    Ok(bindings.to_string())
}
