//! Dispatches operations to kernels; fast paths for slices. Every one of them enters the default floating-point state.

use kiln_ir::op::{Call, Elementwise, Matmul, Op, Reduction, check, check_outputs, widened};
use kiln_ir::{DataMut, Error, Operand, Operations, Result, for_operation};

use crate::cast::widen;
use crate::float_state::require_default;
use crate::simd::{Execute, Simd};
use crate::{elementwise, matmul, reduce, transpose};

impl Operations for Simd {
    /// Writes the result directly into `outputs`.
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        require_default!(self.run_into(op, inputs, outputs));
        if let Op::Elementwise(op) = op
            && elementwise::run_alike(self, op, inputs, outputs)
        {
            return Ok(());
        }
        Call::with(op, inputs, |call| run_checked(self, call, outputs))
    }

    fn run_call(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        Self::run_call(self, call, outputs)
    }

    fn quick_elementwise(&self, op: Elementwise, operands: &[&[f32]], out: &mut [f32]) -> bool {
        require_default!(self.quick_elementwise(op, operands, out));
        elementwise::run_slices(self, &op, operands, out)
    }

    fn quick_reduce(&self, reduction: Reduction, x: &[f32]) -> Option<f32> {
        require_default!(self.quick_reduce(reduction, x));
        if x.is_empty() {
            return None;
        }
        reduce::whole(self, reduction, x)
    }

    fn quick_reduce_index(&self, reduction: Reduction, x: &[f32]) -> Option<u32> {
        require_default!(self.quick_reduce_index(reduction, x));
        reduce::whole_index(self, reduction, x)
    }

    fn quick_dot(&self, a: &[f32], b: &[f32]) -> Option<f32> {
        require_default!(self.quick_dot(a, b));
        (a.len() == b.len() && !a.is_empty()).then(|| reduce::dot(self, a, b))
    }

    fn quick_transpose(&self, x: &[f32], rows: usize, columns: usize, out: &mut [f32]) -> bool {
        transpose::run_slices(self, x, rows, columns, out)
    }

    fn quick_matmul(&self, op: Matmul, a: &[f32], b: &[f32], extents: (usize, usize, usize), out: &mut [f32]) -> bool {
        require_default!(self.quick_matmul(op, a, b, extents, out));
        matmul::run_slices(self, op, a, b, extents, out)
    }
}

impl Simd {
    /// [`Operations::run_into`] for an operation with checked operands.
    ///
    /// # Errors
    /// The errors of [`Operations::run_into`].
    pub fn run_call(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        require_default!(self.run_call(call, outputs));
        if let Op::Elementwise(op) = call.op()
            && elementwise::run_alike(self, op, call.inputs(), outputs)
        {
            return Ok(());
        }
        run_checked(self, call, outputs)
    }

    /// Runs an operation that updates ([`kiln_ir::op::Operation::UPDATES`]) in the memory of its first operand, for
    /// which `inputs` has [`Operand::of_type`].
    ///
    /// # Errors
    /// Those of the shape rule; [`kiln_ir::Error::Parameter`] for an operation that does not update, [`kiln_ir::Error::Index`] for a
    /// position out of range. Nothing is written then.
    pub fn update(&self, op: &Op, inputs: &[Operand<'_>], state: DataMut<'_>) -> Result<()> {
        require_default!(self.update(op, inputs, state));
        if !op.updates() {
            let reason = "it does not update in place".into();
            return Err(Error::Parameter { op: op.name(), reason });
        }
        let mut outputs = [state];
        check(op, inputs, &outputs)?;
        for_operation!(op, op => op.execute(self, inputs, &mut outputs))
    }
}

/// Runs the kernel of a checked operation. One function, so that code that compilers inline here exists once.
#[inline(never)]
fn run_checked(simd: &Simd, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
    let op = call.op();
    check_outputs(op.name(), call.outputs(), outputs)?;
    if op.updates() {
        outputs[0].as_bytes().copy_from_slice(call.inputs()[0].data().as_bytes());
    }
    let mut run = |inputs: &[Operand<'_>]| for_operation!(op, op => op.execute(simd, inputs, outputs));
    if op.reads_as_stored() || reads_stored(op) {
        return run(call.inputs());
    }
    widened(call.inputs(), |floats, wide| widen(simd, floats, wide, simd.threads()), run)
}

/// [`Execute::READS_STORED`] of the operation.
fn reads_stored(op: &Op) -> bool {
    fn of<O: Execute>(_: &O) -> bool {
        O::READS_STORED
    }
    for_operation!(op, op => of(op))
}
