//! The launches of operations on rows: softmax and the normalisations.

use kiln_ptx::kernels::rows::RowsPlan;

use super::{Launches, Lowering, Value};
use crate::plan::Code;

/// Runs the kernels of rows; their scratch memory follows the operands and the result.
pub(super) fn run<K: Into<Code>>(plan: &mut Lowering<'_>, rows: RowsPlan<K>, inputs: &[Value], out: &Value) {
    let mut buffers: Vec<_> = inputs.iter().chain([out]).map(|value| value.at).collect();
    if rows.scratch > 0 {
        buffers.push(plan.scratch_bytes(rows.scratch));
    }
    for (kernel, launch) in rows.steps {
        plan.run(kernel, launch, &buffers);
    }
}
