//! Threads that share a row: a warp, or a whole block.

use crate::types::Scalar;
use crate::{Builder, Value, Variable, table};

/// Threads of a warp.
pub(super) const WARP: u32 = 32;
/// Every lane of a warp.
const ALL: u32 = u32::MAX;

/// Types that threads of a warp can exchange.
pub(super) trait Exchange: Scalar + table::Selp + table::StAsync {
    /// The value of the lane whose number differs by `mask`.
    fn shuffle<'k>(value: Value<'k, Self>, mask: u32) -> Value<'k, Self>;
}

impl Exchange for f32 {
    fn shuffle(value: Value<'_, f32>, mask: u32) -> Value<'_, f32> {
        value.builder.shfl_bfly(value, mask, WARP - 1, ALL)
    }
}

impl Exchange for u64 {
    fn shuffle(value: Value<'_, u64>, mask: u32) -> Value<'_, u64> {
        let k = value.builder;
        let [lower, upper] = k.split(value);
        k.join(k.shfl_bfly(lower, mask, WARP - 1, ALL), k.shfl_bfly(upper, mask, WARP - 1, ALL))
    }
}

impl Exchange for u32 {
    fn shuffle(value: Value<'_, u32>, mask: u32) -> Value<'_, u32> {
        value.builder.shfl_bfly(value, mask, WARP - 1, ALL)
    }
}

impl Exchange for f64 {
    fn shuffle(value: Value<'_, f64>, mask: u32) -> Value<'_, f64> {
        let k = value.builder;
        k.bits_f64(u64::shuffle(k.bits_u64(value), mask))
    }
}

/// Combines values in pairs, then the results, until one is left. `None` for an empty list.
pub(super) fn tree<T: Copy>(mut values: Vec<T>, combine: impl Fn(T, T) -> T) -> Option<T> {
    while values.len() > 1 {
        values = values.chunks(2).map(|pair| pair.iter().copied().reduce(&combine).unwrap_or(pair[0])).collect();
    }
    values.pop()
}

/// Combines one value of each of this many lanes of a warp, a power of two, by a tree; every lane gets the result.
pub(super) fn butterfly<'k, T: Exchange>(
    mut value: Value<'k, T>,
    lanes: u32,
    combine: impl Fn(Value<'k, T>, Value<'k, T>) -> Value<'k, T>,
) -> Value<'k, T> {
    let mut mask = lanes / 2;
    while mask > 0 {
        value = combine(value, T::shuffle(value, mask));
        mask /= 2;
    }
    value
}

/// Combines one value of every thread of a team, a warp or a block of several warps, by a tree; every thread gets the
/// result. All threads of the block must execute this. `thread` is the position in the block.
pub(super) fn combine<'k, T: Exchange>(
    k: &'k Builder,
    threads: u32,
    thread: Value<'k, u32>,
    value: Value<'k, T>,
    combine: impl Fn(Value<'k, T>, Value<'k, T>) -> Value<'k, T>,
) -> Value<'k, T> {
    let value = butterfly(value, WARP, &combine);
    let warps = threads / WARP;
    if warps == 1 {
        return value;
    }
    let of_warps = k.shared::<T>(warps);
    let lane = thread & (WARP - 1);
    k.st_if(k.eq(lane, 0), of_warps.index(thread >> 5), value);
    k.bar_sync(0u32);
    butterfly(k.ld(of_warps.index(lane & (warps - 1))), warps, combine)
}

/// Sums the values of a block's `threads` threads for each sum: over the lanes of a warp, then over the warps, to one
/// thread for each sum, which runs `write` with the number of the sum, counted row by row, and its total.
pub(super) fn totals<'k>(
    k: &'k Builder,
    threads: u32,
    sums: &[Vec<Variable<'k, f32>>],
    write: impl FnOnce(Value<'k, u32>, Value<'k, f32>),
) {
    let all: Vec<&Variable<'k, f32>> = sums.iter().flatten().collect();
    let (warps, count) = (threads / WARP, all.len() as u32);
    let found = k.shared::<f32>(warps * count);
    let thread = k.tid_x();
    let (warp, lane) = (thread >> WARP.ilog2(), thread & (WARP - 1));
    for (at, sum) in (0..).zip(all) {
        let total = butterfly(sum.get(), WARP, |a, b| a + b);
        k.st_if(k.eq(lane, 0), found.index(warp * count).offset(at), total);
    }
    k.bar_sync(0u32);
    k.if_(k.lt(thread, count), || {
        let of_warp = |warp: u32| k.ld(found.index(thread).offset((warp * count) as i32));
        if let Some(total) = tree((0..warps).map(of_warp).collect(), |a, b| a + b) {
            write(thread, total);
        }
    });
}

/// The team of a thread, numbered over the grid, and the position in it, for blocks of `block` threads.
pub(super) fn place<'k>(k: &'k Builder, block: u32, threads: u32) -> [Value<'k, u32>; 2] {
    let thread = k.tid_x();
    let teams: u32 = block / threads;
    if teams == 1 {
        return [k.ctaid_x(), thread];
    }
    [k.mad(k.ctaid_x(), teams, thread >> threads.ilog2()), thread & (threads - 1)]
}
