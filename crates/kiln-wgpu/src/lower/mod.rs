//! Operations turned into dispatches of kernels: one file a family, one `impl Lower` an operation.

mod attention;
mod convert;
mod convolve;
pub(crate) mod elementwise;
mod gather;
mod matmul;
pub(crate) mod pieces;
pub(crate) mod pool;
mod quantized;
mod reduce;
mod rope;
mod rows;
#[cfg(all(test, not(target_arch = "wasm32")))] // devices are waited for
mod small_bindings;
mod top_k;
mod transpose;

use kiln_ir::op::{Op, Operation};
use kiln_ir::{Result, TensorType, for_operation};
use kiln_shaders::Kernel;

use crate::plan::{Code, Dispatch, Fault, Grid, Location, Slice, Target, Word};

/// A tensor of a plan: where it lies and what it is. It is contiguous, and begins where its buffer begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) at: Location,
    pub(crate) ty: TensorType,
}

/// An operation that runs on a GPU.
pub(crate) trait Lower: Operation {
    /// Whether its kernels read f16 as it is stored. For others what is f16 is converted to f32 before.
    const HALVES: bool = false;

    /// Adds the dispatches that compute the outputs. The shape rule has accepted the inputs, and an output has at least
    /// one element.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Limit`] where the device cannot run it at this size.
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()>;
}

/// A plan that one step adds its dispatches to.
pub(crate) struct Lowering<'a> {
    pub(crate) limits: &'a wgpu::Limits,
    /// Whether kernels may multiply cooperative matrices.
    pub(crate) cooperative: bool,
    dispatches: &'a mut Vec<Dispatch>,
    scratch: &'a mut Vec<u64>,
    /// Pieces of scratch memory that this step uses.
    used: usize,
    faults: &'a mut Vec<Fault>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        target: Target<'a>,
        dispatches: &'a mut Vec<Dispatch>,
        scratch: &'a mut Vec<u64>,
        faults: &'a mut Vec<Fault>,
    ) -> Self {
        let Target { limits, cooperative } = target;
        Self { limits, cooperative, dispatches, scratch, used: 0, faults }
    }

    /// Memory for the duration of this step; what it holds at first is anything.
    pub(crate) fn scratch(&mut self, ty: TensorType) -> Value {
        let bytes = ty.bytes() as u64;
        match self.scratch.get_mut(self.used) {
            Some(held) => *held = bytes.max(*held),
            None => self.scratch.push(bytes),
        }
        self.used += 1;
        Value { at: Location::Scratch(self.used - 1), ty }
    }

    /// Lowers a part of this step, whose scratch memory serves the next part again.
    pub(crate) fn part<T>(&mut self, lower: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let used = self.used;
        let lowered = lower(self);
        self.used = used;
        lowered
    }

    /// Two words, at first `0xffffffff`, that a kernel may set: the least position of an index outside of `0..bound`
    /// (by `atomicMin`), and then the index that stands there. The execution fails with [`kiln_ir::Error::Index`].
    pub(crate) fn fault(&mut self, op: &'static str, bound: usize) -> Location {
        self.faults.push(Fault { op, bound });
        Location::Fault(self.faults.len() - 1)
    }

    /// Runs a kernel with these constants baked in on buffers and parameters, in the order of its head.
    pub(crate) fn run(
        &mut self,
        kernel: Kernel,
        constants: &[(&'static str, u32)],
        buffers: &[Location],
        params: &[Word],
        grid: Grid,
    ) {
        let buffers = buffers.iter().map(|&at| at.into()).collect();
        self.dispatch(Code::Kernel(kernel, constants.to_vec()), buffers, params, grid);
    }

    /// Runs code on parts of buffers.
    pub(crate) fn dispatch(&mut self, code: Code, buffers: Vec<Slice>, params: &[Word], grid: Grid) {
        self.dispatches.push(Dispatch {
            code,
            buffers,
            params: params.iter().map(|word| word.0).collect(),
            groups: grid.folded(self.limits.max_compute_workgroups_per_dimension),
        });
    }
}

/// Adds the dispatches of any operation.
pub(crate) fn lower(op: &Op, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
    if outputs.iter().all(|output| output.ty.shape.is_empty()) {
        return Ok(());
    }
    for_operation!(op, op => lower_one(op, plan, inputs, outputs))
}

fn lower_one<O: Lower>(op: &O, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
    if O::HALVES {
        return op.lower(plan, inputs, outputs);
    }
    let wide: Vec<Value> = inputs.iter().map(|&input| convert::widened(plan, input)).collect();
    op.lower(plan, &wide, outputs)
}
