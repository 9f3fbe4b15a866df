//! What the stand-in says of its GPUs in texts: the driver's `/proc` files, and telemetry in
//! place of NVML's.

use std::collections::BTreeSet;

use serde_json::json;

use crate::driver::Driver;
use crate::memory::MEMORY;

/// The driver version that the stand-in says it is.
pub const VERSION: &str = "580.159.04";

pub(crate) fn uuid(index: usize) -> String {
    format!("GPU-57a4d000-0000-0000-0000-{index:012x}")
}

/// PCI address as `/proc` has it.
pub(crate) fn pci(index: usize) -> String {
    format!("0000:{:02x}:00.0", index + 1)
}

pub(crate) fn version() -> String {
    format!(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  \
         (ghost-standin)\nGCC version:  none\n"
    )
}

pub(crate) fn information(index: usize) -> String {
    format!(
        "Model: \t\t Ghost stand-in GPU\nIRQ:   \t\t 0\nGPU UUID: \t {}\nVideo BIOS: \t ??\n\
         Bus Type: \t PCIe\nBus Location: \t {}\nDevice Minor: \t {index}\n\
         GPU Firmware: \t {VERSION}\nGPU Excluded:\t No\n",
        uuid(index),
        pci(index),
    )
}

/// As of now: GPUs, and processes by GPU with memory in bytes and time in us.
pub(crate) fn telemetry(driver: &Driver) -> String {
    let gpus = (0..driver.gpus.len()).map(|index| {
        json!({
            "uuid": uuid(index),
            "index": index,
            "pci": format!("0000{}", pci(index).to_uppercase()),
            "name": "Ghost stand-in GPU",
            "memory_total": MEMORY,
            "memory_used": driver.memory(index),
            "mig": false,
        })
    });
    // A process is there on a GPU once it has a compute context.
    let mut processes: BTreeSet<(usize, u32)> = BTreeSet::new();
    for (root, group, gpu, ..) in driver.groups() {
        if let Some(client) = driver
            .clients
            .get(&root)
            .filter(|_| driver.is_compute(root, group))
        {
            processes.insert((gpu, client.pid));
        }
    }
    let processes = processes.into_iter().map(|(gpu, pid)| {
        json!({
            "gpu": uuid(gpu),
            "pid": pid,
            "memory": driver.memory_of(pid, gpu).0,
            "used_us": driver.used(pid, gpu),
            "mps": false,
        })
    });
    let all = json!({
        "gpus": gpus.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
    });
    format!("{all}\n")
}
