//! A driver-API program in Rust by cudarc: it knows nothing of Ghost. It says on which device it
//! computed and ends with 0 only if the result is right.

use anyhow::{Result, ensure};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

const N: u32 = 10_000;

fn main() -> Result<()> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let module = context.load_module(Ptx::from_src(include_str!("../../programs/kernels.ptx")))?;
    let saxpy = module.load_function("saxpy")?;
    let x: Vec<f32> = (0..N).map(|i| (i % 100) as f32).collect();
    let there = stream.clone_htod(&x)?;
    let mut y = stream.alloc_zeros::<f32>(N as usize)?;
    for _ in 0..10 {
        let mut launch = stream.launch_builder(&saxpy);
        launch.arg(&N).arg(&0.5f32).arg(&there).arg(&mut y);
        // SAFETY: the kernel takes these four arguments and stays within N elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(N))? };
    }
    let out = stream.clone_dtoh(&y)?;
    let right = (0..N).zip(&out).all(|(i, y)| *y == 5.0 * (i % 100) as f32);
    ensure!(out.len() == N as usize && right, "the result is wrong");
    println!("saxpy on {}: right", context.name()?);
    Ok(())
}
