//! Convolutions: as products in tiles that read the image directly, or result by result where there is little to compute, as
//! transposed ones are.

use kiln_ir::op::{Convolve2d, ConvolveExtents, ConvolveTranspose2d, ConvolveTransposeExtents, Reaching};
use kiln_ir::{DType, Error, Result};
use kiln_shaders::{CONVOLVE, CONVOLVE_DIRECT, CONVOLVE_TRANSPOSE};

use super::matmul::{Parts, Product, Tiling};
use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

impl Lower<GpuDevice> for Convolve2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        let (picture, kernel, out) = (inputs[0], inputs[1], outputs[0]);
        // A stride without effect may have any value.
        let taken = |stride: usize, results: usize| if results == 1 { 1 } else { stride };
        let stride = (taken(self.stride.0, e.out_h), taken(self.stride.1, e.out_w));
        within_reach(&e, stride)?;
        let pixels = e.out_h * e.out_w;
        let every_pixel = pixels == e.h * e.w && (e.top, e.left, stride) == (0, 0, (1, 1));
        // A stack of products has one A, that of all images, or one for each group of one image.
        let stacked = if e.groups == 1 { e.batch == 1 || pixels >= 64 } else { e.batch == 1 };
        if (e.kh, e.kw) == (1, 1) && every_pixel && stacked {
            let product = Product {
                a: kernel.into(),
                b: picture.into(),
                c: out.into(),
                types: [DType::F32; 2],
                transpose_a: false,
                transpose_b: false,
                batch: e.batch * e.groups,
                shared_a: e.groups == 1,
                shared_b: false,
                m: e.c_out / e.groups,
                k: e.c_in / e.groups,
                n: pixels,
            };
            return product.lower(plan);
        }
        let bytes = [4 * e.c_in * e.h * e.w, 4 * e.c_out * pixels];
        for piece in pieces(&plan.target.limits, e.batch, &bytes) {
            let buffers = [kernel.into(), piece.of(picture, bytes[0]), piece.of(out, bytes[1])];
            let e = ConvolveExtents { batch: piece.len, ..e };
            // Tiles of 32 kernels would be mostly empty for few kernels; chains must stay short if rows are not split.
            let group = e.of_group();
            if group.c_out <= 4 && group.c_in <= 256 && e.kh <= 64 && e.kw <= 64 {
                direct(plan, &e, stride, buffers);
            } else {
                tiled(plan, &e, stride, buffers)?;
            }
        }
        Ok(())
    }
}

/// Maximum rows and columns of padded images: kernels count them in 32 bits, where those before the image wrap around.
const LONGEST: usize = 1 << 31;

/// Checks that every row and column that a kernel covers has a distinct 32-bit number.
///
/// # Errors
/// [`Error::Limit`] if padding, stride or dilation exceed that.
fn within_reach(e: &ConvolveExtents, stride: (usize, usize)) -> Result<()> {
    let (down, across) = e.span();
    let last = |results: usize, stride: usize, span: usize| results.saturating_sub(1) * stride + span;
    let sides = [e.top, e.left, last(e.out_h, stride.0, down), last(e.out_w, stride.1, across)];
    sides.into_iter().try_for_each(|side| limited("rows or columns of a padded image", side, LONGEST))
}

fn limited(what: &'static str, asked: usize, limit: usize) -> Result<()> {
    match asked > limit {
        true => Err(Error::Limit { what, device: "this GPU".into(), asked: asked as u64, limit: limit as u64 }),
        false => Ok(()),
    }
}

/// The side of a square kernel as a constant, if it is one of these.
fn side(e: &ConvolveExtents, known: &[usize]) -> u32 {
    if e.kh == e.kw && known.contains(&e.kh) { e.kh as u32 } else { 0 }
}

fn direct(plan: &mut Lowering<'_>, e: &ConvolveExtents, stride: (usize, usize), buffers: [Slice; 3]) {
    let fours = e.out_h.div_ceil(4);
    let n = e.batch * e.c_out * fours * e.out_w;
    let group = e.of_group();
    let of_kernel = [e.kh, e.kw, stride.0, stride.1, e.top, e.left, e.dilation.0, e.dilation.1];
    let params: Vec<Word> =
        [&[group.c_in, e.c_out, e.h, e.w][..], &of_kernel, &[e.c_in, group.c_out, e.out_h, e.out_w, fours, n]]
            .concat()
            .into_iter()
            .map(Word::from)
            .collect();
    // The kernel finds shared rows by iterating over all rows between the first and the last.
    let apart = e.dilation != (1, 1) || stride.0 > e.h;
    let code = Code::Kernel(CONVOLVE_DIRECT, vec![("SIDE", side(e, &[3, 5])), ("APART", u32::from(apart))]);
    plan.dispatch(code, buffers.to_vec(), &params, Grid::invocations(n));
}

fn tiled(plan: &mut Lowering<'_>, e: &ConvolveExtents, stride: (usize, usize), buffers: [Slice; 3]) -> Result<()> {
    let [kernel, picture, out] = buffers;
    let pixels = e.out_h * e.out_w;
    let (m, k, n) = (e.c_out / e.groups, e.terms(), e.batch * pixels);
    let tiling = Tiling::of(e.groups, m, k, n);
    let parts = Parts::new(plan, out, e.c_out * n, tiling.splits)?;
    let total = tiling.groups(e.groups);
    let dilated = u32::from(e.dilation != (1, 1));
    let constants = [("TILE", tiling.tile as u32), ("SIDE", side(e, &[1, 3, 5, 7])), ("DILATED", dilated)];
    let in_picture = e.c_in * e.h * e.w;
    let of_kernel = [e.kh, e.kw, stride.0, stride.1, e.top, e.left, e.dilation.0, e.dilation.1];
    let in_group = in_picture / e.groups;
    let cut = [tiling.down, tiling.across, tiling.splits, tiling.slice, parts.stride, in_group, e.c_out, total];
    let params: Vec<Word> = [&[m, n, k, e.h, e.w, in_picture][..], &of_kernel, &[e.out_w, pixels], &cut]
        .concat()
        .into_iter()
        .map(Word::from)
        .collect();
    let code = Code::Kernel(CONVOLVE, constants.to_vec());
    plan.dispatch(code, vec![kernel, picture, parts.at], &params, Grid::groups_of(total));
    parts.finish(plan, None);
    Ok(())
}

impl Lower<GpuDevice> for ConvolveTranspose2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        let [down, across] = e.reaching();
        let ConvolveTransposeExtents {
            c_in,
            h,
            w,
            c_out,
            kh,
            kw,
            out_h,
            out_w,
            top,
            left,
            stride,
            dilation,
            groups,
            ..
        } = e;
        // Every result has a number of its own before any are cut off, and so has every element of a kernel.
        let spans = [(kh - 1) * dilation.0, (kw - 1) * dilation.1];
        for side in [out_h + top, out_w + left].into_iter().chain(spans) {
            limited("rows or columns of a transposed convolution", side, LONGEST)?;
        }
        for reaching in [down, across] {
            let product = (reaching.elements - 1).saturating_mul(reaching.inverse);
            limited("the stride of a dilated transposed convolution, squared", product, u32::MAX as usize)?;
        }
        let of_kernel = [kh, kw, stride.0, stride.1, dilation.0, dilation.1, top, left];
        let both = |part: fn(Reaching) -> usize| [part(down), part(across)];
        let reaching =
            [both(|of| of.common), both(|of| of.elements), both(|of| of.pixels), both(|of| of.inverse)].concat();
        let extents = [&[c_in / groups, c_out, h, w][..], &of_kernel, &reaching].concat();
        let bytes = [4 * c_in * h * w, 4 * c_out * out_h * out_w];
        for piece in pieces(&plan.target.limits, e.batch, &bytes) {
            let n = piece.len * c_out * out_h * out_w;
            let params = [&extents[..], &[c_in, c_out / groups, out_h, out_w, n]].concat();
            let params: Vec<Word> = params.into_iter().map(Word::from).collect();
            let buffers = vec![inputs[1].into(), piece.of(inputs[0], bytes[0]), piece.of(outputs[0], bytes[1])];
            plan.dispatch(Code::Kernel(CONVOLVE_TRANSPOSE, vec![]), buffers, &params, Grid::invocations(n));
        }
        Ok(())
    }
}
