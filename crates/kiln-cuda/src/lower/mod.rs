//! Operations turned into launches of kernels: one file a family, one `impl Lower` an operation.

pub(crate) mod attention;
mod convert;
pub(crate) mod elementwise;
mod gather;
mod matmul;
mod quantized;
mod reduce;
mod rope;
mod rows;
mod top_k;
mod transpose;
mod window;

use kiln_ir::op::{Op, Operation};
use kiln_ir::{Error, Result, TensorType, for_operation};
use kiln_ptx::Launch;

use crate::plan::{Code, Dispatch, Fault, Hardware, Location};

/// A tensor of a plan: where it lies and what it is. It is contiguous.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) at: Location,
    pub(crate) ty: TensorType,
}

/// An operation that runs on a GPU.
pub(crate) trait Lower: Operation {
    /// Whether its kernels read f16 as it is stored. For others what is f16 is converted to f32 before.
    const HALVES: bool = false;

    /// Adds the launches that compute the outputs. The shape rule has accepted the inputs, and an output has at least one
    /// element.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Limit`] where kernels cannot run it at this size, [`kiln_ir::Error::Unsupported`] where there
    /// is none.
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()>;
}

/// A plan that one step adds its launches to.
pub(crate) struct Lowering<'a> {
    pub(crate) hardware: Hardware,
    dispatches: &'a mut Vec<Dispatch>,
    scratch: &'a mut Vec<u64>,
    /// Pieces of scratch memory that this step uses.
    used: usize,
    faults: &'a mut Vec<Fault>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        hardware: Hardware,
        dispatches: &'a mut Vec<Dispatch>,
        scratch: &'a mut Vec<u64>,
        faults: &'a mut Vec<Fault>,
    ) -> Self {
        Self { hardware, dispatches, scratch, used: 0, faults }
    }

    /// So many bytes for the duration of this step; what they hold at first is anything.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Location {
        let bytes = bytes as u64;
        match self.scratch.get_mut(self.used) {
            Some(held) => *held = bytes.max(*held),
            None => self.scratch.push(bytes),
        }
        self.used += 1;
        Location::Scratch(self.used - 1)
    }

    /// A word of 64 bits, at first all ones, that a kernel may set: the least position of an index outside of `0..bound`, above
    /// the index that stands there. The execution fails with [`kiln_ir::Error::Index`].
    pub(crate) fn fault(&mut self, op: &'static str, bound: usize) -> Location {
        self.faults.push(Fault { op, bound });
        Location::Fault(self.faults.len() - 1)
    }

    /// Runs a kernel on buffers, which the launch calls by their positions.
    pub(crate) fn run(&mut self, kernel: impl Into<Code>, launch: Launch, buffers: &[Location]) {
        self.dispatches.push(Dispatch { code: kernel.into(), launch, buffers: buffers.to_vec() });
    }
}

/// Adds the launches of any operation.
pub(crate) fn lower(op: &Op, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
    if outputs.iter().all(|output| output.ty.shape.is_empty()) {
        return Ok(());
    }
    for_operation!(op, op => lower_one(op, plan, inputs, outputs))
}

/// What a kernel says of extents or parameters; none where it does not take them and another may.
fn accepted<T>(said: Result<T>) -> Result<Option<T>> {
    match said {
        Ok(taken) => Ok(Some(taken)),
        Err(Error::Parameter { .. } | Error::Shape { .. } | Error::Limit { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn lower_one<O: Lower>(op: &O, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
    if O::HALVES {
        return op.lower(plan, inputs, outputs);
    }
    let wide = inputs.iter().map(|&input| convert::widened(plan, input)).collect::<Result<Vec<_>>>()?;
    op.lower(plan, &wide, outputs)
}
