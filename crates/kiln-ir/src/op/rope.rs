use super::{Bound, Contract, Operation, Outputs, Param};
use crate::named::options;
use crate::{DType, Error, Result, TensorType};

/// The pairs of elements of a row that are rotated together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Pairs element `i` with element `i + d/2`: GPT-NeoX, the Llama of Hugging Face, Qwen.
    #[default]
    HalfSplit,
    /// Pairs element `2i` with element `2i + 1`: GPT-J, the original Llama.
    Interleaved,
}

/// Rotary position embedding: each row of `[.., s, d]` has its pairs of elements rotated by angles that grow with its
/// position: pair `i` of the row at position `p` by `p θ^(-2i/n) / fᵢ`, n of its elements being rotated.
///
/// Operands: `x`; then, where there are any, the positions of the rows, `[s]` of u32, and the factors `f` that divide the angles,
/// `[n/2]` of floats, which models with long contexts have (Llama 3.1, LongRoPE, YaRN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rope {
    /// The base of the frequencies; 10 000 in most models.
    pub theta: Param,
    /// The elements that form a pair.
    pub style: RopeStyle,
    /// Position of the first row; if positions are an operand, the number that is added to each of them (modulo 2³²).
    pub position: usize,
    /// Number of elements of a row that are rotated, from the first on; the others are unchanged. `None` rotates all.
    pub rotated: Option<usize>,
    /// The factor of sines and cosines: the magnitude of YaRN, 1 in most models.
    pub magnitude: Param,
}

/// The positions of the optional operands of a [`Rope`], which follow x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeOperands {
    /// The positions of rows.
    pub positions: Option<usize>,
    /// The factors of angles.
    pub factors: Option<usize>,
}

impl Default for Rope {
    fn default() -> Self {
        Self {
            theta: Param::from(10_000.0),
            style: RopeStyle::HalfSplit,
            position: 0,
            rotated: None,
            magnitude: Param::from(1.0),
        }
    }
}

options!(
    Rope,
    (
        theta: Param = Self::default().theta, position: usize = 0, interleaved: bool = false, rotated: Option<usize> = None,
        magnitude: Param = Self::default().magnitude
    ),
    Self {
        theta,
        style: if interleaved { RopeStyle::Interleaved } else { RopeStyle::HalfSplit },
        position,
        rotated,
        magnitude,
    }
);

impl Rope {
    /// The end of all positions. An angle in f64 is exact to `position * 2^-52`, so that below this bound the error of the
    /// angle stays under an eighth of the rounding of f32.
    pub const POSITIONS: usize = 1 << 24;

    /// Pairs of a row of `d` elements that are rotated.
    pub fn pairs(&self, d: usize) -> usize {
        self.rotated.unwrap_or(d) / 2
    }

    /// The angle by which pair `i` of rows of `d` elements turns from one position to the next, but for its factor.
    pub fn frequency(&self, i: usize, d: usize) -> f64 {
        f64::from(self.theta.get()).powf(-2.0 * i as f64 / self.rotated.unwrap_or(d) as f64)
    }

    /// The divisor of an angle for this factor: NaN unless the factor is a positive normal number.
    pub fn divisor(factor: f32) -> f64 {
        if factor.is_normal() && factor > 0.0 { factor.into() } else { f64::NAN }
    }

    /// The operands that follow x, of inputs that [`Operation::infer`] accepts: positions are u32, factors floats.
    pub fn operands(inputs: &[TensorType]) -> RopeOperands {
        match inputs {
            [_, positions] if positions.dtype == DType::U32 => RopeOperands { positions: Some(1), factors: None },
            [_, _] => RopeOperands { positions: None, factors: Some(1) },
            [_, _, _] => RopeOperands { positions: Some(1), factors: Some(2) },
            _ => RopeOperands { positions: None, factors: None },
        }
    }
}

impl Operation for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn formula(&self) -> &'static str {
        "(a cos φ - b sin φ, a sin φ + b cos φ) for each pair (a, b), φ = p θ^(-2i/n) / fᵢ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = "rope";
        match inputs {
            [_, second] if second.dtype == DType::U32 => super::expect_types(op, inputs, &[DType::F32, DType::U32])?,
            [_, _] => super::expect_types(op, inputs, &[DType::F32; 2])?,
            [_, _, _] => super::expect_types(op, inputs, &[DType::F32, DType::U32, DType::F32])?,
            _ => super::expect_types(op, inputs, &[DType::F32])?,
        }
        let operands = Self::operands(inputs);
        let theta = self.theta.get();
        if !(theta.is_finite() && theta > 0.0) {
            return Err(Error::Parameter { op, reason: format!("theta {theta} is not a positive number") });
        }
        let magnitude = self.magnitude.get();
        if !magnitude.is_finite() {
            return Err(Error::Parameter { op, reason: format!("the magnitude {magnitude} is not finite") });
        }
        let shape = inputs[0].shape;
        let [.., s, d] = *shape.dims() else {
            return Err(Error::Shape { op, reason: format!("{shape} has no rows of positions") });
        };
        if !d.is_multiple_of(2) {
            return Err(Error::Shape { op, reason: format!("rows of {shape} have an odd length, not pairs") });
        }
        if let Some(rotated) = self.rotated.filter(|&rotated| rotated > d || !rotated.is_multiple_of(2)) {
            let reason =
                format!("{rotated} elements of rows of {d} cannot be rotated: an even number of at most {d} can");
            return Err(Error::Parameter { op, reason });
        }
        let counted = if operands.positions.is_some() { 1 } else { s };
        if self.position.checked_add(counted).is_none_or(|end| end > Self::POSITIONS) {
            let reason =
                format!("{counted} positions from {} pass the last one, {}", self.position, Self::POSITIONS - 1);
            return Err(Error::Parameter { op, reason });
        }
        let wanted = [(operands.positions, s, "positions"), (operands.factors, self.pairs(d), "factors")];
        for (index, extent, what) in wanted {
            if let Some(found) = index.map(|index| inputs[index].shape).filter(|found| found.dims() != [extent]) {
                return Err(Error::Shape {
                    op,
                    reason: format!("{what} {found} are not [{extent}], which {shape} needs"),
                });
            }
        }
        Ok(TensorType::f32(shape).into())
    }

    /// Six flops per pair: sines and cosines are not counted, because all heads share them.
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[3, inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            // One rounding each of the sine, of the product and of the sum; a little for second order and the angle.
            bound: Bound::Magnitude(3.25),
            special: "IEEE 754; the bound is relative to |a cos φ| + |b sin φ| and holds at every position below 2²⁴ whose angle is \
                      below 2²⁵; a magnitude that is not 1 adds a unit; a factor that is not a positive normal number gives NaN",
        }
    }

    fn bound(&self, _: &[TensorType]) -> Bound {
        Bound::Magnitude(if self.magnitude.get() == 1.0 { 3.25 } else { 4.25 })
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let x = inputs[0].data().f32();
        let shape = inputs[0].shape();
        let operands = Self::operands(&super::types_of(inputs));
        let positions = operands.positions.map(|index| inputs[index].data().u32());
        let factors = operands.factors.map(|index| inputs[index].data().f32());
        let mut values: Vec<f64> = x.iter().copied().map(f64::from).collect();
        let mut magnitudes = vec![0.0; x.len()];
        if let [.., s, d] = *shape.dims() {
            let pairs = self.pairs(d);
            for at in (0..shape.rows()).flat_map(|row| (0..pairs).map(move |i| (row, i))) {
                let (row, i) = at;
                let (first, second) = match self.style {
                    RopeStyle::HalfSplit => (row * d + i, row * d + i + pairs),
                    RopeStyle::Interleaved => (row * d + 2 * i, row * d + 2 * i + 1),
                };
                let position = positions.map_or((row % s) as u32, |positions| positions[row % s]);
                let position = f64::from(position.wrapping_add(self.position as u32));
                let angle =
                    position * (self.frequency(i, d) / factors.map_or(1.0, |factors| Self::divisor(factors[i])));
                let (sin, cos) = angle.sin_cos();
                let (sin, cos) = (sin * f64::from(self.magnitude.get()), cos * f64::from(self.magnitude.get()));
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
                    let op = Self { theta: Param::from(theta), style, position, ..Self::default() };
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
            // Consecutive positions and others, factors of both, rotations of part of a row, magnitudes.
            for (dims, rotated, magnitude) in [
                (&[5, 8][..], None, 1.0f32),
                (&[2, 70, 64], Some(32), 1.0),
                (&[3, 9, 96], Some(20), 1.25),
                (&[4, 1, 128], None, 0.5),
                (&[2, 3, 600], Some(590), 1.0),
                (&[2, 6, 10], Some(0), 1.0),
                (&[2, 1030, 8], None, 1.0),
            ] {
                let (s, d) = (dims[dims.len() - 2], dims[dims.len() - 1]);
                let op = Self { style, position: 3, rotated, magnitude: Param::from(magnitude), ..Self::default() };
                let positions: Vec<u32> =
                    (0..s as u32).map(|i| if i < 4 { 70_000 + i } else { 999 * i % 4097 }).collect();
                let positions = Input::new(crate::Buffer::U32(positions), &[s]);
                let pairs = op.pairs(d);
                let mut factors: Vec<f32> = random.uniforms(pairs, 0.75, 40.0);
                let senseless = [0.0, -2.0, f32::NAN, f32::INFINITY, 1e-45];
                factors.iter_mut().skip(11).zip(senseless).for_each(|(factor, senseless)| *factor = senseless);
                let factors = Input::f32(factors, &[pairs]);
                let x = Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), dims);
                cases.push(Case::new(op, vec![x.clone()]));
                cases.push(Case::new(op, vec![x.clone(), positions.clone()]));
                cases.push(Case::new(op, vec![x.clone(), factors.clone()]));
                cases.push(Case::new(op, vec![x, positions, factors]));
            }
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
        let (positions, factors) = (TensorType::u32(Shape::new(&[4]).unwrap()), ty(&[4]));
        assert!(rope.infer(&[ty(&[4, 8]), positions, factors]).is_ok());
        assert!(matches!(rope.infer(&[ty(&[5, 8]), positions]), Err(Error::Shape { .. })));
        assert!(matches!(rope.infer(&[ty(&[4, 10]), factors]), Err(Error::Shape { .. })));
        assert!(matches!(rope.infer(&[ty(&[4, 8]), factors, positions]), Err(Error::Type { index: 1, .. })));
        for rotated in [3, 10] {
            let op = Rope { rotated: Some(rotated), ..rope };
            assert!(matches!(op.infer(&[ty(&[4, 8])]), Err(Error::Parameter { .. })));
        }
        let op = Rope { magnitude: Param::from(f32::NAN), ..rope };
        assert!(matches!(op.infer(&[ty(&[4, 8])]), Err(Error::Parameter { .. })));
        for theta in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let op = Rope { theta: Param::from(theta), ..rope };
            assert!(matches!(op.infer(&[ty(&[4, 8])]), Err(Error::Parameter { .. })));
        }
    }
}
