//! Products of matrices.

use kiln_core::op::{Matmul, MatmulExtents, Matvec};
use kiln_core::{DType, Error, Result};
use kiln_ptx::kernels::gemm::{Epilogue, Gemm, Tf32Planes, Tile, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::{Launch, PtxType};

use super::{Lower, Lowering, Value, convert};
use crate::options::InputPrecision;
use crate::plan::Location;

/// Large tiles that keep a device busy.
const BUSY: usize = 128;

/// How warp groups take f32: with k innermost.
const K_INNERMOST: Matmul = Matmul { transpose_a: false, transpose_b: true };

/// Adds `C = A B` on tensor cores where they take it, else on the units for f32.
fn product(plan: &mut Lowering<'_>, op: Matmul, mut extents: MatmulExtents, [a, b, c]: [Value; 3]) -> Result<()> {
    if extents.shared_b && !op.transpose_a {
        // The rows of all A are those of one.
        (extents.m, extents.batch) = (extents.m * extents.batch, 1);
    }
    if plan.hardware.has_warp_groups() && on_warp_groups(plan, op, extents, [a, b, c])? {
        return Ok(());
    }
    let (a, b) = (convert::widened(plan, a)?, convert::widened(plan, b)?);
    let MatmulExtents { batch, m, n, .. } = extents;
    let large = batch.saturating_mul(m.div_ceil(128)).saturating_mul(n.div_ceil(128));
    let kernel = Gemm::new(op, if large >= BUSY { Tile::LARGE } else { Tile::SMALL });
    let launch = kernel.launch(extents, 1.0, 0.0)?;
    plan.run(kernel, launch, &[a.at, b.at, c.at]);
    Ok(())
}

/// Adds the product on warp groups, and says whether they take it.
fn on_warp_groups(plan: &mut Lowering<'_>, op: Matmul, extents: MatmulExtents, [a, b, c]: [Value; 3]) -> Result<bool> {
    let multiprocessors = plan.hardware.multiprocessors;
    let launch = |kernel: &WarpGroupGemm| accepted(kernel.launch(extents, [1.0, 0.0], multiprocessors));
    if [a, b].iter().all(|operand| operand.ty.dtype == DType::F16) {
        let tile = WarpGroupTile::for_extents(extents, PtxType::F16, multiprocessors);
        let kernel = WarpGroupGemm::new(op, [PtxType::F16, PtxType::F32], tile, Epilogue::PLAIN)?;
        let Some(launch) = launch(&kernel)? else { return Ok(false) };
        plan.run(kernel, launch, &[a.at, b.at, c.at]);
        return Ok(true);
    }
    let MatmulExtents { batch, shared_b, m, k, n } = extents;
    let matrices_of_b = if shared_b { 1 } else { batch };
    let kernel = match plan.hardware.input_precision {
        InputPrecision::Ieee => return Ok(false),
        InputPrecision::Tf32x3 => {
            WarpGroupGemm::of_planes(WarpGroupTile::for_planes(extents, multiprocessors), Epilogue::PLAIN)?
        }
        InputPrecision::Tf32 => {
            let tile = WarpGroupTile::for_extents(extents, PtxType::F32, multiprocessors);
            WarpGroupGemm::new(K_INNERMOST, [PtxType::F32; 2], tile, Epilogue::PLAIN)?
        }
    };
    let Some(launch) = launch(&kernel)? else { return Ok(false) };
    let (a, b) = (convert::widened(plan, a)?, convert::widened(plan, b)?);
    // How often, with how many rows of C or columns, and whether k is outside.
    let operands = [(a, batch, m, op.transpose_a), (b, matrices_of_b, n, !op.transpose_b)];
    let [a, b] = match plan.hardware.input_precision {
        InputPrecision::Tf32x3 => {
            operands.map(|(x, matrices, rows, across)| planes(plan, x, matrices, [rows, k], across))
        }
        _ => operands
            .map(|(x, matrices, rows, across)| if across { turned(plan, x, matrices, [rows, k]) } else { Ok(x.at) }),
    };
    plan.run(kernel, launch, &[a?, b?, c.at]);
    Ok(true)
}

/// A launch; none where the kernel takes no such extents.
fn accepted(launch: Result<Launch>) -> Result<Option<Launch>> {
    match launch {
        Ok(launch) => Ok(Some(launch)),
        Err(Error::Shape { .. } | Error::Limit { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Matrices of f32 in two planes in TF32, with k innermost.
fn planes(plan: &mut Lowering<'_>, x: Value, matrices: usize, [rows, k]: [usize; 2], across: bool) -> Result<Location> {
    let kernel = Tf32Planes::new(across);
    let launch = kernel.launch(matrices, rows, k)?;
    let bytes = Tf32Planes::bytes(matrices, rows, k).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
    let planes = plan.scratch(bytes);
    plan.run(kernel, launch, &[x.at, planes]);
    Ok(planes)
}

/// Matrices of f32 that have k outside, with k innermost.
fn turned(plan: &mut Lowering<'_>, x: Value, matrices: usize, [rows, k]: [usize; 2]) -> Result<Location> {
    let launch = Transpose.launch(matrices, k, rows)?;
    let turned = plan.scratch(x.ty.bytes());
    plan.run(Transpose, launch, &[x.at, turned]);
    Ok(turned)
}

impl Lower for Matmul {
    const HALVES: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let extents = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        product(plan, *self, extents, [inputs[0], inputs[1], outputs[0]])
    }
}

impl Lower for Matvec {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (rows, columns) = (inputs[0].ty.shape.rows(), inputs[0].ty.shape.columns());
        let (m, k) = if self.transpose { (columns, rows) } else { (rows, columns) };
        let op = Matmul { transpose_a: self.transpose, transpose_b: false };
        let extents = MatmulExtents { batch: 1, shared_b: true, m, k, n: 1 };
        product(plan, op, extents, [inputs[0], inputs[1], outputs[0]])
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::op::Op;
    use kiln_core::{Shape, TensorType};
    use kiln_ptx::Target;

    use super::*;
    use crate::plan::{Hardware, Plan};

    const HOPPER: Hardware =
        Hardware { target: Target::Sm90a, multiprocessors: 132, input_precision: InputPrecision::Ieee };

    /// The first words of the names of the kernels of a product.
    fn kernels(hardware: Hardware, op: Matmul, types: [(DType, [usize; 2]); 2]) -> Vec<String> {
        let types = types.map(|(dtype, dims)| TensorType::of(dtype, Shape::new(&dims).unwrap()).unwrap());
        let (_, plan) = Plan::of_operation(&Op::from(op), &types, hardware).unwrap();
        let name = |name: String| name.split('_').take(4).collect::<Vec<_>>().join("_");
        plan.dispatches.iter().map(|dispatch| name(dispatch.code.kernel().name())).collect()
    }

    #[test]
    fn halves_go_to_tensor_cores_where_copies_take_their_rows() {
        let (half, nn) = (DType::F16, Matmul::default());
        let of = |hardware, m, k, n| kernels(hardware, nn, [(half, [m, k]), (half, [k, n])]);
        assert_eq!(of(HOPPER, 100, 64, 128), ["gemm_nn_f16_f32"]);
        let plain = ["half_to_f32", "half_to_f32", "gemm_nn"].len();
        for (m, k, n) in [(100, 65, 128), (100, 64, 127), (3, 0, 8)] {
            let names = of(HOPPER, m, k, n);
            assert!(names.len() == plain && names[2].starts_with("gemm_nn") && !names[2].contains("f16"), "{names:?}");
        }
        // Hopper without them, and other architectures.
        for target in [Target::Sm90, Target::Sm80, Target::Sm120] {
            assert_eq!(of(Hardware { target, ..HOPPER }, 100, 64, 128).len(), plain, "{target}");
        }
        // One of them is widened, and multiplied as f32 is.
        assert_eq!(kernels(HOPPER, nn, [(half, [64, 64]), (DType::F32, [64, 64])]).len(), 2);
    }

    #[test]
    fn f32_stays_as_it_is_unless_less_is_asked_for() {
        let float = |op, input_precision, m, k, n| {
            let (a, b) = if op == K_INNERMOST { ([m, k], [n, k]) } else { ([m, k], [k, n]) };
            kernels(Hardware { input_precision, ..HOPPER }, op, [(DType::F32, a), (DType::F32, b)])
        };
        let nn = Matmul::default();
        assert_eq!(float(nn, InputPrecision::Ieee, 64, 64, 64).len(), 1);
        assert_eq!(float(K_INNERMOST, InputPrecision::Tf32, 64, 64, 64), ["gemm_nt_tf32_f32"]);
        assert_eq!(float(nn, InputPrecision::Tf32, 64, 64, 64), ["transpose", "gemm_nt_tf32_f32"]);
        let split = ["tf32_planes", "tf32_planes_transposed", "gemm_nt_3xtf32_f32"];
        assert_eq!(float(nn, InputPrecision::Tf32x3, 64, 65, 64), split);
        assert_eq!(float(nn, InputPrecision::Tf32x3, 64, 64, 63).len(), 1, "rows of C that no copy takes");
        assert_eq!(float(nn, InputPrecision::Tf32, 64, 65, 64).len(), 1, "rows of A that no copy takes");
    }
}
