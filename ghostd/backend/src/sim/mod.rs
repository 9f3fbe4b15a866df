//! A GPU made of arithmetic, for a first try, for tests and for replay. It needs no GPU, no
//! driver and no root.
//!
//! [`gpu`] is the model and knows nothing of Ghost. [`Sim`] holds some GPUs and the processes on
//! them, on a clock that a test moves or on the host's; [`SimBackend`] is what ghostd sees of it.
//! In real time, programs that stand for CUDA programs register on a socket ([`Server`],
//! [`client`]).

pub mod gpu;
