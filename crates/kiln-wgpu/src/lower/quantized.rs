use kiln_ir::op::{Dequantize, Elementwise, QuantMatmul, Quantize};
use kiln_ir::{QuantFormat, Result};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

/// Number of parts of 32 elements.
fn parts(elements: usize) -> usize {
    elements / 32
}

impl Lower<GpuDevice> for Quantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
        // The sources add this to products; -0 adds nothing.
        let zero: Word = (-0.0f32).into();
        for piece in pieces(&plan.target.limits, inputs[0].ty.shape.numel() / len, &[4 * len, bytes]) {
            let words: Word = (piece.len * bytes).div_ceil(4).into();
            let pairs = piece.len.div_ceil(2);
            // Sixteen blocks of 32 elements per workgroup.
            let whole = |kernel| {
                let groups = piece.len.div_ceil(16);
                let params = [piece.len.into(), words, groups.into(), zero];
                (kernel, vec![kiln_shaders::constant(self.format)], params.to_vec(), groups)
            };
            let (kernel, constants, params, groups) = match self.format {
                QuantFormat::Q8_0 => {
                    let groups = piece.len.div_ceil(32);
                    let params = [(piece.len * len / 4).into(), words, groups.into(), zero];
                    (kiln_shaders::QUANTIZE_ROUNDED, Vec::new(), params.to_vec(), groups)
                }
                QuantFormat::Mxfp4 => {
                    // One block per invocation.
                    let groups = piece.len.div_ceil(kiln_shaders::WORKGROUP as usize);
                    let params = [piece.len.into(), words, groups.into(), zero];
                    (kiln_shaders::QUANTIZE_MXFP4, Vec::new(), params.to_vec(), groups)
                }
                QuantFormat::Q4_0 | QuantFormat::Q5_0 | QuantFormat::Iq4Nl => whole(kiln_shaders::QUANTIZE_SCALED),
                QuantFormat::Q4_1 | QuantFormat::Q5_1 => whole(kiln_shaders::QUANTIZE_SHIFTED),
                QuantFormat::Q2K | QuantFormat::Q4K | QuantFormat::Q5K => {
                    // Sixteen sub-blocks per workgroup.
                    let groups = (piece.len * len / self.format.layout().group).div_ceil(16);
                    let params = [piece.len.into(), groups.into(), zero];
                    let constants = vec![kiln_shaders::constant(self.format)];
                    (kiln_shaders::QUANTIZE_AFFINE, constants, params.to_vec(), groups)
                }
                QuantFormat::Q3K | QuantFormat::Q6K | QuantFormat::Iq4Xs => {
                    let params = [piece.len.into(), words, pairs.into(), zero];
                    (
                        kiln_shaders::QUANTIZE_SYMMETRIC,
                        vec![kiln_shaders::constant(self.format)],
                        params.to_vec(),
                        pairs,
                    )
                }
            };
            let buffers = vec![piece.of(inputs[0].at, 4 * len), piece.of(outputs[0].at, bytes)];
            plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, Grid::groups_of(groups));
        }
        Ok(())
    }
}

impl Lower<GpuDevice> for Dequantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
        for piece in pieces(&plan.target.limits, outputs[0].ty.shape.numel() / len, &[4 * len, bytes]) {
            let parts = parts(piece.len * len);
            let kernel = Code::Kernel(kiln_shaders::DEQUANTIZE, vec![kiln_shaders::constant(self.format)]);
            let buffers = vec![piece.of(inputs[0].at, bytes), piece.of(outputs[0].at, 4 * len)];
            plan.dispatch(kernel, buffers, &[parts.into()], Grid::invocations(4 * parts));
        }
        Ok(())
    }
}

/// The kernel for a product with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Lanes share rows of the weights: rows of x at a time, and number of lanes.
    Rows { rows: usize, lanes: usize },
    /// Tiles of 16 `tall` rows and 64 columns.
    Tiles { tall: usize },
}

impl Way {
    fn is_tiles(self) -> bool {
        matches!(self, Self::Tiles { .. })
    }
}

/// Workgroups that keep a large device busy.
const BUSY: usize = 256;

/// The kernel for `m` rows of x, `n` of the weights and `k` elements in each.
fn way(m: usize, n: usize, k: usize) -> Way {
    let tiles = |tall: usize| m.div_ceil(16 * tall) * n.div_ceil(64);
    if m > 8 {
        // Tall tiles read the weights less often, but only many of them use the whole device. If there are few tiles of
        // any height, lanes are faster, because many share a row.
        let fits = |tall: usize| m > 8 * tall && tiles(tall) >= BUSY;
        if let Some(tall) = [8, 4].into_iter().find(|&tall| fits(tall)) {
            return Way::Tiles { tall };
        }
        if tiles(2) >= BUSY / 2 {
            return Way::Tiles { tall: 2 };
        }
    }
    let rows = m.clamp(1, 8).next_power_of_two();
    Way::Rows { rows, lanes: lanes(rows, m.div_ceil(rows), n, k) }
}

/// The number of lanes that share rows of the weights, `n` of `k` elements, if `down` groups of `rows` rows of x are
/// multiplied with them.
pub(super) fn lanes(rows: usize, down: usize, n: usize, k: usize) -> usize {
    // A piece of x in workgroup memory serves at most this many lanes.
    let most = parts(k).min(128 / rows);
    // A workgroup has four rows of the weights for each slot of lanes: more lanes give more workgroups. Measured on an
    // H100, for one row times 4096 x 4096 to 14336 of Q4_K and Q6_K: 64 are faster than 16, 32 and 128.
    let (least, enough) = if rows == 1 { (64, BUSY / 2) } else { (32, 3 * BUSY) };
    let few = |lanes: usize| lanes < least || down * n.div_ceil(1024 / lanes) < enough;
    let mut lanes = 8;
    while 2 * lanes <= most && few(lanes) {
        lanes *= 2;
    }
    lanes
}

impl Lower<GpuDevice> for QuantMatmul {
    /// A third operand is added to the result: the device requests
    /// [`FusionLimits::addends`](kiln_ir::graph::FusionLimits::addends).
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (x, w) = (inputs[0].ty.shape, inputs[1].ty.shape);
        let (m, n, k) = (x.rows(), w.rows(), w.columns());
        let blocks = k / self.format.block_len();
        let row_bytes = blocks * self.format.block_bytes();
        let rows_of_x = pieces(&plan.target.limits, m, &[4 * k, 4 * n]);
        let of_weights = pieces(&plan.target.limits, n, &[row_bytes]);
        if let Some(&addend) = inputs.get(2)
            && rows_of_x.iter().any(|rows| of_weights.iter().any(|columns| way(rows.len, columns.len, k).is_tiles()))
        {
            let product = plan.scratch(outputs[0].ty);
            self.lower(plan, &inputs[..2], &[product])?;
            return Elementwise::add().lower(plan, &[product, addend], outputs);
        }
        for rows in &rows_of_x {
            for columns in &of_weights {
                let (m, n_here) = (rows.len, columns.len);
                let format = kiln_shaders::constant(self.format);
                let x = rows.of(inputs[0].at, 4 * k);
                let mut buffers = vec![x, columns.of(inputs[1].at, row_bytes), rows.of(outputs[0].at, 4 * n)];
                let (kernel, constants, down, across) = match way(m, n_here, k) {
                    Way::Rows { rows: held, lanes } => {
                        // Without an addend any binding takes its place.
                        buffers.push(inputs.get(2).map_or(x, |addend| rows.of(addend.at, 4 * n)));
                        let adds = ("ADDS", u32::from(inputs.len() > 2));
                        let constants = vec![format, ("ROWS", held as u32), ("LANES", lanes as u32), adds];
                        (kiln_shaders::QUANT_MATVEC, constants, m.div_ceil(held), n_here.div_ceil(1024 / lanes))
                    }
                    Way::Tiles { tall } => {
                        let constants = vec![format, ("TALL", tall as u32)];
                        (kiln_shaders::QUANT_MATMUL, constants, m.div_ceil(16 * tall), n_here.div_ceil(64))
                    }
                };
                let total = down * across;
                let params = [m, n_here, blocks, n, columns.start, down, total].map(Word::from);
                plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, Grid::groups_of(total));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
mod tests {
    use kiln_ir::op::Op;
    use kiln_ir::{Shape, TensorType};

    use super::super::small_bindings::run;
    use super::*;
    use crate::{AdapterChoice, GpuDevice};

    #[test]
    fn few_rows_go_to_lanes_and_many_to_tiles() {
        // More lanes for fewer weights.
        assert_eq!(way(1, 28_672, 8192), Way::Rows { rows: 1, lanes: 64 });
        assert_eq!(way(1, 1024, 4096), Way::Rows { rows: 1, lanes: 128 });
        assert_eq!(way(1, 64, 14_336), Way::Rows { rows: 1, lanes: 128 });
        assert_eq!(way(1, 64, 256), Way::Rows { rows: 1, lanes: 8 });
        assert_eq!(way(1, 1, 0), Way::Rows { rows: 1, lanes: 8 });
        // No more lanes than parts in a piece of x.
        assert_eq!(way(2, 4096, 4096), Way::Rows { rows: 2, lanes: 64 });
        assert_eq!(way(3, 4096, 4096), Way::Rows { rows: 4, lanes: 32 });
        assert_eq!(way(8, 4096, 4096), Way::Rows { rows: 8, lanes: 16 });
        // Many rows with few weights use lanes until there are enough tiles.
        assert_eq!(way(32, 4096, 4096), Way::Rows { rows: 8, lanes: 16 });
        assert_eq!(way(32, 28_672, 8192), Way::Tiles { tall: 2 });
        assert_eq!(way(64, 28_672, 8192), Way::Tiles { tall: 4 });
        assert_eq!(way(512, 4096, 4096), Way::Tiles { tall: 8 });
        assert_eq!(way(4096, 4096, 4096), Way::Tiles { tall: 8 });
    }

    #[test]
    fn pieces_are_the_same_as_the_whole() {
        let Ok(device) = GpuDevice::open(&AdapterChoice::Any) else {
            eprintln!("left out: no device");
            return;
        };
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        for format in QuantFormat::ALL {
            let (rows, k) = (700, 2 * format.block_len());
            let x: Vec<f32> = (0..rows * k).map(|i| (i * i % 1009) as f32 - 500.0).collect();
            let (ty, blocks_ty) =
                (TensorType::f32(shape(&[rows, k])), TensorType::blocks(format, shape(&[rows, k])).unwrap());
            let mut blocks = vec![0; blocks_ty.bytes()];
            format.encode(&x, &mut blocks).unwrap();
            let few = TensorType::f32(shape(&[300, k]));
            let (x, some) = (bytes(&x), bytes(&x[..300 * k]));
            // In the product the result is too large, so its rows are split, and for most formats also the weights.
            let most = 4 * 600 * format.block_len() as u64;
            for (op, inputs, most) in [
                (Op::from(Quantize { format }), vec![(ty, x.clone())], most),
                (Op::from(Dequantize { format }), vec![(blocks_ty, blocks.clone())], most),
                (Op::from(QuantMatmul { format }), vec![(few, some), (blocks_ty, blocks)], 200_000),
            ] {
                let (one, whole) = run(&device, op, &inputs, None);
                let (many, cut) = run(&device, op, &inputs, Some(most));
                assert!(one == 1 && many > 1, "{op:?}: {one} and {many} dispatches");
                assert!(cut == whole, "{op:?}");
            }
        }
    }
}
