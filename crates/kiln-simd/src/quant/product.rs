//! The product of f32 rows with quantised weights.
//!
//! Rows of x are rounded to 16-bit integers once ([`activations`](super::activations)). A lane adds the integer products of
//! its part of one sub-block, exactly; their sum meets scale and units in f32, in 16 lanes: the same bits on every
//! instruction set, for any number of threads, and for a row alone or in a batch. Weights are unpacked in registers, once for
//! up to four rows of x, and where registers allow it a block ahead: what a block waits for is then in flight while the one
//! before it is multiplied.
//!
//! With AVX-512 and one row of x, what bounds a product is the number of instructions, not memory: vectors of 64 bytes have
//! two ports, and a block of 256 weights takes 33 instructions there in Q4_K, 41 in Q5_K and 38 in Q6_K; 8 of them are
//! products of bytes, two for each 64 weights because an element of x is two bytes. That is at least 17, 21 and 19 cycles,
//! or 8.7, 8.6 and 11 bytes of weights a cycle. Loads and the unpacking of scales in general registers go elsewhere.
//!
//! A result that is not finite is computed again from the f32 elements in f64: that gives NaN, infinities and overflow
//! their meaning without a test in the loop.

use std::cell::RefCell;
use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use kiln_ir::Precision;
use kiln_ir::QuantFormat;

use super::activations::{Line, Round};
#[cfg(target_arch = "x86_64")]
use super::int8;
use super::weights::{Weights, for_weights};
use crate::simd::Simd;
use crate::threads::{self, Shared};
use crate::vector::{ByteKernel, Bytes, dispatch_bytes, dispatch_plain};

/// Rows `first .. first + count` of the weights times every row of x.
///
/// # Safety
/// `rounded` and `units` are readable for the rounded x and its units, `out` is writable for `m * n` f32; nothing else
/// writes the columns of this part.
struct Part<'a, W> {
    x: &'a [f32],
    w: &'a [u8],
    rounded: *const Line,
    units: *const f32,
    out: *mut f32,
    extents: [usize; 3],
    first: usize,
    count: usize,
    weights: PhantomData<W>,
}

impl<W: Weights> Part<'_, W> {
    /// Rows `i .. i + R` of x times every row of the part.
    ///
    /// # Safety
    /// The conditions of [`Part`] hold, and `i + R <= m`.
    #[inline(always)]
    unsafe fn rows<B: Bytes, const R: usize>(&self, i: usize) {
        let [_, n, k] = self.extents;
        let blocks = k / W::FORMAT.block_len();
        // Number of units for a block, and bytes of x for a block.
        let of_block = W::FORMAT.block_len() / W::ROUNDING.len();
        let block = of_block * W::ROUNDING.lines() * size_of::<Line>();
        for j in self.first..self.first + self.count {
            // SAFETY: j < n, i + R <= m: rows of the weights, of the rounded x and of the output are inside their
            // memory, and pointers advance at most to one past the last block.
            unsafe {
                let mut w = self.w.as_ptr().add(j * blocks * W::BYTES);
                let end = w.add(blocks * W::BYTES);
                let mut sums = [B::splat(0.0); R];
                // Advancing pointers instead of an index: an indexed address costs an additional instruction in every
                // product with a memory operand.
                let (mut x, mut units) = ([std::ptr::null(); R], [std::ptr::null(); R]);
                for r in 0..R {
                    x[r] = self.rounded.cast::<u8>().add((i + r) * blocks * block);
                    units[r] = self.units.add((i + r) * blocks * of_block);
                }
                let mut ahead = W::unpack::<B>(w);
                while w < end {
                    let (this, next) = (w, w.add(W::BYTES));
                    let unpacked = ahead;
                    // After the last block unpacks the same one again, which is not used.
                    ahead = W::unpack::<B>(if next < end { next } else { this });
                    for line in 0..W::BYTES.div_ceil(64) {
                        B::prefetch(w.wrapping_add(AHEAD + 64 * line));
                    }
                    W::add::<B, R>(this, unpacked, x, units, &mut sums);
                    w = next;
                    for r in 0..R {
                        x[r] = x[r].add(block);
                        units[r] = units[r].add(of_block);
                    }
                }
                for (r, sums) in sums.into_iter().enumerate() {
                    let mut y = B::total(sums);
                    if !y.is_finite() {
                        y = exact(W::FORMAT, self.x, self.w, k, i + r, j);
                    }
                    *self.out.add((i + r) * n + j) = y;
                }
            }
        }
    }
}

/// Element (i, j) of `x wᵀ` for rows of `k` elements, in f64.
#[cold]
#[inline(never)]
pub(super) fn exact(format: QuantFormat, x: &[f32], w: &[u8], k: usize, i: usize, j: usize) -> f32 {
    let (len, bytes) = (format.block_len(), format.block_bytes());
    let row = k / len * bytes;
    let (x, w) = (&x[i * k..(i + 1) * k], &w[j * row..(j + 1) * row]);
    let mut decoded = [0.0; 256];
    let mut sum = 0.0f64;
    for (x, w) in x.chunks(len).zip(w.chunks(bytes)) {
        // Lengths agree, so it cannot fail.
        let _ = format.decode(w, &mut decoded[..len]);
        sum += x.iter().zip(&decoded).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
    }
    sum as f32
}

impl<W: Weights> ByteKernel for Part<'_, W> {
    #[inline(always)]
    unsafe fn run<B: Bytes>(self) {
        let m = self.extents[0];
        let mut i = 0;
        // SAFETY: the contract of `Part`; i counts the rows done.
        unsafe {
            while i + 4 <= m {
                self.rows::<B, 4>(i);
                i += 4;
            }
            if i + 2 <= m {
                self.rows::<B, 2>(i);
                i += 2;
            }
            if i < m {
                self.rows::<B, 1>(i);
            }
        }
    }
}

/// How many bytes ahead the weights are prefetched: into the next page, so that its address is translated in time, and
/// far enough for the last-level cache. On an AVX-512 Xeon, weights in that cache are read at the rate of the
/// second-level cache with 4 KiB, a fifth to a third slower with 2 KiB, a tenth slower without prefetching.
const AHEAD: usize = 4096;

/// Rows of weights in a part: few enough to stay in the second-level cache while all rows of x stream past.
const PART: usize = 32;

/// Multiplications below which one thread is faster.
pub(super) const PARALLEL: usize = 1 << 18;

thread_local! {
    /// Rounded rows, reused between calls.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// `out = x wᵀ` for extents `[m, n, k]`, none of them zero.
pub(crate) fn multiply(simd: &Simd, format: QuantFormat, x: &[f32], w: &[u8], extents: [usize; 3], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if simd.precision() == Precision::Int8 && int8::takes(simd, format, extents[0]) {
        return int8::multiply(simd, format, x, w, extents, out);
    }
    for_weights!(format, W => multiply_as::<W>(simd, x, w, extents, out));
}

fn multiply_as<W: Weights>(simd: &Simd, x: &[f32], w: &[u8], extents: [usize; 3], out: &mut [f32]) {
    let [m, n, k] = extents;
    let (len, lines) = (W::ROUNDING.len(), W::ROUNDING.lines());
    let pieces = m * (k / len);
    // Taken out while in use, so that a nested call finds an empty buffer instead of a borrowed one.
    let mut scratch = SCRATCH.with(RefCell::take);
    let needed = pieces * lines + (pieces * size_of::<f32>()).div_ceil(size_of::<Line>());
    if scratch.len() < needed {
        scratch.resize(needed, Line::ZERO);
    }
    let threads = if m.saturating_mul(n).saturating_mul(k) < PARALLEL { 1 } else { simd.threads() };
    let rounded = Shared::new(scratch.as_mut_ptr());
    let units = Shared::new(scratch[pieces * lines..].as_mut_ptr().cast::<f32>());
    let part = PART_ROUND.div_ceil(len);
    threads::for_each(pieces.div_ceil(part), if pieces > part { threads } else { 1 }, |i| {
        let (first, count) = (i * part, part.min(pieces - i * part));
        let x = &x[first * len..(first + count) * len];
        // SAFETY: the scratch memory holds the lines and then the units of every piece; parts do not overlap. A `Simd`
        // exists only for an available instruction set.
        unsafe {
            let (lines, units) = (rounded.get().add(first * lines), units.get().add(first));
            dispatch_plain(simd.isa(), Round { rounding: W::ROUNDING, x, lines, units });
        }
    });
    let out = Shared::new(out.as_mut_ptr());
    threads::for_each(n.div_ceil(PART), threads, |i| {
        let part = Part::<W> {
            x,
            w,
            rounded: rounded.get(),
            units: units.get(),
            out: out.get(),
            extents,
            first: i * PART,
            count: PART.min(n - i * PART),
            weights: PhantomData,
        };
        // SAFETY: the lines and units have been written; the output holds m * n; parts have their own columns. A `Simd`
        // exists only for an available instruction set.
        unsafe { dispatch_bytes(simd.isa(), part) };
    });
    SCRATCH.with(|s| s.replace(scratch));
}

/// Elements that a thread rounds at once.
const PART_ROUND: usize = 65_536;
