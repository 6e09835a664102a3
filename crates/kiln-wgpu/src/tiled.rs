//! Tiled reductions of matrices, in the tree of [`kiln_ir::tiled_reduce_2d`]: the same bits.

use std::collections::HashMap;

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::Reduction;
use kiln_ir::{DType, DataMut, Error, MaxOp, MinOp, Operand, ReduceOp, Result, SumOp, TILE_SIZE, TensorType};

use crate::lower::pieces::pieces;
use crate::plan::{Code, Dispatch, Grid, Slice};
use crate::{GpuDevice, GpuTensor};
use kiln_device::waiting::Waiting;
use kiln_device::{Executable, Location, Plan, blocking_and_async};

/// Tiles of a workgroup, as in the source.
const TILES: usize = 16;

/// The memory for the results of the tiles, and for the partial results of folding them.
const PARTIAL: Location = Location::Scratch(0);
const FOLDED: Location = Location::Scratch(1);

/// The reduction that an operation applies. Sealed: the kernels know only these.
mod sealed {
    use kiln_ir::op::Reduction;
    use kiln_ir::{MaxOp, MinOp, SumOp};

    pub trait Applied {
        const REDUCTION: Reduction;
    }

    impl Applied for SumOp {
        const REDUCTION: Reduction = Reduction::Sum;
    }

    impl Applied for MaxOp {
        const REDUCTION: Reduction = Reduction::Max;
    }

    impl Applied for MinOp {
        const REDUCTION: Reduction = Reduction::Min;
    }
}

/// An operation that tiled reductions on GPUs apply again and again: those of kiln-ir, and no other.
///
/// ```compile_fail
/// struct Mine;
/// impl kiln_ir::ReduceOp for Mine {
///     fn identity() -> f32 {
///         0.0
///     }
///     fn combine(a: f32, b: f32) -> f32 {
///         a - b
///     }
/// }
/// impl kiln_wgpu::TiledOp for Mine {}
/// ```
pub trait TiledOp: ReduceOp + sealed::Applied {}

impl<Op: ReduceOp + sealed::Applied> TiledOp for Op {}

/// Plans the reduction of a matrix. The wanted tensors are the results of the tiles, row by row, and the total, or
/// without `fold` only the former.
fn plan(
    reduction: Reduction,
    ty: TensorType,
    fold: bool,
    limits: &wgpu::Limits,
) -> Result<(TensorId, Plan<GpuDevice>)> {
    if ty.dtype != DType::F32 {
        return Err(Error::Type { op: "tiled reduction", index: 0, expected: DType::F32, found: ty.dtype });
    }
    let &[height, width] = ty.shape.dims() else {
        return Err(Error::Shape { op: "tiled reduction", reason: format!("{} is not a matrix", ty.shape) });
    };
    let mut graph = Graph::new();
    let input = graph.input(ty);
    let (across, down) = (width.div_ceil(TILE_SIZE), height.div_ceil(TILE_SIZE));
    let tiles = across * down;
    let most = limits.max_compute_workgroups_per_dimension;
    let mut dispatches = Vec::new();
    let mut add = |kernel, constants, buffers: [Slice; 2], params: &[usize], groups| {
        dispatches.push(Dispatch {
            code: Code::Kernel(kernel, constants),
            buffers: buffers.to_vec(),
            params: params.iter().map(|&param| u32::try_from(param).unwrap_or(u32::MAX)).collect(),
            groups: Grid::groups_of(groups).folded(most),
        });
    };
    let partial = 4 * tiles;
    let folded = 4 * tiles.div_ceil(2).max(1);
    let [of_tiles, of_folds] = [Slice::new(PARTIAL, partial), Slice::new(FOLDED, folded)];
    let vectors = if width.is_multiple_of(4) { 4 } else { 1 };
    // Bytes of a row of tiles; the last row may be lower than the others.
    let bytes = 4 * TILE_SIZE * width;
    for piece in pieces(limits, down, &[bytes]) {
        let rows = (piece.len * TILE_SIZE).min(height - piece.start * TILE_SIZE);
        let x = Slice::new(Location::Input(input), ty.bytes()).part(piece.start * bytes, 4 * rows * width);
        let total = across * piece.len;
        let constants = vec![kiln_shaders::constant(reduction), ("WIDTH", vectors)];
        let params = [width, rows, across, total, across * piece.start];
        if total > 0 {
            add(kiln_shaders::TILED, constants, [x, of_tiles], &params, total.div_ceil(TILES));
        }
    }
    let mut results = vec![(PARTIAL, partial as u64)];
    if fold {
        add(kiln_shaders::TILED_FOLD, vec![kiln_shaders::constant(reduction)], [of_tiles, of_folds], &[tiles], 1);
        results.push((FOLDED, 4));
    }
    let plan = Plan {
        steps: dispatches,
        slots: Vec::new(),
        scratch: vec![partial as u64, folded as u64],
        kept: Vec::new(),
        faults: Vec::new(),
        inputs: vec![(input, ty.bytes() as u64)],
        results,
    };
    Ok((input, plan))
}

/// Reduces a matrix to the results of the tiles, or to the total.
async fn run(
    device: &GpuDevice,
    reduction: Reduction,
    x: &GpuTensor,
    fold: bool,
    waiting: Waiting,
) -> Result<Vec<f32>> {
    device.check_own(&[x])?;
    let (input, plan) = plan(reduction, x.ty(), fold, &device.inner.target.limits)?;
    let elements = plan.results[usize::from(fold)].1 as usize / 4;
    let given = HashMap::from([(input, x.region().clone())]);
    let mut executable = Executable::new(device, plan, &given).await?;
    let mut found = kiln_ir::zeros(elements)?;
    executable.run(vec![(usize::from(fold), DataMut::F32(&mut found).as_bytes())], waiting).await?;
    Ok(found)
}

async fn reduce<Op: TiledOp>(device: &GpuDevice, x: &GpuTensor, waiting: Waiting) -> Result<f32> {
    let found = run(device, Op::REDUCTION, x, true, waiting).await?;
    Ok(found.first().copied().unwrap_or_else(Op::identity))
}

async fn reduce_host<Op: TiledOp>(
    device: &GpuDevice,
    data: &[f32],
    (width, height): (usize, usize),
    waiting: Waiting,
) -> Result<f32> {
    let x = GpuTensor::upload(device, &Operand::f32(data, &[height, width])?).await?;
    reduce::<Op>(device, &x, waiting).await
}

impl GpuDevice {
    blocking_and_async! {
        /// A matrix on this device reduced to one value, in the tree of [`kiln_ir::tiled_reduce_2d`].
        ///
        /// # Errors
        /// [`Error::Type`] for a tensor that is not of f32, [`Error::Shape`] for one that is not a matrix;
        /// [`Error::Unavailable`] for one of another device;
        /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
        pub fn tiled_reduce, tiled_reduce_async [Op: TiledOp] (&self, waiting, x: &GpuTensor) -> Result<f32> {
            reduce::<Op>(self, x, waiting).await
        }

        /// The results of the tiles of a matrix on this device, row by row, as [`kiln_ir::tiled_reduce_partial`] has them.
        ///
        /// # Errors
        /// The errors of [`GpuDevice::tiled_reduce_async`].
        pub fn tiled_reduce_partial, tiled_reduce_partial_async [Op: TiledOp] (
            &self, waiting, x: &GpuTensor,
        ) -> Result<Vec<f32>> {
            run(self, Op::REDUCTION, x, false, waiting).await
        }

        /// A row-major matrix of the host reduced to one value.
        ///
        /// # Errors
        /// [`Error::Length`] when the data are not `width * height`, [`Error::Overflow`] when that cannot be counted;
        /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
        pub fn tiled_reduce_2d, tiled_reduce_2d_async [Op: TiledOp] (
            &self, waiting, data: &[f32], width: usize, height: usize,
        ) -> Result<f32> {
            reduce_host::<Op>(self, data, (width, height), waiting).await
        }

        /// The sum of a row-major matrix.
        ///
        /// # Errors
        /// The errors of [`GpuDevice::tiled_reduce_2d_async`].
        pub fn tiled_sum_2d, tiled_sum_2d_async(
            &self, waiting, data: &[f32], width: usize, height: usize,
        ) -> Result<f32> {
            reduce_host::<SumOp>(self, data, (width, height), waiting).await
        }

        /// The largest element of a row-major matrix; NaN if any is NaN.
        ///
        /// # Errors
        /// The errors of [`GpuDevice::tiled_reduce_2d_async`].
        pub fn tiled_max_2d, tiled_max_2d_async(
            &self, waiting, data: &[f32], width: usize, height: usize,
        ) -> Result<f32> {
            reduce_host::<MaxOp>(self, data, (width, height), waiting).await
        }

        /// The smallest element of a row-major matrix; NaN if any is NaN.
        ///
        /// # Errors
        /// The errors of [`GpuDevice::tiled_reduce_2d_async`].
        pub fn tiled_min_2d, tiled_min_2d_async(
            &self, waiting, data: &[f32], width: usize, height: usize,
        ) -> Result<f32> {
            reduce_host::<MinOp>(self, data, (width, height), waiting).await
        }
    }
}
