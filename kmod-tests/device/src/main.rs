//! burn: a CUDA load whose progress another process can read.
//!
//! It writes `NAME.csv`: `t_ms,kernels` every 5 ms, `t_ms` on CLOCK_MONOTONIC, or with a period
//! one `t_ms,latency_ms` for each kernel. `NAME.ready`, with its pid, appears when the context is there. Its
//! kernels run a fixed number of iterations, so that progress means work done and not time spent;
//! give `--iters-per-ms` (from `burn --calibrate` on an idle GPU) wherever the GPU is shared.
//! Driver API only, the kernel as PTX: neither a CUDA toolkit nor a runtime is needed.

use anyhow::{Context, Result};
use clap::Parser;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "A CUDA load whose progress another process can read")]
struct Args {
    /// Name of the CSV file.
    #[arg(required_unless_present = "calibrate")]
    name: Option<String>,
    /// Length of a kernel in microseconds, alone on the GPU; 0 makes a context and stays idle.
    #[arg(default_value_t = 1000.0)]
    kernel_us: f64,
    /// How long to run.
    #[arg(default_value_t = 10.0)]
    seconds: f64,
    /// One kernel each so many milliseconds, each waited for, instead of a backlog.
    period_ms: Option<f64>,
    /// Print the iterations of a kernel of 1 ms on this GPU and exit.
    #[arg(long)]
    calibrate: bool,
    /// Iterations of a kernel of 1 ms; measured at start if not given.
    #[arg(long)]
    iters_per_ms: Option<f64>,
    /// Launch so many kernels at once as a CUDA graph.
    #[arg(long)]
    graph: Option<u32>,
    /// Busy for so many milliseconds, then idle for so many, by turns.
    #[arg(long, num_args = 2, value_names = ["ON_MS", "OFF_MS"])]
    duty: Option<Vec<f64>>,
    /// Thread blocks of a kernel; 8 for each multiprocessor if not given.
    #[arg(long)]
    blocks: Option<u32>,
    /// Where the files go.
    #[arg(long, default_value = "/tmp")]
    out: PathBuf,
}

/// The kernel: each thread does `iters` times 64 dependent multiply-adds. The store never
/// happens, which the compiler cannot know.
fn ptx() -> String {
    let body = "fma.rn.f32 %f1, %f1, 0f3F800347, 0f3F000000;\n".repeat(64);
    format!(
        ".version 6.4\n.target sm_60\n.address_size 64\n\
         .visible .entry work(.param .u32 iters, .param .u64 out)\n{{\n\
         .reg .pred %p<3>; .reg .f32 %f<3>; .reg .b32 %r<4>; .reg .b64 %rd<2>;\n\
         ld.param.u32 %r1, [iters]; ld.param.u64 %rd1, [out];\n\
         mov.u32 %r2, %tid.x; cvt.rn.f32.u32 %f1, %r2; mov.u32 %r3, 0;\n\
         AGAIN:\nsetp.ge.u32 %p1, %r3, %r1;\n@%p1 bra DONE;\n{body}\
         add.u32 %r3, %r3, 1;\nbra AGAIN;\n\
         DONE:\nsetp.neu.f32 %p2, %f1, 0fBF800000;\n@%p2 bra END;\n\
         cvta.to.global.u64 %rd1, %rd1;\nst.global.f32 [%rd1], %f1;\nEND:\nret;\n}}\n"
    )
}

fn now_ms() -> f64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0.0, |t| t.tv_sec() as f64 * 1e3 + t.tv_nsec() as f64 / 1e6)
}

fn sleep_ms(ms: f64) {
    std::thread::sleep(Duration::from_secs_f64(ms.max(0.0) / 1e3));
}

struct Load {
    stream: Arc<CudaStream>,
    work: CudaFunction,
    out: CudaSlice<f32>,
    config: LaunchConfig,
    graph: Option<(CudaGraph, u32)>,
}

impl Load {
    fn new(blocks: Option<u32>) -> Result<Self> {
        let context =
            CudaContext::new(0).context("no CUDA device: is the NVIDIA driver loaded?")?;
        // SAFETY: there is one stream, which keeps the order; events between streams would be
        // taken into the graph and refused there.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let module = context.load_module(cudarc::nvrtc::Ptx::from_src(ptx()))?;
        let work = module.load_function("work")?;
        let out = stream.alloc_zeros::<f32>(1)?;
        let processors = context.attribute(
            cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )?;
        let config = LaunchConfig {
            grid_dim: (blocks.unwrap_or(processors as u32 * 8), 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        };
        Ok(Load {
            stream,
            work,
            out,
            config,
            graph: None,
        })
    }

    fn kernel(&self, iters: u32) -> Result<()> {
        let mut launch = self.stream.launch_builder(&self.work);
        launch.arg(&iters).arg(&self.out);
        // SAFETY: the two arguments are those of `work` in `ptx`, and `out` outlives the stream's work.
        unsafe { launch.launch(self.config) }?;
        Ok(())
    }

    /// Makes `launch` replay `n` kernels at once.
    fn capture(&mut self, n: u32, iters: u32) -> Result<()> {
        self.stream.synchronize()?;
        self.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        for _ in 0..n {
            self.kernel(iters)?;
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self
            .stream
            .end_capture(flags)?
            .context("the capture gave no graph")?;
        self.graph = Some((graph, n));
        Ok(())
    }

    /// Launches without waiting; gives the number of kernels.
    fn launch(&self, iters: u32) -> Result<u64> {
        match &self.graph {
            Some((graph, n)) => {
                graph.launch()?;
                Ok(u64::from(*n))
            }
            None => self.kernel(iters).map(|()| 1),
        }
    }

    /// Iterations of a kernel of 1 ms: the best of several, since a neighbour only slows.
    fn calibrate(&self) -> Result<f64> {
        const ITERS: u32 = 2000;
        let timing = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let mut best = f64::MAX;
        for _ in 0..8 {
            let start = self.stream.record_event(timing)?;
            self.kernel(ITERS)?;
            let end = self.stream.record_event(timing)?;
            best = best.min(f64::from(start.elapsed_ms(&end)?));
        }
        Ok(f64::from(ITERS) / best)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut load = Load::new(args.blocks)?;
    load.kernel(100)?;
    load.stream.synchronize()?;
    let iters_per_ms = match args.iters_per_ms {
        Some(n) => n,
        None => load.calibrate()?,
    };
    if args.calibrate {
        println!("{iters_per_ms:.3}");
        return Ok(());
    }
    let iters = ((iters_per_ms * args.kernel_us / 1e3) as u32).max(1);
    let name = args.name.unwrap_or_default();
    let mut csv = File::create(args.out.join(format!("{name}.csv")))?;
    if let Some(n) = args.graph {
        load.capture(n, iters)?;
    }
    eprintln!("{name} pid={} iters={iters}", std::process::id());
    std::fs::write(
        args.out.join(format!("{name}.ready")),
        std::process::id().to_string(),
    )?;
    let end = now_ms() + args.seconds * 1e3;
    if args.kernel_us <= 0.0 {
        sleep_ms(args.seconds * 1e3);
    } else if let Some(period) = args.period_ms {
        let mut latencies = Vec::new();
        while now_ms() < end {
            let start = now_ms();
            load.launch(iters)?;
            load.stream.synchronize()?;
            let took = now_ms() - start;
            writeln!(csv, "{start:.3},{took:.4}")?;
            latencies.push(took);
            sleep_ms(period - took);
        }
        latencies.sort_by(f64::total_cmp);
        let at = |q: f64| {
            latencies
                .get((latencies.len() as f64 * q) as usize)
                .copied()
                .unwrap_or(f64::NAN)
        };
        println!(
            "{name} n={} p50={:.3} p99={:.3} max={:.3} ms",
            latencies.len(),
            at(0.5),
            at(0.99),
            at(0.9999)
        );
    } else {
        let done = backlog(
            &load,
            args.kernel_us,
            iters,
            end,
            args.duty.as_deref(),
            &mut csv,
        )?;
        println!(
            "{name} done={done} in {:.1}s = {:.1}/s",
            args.seconds,
            done as f64 / args.seconds
        );
    }
    Ok(())
}

/// Keeps launches in flight until `end`; gives the kernels that completed.
fn backlog(
    load: &Load,
    kernel_us: f64,
    iters: u32,
    end: f64,
    duty: Option<&[f64]>,
    csv: &mut File,
) -> Result<u64> {
    let mut flight = std::collections::VecDeque::new();
    let (mut done, mut written, begun) = (0, 0.0, now_ms());
    // Short kernels need more in flight, or the wait for one leaves the GPU without the next.
    let depth = (10_000.0 / kernel_us).clamp(4.0, 256.0) as usize;
    loop {
        let now = now_ms();
        let over = now >= end;
        let off = match duty {
            Some([on, off]) => (now - begun) % (on + off) >= *on,
            _ => false,
        };
        while !over && !off && flight.len() < depth {
            let kernels = load.launch(iters)?;
            flight.push_back((
                load.stream
                    .record_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC))?,
                kernels,
            ));
        }
        match flight.pop_front() {
            Some((event, kernels)) => {
                event.synchronize()?;
                done += kernels;
            }
            None if over => return Ok(done),
            None => sleep_ms(1.0),
        }
        let now = now_ms();
        if now - written >= 5.0 {
            writeln!(csv, "{now:.3},{done}")?;
            written = now;
        }
    }
}
