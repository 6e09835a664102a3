//! Operations turned into dispatches of kernels: one file a family, one `impl Lower` an operation.

mod attention;
pub(crate) mod cast;
mod compare;
mod conv;
mod cumsum;
mod custom;
pub(crate) mod elementwise;
mod experts;
mod gather;
mod matmul;
mod norm;
pub(crate) mod pieces;
pub(crate) mod pooling;
pub(crate) mod quant;
mod reduce;
mod resize;
mod rope;
mod rows;
mod scatter;
mod shape;
#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
mod small_bindings;
mod softmax;
mod sort;
mod topk;
mod transpose;
mod write_rows;

pub use custom::{WgslKernel, WgslLaunch};
pub(crate) use kiln_device::{Lower, Value};
use kiln_shaders::Kernel;

use crate::GpuDevice;
use crate::plan::{Code, Dispatch, Grid, Slice, Word};

/// The plan that one step adds its dispatches to.
pub(crate) type Lowering<'a> = kiln_device::Lowering<'a, GpuDevice>;

/// Adds dispatches to a plan.
pub(crate) trait Dispatches {
    /// Runs a kernel with these constants on buffers and parameters, in the order of its head.
    fn run(
        &mut self,
        kernel: Kernel,
        constants: &[(&'static str, u32)],
        buffers: &[Slice],
        params: &[Word],
        grid: Grid,
    );

    /// Runs code on parts of buffers.
    fn dispatch(&mut self, code: Code, buffers: Vec<Slice>, params: &[Word], grid: Grid);
}

impl Dispatches for Lowering<'_> {
    fn run(
        &mut self,
        kernel: Kernel,
        constants: &[(&'static str, u32)],
        buffers: &[Slice],
        params: &[Word],
        grid: Grid,
    ) {
        self.dispatch(Code::Kernel(kernel, constants.to_vec()), buffers.to_vec(), params, grid);
    }

    fn dispatch(&mut self, code: Code, buffers: Vec<Slice>, params: &[Word], grid: Grid) {
        let params = params.iter().map(|word| word.0).collect();
        let groups = grid.folded(self.target.limits.max_compute_workgroups_per_dimension);
        self.push(Dispatch { code, buffers, params, groups });
    }
}
