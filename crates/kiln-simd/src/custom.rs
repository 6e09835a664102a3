//! Operations that a program defines.

use kiln_ir::op::{Custom, Operation, types_of};
use kiln_ir::{DataMut, Error, Operand, Result};

use crate::simd::{Execute, Simd};

impl Execute for Custom {
    fn execute(&self, _: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let run = self.cpu().ok_or(Error::Unsupported { op: self.name(), backend: "the CPU" })?;
        let types = types_of(inputs);
        let results = self.infer(&types)?;
        self.call(&types, &results, |call| run(call, inputs, outputs))
    }
}
