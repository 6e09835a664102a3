use std::ops::Range;

use super::slices::{attending, flat, operands, rows};
use crate::op::{
    Attention, AttentionOperands, BatchNorm, BroadcastTo, Concat, Convolve2d, ConvolveTranspose2d, Cumsum, Dequantize,
    Dot, Elementwise, Gather, GroupNorm, IndexAdd, LayerNorm, LogSoftmax, Matmul, MatmulByExpert, Matvec, Op, Pad,
    Padding, Permute, Pool2d, QuantMatmul, Quantize, Reduce, Reduction, Reshape, Resize2d, RmsNorm, Rope, Scatter,
    Slice, Softmax, Sort, TopK, Transpose, types_of,
};
use crate::{DataMut, Element, Operand, QuantFormat, Result, elementwise_table, reduction_table, zeros};
#[cfg(doc)]
use crate::{Error, Operations};

macro_rules! elementwise_as_futures {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        bound: $bound:ident $(($units:literal))?, formula: $formula:literal, $($ignored:tt)*
    })*) => {
        $(
            $(#[doc = $doc])*
            #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\nThe errors of [`Operations::", stringify!($name), "`].")]
            async fn $name(&self, $($x: &[f32],)* $($p: f32),*) -> Result<Vec<f32>> {
                let mut out = zeros([$($x.len()),*][0])?;
                let op = Elementwise::$name($($p),*).into();
                self.run_into_async(&op, &[$(Operand::vector($x)),*], &mut [DataMut::F32(&mut out)]).await?;
                Ok(out)
            }
        )*
    };
}

macro_rules! reductions_as_futures {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, whole: $whole:ident, axis: $axis:ident, axis_into: $axis_into:ident, result: $result:ident,
        $($ignored:tt)*
    })*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Errors
            #[doc = concat!("The errors of [`Operations::", stringify!($whole), "`].")]
            async fn $whole(&self, x: &[f32]) -> Result<$result> {
                let mut out = [$result::default()];
                let op = Reduce::all(Reduction::$variant).into();
                self.run_into_async(&op, &[Operand::vector(x)], &mut [Element::data_mut(&mut out)]).await?;
                Ok(out[0])
            }

            $(#[doc = $doc])*
            ///
            /// Along dimension `axis` of a row-major tensor with extents `dims`; the dimension vanishes.
            ///
            /// # Errors
            #[doc = concat!("The errors of [`Operations::", stringify!($axis), "`].")]
            async fn $axis(&self, x: &[f32], dims: &[usize], axis: usize) -> Result<Vec<$result>> {
                collect(self, &Reduce::along(Reduction::$variant, axis).into(), &[Operand::f32(x, dims)?]).await
            }
        )*
    };
}

macro_rules! operations_as_futures {
    ($($(#[doc = $doc:literal])* $name:ident $row:tt)*) => {
        $(operation_as_futures! { [$(#[doc = $doc])*] $name $row })*
    };
}

/// The methods of a row, if it has a form on slices.
macro_rules! operation_as_futures {
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
        async fn $name(&self, $($arg: $ty),*) -> Result<Vec<f32>> {
            collect(self, &Op::from($op), &$operands).await
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
        async fn $name(&self, $($arg: $ty),*) -> Result<(Vec<$f>, Vec<$s>)> {
            collect_pair(self, &Op::from($op), &$operands).await
        }
    };
}

/// Runs an operation of one result into a new `Vec`.
async fn collect<T: Element>(on: &(impl AsyncOperations + ?Sized), op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<T>> {
    let mut out = zeros(op.infer(&types_of(inputs))?[0].shape.numel())?;
    on.run_into_async(op, inputs, &mut [T::data_mut(&mut out)]).await?;
    Ok(out)
}

/// Runs an operation of two results into new `Vec`s.
async fn collect_pair<T: Element, U: Element>(
    on: &(impl AsyncOperations + ?Sized),
    op: &Op,
    inputs: &[Operand<'_>],
) -> Result<(Vec<T>, Vec<U>)> {
    let types = op.infer(&types_of(inputs))?;
    let (mut first, mut second) = (zeros(types[0].shape.numel())?, zeros(types[1].shape.numel())?);
    on.run_into_async(op, inputs, &mut [T::data_mut(&mut first), U::data_mut(&mut second)]).await?;
    Ok((first, second))
}

/// The methods of [`Operations`] that return what they compute, as futures: for callers that must not block, such as web pages.
///
/// A backend implements [`AsyncOperations::run_into_async`]; the methods come from the same tables as those of
/// [`Operations`], with the same names, arguments and errors.
// Futures of a page stay on its thread, so none of them has to be `Send`.
#[allow(async_fn_in_trait)]
pub trait AsyncOperations {
    /// Runs any operation into slices of the caller.
    ///
    /// # Errors
    /// The errors of [`Operations::run_into`].
    async fn run_into_async(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()>;

    elementwise_table!(elementwise_as_futures);

    reduction_table!(reductions_as_futures);

    /// The inner product. On the CPU, terms are summed in the fixed tree of the reductions.
    ///
    /// # Errors
    /// The errors of [`Operations::dot`].
    async fn dot(&self, a: &[f32], b: &[f32]) -> Result<f32> {
        let mut out = [0.0];
        let inputs = [Operand::vector(a), Operand::vector(b)];
        self.run_into_async(&Dot.into(), &inputs, &mut [DataMut::F32(&mut out)]).await?;
        Ok(out[0])
    }

    /// The product of a row-major `m * k` and a row-major `k * n` matrix.
    ///
    /// # Errors
    /// The errors of [`Operations::matmul`].
    async fn matmul(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Result<Vec<f32>> {
        let inputs = [Operand::f32(a, &[m, k])?, Operand::f32(b, &[k, n])?];
        collect(self, &Matmul::default().into(), &inputs).await
    }

    /// The product of a row-major `rows * columns` matrix and a vector.
    ///
    /// # Errors
    /// The errors of [`Operations::matvec`].
    async fn matvec(&self, a: &[f32], x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>> {
        self.matvec_with(a, x, rows, columns, Matvec::default()).await
    }

    operations!(operations_as_futures);

    /// Attention with the optional operands.
    ///
    /// # Errors
    /// The errors of [`Operations::attention_with`].
    async fn attention_with(
        &self,
        q: Operand<'_>,
        k: Operand<'_>,
        v: Operand<'_>,
        more: AttentionOperands<Operand<'_>>,
        op: Attention,
    ) -> Result<Vec<f32>> {
        let (op, inputs) = attending([q, k, v], more, op);
        collect(self, &op, &inputs).await
    }

    /// Splits `x` along dimension `axis` into consecutive parts of these lengths, which must fill the dimension.
    ///
    /// # Errors
    /// The errors of [`Operations::split`].
    async fn split(&self, x: &[f32], dims: &[usize], axis: usize, lengths: &[usize]) -> Result<Vec<Vec<f32>>> {
        let mut parts = Vec::with_capacity(lengths.len());
        for part in Slice::parts(axis, lengths)? {
            parts.push(self.slice_with(x, dims, part).await?);
        }
        Ok(parts)
    }

    /// Quantises rows of `columns` elements.
    ///
    /// # Errors
    /// The errors of [`Operations::quantize`].
    async fn quantize(&self, x: &[f32], columns: usize, format: QuantFormat) -> Result<Vec<u8>> {
        let mut out = zeros(format.bytes(x.len())?)?;
        let outputs = &mut [DataMut::Blocks(format, &mut out)];
        self.run_into_async(&Quantize { format }.into(), &[rows("quantize", x, columns)?], outputs).await?;
        Ok(out)
    }

    /// The product of a quantised, row-major `n * k` matrix with a vector of `k`.
    ///
    /// # Errors
    /// The errors of [`Operations::quant_matvec`].
    async fn quant_matvec(&self, w: &[u8], x: &[f32], n: usize, k: usize, format: QuantFormat) -> Result<Vec<f32>> {
        self.quant_matmul(x, w, 1, k, n, format).await
    }
}
