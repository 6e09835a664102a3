//! Sums of all elements up to each along a dimension.
//!
//! A workgroup goes through a row. Where there are few and long rows it takes a part of one: totals of parts come first, then their
//! sums, then the parts. No workgroup waits for another, which WebGPU does not promise to let run.

use kiln_ir::op::Cumsum;
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{CUMSUM, CUMSUM_TOTALS, number};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};
use kiln_device::lower::along_last;

/// Workgroups that keep a large device busy.
const BUSY: usize = 1024;
/// Minimum tiles of a part: three launches take some microseconds.
const SHORTEST: usize = 4;

impl Lower<GpuDevice> for Cumsum {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        along_last(plan, self.axis, inputs[0], outputs, |plan, x, outputs| {
            let n = x.ty.shape.columns();
            for piece in pieces(&plan.target.limits, x.ty.shape.rows(), &[4 * n]) {
                let [x, y] = [x, outputs[0]].map(|value| piece.of(value, 4 * n));
                rows(plan, outputs[0].ty.dtype, x, y, piece.len, n)?;
            }
            Ok(())
        })
    }
}

/// Sums rows of n elements.
fn rows(plan: &mut Lowering<'_>, dtype: DType, x: Slice, y: Slice, rows: usize, n: usize) -> Result<()> {
    let stored = number(if dtype == DType::F32 { DType::F32 } else { DType::U32 });
    let most = n.div_ceil(SHORTEST * Cumsum::TILE);
    // One workgroup sums the totals of a row, a tile at a time.
    let tiles = n.div_ceil(Cumsum::TILE).div_ceil((BUSY / rows.max(1)).clamp(1, most.max(1)));
    let part = tiles * Cumsum::TILE;
    let parts = n.div_ceil(part);
    let words = [n, part, parts, rows * parts].map(Word::from);
    let run = |plan: &mut Lowering<'_>, kernel, cut: Option<bool>, buffers: Vec<Slice>, words: &[Word], groups| {
        let mut constants = vec![("STORED", stored)];
        constants.extend(cut.map(|cut| ("PARTS", cut.into())));
        plan.dispatch(Code::Kernel(kernel, constants), buffers, words, Grid::groups_of(groups));
    };
    if parts == 1 {
        // There is nothing before a row: the placeholder is not read.
        run(plan, CUMSUM, Some(false), vec![x, x, y], &words, rows);
        return Ok(());
    }
    let ty = TensorType::u32(Shape::new(&[rows, parts])?);
    let [totals, before] = [0, 1].map(|_| Slice::from(plan.scratch(ty)));
    run(plan, CUMSUM_TOTALS, None, vec![x, totals], &words, rows * parts);
    let of_totals = [parts, parts.next_multiple_of(Cumsum::TILE), 1, rows].map(Word::from);
    run(plan, CUMSUM, Some(false), vec![totals, totals, before], &of_totals, rows);
    run(plan, CUMSUM, Some(true), vec![x, before, y], &words, rows * parts);
    Ok(())
}
