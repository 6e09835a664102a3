//! Both halves of a value.

use super::Builder;
use super::value::Value;
use crate::table::CvtRn;
use crate::types::Operand;

impl Builder {
    /// `[lower, upper]` of `a`, numbers of 16 bits: `mov.b32 {lower, upper}, a`.
    pub fn halves<T: CvtRn>(&self, a: impl Operand<u32>) -> [Value<'_, T>; 2] {
        let halves = [self.fresh(), self.fresh()];
        self.line(|line| {
            line.put("\tmov.b32 ");
            halves.write(line);
            line.put(", ");
            a.write(line);
            line.put(";\n");
        });
        halves
    }

    /// `[lower, upper]` of `a`: `mov.b64 {lower, upper}, a`.
    pub fn split(&self, a: impl Operand<u64>) -> [Value<'_, u32>; 2] {
        let halves = [self.fresh(), self.fresh()];
        self.line(|line| {
            line.put("\tmov.b64 ");
            halves.write(line);
            line.put(", ");
            a.write(line);
            line.put(";\n");
        });
        halves
    }

    /// `upper * 2³² + lower`: `mov.b64 d, {lower, upper}`.
    pub fn join(&self, lower: impl Operand<u32>, upper: impl Operand<u32>) -> Value<'_, u64> {
        let value = self.fresh::<u64>();
        self.line(|line| {
            line.put("\tmov.b64 ");
            value.write(line);
            line.put(", {");
            lower.write(line);
            line.put(", ");
            upper.write(line);
            line.put("};\n");
        });
        value
    }
}
