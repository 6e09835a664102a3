use crate::{DType, Shape};

/// The result of everything in kiln that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Every variant names the operation or the thing concerned and what was expected of it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice does not hold as many elements as its shape needs.
    #[error("{op}: `{operand}` holds {found} elements where its shape needs {expected}")]
    Length {
        /// The operation that was asked for.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// Elements that the shape needs.
        expected: usize,
        /// Elements that the slice holds.
        found: usize,
    },
    /// Operand shapes do not fit the operation or one another.
    #[error("{op}: {reason}")]
    Shape {
        /// The operation that was asked for.
        op: &'static str,
        /// What does not fit, with the shapes.
        reason: String,
    },
    /// An operand has another element type than the operation takes.
    #[error("{op}: operand {index} is {found}, expected {expected}")]
    Type {
        /// The operation that was asked for.
        op: &'static str,
        /// Position of the operand, from 0.
        index: usize,
        /// The element type that the operation takes there.
        expected: DType,
        /// The element type it was given.
        found: DType,
    },
    /// The operation takes another number of operands.
    #[error("{op}: {found} operands given, {expected} taken")]
    Arity {
        /// The operation that was asked for.
        op: &'static str,
        /// Operands that it takes.
        expected: usize,
        /// Operands that were given.
        found: usize,
    },
    /// A parameter has a value that makes no sense.
    #[error("{op}: {reason}")]
    Parameter {
        /// The operation or the setting.
        op: &'static str,
        /// Which parameter, its value and what is allowed.
        reason: String,
    },
    /// The number of elements or bytes overflows what the machine can address.
    #[error("{what}: the extents {extents:?} need more elements than this machine can address")]
    Overflow {
        /// What was being sized.
        what: &'static str,
        /// The extents whose product overflows.
        extents: Vec<usize>,
    },
    /// The machine has no memory left for a result or for scratch.
    #[error("no memory for {bytes} bytes")]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// A view would leave its data.
    #[error("{what}: {reason}")]
    View {
        /// The method.
        what: &'static str,
        /// Which bound is left, with the numbers.
        reason: String,
    },
    /// An index points outside of the table that it selects from.
    #[error("{op}: index {index} at position {position} is outside of 0..{bound}")]
    Index {
        /// The operation that was asked for.
        op: &'static str,
        /// The position of the index.
        position: usize,
        /// The index.
        index: usize,
        /// One past the largest index allowed.
        bound: usize,
    },
    /// A tensor id was made by another graph or batch.
    #[error("tensor {index} belongs to another graph or batch; an id is valid only in the one that returned it")]
    ForeignTensor {
        /// The index inside of the graph that made it.
        index: usize,
    },
    /// The instruction set, backend or device asked for is not there.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why it is not there and what would be.
        reason: String,
    },
    /// A device took part in nothing since: it was unplugged, reset or destroyed. What lay in its memory is lost.
    #[error("the device {device} is lost: {reason}")]
    DeviceLost {
        /// The device.
        device: String,
        /// What its driver says.
        reason: String,
    },
    /// More is asked for than a device can do at once.
    #[error("{what}: {asked} asked for, the limit of {device} is {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The device.
        device: String,
        /// What was asked for.
        asked: u64,
        /// What there is.
        limit: u64,
    },
    /// A driver refused what kiln asked of it: a defect of one of the two.
    #[error("{what} failed on {device}: {message}")]
    Driver {
        /// What was asked.
        what: String,
        /// The device.
        device: String,
        /// What the driver, or the library before it, says.
        message: String,
    },
    /// A backend has no kernel for an operation. Others have.
    #[error("{op}: {backend} has no kernel for it")]
    Unsupported {
        /// The operation that was asked for.
        op: &'static str,
        /// The backend.
        backend: &'static str,
    },
    /// Quantised data is not whole blocks, or a block is malformed.
    #[error("{format}: {reason}")]
    Format {
        /// The format.
        format: &'static str,
        /// What is wrong with the data.
        reason: String,
    },
}

impl Error {
    /// A [`Error::Shape`] that names two shapes which do not agree, and what would.
    pub fn mismatch(op: &'static str, what: &str, a: &Shape, b: &Shape, allowed: &str) -> Self {
        Self::Shape { op, reason: format!("{what}: {a} and {b} do not agree: {allowed}") }
    }
}
