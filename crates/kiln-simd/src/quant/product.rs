//! The product of f32 rows with quantised weights.
//!
//! Rows of x are rounded to 16-bit integers once ([`activations`](super::activations)). The integer products of a group of 32
//! elements are added exactly; their sum is multiplied by the scale and the unit in f32, and added in one of eight lanes. Formats
//! with groups of 16 have 16 lanes. So results have the same bits on every instruction set, for any number of threads, and for a
//! row alone or in a batch: of many rows, [`panels`](super::panels) adds the same terms in the same order where that is faster.
//! Weights are unpacked in registers, once for up to four rows of x, and where registers allow it a block ahead: what a block waits
//! for is then in flight while the one before it is multiplied.
//!
//! With AVX-512 and one row of x, what bounds a product is the number of instructions, not memory: vectors of 64 bytes have
//! two ports, and 8 instructions of a block of 256 weights are products of bytes, two for each 64 weights because an element of x
//! is two bytes. With [`Precision::Int8`] it is one byte.
//!
//! A result that is not finite is computed again from the f32 elements in f64: that gives NaN, infinities and overflow
//! their meaning without a test in the loop.

use std::cell::RefCell;
use std::hint::black_box;
use std::marker::PhantomData;

use kiln_ir::{Precision, QuantFormat};

use super::Decode;
use super::activations::{Line, RUN, Round};
use super::weights::{Weights, for_weights};
use crate::Isa;
use crate::simd::Simd;
use crate::threads::{self, Shared};
use crate::vector::{ByteKernel, Bytes, dispatch_bytes, dispatch_plain};

/// Rows `first .. first + count` of the weights times every row of x.
///
/// # Safety
/// `rounded` is readable for the rounded x, `out` is writable for `m * n` f32; nothing else writes the columns of this part.
struct Part<'a, W> {
    x: &'a [f32],
    w: &'a [u8],
    rounded: *const Line,
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
        let of_block = W::FORMAT.block_bytes();
        let of_row = k / W::FORMAT.block_len() * of_block;
        let (whole, rest) = (of_row / W::BYTES, of_row % W::BYTES);
        let lines = W::ROUNDING.lines() * size_of::<Line>();
        for j in self.first..self.first + self.count {
            let row = &self.w[j * of_row..(j + 1) * of_row];
            let run = (W::BLOCKS > 1 && rest > 0).then(|| run_of::<W>(&row[of_row - rest..]));
            let mut last = std::ptr::null();
            if W::BLOCKS > 1 {
                // Opaque: the compiler would select the address of every load of a run, instead of that of the run.
                last = black_box(run.as_ref().map_or(last, |run| run.as_ptr()));
            }
            // SAFETY: j < n, i + R <= m: rows of the rounded x and of the output are inside their memory, and pointers
            // advance at most to one past the last run.
            unsafe {
                let mut w = row.as_ptr();
                let end = w.add(whole * W::BYTES);
                let mut sums = [W::zero::<B>(); R];
                // Advancing pointers instead of an index: an indexed address costs an additional instruction in every
                // product with a memory operand.
                let mut x = [std::ptr::null(); R];
                for r in 0..R {
                    x[r] = self.rounded.cast::<u8>().add((i + r) * k.div_ceil(RUN) * lines);
                }
                let mut ahead = W::unpack::<B>(w);
                loop {
                    let (mut this, mut next) = (w, w.wrapping_add(W::BYTES));
                    if w == end {
                        if last.is_null() {
                            break;
                        }
                        (this, next) = (last, end);
                    }
                    let unpacked = ahead;
                    // After the last run unpacks the same one again, which is not used.
                    ahead = W::unpack::<B>(if next < end { next } else { this });
                    for line in 0..W::BYTES.div_ceil(64) {
                        B::prefetch(w.wrapping_add(AHEAD + 64 * line));
                    }
                    W::add::<B, R>(this, unpacked, x, &mut sums);
                    if this != w {
                        break;
                    }
                    w = next;
                    for r in 0..R {
                        x[r] = x[r].add(lines);
                    }
                }
                for (r, sums) in sums.into_iter().enumerate() {
                    let mut y = W::total::<B>(sums);
                    if !y.is_finite() {
                        y = exact(W::FORMAT, self.x, self.w, k, i + r, j);
                    }
                    *self.out.add((i + r) * n + j) = y;
                }
            }
        }
    }
}

/// The most bytes of a run of small blocks.
const MOST_BYTES: usize = 8 * QuantFormat::Q8_0.block_bytes();

/// A run of fewer blocks, with copies of the last one behind: their elements of x are zeros, and its scale is one that matters.
#[inline(always)]
fn run_of<W: Weights>(blocks: &[u8]) -> [u8; MOST_BYTES] {
    let bytes = W::FORMAT.block_bytes();
    let mut run = [0; MOST_BYTES];
    for (i, to) in run[..W::BYTES].chunks_exact_mut(bytes).enumerate() {
        let at = (i * bytes).min(blocks.len() - bytes);
        to.copy_from_slice(&blocks[at..at + bytes]);
    }
    run
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
        // Lengths agree, so it cannot fail. Every set decodes to the same bits.
        // SAFETY: the baseline is available.
        let _ = unsafe { dispatch_plain(Isa::BASELINE, Decode(format, w, &mut decoded[..len])) };
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

/// The number of bytes that weights are prefetched ahead: into the next page, so that its address is translated in time, and
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
pub(super) fn multiply(simd: &Simd, format: QuantFormat, x: &[f32], w: &[u8], extents: [usize; 3], out: &mut [f32]) {
    // In WebAssembly nothing asks for a precision, and code for it would be downloaded in vain.
    if !cfg!(target_arch = "wasm32") && simd.precision() == Precision::Int8 {
        for_weights!(format, true, W => multiply_as::<W>(simd, x, w, extents, out));
    } else {
        for_weights!(format, false, W => multiply_as::<W>(simd, x, w, extents, out));
    }
}

fn multiply_as<W: Weights>(simd: &Simd, x: &[f32], w: &[u8], extents: [usize; 3], out: &mut [f32]) {
    let [m, n, k] = extents;
    let (rounding, runs) = (W::ROUNDING, m * k.div_ceil(RUN));
    // Taken out while in use, so that a nested call finds an empty buffer instead of a borrowed one.
    let mut scratch = SCRATCH.with(RefCell::take);
    let needed = runs * rounding.lines();
    if scratch.len() < needed {
        scratch.resize(needed, Line::ZERO);
    }
    let threads = if m.saturating_mul(n).saturating_mul(k) < PARALLEL { 1 } else { simd.threads() };
    let rounded = Shared::new(scratch.as_mut_ptr());
    threads::for_each(runs.div_ceil(ROUND), if runs > ROUND { threads } else { 1 }, |i| {
        let (first, count) = (i * ROUND, ROUND.min(runs - i * ROUND));
        // SAFETY: the scratch memory holds the lines of every run; parts do not overlap. A `Simd` exists only for an available
        // instruction set.
        unsafe { dispatch_plain(simd.isa(), Round { rounding, x, k, first, count, lines: rounded.get() }) };
    });
    let out = Shared::new(out.as_mut_ptr());
    threads::for_each(n.div_ceil(PART), threads, |i| {
        let part = Part::<W> {
            x,
            w,
            rounded: rounded.get(),
            out: out.get(),
            extents,
            first: i * PART,
            count: PART.min(n - i * PART),
            weights: PhantomData,
        };
        // SAFETY: the lines have been written; the output holds m * n; parts have their own columns. A `Simd`
        // exists only for an available instruction set.
        unsafe { dispatch_bytes(simd.isa(), part) };
    });
    SCRATCH.with(|s| s.replace(scratch));
}

/// Runs of x that a thread rounds at once.
const ROUND: usize = 256;
