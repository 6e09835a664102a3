//! Calls: an operation on operands, checked before a kernel runs.

use super::{Cost, Op, Outputs};
use crate::{DType, Data, DataMut, Error, Operand, Result, Shape, TensorType};

/// The types of the operands of one call, kept without a heap where there are few. See [`types_of`].
#[derive(Debug, Clone)]
pub struct Types {
    few: [TensorType; FEW_OPERANDS],
    len: usize,
    /// All types, if there are more.
    many: Vec<TensorType>,
}

/// The maximum number of operands of an operation. Only concatenations and custom operations take more than
/// [`FEW_OPERANDS`].
pub(super) const MAX_OPERANDS: usize = 8;

/// The number of operands whose types are stored without a heap allocation.
const FEW_OPERANDS: usize = 3;

/// The types of operands. Of a list that is too long for any operation it keeps enough to be refused by its arity.
#[inline]
pub fn types_of(operands: &[Operand<'_>]) -> Types {
    let mut types =
        Types { few: [TensorType::f32(Shape::SCALAR); FEW_OPERANDS], len: operands.len(), many: Vec::new() };
    for (ty, operand) in types.few.iter_mut().zip(operands) {
        *ty = operand.ty();
    }
    if operands.len() > FEW_OPERANDS {
        types.many = operands.iter().take(MAX_OPERANDS + 1).map(Operand::ty).collect();
    }
    types
}

impl std::ops::Deref for Types {
    type Target = [TensorType];
    #[inline]
    fn deref(&self) -> &[TensorType] {
        if self.len > FEW_OPERANDS { &self.many } else { &self.few[..self.len] }
    }
}

/// Checks the operands and outputs of a call, as a backend does before it runs the kernel.
///
/// # Errors
/// The errors of [`Op::infer`] for the inputs; [`Error::Length`] for one without its elements, but the first of an operation that
/// updates; [`Error::Arity`], [`Error::Type`] and [`Error::Length`] for the outputs.
#[inline]
pub fn check(op: &Op, inputs: &[Operand<'_>], outputs: &[DataMut<'_>]) -> Result<()> {
    with_types(inputs, |types| check_outputs(op.name(), &op.infer(types)?, outputs))?;
    check_elements(op, inputs.get(usize::from(op.updates())..).unwrap_or(&[]))
}

/// Checks that operands have their elements, which those of [`Operand::of_type`] lack.
#[inline]
fn check_elements(op: &Op, inputs: &[Operand<'_>]) -> Result<()> {
    match inputs.iter().find(|input| !input.has_elements()) {
        None => Ok(()),
        Some(without) => {
            let expected = without.shape().numel();
            Err(Error::Length { op: op.name(), operand: "input", expected, found: 0 })
        }
    }
}

/// Calls `see` with the types of the operands. Copies only the types that exist, which keeps short calls fast.
#[inline(always)]
fn with_types<R>(inputs: &[Operand<'_>], see: impl FnOnce(&[TensorType]) -> R) -> R {
    let (one, two, three, many);
    let types: &[TensorType] = match inputs {
        [x] => {
            one = [x.ty()];
            &one
        }
        [a, b] => {
            two = [a.ty(), b.ty()];
            &two
        }
        [a, b, c] => {
            three = [a.ty(), b.ty(), c.ty()];
            &three
        }
        all => {
            many = types_of(all);
            &many
        }
    };
    see(types)
}

/// An operation and its operands, checked once, so that the code that places it and the code that runs it need not check them again.
#[derive(Debug)]
pub struct Call<'a> {
    op: &'a Op,
    inputs: &'a [Operand<'a>],
    types: &'a [TensorType],
    outputs: &'a [TensorType],
}

impl Call<'_> {
    /// Calls `run` with the operation on these operands.
    ///
    /// # Errors
    /// The errors of [`Op::infer`], [`Error::Length`] for an operand without its elements, and the errors of `run`.
    #[inline]
    pub fn with<R>(op: &Op, inputs: &[Operand<'_>], run: impl FnOnce(&Call<'_>) -> Result<R>) -> Result<R> {
        with_types(inputs, |types| {
            let outputs = op.infer(types)?;
            check_elements(op, inputs)?;
            run(&Call { op, inputs, types, outputs: &outputs })
        })
    }

    /// The operation.
    pub fn op(&self) -> &Op {
        self.op
    }

    /// The operands.
    pub fn inputs(&self) -> &[Operand<'_>] {
        self.inputs
    }

    /// The types of the operands.
    pub fn types(&self) -> &[TensorType] {
        self.types
    }

    /// The types of the results.
    pub fn outputs(&self) -> &[TensorType] {
        self.outputs
    }

    /// The work of the operation on these operands.
    pub fn cost(&self) -> Cost {
        self.op.cost_between(self.types, self.outputs)
    }
}

/// A call that owns the types of its operands and results, for futures: one that waits cannot run inside of [`Call::with`].
#[derive(Debug)]
pub struct OwnedCall<'a> {
    op: &'a Op,
    inputs: &'a [Operand<'a>],
    types: Types,
    outputs: Outputs,
}

impl<'a> OwnedCall<'a> {
    /// Checks an operation on these operands.
    ///
    /// # Errors
    /// The errors of [`Op::infer`]; [`Error::Length`] for an operand without its elements.
    pub fn new(op: &'a Op, inputs: &'a [Operand<'a>]) -> Result<Self> {
        let types = types_of(inputs);
        let outputs = op.infer(&types)?;
        check_elements(op, inputs)?;
        Ok(Self { op, inputs, types, outputs })
    }

    /// The call.
    pub fn as_call(&self) -> Call<'_> {
        Call { op: self.op, inputs: self.inputs, types: &self.types, outputs: &self.outputs }
    }
}

/// Checks that results of these types fit `outputs`; errors name `op`.
///
/// # Errors
/// [`Error::Arity`], [`Error::Type`], [`Error::Length`].
pub fn check_outputs(op: &'static str, expected: &[TensorType], outputs: &[DataMut<'_>]) -> Result<()> {
    if expected.len() != outputs.len() {
        return Err(Error::Arity { op, expected: expected.len(), found: outputs.len() });
    }
    for (index, (ty, out)) in expected.iter().zip(outputs).enumerate() {
        if ty.dtype != out.dtype() {
            return Err(Error::Type { op, index, expected: ty.dtype, found: out.dtype() });
        }
        if ty.bytes() != out.bytes() {
            let (expected, found) = (ty.bytes() / ty.dtype.size(), out.bytes() / ty.dtype.size());
            return Err(Error::Length { op, operand: "output", expected, found });
        }
    }
    Ok(())
}

/// Calls `run` with the operands, those of f16 and bf16 cast to f32: what a backend does before a kernel that
/// reads f32 alone.
///
/// # Errors
/// [`Error::OutOfMemory`], and those of `run`.
pub fn widened<R>(
    inputs: &[Operand<'_>],
    widen: impl Fn(Data<'_>, &mut [f32]),
    run: impl FnOnce(&[Operand<'_>]) -> Result<R>,
) -> Result<R> {
    let narrow = |input: &Operand<'_>| input.ty().dtype.is_float() && input.ty().dtype != DType::F32;
    if !inputs.iter().any(narrow) {
        return run(inputs);
    }
    let wide = inputs.iter().map(|input| {
        let mut wide = crate::zeros(if narrow(input) { input.shape().numel() } else { 0 })?;
        if narrow(input) {
            widen(input.data(), &mut wide);
        }
        Ok(wide)
    });
    let wide = wide.collect::<Result<Vec<Vec<f32>>>>()?;
    let mut operands = inputs.to_vec();
    for (operand, wide) in operands.iter_mut().zip(&wide) {
        if narrow(operand) {
            *operand = Operand::new(Data::F32(wide), operand.shape())?;
        }
    }
    run(&operands)
}
