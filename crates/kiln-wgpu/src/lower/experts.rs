//! Products of rows with the matrices of the experts that are chosen for them.

use kiln_ir::op::{ExpertExtents, ExpertTiles, MatmulByExpert, Operation};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{EXPERT_BLOCKS, EXPERT_ROWS, EXPERTS_GROUP, WORKGROUP, number};

use super::cast::widened;
use super::pieces::pieces;
use super::scatter::reported;
use super::{Dispatches, Lower, Lowering, Value, matmul, quant};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

/// Tiles of products with the same expert.
struct Tiles {
    of: ExpertTiles,
    /// The expert of each tile.
    chosen: Slice,
    /// The products of each tile, if it has several.
    slots: Slice,
}

impl Tiles {
    /// The tiles of some products, whose indices are `index`.
    fn new(plan: &mut Lowering<'_>, index: Slice, e: &ExpertExtents) -> Result<Self> {
        let of = e.tiles();
        if !of.are_grouped() {
            return Ok(Self { of, chosen: index, slots: index });
        }
        let ExpertTiles { rows, count } = of;
        let mut scratch =
            |n: usize| Ok::<Slice, kiln_ir::Error>(plan.scratch(TensorType::u32(Shape::new(&[n])?)).into());
        let (slots, chosen) = (scratch(count * rows)?, scratch(count)?);
        let words = [e.products(), e.experts, count].map(Word::from);
        let code = Code::Kernel(EXPERTS_GROUP, vec![("ROWS", rows as u32)]);
        plan.dispatch(code, vec![index, slots, chosen], &words, Grid::groups_of(e.experts));
        Ok(Self { of, chosen, slots })
    }
}

impl Lower<GpuDevice> for MatmulByExpert {
    const READS: &'static [DType] = &[DType::F16, DType::Bf16];
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let [x, weights, indices] = [inputs[0], inputs[1], inputs[2]];
        let e = self.extents(&x.ty.shape, &weights.ty.shape, &indices.ty.shape)?;
        reported(plan, self.name(), e.experts, indices)?;
        // Without experts every index is invalid.
        if outputs[0].ty.shape.is_empty() || e.experts == 0 {
            return Ok(());
        }
        let x = if x.ty.dtype == DType::F32 { x } else { widened(plan, x) };
        for rows in pieces(&plan.target.limits, e.rows, &[4 * e.k, 4 * e.used * e.n, 4 * e.used]) {
            let of = [(x, e.k), (indices, e.used), (outputs[0], e.used * e.n)];
            let [x, index, out] = of.map(|(value, words)| rows.of(value, 4 * words));
            let e = ExpertExtents { rows: rows.len, ..e };
            plan.part(|plan| {
                let tiles = Tiles::new(plan, index, &e)?;
                multiply(plan, e, &tiles, [x, out], weights);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Adds the products of tiles with the weights, in pieces that fit a binding.
fn multiply(plan: &mut Lowering<'_>, e: ExpertExtents, tiles: &Tiles, [x, out]: [Slice; 2], weights: Value) {
    let all = e.experts * e.n;
    let row_bytes = weights.ty.bytes() / all;
    for piece in pieces(&plan.target.limits, all, &[row_bytes]) {
        let buffers = vec![x, piece.of(weights, row_bytes), tiles.chosen, tiles.slots, out];
        let extents = [e.products(), e.used, e.experts, e.n].map(Word::from);
        let here = [piece.start, piece.len].map(Word::from);
        let (code, own, cut) = match weights.ty.dtype {
            DType::Blocks(format) => {
                let lanes = quant::lanes(tiles.of.rows, tiles.of.count, e.n, e.k);
                let total = tiles.of.count * e.n.div_ceil(1024 / lanes);
                let constants =
                    vec![kiln_shaders::constant(format), ("ROWS", tiles.of.rows as u32), ("LANES", lanes as u32)];
                let own = vec![(e.k / format.block_len()).into(), e.n.into(), 0usize.into()];
                (Code::Kernel(EXPERT_BLOCKS, constants), own, [tiles.of.count, total])
            }
            dtype => {
                let lanes = matmul::lanes(tiles.of.count, e.n, e.k);
                let across = e.n.div_ceil(4 * WORKGROUP as usize / lanes);
                let constants = vec![
                    ("COUNT", tiles.of.rows as u32),
                    ("LANES", lanes as u32),
                    ("VECTORS", e.k.is_multiple_of(4).into()),
                    ("STORED", number(dtype)),
                ];
                (
                    Code::Kernel(EXPERT_ROWS, constants),
                    vec![e.k.into(), 1usize.into()],
                    [across, tiles.of.count * across],
                )
            }
        };
        let params = [&extents[..], &own, &here, &cut.map(Word::from)].concat();
        plan.dispatch(code, buffers, &params, Grid::groups_of(cut[1]));
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
mod tests {
    use kiln_ir::QuantFormat;
    use kiln_ir::op::Op;

    use super::super::small_bindings::run;
    use super::*;
    use crate::AdapterChoice;

    #[test]
    fn pieces_are_the_same_as_the_whole() {
        let Ok(device) = GpuDevice::open(&AdapterChoice::Any) else {
            eprintln!("skipped: no device");
            return;
        };
        let (experts, n, rows, used) = (6, 140, 40, 2);
        for dtype in [DType::F32, DType::Bf16, DType::Blocks(QuantFormat::Q4K)] {
            let k = 256;
            let ty = |dtype, dims: &[usize]| TensorType::of(dtype, Shape::new(dims).unwrap()).unwrap();
            let numbers = |n: usize| (0..n).map(|i| (i * i % 1009) as f32 - 500.0).collect::<Vec<f32>>();
            let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let weights_ty = ty(dtype, &[experts, n, k]);
            let mut weights = kiln_ir::Buffer::zeros(&weights_ty).unwrap();
            match dtype {
                DType::Blocks(format) => {
                    format.encode(&numbers(experts * n * k), weights.as_mut().as_bytes()).unwrap();
                }
                _ => kiln_ir::narrow(&numbers(experts * n * k), weights.as_mut()),
            }
            let weights = weights.as_data().as_bytes().to_vec();
            // Separate products, and products grouped in tiles.
            for rows in [2, rows] {
                let indices: Vec<u8> =
                    (0..rows * used).flat_map(|i| ((i * i % experts) as u32).to_le_bytes()).collect();
                let inputs = [
                    (ty(DType::F32, &[rows, k]), bytes(&numbers(rows * k))),
                    (weights_ty, weights.clone()),
                    (ty(DType::U32, &[rows, used]), indices),
                ];
                let op = Op::from(MatmulByExpert);
                let (least, whole) = run(&device, op, &inputs, None);
                // Smaller than the weights, for f32 smaller than those of one expert, and than 32 rows.
                let (many, cut) = run(&device, op, &inputs, Some(35_840));
                assert!(many > least, "{dtype:?}: {least} and {many} dispatches");
                assert!(cut == whole, "{dtype:?}, {rows} rows");
            }
        }
    }
}
