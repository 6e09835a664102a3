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
            #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\nAs [`Record::record_all`].")]
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
    ($($(#[doc = $doc:literal])* $name:ident {
        into: $into:ident, tensors: ($($x:ident),*), params: ($($p:ident: $pty:ty),*), op: $op:expr,
        slices: ($($arg:ident: $ty:ty),*), operands: [$($operand:expr),*],
        $(quick: $quick:ident($($given:ident),*),)? errors: $errors:literal,
    })*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Errors
            /// The errors of [`Record::record_all`].
            fn $name(&mut self, $($x: impl Borrow<Self::Tensor>,)* $($p: $pty),*) -> Result<Self::Tensor> {
                self.record($op, &[$($x.borrow().clone()),*])
            }
        )*
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

    /// The inner product.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn dot(&mut self, a: impl Borrow<Self::Tensor>, b: impl Borrow<Self::Tensor>) -> Result<Self::Tensor> {
        self.record(Dot, &[a.borrow().clone(), b.borrow().clone()])
    }

    /// The product of two matrices, or of two stacks of them.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn matmul(&mut self, a: impl Borrow<Self::Tensor>, b: impl Borrow<Self::Tensor>) -> Result<Self::Tensor> {
        self.record(Matmul::default(), &[a.borrow().clone(), b.borrow().clone()])
    }

    /// The product of two matrices, or of two stacks of them. Either may be stored transposed, as weights
    /// `[outputs, inputs]` are.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn matmul_with(
        &mut self,
        a: impl Borrow<Self::Tensor>,
        b: impl Borrow<Self::Tensor>,
        op: Matmul,
    ) -> Result<Self::Tensor> {
        self.record(op, &[a.borrow().clone(), b.borrow().clone()])
    }

    /// The product of a matrix and a vector.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn matvec(&mut self, a: impl Borrow<Self::Tensor>, x: impl Borrow<Self::Tensor>) -> Result<Self::Tensor> {
        self.record(Matvec::default(), &[a.borrow().clone(), x.borrow().clone()])
    }

    /// The product of a matrix, or of its transpose, and a vector.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn matvec_with(
        &mut self,
        a: impl Borrow<Self::Tensor>,
        x: impl Borrow<Self::Tensor>,
        op: Matvec,
    ) -> Result<Self::Tensor> {
        self.record(op, &[a.borrow().clone(), x.borrow().clone()])
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

    /// The `k` greatest elements of every row, greatest first: values and indices.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn top_k(&mut self, x: impl Borrow<Self::Tensor>, k: usize) -> Result<(Self::Tensor, Self::Tensor)> {
        let mut results = self.record_all(TopK { k }.into(), &[x.borrow().clone()])?;
        match (results.pop(), results.pop()) {
            (Some(indices), Some(values)) => Ok((values, indices)),
            _ => Err(Error::Unsupported { op: "top_k", backend: "a recording" }),
        }
    }

    /// Sorts the elements along dimension `axis` in ascending or descending order, NaN last. Returns the values and
    /// their indices. The sort is stable.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn sort(
        &mut self,
        x: impl Borrow<Self::Tensor>,
        axis: usize,
        descending: bool,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        let mut results = self.record_all(Sort { axis, descending }.into(), &[x.borrow().clone()])?;
        match (results.pop(), results.pop()) {
            (Some(indices), Some(values)) => Ok((values, indices)),
            _ => Err(Error::Unsupported { op: "sort", backend: "a recording" }),
        }
    }

    /// The indices that [`Record::sort`] returns.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn argsort(&mut self, x: impl Borrow<Self::Tensor>, axis: usize, descending: bool) -> Result<Self::Tensor> {
        Ok(self.sort(x, axis, descending)?.1)
    }

    /// Casts the elements to another type.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`]; [`Error::Parameter`] for a quantised type.
    fn cast(&mut self, x: impl Borrow<Self::Tensor>, to: DType) -> Result<Self::Tensor> {
        self.record(Cast { to }, &[x.borrow().clone()])
    }

    /// Compares each pair of elements. Returns booleans.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn compare(
        &mut self,
        a: impl Borrow<Self::Tensor>,
        b: impl Borrow<Self::Tensor>,
        comparison: Comparison,
    ) -> Result<Self::Tensor> {
        self.record(Compare { comparison }, &[a.borrow().clone(), b.borrow().clone()])
    }

    /// Selects elements of `a` where a condition holds, and of `b` elsewhere.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn select(
        &mut self,
        condition: impl Borrow<Self::Tensor>,
        a: impl Borrow<Self::Tensor>,
        b: impl Borrow<Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.record(Select, &[condition.borrow().clone(), a.borrow().clone(), b.borrow().clone()])
    }

    /// `x` with some of its rows replaced, see [`WriteRows`]. If `x` is a state of a graph, the result is its next
    /// version, and `x` can no longer be read.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn write_rows(
        &mut self,
        x: impl Borrow<Self::Tensor>,
        rows: impl Borrow<Self::Tensor>,
        positions: impl Borrow<Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.record(WriteRows, &[x.borrow().clone(), rows.borrow().clone(), positions.borrow().clone()])
    }

    /// Applies a function to each pair of integers of one type; sums, differences and products wrap around.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn arithmetic(
        &mut self,
        a: impl Borrow<Self::Tensor>,
        b: impl Borrow<Self::Tensor>,
        function: IntegerFunction,
    ) -> Result<Self::Tensor> {
        self.record(Arithmetic { function }, &[a.borrow().clone(), b.borrow().clone()])
    }

    /// Quantises `x` along its last dimension.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn quantize(&mut self, x: impl Borrow<Self::Tensor>, format: QuantFormat) -> Result<Self::Tensor> {
        self.record(Quantize { format }, &[x.borrow().clone()])
    }

    /// Concatenates tensors along dimension `axis`.
    ///
    /// # Errors
    /// The errors of [`Record::record_all`].
    fn concat(&mut self, parts: &[impl Borrow<Self::Tensor>], axis: usize) -> Result<Self::Tensor> {
        let parts: Vec<Self::Tensor> = parts.iter().map(|part| part.borrow().clone()).collect();
        self.record(Concat { axis }, &parts)
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
