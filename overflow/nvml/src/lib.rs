//! `libnvidia-ml.so.1` of a program that computes on another host: shows that host's devices and
//! their memory. What NVML has beyond what is exported here, a program does not find.
//!
//! Nothing here reaches this host's GPUs. `CUDA_VISIBLE_DEVICES` does not matter, as with NVIDIA's.

mod abi;
mod exports;
mod far;
mod text;
