use crate::graph::TensorId;
use crate::op::{
    Attention, Convert, Convolve2d, Dequantize, Dot, Elementwise, Gather, LayerNorm, LogSoftmax, Matmul, Matvec, Op,
    Padding, Pool2d, QuantMatmul, Quantize, Reduce, Reduction, RmsNorm, Rope, Softmax, TopK, Transpose,
};
use crate::{DType, QuantFormat, Result, elementwise_table};
#[cfg(doc)]
use crate::{Error, Operations};

macro_rules! elementwise_on_tensors {
    ($($(#[doc = $doc:literal])* $variant:ident $name:ident $into:ident ($($x:ident),*) ($($p:ident),*)
        $formula:literal, $flops:literal, $bound:ident $(($ulp:literal))?, $special:literal, $value:block
        $(, magnitude $magnitude:block)?)*) => {
        $(
            $(#[doc = $doc])*
            #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\nAs [`Record::record_all`].")]
            fn $name(&mut self, $($x: TensorId,)* $($p: f32),*) -> Result<TensorId> {
                self.record(Elementwise::$name($($p),*), &[$($x),*])
            }
        )*
    };
}

macro_rules! reductions_on_tensors {
    ($ty:ident $whole:ident:
        $($(#[doc = $doc:literal])* $reduction:ident $name:ident $axis:ident $axis_into:ident;)*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Errors
            /// As [`Record::record_all`].
            fn $name(&mut self, x: TensorId) -> Result<TensorId> {
                self.record(Reduce::all(Reduction::$reduction), &[x])
            }

            $(#[doc = $doc])*
            ///
            /// Along dimension `axis`, which vanishes.
            ///
            /// # Errors
            /// As [`Record::record_all`].
            fn $axis(&mut self, x: TensorId, axis: usize) -> Result<TensorId> {
                self.record(Reduce::along(Reduction::$reduction, axis), &[x])
            }
        )*
    };
}

macro_rules! operations_on_tensors {
    ($($(#[doc = $doc:literal])* $name:ident $into:ident ($($x:ident),*) ($($p:ident: $pty:ty),*) = $op:expr,
        slices ($($arg:ident: $ty:ty),*) [$($operand:expr),*], $(quick $quick:ident($($given:ident),*),)? $errors:literal;)*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Errors
            /// As [`Record::record_all`].
            fn $name(&mut self, $($x: TensorId,)* $($p: $pty),*) -> Result<TensorId> {
                self.record($op, &[$($x),*])
            }
        )*
    };
}

/// The operations as methods on tensors of a graph, which record them to be run later.
///
/// A recording implements [`Record::record_all`]; the methods come from the same tables as those of [`Operations`]. The
/// extents are those of the tensors.
pub trait Record: Sized {
    /// Records an operation and returns its results.
    ///
    /// # Errors
    /// What the shape rule of the operation says; [`Error::ForeignTensor`] for tensors of another graph.
    fn record_all(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>>;

    /// Records an operation of one result.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn record(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<TensorId> {
        Ok(self.record_all(op.into(), inputs)?[0])
    }

    elementwise_table!(elementwise_on_tensors);

    reductions!(reductions_on_tensors);

    /// The inner product.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn dot(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        self.record(Dot, &[a, b])
    }

    /// The product of two matrices, or of two stacks of them.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn matmul(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        self.record(Matmul::default(), &[a, b])
    }

    /// The product of two matrices, or of two stacks of them, of which either may be stored transposed, as weights
    /// `[outputs, inputs]` are.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn matmul_with(&mut self, a: TensorId, b: TensorId, op: Matmul) -> Result<TensorId> {
        self.record(op, &[a, b])
    }

    /// The product of a matrix and a vector.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn matvec(&mut self, a: TensorId, x: TensorId) -> Result<TensorId> {
        self.record(Matvec::default(), &[a, x])
    }

    /// The product of a matrix, or of its transpose, and a vector.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn matvec_with(&mut self, a: TensorId, x: TensorId, op: Matvec) -> Result<TensorId> {
        self.record(op, &[a, x])
    }

    operations!(operations_on_tensors);

    /// The `k` greatest elements of every row, greatest first: values and indices.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn top_k(&mut self, x: TensorId, k: usize) -> Result<(TensorId, TensorId)> {
        let results = self.record_all(TopK { k }.into(), &[x])?;
        Ok((results[0], results[1]))
    }

    /// The same numbers as f32 or f16.
    ///
    /// # Errors
    /// As [`Record::record_all`]; [`crate::Error::Parameter`] for any other type.
    fn convert(&mut self, x: TensorId, to: DType) -> Result<TensorId> {
        self.record(Convert { to }, &[x])
    }

    /// The blocks of a quantised format nearest to `x`, along its last dimension.
    ///
    /// # Errors
    /// As [`Record::record_all`].
    fn quantize(&mut self, x: TensorId, format: QuantFormat) -> Result<TensorId> {
        self.record(Quantize { format }, &[x])
    }
}
