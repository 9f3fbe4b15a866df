//! Overflow against the real ghostd on a simulated GPU, over real TCP: who gets in, what becomes of
//! them, and what `ghostctl` shows of it. The executor is a script that sends back what it gets, and
//! once, where the whole workspace is built, the real one with the real libcuda of Ghost.

mod door;
mod node;
mod peers;
mod place;
