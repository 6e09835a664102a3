//! The differences between the numerics of GPUs and the contract of kiln-ir.
//!
//! WGSL promises correct rounding of sums, differences and products, and 2.5 units in the last place of quotients. It
//! allows implementations to take subnormal numbers for zeros anywhere. What is built from these has wider bounds.

use kiln_ir::op::{Bound, Op};
use kiln_ir::{DType, Result, TensorType};
pub use kiln_shaders::numerics::{BILINEAR, CHAIN, DIFFERENCES, average_bound, bound};

use crate::GpuDevice;

/// The increase of the bound of a product of `k` terms with quantised weights if both operands are rounded to f16, in units of u:
/// 2⁻¹¹ of each factor, because WGSL leaves the direction of rounding open, and the truncation of units for cooperative matrices.
fn rounded_units(k: usize) -> f64 {
    16_384.0 + k as f64 / 8.0
}

/// The error bound of an operation on a device: that of a GPU, or, for products of f16 through cooperative matrices, that of
/// their units.
///
/// Such a unit adds sixteen products to a sum at a time and cuts off what exceeds 24 bits, so that errors are of one sign: 2 u
/// of the sum each time, k / 8 u in all, and 16 u for what is cut off from the products themselves.
///
/// # Errors
/// The errors of [`Op::bound`].
pub fn bound_on(device: &GpuDevice, op: &Op, inputs: &[TensorType]) -> Result<Bound> {
    let plain = bound(op, inputs)?;
    if let (Op::QuantMatmul(_), Bound::Magnitude(units), true) = (op, plain, device.inner.target.rounds()) {
        return Ok(Bound::Magnitude(units + rounded_units(inputs[1].shape.columns())));
    }
    let halves = inputs.iter().all(|input| input.dtype == DType::F16);
    let (Op::Matmul(matmul), true, true) = (op, device.has_cooperative_matrices(), halves) else { return Ok(plain) };
    let k = matmul.extents(&inputs[0].shape, &inputs[1].shape)?.k;
    Ok(match plain {
        Bound::Magnitude(units) => Bound::Magnitude(units.max((k / 8 + 16) as f64)),
        other => other,
    })
}
