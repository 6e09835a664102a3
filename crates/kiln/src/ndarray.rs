//! Arrays of the ndarray crate: views in, arrays out.

use std::borrow::Cow;

use kiln_ir::op::{Elementwise, Matmul, Reduce, Reduction};
use kiln_ir::{Error, Operand, Operations, Result, Shape, elementwise_table, reserve};
use ndarray::{Array2, ArrayD, ArrayView, ArrayView2, ArrayViewD, Dimension, IxDyn};

use crate::{Engine, Tensor};

/// The operations of an [`Engine`] on ndarray views; see [`Engine::arrays`].
///
/// Views in standard layout are used without a copy. A product also reads a transposed matrix without a copy. Every other
/// layout is first copied into standard order.
#[derive(Debug, Clone, Copy)]
pub struct Arrays<'a>(&'a Engine);

impl Engine {
    /// The operations on ndarray views: `engine.arrays().matmul(a.view(), b.view())`.
    pub fn arrays(&self) -> Arrays<'_> {
        Arrays(self)
    }
}

impl Tensor {
    /// Copies an ndarray view into a tensor, in standard order.
    ///
    /// # Errors
    /// [`Error::Shape`] for more dimensions than tensors have, [`Error::OutOfMemory`].
    pub fn from_array<D: Dimension>(view: &ArrayView<'_, f32, D>) -> Result<Self> {
        Self::from_vec(copied(view)?, view.shape())
    }

    /// Returns the f32 elements as an array.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    #[cfg(not(browser_gpu))]
    pub fn to_array(&self) -> Result<ArrayD<f32>> {
        array(self.shape().dims(), self.to_vec()?)
    }
}

/// The elements in standard order: borrowed if they are in that order, else copied.
fn standard<'a>(view: &ArrayViewD<'a, f32>) -> Result<Cow<'a, [f32]>> {
    Ok(match view.to_slice() {
        Some(slice) => Cow::Borrowed(slice),
        None => Cow::Owned(copied(view)?),
    })
}

/// A copy in standard order. A view that repeats its elements can be larger than the memory.
fn copied<D: Dimension>(view: &ArrayView<'_, f32, D>) -> Result<Vec<f32>> {
    let mut copy = Vec::new();
    reserve(&mut copy, view.len())?;
    copy.extend(view.iter());
    Ok(copy)
}

fn array(dims: &[usize], values: Vec<f32>) -> Result<ArrayD<f32>> {
    ArrayD::from_shape_vec(IxDyn(dims), values).map_err(|e| Error::Shape { op: "ndarray", reason: e.to_string() })
}

macro_rules! methods {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        bound: $bound:ident $(($units:literal))?, formula: $formula:literal, $($ignored:tt)*
    })*) => {
        /// Element-wise operations. Operands have equal shapes, or some have the last dimensions of another.
        impl Arrays<'_> {
            $(
                $(#[doc = $doc])*
                #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\n[`Error::Shape`] when the shapes do not agree.")]
                pub fn $name(&self, $($x: ArrayViewD<'_, f32>,)* $($p: f32),*) -> Result<ArrayD<f32>> {
                    self.elementwise(Elementwise::$name($($p),*), &[$($x),*])
                }
            )*
        }
    };
}
elementwise_table!(methods);

impl Arrays<'_> {
    fn elementwise(&self, op: Elementwise, views: &[ArrayViewD<'_, f32>]) -> Result<ArrayD<f32>> {
        let data: Vec<Cow<'_, [f32]>> = views.iter().map(standard).collect::<Result<_>>()?;
        let operands = data.iter().zip(views).map(|(data, view)| Operand::f32(data, view.shape()));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let values = self.0.run_f32(&op.into(), &operands)?;
        let largest = operands.iter().map(Operand::shape).max_by_key(|s| (s.rank(), s.numel()));
        array(largest.unwrap_or(Shape::SCALAR).dims(), values)
    }

    /// Returns the matrix product.
    ///
    /// # Errors
    /// [`Error::Shape`] when the extents do not agree.
    pub fn matmul(&self, a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>) -> Result<Array2<f32>> {
        let (transpose_a, transpose_b) = (lies_transposed(&a), lies_transposed(&b));
        let (m, n) = (a.nrows(), b.ncols());
        let stored = |view: ArrayView2<'_, f32>, transposed: bool| {
            let view = if transposed { view.reversed_axes() } else { view };
            let dims = [view.nrows(), view.ncols()];
            // The view is consumed here, so a borrow from it cannot be returned: copies only views that are not in
            // order.
            Ok::<_, Error>((dims, if view.to_slice().is_none() { Some(copied(&view)?) } else { None }))
        };
        let (a_dims, a_copy) = stored(a.view(), transpose_a)?;
        let (b_dims, b_copy) = stored(b.view(), transpose_b)?;
        let a_data = a_copy.as_deref().or(a.as_slice_memory_order()).unwrap_or(&[]);
        let b_data = b_copy.as_deref().or(b.as_slice_memory_order()).unwrap_or(&[]);
        let operands = [Operand::f32(a_data, &a_dims)?, Operand::f32(b_data, &b_dims)?];
        let values = self.0.run_f32(&Matmul { transpose_a, transpose_b }.into(), &operands)?;
        Array2::from_shape_vec((m, n), values).map_err(|e| Error::Shape { op: "ndarray", reason: e.to_string() })
    }

    /// Returns the sum of all elements, added in standard order.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when a view that repeats its elements cannot be copied into order.
    pub fn sum(&self, x: ArrayViewD<'_, f32>) -> Result<f32> {
        self.0.sum(&standard(&x)?)
    }

    /// Returns a reduction of values along an axis, which is removed from the shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the view does not have the axis, [`Error::Type`] for the reductions that give indices.
    pub fn reduce(&self, x: ArrayViewD<'_, f32>, reduction: Reduction, axis: usize) -> Result<ArrayD<f32>> {
        if reduction.gives_index() {
            let (expected, found) = (kiln_ir::DType::F32, kiln_ir::DType::U32);
            return Err(Error::Type { op: reduction.name(), index: 0, expected, found });
        }
        let data = standard(&x)?;
        let operand = Operand::f32(&data, x.shape())?;
        let dims = operand.shape().without(axis)?;
        array(dims.dims(), self.0.run_f32(&Reduce::along(reduction, axis).into(), &[operand])?)
    }
}

/// Whether the columns of a matrix are contiguous and its rows are not.
fn lies_transposed(view: &ArrayView2<'_, f32>) -> bool {
    !view.is_standard_layout() && view.t().is_standard_layout()
}
