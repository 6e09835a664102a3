//! Rows written to a table, and added to one.

use kiln_ir::op::{IndexAdd, Scatter};
use kiln_ir::{Data, DataMut, Operand, Result};

use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};
use crate::vector::{PlainKernel, dispatch_plain};

/// Elements below which one thread is faster.
const PARALLEL: usize = 300_000;

impl Execute for Scatter {
    fn execute(&self, _: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (rows, indices) = (inputs[0].shape().rows(), inputs[1].data().u32());
        // Checked before anything is written.
        self.check(indices, rows)?;
        let (table, source) = (inputs[0].data(), inputs[2].data());
        let out = outputs[0].as_bytes();
        out.copy_from_slice(table.as_bytes());
        let row = out.len() / rows.max(1);
        if row > 0 {
            for (&index, from) in indices.iter().zip(source.as_bytes().chunks_exact(row)) {
                out[index as usize * row..][..row].copy_from_slice(from);
            }
        }
        Ok(())
    }
}

/// An element to which others are added.
trait Summand: Copy + Send + Sync {
    fn plus(self, b: Self) -> Self;
}

impl Summand for f32 {
    #[inline(always)]
    fn plus(self, b: Self) -> Self {
        self + b
    }
}

/// Integers as unsigned words: sums have the same bits for both signs.
impl Summand for u32 {
    #[inline(always)]
    fn plus(self, b: Self) -> Self {
        self.wrapping_add(b)
    }
}

/// Some columns of all rows of a source, added to a table in order.
///
/// `out` is valid for those columns of rows of `stride` elements, one for each index.
struct Adding<'a, T> {
    indices: &'a [u32],
    source: &'a [T],
    out: *mut T,
    stride: usize,
    from: usize,
    columns: usize,
}

impl<T: Summand> PlainKernel for Adding<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (i, &index) in self.indices.iter().enumerate() {
            let source = &self.source[i * self.stride + self.from..][..self.columns];
            // SAFETY: the creator of a value of this type guarantees the columns of every row that an index names.
            let out = unsafe {
                let first = self.out.add(index as usize * self.stride + self.from);
                std::slice::from_raw_parts_mut(first, self.columns)
            };
            out.iter_mut().zip(source).for_each(|(out, &x)| *out = out.plus(x));
        }
    }
}

fn add<T: Summand>(simd: &Simd, columns: usize, indices: &[u32], [table, source]: [&[T]; 2], out: &mut [T]) {
    out.copy_from_slice(table);
    let threads = if source.len() < PARALLEL { 1 } else { simd.threads() };
    // Each thread has its own columns, so every column is summed in order: whole cache lines per thread.
    let part = columns.div_ceil(threads).next_multiple_of(16).max(1);
    let out = Shared::new(out.as_mut_ptr());
    threads::for_each(columns.div_ceil(part), threads, |i| {
        let from = i * part;
        let columns_of_part = part.min(columns - from);
        // Every index was checked to be a row of the table, and no other part has these columns.
        let adding = Adding { indices, source, out: out.get(), stride: columns, from, columns: columns_of_part };
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { dispatch_plain(simd.isa(), adding) };
    });
}

impl Execute for IndexAdd {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let indices = inputs[1].data().u32();
        // Checked before anything is written.
        self.check(indices, inputs[0].shape().rows())?;
        let columns = inputs[0].shape().columns();
        match (inputs[0].data(), inputs[2].data(), &mut outputs[0]) {
            (Data::F32(table), Data::F32(source), DataMut::F32(out)) => {
                add(simd, columns, indices, [table, source], out)
            }
            (table, source, out) => {
                let words = [table, source].map(|data| bytemuck::cast_slice::<u8, u32>(data.as_bytes()));
                add(simd, columns, indices, words, bytemuck::cast_slice_mut::<u8, u32>(out.as_bytes()));
            }
        }
        Ok(())
    }
}
