//! The Ghost CPU device: a small stand-in for NVIDIA's libcuda for machines without a GPU.
//!
//! It implements entry points of the driver API with their C ABI, and runs kernels with an
//! interpreter of a subset of PTX (docs/cpu-device.md lists both). It is for tests and for showing
//! that a program works, not for speed, and says what it is: the device's name is "Ghost CPU device
//! (PTX interpreter)".
//!
//! As a library, [`resolve`] gives the entry points. The crate `ghost-cpu-device-lib` compiles the
//! same sources as `libghost_cpu_device.so`, which exports them under their C names.

mod abi;
mod context;
mod engine;
mod exec;
mod ipc;
mod memory;
pub mod ptx;
mod result;

use std::ffi::c_void;

/// The function that libcuda.so.1 would export as `symbol` (`cuMemAlloc_v2`, say).
pub fn resolve(symbol: &str) -> Option<*const c_void> {
    abi::find(symbol)
}
