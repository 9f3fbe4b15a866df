//! `libcuda.so.1` as a program of Ghost's finds it. Where the process belongs on this host, calls
//! jump to the genuine driver; where a ticket says that it computes elsewhere, they are answered
//! here or sent there.
#![allow(non_snake_case, non_upper_case_globals)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the shim is for x86-64 Linux");

mod context;
mod device;
mod errors;
mod exports;
mod genuine;
mod hand;
mod ids;
mod kinds;
mod limits;
mod link;
mod memory;
mod refused;
mod resolve;
mod sent;
mod session;
mod stats;
mod tables;
mod tensor;
mod thread;
mod work;

use ghost_wire::result::{Code, SUCCESS};

/// As a call answers it.
fn answer(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// Chooses, when the library is loaded, where its exports lead.
extern "C" fn choose() {
    if !session::is_elsewhere() {
        exports::pass();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose;
