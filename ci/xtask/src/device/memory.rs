//! Memory: what is charged against what the driver counts, refusals, and the container's own
//! card; `cost`, a part of its own, has what all that costs a tenant.

pub(super) mod cost;
pub(super) mod steps;

use super::{Lab, create};
use crate::checks::{Check, Limit};
use crate::loads::{beside, sleep_ms};
use crate::node::{Kind, Node};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::process::Command;
use steps::{GIB, MIB, Steps, per_process};

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: f64 = 2.0;

/// A part, and what its rows are about.
type Part = (&'static str, fn(&mut Lab, &Node) -> Result<()>);

pub(super) fn run(lab: &mut Lab) -> Result<()> {
    let node = Node::start(Kind::gpu())?;
    create(&node, "a", 100)?;
    create(&node, "b", 100)?;
    let parts: [Part; 6] = [
        ("charges", charges),
        ("refusals", refusals),
        ("shared memory", shared),
        ("the container's own card", own_card),
        ("a static runtime", static_runtime),
        ("PyTorch", pytorch),
    ];
    for (name, part) in parts {
        if let Err(e) = part(lab, &node) {
            lab.report.failed(name, &e);
        }
    }
    Ok(())
}

fn limit(node: &Node, container: &str, bytes: f64) -> Result<()> {
    let spec = json!({ "gpu.memory.max": bytes as u64 });
    node.patch(container, &spec, true)
}

/// Each kind of allocation: bytes charged, as the container's own card tells at once, against
/// bytes that the driver counts for the process.
fn charges(lab: &mut Lab, node: &Node) -> Result<()> {
    limit(node, "a", 40.0 * GIB)?;
    let mut take = Steps::start(node.run("a")?)?;
    let context = take.used()? - per_process(take.pid)?;
    lab.report.push(Check::new(
        "a context: charged beyond the driver's count",
        0.0,
        context / MIB,
        "MiB",
        Limit::Within(2.0),
    ));
    let mut wanted = vec![
        ("malloc".to_owned(), 1.0),
        ("malloc".to_owned(), 3.0 * MIB),
        ("malloc".to_owned(), GIB),
    ];
    let kinds = Command::new(beside("ghost-take")?).arg("kinds").output()?;
    let kinds = String::from_utf8_lossy(&kinds.stdout).into_owned();
    wanted.extend(kinds.lines().map(|kind| {
        let bytes = if kind == "stack" { 8192.0 } else { 64.0 * MIB };
        (kind.to_owned(), bytes)
    }));
    for (kind, bytes) in wanted {
        let name = match bytes {
            b if b >= MIB => format!("{kind} of {} MiB", b / MIB),
            b => format!("{kind} of {b} B"),
        };
        let (charged, counted) = (take.used()?, per_process(take.pid)?);
        let code = take.ask(&format!("take {kind} {bytes}"))?[0];
        ensure!(code == 0.0, "{name}: CUDA error {code}");
        let held = take.used()? - charged;
        let really = per_process(take.pid)? - counted;
        if kind == "managed" {
            // Its pages are taken inside of the kernel, and the driver counts them for nobody.
            lab.report
                .push(Check::told(format!("{name}: charged"), held / MIB, "MiB"));
        } else {
            lab.report.push(Check::new(
                format!("{name}: charged"),
                really / MIB,
                held / MIB,
                "MiB",
                Limit::Within(2.0),
            ));
        }
        let code = take.ask("free")?[0];
        ensure!(code == 0.0, "{name}, free: CUDA error {code}");
        let left = (take.used()? - charged) - (per_process(take.pid)? - counted);
        lab.report.push(Check::new(
            format!("{name}: still charged after free, beyond the driver's count"),
            0.0,
            left / MIB,
            "MiB",
            Limit::Within(2.0),
        ));
    }
    Ok(())
}

/// Past the limit each kind says out of memory, and a smaller allocation works after.
fn refusals(lab: &mut Lab, node: &Node) -> Result<()> {
    limit(node, "a", 40.0 * GIB)?;
    let mut take = Steps::start(node.run("a")?)?;
    let used = take.used()?;
    limit(node, "a", used + 256.0 * MIB)?;
    let kinds = [
        "malloc",
        "pitch",
        "pool",
        "vmm",
        "array",
        "mipmapped",
        "module",
        "graph",
    ];
    for kind in kinds {
        let code = take.ask(&format!("take {kind} {}", 512.0 * MIB))?[0];
        lab.report.push(Check::new(
            format!("{kind} of 512 MiB where 256 are left: CUDA's result"),
            OUT_OF_MEMORY,
            code,
            "",
            Limit::Within(0.0),
        ));
        // CUDA keeps the total that it was told at its start.
        let left = used + 256.0 * MIB - take.ask("info")?[1] - per_process(take.pid)?;
        lab.report.push(Check::new(
            format!("{kind} refused: charged beyond the driver's count"),
            0.0,
            left / MIB,
            "MiB",
            Limit::Within(2.0),
        ));
        // A graph keeps the pieces that it got for its next launch.
        if kind != "graph" {
            let code = take.ask(&format!("take malloc {}", 64.0 * MIB))?[0];
            ensure!(code == 0.0, "after {kind}: 64 MiB: CUDA error {code}");
            take.ask("free")?;
        }
    }
    drop(take);
    let mut take = Steps::start(node.run("a")?)?;
    // What is left goes to several processes once.
    let mut second = Steps::start(node.run("a")?)?;
    lab.report.push(Check::new(
        "a second process's context past the limit: CUDA's result",
        OUT_OF_MEMORY,
        second.code,
        "",
        Limit::Within(0.0),
    ));
    limit(node, "a", used * 2.0 + 256.0 * MIB)?;
    second = Steps::start(node.run("a")?)?;
    let first = take.ask(&format!("take malloc {}", 192.0 * MIB))?[0];
    let code = second.ask(&format!("take malloc {}", 192.0 * MIB))?[0];
    ensure!(first == 0.0, "192 of 256 MiB: CUDA error {first}");
    lab.report.push(Check::new(
        "192 MiB in each of two processes where 256 are left: the second's result",
        OUT_OF_MEMORY,
        code,
        "",
        Limit::Within(0.0),
    ));
    Ok(())
}

/// Memory that a second process opens is charged once.
fn shared(lab: &mut Lab, node: &Node) -> Result<()> {
    limit(node, "a", 40.0 * GIB)?;
    let mut take = Steps::start(node.run("a")?)?;
    let before = take.used()?;
    let code = take.ask(&format!("share {}", 256.0 * MIB))?[0];
    ensure!(code == 0.0, "cuIpcOpenMemHandle: CUDA error {code}");
    // The second process has a context of its own, as large as the first's.
    let held = take.used()? - before - before;
    lab.report.push(Check::new(
        "256 MiB opened by a second process: charged",
        256.0,
        held / MIB,
        "MiB",
        Limit::Within(4.0),
    ));
    take.ask("unshare")?;
    sleep_ms(1500.0);
    lab.report.push(Check::new(
        "the same after the second process's end",
        256.0,
        (take.used()? - before) / MIB,
        "MiB",
        Limit::Within(2.0),
    ));
    take.ask("free")?;
    lab.report.push(Check::new(
        "the same after free",
        0.0,
        (take.used()? - before) / MIB,
        "MiB",
        Limit::Within(2.0),
    ));
    Ok(())
}

/// Fails past the limit, frees, and carries on; prints 1 if all that worked.
const PYTORCH_REFUSED: &str = r#"
import torch
a = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
try:
    torch.zeros(8 << 30, dtype=torch.uint8, device="cuda")
    print(0)
except torch.cuda.OutOfMemoryError:
    torch.cuda.empty_cache()
    b = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")
    print(int(int(b.sum()) == 1 << 28))
"#;

/// Takes nine tenths of what it is told is free; prints 1 if that fits.
const PYTORCH_SIZED: &str = r#"
import torch
torch.zeros(1, device="cuda")
free, total = torch.cuda.mem_get_info()
x = torch.empty(int(free * 0.9), dtype=torch.uint8, device="cuda")
x.fill_(1)
torch.cuda.synchronize()
print(1)
"#;

const PYTORCH_TOTAL: &str = r#"
import torch
print(torch.cuda.mem_get_info()[1])
"#;

fn python(node: &Node, container: &str, script: &str) -> Result<f64> {
    let mut command = node.run(container)?;
    let said = command.args(["python3", "-c", script]).output()?;
    let text = String::from_utf8_lossy(&said.stdout);
    let last = text.lines().last().unwrap_or_default();
    last.trim().parse().with_context(|| {
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        format!("python3 in {container} said {last:?}: {}", error.trim())
    })
}

fn pytorch(lab: &mut Lab, node: &Node) -> Result<()> {
    limit(node, "a", 4.0 * GIB)?;
    for (name, script) in [
        (
            "PyTorch: OutOfMemoryError, empty_cache, carries on",
            PYTORCH_REFUSED,
        ),
        (
            "PyTorch: a job of 90 % of the free memory fits",
            PYTORCH_SIZED,
        ),
    ] {
        let got = python(node, "a", script)?;
        lab.report
            .push(Check::new(name, 1.0, got, "", Limit::Within(0.0)));
    }
    let nvml = nvml_wrapper::Nvml::init()?;
    let card = nvml.device_by_index(0)?.memory_info()?.total as f64;
    for container in ["a", "b"] {
        limit(node, container, card * 0.4)?;
    }
    for container in ["a", "b"] {
        let total = python(node, container, PYTORCH_TOTAL)?;
        lab.report.push(Check::new(
            format!("of two containers of 40 %, {container} sees a card of"),
            40.0,
            100.0 * total / card,
            "%",
            Limit::Within(0.1),
        ));
    }
    Ok(())
}

/// A program with the runtime inside of it, where no library can be put in between.
fn static_runtime(lab: &mut Lab, node: &Node) -> Result<()> {
    const SOURCE: &str = r#"
#include <cstdio>
#include <cuda_runtime.h>
int main() {
    void *p, *q;
    cudaError_t small = cudaMalloc(&p, 64u << 20);
    cudaError_t large = cudaMalloc(&q, 8ull << 30);
    cudaGetLastError();
    cudaError_t again = cudaMalloc(&q, 64u << 20);
    printf("%d\n", small == 0 && large == cudaErrorMemoryAllocation && again == 0);
}
"#;
    let source = lab.dir.path().join("static.cu");
    let program = lab.dir.path().join("static");
    std::fs::write(&source, SOURCE)?;
    let made = Command::new("nvcc")
        .args(["-cudart", "static", "-o"])
        .args([&program, &source])
        .output()
        .context("nvcc: is a CUDA toolkit in PATH?")?;
    ensure!(
        made.status.success(),
        "nvcc: {}",
        String::from_utf8_lossy(&made.stderr).trim()
    );
    limit(node, "a", 4.0 * GIB)?;
    let said = node.run("a")?.arg(&program).output()?;
    let got = String::from_utf8_lossy(&said.stdout).trim().parse();
    lab.report.push(Check::new(
        "a program with a static runtime is refused, and carries on",
        1.0,
        got.unwrap_or(f64::NAN),
        "",
        Limit::Within(0.0),
    ));
    Ok(())
}

/// nvidia-smi inside: the limit for a total, and nobody else's processes.
fn own_card(lab: &mut Lab, node: &Node) -> Result<()> {
    limit(node, "a", 4.0 * GIB)?;
    let mut mine = Steps::start(node.run("a")?)?;
    let stranger = Steps::start(node.run("b")?)?;
    let smi = |query: &str| -> Result<String> {
        let mut command = node.run("a")?;
        command.arg("nvidia-smi").arg(query);
        let said = command.arg("--format=csv,noheader,nounits").output()?;
        Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    let memory = smi("--query-gpu=memory.total,memory.used,memory.free")?;
    let numbers: Vec<f64> = memory
        .split(',')
        .filter_map(|n| n.trim().parse().ok())
        .collect();
    let [total, used, free] = numbers.as_slice() else {
        anyhow::bail!("nvidia-smi inside says {memory:?}");
    };
    let seen = mine.ask("info")?;
    let (cuda_free, cuda_total) = (seen[1] / MIB, seen[2] / MIB);
    let rows = [
        (
            "nvidia-smi inside of a container of 4096 MiB: total",
            4096.0,
            *total,
        ),
        ("the same by CUDA", 4096.0, cuda_total),
        ("used and free by nvidia-smi, sum", *total, used + free),
        ("free by nvidia-smi, against CUDA's", cuda_free, *free),
    ];
    for (name, wanted, got) in rows {
        lab.report
            .push(Check::new(name, wanted, got, "MiB", Limit::Within(2.0)));
    }
    let pids = smi("--query-compute-apps=pid")?;
    let sees = |pid: i32| pids.lines().any(|l| l.trim() == pid.to_string());
    for (name, wanted, pid) in [
        ("nvidia-smi inside lists its own process", 1.0, mine.pid),
        (
            "nvidia-smi inside lists a neighbour's process",
            0.0,
            stranger.pid,
        ),
    ] {
        let got = f64::from(u8::from(sees(pid)));
        lab.report
            .push(Check::new(name, wanted, got, "", Limit::Within(0.0)));
    }
    Ok(())
}
