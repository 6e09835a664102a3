use crate::DType;

/// The result of fallible functions of kiln.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of kiln. Every variant names the operation or the object concerned and what was expected of it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice does not hold as many elements as its shape needs.
    #[error("{op}: `{operand}` holds {found} elements where its shape needs {expected}")]
    Length {
        /// The operation.
        op: &'static str,
        /// The name of the operand.
        operand: &'static str,
        /// Elements that the shape needs.
        expected: usize,
        /// Elements that the slice holds.
        found: usize,
    },
    /// Operand shapes do not fit the operation or one another.
    #[error("{op}: {reason}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The mismatch, with the shapes.
        reason: String,
    },
    /// An operand has another element type than the operation takes.
    #[error("{op}: operand {index} is {found}, expected {expected}")]
    Type {
        /// The operation.
        op: &'static str,
        /// Position of the operand, from 0.
        index: usize,
        /// The element type that the operation expects there.
        expected: DType,
        /// The element type it was given.
        found: DType,
    },
    /// The operation takes another number of operands.
    #[error("{op}: {found} operands, {expected} expected")]
    Arity {
        /// The operation.
        op: &'static str,
        /// Number of operands that it expects.
        expected: usize,
        /// Number of operands given.
        found: usize,
    },
    /// A parameter has an invalid value.
    #[error("{op}: {reason}")]
    Parameter {
        /// The operation or setting.
        op: &'static str,
        /// The parameter, its value, and the valid values.
        reason: String,
    },
    /// The number of elements or bytes overflows what the machine can address.
    #[error("{what}: the extents {extents:?} need more elements than this machine can address")]
    Overflow {
        /// The object that has these extents.
        what: &'static str,
        /// The extents whose product overflows.
        extents: Vec<usize>,
    },
    /// The machine has too little memory for a result or for scratch.
    #[error("out of memory: {bytes} bytes could not be allocated")]
    OutOfMemory {
        /// Requested bytes.
        bytes: usize,
    },
    /// A view would exceed its data.
    #[error("{what}: {reason}")]
    View {
        /// The method.
        what: &'static str,
        /// The exceeded bound, with the numbers.
        reason: String,
    },
    /// An index is outside of the table that it selects from.
    #[error("{op}: index {index} at position {position} is outside of 0..{bound}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The position of the index.
        position: usize,
        /// The index.
        index: usize,
        /// One past the largest valid index.
        bound: usize,
    },
    /// A tensor id was made by another graph or batch.
    #[error("tensor {index} belongs to another graph or batch; an id is valid only in the one that returned it")]
    ForeignTensor {
        /// The index inside the graph that made it.
        index: usize,
    },
    /// The requested instruction set, backend or device is unavailable.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// The requested instruction set, backend, device or data.
        what: String,
        /// The reason, and what is available instead.
        reason: String,
    },
    /// A device was unplugged, reset or destroyed. The contents of its memory are lost.
    #[error("the device {device} is lost: {reason}")]
    DeviceLost {
        /// The device.
        device: String,
        /// The driver's message.
        reason: String,
    },
    /// A request exceeds a limit of a device.
    #[error("{what}: {asked} requested, the limit of {device} is {limit}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The device.
        device: String,
        /// The requested amount.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// A driver call failed unexpectedly: a defect of kiln or of the driver.
    #[error("{what} failed on {device}: {message}")]
    Driver {
        /// The call.
        what: String,
        /// The device.
        device: String,
        /// The message of the driver, or of the library that wraps it.
        message: String,
    },
    /// A backend has no kernel for an operation that other backends support.
    #[error("{op}: {backend} has no kernel for it")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The backend.
        backend: &'static str,
    },
    /// Quantised data does not consist of whole blocks, or a block is malformed.
    #[error("{format}: {reason}")]
    Format {
        /// The format.
        format: &'static str,
        /// The defect of the data.
        reason: String,
    },
}
