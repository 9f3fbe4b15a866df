//! Launches and occupancy.
#![allow(non_snake_case, reason = "cuda.h names them")]

use super::module::function;
use super::{In, Out, entries};
use crate::context::{Res, current, lock, world};
use crate::engine::{Op, engine};
use crate::exec::{self, Launch};
use crate::result::{
    COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES, NOT_SUPPORTED,
};
use std::sync::atomic::Ordering::Relaxed;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    attributes: *const Attribute,
    count: u32,
}

/// `CUlaunchAttribute`: its value is a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

type Args = In<In<u8>>;

/// The bytes of the parameters: each from its own pointer, or all from a buffer.
fn params(kernel: &crate::ptx::Kernel, args: Args, extra: In<usize>) -> Res<Vec<u8>> {
    let mut bytes = vec![0; kernel.param_bytes];
    if args.given() {
        for (i, param) in kernel.params.iter().enumerate() {
            let value = args.at(i)?.bytes(param.size)?;
            let place = bytes.get_mut(param.offset..param.offset + param.size);
            place.ok_or(INVALID_VALUE)?.copy_from_slice(&value);
        }
        return Ok(bytes);
    }
    if !extra.given() {
        return if kernel.params.is_empty() {
            Ok(bytes)
        } else {
            Err(INVALID_VALUE)
        };
    }
    let (mut buffer, mut size) = (0, 0);
    for i in (0..8).step_by(2) {
        match extra.at(i)? {
            0 => break,
            1 => buffer = extra.at(i + 1)?,
            2 => size = In(extra.at(i + 1)? as *const usize).get()?,
            _ => return Err(INVALID_VALUE),
        }
    }
    if size < kernel.param_bytes {
        return Err(INVALID_VALUE);
    }
    bytes = In(buffer as *const u8).bytes(bytes.len())?;
    Ok(bytes)
}

#[expect(clippy::too_many_arguments, reason = "as the driver has them")]
fn launch(
    of: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    args: Args,
    extra: In<usize>,
    cooperative: bool,
) -> Res<()> {
    let context = current()?;
    let world = world()?;
    let function = function(of)?;
    let kernel = function.kernel.clone();
    let stream = context.queue(stream)?;
    let [x, y, z] = block;
    let threads = u64::from(x) * u64::from(y) * u64::from(z);
    if grid.contains(&0)
        || block.contains(&0)
        || x > 1024
        || y > 1024
        || z > 64
        || threads > 1024
        || grid[0] > i32::MAX as u32
        || grid[1] > 65535
        || grid[2] > 65535
        || shared > function.max_dynamic.load(Relaxed)
    {
        return Err(INVALID_VALUE);
    }
    if threads > u64::from(kernel.max_threads.unwrap_or(1024))
        || kernel.shared as u64 + u64::from(shared) > u64::from(super::device::SHARED_OPT_IN)
    {
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    // Blocks run one after another: only one can wait for others of its grid.
    if cooperative && grid != [1, 1, 1] {
        return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    let launch = Launch {
        params: params(&kernel, args, extra)?,
        kernel,
        globals: function.globals.clone(),
        grid,
        block,
        dynamic_shared: shared as usize,
        budget: world.instructions,
    };
    let device = context.device;
    let work = move || {
        let view = lock(&world.memory).view(device);
        exec::run(&launch, &view).map_err(|failure| {
            eprintln!(
                "ghost-cpu-device: kernel {}: {failure}",
                launch.kernel.name()
            );
            failure.fault.code()
        })
    };
    engine().submit(stream, Op::Work(Box::new(work), world.launch));
    Ok(())
}

/// Bytes of shared memory that a block may still have.
fn room(of: usize) -> Res<u32> {
    let function = function(of)?;
    let fixed = function.kernel.shared as u32;
    Ok(super::device::SHARED_OPT_IN
        .saturating_sub(fixed)
        .min(function.max_dynamic.load(Relaxed)))
}

fn occupancy(out: Out<i32>, of: usize, block: i32, shared: usize) -> Res<()> {
    let most = function(of)?.kernel.max_threads.unwrap_or(1024) as i32;
    if block < 1 {
        return Err(INVALID_VALUE);
    }
    out.put(i32::from(block <= most && shared <= room(of)? as usize))
}

type SharedOf = Option<unsafe extern "C" fn(i32) -> usize>;

fn best_block(
    grid: Out<i32>,
    block: Out<i32>,
    of: usize,
    shared_of: SharedOf,
    shared: usize,
    limit: i32,
) -> Res<()> {
    let most = function(of)?.kernel.max_threads.unwrap_or(1024) as i32;
    let mut best = if limit > 0 { limit.min(most) } else { most };
    let room = room(of)? as usize;
    // SAFETY: the program's function, which the API gives a number of threads.
    let needs = |n: i32| shared_of.map_or(shared, |f| unsafe { f(n) });
    while best > 32 && needs(best) > room {
        best -= 32;
    }
    grid.put(1)?;
    block.put(best)
}

entries! {
    fn cuLaunchKernel(
        of: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: usize, args: Args, extra: In<usize>,
    ) {
        launch(of, [gx, gy, gz], [bx, by, bz], shared, stream, args, extra, false)
    }

    fn cuLaunchCooperativeKernel(
        of: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: usize, args: Args,
    ) {
        let none = In(std::ptr::null());
        launch(of, [gx, gy, gz], [bx, by, bz], shared, stream, args, none, true)
    }

    fn cuLaunchKernelEx(config: In<Config>, of: usize, args: Args, extra: In<usize>) {
        let config = config.get()?;
        let mut cooperative = false;
        for i in 0..config.count as usize {
            let attribute = In(config.attributes).at(i)?;
            let [a, b, c, ..] = attribute.value;
            match attribute.id {
                // Hints, which change no result.
                0 | 1 | 3 | 5 | 6 | 8 | 9 | 10 => {}
                2 => cooperative = a != 0,
                4 | 11 if [a, b, c] == [1, 1, 1] => {}
                _ => return Err(NOT_SUPPORTED),
            }
        }
        launch(
            of, config.grid, config.block, config.shared, config.stream, args, extra, cooperative,
        )
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: Out<i32>, of: usize, block: i32, shared: usize,
    ) {
        occupancy(out, of, block, shared)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<i32>, of: usize, block: i32, shared: usize, _flags: u32,
    ) {
        occupancy(out, of, block, shared)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, of: usize, shared_of: SharedOf, shared: usize, limit: i32,
    ) {
        best_block(grid, block, of, shared_of, shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, of: usize, shared_of: SharedOf, shared: usize, limit: i32,
        _flags: u32,
    ) {
        best_block(grid, block, of, shared_of, shared, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        out: Out<usize>, of: usize, blocks: i32, threads: i32,
    ) {
        if blocks < 1 || threads < 1 {
            return Err(INVALID_VALUE);
        }
        out.put(room(of)? as usize / blocks as usize)
    }
}
