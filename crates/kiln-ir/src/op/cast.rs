use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, TensorType};

/// The same numbers as another type of elements: any but blocks.
///
/// Numbers are read as f32 (integers beyond 2²⁴ are rounded to nearest) and written to the nearest element: of f16 and bf16 to
/// nearest, ties to even; integers truncate and saturate, NaN gives 0; true is what is not zero, NaN too. From integers to
/// integers nothing is rounded: what does not fit saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cast {
    /// The type of the result.
    pub to: DType,
}

impl Operation for Cast {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "cast"
    }

    fn formula(&self) -> &'static str {
        "the element of the other type nearest to x"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let [x] = inputs else { return Err(Error::Arity { op: "cast", expected: 1, found: inputs.len() }) };
        match (x.dtype, self.to) {
            (DType::Blocks(_), _) => Err(Error::Type { op: "cast", index: 0, expected: DType::F32, found: x.dtype }),
            (_, DType::Blocks(_)) => {
                let reason = format!("{} is not a type of single elements; use `quantize` for blocks", self.to);
                Err(Error::Parameter { op: "cast", reason })
            }
            (_, to) => Ok(TensorType { dtype: to, shape: x.shape }.into()),
        }
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "to f16 and bf16: nearest, ties to even; above the greatest number ∞, subnormal results are kept, below \
                      half of the smallest a zero of the same sign, NaN stays NaN; to integers: towards zero, saturating, NaN \
                      gives 0; to bool: whether it is not 0; from integers to floats: the nearest f32, then as f32",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        use crate::{Bool, Buffer, Kind, bf16, f16};
        let data = inputs[0].data();
        let numbers = (0..inputs[0].shape().numel()).map(|i| number(&data, i));
        let from_integers = data.dtype().kind() != Kind::Float;
        // Integers are cast to other floats through f32.
        let singles = numbers.clone().map(|x| if from_integers { f64::from(x as f32) } else { x });
        // `as` truncates, saturates, and turns NaN into 0.
        vec![Expected::Exact(match self.to {
            DType::F32 => {
                let values: Vec<f64> = numbers.collect();
                return vec![Expected::F32 { magnitudes: vec![0.0; values.len()], values }];
            }
            DType::F16 => Buffer::F16(singles.map(|x| f16::from_bits(nearest(x, 10, 15))).collect()),
            DType::Bf16 => Buffer::Bf16(singles.map(|x| bf16::from_bits(nearest(x, 7, 127))).collect()),
            DType::I32 => Buffer::I32(numbers.map(|x| x as i32).collect()),
            DType::U32 => Buffer::U32(numbers.map(|x| x as u32).collect()),
            DType::I8 => Buffer::I8(numbers.map(|x| x as i8).collect()),
            DType::U8 => Buffer::U8(numbers.map(|x| x as u8).collect()),
            DType::Bool => Buffer::Bool(numbers.map(|x| Bool::from(x != 0.0)).collect()),
            DType::Blocks(_) => return Vec::new(),
        })]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, LENGTHS, Random, SPECIAL};
        use crate::{Buffer, f16};
        let mut random = Random::new(43);
        let mut cases = Vec::new();
        let as_type = |x: &[f32], dtype: DType, dims: &[usize]| {
            let mut elements = Buffer::with_bytes(dtype, x.len() * dtype.size()).expect("a case fits memory");
            crate::narrow(x, elements.as_mut());
            Input::new(elements, dims)
        };
        for n in LENGTHS {
            let x = random.uniforms(n, -100.0, 100.0);
            cases.push(Case::new(Self { to: DType::F16 }, vec![Input::f32(x.clone(), &[n])]));
            cases.push(Case::new(Self { to: DType::F32 }, vec![as_type(&x, DType::F16, &[n])]));
        }
        cases.push(Case::new(Self { to: DType::F32 }, vec![Input::f32(random.uniforms(30, -1.0, 1.0), &[2, 3, 5])]));
        // From each type to each, with lengths that end inside a word, a vector and a workgroup.
        for &from in DType::ALL {
            for &to in DType::ALL {
                for n in [0, 1, 6, 1027] {
                    let x = random.uniforms(n, -300.0, 300.0);
                    cases.push(Case::new(Self { to }, vec![as_type(&x, from, &[n])]));
                }
                let mut special = SPECIAL.to_vec();
                special.extend([
                    254.5,
                    255.5,
                    256.0,
                    127.5,
                    128.0,
                    -128.5,
                    -129.0,
                    2.147_483_6e9,
                    -2.147_483_6e9,
                    4.294_967_3e9,
                ]);
                let n = special.len();
                cases.push(Case::new(Self { to }, vec![as_type(&special, from, &[n])]));
                // Arbitrary bits: integers that f32 cannot represent, bytes other than 1 that are true.
                let mut any = Buffer::with_bytes(from, 500 * from.size()).expect("a case fits memory");
                any.as_mut().as_bytes().fill_with(|| random.bits() as u8);
                cases.push(Case::new(Self { to }, vec![Input::new(any, &[500])]));
            }
        }
        // Every f16 and bf16, and the numbers around the midpoint between each and the next one.
        let next = |x: f32| f32::from_bits(x.to_bits() + 1);
        let beside = |middle: f32| [middle, next(middle), f32::from_bits(middle.to_bits() - 1)];
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let numbers = all.iter().map(|x| x.to_f32()).filter(|x| x.is_finite());
        // Half a unit in the last place of f16.
        let middle = |x: f32| x + x.signum() * f32::max(f32::powi(2.0, -25), half_unit(x));
        let around = numbers.flat_map(|x| [vec![x], beside(middle(x)).to_vec()].concat()).chain(SPECIAL).collect();
        let upper = (0..0x7f80u32).map(|bits| f32::from_bits(bits << 16 | 0x8000)).flat_map(beside);
        for (to, x) in [(DType::F16, around), (DType::Bf16, upper.collect::<Vec<f32>>())] {
            let n = x.len();
            cases.push(Case::new(Self { to }, vec![Input::f32(x, &[n])]));
        }
        cases.push(Case::new(Self { to: DType::F32 }, vec![Input::new(Buffer::F16(all.clone()), &[256, 256])]));
        cases.push(Case::new(Self { to: DType::F16 }, vec![Input::new(Buffer::F16(all), &[256, 256])]));
        cases
    }
}

/// Half of the distance between an f16 number and the next.
#[cfg(feature = "reference")]
fn half_unit(x: f32) -> f32 {
    f32::from_bits(x.abs().to_bits() & 0x7f80_0000) * f32::powi(2.0, -11)
}

/// The value of an element.
#[cfg(feature = "reference")]
pub(super) fn number(data: &crate::Data<'_>, at: usize) -> f64 {
    match data {
        crate::Data::I32(x) => x[at].into(),
        crate::Data::U32(x) => x[at].into(),
        // All other types are exact in f32.
        other => other.load(at).into(),
    }
}

/// Rounds to a 16-bit floating-point format with `fraction` bits of fraction and the maximum exponent `most`, and
/// returns the bits. Follows the definition of rounding to nearest: the nearest multiple of the unit in the last place,
/// found in f64.
#[cfg(feature = "reference")]
fn nearest(x: f64, fraction: u32, most: i32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let (magnitude, sign) = (x.abs(), u16::from(x.is_sign_negative()) << 15);
    let places = fraction as i32;
    // The midpoint between the largest number and the next one beyond it.
    if magnitude >= (2.0 - f64::powi(2.0, -places - 1)) * f64::powi(2.0, most) {
        return sign | ((2 * most + 1) as u16) << fraction;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).clamp(1 - most, most);
    let units = (magnitude / f64::powi(2.0, exponent - places)).round_ties_even() as u16;
    // The leading one is implicit: it carries into the exponent.
    sign | ((((exponent + most - 1) as u16) << fraction) + units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QuantFormat, Shape};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_type_of_elements_becomes_every_other_and_blocks_none() {
        let shape = Shape::new(&[2, 256]).unwrap();
        let blocks = DType::Blocks(QuantFormat::Q8_0);
        for &from in DType::ALL {
            let x = TensorType { dtype: from, shape };
            for &to in DType::ALL {
                assert_eq!(Cast { to }.infer(&[x]).unwrap()[0], TensorType { dtype: to, shape });
            }
            assert!(matches!(Cast { to: blocks }.infer(&[x]), Err(Error::Parameter { .. })));
        }
        let x = TensorType::of(blocks, shape).unwrap();
        assert!(matches!(Cast { to: DType::F32 }.infer(&[x]), Err(Error::Type { .. })));
        assert!(matches!(Cast { to: DType::F32 }.infer(&[]), Err(Error::Arity { .. })));
    }

    #[cfg(feature = "reference")]
    #[test]
    fn every_number_of_16_bits_is_nearest_to_itself() {
        use crate::{bf16, f16};
        for bits in 0..=u16::MAX {
            let (half, upper) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(half.is_nan() || nearest(half.to_f64(), 10, 15) == bits, "{bits:#x}");
            assert!(upper.is_nan() || nearest(upper.to_f64(), 7, 127) == bits, "{bits:#x}");
        }
        for (x, bits) in
            [(65519.99, 0x7bff), (65520.0, 0x7c00), (-1e9, 0xfc00), (2.980_232_2e-8, 0), (2.980_232_6e-8, 1)]
        {
            assert_eq!(nearest(x, 10, 15), bits, "{x}");
        }
        assert_eq!([3.396_1e38, 3.396_2e38].map(|x| nearest(x, 7, 127)), [0x7f7f, 0x7f80]);
        assert!(f16::from_bits(nearest(f64::NAN, 10, 15)).is_nan());
    }
}
