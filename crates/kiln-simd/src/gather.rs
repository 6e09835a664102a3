//! Rows of a table by index.

use kiln_ir::op::Gather;
use kiln_ir::{DataMut, Operand, Result};

use crate::cast::to_f32;
use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};

/// Elements below which one thread is faster.
const PARALLEL: usize = 300_000;
/// Elements that a thread takes at once.
const SHARE: usize = 65_536;

impl Execute for Gather {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (table, indices) = (inputs[0].data(), inputs[1].data().u32());
        let &[rows, columns] = inputs[0].shape().dims() else { return Ok(()) };
        // Checked before anything is written.
        self.check(indices, rows)?;
        if indices.is_empty() || columns == 0 {
            return Ok(());
        }
        let threads = if indices.len() * columns < PARALLEL { 1 } else { simd.threads() };
        let group = (SHARE / columns).max(1);
        let (read, written) = (inputs[0].ty().bytes() / rows, outputs[0].bytes() / indices.len());
        let as_it_is = table.dtype() == outputs[0].dtype();
        let shared = Shared::new(outputs[0].as_bytes().as_mut_ptr());
        threads::for_each(indices.len().div_ceil(group), threads, |part| {
            let from = part * group;
            for (i, &index) in indices.iter().enumerate().skip(from).take(group) {
                let at = index as usize * read;
                // SAFETY: every index has its own row of the output, and no other part accesses it.
                let out = unsafe { shared.get().add(i * written) };
                if as_it_is {
                    let row = &table.as_bytes()[at..at + read];
                    // SAFETY: a row of the output is as long as one of the table.
                    unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), out, read) };
                } else {
                    // SAFETY: a table of another type gives f32, and `out` is the beginning of a row of these.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<f32>(), columns) };
                    // SAFETY: a `Simd` exists only for an available instruction set.
                    unsafe { to_f32(simd.isa(), table.part(at..at + read), out) };
                }
            }
        });
        Ok(())
    }
}
