//! Launches.

use super::modules::callable;
use super::params::{Params, params};
use crate::kinds::{LaunchConfig, config};
use crate::memory::{done, publish};
use crate::session::link;
use crate::{answer, thread};
use ghost_wire::message::{ATTRIBUTE, Config, Field, Launch, Message};
use ghost_wire::result::{Code, INVALID_VALUE};
use std::ffi::c_void;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: u8 = 2;

#[inline]
unsafe fn launch(
    function: u64,
    config: &Config<'_>,
    each: *const *const u8,
    extra: *const *const c_void,
) -> Result<(), Code> {
    let link = link()?;
    let callable = callable(function)?;
    if config.grid.contains(&0) || config.block.contains(&0) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program's arguments, as many as the function's layout has.
    let params: Params<'_> = unsafe { params(callable.layout(), each, extra) }?;
    params.show();
    publish(link)?;
    // As `Launch` is encoded; the arguments go straight to their place.
    done(link.post(Launch::OP, |to| {
        function.put(to);
        config.put(to);
        params.put(to);
    }))?;
    callable.launched();
    Ok(())
}

macro_rules! launches {
    ($($symbol:ident ($($extra:ident : $ty:ty)?) $attributes:expr;)*) => {$(
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe extern "C" fn $symbol<const PT: bool>(
            function: u64,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared: u32,
            stream: u64,
            each: *const *const u8,
            $($extra: $ty)?
        ) -> Code {
            let launched = || {
                link()?;
                let config = Config {
                    grid: [grid_x, grid_y, grid_z],
                    block: [block_x, block_y, block_z],
                    shared,
                    stream: thread::stream(stream, PT)?,
                    attributes: $attributes,
                };
                let extra: *const *const c_void = std::ptr::null();
                $(let extra = { let _ = extra; $extra };)?
                // SAFETY: handed on.
                unsafe { launch(function, &config, each, extra) }
            };
            answer(launched())
        }
    )*};
}

/// One attribute: its number in a word, then its value.
static COOPERATIVELY: [u8; ATTRIBUTE] = {
    let mut attribute = [0; ATTRIBUTE];
    attribute[0] = COOPERATIVE;
    attribute[8] = 1;
    attribute
};

launches! {
    cuLaunchKernel (extra: *const *const c_void) &[];
    cuLaunchCooperativeKernel () &COOPERATIVELY;
}

pub(crate) unsafe extern "C" fn cuLaunchKernelEx<const PT: bool>(
    how: *const LaunchConfig,
    function: u64,
    each: *const *const u8,
    extra: *const *const c_void,
) -> Code {
    let launched = || {
        link()?;
        // SAFETY: handed on.
        unsafe { launch(function, &config(how, PT)?, each, extra) }
    };
    answer(launched())
}
