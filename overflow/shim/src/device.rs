//! Devices: what the welcome said of them.
