//! The values and variables of a kernel.

use std::marker::PhantomData;

use super::Builder;
use crate::text::Line;
use crate::types::{Operand, Scalar, Sealed};

/// The result of an instruction. It is written once and lives as long as its kernel is built.
pub struct Value<'k, T> {
    pub(crate) builder: &'k Builder,
    pub(crate) number: u32,
    pub(crate) scalar: PhantomData<T>,
}

/// A value that changes: what a loop carries from turn to turn. As an operand it is read when the instruction runs.
pub struct Variable<'k, T>(pub(crate) Value<'k, T>);

impl<T> Clone for Value<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Value<'_, T> {}

impl<T> Clone for Variable<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Variable<'_, T> {}

impl<T> Sealed for Value<'_, T> {}
impl<T> Sealed for Variable<'_, T> {}

impl<T: Scalar> Operand<T> for Value<'_, T> {
    #[inline(always)]
    fn write(self, line: &mut Line<'_>) {
        line.register(T::TYPE.class(), self.number);
    }
}

impl<T: Scalar> Operand<T> for Variable<'_, T> {
    #[inline(always)]
    fn write(self, line: &mut Line<'_>) {
        self.0.write(line);
    }
}

impl<'k, T: Scalar> Variable<'k, T> {
    /// The present value, which does not change when the variable is set again.
    pub fn get(self) -> Value<'k, T> {
        let builder = self.0.builder;
        let value = builder.fresh();
        builder.copy(value, self);
        value
    }

    /// Gives it a new value.
    pub fn set(self, value: impl Operand<T>) {
        self.0.builder.copy(self.0, value);
    }
}
