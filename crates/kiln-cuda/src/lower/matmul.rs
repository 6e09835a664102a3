//! Products of matrices.

use kiln_ir::op::{Matmul, MatmulExtents, Matvec, StridedCopy};
use kiln_ir::{DType, Error, Precision, Result, Shape, TensorType};
use kiln_ptx::kernels::matmul::{
    Epilogue, FewRowsGemm, Gemm, MultistageGemm, SplitSum, Tf32Planes, Tile, WarpGemm, WarpGroupGemm, WarpGroupTile,
    WarpTile,
};
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::{Launch, PtxType};

use super::{HALVES, Launches, Lower, Lowering, Value, accepted, cast, halves, shape};
use crate::CudaDevice;
use crate::plan::{Code, Hardware};
use kiln_device::Location;

/// Number of large tiles that keeps a device busy.
const BUSY: usize = 128;

/// Minimum `m n / (m + n)`, for rows and columns of C, from which products in planes take less time than direct f32
/// products: writing and reading planes takes as long for few products as for many. Computed for an H200, from 4.2
/// TB/s, 47 and 110 TFLOP/s; 128 x 4096 x 14336 was slower in planes.
const WORTH_PLANES: usize = 195;

/// The layout of f32 operands for warp groups: k innermost.
pub(super) const K_INNERMOST: Matmul = Matmul { transpose_a: false, transpose_b: true };

/// Adds `C = A B` on tensor cores if they support it at this precision, else on the f32 units.
fn product(
    plan: &mut Lowering<'_>,
    precision: Precision,
    op: Matmul,
    mut extents: MatmulExtents,
    [a, b, c]: [Value; 3],
) -> Result<()> {
    if extents.shared_b && !op.transpose_a {
        // The rows of a stack of A form one matrix.
        extents = MatmulExtents::of_one([extents.m * extents.batch, extents.k, extents.n]);
    }
    if few_rows(plan, op, extents, [a, b, c])?
        || plan.target.has_tensor_cores() && on_tensor_cores(plan, precision, op, extents, [a, b, c])?
    {
        return Ok(());
    }
    let (a, b) = (cast::widened(plan, a)?, cast::widened(plan, b)?);
    if plan.target.has_copies() && in_stages(plan, op, extents, [a, b, c])? {
        return Ok(());
    }
    let MatmulExtents { batch, m, n, .. } = extents;
    let large = batch.saturating_mul(m.div_ceil(128)).saturating_mul(n.div_ceil(128));
    let kernel = Gemm::new(op, if large >= BUSY { Tile::LARGE } else { Tile::SMALL });
    let launch = kernel.launch(extents, 1.0, 0.0)?;
    plan.run(kernel, launch, &[a.at, b.at, c.at]);
    Ok(())
}

/// Adds the product of a few f32 rows with the transpose of a 16-bit matrix, which is read as stored. Returns whether
/// the product has this form and the kernel supports its extents.
fn few_rows(plan: &mut Lowering<'_>, op: Matmul, extents: MatmulExtents, [a, b, c]: [Value; 3]) -> Result<bool> {
    let MatmulExtents { batch, m, k, n, .. } = extents;
    let Some(weights) = halves(&[b.ty]) else { return Ok(false) };
    if op != K_INNERMOST || batch != 1 || a.ty.dtype != DType::F32 {
        return Ok(false);
    }
    let Some(kernel) = FewRowsGemm::new(m, weights) else { return Ok(false) };
    let Some(launch) = accepted(kernel.launch([m, k, n]))? else { return Ok(false) };
    plan.run(kernel, launch, &[a.at, b.at, c.at]);
    Ok(true)
}

/// Adds an f32 product on the f32 units, with operands that are copied asynchronously. Returns whether its extents
/// allow that.
fn in_stages(plan: &mut Lowering<'_>, op: Matmul, extents: MatmulExtents, [a, b, c]: [Value; 3]) -> Result<bool> {
    let (kernel, parts) = MultistageGemm::for_extents(op, extents, plan.target.multiprocessors);
    let Some(launch) = accepted(kernel.launch(extents, parts))? else { return Ok(false) };
    if parts == 1 {
        plan.run(kernel, launch, &[a.at, b.at, c.at]);
        return Ok(true);
    }
    let elements = c.ty.shape.numel();
    let sum = SplitSum::new(parts, elements);
    let Some(adding) = accepted(sum.launch(elements))? else { return Ok(false) };
    let bytes = c.ty.bytes().checked_mul(parts).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
    let split = plan.scratch_bytes(bytes);
    plan.run(kernel, launch, &[a.at, b.at, split]);
    plan.run(sum, adding, &[split, c.at]);
    Ok(true)
}

/// Adds the product on tensor cores. Returns whether they support it.
fn on_tensor_cores(
    plan: &mut Lowering<'_>,
    precision: Precision,
    op: Matmul,
    extents: MatmulExtents,
    [a, b, c]: [Value; 3],
) -> Result<bool> {
    let halves = halves(&[a.ty, b.ty]);
    let (kernel_op, input) = match (halves, precision) {
        (Some(halves), _) => (op, halves),
        (None, Precision::Tf32x3) => return in_planes(plan, op, extents, [a, b, c]),
        (None, Precision::Tf32) => (K_INNERMOST, PtxType::F32),
        (None, Precision::Bf16 | Precision::Int8) => return rounded(plan, op, extents, [a, b, c]),
        (None, _) => return Ok(false),
    };
    let Some((kernel, launch)) = kernel(*plan.target, kernel_op, input, extents)? else { return Ok(false) };
    if halves.is_some() {
        plan.run(kernel, launch, &[a.at, b.at, c.at]);
        return Ok(true);
    }
    let [a, b] = operands(plan, op, extents, [a, b])?.map(|operand| match operand.across {
        true => turned(plan, operand),
        false => Ok(operand.x.at),
    });
    plan.run(kernel, launch, &[a?, b?, c.at]);
    Ok(true)
}

/// Adds the product of the operands rounded to bf16. Returns whether a kernel supports it.
fn rounded(plan: &mut Lowering<'_>, op: Matmul, extents: MatmulExtents, [a, b, c]: [Value; 3]) -> Result<bool> {
    let Some((kernel, launch)) = kernel(*plan.target, op, PtxType::Bf16, extents)? else { return Ok(false) };
    let [a, b] = [a, b].map(|operand| cast::of_type(plan, operand, DType::Bf16));
    plan.run(kernel, launch, &[a?.at, b?.at, c.at]);
    Ok(true)
}

/// The tensor core kernel for the product in its stored layout, and its launch: with warp groups if there are any.
pub(super) fn kernel(
    hardware: Hardware,
    op: Matmul,
    input: PtxType,
    extents: MatmulExtents,
) -> Result<Option<(Code, Launch)>> {
    let (types, multiprocessors) = ([input, PtxType::F32], hardware.multiprocessors);
    if hardware.has_warp_groups() {
        let tile = WarpGroupTile::for_extents(extents, input, multiprocessors);
        let kernel = WarpGroupGemm::new(op, types, tile, Epilogue::PLAIN)?;
        if let Some(launch) = accepted(kernel.launch(extents, [1.0, 0.0], multiprocessors))? {
            return Ok(Some((kernel.into(), launch)));
        }
    }
    let tile = WarpTile::for_extents(extents, multiprocessors);
    let kernel = WarpGemm::new(op, types, tile, Epilogue::PLAIN, hardware.target)?;
    Ok(accepted(kernel.launch(extents, [1.0, 0.0]))?.map(|launch| (kernel.into(), launch)))
}

/// Adds an f32 product with operands split into two parts. Returns whether warp groups support it.
fn in_planes(plan: &mut Lowering<'_>, op: Matmul, extents: MatmulExtents, [a, b, c]: [Value; 3]) -> Result<bool> {
    let MatmulExtents { m, n, .. } = extents;
    if !plan.target.has_warp_groups() || m.saturating_mul(n) < WORTH_PLANES.saturating_mul(m + n) {
        return Ok(false);
    }
    let multiprocessors = plan.target.multiprocessors;
    let kernel = WarpGroupGemm::of_planes(
        PtxType::F32,
        WarpGroupTile::for_planes(extents, PtxType::F32, multiprocessors),
        Epilogue::PLAIN,
    )?;
    let Some(launch) = accepted(kernel.launch(extents, [1.0, 0.0], multiprocessors))? else { return Ok(false) };
    let [a, b] = operands(plan, op, extents, [a, b])?.map(|operand| planes(plan, operand));
    plan.run(kernel, launch, &[a?, b?, c.at]);
    Ok(true)
}

/// An operand as f32 matrices.
struct Stored {
    x: Value,
    matrices: usize,
    /// Rows, or columns, and k.
    extents: [usize; 2],
    /// Whether k is the outer dimension.
    across: bool,
}

/// Both operands as f32.
fn operands(plan: &mut Lowering<'_>, op: Matmul, extents: MatmulExtents, [a, b]: [Value; 2]) -> Result<[Stored; 2]> {
    let MatmulExtents { batch, shared_a, shared_b, m, k, n } = extents;
    let (a, b) = (cast::widened(plan, a)?, cast::widened(plan, b)?);
    let [of_a, of_b] = [shared_a, shared_b].map(|shared| if shared { 1 } else { batch });
    Ok([
        Stored { x: a, matrices: of_a, extents: [m, k], across: op.transpose_a },
        Stored { x: b, matrices: of_b, extents: [n, k], across: !op.transpose_b },
    ])
}

/// f32 matrices as two TF32 planes, with k innermost.
fn planes(plan: &mut Lowering<'_>, Stored { x, matrices, extents: [rows, k], across }: Stored) -> Result<Location> {
    let kernel = Tf32Planes::new(across);
    let launch = kernel.launch(matrices, rows, k)?;
    let bytes = Tf32Planes::bytes(matrices, rows, k).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
    let planes = plan.scratch_bytes(bytes);
    plan.run(kernel, launch, &[x.at, planes]);
    Ok(planes)
}

/// f32 matrices with k outermost, transposed to k innermost.
fn turned(plan: &mut Lowering<'_>, Stored { x, matrices, extents: [rows, k], .. }: Stored) -> Result<Location> {
    let launch = Transpose.launch(matrices, k, rows)?;
    let turned = plan.scratch_bytes(x.ty.bytes());
    plan.run(Transpose, launch, &[x.at, turned]);
    Ok(turned)
}

/// A stack with a matrix for each product: itself, or a copy that repeats its matrices.
fn repeated(plan: &mut Lowering<'_>, stack: Value, batch: usize, repeat: Option<StridedCopy>) -> Result<Value> {
    let Some(repeat) = repeat else { return Ok(stack) };
    let [.., rows, columns] = *stack.ty.shape.dims() else { return Ok(stack) };
    let ty = TensorType { dtype: stack.ty.dtype, shape: Shape::new(&[batch, rows, columns])? };
    let at = plan.scratch_bytes(ty.bytes().next_multiple_of(4));
    shape::copy(plan, &repeat, stack.at, at)?;
    Ok(Value { at, ty })
}

/// Adds the products of two stacks of matrices, `C = A B`.
pub(super) fn stacks(plan: &mut Lowering<'_>, precision: Precision, op: Matmul, [a, b, c]: [Value; 3]) -> Result<()> {
    let extents = op.extents(&a.ty.shape, &b.ty.shape)?;
    let [repeat_a, repeat_b] = op.repeats(&a.ty, &b.ty)?;
    let a = repeated(plan, a, extents.batch, repeat_a)?;
    let b = repeated(plan, b, extents.batch, repeat_b)?;
    product(plan, precision, op, extents, [a, b, c])
}

impl Lower<CudaDevice> for Matmul {
    const READS: &'static [DType] = HALVES;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        stacks(plan, plan.target.precision, *self, [inputs[0], inputs[1], outputs[0]])
    }
}

impl Lower<CudaDevice> for Matvec {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (rows, columns) = (inputs[0].ty.shape.rows(), inputs[0].ty.shape.columns());
        let (m, k) = if self.transpose { (columns, rows) } else { (rows, columns) };
        let op = Matmul { transpose_a: self.transpose, transpose_b: false };
        let extents = MatmulExtents::of_one([m, k, 1]);
        product(plan, plan.target.precision, op, extents, [inputs[0], inputs[1], outputs[0]])
    }
}

#[cfg(test)]
mod tests {
    use kiln_ir::op::{Convolve2d, Op};
    use kiln_ir::{Shape, TensorType};
    use kiln_ptx::Target;

    use super::*;
    use crate::plan::Hardware;
    use kiln_device::Plan;

    const HOPPER: Hardware = Hardware { target: Target::Sm90a, multiprocessors: 132, precision: Precision::Contract };

    fn plan<const RANK: usize>(
        hardware: Hardware,
        op: impl Into<Op>,
        types: [(DType, [usize; RANK]); 2],
    ) -> Plan<CudaDevice> {
        let types = types.map(|(dtype, dims)| TensorType::of(dtype, Shape::new(&dims).unwrap()).unwrap());
        Plan::of_operation(&op.into(), &types, &hardware).unwrap().1
    }

    /// The names of the kernels of a product, without the tile suffixes.
    fn kernels<const RANK: usize>(hardware: Hardware, op: Matmul, types: [(DType, [usize; RANK]); 2]) -> Vec<String> {
        names(&plan(hardware, op, types))
    }

    fn names(plan: &Plan<CudaDevice>) -> Vec<String> {
        let is_tile = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && !word.ends_with("tf32");
        let name = |name: String| name.split('_').take_while(|word| !is_tile(word)).collect::<Vec<_>>().join("_");
        plan.steps.iter().map(|dispatch| name(dispatch.code.kernel().name())).collect()
    }

    #[test]
    fn halves_go_to_tensor_cores_where_copies_take_their_rows() {
        let (half, nn) = (DType::F16, Matmul::default());
        let of = |target, m, k, n| kernels(Hardware { target, ..HOPPER }, nn, [(half, [m, k]), (half, [k, n])]);
        let widened = |product| ["cast_f16_f32", "cast_f16_f32", product];
        assert_eq!(of(Target::Sm90a, 100, 64, 128), ["gemm_nn_f16_f32"]);
        for target in [Target::Sm80, Target::Sm90, Target::Sm120] {
            assert_eq!(of(target, 100, 64, 128), ["gemm_nn_f16_f32_warps"], "{target}");
        }
        assert_eq!(of(Target::Sm75, 100, 64, 128), widened("gemm_nn"));
        for target in [Target::Sm80, Target::Sm90a] {
            for (m, k, n) in [(100, 65, 128), (100, 64, 127)] {
                assert_eq!(of(target, m, k, n), widened("gemm_nn_stages"), "{target}");
            }
        }
        // Rows of C that do not allow asynchronous stores are written by warps.
        let narrow = kernels(HOPPER, K_INNERMOST, [(half, [100, 64]), (half, [70, 64])]);
        assert_eq!(narrow, ["gemm_nt_f16_f32_warps"]);
        // A few f32 rows are multiplied with the matrix as stored, unless rows are not whole vectors.
        let few = |m, k, n| kernels(HOPPER, K_INNERMOST, [(DType::F32, [m, k]), (half, [n, k])]);
        assert_eq!(few(5, 64, 70), ["gemm_few_rows_f16"]);
        assert_eq!(few(9, 64, 64), widened("gemm_nt_stages")[1..]);
        assert_eq!(few(1, 63, 64)[0], "cast_f16_f32");
        // One of them is widened, and the product is that of f32.
        assert_eq!(kernels(HOPPER, nn, [(half, [64, 64]), (DType::F32, [64, 64])]), widened("gemm_nn_stages")[1..]);
    }

    #[test]
    fn f32_stays_as_it_is_unless_less_is_asked_for() {
        let on = |target, op, precision, [m, k, n]: [usize; 3]| {
            let (a, b) = if op == K_INNERMOST { ([m, k], [n, k]) } else { ([m, k], [k, n]) };
            kernels(Hardware { target, precision, ..HOPPER }, op, [(DType::F32, a), (DType::F32, b)])
        };
        let float = |op, precision, extents| on(Target::Sm90a, op, precision, extents);
        let (nn, cube, staged) = (Matmul::default(), [64, 64, 64], ["gemm_nn_stages"]);
        assert_eq!(float(nn, Precision::Contract, cube), staged);
        assert_eq!(float(K_INNERMOST, Precision::Tf32, cube), ["gemm_nt_tf32_f32"]);
        assert_eq!(float(nn, Precision::Tf32, cube), ["transpose", "gemm_nt_tf32_f32"]);
        let split = ["tf32_planes", "tf32_planes_transposed", "gemm_nt_3xtf32_f32"];
        assert_eq!(float(nn, Precision::Tf32x3, [512, 65, 512]), split);
        assert_eq!(float(nn, Precision::Tf32x3, [64, 65, 4096]), staged, "planes of B for few rows");
        assert_eq!(float(nn, Precision::Tf32x3, [512, 64, 511]), staged, "rows of C that no copy takes");
        assert_eq!(float(nn, Precision::Tf32, [64, 65, 64]), staged, "rows of A that no copy takes");
        assert_eq!(on(Target::Sm80, nn, Precision::Tf32, cube), ["transpose", "gemm_nt_tf32_f32_warps"]);
        assert_eq!(on(Target::Sm80, nn, Precision::Tf32x3, [512; 3])[0], staged[0], "planes are for warp groups");
        assert_eq!(on(Target::Sm75, nn, Precision::Tf32, cube), ["gemm_nn"]);
        for precision in [Precision::Bf16, Precision::Int8] {
            let rounded = ["cast_f32_bf16", "cast_f32_bf16", "gemm_nn_bf16_f32"];
            assert_eq!(float(nn, precision, cube), rounded);
        }
    }

    #[test]
    fn a_matrix_that_serves_all_products_is_read_in_place() {
        use DType::{F16, F32};
        let nn = Matmul::default();
        let of = |target, precision, dtype, a: [usize; 4], b: [usize; 4]| {
            let plan = plan(Hardware { target, precision, ..HOPPER }, nn, [(dtype, a), (dtype, b)]);
            (names(&plan), plan.scratch.iter().sum::<u64>())
        };
        let run =
            |kernels: &[&str], scratch: usize| (kernels.iter().map(|&name| name.into()).collect(), scratch as u64);
        let (one, all) = ([1, 1, 32, 32], [2, 16, 32, 32]);
        let contract = Precision::Contract;
        for (a, b) in [(one, all), (all, one)] {
            assert_eq!(of(Target::Sm75, contract, F32, a, b), run(&["gemm_nn"], 0));
            assert_eq!(of(Target::Sm90a, contract, F32, a, b), run(&["gemm_nn_stages"], 0));
            assert_eq!(of(Target::Sm80, contract, F16, a, b), run(&["gemm_nn_f16_f32_warps"], 0));
            assert_eq!(of(Target::Sm90a, contract, F16, a, b), run(&["gemm_nn_f16_f32"], 0));
        }
        // What is written of it is one matrix, too: k innermost, or in planes.
        let bytes = 4 * 32 * 32;
        let transposed = run(&["transpose", "gemm_nt_tf32_f32"], 32 * bytes);
        assert_eq!(of(Target::Sm90a, Precision::Tf32, F32, one, all), transposed);
        let planes = run(&["tf32_planes", "tf32_planes_transposed", "gemm_nt_3xtf32_f32"], 3 * 2 * 4 * 512 * 64);
        assert_eq!(of(Target::Sm90a, Precision::Tf32x3, F32, [1, 1, 512, 64], [1, 2, 64, 512]), planes);
        // Other stacks that broadcast are copied.
        let copied = of(Target::Sm90a, contract, F32, [2, 1, 32, 32], all);
        assert_eq!(copied, run(&["strided_copy_x4", "gemm_nn_stages"], 32 * bytes));
    }

    #[test]
    fn weights_of_convolutions_are_read_in_place() {
        let plan = plan(HOPPER, Convolve2d::default(), [(DType::F32, [4, 32, 32, 32]), (DType::F32, [64, 32, 3, 3])]);
        assert_eq!(names(&plan), ["unfold2d", "gemm_nn_stages", "split_sum"]);
    }

    #[test]
    fn k_is_cut_where_tiles_are_few() {
        let of = |target, [m, k, n]: [usize; 3]| {
            kernels(Hardware { target, ..HOPPER }, K_INNERMOST, [(DType::F32, [m, k]), (DType::F32, [n, k])])
        };
        assert_eq!(of(Target::Sm90a, [16, 4096, 4096]), ["gemm_nt_stages", "split_sum"]);
        assert_eq!(of(Target::Sm90a, [4096, 4096, 4096]), ["gemm_nt_stages"]);
        assert_eq!(of(Target::Sm90a, [16, 0, 4096]), ["gemm_nt_stages"]);
        assert_eq!(of(Target::Sm75, [16, 4096, 4096]), ["gemm_nt"]);
    }
}
