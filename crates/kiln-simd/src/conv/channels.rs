//! Convolution of many channels: an implicit matrix product.
//!
//! The kernels are a matrix of `c_out` rows, with a column for each input channel and place in the kernel. What it is
//! multiplied with has a row for each of these: the image of that channel, shifted to that place. In a [`Frame`] such a
//! row is the flat plane from some offset on, so nothing is unrolled or packed: the register tile loads the rows through
//! a table of offsets. Flat rows run over the right edge, which costs `kw - 1` useless columns of every row of results.
//!
//! If vectors divide a row well enough, tiles cover single rows instead and compute no useless columns.
//!
//! Rows of results are blocked so that the frame under a block stays in the second-level cache, sums so that the pixels
//! under a tile stay in the first. Every part of the work makes the frame that it reads. A kernel of one pixel is a matrix
//! product, of the image itself or, with a stride, of a copy of the pixels that the stride selects.

use std::ops::Range;

use kiln_ir::op::ConvolveExtents;

use super::frame::{Fill, Frame, Region, fill};
use crate::matmul::{Gemm, MatrixRef, Source};
use crate::threads::{self, Shared};
use crate::tile::{RowMajor, Target, max_rows, most_vectors, multiply, panels, wide_tiles};
use crate::vector::{Kernel, Vector, dispatch};
use crate::{Isa, scratch};

/// Maximum number of terms of a running sum: limits the rounding error and the table of offsets.
const TERMS: usize = 320;

/// Bytes of pixels under a tile of two vectors that stay in the first-level cache.
const PIXELS: usize = 20 * 1024;

/// Elements of the frame and of the results of a block of rows.
const BLOCK: usize = 64 * 1024;

/// Output channels whose kernels stay in the second-level cache.
const CHANNELS: usize = 256;

/// Number of tiles in a block of rows below which threads share the channels instead of the rows.
const TILES: usize = 8;

pub(super) fn run(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) {
    let (picture, plane) = (e.c_in * e.h * e.w, e.out_h * e.out_w);
    let out = Shared::new(y.as_mut_ptr());
    if e.kh * e.kw == 1 {
        for n in 0..e.batch {
            let c = out.get().wrapping_add(n * e.c_out * plane);
            one_pixel(isa, threads, e, stride, &x[n * picture..][..picture], kernel, c);
        }
        return;
    }
    let whole = Frame::whole(e, stride);
    let under_row = e.c_in * whole.row();
    let rows = (BLOCK / under_row.max(e.c_out.min(CHANNELS) * whole.columns)).max(1);
    // Enough parts for all threads: of rows while blocks are large enough, of channels otherwise. Every thread gets the
    // same number, so that none waits for another.
    let wanted = if threads > 1 { (2 * threads).div_ceil(e.batch) } else { 1 };
    let most = e.out_h * whole.columns / (TILES * 2 * isa.lanes());
    let blocks = match e.out_h.div_ceil(rows).max(wanted.min(most)) {
        1 => 1,
        blocks => (e.batch * blocks).next_multiple_of(threads).div_ceil(e.batch).min(e.out_h),
    };
    let splits = threads.div_ceil(e.batch * blocks).min(e.c_out.div_ceil(2 * MANY_ROWS));
    threads::for_each(e.batch * blocks * splits, threads, |part| {
        let (n, block, split) = (part / (blocks * splits), part / splits % blocks, part % splits);
        let rows = block * e.out_h / blocks..(block + 1) * e.out_h / blocks;
        let channels = split * e.c_out / splits..(split + 1) * e.c_out / splits;
        let frame = Frame::new(e, stride, &Region { rows: rows.clone(), columns: 0..e.out_w });
        let tiles = Tiles::new(&frame, rows.len(), e.out_w, isa);
        let picture = &x[n * picture..];
        let most = channels.len().min(CHANNELS);
        scratch::slices([e.c_in * frame.plane(), tiles.count * most * tiles.width()], |[copy, results]| {
            let fill = Fill { frame, planes: e.c_in, x: picture.as_ptr(), to: copy.as_mut_ptr() };
            // SAFETY: a `Simd` exists only for an available instruction set; the scratch holds these planes.
            unsafe { dispatch(isa, fill) };
            for first in channels.clone().step_by(CHANNELS) {
                let block = Block {
                    e,
                    frame,
                    tiles,
                    x: copy.as_ptr(),
                    w: kernel[first * e.c_in * e.kh * e.kw..].as_ptr(),
                    channels: CHANNELS.min(channels.end - first),
                    results: results.as_mut_ptr(),
                    y: out.get().wrapping_add((n * e.c_out + first) * plane + rows.start * e.out_w),
                };
                // SAFETY: a `Simd` exists only for an available instruction set; the parts write different rows or
                // channels.
                unsafe { dispatch(isa, block) };
            }
        });
    });
}

/// An image and kernels of one pixel: their matrix product. The results at `y` are writable and accessed by nobody
/// else.
fn one_pixel(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: *mut f32,
) {
    let n = e.out_h * e.out_w;
    let product = |b: MatrixRef| {
        let a = MatrixRef::new(kernel, e.c_in, false);
        let gemm = Gemm { m: e.c_out, k: e.c_in, n, a, b: Source::Matrix(b), c: y, c_stride: n };
        // SAFETY: the slices have these extents, B is that of the caller, the results are borrowed for writing.
        unsafe { gemm.run(isa, threads) };
    };
    // Every pixel gives one result, in order.
    let plain = |n: usize, out: usize, before: usize, stride: usize| out == n && before == 0 && (stride == 1 || n == 1);
    if plain(e.h, e.out_h, e.top, stride.0) && plain(e.w, e.out_w, e.left, stride.1) {
        return product(MatrixRef::new(x, n, false));
    }
    let frame = Frame::whole(e, stride);
    scratch::slices([e.c_in * frame.plane()], |[copy]| {
        fill(isa, threads, frame, e.c_in, x, copy);
        product(MatrixRef::new(copy, frame.plane(), false));
    });
}

/// Rows of the largest tile of any instruction set.
const MANY_ROWS: usize = 14;

/// The tiles of the columns of a block of rows.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    lanes: usize,
    /// Vectors of the widest tile, two or three.
    most: usize,
    count: usize,
    /// Tiles of a row; zero if tiles cross the ends of rows.
    per_row: usize,
    /// Columns of the frame.
    columns: usize,
    out_w: usize,
    /// Flat columns from the first result to the last.
    flat: usize,
}

/// A tile of some vectors of flat columns.
struct Tile {
    start: usize,
    vectors: usize,
    /// The columns that it has to compute; it may compute others too.
    kept: Range<usize>,
    /// Whether it is whole and inside a row, so that its results are stored directly.
    direct: bool,
}

impl Tiles {
    fn new(frame: &Frame, rows: usize, out_w: usize, isa: Isa) -> Self {
        let (lanes, most) = (isa.lanes(), most_vectors(isa.registers().count));
        let flat = (rows - 1) * frame.columns + out_w;
        let by_rows = rows * out_w.div_ceil(lanes) < flat.div_ceil(lanes);
        let mut tiles = Self { lanes, most, count: 0, per_row: 0, columns: frame.columns, out_w, flat };
        if by_rows {
            tiles.per_row = tiles.of(out_w);
            tiles.count = rows * tiles.per_row;
        } else {
            tiles.count = tiles.of(flat);
        }
        tiles
    }

    /// Tiles of this many columns.
    fn of(&self, columns: usize) -> usize {
        let vectors = columns.div_ceil(self.lanes);
        let wide = wide_tiles(vectors, self.most);
        wide + (vectors - wide * self.most).div_ceil(2)
    }

    #[inline(always)]
    fn get(&self, i: usize) -> Tile {
        let (row, i, all) = match i.checked_div(self.per_row) {
            Some(row) => (Some(row), i % self.per_row, self.out_w),
            None => (None, i, self.flat),
        };
        let all_vectors = all.div_ceil(self.lanes);
        let wide = wide_tiles(all_vectors, self.most);
        let first = if i < wide { i * self.most } else { wide * self.most + (i - wide) * 2 };
        let vectors = if i < wide { self.most } else { (all_vectors - first).min(2) };
        let place = row.unwrap_or(0) * self.columns + first * self.lanes;
        let row = row.unwrap_or(place / self.columns);
        let end = if self.per_row > 0 { row * self.columns + self.out_w } else { self.flat };
        let width = vectors * self.lanes;
        let kept = place..end.min(place + width);
        // The last tile is moved back to end with the results, if there is room.
        let start = place.min(self.flat.saturating_sub(width));
        let direct = start == place && kept.len() == width && kept.end <= row * self.columns + self.out_w;
        Tile { start, vectors, kept, direct }
    }

    /// Columns of the widest tile.
    fn width(&self) -> usize {
        self.most * self.lanes
    }
}

/// Some output channels of a block of rows.
///
/// # Safety
/// `x` is a frame of the block, readable up to a cache line beyond its end; `w` is readable for `channels` kernels;
/// `results` is writable for the widest tile of each channel and tile; `y` is writable for the rows of the block in the
/// planes of the channels, which nothing else accesses.
struct Block<'a> {
    e: &'a ConvolveExtents,
    frame: Frame,
    tiles: Tiles,
    x: *const f32,
    w: *const f32,
    channels: usize,
    results: *mut f32,
    y: *mut f32,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { e, frame, x, w, channels, results, .. } = self;
        let width = self.tiles.width();
        let terms = e.c_in * e.kh * e.kw;
        // A kernel position under two vectors touches at most three cache lines. The depth is the same for all tiles,
        // so that results do not depend on their width.
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
            for i in 0..self.tiles.count {
                let tile = self.tiles.get(i);
                let (to, stride) = if tile.direct {
                    let (row, column) = (tile.start / frame.columns, tile.start % frame.columns);
                    (self.y.wrapping_add(row * e.out_w + column), e.out_h * e.out_w)
                } else {
                    (results.wrapping_add(i * channels * width), width)
                };
                for (first, rows) in panels(channels, max_rows::<V>(tile.vectors)) {
                    // SAFETY: the contract of `Block`: the tile reads flat columns of the frame that exist.
                    unsafe {
                        let a = RowMajor::new(w.add(first * terms + k), terms);
                        let target = Target { p: to.add(first * stride), stride, add: block > 0 };
                        let x = x.add(tile.start);
                        match tile.vectors {
                            1 => multiply::<V, _, 1>(rows, a, x, offsets, target),
                            2 => multiply::<V, _, 2>(rows, a, x, offsets, target),
                            _ => multiply::<V, _, 3>(rows, a, x, offsets, target),
                        }
                    }
                }
            }
        }
        for i in 0..self.tiles.count {
            let tile = self.tiles.get(i);
            if !tile.direct {
                // SAFETY: the results of this tile are complete.
                unsafe { self.write::<V>(&tile, results.add(i * channels * width)) };
            }
        }
    }
}

impl Block<'_> {
    /// Moves the results of a tile to their rows, without the columns beyond the right edge.
    ///
    /// # Safety
    /// The conditions of [`Block`] hold; `results` are those of the tile.
    #[inline(always)]
    unsafe fn write<V: Vector>(&self, tile: &Tile, results: *const f32) {
        let e = self.e;
        let mut at = tile.kept.start;
        while at < tile.kept.end {
            let (row, column) = (at / self.frame.columns, at % self.frame.columns);
            let next = ((row + 1) * self.frame.columns).min(tile.kept.end);
            let n = (next - at).min(e.out_w.saturating_sub(column));
            for channel in 0..self.channels {
                // SAFETY: n results of one row, in the tile and in the plane of the channel.
                unsafe {
                    let from = results.add(channel * self.tiles.width() + at - tile.start);
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
