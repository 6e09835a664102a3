//! The differences between the numerics of tensor cores and the contract of kiln-ir.
//!
//! They cut off where others round, so that errors are of one sign and grow with k. Of f16 and bf16 they add sixteen products to a sum
//! at a time, and of TF32 eight: 2 u of the sum each time, and 16 u for what is cut off from the products themselves. Weights of
//! attention are rounded to the type of the values before they are multiplied. The weights of keys that a query does not see are
//! zeros there: a value of such a key that is not finite makes NaN of it where other queries of its tile see the key, or where it is in
//! the last tile of keys that any of them sees.

use kiln_ir::op::{Attention, Bound, Matmul, Op};
use kiln_ir::{DType, Precision, Result, TensorType};
use kiln_ptx::kernels::pooling::Pool;

use crate::CudaDevice;
use crate::lower::attention::on_tensor_cores;
use crate::lower::halves;
use crate::plan::Hardware;

/// The error bound of an operation on a device: that of the contract, or, for products and attention on tensor cores, what those
/// keep, and of means of windows what chains of rows and columns do. Of attention it leaves out what weights below 2⁻²⁹ of the greatest add: they are within 2⁻⁴⁰ of it.
///
/// # Errors
/// The errors of [`Op::bound`].
pub fn bound_on(device: &CudaDevice, op: &Op, inputs: &[TensorType]) -> Result<Bound> {
    bound(device.inner.hardware, op, inputs)
}

fn bound(hardware: Hardware, op: &Op, inputs: &[TensorType]) -> Result<Bound> {
    let plain = op.bound(inputs)?;
    let units = match op {
        Op::Matmul(op) if hardware.has_tensor_cores() => of_product(hardware, op, inputs)?,
        Op::QuantMatmul(_) if hardware.has_warp_groups() && hardware.rounds() => {
            Some(rounded_to_bf16(inputs[1].shape.columns() as f64))
        }
        Op::Attention(op) => of_attention(hardware, op, inputs)?,
        Op::Pool2d(op) => return Ok(Pool::bound(op)),
        _ => None,
    };
    Ok(match (units, plain) {
        (Some(units), Bound::Magnitude(least)) => Bound::Magnitude(units.max(least)),
        _ => plain,
    })
}

/// Units of a product on tensor cores; `None` if it may run on other units.
fn of_product(hardware: Hardware, op: &Matmul, inputs: &[TensorType]) -> Result<Option<f64>> {
    let k = op.extents(&inputs[0].shape, &inputs[1].shape)?.k as f64;
    Ok(match hardware.precision {
        _ if halves(inputs).is_some() => Some(k / 8.0 + 16.0),
        // 2 u for either part, 4 u for the omitted product, 32 u and 16 u for a chain of 128 products, and a rounding
        // for each of those.
        Precision::Tf32x3 if hardware.has_warp_groups() => Some(56.0 + k / 128.0),
        // 2⁻¹⁰ of each factor.
        Precision::Tf32 => Some(32_768.0 + k / 4.0 + 16.0),
        _ if hardware.rounds() => Some(rounded_to_bf16(k)),
        _ => None,
    })
}

/// Units of a product of `k` terms whose factors are rounded to bf16 first: 2⁻⁹ of each, and the truncation by tensor
/// cores.
fn rounded_to_bf16(k: f64) -> f64 {
    65_536.0 + k / 8.0 + 144.0
}

/// Units of attention on tensor cores; `None` if it runs on other units.
fn of_attention(hardware: Hardware, op: &Attention, inputs: &[TensorType]) -> Result<Option<f64>> {
    if on_tensor_cores(hardware, op, inputs)?.is_none() {
        return Ok(None);
    }
    let extents = op.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape)?;
    // Weights are rounded to f16, 2⁻¹¹ of each, or to bf16, 2⁻⁸; scores and sums are truncated, 16 products at a time.
    let weights = if inputs[0].dtype == DType::F16 { 8192.0 } else { 65_536.0 };
    let sums = (extents.d + extents.t) as f64 / 8.0 + 32.0;
    Ok(Some(weights + sums + 2.0))
}

#[cfg(test)]
mod tests {
    use kiln_ir::Shape;
    use kiln_ir::op::Matmul;
    use kiln_ptx::Target;

    use super::*;

    #[test]
    fn products_on_tensor_cores_have_bounds_of_their_own() {
        let of = |target, precision, dtype| {
            let ty = TensorType::of(dtype, Shape::new(&[4096, 4096]).unwrap()).unwrap();
            let hardware = Hardware { target, multiprocessors: 132, precision };
            match bound(hardware, &Matmul::default().into(), &[ty; 2]).unwrap() {
                Bound::Magnitude(units) => units,
                other => panic!("{other}"),
            }
        };
        let contract = of(Target::Sm75, Precision::Tf32, DType::F32);
        assert_eq!(of(Target::Sm80, Precision::Tf32x3, DType::F32), contract);
        assert_eq!(of(Target::Sm90a, Precision::Contract, DType::F32), contract);
        assert_eq!(of(Target::Sm90a, Precision::Tf32x3, DType::F32), 88.0);
        for target in [Target::Sm80, Target::Sm90a] {
            assert_eq!(of(target, Precision::Contract, DType::F16), 528.0);
            assert_eq!(of(target, Precision::Contract, DType::Bf16), 528.0);
            assert_eq!(of(target, Precision::Tf32, DType::F32), 33_808.0);
            assert_eq!(of(target, Precision::Bf16, DType::F32), 66_192.0);
            assert_eq!(of(target, Precision::Int8, DType::F32), 66_192.0);
        }
    }

    #[test]
    fn attention_has_a_bound_of_its_own_where_it_runs_on_tensor_cores() {
        let of = |target, dtype, d| {
            let ty = TensorType::of(dtype, Shape::new(&[4, 256, d]).unwrap()).unwrap();
            let hardware = Hardware { target, multiprocessors: 132, precision: Precision::Contract };
            bound(hardware, &Attention::full().into(), &[ty; 3]).unwrap()
        };
        let contract = Op::from(Attention::full()).contract().bound;
        assert_eq!(of(Target::Sm80, DType::F16, 64), Bound::Magnitude(8266.0));
        assert_eq!(of(Target::Sm80, DType::Bf16, 64), Bound::Magnitude(65_610.0));
        assert_eq!(of(Target::Sm75, DType::F16, 64), contract);
        assert_eq!(of(Target::Sm80, DType::F32, 64), contract);
        assert_eq!(of(Target::Sm80, DType::F16, 40), contract);
    }
}
