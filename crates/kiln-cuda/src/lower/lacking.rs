//! Operations that have no kernel in PTX: they run elsewhere.

use kiln_core::op::{Operation, Quantize};
use kiln_core::{Error, Result};

use super::{Lower, Lowering, Value};

impl Lower for Quantize {
    fn lower(&self, _: &mut Lowering<'_>, _: &[Value], _: &[Value]) -> Result<()> {
        Err(Error::Unsupported { op: self.name(), backend: "CUDA" })
    }
}
