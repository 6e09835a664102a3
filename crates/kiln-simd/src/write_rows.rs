//! Rows that replace those at some positions of matrices.

use kiln_ir::op::{Cast, Quantize, WriteRows};
use kiln_ir::{Buffer, DType, DataMut, Operand, Result, TensorType};

use crate::simd::{Execute, Simd};

/// Casts or quantises rows of floats to a type.
fn stored(simd: &Simd, rows: &Operand<'_>, to: DType) -> Result<Buffer> {
    let mut stored = Buffer::zeros(&TensorType::of(to, rows.shape())?)?;
    match to {
        DType::Blocks(format) if rows.ty().dtype != DType::F32 => {
            let wide = self::stored(simd, rows, DType::F32)?;
            let wide = Operand::new(wide.as_data(), rows.shape())?;
            Quantize { format }.execute(simd, &[wide], &mut [stored.as_mut()])?;
        }
        DType::Blocks(format) => Quantize { format }.execute(simd, &[*rows], &mut [stored.as_mut()])?,
        _ => Cast { to }.execute(simd, &[*rows], &mut [stored.as_mut()])?,
    }
    Ok(stored)
}

impl Execute for WriteRows {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let [x, rows, positions] = inputs else { return Ok(()) };
        let e = self.extents(&x.shape(), &rows.shape(), &positions.shape())?;
        let positions = positions.data().u32();
        // Checked before anything is written.
        self.check(positions, e.n)?;
        let converted;
        let stored = if rows.data().dtype() == outputs[0].dtype() {
            rows.data()
        } else {
            converted = stored(simd, rows, outputs[0].dtype())?;
            converted.as_data()
        };
        let row = stored.bytes().checked_div(e.outer * e.s).unwrap_or(0);
        if row == 0 {
            return Ok(());
        }
        let out = outputs[0].as_bytes();
        for (at, from) in stored.as_bytes().chunks_exact(row).enumerate() {
            let (matrix, i) = (at / e.s, at % e.s);
            let position = positions[matrix / e.sharing * e.s + i];
            if position != Self::SKIPPED {
                let to = (matrix * e.n + position as usize) * row;
                out[to..to + row].copy_from_slice(from);
            }
        }
        Ok(())
    }
}
