//! The elements along a dimension in order.

use kiln_ir::op::Sort;
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_ptx::kernels::sort::{MergeRuns, SortRuns, candidates};

use super::cast::{cast, widened};
use super::compare::in_words;
use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;
use kiln_device::Location;
use kiln_device::lower::along_last;

impl Lower<CudaDevice> for Sort {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        along_last(plan, self.axis, inputs[0], outputs, |plan, x, outputs| {
            // Elements smaller than a word are sorted as words of equal value.
            let words = match x.ty.dtype {
                DType::F16 | DType::Bf16 => widened(plan, x)?,
                _ => in_words(plan, x)?,
            };
            let values = if words.ty == x.ty { outputs[0] } else { plan.scratch(words.ty) };
            rows(plan, words, self.descending, [values.at, outputs[1].at])?;
            if words.ty == x.ty { Ok(()) } else { cast(plan, values, outputs[0]) }
        })
    }
}

/// Sorts rows of words.
fn rows(plan: &mut Lowering<'_>, x: Value, descending: bool, [values, positions]: [Location; 2]) -> Result<()> {
    let (rows, n) = (x.ty.shape.rows(), x.ty.shape.columns());
    let runs = SortRuns::new(x.ty.dtype, descending, n);
    if n <= SortRuns::LONGEST {
        plan.run(runs, runs.launch(rows, n)?, &[x.at, values, positions]);
        return Ok(());
    }
    // A candidate is two words.
    let ty = TensorType::u32(Shape::new(&[candidates(rows, n), 2])?);
    let [mut read, mut written] = [0, 1].map(|_| plan.scratch(ty).at);
    plan.run(runs, runs.launch(rows, n)?, &[x.at, read]);
    let mut size = SortRuns::LONGEST;
    while size < n {
        let merge = MergeRuns::new(size, n);
        let launch = merge.launch(rows, n, size)?;
        if 2 * size >= n {
            plan.run(merge, launch, &[x.at, read, values, positions]);
        } else {
            plan.run(merge, launch, &[x.at, read, written]);
        }
        (read, written, size) = (written, read, 2 * size);
    }
    Ok(())
}
