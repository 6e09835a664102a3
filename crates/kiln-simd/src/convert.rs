//! Between f32 and f16.

use kiln_ir::op::Convert;
use kiln_ir::{DataMut, Operand, Result};

use crate::simd::{Execute, Simd, f32s};

impl Execute for Convert {
    fn execute(&self, _: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let x = f32s(inputs, 0);
        match &mut outputs[0] {
            DataMut::F16(out) => kiln_ir::narrow(x, out),
            out => out.f32().copy_from_slice(x),
        }
        Ok(())
    }
}
