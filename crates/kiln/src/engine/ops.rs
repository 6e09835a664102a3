//! The operations as methods on slices. Element-wise ones come from the table in kiln-core; the others stand here.

use kiln_core::op::{
    Attention, Convolve2d, Dequantize, Dot, Elementwise, Gather, LayerNorm, LogSoftmax, Matmul, Matvec, Padding,
    Pool2d, QuantMatmul, Quantize, Reduce, Reduction, RmsNorm, Rope, Softmax, TopK, Transpose, rows_of,
};
use kiln_core::{Data, DataMut, Operand, QuantFormat, Result, Shape, elementwise_table};

use crate::Engine;

macro_rules! methods {
    ($($(#[doc = $doc:literal])* $variant:ident $name:ident $into:ident ($($x:ident),*) ($($p:ident),*)
        $formula:literal, $flops:literal, $bound:ident $(($ulp:literal))?, $special:literal, $value:block
        $(, magnitude $magnitude:block)?)*) => {
        /// Element-wise operations.
        impl Engine {
            $(
                $(#[doc = $doc])*
                #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\n[`kiln_core::Error::Shape`] when the lengths differ.")]
                pub fn $name(&self, $($x: &[f32],)* $($p: f32),*) -> Result<Vec<f32>> {
                    self.f32_vec(Elementwise::$name($($p),*), &[$(Operand::vector($x)),*])
                }

                $(#[doc = $doc])*
                #[doc = concat!("\n\n`", $formula, "`, into `out`.\n\n# Errors\n[`kiln_core::Error::Shape`] or ")]
                #[doc = "[`kiln_core::Error::Length`] when the lengths differ."]
                pub fn $into(&self, $($x: &[f32],)* $($p: f32,)* out: &mut [f32]) -> Result<()> {
                    self.f32_into(Elementwise::$name($($p),*), &[$(Operand::vector($x)),*], out)
                }
            )*
        }
    };
}
elementwise_table!(methods);

macro_rules! reductions {
    ($data:ident $ty:ty: $($(#[doc = $doc:literal])* $reduction:ident $name:ident $axis:ident $axis_into:ident;)*) => {
        /// Reductions.
        impl Engine {
            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// [`Error::Shape`](kiln_core::Error::Shape) where an index is asked for and there is no element to point
                /// at.
                pub fn $name(&self, x: &[f32]) -> Result<$ty> {
                    let mut out = [<$ty>::default()];
                    let op = Reduce::all(Reduction::$reduction);
                    self.run_into(&op.into(), &[Operand::vector(x)], &mut [DataMut::$data(&mut out)])?;
                    Ok(out[0])
                }

                $(#[doc = $doc])*
                ///
                /// Along dimension `axis` of a row-major tensor with extents `dims`; the dimension vanishes.
                ///
                /// # Errors
                /// [`Error::Length`](kiln_core::Error::Length) when `x` does not fill `dims`,
                /// [`Error::Shape`](kiln_core::Error::Shape) when there is no such dimension, or where an index is asked
                /// for and there is no element to point at.
                pub fn $axis(&self, x: &[f32], dims: &[usize], axis: usize) -> Result<Vec<$ty>> {
                    let x = Operand::f32(x, dims)?;
                    let mut out = vec![<$ty>::default(); x.shape().without(axis)?.numel()];
                    let op = Reduce::along(Reduction::$reduction, axis);
                    self.run_into(&op.into(), &[x], &mut [DataMut::$data(&mut out)])?;
                    Ok(out)
                }

                $(#[doc = $doc])*
                ///
                /// Along dimension `axis` of a row-major tensor with extents `dims`, into `out`.
                ///
                /// # Errors
                #[doc = concat!("As [`Engine::", stringify!($axis), "`]; [`Error::Length`](kiln_core::Error::Length) when")]
                /// `out` has another length.
                pub fn $axis_into(&self, x: &[f32], dims: &[usize], axis: usize, out: &mut [$ty]) -> Result<()> {
                    let op = Reduce::along(Reduction::$reduction, axis);
                    self.run_into(&op.into(), &[Operand::f32(x, dims)?], &mut [DataMut::$data(out)])
                }
            )*
        }
    };
}

reductions! { F32 f32:
    /// Sum, in a fixed tree: the same bits on every place. 0 when empty.
    Sum sum sum_axis sum_axis_into;
    /// Arithmetic mean: the sum in a fixed tree, divided. NaN when empty.
    Mean mean mean_axis mean_axis_into;
    /// Greatest element; NaN if any is NaN, +0 above -0, -∞ when empty.
    Max max_element max_axis max_axis_into;
    /// Least element; NaN if any is NaN, -0 below +0, +∞ when empty.
    Min min_element min_axis min_axis_into;
    /// Product, in a fixed tree. 1 when empty.
    Prod prod prod_axis prod_axis_into;
    /// Sum of absolute values, in a fixed tree. 0 when empty.
    NormL1 norm_l1 norm_l1_axis norm_l1_axis_into;
    /// Euclidean norm, without overflow or underflow of the squares. 0 when empty.
    NormL2 norm_l2 norm_l2_axis norm_l2_axis_into;
    /// Greatest absolute value; NaN if any is NaN. 0 when empty.
    NormLinf norm_linf norm_linf_axis norm_linf_axis_into;
}

reductions! { U32 u32:
    /// Index of the first NaN, or of the greatest element, the first of equals.
    ArgMax argmax argmax_axis argmax_axis_into;
    /// Index of the first NaN, or of the least element, the first of equals.
    ArgMin argmin argmin_axis argmin_axis_into;
}

/// Inner product.
impl Engine {
    /// The inner product, in the fixed tree of the sums.
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when the lengths differ.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> Result<f32> {
        let mut out = [0.0];
        self.f32_into(Dot, &[Operand::vector(a), Operand::vector(b)], &mut out)?;
        Ok(out[0])
    }
}

/// Matrices, row-major.
impl Engine {
    /// The product of an `m * k` and a `k * n` matrix.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when the slices do not have these extents, [`kiln_core::Error::Overflow`] when the
    /// extents overflow.
    pub fn matmul(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Result<Vec<f32>> {
        self.f32_vec(Matmul::default(), &[Operand::f32(a, &[m, k])?, Operand::f32(b, &[k, n])?])
    }

    /// The product of an `m * k` and a `k * n` matrix, into `out`, `m * n`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matmul_into(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize, out: &mut [f32]) -> Result<()> {
        self.matmul_with(Matmul::default(), a, b, m, k, n, out)
    }

    /// The product of two matrices of which either may be stored transposed, into `out`: `op(A)` is `m * k`, `op(B)` is
    /// `k * n`. Stacks of matrices go through [`Engine::run_into`].
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matmul_with(
        &self,
        op: Matmul,
        a: &[f32],
        b: &[f32],
        m: usize,
        k: usize,
        n: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let a_dims = if op.transpose_a { [k, m] } else { [m, k] };
        let b_dims = if op.transpose_b { [n, k] } else { [k, n] };
        self.f32_into(op, &[Operand::f32(a, &a_dims)?, Operand::f32(b, &b_dims)?], out)
    }

    /// The product of a `rows * columns` matrix and a vector.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matvec(&self, a: &[f32], x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>> {
        self.f32_vec(Matvec::default(), &[Operand::f32(a, &[rows, columns])?, Operand::vector(x)])
    }

    /// The product of a `rows * columns` matrix and a vector, into `out`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matvec_into(&self, a: &[f32], x: &[f32], rows: usize, columns: usize, out: &mut [f32]) -> Result<()> {
        self.matvec_with(Matvec::default(), a, x, rows, columns, out)
    }

    /// The product of a `rows * columns` matrix, or of its transpose, and a vector, into `out`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matvec_with(
        &self,
        op: Matvec,
        a: &[f32],
        x: &[f32],
        rows: usize,
        columns: usize,
        out: &mut [f32],
    ) -> Result<()> {
        self.f32_into(op, &[Operand::f32(a, &[rows, columns])?, Operand::vector(x)], out)
    }

    /// The transpose of a `rows * columns` matrix.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn transpose(&self, x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>> {
        self.f32_vec(Transpose, &[Operand::f32(x, &[rows, columns])?])
    }

    /// The transpose of a `rows * columns` matrix, into `out`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn transpose_into(&self, x: &[f32], rows: usize, columns: usize, out: &mut [f32]) -> Result<()> {
        self.f32_into(Transpose, &[Operand::f32(x, &[rows, columns])?], out)
    }
}

/// Rows: `x` is whole rows of `columns` elements, or of as many as the weights have.
impl Engine {
    /// The exponential function of every row, divided by its sum.
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when `x` is not whole rows.
    pub fn softmax(&self, x: &[f32], columns: usize) -> Result<Vec<f32>> {
        self.f32_vec(Softmax, &[Operand::f32(x, rows_of("softmax", x, columns)?.dims())?])
    }

    /// As [`Engine::softmax`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::softmax`]; [`kiln_core::Error::Length`] when `out` has another length.
    pub fn softmax_into(&self, x: &[f32], columns: usize, out: &mut [f32]) -> Result<()> {
        self.f32_into(Softmax, &[Operand::f32(x, rows_of("softmax", x, columns)?.dims())?], out)
    }

    /// The logarithm of [`Engine::softmax`].
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when `x` is not whole rows.
    pub fn log_softmax(&self, x: &[f32], columns: usize) -> Result<Vec<f32>> {
        self.f32_vec(LogSoftmax, &[Operand::f32(x, rows_of("log_softmax", x, columns)?.dims())?])
    }

    /// As [`Engine::log_softmax`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::log_softmax`]; [`kiln_core::Error::Length`] when `out` has another length.
    pub fn log_softmax_into(&self, x: &[f32], columns: usize, out: &mut [f32]) -> Result<()> {
        self.f32_into(LogSoftmax, &[Operand::f32(x, rows_of("log_softmax", x, columns)?.dims())?], out)
    }

    /// Every row shifted to mean 0 and scaled to variance 1, then times `gamma` plus `beta`.
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when `x` is not whole rows or `beta` has another length than `gamma`,
    /// [`kiln_core::Error::Parameter`] when `eps` is negative or not finite.
    pub fn layer_norm(&self, x: &[f32], gamma: &[f32], beta: &[f32], eps: f32) -> Result<Vec<f32>> {
        let x = Operand::f32(x, rows_of("layer_norm", x, gamma.len())?.dims())?;
        self.f32_vec(LayerNorm::new(eps), &[x, Operand::vector(gamma), Operand::vector(beta)])
    }

    /// As [`Engine::layer_norm`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::layer_norm`]; [`kiln_core::Error::Length`] when `out` has another length.
    pub fn layer_norm_into(&self, x: &[f32], gamma: &[f32], beta: &[f32], eps: f32, out: &mut [f32]) -> Result<()> {
        let x = Operand::f32(x, rows_of("layer_norm", x, gamma.len())?.dims())?;
        self.f32_into(LayerNorm::new(eps), &[x, Operand::vector(gamma), Operand::vector(beta)], out)
    }

    /// Every row scaled to a mean square of 1, then times `gamma`.
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when `x` is not whole rows, [`kiln_core::Error::Parameter`] when `eps` is negative or
    /// not finite.
    pub fn rms_norm(&self, x: &[f32], gamma: &[f32], eps: f32) -> Result<Vec<f32>> {
        let x = Operand::f32(x, rows_of("rms_norm", x, gamma.len())?.dims())?;
        self.f32_vec(RmsNorm::new(eps), &[x, Operand::vector(gamma)])
    }

    /// As [`Engine::rms_norm`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::rms_norm`]; [`kiln_core::Error::Length`] when `out` has another length.
    pub fn rms_norm_into(&self, x: &[f32], gamma: &[f32], eps: f32, out: &mut [f32]) -> Result<()> {
        let x = Operand::f32(x, rows_of("rms_norm", x, gamma.len())?.dims())?;
        self.f32_into(RmsNorm::new(eps), &[x, Operand::vector(gamma)], out)
    }

    /// Rows of a table chosen by index: the lookup of embeddings.
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when the table is not whole rows, [`kiln_core::Error::Index`] for the first index
    /// outside of it.
    pub fn gather(&self, table: &[f32], columns: usize, indices: &[u32]) -> Result<Vec<f32>> {
        let rows = rows_of("gather", table, columns)?;
        self.f32_vec(Gather, &[Operand::f32(table, rows.dims())?, Operand::u32(indices, &[indices.len()])?])
    }

    /// As [`Engine::gather`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::gather`]; [`kiln_core::Error::Length`] when `out` has another length.
    pub fn gather_into(&self, table: &[f32], columns: usize, indices: &[u32], out: &mut [f32]) -> Result<()> {
        let rows = rows_of("gather", table, columns)?;
        self.f32_into(Gather, &[Operand::f32(table, rows.dims())?, Operand::u32(indices, &[indices.len()])?], out)
    }

    /// The `k` greatest elements of every row, greatest first, and where in the row they stand. NaN counts as greater than
    /// +∞; of equals the lower index comes first.
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when `x` is not whole rows, [`kiln_core::Error::Parameter`] when a row has fewer than
    /// `k` elements.
    pub fn top_k(&self, x: &[f32], columns: usize, k: usize) -> Result<(Vec<f32>, Vec<u32>)> {
        let rows = rows_of("top_k", x, columns)?;
        let n = Shape::new(&[rows.rows(), k.min(columns)])?.numel();
        let (mut values, mut indices) = (vec![0.0; n], vec![0; n]);
        self.top_k_into(x, columns, k, &mut values, &mut indices)?;
        Ok((values, indices))
    }

    /// As [`Engine::top_k`], into `values` and `indices`.
    ///
    /// # Errors
    /// As [`Engine::top_k`]; [`kiln_core::Error::Length`] when an output has another length.
    pub fn top_k_into(
        &self,
        x: &[f32],
        columns: usize,
        k: usize,
        values: &mut [f32],
        indices: &mut [u32],
    ) -> Result<()> {
        let x = Operand::f32(x, rows_of("top_k", x, columns)?.dims())?;
        self.run_into(&TopK { k }.into(), &[x], &mut [DataMut::F32(values), DataMut::U32(indices)])
    }
}

/// Pictures.
impl Engine {
    /// Two-dimensional convolution of a picture of one channel at stride 1, as a cross-correlation.
    ///
    /// `input` is `h * w`, `kernel` `kh * kw`, both row-major. The result is `(h - kh + 1) * (w - kw + 1)` for
    /// [`Padding::Valid`], `h * w` for [`Padding::Same`].
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when a slice does not have its extents, [`kiln_core::Error::Shape`] when the kernel is
    /// empty or larger than a picture without padding.
    pub fn convolve2d(
        &self,
        input: &[f32],
        (h, w): (usize, usize),
        kernel: &[f32],
        (kh, kw): (usize, usize),
        padding: Padding,
    ) -> Result<Vec<f32>> {
        self.convolve2d_with(Convolve2d { padding, ..Convolve2d::default() }, input, &[h, w], kernel, &[kh, kw])
    }

    /// As [`Engine::convolve2d`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::convolve2d`].
    pub fn convolve2d_into(
        &self,
        input: &[f32],
        (h, w): (usize, usize),
        kernel: &[f32],
        (kh, kw): (usize, usize),
        padding: Padding,
        out: &mut [f32],
    ) -> Result<()> {
        let op = Convolve2d { padding, ..Convolve2d::default() };
        self.convolve2d_with_into(op, input, &[h, w], kernel, &[kh, kw], out)
    }

    /// Two-dimensional convolution of pictures `[c_in, h, w]` or `[n, c_in, h, w]` with kernels `[c_out, c_in, kh, kw]`, or
    /// of one channel `[h, w]` with `[kh, kw]`, at any stride. The result has `c_out` channels.
    ///
    /// # Errors
    /// As [`Engine::convolve2d`]; [`kiln_core::Error::Shape`] when the channels differ,
    /// [`kiln_core::Error::Parameter`] for a stride of zero.
    pub fn convolve2d_with(
        &self,
        op: Convolve2d,
        input: &[f32],
        input_dims: &[usize],
        kernel: &[f32],
        kernel_dims: &[usize],
    ) -> Result<Vec<f32>> {
        self.f32_vec(op, &[Operand::f32(input, input_dims)?, Operand::f32(kernel, kernel_dims)?])
    }

    /// As [`Engine::convolve2d_with`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::convolve2d_with`].
    pub fn convolve2d_with_into(
        &self,
        op: Convolve2d,
        input: &[f32],
        input_dims: &[usize],
        kernel: &[f32],
        kernel_dims: &[usize],
        out: &mut [f32],
    ) -> Result<()> {
        self.f32_into(op, &[Operand::f32(input, input_dims)?, Operand::f32(kernel, kernel_dims)?], out)
    }

    /// The greatest element of each window that lies inside of a picture `[h, w]`, `[c, h, w]` or `[n, c, h, w]`.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when `x` does not fill `dims`, [`kiln_core::Error::Shape`] when the picture is smaller
    /// than the window, [`kiln_core::Error::Parameter`] for a window or stride of zero.
    pub fn max_pool2d(
        &self,
        x: &[f32],
        dims: &[usize],
        window: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Vec<f32>> {
        self.f32_vec(Pool2d::max(window, stride), &[Operand::f32(x, dims)?])
    }

    /// As [`Engine::max_pool2d`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::max_pool2d`].
    pub fn max_pool2d_into(
        &self,
        x: &[f32],
        dims: &[usize],
        window: (usize, usize),
        stride: (usize, usize),
        out: &mut [f32],
    ) -> Result<()> {
        self.f32_into(Pool2d::max(window, stride), &[Operand::f32(x, dims)?], out)
    }

    /// The mean of each window that lies inside of a picture `[h, w]`, `[c, h, w]` or `[n, c, h, w]`.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when `x` does not fill `dims`, [`kiln_core::Error::Shape`] when the picture is smaller
    /// than the window, [`kiln_core::Error::Parameter`] for a window or stride of zero.
    pub fn avg_pool2d(
        &self,
        x: &[f32],
        dims: &[usize],
        window: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Vec<f32>> {
        self.f32_vec(Pool2d::average(window, stride), &[Operand::f32(x, dims)?])
    }

    /// As [`Engine::avg_pool2d`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::avg_pool2d`].
    pub fn avg_pool2d_into(
        &self,
        x: &[f32],
        dims: &[usize],
        window: (usize, usize),
        stride: (usize, usize),
        out: &mut [f32],
    ) -> Result<()> {
        self.f32_into(Pool2d::average(window, stride), &[Operand::f32(x, dims)?], out)
    }
}

/// Sequences.
impl Engine {
    /// Scaled dot-product attention: queries `[heads, s, d]` or `[batch, heads, s, d]`, keys and values
    /// `[kv_heads, t, d]` or `[batch, kv_heads, t, d]`.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when the slices do not have these extents, [`kiln_core::Error::Shape`] when the extents
    /// do not fit one another.
    pub fn attention(
        &self,
        op: Attention,
        q: &[f32],
        q_dims: &[usize],
        k: &[f32],
        v: &[f32],
        kv_dims: &[usize],
    ) -> Result<Vec<f32>> {
        self.f32_vec(op, &[Operand::f32(q, q_dims)?, Operand::f32(k, kv_dims)?, Operand::f32(v, kv_dims)?])
    }

    /// As [`Engine::attention`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::attention`].
    pub fn attention_into(
        &self,
        op: Attention,
        q: &[f32],
        q_dims: &[usize],
        k: &[f32],
        v: &[f32],
        kv_dims: &[usize],
        out: &mut [f32],
    ) -> Result<()> {
        self.f32_into(op, &[Operand::f32(q, q_dims)?, Operand::f32(k, kv_dims)?, Operand::f32(v, kv_dims)?], out)
    }

    /// Rotary position embedding of `x`, rows of positions `[.., s, d]`.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when `x` does not have these extents, [`kiln_core::Error::Shape`] when rows do not split
    /// into pairs, [`kiln_core::Error::Parameter`] for a position beyond [`Rope::POSITIONS`] or a senseless theta.
    pub fn rope(&self, op: Rope, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        self.f32_vec(op, &[Operand::f32(x, dims)?])
    }

    /// As [`Engine::rope`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::rope`].
    pub fn rope_into(&self, op: Rope, x: &[f32], dims: &[usize], out: &mut [f32]) -> Result<()> {
        self.f32_into(op, &[Operand::f32(x, dims)?], out)
    }
}

/// Quantised weights, in blocks along the rows.
impl Engine {
    /// Quantises rows of `columns` elements.
    ///
    /// # Errors
    /// [`kiln_core::Error::Format`] when a row is not whole blocks, [`kiln_core::Error::Length`] when `x` is not whole
    /// rows.
    pub fn quantize(&self, format: QuantFormat, x: &[f32], columns: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; format.bytes(x.len())?];
        self.quantize_into(format, x, columns, &mut out)?;
        Ok(out)
    }

    /// As [`Engine::quantize`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::quantize`]; [`kiln_core::Error::Length`] when `out` has another length than the blocks.
    pub fn quantize_into(&self, format: QuantFormat, x: &[f32], columns: usize, out: &mut [u8]) -> Result<()> {
        let x = Operand::f32(x, &[x.len() / columns.max(1), columns])?;
        self.run_into(&Quantize { format }.into(), &[x], &mut [DataMut::Blocks(format, out)])
    }

    /// The f32 that blocks stand for.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when the bytes are not whole blocks.
    pub fn dequantize(&self, format: QuantFormat, blocks: &[u8]) -> Result<Vec<f32>> {
        self.f32_vec(Dequantize { format }, &[flat(format, blocks)?])
    }

    /// As [`Engine::dequantize`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::dequantize`]; [`kiln_core::Error::Length`] when the elements do not fill `out`.
    pub fn dequantize_into(&self, format: QuantFormat, blocks: &[u8], out: &mut [f32]) -> Result<()> {
        self.f32_into(Dequantize { format }, &[flat(format, blocks)?], out)
    }

    /// The product of a quantised `n * k` matrix with a vector of `k`.
    ///
    /// # Errors
    /// [`kiln_core::Error::Format`] when `k` is not whole blocks, [`kiln_core::Error::Length`] when the slices do not
    /// have these extents, [`kiln_core::Error::Overflow`] when the extents overflow.
    pub fn quant_matvec(&self, format: QuantFormat, w: &[u8], x: &[f32], n: usize, k: usize) -> Result<Vec<f32>> {
        self.quant_matmul(format, x, w, 1, k, n)
    }

    /// As [`Engine::quant_matvec`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::quant_matvec`]; [`kiln_core::Error::Length`] when `out` is not of `n`.
    pub fn quant_matvec_into(
        &self,
        format: QuantFormat,
        w: &[u8],
        x: &[f32],
        n: usize,
        k: usize,
        out: &mut [f32],
    ) -> Result<()> {
        self.quant_matmul_into(format, x, w, 1, k, n, out)
    }

    /// The product of an `m * k` matrix with the transpose of a quantised `n * k` matrix.
    ///
    /// # Errors
    /// As [`Engine::quant_matvec`].
    pub fn quant_matmul(
        &self,
        format: QuantFormat,
        x: &[f32],
        w: &[u8],
        m: usize,
        k: usize,
        n: usize,
    ) -> Result<Vec<f32>> {
        self.f32_vec(QuantMatmul { format }, &[Operand::f32(x, &[m, k])?, Operand::blocks(format, w, &[n, k])?])
    }

    /// As [`Engine::quant_matmul`], into `out`.
    ///
    /// # Errors
    /// As [`Engine::quant_matmul`]; [`kiln_core::Error::Length`] when `out` is not of `m * n`.
    pub fn quant_matmul_into(
        &self,
        format: QuantFormat,
        x: &[f32],
        w: &[u8],
        m: usize,
        k: usize,
        n: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let inputs = [Operand::f32(x, &[m, k])?, Operand::blocks(format, w, &[n, k])?];
        self.f32_into(QuantMatmul { format }, &inputs, out)
    }
}

/// Blocks as a vector of their elements.
fn flat(format: QuantFormat, blocks: &[u8]) -> Result<Operand<'_>> {
    let n = blocks.len() / format.block_bytes() * format.block_len();
    Operand::new(Data::Blocks(format, blocks), Shape::new(&[n])?)
}
