//! The typed methods of every backend and of every recording, each defined once.
//!
//! [`Operations`] has the operations as methods on slices, [`AsyncOperations`] those as futures, and [`Record`] has them as
//! methods on tensors: those of a graph that is recorded, or those that hold elements, where they run at once. A backend
//! implements [`Operations::run_into`], a recording [`Record::record_all`]; all else is provided from three tables: [`elementwise_table!`](crate::elementwise_table),
//! [`reduction_table!`](crate::reduction_table), and the operations below. A new method is one row.

/// Calls `$callback!` with the operations of one f32 result that are neither element-wise nor reductions.
///
/// A row is: name, its form that writes into a slice, the tensors and the parameters as they are recorded, the operation,
/// the arguments on slices and the operands that these make, the method that is asked first, if there is one, and its
/// errors beside those of the shape rule.
macro_rules! operations {
    ($callback:ident) => {
        $callback! {
            /// The transpose of a row-major `rows * columns` matrix.
            transpose transpose_into (x) () = Transpose,
                slices (x: &[f32], rows: usize, columns: usize) [Operand::f32(x, &[rows, columns])?],
                quick quick_transpose(x, rows, columns),
                "[`Error::Length`] when the slice does not have these extents, [`Error::Overflow`] when they overflow.";

            /// The exponential function of every row, divided by its sum. `x` is rows of `columns` elements.
            ///
            /// A row with NaN or +∞, or of -∞ alone, gives NaN.
            softmax softmax_into (x) () = Softmax,
                slices (x: &[f32], columns: usize) [rows("softmax", x, columns)?],
                "[`Error::Shape`] when `x` is not whole rows.";

            /// The logarithm of softmax, without the detour through numbers that vanish. `x` is rows of `columns`
            /// elements.
            log_softmax log_softmax_into (x) () = LogSoftmax,
                slices (x: &[f32], columns: usize) [rows("log_softmax", x, columns)?],
                "[`Error::Shape`] when `x` is not whole rows.";

            /// Every row shifted to mean 0 and scaled to variance 1, then times `gamma` plus `beta`. Rows are as long as
            /// `gamma`.
            layer_norm layer_norm_into (x, gamma, beta) (eps: f32) = LayerNorm::new(eps),
                slices (x: &[f32], gamma: &[f32], beta: &[f32], eps: f32)
                [rows("layer_norm", x, gamma.len())?, Operand::vector(gamma), Operand::vector(beta)],
                "[`Error::Shape`] when `x` is not whole rows or `beta` has another length than `gamma`, \
                 [`Error::Parameter`] when `eps` is negative or not finite.";

            /// Every row scaled to a mean square of 1, then times `gamma`. Rows are as long as `gamma`.
            rms_norm rms_norm_into (x, gamma) (eps: f32) = RmsNorm::new(eps),
                slices (x: &[f32], gamma: &[f32], eps: f32)
                [rows("rms_norm", x, gamma.len())?, Operand::vector(gamma)],
                "[`Error::Shape`] when `x` is not whole rows, [`Error::Parameter`] when `eps` is negative or not finite.";

            /// Rows of a table chosen by index: the lookup of embeddings.
            gather gather_into (table, indices) () = Gather,
                slices (table: &[f32], columns: usize, indices: &[u32])
                [rows("gather", table, columns)?, Operand::u32(indices, &[indices.len()])?],
                "[`Error::Shape`] when the table is not rows of `columns` elements, [`Error::Index`] for the first index \
                 outside of it.";

            /// Two-dimensional convolution of a picture of one channel at stride 1, as a cross-correlation.
            ///
            /// The picture is `h * w`, the kernel `kh * kw`, both row-major. The result is
            /// `(h - kh + 1) * (w - kw + 1)` for [`Padding::Valid`], `h * w` for [`Padding::Same`].
            convolve2d convolve2d_into (input, kernel) (padding: Padding) =
                Convolve2d { padding, ..Convolve2d::default() },
                slices (input: &[f32], size: (usize, usize), kernel: &[f32], kernel_size: (usize, usize), padding: Padding)
                [Operand::f32(input, &[size.0, size.1])?, Operand::f32(kernel, &[kernel_size.0, kernel_size.1])?],
                "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when the kernel is empty or \
                 larger than a picture without padding.";

            /// Two-dimensional convolution of pictures `[c_in, h, w]` or `[n, c_in, h, w]` with kernels
            /// `[c_out, c_in, kh, kw]`, or of one channel `[h, w]` with `[kh, kw]`, at any stride. The result has `c_out`
            /// channels.
            convolve2d_with convolve2d_with_into (input, kernel) (op: Convolve2d) = op,
                slices (op: Convolve2d, input: &[f32], input_dims: &[usize], kernel: &[f32], kernel_dims: &[usize])
                [Operand::f32(input, input_dims)?, Operand::f32(kernel, kernel_dims)?],
                "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when the channels differ or \
                 the kernel is empty or larger than a picture without padding, [`Error::Parameter`] for a stride of \
                 zero.";

            /// The greatest element of each window that lies inside of a picture `[h, w]`, `[c, h, w]` or
            /// `[n, c, h, w]`.
            max_pool2d max_pool2d_into (x) (window: (usize, usize), stride: (usize, usize)) =
                Pool2d::max(window, stride),
                slices (x: &[f32], dims: &[usize], window: (usize, usize), stride: (usize, usize))
                [Operand::f32(x, dims)?],
                "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when the picture is smaller than the \
                 window, [`Error::Parameter`] for a window or a stride of zero.";

            /// The mean of each window that lies inside of a picture `[h, w]`, `[c, h, w]` or `[n, c, h, w]`.
            avg_pool2d avg_pool2d_into (x) (window: (usize, usize), stride: (usize, usize)) =
                Pool2d::average(window, stride),
                slices (x: &[f32], dims: &[usize], window: (usize, usize), stride: (usize, usize))
                [Operand::f32(x, dims)?],
                "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when the picture is smaller than the \
                 window, [`Error::Parameter`] for a window or a stride of zero.";

            /// Scaled dot-product attention: queries `[heads, s, d]` or `[batch, heads, s, d]`, keys and values
            /// `[kv_heads, t, d]` or `[batch, kv_heads, t, d]`. The result has the extents of the queries.
            attention attention_into (q, k, v) (op: Attention) = op,
                slices (op: Attention, q: &[f32], q_dims: &[usize], k: &[f32], v: &[f32], kv_dims: &[usize])
                [Operand::f32(q, q_dims)?, Operand::f32(k, kv_dims)?, Operand::f32(v, kv_dims)?],
                "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when they do not fit one \
                 another, `heads` is not a multiple of `kv_heads`, or causal queries outnumber the keys.";

            /// Rotary position embedding of `x`, rows of positions `[.., s, d]`.
            rope rope_into (x) (op: Rope) = op,
                slices (op: Rope, x: &[f32], dims: &[usize]) [Operand::f32(x, dims)?],
                "[`Error::Length`] when `x` does not have these extents, [`Error::Shape`] when rows do not split into \
                 pairs, [`Error::Parameter`] for a position beyond [`Rope::POSITIONS`] or a senseless theta.";

            /// The f32 that quantised blocks stand for.
            dequantize dequantize_into (blocks) (format: QuantFormat) = Dequantize { format },
                slices (format: QuantFormat, blocks: &[u8]) [flat(format, blocks)?],
                "[`Error::Length`] when the bytes are not whole blocks.";

            /// The product of an `m * k` matrix with the transpose of a quantised `n * k` matrix, both row-major.
            quant_matmul quant_matmul_into (x, w) (format: QuantFormat) = QuantMatmul { format },
                slices (format: QuantFormat, x: &[f32], w: &[u8], m: usize, k: usize, n: usize)
                [Operand::f32(x, &[m, k])?, Operand::blocks(format, w, &[n, k])?],
                "[`Error::Format`] when `k` is not whole blocks, [`Error::Length`] when the slices do not have these \
                 extents, [`Error::Overflow`] when the extents overflow.";
        }
    };
}

mod futures;
mod slices;
mod tensors;

pub use futures::AsyncOperations;
pub use slices::Operations;
pub use tensors::Record;
