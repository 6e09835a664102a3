//! Shared parts of the kernels of pooling and convolutions: a thread computes an element of the result.
//!
//! Neighbouring threads have neighbouring elements, so that what a warp reads is whole lines, most of it out of a cache.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Launch};

/// Threads of a block.
pub(super) const BLOCK: u32 = 256;
/// Maximum elements of a result, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - BLOCK) as u64;
/// Maximum extents of images and windows, so that the sum of two of them fits a signed number.
pub(super) const SIDE: u64 = 1 << 30;

pub(super) fn words(what: &'static str, extents: &[usize]) -> Result<Vec<Argument>> {
    extents.iter().map(|&asked| extent(what, asked, SIDE).map(Argument::U32)).collect()
}

pub(super) fn launch(buffers: usize, results: usize, words: Vec<Argument>) -> Result<Launch> {
    let n = extent("elements", results, MOST)?;
    let arguments = (0..buffers).map(Argument::Buffer).chain([Argument::U32(n)]).chain(words).collect();
    Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
}
