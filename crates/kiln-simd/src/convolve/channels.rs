//! Convolution of many channels: an implicit matrix product.
//!
//! The kernels are a matrix of `c_out` rows, with a column for each input channel and place in the kernel. What it is
//! multiplied with has a row for each of these: the picture of that channel, shifted to that place. In a [`Frame`] such a
//! row is the flat plane from some offset on, so nothing is unrolled or packed: the register tile loads the rows through
//! a table of offsets. Flat rows run over the right edge, which costs `kw - 1` useless columns of every row of results.
//!
//! Columns are blocked so that the results of a block and its part of the kernels stay in the second-level cache, sums
//! so that the pixels under a tile stay in the first.

use kiln_core::op::ConvolveExtents;

use super::frame::{Fill, Frame};
use crate::threads::{self, Shared};
use crate::tile::{RowMajor, Target, max_rows, multiply, panels};
use crate::vector::{Kernel, Vector, dispatch};
use crate::{Isa, scratch};

/// Terms of a running sum, at most: bounds the rounding error and the table of offsets.
const TERMS: usize = 320;

/// Bytes of pixels under a tile that are kept in the first-level cache.
const PIXELS: usize = 20 * 1024;

/// Elements of the results of a block.
const RESULTS: usize = 48 * 1024;

/// Output channels of a block.
const CHANNELS: usize = 256;

/// Elements that one part copies into frames.
const COPY: usize = 32 * 1024;

pub(super) fn run(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) {
    let frame = Frame::new(e, stride, e.out_h);
    let width = 2 * isa.lanes();
    let flat = (e.out_h - 1) * frame.columns + e.out_w;
    // A picture without padding and stride is its own frame, when it is not narrower than a tile.
    let in_place =
        stride == (1, 1) && e.top == 0 && e.left == 0 && frame.rows == e.h && frame.columns == e.w && flat >= width;
    let tiles = flat.div_ceil(width);
    let channel_blocks = e.c_out.div_ceil(CHANNELS);
    let channels = e.c_out.div_ceil(channel_blocks);
    // As many tiles as fit the cache, as evenly as they can be, with parts enough for the threads.
    let fewest = tiles.div_ceil((RESULTS / (channels * width)).max(1));
    let tile_blocks = if threads > 1 { fewest.max((2 * threads).min(tiles)) } else { fewest };
    let plane = frame.plane();
    let out = Shared::new(y.as_mut_ptr());
    scratch::slices([if in_place { 0 } else { e.c_in * plane }], |[copy]| {
        for n in 0..e.batch {
            let picture = &x[n * e.c_in * e.h * e.w..][..e.c_in * e.h * e.w];
            if !in_place {
                let to = Shared::new(copy.as_mut_ptr());
                let planes = (COPY / plane).clamp(1, e.c_in);
                threads::for_each(e.c_in.div_ceil(planes), threads, |part| {
                    let c = part * planes;
                    let planes = planes.min(e.c_in - c);
                    // SAFETY: planes c .. c + planes of the scratch; no other part has them.
                    let to = unsafe { to.get().add(c * plane) };
                    let fill = Fill { frame, first: 0, planes, x: picture[c * e.h * e.w..].as_ptr(), to };
                    // SAFETY: a `Simd` exists only for an available instruction set.
                    unsafe { dispatch(isa, fill) };
                });
            }
            let x = Shared::new(if in_place { picture.as_ptr() } else { copy.as_ptr() }.cast_mut());
            threads::for_each(channel_blocks * tile_blocks, threads, |part| {
                let (block, part) = (part / tile_blocks, part % tile_blocks);
                let first = block * channels;
                let channels = channels.min(e.c_out - first);
                let tiles = part * tiles / tile_blocks..(part + 1) * tiles / tile_blocks;
                scratch::slices([tiles.len() * channels * width], |[results]| {
                    let block = Block {
                        e,
                        frame,
                        flat,
                        x: x.get(),
                        w: kernel[first * e.c_in * e.kh * e.kw..].as_ptr(),
                        channels,
                        tiles,
                        results: results.as_mut_ptr(),
                        // SAFETY: inside of the output; the parts write different channels or columns.
                        y: unsafe { out.get().add((n * e.c_out + first) * e.out_h * e.out_w) },
                    };
                    // SAFETY: a `Simd` exists only for an available instruction set.
                    unsafe { dispatch(isa, block) };
                });
            });
        }
    });
}

/// Some output channels of some tiles of columns.
///
/// # Safety
/// `x` is a whole frame (readable a cache line beyond, when it is narrower than a tile), `w` good for reading `channels`
/// kernels, `results` for writing two vectors for each channel and tile, `y` for writing the planes of the channels, in
/// which nothing else writes the columns of these tiles.
struct Block<'a> {
    e: &'a ConvolveExtents,
    frame: Frame,
    /// Flat columns, from the first result to the last.
    flat: usize,
    x: *const f32,
    w: *const f32,
    channels: usize,
    tiles: std::ops::Range<usize>,
    results: *mut f32,
    y: *mut f32,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { e, frame, x, w, channels, results, .. } = self;
        let width = 2 * V::LANES;
        let terms = e.c_in * e.kh * e.kw;
        // A place in the picture under two vectors touches at most three cache lines.
        let depth = (PIXELS / (e.kh * 192)).max(1).saturating_mul(e.kh * e.kw).min(TERMS);
        let blocks = terms.div_ceil(depth);
        let mut offsets = [0usize; TERMS];
        for block in 0..blocks {
            let (k, end) = (block * terms / blocks, (block + 1) * terms / blocks);
            let offsets = &mut offsets[..end - k];
            let (mut c, mut p, mut q) = (k / (e.kh * e.kw), k / e.kw % e.kh, k % e.kw);
            for offset in offsets.iter_mut() {
                *offset = c * frame.plane() + frame.offset(p, q);
                q += 1;
                if q == e.kw {
                    (p, q) = (p + 1, 0);
                }
                if p == e.kh {
                    (c, p) = (c + 1, 0);
                }
            }
            for (i, tile) in self.tiles.clone().enumerate() {
                let (start, two) = self.start::<V>(tile);
                for (first, rows) in panels(channels, max_rows::<V>()) {
                    // SAFETY: the contract of `Block`: the tile reads flat columns of the frame that exist.
                    unsafe {
                        let a = RowMajor::new(w.add(first * terms + k), terms);
                        let p = results.add((i * channels + first) * width);
                        let target = Target { p, stride: width, add: block > 0 };
                        if two {
                            multiply::<V, _, true>(rows, a, x.add(start), offsets, target);
                        } else {
                            multiply::<V, _, false>(rows, a, x.add(start), offsets, target);
                        }
                    }
                }
            }
        }
        for (i, tile) in self.tiles.clone().enumerate() {
            // SAFETY: the results of this tile are complete.
            unsafe { self.write::<V>(tile, results.add(i * channels * width)) };
        }
    }
}

impl Block<'_> {
    /// The first flat column of a tile, and whether it has two vectors. The last tile is moved back so that it ends with
    /// the results, where there is room.
    #[inline(always)]
    fn start<V: Vector>(&self, tile: usize) -> (usize, bool) {
        let start = tile * 2 * V::LANES;
        match self.flat - start {
            rest if rest >= 2 * V::LANES => (start, true),
            rest if rest > V::LANES => (self.flat.saturating_sub(2 * V::LANES), true),
            _ => (self.flat.saturating_sub(V::LANES), false),
        }
    }

    /// Moves the results of a tile into the rows that they belong to, without the columns beyond the right edge.
    ///
    /// # Safety
    /// As [`Block`]; `results` are those of the tile.
    #[inline(always)]
    unsafe fn write<V: Vector>(&self, tile: usize, results: *const f32) {
        let e = self.e;
        let width = 2 * V::LANES;
        let (start, _) = self.start::<V>(tile);
        let mut at = tile * width;
        let end = (at + width).min(self.flat);
        while at < end {
            let (row, column) = (at / self.frame.columns, at % self.frame.columns);
            let next = ((row + 1) * self.frame.columns).min(end);
            let n = (next - at).min(e.out_w.saturating_sub(column));
            for channel in 0..self.channels {
                // SAFETY: n results of one row, in the tile and in the plane of the channel.
                unsafe {
                    let from = results.add(channel * width + at - start);
                    let to = self.y.add((channel * e.out_h + row) * e.out_w + column);
                    let mut i = 0;
                    while i + V::LANES <= n {
                        V::load(from.add(i)).store(to.add(i));
                        i += V::LANES;
                    }
                    if i < n {
                        V::load_first(from.add(i), n - i).store_first(to.add(i), n - i);
                    }
                }
            }
            at = next;
        }
    }
}
