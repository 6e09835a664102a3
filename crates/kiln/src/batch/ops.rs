//! The operations as methods that record. Element-wise ones come from the table in kiln-core; the others stand here.

use kiln_core::graph::TensorId;
use kiln_core::op::{
    Attention, Convolve2d, Dot, Elementwise, Gather, LayerNorm, LogSoftmax, Matmul, Matvec, Pool2d, Reduce, Reduction,
    RmsNorm, Rope, Softmax, TopK, Transpose,
};
use kiln_core::{Result, elementwise_table};

use super::Batch;

macro_rules! elementwise {
    ($($(#[doc = $doc:literal])* $variant:ident $name:ident $into:ident ($($x:ident),*) ($($p:ident),*)
        $formula:literal, $flops:literal, $bound:ident $(($ulp:literal))?, $special:literal, $value:block
        $(, magnitude $magnitude:block)?)*) => {
        /// Element-wise operations. Operands have one shape, or a shape that repeats along the outer dimensions of the
        /// largest.
        impl Batch<'_> {
            $(
                $(#[doc = $doc])*
                #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\nAs [`Batch::record`].")]
                pub fn $name(&mut self, $($x: TensorId,)* $($p: f32),*) -> Result<TensorId> {
                    self.record(Elementwise::$name($($p),*), &[$($x),*])
                }
            )*
        }
    };
}
elementwise_table!(elementwise);

macro_rules! operations {
    ($($(#[doc = $doc:literal])* $name:ident($($x:ident),* $(; $($p:ident: $ty:ty),*)?) = $op:expr;)*) => {
        /// Everything else.
        impl Batch<'_> {
            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// As [`Batch::record`].
                pub fn $name(&mut self, $($x: TensorId,)* $($($p: $ty),*)?) -> Result<TensorId> {
                    self.record($op, &[$($x),*])
                }
            )*
        }
    };
}

operations! {
    /// Sum of all elements.
    sum(x) = Reduce::all(Reduction::Sum);
    /// Arithmetic mean of all elements.
    mean(x) = Reduce::all(Reduction::Mean);
    /// Greatest element.
    max_all(x) = Reduce::all(Reduction::Max);
    /// Least element.
    min_all(x) = Reduce::all(Reduction::Min);
    /// Index of the greatest element.
    argmax(x) = Reduce::all(Reduction::ArgMax);
    /// Index of the least element.
    argmin(x) = Reduce::all(Reduction::ArgMin);
    /// Any reduction along one axis, which vanishes from the shape.
    reduce(x; reduction: Reduction, axis: usize) = Reduce::along(reduction, axis);
    /// The inner product.
    dot(a, b) = Dot;
    /// The product of two matrices, or of two stacks of them.
    matmul(a, b) = Matmul::default();
    /// The product of a matrix and a matrix stored transposed, as weights `[outputs, inputs]` are.
    matmul_transposed(a, b) = Matmul { transpose_a: false, transpose_b: true };
    /// The product of a matrix and a vector.
    matvec(a, x) = Matvec::default();
    /// The transpose of the last two dimensions.
    transpose(x) = Transpose;
    /// Softmax of every row.
    softmax(x) = Softmax;
    /// The logarithm of softmax of every row.
    log_softmax(x) = LogSoftmax;
    /// Layer normalisation of every row, scaled by `gamma` and shifted by `beta`.
    layer_norm(x, gamma, beta; eps: f32) = LayerNorm::new(eps);
    /// Root-mean-square normalisation of every row, scaled by `gamma`.
    rms_norm(x, gamma; eps: f32) = RmsNorm::new(eps);
    /// Rows of a table chosen by index.
    gather(table, indices) = Gather;
    /// Two-dimensional convolution with padding and stride of `op`.
    convolve2d(input, kernel; op: Convolve2d) = op;
    /// Pooling of the windows of a picture.
    pool2d(input; op: Pool2d) = op;
    /// Scaled dot-product attention of queries, keys and values.
    attention(q, k, v; op: Attention) = op;
    /// Rotary position embedding.
    rope(x; op: Rope) = op;
}

impl Batch<'_> {
    /// The `k` greatest elements of every row, greatest first: values and indices.
    ///
    /// # Errors
    /// As [`Batch::record`].
    pub fn top_k(&mut self, x: TensorId, k: usize) -> Result<(TensorId, TensorId)> {
        let results = self.record_all(TopK { k }, &[x])?;
        Ok((results[0], results[1]))
    }
}
