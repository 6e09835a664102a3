use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, TensorType};

/// The same numbers as another type: f32 or f16.
///
/// To f16 each is rounded once, to the nearest, the even one of two equally near. To f32 nothing is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Convert {
    /// The type of the result.
    pub to: DType,
}

impl Operation for Convert {
    fn name(&self) -> &'static str {
        "convert"
    }

    fn formula(&self) -> &'static str {
        "the f32 or f16 nearest to x"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("convert", inputs, &[DType::F32])?;
        match self.to {
            DType::F32 | DType::F16 => Ok(TensorType { dtype: self.to, shape: inputs[0].shape }.into()),
            DType::U32 | DType::Blocks(_) => {
                let reason = format!("{} is no type of real numbers; blocks are made by `quantize`", self.to);
                Err(Error::Parameter { op: "convert", reason })
            }
        }
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "to f16: nearest, the even one of two; from 65520 on ∞, subnormal f16 are kept, below 2⁻²⁵ a zero \
                      of the same sign, NaN stays NaN; to f32: the same number",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        let x = inputs[0].data().f32();
        vec![match self.to {
            DType::F16 => Expected::F16(x.iter().map(|&x| nearest_f16(x)).collect()),
            _ => {
                let values: Vec<f64> = x.iter().copied().map(f64::from).collect();
                let magnitudes = vec![0.0; values.len()];
                Expected::F32 { values, magnitudes }
            }
        }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, LENGTHS, Random, SPECIAL};
        use crate::{Buffer, f16};
        let mut random = Random::new(43);
        let mut cases = Vec::new();
        for n in LENGTHS {
            let x = random.uniforms(n, -100.0, 100.0);
            cases.push(Case::new(Self { to: DType::F16 }, vec![Input::f32(x.clone(), &[n])]));
            let halves = x.iter().map(|&x| f16::from_f32(x)).collect();
            cases.push(Case::new(Self { to: DType::F32 }, vec![Input::new(Buffer::F16(halves), &[n])]));
        }
        cases.push(Case::new(Self { to: DType::F32 }, vec![Input::f32(random.uniforms(30, -1.0, 1.0), &[2, 3, 5])]));
        // Every f16, and the numbers next to the middle between it and the next one.
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let numbers = all.iter().map(|x| x.to_f32()).filter(|x| x.is_finite());
        let next = |x: f32| f32::from_bits(x.to_bits() + 1);
        let around = numbers.flat_map(|x| {
            // Half a unit in the last place of f16.
            let middle = x + x.signum() * f32::max(f32::powi(2.0, -25), half_unit(x));
            [x, middle, next(middle), f32::from_bits(middle.to_bits() - 1)]
        });
        let around: Vec<f32> = around.chain(SPECIAL).collect();
        let n = around.len();
        cases.push(Case::new(Self { to: DType::F16 }, vec![Input::f32(around, &[n])]));
        cases.push(Case::new(Self { to: DType::F32 }, vec![Input::new(Buffer::F16(all.clone()), &[256, 256])]));
        cases.push(Case::new(Self { to: DType::F16 }, vec![Input::new(Buffer::F16(all), &[256, 256])]));
        cases
    }
}

/// Half of the distance from a number that f16 has to the next.
#[cfg(feature = "reference")]
fn half_unit(x: f32) -> f32 {
    f32::from_bits(x.abs().to_bits() & 0x7f80_0000) * f32::powi(2.0, -11)
}

/// By the definition: the multiple of the unit in the last place that is nearest, found in f64.
#[cfg(feature = "reference")]
fn nearest_f16(x: f32) -> crate::f16 {
    use crate::f16;
    if x.is_nan() {
        return f16::NAN;
    }
    let magnitude = f64::from(x).abs();
    let sign = u16::from(x.is_sign_negative()) << 15;
    // 65520 is the middle between the greatest f16 and the number that would be next.
    if magnitude >= 65520.0 {
        return f16::from_bits(sign | 0x7c00);
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).clamp(-14, 15);
    let units = (magnitude / f64::powi(2.0, exponent - 10)).round_ties_even() as u16;
    // From 2¹⁰ units on the leading one has no bit of its own: it carries into the exponent.
    let bits = (((exponent + 14) as u16) << 10) + units;
    f16::from_bits(sign | bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QuantFormat, Shape};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_result_is_f32_or_f16() {
        let shape = Shape::new(&[2, 3]).unwrap();
        let (wide, half) = (TensorType::f32(shape), TensorType::f16(shape));
        for from in [wide, half] {
            assert_eq!(Convert { to: DType::F16 }.infer(&[from]).unwrap()[0], half);
            assert_eq!(Convert { to: DType::F32 }.infer(&[from]).unwrap()[0], wide);
            for to in [DType::U32, DType::Blocks(QuantFormat::Q8_0)] {
                assert!(matches!(Convert { to }.infer(&[from]), Err(Error::Parameter { .. })));
            }
        }
        assert!(matches!(Convert { to: DType::F16 }.infer(&[TensorType::u32(shape)]), Err(Error::Type { .. })));
    }

    #[cfg(feature = "reference")]
    #[test]
    fn every_f16_is_nearest_to_itself() {
        for x in (0..=u16::MAX).map(crate::f16::from_bits).filter(|x| !x.is_nan()) {
            assert_eq!(nearest_f16(x.to_f32()).to_bits(), x.to_bits());
        }
        for (x, bits) in [(65519.99, 0x7bff), (65520.0, 0x7c00), (-1e9, 0xfc00), (2.9802322e-8, 0), (2.9802326e-8, 1)] {
            assert_eq!(nearest_f16(x).to_bits(), bits, "{x}");
        }
        assert!(nearest_f16(f32::NAN).is_nan());
    }
}
