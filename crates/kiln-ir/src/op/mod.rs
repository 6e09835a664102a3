//! The operations: each defined once, with everything except its kernels.
//!
//! A family is a file. An operation is a small `Copy` struct of its parameters that implements [`Operation`], and one
//! row in the list below; element-wise operations are rows of [`elementwise_table!`](crate::elementwise_table) instead.
//! A program adds operations of its own through [`Custom`].

mod arithmetic;
mod attention;
mod call;
mod cast;
mod channels;
mod compare;
mod contract;
mod conv;
mod conv_transpose;
mod cumsum;
mod custom;
mod elementwise;
mod experts;
mod gather;
mod matmul;
mod norm;
mod pooling;
mod quant;
mod reduce;
#[cfg(feature = "reference")]
pub mod reference;
mod resize;
mod rope;
mod rows;
mod scatter;
mod shape;
mod softmax;
mod sort;
mod topk;
mod transpose;
mod write_rows;

pub use arithmetic::{Arithmetic, IntegerFunction};
pub use attention::{Attention, AttentionExtents, AttentionOperands, Sight};
pub use call::{Call, OwnedCall, Types};
#[doc(hidden)] // for the crates that execute operations
pub use call::{check, check_outputs, types_of, widened};
pub use cast::Cast;
#[doc(hidden)]
pub use channels::channels_of;
pub use channels::{BatchNorm, GroupNorm};
pub use compare::{Compare, Comparison, Select};
pub use contract::{Bound, Contract};
pub(crate) use conv::Ends;
pub use conv::{Convolve2d, ConvolveExtents, Padding};
pub use conv_transpose::{ConvolveTranspose2d, ConvolveTransposeExtents, Reaching};
pub use cumsum::Cumsum;
pub use custom::{CpuKernel, Custom, CustomCall, CustomOperation};
pub use elementwise::{Elementwise, ElementwiseKind};
#[cfg(feature = "reference")]
#[doc(hidden)] // rows of the table name them
pub use elementwise::{erf, fused, gated_magnitude, gelu, gelu_tanh, hard_swish, maximum, minimum, mish, swish};
pub use experts::{ExpertExtents, ExpertTiles, MatmulByExpert};
pub use gather::Gather;
#[doc(hidden)]
pub use matmul::product_bound_of;
pub use matmul::{Matmul, MatmulExtents, MatmulPairs, Matvec};
pub use norm::{LayerNorm, RmsNorm};
pub use pooling::{Pool2d, PoolExtents, Pooling};
pub use quant::{Dequantize, QuantMatmul, Quantize};
pub use reduce::{Dot, Reduce, Reduction};
pub use resize::{Resize2d, ResizeCoordinates, ResizeExtents, ResizeMode, Sampling};
pub use rope::{Rope, RopeOperands, RopeStyle};
#[doc(hidden)]
pub use rows::rows_of;
pub use scatter::{IndexAdd, Scatter};
pub use shape::{AllReduce, BroadcastTo, Concat, Dim, Movement, Pad, Permute, Reshape, Slice, StridedCopy};
pub use softmax::{LogSoftmax, Softmax};
pub use sort::Sort;
pub use topk::TopK;
pub use transpose::Transpose;
pub use write_rows::{WriteExtents, WriteRows};

#[cfg(feature = "reference")]
use crate::Operand;
use crate::named::{Form, Named, Parameter};
use crate::{DType, Error, Result, TensorType};

/// A real parameter of an operation. Compared and hashed by its bits, so that nodes with `0.0` and `-0.0` differ.
#[derive(Clone, Copy)]
pub struct Param(f32);

impl Param {
    /// The value.
    pub const fn get(self) -> f32 {
        self.0
    }
}

impl From<f32> for Param {
    fn from(value: f32) -> Self {
        Self(value)
    }
}

impl Parameter for Param {
    type Value = Self;
    const FORM: Form = Form::Number;

    fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<Self>> {
        Ok(f32::read(from, op, name)?.map(Self::from))
    }
}

impl PartialEq for Param {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Param {}

impl std::hash::Hash for Param {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl std::fmt::Debug for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The work an operation asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations; a transcendental function counts as its table says.
    pub flops: u64,
    /// Bytes of the inputs that are read at least once.
    pub bytes_read: u64,
    /// Bytes of the results.
    pub bytes_written: u64,
}

impl Cost {
    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }
}

impl std::ops::Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            flops: self.flops.saturating_add(other.flops),
            bytes_read: self.bytes_read.saturating_add(other.bytes_read),
            bytes_written: self.bytes_written.saturating_add(other.bytes_written),
        }
    }
}

/// The types of the results: one, or two for an operation such as top-k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outputs {
    types: [TensorType; 2],
    len: u8,
}

impl Outputs {
    /// Two results.
    pub fn pair(first: TensorType, second: TensorType) -> Self {
        Self { types: [first, second], len: 2 }
    }
}

impl From<TensorType> for Outputs {
    fn from(ty: TensorType) -> Self {
        Self { types: [ty; 2], len: 1 }
    }
}

impl std::ops::Deref for Outputs {
    type Target = [TensorType];
    fn deref(&self) -> &[TensorType] {
        &self.types[..self.len as usize]
    }
}

/// Everything about an operation that is not its kernel.
pub trait Operation: Copy + Eq + std::hash::Hash + std::fmt::Debug {
    /// Whether it takes elements of every type as they are stored. Other operations receive f16 and bf16 operands as
    /// f32.
    const AS_STORED: bool = false;

    /// Whether the first result is the first operand with some elements replaced. The kernel then receives the other
    /// operands and writes only the replaced elements, into memory that holds the first operand. Such operations write
    /// to the states of a graph.
    const UPDATES: bool = false;

    /// The conventional name in snake case: `layer_norm`.
    fn name(&self) -> &'static str;

    /// The formula of its result.
    fn formula(&self) -> &'static str;

    /// The shape rule: the types of the results, or why the inputs do not match. It also checks parameters.
    ///
    /// # Errors
    /// [`Error::Arity`], [`Error::Type`], [`Error::Shape`], [`Error::Parameter`], [`Error::Overflow`].
    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs>;

    /// Whether the result has the elements of the only operand in their order, for inputs that [`Operation::infer`]
    /// accepts. In a recorded graph the result is then another name of the operand, and nothing runs.
    fn renames(&self, _inputs: &[TensorType]) -> bool {
        false
    }

    /// Floating-point operations for inputs that [`Operation::infer`] accepts.
    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64;

    /// Bytes read for inputs that [`Operation::infer`] accepts. By default every input is read whole.
    fn bytes_read(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        total_bytes(inputs.iter().map(|t| t.bytes() as u64))
    }

    /// Bytes written for inputs that [`Operation::infer`] accepts. By default every result is written whole.
    fn bytes_written(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        total_bytes(outputs.iter().map(|t| t.bytes() as u64))
    }

    /// The error bound relative to the reference, and the results of special values.
    fn contract(&self) -> Contract;

    /// The error bound for these inputs, if it depends on their extents; otherwise that of the contract.
    fn bound(&self, _inputs: &[TensorType]) -> Bound {
        self.contract().bound
    }

    /// The worst-case bound on the CPU from counting roundings, whatever the data. Equals the bound unless that assumes
    /// independent roundings.
    fn worst(&self, inputs: &[TensorType]) -> Bound {
        self.bound(inputs)
    }

    /// The definition: the results of exact arithmetic, one entry for each result, for inputs that `infer` accepts.
    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[Operand<'_>]) -> Vec<reference::Expected>;

    /// The test cases of every backend: shapes and values.
    #[cfg(feature = "reference")]
    fn cases() -> Vec<reference::Case>;

    /// Cases whose roundings all have the same direction, such as equal terms, for operations whose bound assumes
    /// independent roundings: they are checked against [`Operation::worst`].
    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<reference::Case> {
        Vec::new()
    }
}

/// Checks the number of operands and their element types. Every floating-point type is accepted in place of f32.
///
/// # Errors
/// [`Error::Arity`], [`Error::Type`].
pub(crate) fn expect_types(op: &'static str, inputs: &[TensorType], dtypes: &[DType]) -> Result<()> {
    if inputs.len() != dtypes.len() {
        return Err(Error::Arity { op, expected: dtypes.len(), found: inputs.len() });
    }
    for (index, (input, &expected)) in inputs.iter().zip(dtypes).enumerate() {
        let stands_for = if input.dtype.is_float() { DType::F32 } else { input.dtype };
        if stands_for != expected {
            return Err(Error::Type { op, index, expected, found: input.dtype });
        }
    }
    Ok(())
}

/// `a * b * c ...` as flops, saturating: a cost that large is never executed.
pub(crate) fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1u64, |n, &f| n.saturating_mul(f as u64))
}

/// The sum of bytes, saturating: tensors that are only described may be larger together than any memory.
pub fn total_bytes(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

macro_rules! operations {
    ($d:tt $($(#[$doc:meta])* $name:ident,)*) => {
        /// Any operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Op {
            $($(#[$doc])* $name($name),)*
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })*

        /// Runs `$body` with `$op` bound to the concrete operation inside an [`Op`](crate::op::Op).
        ///
        /// Backends dispatch with this macro, which requires their kernel trait for every operation.
        #[macro_export]
        macro_rules! for_operation {
            ($d value:expr, $d op:ident => $d body:expr) => {
                match $d value {
                    $($crate::op::Op::$name($d op) => $d body,)*
                }
            };
        }

        /// The cases of every operation.
        #[cfg(feature = "reference")]
        pub fn all_cases() -> Vec<reference::Case> {
            let cases: Vec<reference::Case> = [$($name::cases(),)*].into_iter().flatten().collect();
            let stored = reference::stored_narrow(&cases);
            [cases, stored].concat()
        }

        /// The cases of every operation that are held to [`Op::worst`].
        #[cfg(feature = "reference")]
        pub fn all_worst_cases() -> Vec<reference::Case> {
            [$($name::worst_cases(),)*].into_iter().flatten().collect()
        }
    };
}

operations! { $
    /// An element-wise operation.
    Elementwise,
    /// A reduction over all elements or along an axis.
    Reduce,
    /// The inner product.
    Dot,
    /// The matrix product.
    Matmul,
    /// The product of a matrix and a vector.
    Matvec,
    /// The transpose of matrices.
    Transpose,
    /// The exponential function of every row, divided by its sum.
    Softmax,
    /// The logarithm of softmax.
    LogSoftmax,
    /// Rows shifted to mean 0 and scaled to variance 1.
    LayerNorm,
    /// Rows scaled to a mean square of 1.
    RmsNorm,
    /// Groups of channels shifted to mean 0 and scaled to variance 1.
    GroupNorm,
    /// Channels shifted and scaled by means and variances that are given.
    BatchNorm,
    /// Rows of a table selected by index.
    Gather,
    /// Rows of a tensor replaced by others.
    WriteRows,
    /// The greatest elements of every row.
    TopK,
    /// Two-dimensional convolution.
    Convolve2d,
    /// Two-dimensional transposed convolution.
    ConvolveTranspose2d,
    /// Pooling of the windows of an image.
    Pool2d,
    /// An image with another number of rows and columns.
    Resize2d,
    /// Scaled dot-product attention.
    Attention,
    /// Rotary position embedding.
    Rope,
    /// Writes f32 as quantised blocks.
    Quantize,
    /// Reads quantised blocks as f32.
    Dequantize,
    /// The product of f32 with quantised weights.
    QuantMatmul,
    /// Products of rows with the matrices of their selected experts.
    MatmulByExpert,
    /// A cast to another element type.
    Cast,
    /// A comparison of each pair of elements.
    Compare,
    /// Elements of one tensor where a condition holds, and of another elsewhere.
    Select,
    /// A function of each pair of integers.
    Arithmetic,
    /// Prefix sums along a dimension.
    Cumsum,
    /// The elements along a dimension in order, with their indices.
    Sort,
    /// A table with some rows replaced.
    Scatter,
    /// A table with rows added to some of its own.
    IndexAdd,
    /// A permutation of the dimensions.
    Permute,
    /// A part of a tensor.
    Slice,
    /// A tensor repeated to fill a shape.
    BroadcastTo,
    /// A tensor with a value around it.
    Pad,
    /// A concatenation along a dimension.
    Concat,
    /// The same elements under other extents.
    Reshape,
    /// A sum over the devices of a group.
    AllReduce,
    /// An operation that the program defines.
    Custom,
}

impl Op {
    /// The conventional name, in snake case.
    pub fn name(&self) -> &'static str {
        for_operation!(self, op => op.name())
    }

    /// The formula of its result.
    pub fn formula(&self) -> &'static str {
        for_operation!(self, op => op.formula())
    }

    /// The types of the results, or why the inputs do not fit.
    ///
    /// # Errors
    /// The errors of [`Operation::infer`].
    pub fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        for_operation!(self, op => op.infer(inputs))
    }

    /// [`Operation::AS_STORED`] of this operation.
    pub fn reads_as_stored(&self) -> bool {
        fn of<O: Operation>(_: &O) -> bool {
            O::AS_STORED
        }
        for_operation!(self, op => of(op))
    }

    /// Calls [`Operation::renames`] of this operation.
    pub fn renames(&self, inputs: &[TensorType]) -> bool {
        for_operation!(self, op => op.renames(inputs))
    }

    /// [`Operation::UPDATES`] of this operation.
    pub fn updates(&self) -> bool {
        fn of<O: Operation>(_: &O) -> bool {
            O::UPDATES
        }
        for_operation!(self, op => of(op))
    }

    /// The work on these inputs.
    ///
    /// # Errors
    /// The errors of [`Operation::infer`].
    pub fn cost(&self, inputs: &[TensorType]) -> Result<Cost> {
        Ok(self.cost_between(inputs, &self.infer(inputs)?))
    }

    /// The work on inputs that the shape rule has accepted.
    fn cost_between(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        for_operation!(self, op => Cost {
            flops: op.flops(inputs, outputs),
            bytes_read: op.bytes_read(inputs, outputs),
            bytes_written: op.bytes_written(inputs, outputs),
        })
    }

    /// The error bound relative to the reference, and the results of special values.
    pub fn contract(&self) -> Contract {
        for_operation!(self, op => op.contract())
    }

    /// The error bound on these inputs.
    ///
    /// # Errors
    /// The errors of [`Operation::infer`].
    pub fn bound(&self, inputs: &[TensorType]) -> Result<Bound> {
        self.infer(inputs)?;
        Ok(for_operation!(self, op => op.bound(inputs)))
    }

    /// [`Operation::worst`] of this operation.
    ///
    /// # Errors
    /// The errors of [`Operation::infer`].
    pub fn worst(&self, inputs: &[TensorType]) -> Result<Bound> {
        self.infer(inputs)?;
        Ok(for_operation!(self, op => op.worst(inputs)))
    }

    /// The results of exact arithmetic, one entry for each result.
    ///
    /// # Errors
    /// The errors of [`Operation::infer`].
    #[cfg(feature = "reference")]
    pub fn reference(&self, inputs: &[Operand<'_>]) -> Result<Vec<reference::Expected>> {
        let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
        self.infer(&types)?;
        let reference = |inputs: &[Operand<'_>]| Ok(for_operation!(self, op => op.reference(inputs)));
        if self.reads_as_stored() { reference(inputs) } else { widened(inputs, crate::widen, reference) }
    }
}
