//! Loops and branches.

use super::Builder;
use super::value::Value;
use crate::types::Operand;

/// Loops and branches, whose labels are generated.
impl Builder {
    fn fresh_label(&self) -> u32 {
        let label = self.labels.get() + 1;
        self.labels.set(label);
        label
    }

    fn label(&self, label: u32) {
        self.line(|line| {
            line.put("$L");
            line.decimal(label.into());
            line.put(":\n");
        });
    }

    fn branch(&self, label: u32) {
        self.line(|line| {
            line.put("\tbra $L");
            line.decimal(label.into());
            line.put(";\n");
        });
    }

    fn branch_unless(&self, p: Value<'_, bool>, label: u32) {
        self.line(|line| {
            line.put("\t@!");
            p.write(line);
            line.put(" bra $L");
            line.decimal(label.into());
            line.put(";\n");
        });
    }

    /// Runs `then` where `p`.
    pub fn if_(&self, p: Value<'_, bool>, then: impl FnOnce()) {
        let end = self.fresh_label();
        self.branch_unless(p, end);
        then();
        self.label(end);
    }

    /// Runs `then` where `p`, else `otherwise`.
    pub fn if_else(&self, p: Value<'_, bool>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        let (middle, end) = (self.fresh_label(), self.fresh_label());
        self.branch_unless(p, middle);
        then();
        self.branch(end);
        self.label(middle);
        otherwise();
        self.label(end);
    }

    /// Runs `body` as long as `condition` holds before it.
    pub fn while_<'k>(&'k self, condition: impl FnOnce() -> Value<'k, bool>, body: impl FnOnce()) {
        let (start, end) = (self.fresh_label(), self.fresh_label());
        self.label(start);
        self.branch_unless(condition(), end);
        body();
        self.branch(start);
        self.label(end);
    }

    /// Evaluates `condition` until it holds.
    pub fn until<'k>(&'k self, condition: impl FnOnce() -> Value<'k, bool>) {
        let start = self.fresh_label();
        self.label(start);
        self.branch_unless(condition(), start);
    }

    /// Runs `body` for `start`, `start + step`, ... below `end`. The last number plus `step` must not overflow.
    pub fn for_<'k>(
        &'k self,
        start: impl Operand<u32>,
        end: impl Operand<u32>,
        step: impl Operand<u32>,
        body: impl FnOnce(Value<'k, u32>),
    ) {
        let i = self.variable::<u32>(start);
        self.while_(
            || self.lt(i, end),
            || {
                // Only the step below writes the variable, so inside an iteration it is a value.
                body(i.0);
                i.set(self.add(i, step));
            },
        );
    }
}
