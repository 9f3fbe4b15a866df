//! The functions that are written by hand, under one roof: [`crate::exports`] looks up each row of
//! class `local`, `syncs`, `hand_posted` or `hand_waited` here by its symbol.
//!
//! To add one: write, in any module that is re-exported here,
//! `pub(crate) unsafe extern "C" fn cuX(...) -> Code` for a row that is `plain`, and
//! `pub(crate) unsafe extern "C" fn cuX<const PT: bool>(...) -> Code` for one that is `ptsz` or
//! `ptds` (`PT`: the per-thread form). Handles are `u64`, device addresses `u64`, devices `i32`.
//! A row without one does not compile.

pub(crate) use crate::context::*;
pub(crate) use crate::device::*;
pub(crate) use crate::errors::*;
pub(crate) use crate::limits::*;
pub(crate) use crate::memory::*;
pub(crate) use crate::resolve::*;
pub(crate) use crate::tables::*;
pub(crate) use crate::tensor::*;
pub(crate) use crate::work::*;
