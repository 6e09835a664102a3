//! Images with another number of rows and columns, an element of the result a thread.

use kiln_ir::Result;
use kiln_ir::op::{ResizeExtents, ResizeMode};

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a result at most: 32 bits count what the last block reaches over.
const MOST: u64 = (u32::MAX - BLOCK) as u64;
/// Coordinates at most, as numerators: those before the image wrap around.
const FARTHEST: u64 = i32::MAX as u64;
/// Denominators at most: f32 holds every whole number up to this one.
const WHOLE: u64 = 1 << 24;

/// Resizes images to the nearest pixels, or interpolates between four.
///
/// Coordinates are computed in whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resize {
    mode: ResizeMode,
}

/// The pixels that a result reads along a dimension, and where there are two their weights.
struct Tap<'k> {
    first: Value<'k, u32>,
    second: Value<'k, u32>,
    near: Value<'k, f32>,
    next: Value<'k, f32>,
}

impl Resize {
    /// The kernel for a mode.
    pub fn new(mode: ResizeMode) -> Self {
        Self { mode }
    }

    /// Every kernel.
    pub fn all() -> [Self; 2] {
        [ResizeMode::Nearest, ResizeMode::Bilinear].map(Self::new)
    }

    /// The launch for images of these extents. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 results, where the products of pixels and results of a row or a column
    /// exceed 31 bits, or beyond 2²³ results of one.
    pub fn launch(&self, e: &ResizeExtents) -> Result<Launch> {
        let results = e.planes.saturating_mul(e.down.results).saturating_mul(e.across.results);
        let mut words = vec![extent("elements", results, MOST)?];
        for of in [&e.down, &e.across] {
            let farthest = usize::try_from(of.largest()).unwrap_or(usize::MAX);
            extent("pixels of an image times pixels of its result", farthest, FARTHEST)?;
            words.push(extent("rows or columns", of.pixels, FARTHEST)?);
            words.push(extent("rows or columns", of.results, FARTHEST)?);
            words.push(extent("steps of a coordinate", of.step, FARTHEST)?);
            words.push((of.start as i32).cast_unsigned());
            words.push(extent("rows or columns of a resized image", of.over, WHOLE)?);
        }
        let arguments = (0..2).map(Argument::Buffer).chain(words.iter().map(|&word| Argument::U32(word))).collect();
        Ok(Launch { grid: [extent("blocks", words[0].div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn tap<'k>(
        &self,
        k: &'k Builder,
        result: Value<'k, u32>,
        [pixels, step, start, over]: [Value<'k, u32>; 4],
    ) -> Tap<'k> {
        let (last, at) = (pixels - 1, k.mad(result, step, start));
        let inside = k.selp(0, at, k.ge(at, 1 << 31));
        let pixel = k.min(inside / over, last);
        if self.mode == ResizeMode::Nearest {
            let half = k.constant(0.5f32);
            return Tap { first: pixel, second: pixel, near: half, next: half };
        }
        let rest = inside - pixel * over;
        let between = k.and(k.lt(pixel, last), k.gt(rest, 0));
        let whole = k.cvt_rn_f32(over);
        let weight = |part: Value<'k, u32>| k.selp(k.cvt_rn_f32(part) / whole, 0.5, between);
        Tap { first: pixel, second: k.selp(pixel + 1, pixel, between), near: weight(over - rest), next: weight(rest) }
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<f32>(name));
        let n = k.parameter::<u32>("n");
        let names = ["h", "out_h", "down_step", "down_start", "down_over"];
        let [h, out_h, down_step, down_start, down_over] = names.map(|name| k.parameter::<u32>(name));
        let names = ["w", "out_w", "across_step", "across_start", "across_over"];
        let [w, out_w, across_step, across_start, across_over] = names.map(|name| k.parameter::<u32>(name));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, n), || {
            let (j, rest) = (at % out_w, at / out_w);
            let (i, plane) = (rest % out_h, rest / out_h);
            let down = self.tap(k, i, [h, down_step, down_start, down_over]);
            let across = self.tap(k, j, [w, across_step, across_start, across_over]);
            let row = |row: Value<'_, u32>| x.index_wide(k.mad_wide(plane, h, k.cvt_u64(row)) * k.cvt_u64(w));
            let first = row(down.first);
            let result = match self.mode {
                ResizeMode::Nearest => k.ld(first.index(across.first)),
                ResizeMode::Bilinear => {
                    let second = row(down.second);
                    let [upper, lower] = [first, second].map(|row| {
                        let near = k.ld(row.index(across.first)) * across.near;
                        k.fma(k.ld(row.index(across.second)), across.next, near)
                    });
                    k.fma(lower, down.next, upper * down.near)
                }
            };
            k.st(out.index(at), result);
        });
    }
}

impl Kernel for Resize {
    fn name(&self) -> String {
        match self.mode {
            ResizeMode::Nearest => "resize2d_nearest",
            ResizeMode::Bilinear => "resize2d_bilinear",
        }
        .to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
