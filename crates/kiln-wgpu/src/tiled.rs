//! Tiled reductions of matrices, in the tree of [`kiln_ir::tiled_reduce_2d`]: the same bits.

use std::collections::HashMap;

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::{Error, MaxOp, MinOp, Operand, ReduceOp, Result, SumOp, TILE_SIZE, TensorType};

use crate::execute::Executable;
use crate::lower::pieces::pieces;
use crate::plan::{Code, Dispatch, Grid, Location, Plan, Slice};
#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::wait::Waiting;
use crate::{GpuDevice, GpuTensor};

/// Tiles of a workgroup, as in the source.
const TILES: usize = 16;

/// Where the results of the tiles are, and what is left of them when they are folded: first of all the result.
const PARTIAL: Location = Location::Scratch(0);
const FOLDED: Location = Location::Scratch(1);

/// What the kernels know an operation by. Private: of a number of somebody else's they would know nothing.
mod numbered {
    use kiln_ir::{MaxOp, MinOp, SumOp};

    pub trait Numbered {
        const NUMBER: u32;
    }

    impl Numbered for SumOp {
        const NUMBER: u32 = 0;
    }

    impl Numbered for MaxOp {
        const NUMBER: u32 = 1;
    }

    impl Numbered for MinOp {
        const NUMBER: u32 = 2;
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
pub trait TiledOp: ReduceOp + numbered::Numbered {}

impl<Op: ReduceOp + numbered::Numbered> TiledOp for Op {}

/// Plans the reduction of a matrix. The wanted are the results of the tiles, row by row, and the result of all, or with
/// `fold` false only the first.
fn plan(op: u32, ty: TensorType, fold: bool, limits: &wgpu::Limits) -> Result<(TensorId, Plan)> {
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
    let vectors = if width.is_multiple_of(4) { 4 } else { 1 };
    // Bytes of a row of tiles; the last may be less high than the others.
    let bytes = 4 * TILE_SIZE * width;
    for piece in pieces(limits, down, &[bytes]) {
        let rows = (piece.len * TILE_SIZE).min(height - piece.start * TILE_SIZE);
        let of_piece = Slice { bytes: Some((4 * rows * width) as u64), ..piece.of(Location::Input(input), bytes) };
        let x = if piece.len == down { Location::Input(input).into() } else { of_piece };
        let total = across * piece.len;
        let constants = vec![("OP", op), ("WIDTH", vectors)];
        let params = [width, rows, across, total, across * piece.start];
        if total > 0 {
            add(kiln_shaders::TILED, constants, [x, PARTIAL.into()], &params, total.div_ceil(TILES));
        }
    }
    let partial = 4 * tiles as u64;
    let mut results = vec![(PARTIAL, partial)];
    if fold {
        add(kiln_shaders::TILED_FOLD, vec![("OP", op)], [PARTIAL.into(), FOLDED.into()], &[tiles], 1);
        results.push((FOLDED, 4));
    }
    let plan = Plan {
        dispatches,
        slots: Vec::new(),
        scratch: vec![partial, 4 * tiles.div_ceil(2).max(1) as u64],
        faults: Vec::new(),
        inputs: vec![(input, ty.bytes() as u64)],
        results,
    };
    Ok((input, plan))
}

/// Reduces a matrix: the results of the tiles, or the result of all.
async fn run(op: u32, x: &GpuTensor, fold: bool, waiting: Waiting) -> Result<Vec<f32>> {
    let device = x.device();
    let (input, plan) = plan(op, x.ty(), fold, &device.inner.limits)?;
    let given = HashMap::from([(input, x.region.clone())]);
    let mut executable = Executable::new(device, &plan, &given).await?;
    let mut found = Vec::new();
    let see = |_, bytes: &[u8]| {
        found.extend(bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])));
    };
    executable.run(&[usize::from(fold)], waiting, see).await?;
    Ok(found)
}

impl GpuTensor {
    /// This matrix reduced to one value, in the tree of [`kiln_ir::tiled_reduce_2d`].
    ///
    /// # Errors
    /// [`Error::Shape`] where it is no matrix; [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn tiled_reduce_2d_async<Op: TiledOp>(&self) -> Result<f32> {
        let found = run(Op::NUMBER, self, true, Waiting::Elsewhere).await?;
        Ok(found.first().copied().unwrap_or_else(Op::identity))
    }

    /// The results of the tiles of this matrix, row by row, as [`kiln_ir::tiled_reduce_partial`] has them.
    ///
    /// # Errors
    /// As [`GpuTensor::tiled_reduce_2d_async`].
    pub async fn tiled_reduce_partial_async<Op: TiledOp>(&self) -> Result<Vec<f32>> {
        run(Op::NUMBER, self, false, Waiting::Elsewhere).await
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl GpuTensor {
    /// As [`GpuTensor::tiled_reduce_2d_async`].
    ///
    /// # Errors
    /// As there.
    pub fn tiled_reduce_2d<Op: TiledOp>(&self) -> Result<f32> {
        let found = block_on(run(Op::NUMBER, self, true, Waiting::Here))?;
        Ok(found.first().copied().unwrap_or_else(Op::identity))
    }

    /// As [`GpuTensor::tiled_reduce_partial_async`].
    ///
    /// # Errors
    /// As there.
    pub fn tiled_reduce_partial<Op: TiledOp>(&self) -> Result<Vec<f32>> {
        block_on(run(Op::NUMBER, self, false, Waiting::Here))
    }
}

impl GpuDevice {
    /// A row-major matrix reduced to one value, in the tree of [`kiln_ir::tiled_reduce_2d`].
    ///
    /// # Errors
    /// [`Error::Length`] when the data are not `width * height`, [`Error::Overflow`] when that cannot be counted;
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn tiled_reduce_2d_async<Op: TiledOp>(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.upload_async(&Operand::f32(data, &[height, width])?).await?.tiled_reduce_2d_async::<Op>().await
    }

    /// The sum of a row-major matrix.
    ///
    /// # Errors
    /// As [`GpuDevice::tiled_reduce_2d_async`].
    pub async fn tiled_sum_2d_async(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.tiled_reduce_2d_async::<SumOp>(data, width, height).await
    }

    /// The largest element of a row-major matrix; NaN if any is NaN.
    ///
    /// # Errors
    /// As [`GpuDevice::tiled_reduce_2d_async`].
    pub async fn tiled_max_2d_async(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.tiled_reduce_2d_async::<MaxOp>(data, width, height).await
    }

    /// The smallest element of a row-major matrix; NaN if any is NaN.
    ///
    /// # Errors
    /// As [`GpuDevice::tiled_reduce_2d_async`].
    pub async fn tiled_min_2d_async(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.tiled_reduce_2d_async::<MinOp>(data, width, height).await
    }
}

/// The same for those who wait.
#[cfg(not(target_arch = "wasm32"))]
impl GpuDevice {
    /// As [`GpuDevice::tiled_reduce_2d_async`].
    ///
    /// # Errors
    /// As there.
    pub fn tiled_reduce_2d<Op: TiledOp>(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.upload(&Operand::f32(data, &[height, width])?)?.tiled_reduce_2d::<Op>()
    }

    /// As [`GpuDevice::tiled_sum_2d_async`].
    ///
    /// # Errors
    /// As there.
    pub fn tiled_sum_2d(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.tiled_reduce_2d::<SumOp>(data, width, height)
    }

    /// As [`GpuDevice::tiled_max_2d_async`].
    ///
    /// # Errors
    /// As there.
    pub fn tiled_max_2d(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.tiled_reduce_2d::<MaxOp>(data, width, height)
    }

    /// As [`GpuDevice::tiled_min_2d_async`].
    ///
    /// # Errors
    /// As there.
    pub fn tiled_min_2d(&self, data: &[f32], width: usize, height: usize) -> Result<f32> {
        self.tiled_reduce_2d::<MinOp>(data, width, height)
    }
}
