//! Convolution of many channels by pixels: a few results beside one another times two vectors of output channels, in
//! registers.
//!
//! Kernels are packed, two vectors of output channels beside one another for each input channel and place. Pixels are
//! broadcast from where they stand in a [`Frame`], where those under neighbouring results are neighbours: nothing else is
//! copied, and no column is useless, whatever the width of the image. Results stand pixel by pixel, and are turned at the
//! end, which costs as much as some dozens of terms.
//!
//! Rows of kernels that lie on the padding add zeros, unless a weight is NaN or infinite: where all are finite, they are left
//! out. That saves a twentieth of the work on images of 14 x 14, a tenth on those of 7 x 7.

use std::ops::Range;

use kiln_ir::Result;
use kiln_ir::op::ConvolveExtents;

use super::frame::{Fill, Frame, Region};
use crate::matmul::{MatrixRef, pack_panels};
use crate::scratch::Lines;
use crate::threads::{self, Shared};
use crate::tile::panels;
use crate::vector::dispatch;
use crate::{Isa, scratch, transpose};
use tile::{Tile, TileSet};

mod tile;

/// Maximum number of products in a chain: limits the rounding error, and keeps the kernels of a panel cached while
/// pixels pass by.
const TERMS: usize = 320;

/// Elements of the frame of a block of rows, which fits the second-level cache together with the results of a panel.
const BLOCK: usize = 128 * 1024;

/// Minimum rows of results of a part if threads share rows rather than channels: each part copies the rows beyond its
/// own.
const FEW_ROWS: usize = 4;

/// Whether kernels `[c_out, c_in, kh, kw]` suit this algorithm: transposing results must cost little compared with the
/// terms of each, which costs more on wide registers than on narrow ones, and vectors must be full. Does not depend on
/// the images or the number of threads.
pub(super) fn suits(isa: Isa, [c_out, c_in, kh, kw]: [usize; 4]) -> bool {
    let (places, padded) = (kh.saturating_mul(kw), c_out.next_multiple_of(isa.lanes()));
    let (least_inputs, least_terms) = if isa.lanes() >= 8 { (8, 128) } else { (1, 16) };
    places > 1 && c_in >= least_inputs && c_in.saturating_mul(places) >= least_terms && 10 * (padded - c_out) <= padded
}

/// Elements of the frame of a whole image.
pub(super) fn frame_len(e: &ConvolveExtents, stride: (usize, usize)) -> u128 {
    Frame::whole(e, stride).elements().saturating_mul(e.c_in as u128)
}

/// Kernels of `[c_out, c_in, kh, kw]`.
pub(super) struct Kernels {
    lie: Lie,
    /// Whether all are finite: then products with the padding add nothing.
    finite: bool,
}

/// The layout of kernels.
enum Lie {
    /// Consecutive panels of two vectors of output channels, the last possibly of one; each panel has a row for each
    /// input channel and kernel position.
    Packed(*const f32),
    /// A matrix with a column for each output channel.
    Plain(MatrixRef),
}

// SAFETY: the elements are only read.
unsafe impl Sync for Kernels {}

/// Elements of packed kernels.
fn packed_len(isa: Isa, terms: usize, c_out: usize) -> usize {
    terms * c_out.next_multiple_of(isa.lanes())
}

/// Packs kernels of this many terms each.
fn pack(isa: Isa, threads: usize, kernels: &[f32], terms: usize, out: &mut [f32]) {
    let c_out = kernels.len() / terms;
    assert!(out.len() >= packed_len(isa, terms, c_out));
    let (from, width) = (MatrixRef::new(kernels, terms, true), 2 * isa.lanes());
    let to = Shared::new(out.as_mut_ptr());
    threads::for_each(c_out.div_ceil(width), threads, |panel| {
        let first = panel * width;
        let (columns, to) = (width.min(c_out - first), to.get().wrapping_add(first * terms));
        // SAFETY: a `Simd` exists only for an available instruction set; the kernels are readable, and each panel has
        // its own memory.
        unsafe { pack_panels(from, isa, 0, terms, first, columns, to) };
    });
}

/// Kernels packed once, for many images.
pub(super) struct Kept {
    elements: Lines,
    finite: bool,
}

impl Kept {
    /// Packs kernels of this many terms each.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](kiln_ir::Error::OutOfMemory).
    pub(super) fn new(isa: Isa, kernels: &[f32], terms: usize) -> Result<Self> {
        let mut elements = Lines::try_zeros(packed_len(isa, terms, kernels.len() / terms))?;
        pack(isa, 1, kernels, terms, elements.as_mut_slice());
        Ok(Self { elements, finite: all_finite(kernels) })
    }

    pub(super) fn kernels(&self) -> Kernels {
        Kernels { lie: Lie::Packed(self.elements.as_ptr()), finite: self.finite }
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("finite", &self.finite).finish_non_exhaustive()
    }
}

/// Whether no element is NaN or infinite.
fn all_finite(x: &[f32]) -> bool {
    const EXPONENT: u32 = f32::INFINITY.to_bits();
    // The exponent of such an element is all ones, so adding one carries into the sign: integer arithmetic that
    // compilers vectorise, without a branch for each element.
    let beyond = |x: &[f32]| x.iter().fold(0, |all, x| all | ((x.to_bits() & EXPONENT) + (1 << 23)));
    x.chunks(1024).all(|x| beyond(x) >> 31 == 0)
}

/// Convolves images with unpacked kernels.
pub(super) fn run(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernels: &[f32],
    y: &mut [f32],
) {
    let (terms, finite) = (e.c_in * e.kh * e.kw, all_finite(kernels));
    if e.batch * cut(isa, threads, e, stride).0 == 1 {
        // Each part packs the kernels just before reading them: large kernels would leave the caches otherwise.
        let kernels = Kernels { lie: Lie::Plain(MatrixRef::new(kernels, terms, true)), finite };
        // SAFETY: a `Simd` exists only for an available instruction set; the slices have these extents.
        return unsafe { run_with(isa, threads, e, stride, x, &kernels, y) };
    }
    scratch::slices([packed_len(isa, terms, e.c_out)], |[packed]| {
        pack(isa, threads, kernels, terms, packed);
        let kernels = Kernels { lie: Lie::Packed(packed.as_ptr()), finite };
        // SAFETY: as above; the kernels were packed for the instruction set.
        unsafe { run_with(isa, threads, e, stride, x, &kernels, y) };
    });
}

/// The number of blocks of rows of an image's results, and of parts of their output channels. Every thread gets the
/// same number, so that none waits for another.
fn cut(isa: Isa, threads: usize, e: &ConvolveExtents, stride: (usize, usize)) -> (usize, usize) {
    let under_row = e.c_in * Frame::whole(e, stride).row();
    // The frame of a block stays in the second-level cache.
    let blocks = e.out_h.div_ceil((BLOCK / under_row).max(1));
    if blocks > 1 && e.batch * blocks >= threads {
        return ((e.batch * blocks).next_multiple_of(threads).div_ceil(e.batch).min(e.out_h), 1);
    }
    let panels = e.c_out.div_ceil(2 * isa.lanes());
    let wanted = threads.div_ceil(e.batch * blocks);
    if e.c_out.is_multiple_of(wanted * 2 * isa.lanes()) {
        (blocks, wanted)
    } else if blocks * wanted * FEW_ROWS <= e.out_h {
        (blocks * wanted, 1)
    } else {
        let splits = panels.min(wanted);
        ((blocks * wanted.div_ceil(splits)).min(e.out_h), splits)
    }
}

/// Convolves images with kernels.
///
/// # Safety
/// The instruction set is available, packed kernels are packed for it, with the extents of `e`. The slices have these
/// extents, and no extent is zero.
pub(super) unsafe fn run_with(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernels: &Kernels,
    y: &mut [f32],
) {
    let (picture, plane, places) = (e.c_in * e.h * e.w, e.out_h * e.out_w, e.kh * e.kw);
    let (set, width) = (TileSet::of(isa), 2 * isa.lanes());
    let all = e.c_out.div_ceil(width);
    let out = Shared::new(y.as_mut_ptr());
    let (blocks, splits) = cut(isa, threads, e, stride);
    threads::for_each(e.batch * blocks * splits, threads, |part| {
        let (n, block, split) = (part / (blocks * splits), part / splits % blocks, part % splits);
        let rows = block * e.out_h / blocks..(block + 1) * e.out_h / blocks;
        let channels = split * all / splits * width..((split + 1) * all / splits * width).min(e.c_out);
        let frame = Frame::new(e, stride, &Region { rows: rows.clone(), columns: 0..e.out_w });
        let results = rows.len() * e.out_w;
        let packed = if matches!(kernels.lie, Lie::Plain(_)) { TERMS.max(places) * width } else { 0 };
        let lengths = [e.c_in * frame.plane(), results * width, 2 * places, packed];
        scratch::slices(lengths, |[copy, sums, offsets, packed]| {
            let offsets: &mut [u64] = &mut bytemuck::cast_slice_mut(offsets)[..places];
            for (place, offset) in offsets.iter_mut().enumerate() {
                *offset = frame.offset(place / e.kw, place % e.kw) as u64;
            }
            let fill = Fill { frame, planes: e.c_in, x: x[n * picture..].as_ptr(), to: copy.as_mut_ptr() };
            // SAFETY: the caller's contract; the scratch holds these planes.
            unsafe { dispatch(isa, fill) };
            let part = Part { isa, set, e, stride, frame, rows: rows.clone(), x: copy, offsets, kernels };
            for first in channels.clone().step_by(width) {
                let columns = width.min(channels.end - first);
                let to = out.get().wrapping_add((n * e.c_out + first) * plane + rows.start * e.out_w);
                // SAFETY: the caller's contract; the sums have room for the panel, and nothing else writes the results
                // of these channels and rows.
                unsafe {
                    let width = part.panel(first, columns, packed, sums);
                    transpose::turn(isa, (sums.as_ptr(), width), (to, plane), results, columns);
                }
            }
        });
    });
}

/// Some rows of an image.
struct Part<'a> {
    isa: Isa,
    set: &'static TileSet,
    e: &'a ConvolveExtents,
    stride: (usize, usize),
    frame: Frame,
    rows: Range<usize>,
    /// The frame under the rows.
    x: &'a [f32],
    /// The offsets of the pixels under the kernel positions in a plane of the frame, for the first result.
    offsets: &'a [u64],
    kernels: &'a Kernels,
}

/// Some terms: a range of input channels, and of kernel positions in each.
struct Terms {
    channels: Range<usize>,
    places: Range<usize>,
}

impl Part<'_> {
    /// The blocks into which terms are divided: of whole channels, or of a part of one.
    fn blocks(&self) -> impl Iterator<Item = Terms> {
        let (c_in, places) = (self.e.c_in, self.offsets.len());
        let of_channels = c_in.div_ceil((TERMS / places).clamp(1, c_in));
        let of_places = places.div_ceil(TERMS);
        (0..of_channels * of_places).map(move |block| {
            let (c, p) = (block / of_places, block % of_places);
            Terms {
                channels: c * c_in / of_channels..(c + 1) * c_in / of_channels,
                places: p * places / of_places..(p + 1) * places / of_places,
            }
        })
    }

    /// The kernel positions whose pixels are inside the image, for a row of results.
    fn inside(&self, row: usize) -> Range<usize> {
        let e = self.e;
        if !self.kernels.finite {
            return 0..self.offsets.len();
        }
        let first = row * self.stride.0;
        let start = e.top.saturating_sub(first).div_ceil(e.dilation.0).min(e.kh);
        let end = (e.h + e.top).saturating_sub(first).div_ceil(e.dilation.0).clamp(start, e.kh);
        start * e.kw..end * e.kw
    }

    /// Computes the results of the output channels from `first` on, a row for each pixel. Returns the length of these
    /// rows.
    ///
    /// # Safety
    /// The instruction set is available, packed kernels are packed for it, the frame has its planes, `sums` has room
    /// for the results, and `packed` for the kernels of a block unless they are packed already.
    unsafe fn panel(&self, first: usize, columns: usize, packed: &mut [f32], sums: &mut [f32]) -> usize {
        let Self { set, e, frame, offsets, .. } = self;
        let vectors = columns.div_ceil(set.lanes);
        let (width, places) = (vectors * set.lanes, offsets.len());
        let tiles = self.rows.len() * e.out_w.div_ceil(set.most(vectors));
        for (number, block) in self.blocks().enumerate() {
            let channels = block.channels.len();
            let (start, terms) = (block.channels.start * places, channels * places);
            // The kernels of the block, and those of the next block, which each tile prefetches in part.
            let (kernels, next) = match self.kernels.lie {
                Lie::Packed(all) => {
                    let kernels = all.wrapping_add(first * e.c_in * places + start * width);
                    (kernels, Some(kernels.wrapping_add(terms * width)))
                }
                Lie::Plain(from) => {
                    // SAFETY: the caller's contract.
                    unsafe { pack_panels(from, self.isa, start, terms, first, columns, packed.as_mut_ptr()) };
                    (packed.as_ptr(), None)
                }
            };
            let lines = next.map_or(0, |_| (terms * width).div_ceil(16 * tiles * channels));
            let mut ahead = 0;
            let x = self.x.as_ptr().wrapping_add(block.channels.start * frame.plane());
            for (i, row) in self.rows.clone().enumerate() {
                let inside = self.inside(row);
                let start = block.places.start.max(inside.start);
                let taken = start..block.places.end.min(inside.end).max(start);
                for (j, pixels) in panels(e.out_w, set.most(vectors)) {
                    let tile = Tile {
                        x: x.wrapping_add(i * frame.columns + j),
                        plane: frame.plane(),
                        channels,
                        offsets: &raw const offsets[taken.clone()],
                        kernels: kernels.wrapping_add(taken.start * width),
                        skip: (places - taken.len()) * width,
                        sums: sums.as_mut_ptr().wrapping_add((i * e.out_w + j) * width),
                        add: number > 0,
                        ahead: next.unwrap_or(kernels).wrapping_add(ahead),
                        lines: if ahead < terms * width { lines } else { 0 },
                    };
                    ahead += lines * channels * 16;
                    // SAFETY: the caller's contract.
                    unsafe { set.get(pixels, vectors)(&tile) };
                }
            }
        }
        width
    }
}
