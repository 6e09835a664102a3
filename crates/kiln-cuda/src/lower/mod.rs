//! Operations turned into launches of kernels: one file a family, one `impl Lower` an operation.

pub(crate) mod attention;
pub(crate) mod cast;
mod compare;
mod conv;
mod cumsum;
pub(crate) mod custom;
pub(crate) mod elementwise;
mod experts;
mod gather;
mod matmul;
mod norm;
mod pooling;
pub(crate) mod quant;
mod reduce;
mod resize;
mod rope;
mod rows;
mod scatter;
pub(crate) mod shape;
mod softmax;
mod sort;
mod topk;
mod transpose;
mod write_rows;

use kiln_device::Location;
pub(crate) use kiln_device::{Lower, Value};
use kiln_ir::{DType, Error, Result, TensorType};
use kiln_ptx::{Launch, PtxType};

use crate::CudaDevice;
use crate::plan::{Code, Dispatch};

/// The plan that one step adds its launches to.
pub(crate) type Lowering<'a> = kiln_device::Lowering<'a, CudaDevice>;

/// Adds launches to a plan.
pub(crate) trait Launches {
    /// Runs a kernel on buffers, to which the launch refers by position.
    fn run(&mut self, kernel: impl Into<Code>, launch: Launch, buffers: &[Location]);
}

impl Launches for Lowering<'_> {
    fn run(&mut self, kernel: impl Into<Code>, launch: Launch, buffers: &[Location]) {
        self.push(Dispatch { code: kernel.into(), launch, buffers: buffers.to_vec() });
    }
}

/// The 16-bit floating-point types, which tensor cores multiply.
const HALVES: &[DType] = &[DType::F16, DType::Bf16];

/// The common 16-bit type of all operands, if there is one.
pub(crate) fn halves(operands: &[TensorType]) -> Option<PtxType> {
    let (first, rest) = operands.split_first()?;
    let ty = match first.dtype {
        DType::F16 => PtxType::F16,
        DType::Bf16 => PtxType::Bf16,
        _ => return None,
    };
    rest.iter().all(|operand| operand.dtype == first.dtype).then_some(ty)
}

/// Returns `None` if a kernel does not support extents or parameters, so that another may.
fn accepted<T>(said: Result<T>) -> Result<Option<T>> {
    match said {
        Ok(taken) => Ok(Some(taken)),
        Err(Error::Parameter { .. } | Error::Shape { .. } | Error::Limit { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
