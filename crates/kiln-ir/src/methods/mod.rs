//! The typed methods of every backend and of every recording, each defined once.
//!
//! [`Operations`] has the operations as methods on slices, [`AsyncOperations`] those as futures, and [`Record`] has them as
//! methods on tensors: those of a graph that is recorded, or those that hold elements, where they run at once. A backend
//! implements [`Operations::run_into`], a recording [`Record::record_all`]; all else is provided from three tables:
//! [`elementwise_table!`](crate::elementwise_table), [`reduction_table!`](crate::reduction_table), and the operations below. The
//! [`signatures`] of all operations come from the same rows: from them kiln-web makes the methods of JavaScript, and `cargo xtask docs`
//! the table of operations in README. A new operation is one row.

/// Calls `$callback!` with the operations that are neither element-wise nor reductions.
///
/// A row is the name of a method and these fields:
///
/// - `group`: the row of README's table
/// - `note` (optional): what README adds to the name
/// - `named` (optional): the name in languages with named parameters, if it is another one; `_` if a parameter has no form there
/// - `tensors`: the operands, or `[parts]` for any number of them
/// - `params`: the parameters after them. Languages with named parameters may leave out those with a value, and read the type after
///   `as` ([`Parameter`](crate::named::Parameter)) if there is one
/// - `op`: the operation, built from the parameters or from the arguments on slices
/// - `results`: the [`Elements`](signatures::Elements) of the results of methods that return arrays
///
/// An operation has methods on slices if these fields follow:
///
/// - `into`: its form that writes into slices
/// - `slices`: the arguments on slices
/// - `operands`: the operands, an array or a `Vec`, built from those arguments
/// - `outputs` (optional): names and element types of its two results; without them it has one result of f32
/// - `quick` (optional): the fast path, which is tried first for results in slices
/// - `errors`: the errors on slices besides those of the shape rule
///
/// Some methods on slices are written by hand, because no field of a row would serve a second operation: `dot` returns a number,
/// `matmul_with` tries its fast path for a `Vec`, too, `attention_with` takes its optional operands as operands, `cast` is generic over
/// both element types, `quantize` returns blocks of the format that it is given, `split` is several operations, and `matmul`, `matvec` and
/// `quant_matvec` are short forms of others.
macro_rules! operations {
    ($callback:ident) => {
        $callback! {
            /// Compares each pair of elements. Returns booleans.
            compare {
                group: Comparisons, note: "eq, ne, lt, le, gt, ge", tensors: (a, b), params: (comparison: Comparison),
                op: Compare { comparison }, results: (Bytes),
            }

            /// Selects elements of `a` where a condition holds, and of `b` elsewhere.
            select {
                group: Comparisons, tensors: (condition, a, b), params: (), op: Select, results: (Any),
            }

            /// The inner product.
            dot {
                group: Reductions, tensors: (a, b), params: (), op: Dot, results: (F32),
            }

            /// The exponential function of every row, divided by its sum. `x` is rows of `columns` elements.
            ///
            /// A row with NaN or +∞, or of -∞ alone, gives NaN.
            softmax {
                group: Rows, tensors: (x), params: (), op: Softmax, results: (F32),
                into: softmax_into, slices: (x: &[f32], columns: usize),
                operands: [rows("softmax", x, columns)?], errors: "[`Error::Shape`] when `x` is not whole rows.",
            }

            /// The logarithm of softmax, computed without intermediate results that underflow. `x` is rows of `columns`
            /// elements.
            log_softmax {
                group: Rows, tensors: (x), params: (), op: LogSoftmax, results: (F32),
                into: log_softmax_into, slices: (x: &[f32], columns: usize),
                operands: [rows("log_softmax", x, columns)?], errors: "[`Error::Shape`] when `x` is not whole rows.",
            }

            /// Every row shifted to mean 0 and scaled to variance 1, then times `gamma` plus `beta`. Rows are as long as
            /// `gamma`.
            layer_norm {
                group: Rows, tensors: (x, gamma, beta), params: (eps: f32 = 1e-5), op: LayerNorm::new(eps), results: (F32),
                into: layer_norm_into, slices: (x: &[f32], gamma: &[f32], beta: &[f32], eps: f32),
                operands: [rows("layer_norm", x, gamma.len())?, Operand::vector(gamma), Operand::vector(beta)],
                errors: "[`Error::Shape`] when `x` is not whole rows or `beta` has another length than `gamma`, \
                         [`Error::Parameter`] when `eps` is negative or not finite.",
            }

            /// Every row scaled to a mean square of 1, then times `gamma`. Rows are as long as `gamma`.
            rms_norm {
                group: Rows, tensors: (x, gamma), params: (eps: f32 = 1e-5), op: RmsNorm::new(eps), results: (F32),
                into: rms_norm_into, slices: (x: &[f32], gamma: &[f32], eps: f32),
                operands: [rows("rms_norm", x, gamma.len())?, Operand::vector(gamma)],
                errors: "[`Error::Shape`] when `x` is not whole rows, [`Error::Parameter`] when `eps` is negative or \
                         not finite.",
            }

            /// Normalises groups of channels of `x` `[n, channels, ..]`: each group is shifted to mean 0 and scaled to
            /// variance 1, then every channel is multiplied by its element of `gamma` and shifted by its element of
            /// `beta`.
            group_norm {
                group: Rows, tensors: (x, gamma, beta), params: (groups: usize, eps: f32 = 1e-5), op: GroupNorm::new(groups, eps),
                results: (F32),
                into: group_norm_into, slices: (x: &[f32], dims: &[usize], gamma: &[f32], beta: &[f32], groups: usize, eps: f32),
                operands: [Operand::f32(x, dims)?, Operand::vector(gamma), Operand::vector(beta)],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when there is not an element of `gamma` \
                         and of `beta` for each channel, [`Error::Parameter`] when the channels do not make as many groups, or \
                         `eps` is negative or not finite.",
            }

            /// Batch normalisation in inference: from every channel of `x` `[n, channels, ..]` subtracts its mean,
            /// divides by the root of its variance plus `eps`, multiplies by its element of `gamma` and adds its
            /// element of `beta`.
            batch_norm {
                group: Rows, note: "inference", tensors: (x, gamma, beta, mean, variance), params: (eps: f32 = 1e-5),
                op: BatchNorm::new(eps), results: (F32),
                into: batch_norm_into,
                slices: (x: &[f32], dims: &[usize], gamma: &[f32], beta: &[f32], mean: &[f32], variance: &[f32], eps: f32),
                operands: [Operand::f32(x, dims)?, Operand::vector(gamma), Operand::vector(beta), Operand::vector(mean),
                          Operand::vector(variance)],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when there is not an element of every \
                         other operand for each channel, [`Error::Parameter`] when `eps` is negative or not finite.",
            }

            /// Selects rows of a table by index (index_select, the lookup of embeddings).
            gather {
                group: Rows, tensors: (table, indices), params: (), op: Gather, results: (Any),
                into: gather_into, slices: (table: &[f32], columns: usize, indices: &[u32]),
                operands: [rows("gather", table, columns)?, Operand::elements(indices, &[indices.len()])?],
                errors: "[`Error::Shape`] when the table is not rows of `columns` elements, [`Error::Index`] for the \
                         first index outside of it.",
            }

            /// `x` with some of its rows replaced, see [`WriteRows`](crate::op::WriteRows). If `x` is a state of a graph, the result is
            /// its next version, and `x` can no longer be read.
            write_rows {
                group: Rows, note: "in place on a `State`", tensors: (x, rows, positions), params: (), op: WriteRows, results: (Any),
            }

            /// A table of rows of `columns` elements in which row i of `source` replaces row `indices[i]`. If indices
            /// are equal, the last one wins.
            scatter {
                group: Rows, tensors: (table, indices, source), params: (), op: Scatter, results: (Any),
                into: scatter_into, slices: (table: &[f32], columns: usize, indices: &[u32], source: &[f32]),
                operands: [rows("scatter", table, columns)?, Operand::elements(indices, &[indices.len()])?,
                          Operand::f32(source, &[indices.len(), columns])?],
                errors: "[`Error::Shape`] when `table` is not whole rows, [`Error::Length`] when `source` lacks a row for an \
                         index, [`Error::Index`] when an index is outside of the table.",
            }

            /// A table of rows of `columns` elements with row i of `source` added to row `indices[i]`, in the order of the i.
            index_add {
                group: Rows, tensors: (table, indices, source), params: (), op: IndexAdd, results: (Any),
                into: index_add_into, slices: (table: &[f32], columns: usize, indices: &[u32], source: &[f32]),
                operands: [rows("index_add", table, columns)?, Operand::elements(indices, &[indices.len()])?,
                          Operand::f32(source, &[indices.len(), columns])?],
                errors: "The errors of [`Operations::scatter`].",
            }

            /// The `k` greatest elements of every row, greatest first, and their indices in the row.
            ///
            /// NaN counts as greater than +∞; equal elements are ordered by index.
            top_k {
                group: Rows, tensors: (x), params: (k: usize), op: TopK { k }, results: (F32, U32),
                into: top_k_into, slices: (x: &[f32], columns: usize, k: usize), operands: [rows("top_k", x, columns)?],
                outputs: (values: f32, indices: u32),
                errors: "[`Error::Shape`] when `x` is not whole rows, [`Error::Parameter`] when a row has fewer than `k` elements.",
            }

            /// Sorts the elements along dimension `axis` in ascending or descending order, NaN last. Returns the values and their
            /// indices. The sort is stable.
            sort {
                group: Rows, note: "`argsort` gives the indices alone", tensors: (x), params: (axis: usize, descending: bool = false),
                op: Sort { axis, descending }, results: (Any, U32),
                into: sort_into, slices: (x: &[f32], dims: &[usize], axis: usize, descending: bool),
                operands: [Operand::f32(x, dims)?], outputs: (values: f32, indices: u32),
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::View`] when there is no such dimension.",
            }

            /// Inclusive prefix sums of `x` along dimension `axis`.
            cumsum {
                group: Rows, tensors: (x), params: (axis: usize), op: Cumsum { axis }, results: (Any),
                into: cumsum_into, slices: (x: &[f32], dims: &[usize], axis: usize), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::View`] when there is no such dimension.",
            }

            /// The product of two matrices, or of two stacks of them. Either may be stored transposed, as weights
            /// `[outputs, inputs]` are.
            matmul_with {
                group: Matrices, note: "either side transposed, batched with broadcast, B packed once", named: matmul,
                tensors: (a, b), params: (op: Matmul), op: op, results: (F32),
            }

            /// The product of a matrix, or of its transpose, and a vector.
            matvec_with {
                group: Matrices, named: matvec, tensors: (a, x), params: (op: Matvec), op: op, results: (F32),
                into: matvec_with_into, slices: (a: &[f32], x: &[f32], rows: usize, columns: usize, op: Matvec),
                operands: [Operand::f32(a, &[rows, columns])?, Operand::vector(x)],
                errors: "The errors of [`Operations::matvec`].",
            }

            /// The products of rows of `x` `[.., k]` with transposed matrices that indices select from `weights`
            /// `[experts, n, k]`: one for each row, or several if `indices` has one dimension more than the rows.
            matmul_by_expert {
                group: Matrices, note: "each row with the matrices that indices choose, quantised ones, too: mixtures of experts",
                tensors: (x, weights, indices), params: (), op: MatmulByExpert, results: (F32),
                into: matmul_by_expert_into, slices: (
                    x: &[f32], x_dims: &[usize], weights: &[f32], weights_dims: &[usize], indices: &[u32],
                    indices_dims: &[usize]
                ),
                operands: [Operand::f32(x, x_dims)?, Operand::f32(weights, weights_dims)?,
                          Operand::elements(indices, indices_dims)?],
                errors: "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when they do not fit one \
                         another, [`Error::Index`] for the first index without an expert.",
            }

            /// The transpose of a row-major `rows * columns` matrix.
            transpose {
                group: Matrices, tensors: (x), params: (), op: Transpose, results: (F32),
                into: transpose_into, slices: (x: &[f32], rows: usize, columns: usize),
                operands: [Operand::f32(x, &[rows, columns])?],
                quick: quick_transpose(x, rows, columns),
                errors: "[`Error::Length`] when the slice does not have these extents, [`Error::Overflow`] when they \
                         overflow.",
            }

            /// Permutes the dimensions of `x`: dimension `d` of the result is dimension `axes[d]` of `x`.
            permute {
                group: Shapes, tensors: (x), params: (axes: &[usize]), op: Permute::new(axes)?, results: (First),
                into: permute_into, slices: (x: &[f32], dims: &[usize], axes: &[usize]), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Parameter`] when `axes` is not a \
                         permutation, [`Error::Shape`] when it is one of another number of dimensions.",
            }

            /// Every `step`-th index of a range along dimension `axis`. A range that ends at `usize::MAX` ends where the
            /// dimension does.
            slice {
                group: Shapes, note: "with step", tensors: (x), params: (axis: usize, range: Range<usize>, step: usize = 1),
                op: Slice::along(axis, range, step)?, results: (First),
                into: slice_into, slices: (x: &[f32], dims: &[usize], axis: usize, range: Range<usize>, step: usize),
                operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Parameter`] for a step of zero, \
                         [`Error::View`] when there is no such dimension or the range is not inside of it.",
            }

            /// A part of `x`, cut along several dimensions.
            slice_with {
                group: Shapes, named: _, tensors: (x), params: (op: Slice), op: op, results: (First),
                into: slice_with_into, slices: (x: &[f32], dims: &[usize], op: Slice), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::View`] when there is no such dimension \
                         or a range is not inside of it.",
            }

            /// Concatenates tensors along dimension `axis`. On slices each is given by its elements and its extents.
            concat {
                group: Shapes, note: "`split` takes apart", tensors: [parts], params: (axis: usize), op: Concat { axis }, results: (First),
                into: concat_into, slices: (parts: &[(&[f32], &[usize])], axis: usize), operands: operands(parts)?,
                errors: "[`Error::Length`] when elements do not fill their extents, [`Error::Arity`] for no operands or more than \
                         [`Concat::MOST`], [`Error::View`] when there is no such dimension, [`Error::Shape`] when extents differ \
                         along another one.",
            }

            /// `x` repeated to fill a shape: from the last dimension on, extents are equal or that of `x` is 1, and missing
            /// leading dimensions count as 1.
            broadcast_to {
                group: Shapes, tensors: (x), params: (shape: &[usize]), op: BroadcastTo::new(shape)?, results: (First),
                into: broadcast_to_into, slices: (x: &[f32], dims: &[usize], shape: &[usize]), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when these do not broadcast to \
                         `shape`.",
            }

            /// `x` with a value added around it: `(before, after)` entries along each dimension, outermost first.
            pad {
                group: Shapes, tensors: (x), params: (widths: &[(usize, usize)], value: f32 = 0.0), op: Pad::new(widths, value)?,
                results: (First),
                into: pad_into, slices: (x: &[f32], dims: &[usize], widths: &[(usize, usize)], value: f32),
                operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::View`] or [`Error::Shape`] for more \
                         widths than there are dimensions, [`Error::Overflow`] when the result cannot be addressed.",
            }

            /// The elements of `x` in the same order under other extents. In a recorded graph it takes neither time nor
            /// memory.
            reshape {
                group: Shapes, note: "free in graphs", tensors: (x), params: (shape: &[usize]), op: Reshape::to(shape)?,
                results: (First),
                into: reshape_into, slices: (x: &[f32], dims: &[usize], shape: &[usize]), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when `shape` has another \
                         number of elements.",
            }

            /// `x` without dimension `axis`, whose extent is 1.
            squeeze {
                group: Shapes, note: "free in graphs", tensors: (x), params: (axis: usize), op: Reshape::Squeeze(axis),
                results: (First),
                into: squeeze_into, slices: (x: &[f32], dims: &[usize], axis: usize), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::View`] when there is no such \
                         dimension, [`Error::Shape`] when it has another extent.",
            }

            /// `x` with a new dimension of extent 1 at position `axis`.
            unsqueeze {
                group: Shapes, note: "free in graphs", tensors: (x), params: (axis: usize), op: Reshape::Unsqueeze(axis),
                results: (First),
                into: unsqueeze_into, slices: (x: &[f32], dims: &[usize], axis: usize), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::View`] when it cannot be put there.",
            }

            /// Two-dimensional convolution of an image of one channel at stride 1, as a cross-correlation.
            ///
            /// The image is `h * w`, the kernel `kh * kw`, both row-major. The result is
            /// `(h - kh + 1) * (w - kw + 1)` for [`Padding::Valid`], `h * w` for [`Padding::Same`].
            convolve2d {
                group: Images, named: _, tensors: (input, kernel), params: (padding: Padding),
                op: Convolve2d { padding, ..Convolve2d::default() }, results: (F32),
                into: convolve2d_into,
                slices: (input: &[f32], size: (usize, usize), kernel: &[f32], kernel_size: (usize, usize), padding: Padding),
                operands: [Operand::f32(input, &[size.0, size.1])?, Operand::f32(kernel, &[kernel_size.0, kernel_size.1])?],
                errors: "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when the kernel is \
                         empty or larger than an image without padding.",
            }

            /// Two-dimensional convolution of images `[c_in, h, w]` or `[n, c_in, h, w]` with kernels
            /// `[c_out, c_in / groups, kh, kw]`, or of one channel `[h, w]` with `[kh, kw]`, with any padding, stride, dilation and
            /// groups of channels. The result has `c_out` channels.
            convolve2d_with {
                group: Images,
                note: "valid, same or any padding of each side, stride, dilation, groups up to depthwise",
                named: convolve2d,
                tensors: (input, kernel), params: (op: Convolve2d), op: op, results: (F32),
                into: convolve2d_with_into,
                slices: (input: &[f32], input_dims: &[usize], kernel: &[f32], kernel_dims: &[usize], op: Convolve2d),
                operands: [Operand::f32(input, input_dims)?, Operand::f32(kernel, kernel_dims)?],
                errors: "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when the channels \
                         differ, the groups do not divide them, or the kernel is empty or larger than a padded image, \
                         [`Error::Parameter`] for a stride, a dilation or a number of groups of zero.",
            }

            /// One-dimensional convolution of signals `[c_in, w]` or `[n, c_in, w]` with kernels `[c_out, c_in /
            /// groups, kw]`, as a cross-correlation. The result has `c_out` channels. [`Padding::Sides`] pads with
            /// `left` zeros before and `right` zeros after a signal.
            convolve1d {
                group: Images, note: "the same", tensors: (input, kernel),
                params: (
                    padding: Padding as Ends = Padding::Valid, stride: usize = 1, dilation: usize = 1, groups: usize = 1
                ),
                op: Convolve2d { padding, stride: (1, stride), dilation: (1, dilation), groups }, results: (F32),
                into: convolve1d_into, slices: (
                    input: &[f32], input_dims: &[usize], kernel: &[f32], kernel_dims: &[usize], padding: Padding, stride: usize,
                    dilation: usize, groups: usize
                ),
                operands: [Operand::f32(input, input_dims)?, Operand::f32(kernel, kernel_dims)?],
                errors: "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when the channels \
                         differ, the groups do not divide them, or the kernel is empty or larger than a padded signal, \
                         [`Error::Parameter`] for a stride, a dilation or a number of groups of zero, and for rows around \
                         a signal.",
            }

            /// Two-dimensional transposed convolution of images `[c_in, h, w]` or `[n, c_in, h, w]` with kernels
            /// `[c_in, c_out / groups, kh, kw]`, or of one channel `[h, w]` with `[kh, kw]`: `conv_transpose2d` of PyTorch. The result
            /// has `c_out` channels.
            convolve_transpose2d {
                group: Images, note: "the same, and output padding", tensors: (input, kernel), params: (op: ConvolveTranspose2d),
                op: op, results: (F32),
                into: convolve_transpose2d_into,
                slices: (input: &[f32], input_dims: &[usize], kernel: &[f32], kernel_dims: &[usize], op: ConvolveTranspose2d),
                operands: [Operand::f32(input, input_dims)?, Operand::f32(kernel, kernel_dims)?],
                errors: "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when the channels differ, the \
                         groups do not divide them, image or kernel are empty, or the padding leaves no result, \
                         [`Error::Parameter`] for a stride, a dilation or a number of groups of zero, and for an output padding \
                         that neither stride nor dilation exceeds.",
            }

            /// One-dimensional transposed convolution of signals `[c_in, w]` or `[n, c_in, w]` with kernels
            /// `[c_in, c_out / groups, kw]`. The result has `c_out` channels. Of [`Padding::Sides`] `left` and `right` are cut off
            /// before and after a result.
            convolve_transpose1d {
                group: Images, note: "the same, and output padding", tensors: (input, kernel),
                params: (
                    padding: Padding as Ends = Padding::Valid, stride: usize = 1, dilation: usize = 1, groups: usize = 1,
                    output_padding: usize = 0
                ),
                op: ConvolveTranspose2d {
                    padding, stride: (1, stride), dilation: (1, dilation), groups, output_padding: (0, output_padding)
                },
                results: (F32),
                into: convolve_transpose1d_into, slices: (
                    input: &[f32], input_dims: &[usize], kernel: &[f32], kernel_dims: &[usize], padding: Padding, stride: usize,
                    dilation: usize, groups: usize, output_padding: usize
                ),
                operands: [Operand::f32(input, input_dims)?, Operand::f32(kernel, kernel_dims)?],
                errors: "The errors of [`Operations::convolve_transpose2d`], and [`Error::Parameter`] for rows that are cut off a \
                         signal.",
            }

            /// Images `[.., h, w]` with another number of rows and columns, of the nearest pixels or interpolated between four:
            /// `interpolate` of PyTorch, `Resize` of ONNX.
            resize2d {
                group: Images, note: "nearest and bilinear; half pixels, aligned corners, asymmetric", tensors: (x),
                params: (op: Resize2d), op: op, results: (F32),
                into: resize2d_into, slices: (x: &[f32], dims: &[usize], op: Resize2d), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when these are not those of an image or it has \
                         no pixel, [`Error::Parameter`] for a size of zero.",
            }

            /// The maximum of each window that is inside an image `[h, w]`, `[c, h, w]` or `[n, c, h, w]`.
            max_pool2d {
                group: Images, tensors: (x), params: (window: (usize, usize), stride: (usize, usize) = window),
                op: Pool2d::max(window, stride), results: (F32),
                into: max_pool2d_into, slices: (x: &[f32], dims: &[usize], window: (usize, usize), stride: (usize, usize)),
                operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when the image is smaller \
                         than the window, [`Error::Parameter`] for a window or a stride of zero.",
            }

            /// The mean of each window that is inside an image `[h, w]`, `[c, h, w]` or `[n, c, h, w]`.
            avg_pool2d {
                group: Images, tensors: (x), params: (window: (usize, usize), stride: (usize, usize) = window),
                op: Pool2d::average(window, stride), results: (F32),
                into: avg_pool2d_into, slices: (x: &[f32], dims: &[usize], window: (usize, usize), stride: (usize, usize)),
                operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when the image is smaller \
                         than the window, [`Error::Parameter`] for a window or a stride of zero.",
            }

            /// Scaled dot-product attention: queries `[heads, s, d]` or `[batch, heads, s, d]`, keys and values
            /// `[kv_heads, t, d]` or `[batch, kv_heads, t, d]`. The result has the extents of the queries.
            attention {
                group: Attention,
                note: "causal or full, grouped heads, sliding window, capped scores; masks, positions, lengths, sinks and \
                       ALiBi slopes as operands; keys and values of f32, f16, bf16 and quantised",
                tensors: (q, k, v), params: (op: Attention), op: op, results: (F32),
                into: attention_into, slices: (q: &[f32], q_dims: &[usize], k: &[f32], v: &[f32], kv_dims: &[usize], op: Attention),
                operands: [Operand::f32(q, q_dims)?, Operand::f32(k, kv_dims)?, Operand::f32(v, kv_dims)?],
                errors: "[`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when they do not \
                         fit one another, `heads` is not a multiple of `kv_heads`, or causal queries outnumber the \
                         keys.",
            }

            /// Rotary position embedding of `x`, rows of positions `[.., s, d]`.
            rope {
                group: Attention, note: "partial rotation, factors of angles as operands", tensors: (x), params: (op: Rope),
                op: op, results: (F32),
                into: rope_into, slices: (x: &[f32], dims: &[usize], op: Rope), operands: [Operand::f32(x, dims)?],
                errors: "[`Error::Length`] when `x` does not have these extents, [`Error::Shape`] when rows do not \
                         split into pairs, [`Error::Parameter`] for a position beyond [`Rope::POSITIONS`] or a \
                         senseless theta.",
            }

            /// Rotary position embedding of `x`, rows `[.., s, d]`, at these `s` positions. A recorded [`Rope`] takes
            /// factors of the angles as a third operand.
            rope_at {
                group: Attention, note: "with positions as an operand", tensors: (x, positions), params: (op: Rope), op: op,
                results: (F32),
                into: rope_at_into, slices: (x: &[f32], dims: &[usize], positions: &[u32], op: Rope),
                operands: [Operand::f32(x, dims)?, Operand::elements(positions, &[positions.len()])?],
                errors: "The errors of [`Operations::rope`]; [`Error::Shape`] when there are more or fewer positions than rows.",
            }

            /// Quantises `x` along its last dimension. Magnitudes beyond the range of the format saturate:
            /// [`QuantFormat::saturated_blocks`](crate::QuantFormat::saturated_blocks) counts the blocks that have some.
            quantize {
                group: Quantised, tensors: (x), params: (format: QuantFormat), op: Quantize { format }, results: (Bytes),
            }

            /// Decodes quantised blocks to f32.
            dequantize {
                group: Quantised, tensors: (blocks), params: (format: QuantFormat), op: Dequantize { format }, results: (F32),
                into: dequantize_into, slices: (blocks: &[u8], format: QuantFormat), operands: [flat(format, blocks)?],
                errors: "[`Error::Length`] when the bytes are not whole blocks.",
            }

            /// The product of an `m * k` matrix with the transpose of a quantised `n * k` matrix, both row-major.
            quant_matmul {
                group: Quantised, note: "with f32", tensors: (x, w), params: (format: QuantFormat), op: QuantMatmul { format },
                results: (F32),
                into: quant_matmul_into, slices: (x: &[f32], w: &[u8], m: usize, k: usize, n: usize, format: QuantFormat),
                operands: [Operand::f32(x, &[m, k])?, Operand::blocks(w, &[n, k], format)?],
                errors: "[`Error::Format`] when `k` is not whole blocks, [`Error::Length`] when the slices do not have \
                         these extents, [`Error::Overflow`] when the extents overflow.",
            }

            /// Casts the elements to another type, which is not a quantised one.
            cast {
                group: Types, tensors: (x), params: (to: DType), op: Cast { to }, results: (Any),
            }

            /// Applies a function to each pair of integers of one type; sums, differences and products wrap around.
            arithmetic {
                group: Types, note: "add, sub, mul, min, max of integers", tensors: (a, b), params: (function: IntegerFunction),
                op: Arithmetic { function }, results: (Any),
            }
        }
    };
}

mod futures;
pub mod signatures;
mod slices;
mod tensors;

pub use futures::AsyncOperations;
pub use slices::Operations;
pub use tensors::Record;
