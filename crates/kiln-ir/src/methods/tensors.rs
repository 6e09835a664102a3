use std::borrow::Borrow;
use std::ops::Range;

#[cfg(doc)]
use crate::Operations;
use crate::op::{
    Arithmetic, Attention, AttentionOperands, BatchNorm, BroadcastTo, Cast, Compare, Comparison, Concat, Convolve2d,
    ConvolveTranspose2d, Cumsum, Dequantize, Dot, Elementwise, Gather, GroupNorm, IndexAdd, IntegerFunction, LayerNorm,
    LogSoftmax, Matmul, MatmulByExpert, Matvec, Op, Pad, Padding, Permute, Pool2d, QuantMatmul, Quantize, Reduce,
    Reduction, Reshape, Resize2d, RmsNorm, Rope, Scatter, Select, Slice, Softmax, Sort, TopK, Transpose, WriteRows,
};
use crate::{DType, Error, QuantFormat, Result, elementwise_table, reduction_table};

macro_rules! elementwise_on_tensors {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        bound: $bound:ident $(($units:literal))?, formula: $formula:literal, $($ignored:tt)*
    })*) => {
        $(
            $(#[doc = $doc])*
            #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\nThe errors of [`Record::record_all`].")]
            fn $name(&mut self, $($x: impl Borrow<Self::Tensor>,)* $($p: f32),*) -> Result<Self::Tensor> {
                self.record(Elementwise::$name($($p),*), &[$($x.borrow().clone()),*])
            }
        )*
    };
}

macro_rules! reductions_on_tensors {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, whole: $whole:ident, axis: $axis:ident, axis_into: $axis_into:ident, result: $result:ident,
        $($ignored:tt)*
    })*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Errors
            /// The errors of [`Record::record_all`].
            fn $whole(&mut self, x: impl Borrow<Self::Tensor>) -> Result<Self::Tensor> {
                self.record(Reduce::all(Reduction::$variant), &[x.borrow().clone()])
            }

            $(#[doc = $doc])*
            ///
            /// Along dimension `axis`, which vanishes.
            ///
            /// # Errors
            /// The errors of [`Record::record_all`].
            fn $axis(&mut self, x: impl Borrow<Self::Tensor>, axis: usize) -> Result<Self::Tensor> {
                self.record(Reduce::along(Reduction::$variant, axis), &[x.borrow().clone()])
            }
        )*
    };
}

macro_rules! operations_on_tensors {
    ($($(#[doc = $doc:literal])* $name:ident $row:tt)*) => {
        $(operation_on_tensors! { [$(#[doc = $doc])*] $name $row })*
    };
}

/// The method of a row.
macro_rules! operation_on_tensors {
    ([$($doc:tt)*] $name:ident {
        group: $group:ident, $(note: $note:literal,)? $(named: $named:tt,)? tensors: $tensors:tt,
        params: ($($p:ident: $pty:ty $(as $form:ty)? $(= $default:expr)?),*), op: $op:expr, results: $results:tt,
        $($ignored:tt)*
    }) => {
        operation_on_tensors! { $tensors $results [$($doc)*] $name, ($($p: $pty),*), $op }
    };
    (($($x:ident),*) ($result:ident) [$($doc:tt)*] $name:ident, ($($p:ident: $pty:ty),*), $op:expr) => {
        $($doc)*
        ///
        /// # Errors
        /// The errors of [`Record::record_all`].
        fn $name(&mut self, $($x: impl Borrow<Self::Tensor>,)* $($p: $pty),*) -> Result<Self::Tensor> {
            self.record($op, &[$($x.borrow().clone()),*])
        }
    };
    (($($x:ident),*) ($first:ident, $second:ident) [$($doc:tt)*] $name:ident, ($($p:ident: $pty:ty),*), $op:expr) => {
        $($doc)*
        ///
        /// # Errors
        /// The errors of [`Record::record_all`].
        fn $name(&mut self, $($x: impl Borrow<Self::Tensor>,)* $($p: $pty),*) -> Result<(Self::Tensor, Self::Tensor)> {
            let mut results = self.record_all(Op::from($op), &[$($x.borrow().clone()),*])?;
            match (results.pop(), results.pop()) {
                (Some(second), Some(first)) => Ok((first, second)),
                _ => Err(Error::Unsupported { op: stringify!($name), backend: "a recording" }),
            }
        }
    };
    ([$parts:ident] ($result:ident) [$($doc:tt)*] $name:ident, ($($p:ident: $pty:ty),*), $op:expr) => {
        $($doc)*
        ///
        /// # Errors
        /// The errors of [`Record::record_all`].
        fn $name(&mut self, $parts: &[impl Borrow<Self::Tensor>], $($p: $pty),*) -> Result<Self::Tensor> {
            let parts: Vec<Self::Tensor> = $parts.iter().map(|part| part.borrow().clone()).collect();
            self.record($op, &parts)
        }
    };
}

/// The operations as methods on tensors. On a graph or a batch they are recorded, to run later; on tensors that hold their
/// elements they run at once.
///
/// An implementation has [`Record::record_all`]; the methods come from the same tables as those of [`Operations`]. The extents
/// are those of the tensors. A method takes a tensor or a reference to one.
pub trait Record: Sized {
    /// A tensor: an id in a graph, or a handle that is cheap to clone.
    type Tensor: Clone;

    /// Records an operation and returns its results.
    ///
    /// # Errors
    /// The errors of the operation's shape rule; [`Error::ForeignTensor`] for tensors of another graph. Eager execution
    /// also returns errors of the data and of devices.
    fn record_all(&mut self, op: Op, inputs: &[Self::Tensor]) -> Result<Vec<Self::Tensor>>;

    /// Records an operation of one result.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn record(&mut self, op: impl Into<Op>, inputs: &[Self::Tensor]) -> Result<Self::Tensor> {
        let op = op.into();
        self.record_all(op, inputs)?.pop().ok_or(Error::Unsupported { op: op.name(), backend: "a recording" })
    }

    elementwise_table!(elementwise_on_tensors);

    reduction_table!(reductions_on_tensors);

    /// The product of two matrices, or of two stacks of them.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn matmul(&mut self, a: impl Borrow<Self::Tensor>, b: impl Borrow<Self::Tensor>) -> Result<Self::Tensor> {
        self.record(Matmul::default(), &[a.borrow().clone(), b.borrow().clone()])
    }

    /// The product of a matrix and a vector.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn matvec(&mut self, a: impl Borrow<Self::Tensor>, x: impl Borrow<Self::Tensor>) -> Result<Self::Tensor> {
        self.record(Matvec::default(), &[a.borrow().clone(), x.borrow().clone()])
    }

    operations!(operations_on_tensors);

    /// Attention with optional operands, as the operation requires: masks, positions and lengths of sequences, sinks,
    /// slopes.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn attention_with(
        &mut self,
        q: impl Borrow<Self::Tensor>,
        k: impl Borrow<Self::Tensor>,
        v: impl Borrow<Self::Tensor>,
        more: AttentionOperands<Self::Tensor>,
        op: Attention,
    ) -> Result<Self::Tensor> {
        let op = op.with(&more);
        let inputs = [q.borrow().clone(), k.borrow().clone(), v.borrow().clone()];
        self.record(op, &inputs.into_iter().chain(more.into_vec()).collect::<Vec<_>>())
    }

    /// The indices that [`Record::sort`] returns.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn argsort(&mut self, x: impl Borrow<Self::Tensor>, axis: usize, descending: bool) -> Result<Self::Tensor> {
        Ok(self.sort(x, axis, descending)?.1)
    }

    /// Splits `x` along dimension `axis` into consecutive parts of these lengths, which must fill the dimension.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`]; [`Error::View`] when the parts do not fill the dimension,
    /// [`Error::Parameter`] when no lengths are given.
    fn split(&mut self, x: impl Borrow<Self::Tensor>, axis: usize, lengths: &[usize]) -> Result<Vec<Self::Tensor>> {
        let parts = Slice::parts(axis, lengths)?.into_iter();
        parts.map(|part| self.record(part, &[x.borrow().clone()])).collect()
    }
}
