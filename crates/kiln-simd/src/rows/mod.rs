//! Operations on rows: the softmax family and the normalisations, over the last dimension.

mod channels;
mod norm;
mod softmax;

use crate::simd::Simd;
use crate::threads;

/// Elements below which one thread is faster.
const PARALLEL: usize = 32_768;
/// Elements that a thread takes at once.
const SHARE: usize = 16_384;

/// Elements of a row from which several threads share it.
const LONG: usize = 131_072;

/// Calls `f` with ranges of rows, on several threads if there is enough work.
fn for_rows(simd: &Simd, rows: usize, columns: usize, f: impl Fn(usize, usize) + Sync) {
    let threads = if rows * columns < PARALLEL { 1 } else { simd.threads() };
    let group = if threads == 1 { rows.max(1) } else { (SHARE / columns.max(1)).max(1) };
    threads::for_each(rows.div_ceil(group), threads, |part| {
        f(part * group, group.min(rows - part * group));
    });
}
