//! Resizing of images.

use kiln_ir::op::{Resize2d, ResizeMode, Sampling};
use kiln_ir::{Error, Result};
use kiln_shaders::RESIZE;

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

/// Coordinates at most, as numerators: kernels count them in 32 bits, where those before the image wrap around.
const FARTHEST: u64 = i32::MAX as u64;
/// Denominators at most: f32 holds every whole number up to this one.
const WHOLE: u64 = 1 << 24;

/// The words that describe which pixels results read.
///
/// # Errors
/// [`Error::Limit`] where the products of extents exceed 32 bits.
fn words(of: &Sampling) -> Result<[Word; 3]> {
    let refused = |what, asked: u64, limit| Error::Limit { what, device: "this GPU".into(), asked, limit };
    let farthest = u64::try_from(of.largest()).unwrap_or(u64::MAX);
    if farthest > FARTHEST {
        return Err(refused("pixels of an image times pixels of its result", farthest, FARTHEST));
    }
    if of.over as u64 > WHOLE {
        return Err(refused("rows or columns of a resized image", of.over as u64, WHOLE));
    }
    Ok([of.step.into(), Word::from((of.start as i32).cast_unsigned()), of.over.into()])
}

impl Lower<GpuDevice> for Resize2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape)?;
        let extents = [e.down.pixels, e.across.pixels, e.down.results, e.across.results];
        let [h, w, out_h, out_w] = extents;
        let sampled = [words(&e.down)?, words(&e.across)?].concat();
        let code = Code::Kernel(RESIZE, vec![("BILINEAR", u32::from(self.mode == ResizeMode::Bilinear))]);
        let bytes = [4 * h * w, 4 * out_h * out_w];
        for piece in pieces(&plan.target.limits, e.planes, &bytes) {
            let n = piece.len * out_h * out_w;
            let params = [&extents.map(Word::from)[..], &sampled, &[n.into()]].concat();
            let buffers = vec![piece.of(inputs[0], bytes[0]), piece.of(outputs[0], bytes[1])];
            plan.dispatch(code.clone(), buffers, &params, Grid::invocations(n));
        }
        Ok(())
    }
}
