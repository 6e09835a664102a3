//! Where the numerics of tensor cores differ from the contract of kiln-core.
//!
//! They cut off where others round, so that errors are of one sign and grow with k. Of f16 they add sixteen products to a sum
//! at a time, and of TF32 eight: 2 u of the sum each time, and 16 u for what is cut off from the products themselves.

use kiln_core::op::{Bound, Op};
use kiln_core::{DType, Result, TensorType};

use crate::plan::Hardware;
use crate::{CudaDevice, InputPrecision};

/// The error bound of an operation on a device: that of the contract, or, for products on tensor cores, what those keep.
///
/// # Errors
/// As [`Op::bound`].
pub fn bound_on(device: &CudaDevice, op: &Op, inputs: &[TensorType]) -> Result<Bound> {
    bound(device.inner.hardware, op, inputs)
}

fn bound(hardware: Hardware, op: &Op, inputs: &[TensorType]) -> Result<Bound> {
    let plain = op.bound(inputs)?;
    let (Op::Matmul(matmul), Bound::Magnitude(least), true) = (op, plain, hardware.has_warp_groups()) else {
        return Ok(plain);
    };
    let k = matmul.extents(&inputs[0].shape, &inputs[1].shape)?.k as f64;
    let halves = inputs.iter().all(|input| input.dtype == DType::F16);
    let units = match hardware.input_precision {
        _ if halves => k / 8.0 + 16.0,
        InputPrecision::Ieee => return Ok(plain),
        // 2 u for either part, 4 u for the product that is left out, 32 u and 16 u for a chain of 128 products, and a
        // rounding for each of those.
        InputPrecision::Tf32x3 => 56.0 + k / 128.0,
        // 2⁻¹⁰ of each factor.
        InputPrecision::Tf32 => 32_768.0 + k / 4.0 + 16.0,
    };
    Ok(Bound::Magnitude(units.max(least)))
}

#[cfg(test)]
mod tests {
    use kiln_core::Shape;
    use kiln_core::op::Matmul;
    use kiln_ptx::Target;

    use super::*;

    #[test]
    fn products_on_tensor_cores_have_bounds_of_their_own() {
        let of = |target, input_precision, dtype| {
            let ty = TensorType::of(dtype, Shape::new(&[4096, 4096]).unwrap()).unwrap();
            let hardware = Hardware { target, multiprocessors: 132, input_precision };
            match bound(hardware, &Matmul::default().into(), &[ty; 2]).unwrap() {
                Bound::Magnitude(units) => units,
                other => panic!("{other}"),
            }
        };
        let contract = of(Target::Sm80, InputPrecision::Tf32, DType::F32);
        assert_eq!(of(Target::Sm90a, InputPrecision::Ieee, DType::F32), contract);
        assert_eq!(of(Target::Sm90a, InputPrecision::Ieee, DType::F16), 528.0);
        assert_eq!(of(Target::Sm90a, InputPrecision::Tf32x3, DType::F32), 88.0);
        assert_eq!(of(Target::Sm90a, InputPrecision::Tf32, DType::F32), 33_808.0);
    }
}
