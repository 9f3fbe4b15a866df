//! The broker: answers the ioctls by which tenants take GPU memory, so that a container's limit
//! holds at the allocation.

pub mod books;
pub mod client;
pub mod journal;
pub mod wire;
