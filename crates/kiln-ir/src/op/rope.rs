use super::{Bound, Contract, Operation, Outputs, Param};
use crate::{DType, Error, Result, TensorType};

/// Which elements of a row are rotated together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element `i` with element `i + d/2`: GPT-NeoX, the Llama of Hugging Face, Qwen.
    #[default]
    HalfSplit,
    /// Element `2i` with element `2i + 1`: GPT-J, the original Llama.
    Interleaved,
}

/// Rotary position embedding: each row of `[.., s, d]` has its pairs of elements rotated by angles that grow with its
/// position: pair `i` of the row at position `p` by `p θ^(-2i/d)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rope {
    /// The base of the frequencies; 10 000 in most models.
    pub theta: Param,
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Position of the first row.
    pub position: usize,
}

impl Default for Rope {
    fn default() -> Self {
        Self { theta: Param::from(10_000.0), style: RopeStyle::HalfSplit, position: 0 }
    }
}

impl Rope {
    /// Positions end here. An angle in f64 is exact to `position * 2^-52`, so that below this bound the error of the
    /// angle stays under an eighth of the rounding of f32.
    pub const POSITIONS: usize = 1 << 24;

    /// The angle by which pair `i` of rows of length `d` turns from one position to the next.
    pub fn frequency(&self, i: usize, d: usize) -> f64 {
        f64::from(self.theta.get()).powf(-2.0 * i as f64 / d as f64)
    }
}

impl Operation for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn formula(&self) -> &'static str {
        "(a cos φ - b sin φ, a sin φ + b cos φ) for each pair (a, b), φ = p θ^(-2i/d)"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = "rope";
        super::expect_types(op, inputs, &[DType::F32])?;
        let theta = self.theta.get();
        if !(theta.is_finite() && theta > 0.0) {
            return Err(Error::Parameter { op, reason: format!("theta {theta} is not a positive number") });
        }
        let shape = inputs[0].shape;
        let [.., s, d] = *shape.dims() else {
            return Err(Error::Shape { op, reason: format!("{shape} has no rows of positions") });
        };
        if !d.is_multiple_of(2) {
            return Err(Error::Shape { op, reason: format!("rows of {shape} do not split into pairs") });
        }
        if self.position.checked_add(s).is_none_or(|end| end > Self::POSITIONS) {
            let reason = format!("{s} positions from {} pass the last one, {}", self.position, Self::POSITIONS - 1);
            return Err(Error::Parameter { op, reason });
        }
        Ok(TensorType::f32(shape).into())
    }

    /// Six flops a pair, as if sines and cosines came for free: they are shared by all heads.
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[3, inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            // One rounding each of the sine, of the product and of the sum; a little for second order and the angle.
            bound: Bound::Magnitude(3.25),
            special: "IEEE 754; the bound is relative to |a cos φ| + |b sin φ| and holds at every position",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let x = inputs[0].data().f32();
        let shape = inputs[0].shape();
        let (mut values, mut magnitudes) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        if let [.., s, d] = *shape.dims() {
            for at in (0..shape.rows()).flat_map(|row| (0..d / 2).map(move |i| (row, i))) {
                let (row, i) = at;
                let (first, second) = match self.style {
                    RopeStyle::HalfSplit => (row * d + i, row * d + i + d / 2),
                    RopeStyle::Interleaved => (row * d + 2 * i, row * d + 2 * i + 1),
                };
                let (sin, cos) = ((self.position + row % s) as f64 * self.frequency(i, d)).sin_cos();
                let (a, b) = (f64::from(x[first]), f64::from(x[second]));
                (values[first], magnitudes[first]) = (a * cos - b * sin, (a * cos).abs() + (b * sin).abs());
                (values[second], magnitudes[second]) = (a * sin + b * cos, (a * sin).abs() + (b * cos).abs());
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(17);
        let mut cases = Vec::new();
        for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
            let shapes: [&[usize]; 10] = [
                &[1, 2],
                &[3, 8],
                &[5, 6],
                &[130, 64],
                &[4, 7, 34],
                &[2, 3, 5, 128],
                &[2, 66, 30],
                &[0, 8],
                &[3, 4, 0],
                &[1, 300],
            ];
            for dims in shapes {
                for (position, theta) in [(0, 10_000.0), (1, 500_000.0), (100_000, 10_000.0)] {
                    let op = Self { theta: Param::from(theta), style, position };
                    let x = Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), dims);
                    cases.push(Case::new(op, vec![x]));
                }
            }
            let op = Self { style, position: Self::POSITIONS - 3, ..Self::default() };
            cases.push(Case::new(op, vec![Input::f32(random.uniforms(3 * 64, -1.0, 1.0), &[3, 64])]));
            let mut values = random.uniforms(4 * 32, -1.0, 1.0);
            (values[5], values[40], values[77]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
            let op = Self { style, position: 9, ..Self::default() };
            cases.push(Case::new(op, vec![Input::f32(values, &[4, 32])]));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let ty = |dims: &[usize]| TensorType::f32(Shape::new(dims).unwrap());
        let rope = Rope::default();
        assert!(matches!(rope.infer(&[ty(&[4, 7])]), Err(Error::Shape { .. })));
        assert!(matches!(rope.infer(&[ty(&[8])]), Err(Error::Shape { .. })));
        let far = Rope { position: usize::MAX, ..rope };
        assert!(matches!(far.infer(&[ty(&[4, 8])]), Err(Error::Parameter { .. })));
        for theta in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let op = Rope { theta: Param::from(theta), ..rope };
            assert!(matches!(op.infer(&[ty(&[4, 8])]), Err(Error::Parameter { .. })));
        }
    }
}
