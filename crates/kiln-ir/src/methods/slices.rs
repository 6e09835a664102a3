use std::ops::Range;

#[cfg(doc)]
use crate::Error;
use crate::op::{
    Attention, AttentionOperands, BatchNorm, BroadcastTo, Call, Cast, Concat, Convolve2d, ConvolveTranspose2d, Cumsum,
    Dequantize, Dot, Elementwise, Gather, GroupNorm, IndexAdd, LayerNorm, LogSoftmax, Matmul, MatmulByExpert, Matvec,
    Op, Pad, Padding, Permute, Pool2d, QuantMatmul, Quantize, Reduce, Reduction, Reshape, Resize2d, RmsNorm, Rope,
    Scatter, Slice, Softmax, Sort, TopK, Transpose, rows_of,
};
use crate::{
    Buffer, Data, DataMut, Element, Operand, QuantFormat, Result, Shape, elementwise_table, reduction_table, zeros,
};

/// Rows of `columns` elements.
pub(super) fn rows<'a>(op: &'static str, x: &'a [f32], columns: usize) -> Result<Operand<'a>> {
    Operand::new(Data::F32(x), rows_of(op, x, columns)?)
}

/// Both matrices of a product with the extents `(m, k, n)`.
fn factors<'a>(op: Matmul, a: &'a [f32], b: &'a [f32], (m, k, n): (usize, usize, usize)) -> Result<[Operand<'a>; 2]> {
    let a = Operand::f32(a, &if op.transpose_a { [k, m] } else { [m, k] })?;
    let b = Operand::f32(b, &if op.transpose_b { [n, k] } else { [k, n] })?;
    Ok([a, b])
}

/// Blocks as a vector of decoded elements.
pub(super) fn flat(format: QuantFormat, blocks: &[u8]) -> Result<Operand<'_>> {
    let n = blocks.len() / format.block_bytes() * format.block_len();
    Operand::new(Data::Blocks(format, blocks), Shape::new(&[n])?)
}

/// Tensors of f32, each given by its elements and its extents.
pub(super) fn operands<'a>(parts: &[(&'a [f32], &[usize])]) -> Result<Vec<Operand<'a>>> {
    parts.iter().map(|(data, dims)| Operand::f32(data, dims)).collect()
}

/// Attention with these operands in addition to queries, keys and values.
pub(super) fn attending<'a>(
    qkv: [Operand<'a>; 3],
    more: AttentionOperands<Operand<'a>>,
    op: Attention,
) -> (Op, Vec<Operand<'a>>) {
    (op.with(&more).into(), qkv.into_iter().chain(more.into_vec()).collect())
}

macro_rules! elementwise_on_slices {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        bound: $bound:ident $(($units:literal))?, formula: $formula:literal, $($ignored:tt)*
    })*) => {
        $(
            $(#[doc = $doc])*
            #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\n[`Error::Shape`] when the lengths differ.")]
            #[inline]
            fn $name(&self, $($x: &[f32],)* $($p: f32),*) -> Result<Vec<f32>> {
                let mut out = zeros([$($x.len()),*][0])?;
                self.elementwise_into(Elementwise::$name($($p),*), &[$($x),*], &mut out)?;
                Ok(out)
            }

            $(#[doc = $doc])*
            #[doc = concat!("\n\n`", $formula, "`, into `out`.\n\n# Errors\n[`Error::Shape`] or [`Error::Length`] when ")]
            #[doc = "the lengths differ."]
            #[inline]
            fn $into(&self, $($x: &[f32],)* $($p: f32,)* out: &mut [f32]) -> Result<()> {
                self.elementwise_into(Elementwise::$name($($p),*), &[$($x),*], out)
            }
        )*
    };
}

macro_rules! reductions_on_slices {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, whole: $whole:ident, axis: $axis:ident, axis_into: $axis_into:ident, result: $result:ident,
        $($ignored:tt)*
    })*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Errors
            /// [`Error::Shape`] if the result is an index and there are no elements.
            #[inline]
            fn $whole(&self, x: &[f32]) -> Result<$result> {
                <$result>::reduce(self, Reduction::$variant, x)
            }

            $(#[doc = $doc])*
            ///
            /// Along dimension `axis` of a row-major tensor with extents `dims`; the dimension vanishes.
            ///
            /// # Errors
            /// [`Error::Length`] when `x` does not fill `dims`, [`Error::Shape`] when there is no such dimension, or if
            /// the result is an index and there are no elements.
            fn $axis(&self, x: &[f32], dims: &[usize], axis: usize) -> Result<Vec<$result>> {
                let op = Reduce::along(Reduction::$variant, axis);
                collect(self, &op.into(), &[Operand::f32(x, dims)?])
            }

            $(#[doc = $doc])*
            ///
            /// Along dimension `axis` of a row-major tensor with extents `dims`, into `out`.
            ///
            /// # Errors
            #[doc = concat!("The errors of [`Operations::", stringify!($axis), "`]; [`Error::Length`] when `out` has another length.")]
            fn $axis_into(&self, x: &[f32], dims: &[usize], axis: usize, out: &mut [$result]) -> Result<()> {
                let op = Reduce::along(Reduction::$variant, axis);
                self.run_into(&op.into(), &[Operand::f32(x, dims)?], &mut [Element::data_mut(out)])
            }
        )*
    };
}

macro_rules! operations_on_slices {
    ($($(#[doc = $doc:literal])* $name:ident $row:tt)*) => {
        $(operation_on_slices! { [$(#[doc = $doc])*] $name $row })*
    };
}

/// The methods of a row, if it has a form on slices.
macro_rules! operation_on_slices {
    ([$($doc:tt)*] $name:ident {
        group: $group:ident, $(note: $note:literal,)? $(named: $named:tt,)? tensors: $tensors:tt, params: $params:tt,
        op: $op:expr, results: $results:tt,
    }) => {};
    ([$($doc:tt)*] $name:ident {
        group: $group:ident, $(note: $note:literal,)? $(named: $named:tt,)? tensors: $tensors:tt, params: $params:tt,
        op: $op:expr, results: $results:tt, into: $into:ident, slices: ($($arg:ident: $ty:ty),*),
        operands: $operands:expr, $(quick: $quick:ident($($given:ident),*),)? errors: $errors:literal,
    }) => {
        $($doc)*
        ///
        /// # Errors
        #[doc = $errors]
        fn $name(&self, $($arg: $ty),*) -> Result<Vec<f32>> {
            self.run_f32(&Op::from($op), &$operands)
        }

        #[doc = concat!("Writes the result of [`Operations::", stringify!($name), "`] into `out`.")]
        ///
        /// # Errors
        #[doc = concat!("The errors of [`Operations::", stringify!($name), "`]; [`Error::Length`] when `out` has another ")]
        #[doc = "length than the result."]
        fn $into(&self, $($arg: $ty,)* out: &mut [f32]) -> Result<()> {
            $(if self.$quick($($given,)* out) {
                return Ok(());
            })?
            self.run_into(&Op::from($op), &$operands, &mut [DataMut::F32(out)])
        }
    };
    ([$($doc:tt)*] $name:ident {
        group: $group:ident, $(note: $note:literal,)? $(named: $named:tt,)? tensors: $tensors:tt, params: $params:tt,
        op: $op:expr, results: $results:tt, into: $into:ident, slices: ($($arg:ident: $ty:ty),*),
        operands: $operands:expr, outputs: ($first:ident: $f:ty, $second:ident: $s:ty), errors: $errors:literal,
    }) => {
        $($doc)*
        ///
        /// # Errors
        #[doc = $errors]
        fn $name(&self, $($arg: $ty),*) -> Result<(Vec<$f>, Vec<$s>)> {
            collect_pair(self, &Op::from($op), &$operands)
        }

        #[doc = concat!("Writes the results of [`Operations::", stringify!($name), "`] into `", stringify!($first), "` and `", stringify!($second), "`.")]
        ///
        /// # Errors
        #[doc = concat!("The errors of [`Operations::", stringify!($name), "`]; [`Error::Length`] when an output has another ")]
        #[doc = "length than its result."]
        fn $into(&self, $($arg: $ty,)* $first: &mut [$f], $second: &mut [$s]) -> Result<()> {
            self.run_into(&Op::from($op), &$operands, &mut [Element::data_mut($first), Element::data_mut($second)])
        }
    };
}

/// An element type of the results of reductions.
pub(super) trait Reduced: Element {
    /// Reduces a whole slice to an element of this type.
    fn reduce(on: &(impl Operations + ?Sized), reduction: Reduction, x: &[f32]) -> Result<Self>;
}

impl Reduced for f32 {
    #[inline]
    fn reduce(on: &(impl Operations + ?Sized), reduction: Reduction, x: &[f32]) -> Result<Self> {
        on.reduce_all(reduction, x)
    }
}

impl Reduced for u32 {
    #[inline]
    fn reduce(on: &(impl Operations + ?Sized), reduction: Reduction, x: &[f32]) -> Result<Self> {
        on.reduce_all_index(reduction, x)
    }
}

/// Runs an operation of one result into a new `Vec`.
fn collect<T: Element>(on: &(impl Operations + ?Sized), op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<T>> {
    Call::with(op, inputs, |call| {
        let mut out = zeros(call.outputs()[0].shape.numel())?;
        on.run_call(call, &mut [T::data_mut(&mut out)])?;
        Ok(out)
    })
}

/// Runs an operation of two results into new `Vec`s.
fn collect_pair<T: Element, U: Element>(
    on: &(impl Operations + ?Sized),
    op: &Op,
    inputs: &[Operand<'_>],
) -> Result<(Vec<T>, Vec<U>)> {
    Call::with(op, inputs, |call| {
        let [first, second] = [0, 1].map(|at| call.outputs()[at].shape.numel());
        let (mut first, mut second) = (zeros(first)?, zeros(second)?);
        on.run_call(call, &mut [T::data_mut(&mut first), U::data_mut(&mut second)])?;
        Ok((first, second))
    })
}

/// The operations as methods on slices, which are tensors in row-major order.
///
/// A backend implements [`Operations::run_into`]; the methods come from the tables of the operations. Every operation has
/// a form that writes into slices of the caller (`_into`) and one that returns a `Vec`. All of them check their
/// arguments and report what does not fit; a result that memory has no room for is [`Error::OutOfMemory`].
///
/// The methods named `quick_` are fast paths for backends whose kernels take less time than building operands and checking
/// shapes. Each returns whether it handled the call.
pub trait Operations {
    /// Runs any operation into slices of the caller.
    ///
    /// # Errors
    /// The errors of the shape rule; [`Error::Length`] and [`Error::Type`] for outputs that do not match; errors of the
    /// data themselves, such as an index outside of its table.
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()>;

    /// Runs any operation and returns its results.
    ///
    /// # Errors
    /// The errors of [`Operations::run_into`].
    fn run(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<Buffer>> {
        Call::with(op, inputs, |call| {
            let mut buffers = call.outputs().iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
            let mut outputs: Vec<DataMut<'_>> = buffers.iter_mut().map(Buffer::as_mut).collect();
            self.run_call(call, &mut outputs)?;
            Ok(buffers)
        })
    }

    /// Runs an operation whose one result is f32, and returns it.
    ///
    /// # Errors
    /// The errors of [`Operations::run_into`].
    fn run_f32(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<f32>> {
        collect(self, op, inputs)
    }

    /// Runs any element-wise function on slices of one length.
    ///
    /// # Errors
    /// [`Error::Arity`] when it takes another number of operands, [`Error::Shape`] or [`Error::Length`] when the lengths
    /// differ.
    #[inline]
    fn elementwise_into(&self, op: Elementwise, operands: &[&[f32]], out: &mut [f32]) -> Result<()> {
        if self.quick_elementwise(op, operands, out) {
            return Ok(());
        }
        // One more than any function takes: a longer list is refused by the arity check.
        let mut inputs = [Operand::vector(&[]); 4];
        inputs.iter_mut().zip(operands).for_each(|(input, x)| *input = Operand::vector(x));
        self.run_into(&op.into(), &inputs[..operands.len().min(inputs.len())], &mut [DataMut::F32(out)])
    }

    elementwise_table!(elementwise_on_slices);

    /// Reduces a whole slice to a value.
    ///
    /// # Errors
    /// [`Error::Type`] for reductions that give an index.
    #[inline]
    fn reduce_all(&self, reduction: Reduction, x: &[f32]) -> Result<f32> {
        if let Some(value) = self.quick_reduce(reduction, x) {
            return Ok(value);
        }
        let mut out = [0.0];
        self.run_into(&Reduce::all(reduction).into(), &[Operand::vector(x)], &mut [DataMut::F32(&mut out)])?;
        Ok(out[0])
    }

    /// Reduces a whole slice to the index of one of its elements.
    ///
    /// # Errors
    /// [`Error::Type`] for reductions that give a value, [`Error::Shape`] when there are no elements.
    #[inline]
    fn reduce_all_index(&self, reduction: Reduction, x: &[f32]) -> Result<u32> {
        if let Some(index) = self.quick_reduce_index(reduction, x) {
            return Ok(index);
        }
        let mut out = [0];
        self.run_into(&Reduce::all(reduction).into(), &[Operand::vector(x)], &mut [DataMut::U32(&mut out)])?;
        Ok(out[0])
    }

    reduction_table!(reductions_on_slices);

    /// The inner product, summed in the fixed tree of the reductions: the same bits everywhere, for any number of
    /// threads.
    ///
    /// # Errors
    /// [`Error::Shape`] when the lengths differ.
    #[inline]
    fn dot(&self, a: &[f32], b: &[f32]) -> Result<f32> {
        if let Some(value) = self.quick_dot(a, b) {
            return Ok(value);
        }
        let mut out = [0.0];
        self.run_into(&Dot.into(), &[Operand::vector(a), Operand::vector(b)], &mut [DataMut::F32(&mut out)])?;
        Ok(out[0])
    }

    /// The product of a row-major `m * k` and a row-major `k * n` matrix.
    ///
    /// # Errors
    /// [`Error::Length`] when the slices do not have these extents, [`Error::Overflow`] when the extents overflow.
    fn matmul(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Result<Vec<f32>> {
        self.matmul_with(a, b, m, k, n, Matmul::default())
    }

    /// The product of a row-major `m * k` and a row-major `k * n` matrix, into `out`, row-major `m * n`.
    ///
    /// # Errors
    /// The errors of [`Operations::matmul`].
    #[inline]
    fn matmul_into(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize, out: &mut [f32]) -> Result<()> {
        self.matmul_with_into(a, b, m, k, n, Matmul::default(), out)
    }

    /// The product of two matrices, either of them possibly stored transposed: `op(A)` is `m * k`, `op(B)` is `k * n`. Stacks of
    /// matrices go through [`Operations::run`].
    ///
    /// # Errors
    /// The errors of [`Operations::matmul`].
    fn matmul_with(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize, op: Matmul) -> Result<Vec<f32>> {
        let mut out = zeros(Shape::new(&[m, n])?.numel())?;
        self.matmul_with_into(a, b, m, k, n, op, &mut out)?;
        Ok(out)
    }

    /// Writes the result of [`Operations::matmul_with`] into `out`.
    ///
    /// # Errors
    /// The errors of [`Operations::matmul`].
    #[inline]
    fn matmul_with_into(
        &self,
        a: &[f32],
        b: &[f32],
        m: usize,
        k: usize,
        n: usize,
        op: Matmul,
        out: &mut [f32],
    ) -> Result<()> {
        if self.quick_matmul(op, a, b, (m, k, n), out) {
            return Ok(());
        }
        self.run_into(&op.into(), &factors(op, a, b, (m, k, n))?, &mut [DataMut::F32(out)])
    }

    /// The product of a row-major `rows * columns` matrix and a vector.
    ///
    /// # Errors
    /// [`Error::Length`] when the slices do not have these extents, [`Error::Overflow`] when the extents overflow.
    fn matvec(&self, a: &[f32], x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>> {
        self.matvec_with(a, x, rows, columns, Matvec::default())
    }

    /// The product of a row-major `rows * columns` matrix and a vector, into `out`.
    ///
    /// # Errors
    /// The errors of [`Operations::matvec`].
    fn matvec_into(&self, a: &[f32], x: &[f32], rows: usize, columns: usize, out: &mut [f32]) -> Result<()> {
        self.matvec_with_into(a, x, rows, columns, Matvec::default(), out)
    }

    /// Attention with optional operands, as the operation requires: masks, positions and lengths of sequences, sinks,
    /// slopes. Keys and values may have any floating-point type or be quantised.
    ///
    /// # Errors
    /// The errors of the shape rule of [`Attention`]; [`Error::Index`] for a length that exceeds the number of keys.
    fn attention_with(
        &self,
        q: Operand<'_>,
        k: Operand<'_>,
        v: Operand<'_>,
        more: AttentionOperands<Operand<'_>>,
        op: Attention,
    ) -> Result<Vec<f32>> {
        let (op, inputs) = attending([q, k, v], more, op);
        self.run_f32(&op, &inputs)
    }

    /// Writes the result of [`Operations::attention_with`] into `out`.
    ///
    /// # Errors
    /// The errors of [`Operations::attention_with`]; [`Error::Length`] when `out` has another length than the result.
    fn attention_with_into(
        &self,
        q: Operand<'_>,
        k: Operand<'_>,
        v: Operand<'_>,
        more: AttentionOperands<Operand<'_>>,
        op: Attention,
        out: &mut [f32],
    ) -> Result<()> {
        let (op, inputs) = attending([q, k, v], more, op);
        self.run_into(&op, &inputs, &mut [DataMut::F32(out)])
    }

    operations!(operations_on_slices);

    /// Splits `x` along dimension `axis` into consecutive parts of these lengths, which must fill the dimension.
    ///
    /// # Errors
    /// [`Error::Length`] when `x` does not fill `dims`, [`Error::View`] when there is no such dimension or the parts do not
    /// fill it, [`Error::Parameter`] when no lengths are given.
    fn split(&self, x: &[f32], dims: &[usize], axis: usize, lengths: &[usize]) -> Result<Vec<Vec<f32>>> {
        let parts = Slice::parts(axis, lengths)?.into_iter();
        parts.map(|part| self.slice_with(x, dims, part)).collect()
    }

    /// Casts elements to another type with [`Cast`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the result cannot be allocated.
    fn cast<T: Element, U: Element>(&self, x: &[T]) -> Result<Vec<U>> {
        let mut out = zeros(x.len())?;
        self.cast_into(x, &mut out)?;
        Ok(out)
    }

    /// Writes the result of [`Operations::cast`] into `out`.
    ///
    /// # Errors
    /// [`Error::Length`] when `out` has another length.
    fn cast_into<T: Element, U: Element>(&self, x: &[T], out: &mut [U]) -> Result<()> {
        let x = Operand::new(T::data(x), Shape::of_slice(x))?;
        self.run_into(&Cast { to: U::DTYPE }.into(), &[x], &mut [U::data_mut(out)])
    }

    /// Quantises rows of `columns` elements. Magnitudes beyond the range of the format saturate:
    /// [`QuantFormat::saturated_blocks`] counts the blocks that have some.
    ///
    /// # Errors
    /// [`Error::Format`] when a row is not whole blocks, [`Error::Shape`] when `x` is not whole rows.
    fn quantize(&self, x: &[f32], columns: usize, format: QuantFormat) -> Result<Vec<u8>> {
        let mut out = zeros(format.bytes(x.len())?)?;
        self.quantize_into(x, columns, format, &mut out)?;
        Ok(out)
    }

    /// Writes the result of [`Operations::quantize`] into `out`.
    ///
    /// # Errors
    /// The errors of [`Operations::quantize`]; [`Error::Length`] when `out` has another length than the blocks.
    fn quantize_into(&self, x: &[f32], columns: usize, format: QuantFormat, out: &mut [u8]) -> Result<()> {
        let outputs = &mut [DataMut::Blocks(format, out)];
        self.run_into(&Quantize { format }.into(), &[rows("quantize", x, columns)?], outputs)
    }

    /// The product of a quantised, row-major `n * k` matrix with a vector of `k`.
    ///
    /// # Errors
    /// The errors of [`Operations::quant_matmul`].
    fn quant_matvec(&self, w: &[u8], x: &[f32], n: usize, k: usize, format: QuantFormat) -> Result<Vec<f32>> {
        self.quant_matmul(x, w, 1, k, n, format)
    }

    /// Writes the result of [`Operations::quant_matvec`] into `out`.
    ///
    /// # Errors
    /// The errors of [`Operations::quant_matvec`]; [`Error::Length`] when `out` is not of `n`.
    fn quant_matvec_into(
        &self,
        w: &[u8],
        x: &[f32],
        n: usize,
        k: usize,
        format: QuantFormat,
        out: &mut [f32],
    ) -> Result<()> {
        self.quant_matmul_into(x, w, 1, k, n, format, out)
    }

    /// [`Operations::run_into`] for a call whose shapes are inferred. The methods that allocate their results use it, so that
    /// implementations need not infer the shapes again.
    #[doc(hidden)]
    fn run_call(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.run_into(call.op(), call.inputs(), outputs)
    }

    /// Runs an element-wise function on the fast path, if the number of operands is right and all are as long as `out`.
    /// Returns whether it did.
    #[doc(hidden)]
    #[inline]
    fn quick_elementwise(&self, _op: Elementwise, _operands: &[&[f32]], _out: &mut [f32]) -> bool {
        false
    }

    /// Reduces a slice to a value on the fast path, if the reduction gives a value.
    #[doc(hidden)]
    #[inline]
    fn quick_reduce(&self, _reduction: Reduction, _x: &[f32]) -> Option<f32> {
        None
    }

    /// Reduces a slice to an index on the fast path, if the reduction gives an index and there are elements.
    #[doc(hidden)]
    #[inline]
    fn quick_reduce_index(&self, _reduction: Reduction, _x: &[f32]) -> Option<u32> {
        None
    }

    /// Computes the inner product on the fast path, if the lengths agree.
    #[doc(hidden)]
    #[inline]
    fn quick_dot(&self, _a: &[f32], _b: &[f32]) -> Option<f32> {
        None
    }

    /// Transposes a matrix on the fast path, if the slices have the lengths for its extents. Returns whether it did.
    #[doc(hidden)]
    #[inline]
    fn quick_transpose(&self, _x: &[f32], _rows: usize, _columns: usize, _out: &mut [f32]) -> bool {
        false
    }

    /// Multiplies matrices with the extents `(m, k, n)` on the fast path, if the slices have the lengths for them.
    /// Returns whether it did.
    #[doc(hidden)]
    #[inline]
    fn quick_matmul(
        &self,
        _op: Matmul,
        _a: &[f32],
        _b: &[f32],
        _extents: (usize, usize, usize),
        _out: &mut [f32],
    ) -> bool {
        false
    }
}
