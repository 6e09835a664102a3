//! Operations that move elements.

use kiln_ir::op::{BroadcastTo, Concat, Operation, Pad, Permute, Reshape, Slice};
use kiln_ir::{Error, Result};

use super::{Lower, Lowering, Value};

macro_rules! movements {
    ($($operation:ident),*) => {
        $(impl Lower for $operation {
            const HALVES: bool = true;

            fn lower(&self, _: &mut Lowering<'_>, _: &[Value], _: &[Value]) -> Result<()> {
                Err(Error::Unsupported { op: self.name(), backend: "wgpu" })
            }
        })*
    };
}
movements!(BroadcastTo, Concat, Pad, Permute, Reshape, Slice);
