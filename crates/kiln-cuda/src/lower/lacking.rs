//! Operations that have no kernel in PTX yet: they run elsewhere.

use kiln_core::op::{Attention, Convolve2d, Dequantize, Operation, Pool2d, QuantMatmul, Quantize, Rope, TopK};
use kiln_core::{Error, Result};

use super::{Lower, Lowering, Value};

macro_rules! lacking {
    ($($operation:ident),*) => {
        $(impl Lower for $operation {
            fn lower(&self, _: &mut Lowering<'_>, _: &[Value], _: &[Value]) -> Result<()> {
                Err(Error::Unsupported { op: self.name(), backend: "CUDA" })
            }
        })*
    };
}
lacking!(Attention, Convolve2d, Dequantize, Pool2d, QuantMatmul, Quantize, Rope, TopK);
