//! Convolutions: as products in tiles that read the picture directly, or result by result where there is little to compute.

use kiln_ir::op::{Convolve2d, ConvolveExtents};
use kiln_ir::{DType, Result};
use kiln_shaders::{CONVOLVE, CONVOLVE_DIRECT};

use super::matmul::{Parts, Product, Tiling};
use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

impl Lower<GpuDevice> for Convolve2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        let (picture, kernel, out) = (inputs[0].at, inputs[1].at, outputs[0].at);
        // A stride that is never taken may be beyond all numbers.
        let taken = |stride: usize, results: usize| if results == 1 { 1 } else { stride };
        let stride = (taken(self.stride.0, e.out_h), taken(self.stride.1, e.out_w));
        let pixels = e.out_h * e.out_w;
        if (e.kh, e.kw, stride) == (1, 1, (1, 1)) && pixels == e.h * e.w && (e.batch == 1 || pixels >= 64) {
            let product = Product {
                a: kernel.into(),
                b: picture.into(),
                c: out.into(),
                types: [DType::F32; 2],
                transpose_a: false,
                transpose_b: false,
                batch: e.batch,
                shared_a: true,
                shared_b: false,
                m: e.c_out,
                k: e.c_in,
                n: pixels,
            };
            return product.lower(plan);
        }
        let bytes = [4 * e.c_in * e.h * e.w, 4 * e.c_out * pixels];
        for piece in pieces(&plan.target.limits, e.batch, &bytes) {
            let buffers = [kernel.into(), piece.of(picture, bytes[0]), piece.of(out, bytes[1])];
            let e = ConvolveExtents { batch: piece.len, ..e };
            // Tiles of 32 kernels are mostly empty for a few; chains must stay short where rows are not cut.
            if e.c_out <= 4 && e.c_in <= 256 && e.kh <= 64 && e.kw <= 64 {
                direct(plan, &e, stride, buffers);
            } else {
                tiled(plan, &e, stride, buffers)?;
            }
        }
        Ok(())
    }
}

/// The side of a square kernel that is baked in, if it is among these.
fn side(e: &ConvolveExtents, known: &[usize]) -> u32 {
    if e.kh == e.kw && known.contains(&e.kh) { e.kh as u32 } else { 0 }
}

fn direct(plan: &mut Lowering<'_>, e: &ConvolveExtents, stride: (usize, usize), buffers: [Slice; 3]) {
    let fours = e.out_h.div_ceil(4);
    let n = e.batch * e.c_out * fours * e.out_w;
    let params: [Word; 14] =
        [e.c_in, e.c_out, e.h, e.w, e.kh, e.kw, stride.0, stride.1, e.top, e.left, e.out_h, e.out_w, fours, n]
            .map(Word::from);
    let code = Code::Kernel(CONVOLVE_DIRECT, vec![("SIDE", side(e, &[3, 5]))]);
    plan.dispatch(code, buffers.to_vec(), &params, Grid::invocations(n));
}

fn tiled(plan: &mut Lowering<'_>, e: &ConvolveExtents, stride: (usize, usize), buffers: [Slice; 3]) -> Result<()> {
    let [kernel, picture, out] = buffers;
    let pixels = e.out_h * e.out_w;
    let (m, k, n) = (e.c_out, e.c_in * e.kh * e.kw, e.batch * pixels);
    let tiling = Tiling::of(1, m, k, n);
    let parts = Parts::new(plan, out, m * n, tiling.splits)?;
    let total = tiling.groups(1);
    let constants = [("TILE", tiling.tile as u32), ("SIDE", side(e, &[1, 3, 5, 7]))];
    let in_picture = e.c_in * e.h * e.w;
    let of_kernel = [e.kh, e.kw, stride.0, stride.1, e.top, e.left];
    let cut = [tiling.down, tiling.across, tiling.splits, tiling.slice, parts.stride, total];
    let params: Vec<Word> = [&[m, n, k, e.h, e.w, in_picture][..], &of_kernel, &[e.out_w, pixels], &cut]
        .concat()
        .into_iter()
        .map(Word::from)
        .collect();
    let code = Code::Kernel(CONVOLVE, constants.to_vec());
    plan.dispatch(code, vec![kernel, picture, parts.at], &params, Grid::groups_of(total));
    parts.finish(plan);
    Ok(())
}
