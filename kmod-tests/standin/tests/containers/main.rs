//! Containers with a limit of GPU memory, from end to end: real programs started by `ghostctl run`,
//! crun and podman, the real filter, ghostd and its guardian, and a stand-in for the driver.

#[allow(dead_code, reason = "not every test program uses all of it")]
#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod discovery;
mod host;
mod oci;
mod run;
