//! The CPU device's PTX.

/// A module's text.
pub fn ptx(data: &[u8]) {
    // Either is fine: what is wrong is said, and nothing panics.
    let _ = ghost_cpu_device::ptx::parse(data);
}
