use super::{Bound, Contract, Operation, Outputs, Param};
use crate::{DType, Error, Result, TensorType};

/// Groups of channels shifted to mean 0 and scaled to variance 1, each for itself, then every channel scaled by its element of `gamma`
/// and shifted by that of `beta`.
///
/// Operands: `x` `[n, channels, ..]`, `gamma` `[channels]`, `beta` `[channels]`. The variance is that of the population.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupNorm {
    /// Groups that the channels are divided into: neighbours, as many in each.
    pub groups: usize,
    /// Added to the variance: finite, not negative.
    pub eps: Param,
}

/// Every channel shifted by a mean and scaled by a variance that are given, as batch normalisation is in inference, then scaled by its
/// element of `gamma` and shifted by that of `beta`.
///
/// Operands: `x` `[n, channels, ..]`, and `gamma`, `beta`, `mean` and `variance`, `[channels]` each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchNorm {
    /// Added to the variance: finite, not negative.
    pub eps: Param,
}

impl GroupNorm {
    /// This many groups, with this constant added to the variance.
    pub fn new(groups: usize, eps: f32) -> Self {
        Self { groups, eps: eps.into() }
    }
}

impl BatchNorm {
    /// With this constant added to the variance.
    pub fn new(eps: f32) -> Self {
        Self { eps: eps.into() }
    }
}

/// The extents of an operand that has channels: outer, channels, elements of a channel that are neighbours. All of them are 0 where it
/// has no elements.
pub fn channels_of(x: &TensorType) -> [usize; 3] {
    match *x.shape.dims() {
        [n, channels, ref rest @ ..] if !x.shape.is_empty() => [n, channels, rest.iter().product()],
        _ => [0; 3],
    }
}

/// The shape rule of both: every operand except the first has one element per channel.
fn infer(op: &'static str, eps: Param, inputs: &[TensorType], operands: &[&str]) -> Result<Outputs> {
    super::expect_types(op, inputs, &[DType::F32; 5][..operands.len() + 1])?;
    let x = inputs[0].shape;
    let &[_, channels, ..] = x.dims() else {
        return Err(Error::Shape { op, reason: format!("{x} has no dimension 1, which is that of the channels") });
    };
    for (input, operand) in inputs[1..].iter().zip(operands) {
        if input.shape.dims() != [channels] {
            let reason = format!("{operand} {} is not [{channels}], an element for each channel of {x}", input.shape);
            return Err(Error::Shape { op, reason });
        }
    }
    let eps = eps.get();
    if !eps.is_finite() || eps < 0.0 {
        return Err(Error::Parameter { op, reason: format!("eps = {eps} is not finite or is negative") });
    }
    Ok(TensorType::f32(x).into())
}

impl Operation for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn formula(&self) -> &'static str {
        "(x - μ) / √(σ² + eps) γ + β, μ and σ² mean and variance of the group of channels, γ and β of the channel"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let outputs = infer(op, self.eps, inputs, &["gamma", "beta"])?;
        let channels = inputs[1].shape.numel();
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            let reason = format!("{channels} channels cannot be divided evenly into {} groups", self.groups);
            return Err(Error::Parameter { op, reason });
        }
        Ok(outputs)
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[0].shape.numel(), 10])
    }

    fn contract(&self) -> Contract {
        Contract {
            // The bound of layer normalisation; the product with gamma and the sum with beta round once each.
            bound: Bound::Magnitude(10.0),
            special: "the bound is relative to (1 + |z|) |γ| + |β|, z = (x - μ) / √(σ² + eps), and as good as that of layer_norm; a group \
                      with NaN or ±∞ gives NaN; finite groups neither overflow nor vanish; σ² + eps = 0 gives NaN",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let [_, channels, inner] = channels_of(&inputs[0].ty());
        let [x, gamma, beta] = [0, 1, 2].map(|i: usize| inputs[i].data().f32());
        let (mut values, mut magnitudes) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len()));
        let row = channels / self.groups * inner;
        for group in x.chunks_exact(row.max(1)) {
            let n = group.len() as f64;
            let mean = group.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let square = |&x: &f32| (f64::from(x) - mean) * (f64::from(x) - mean);
            let deviation = (group.iter().map(square).sum::<f64>() / n + f64::from(self.eps.get())).sqrt();
            for &x in group {
                let channel = values.len() / inner % channels;
                let (gamma, beta) = (f64::from(gamma[channel]), f64::from(beta[channel]));
                let z = (f64::from(x) - mean) / deviation;
                values.push(z * gamma + beta);
                magnitudes.push((1.0 + z.abs()) * gamma.abs() + beta.abs());
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(107);
        let mut cases = Vec::new();
        let shapes: [(&[usize], &[usize]); 9] = [
            (&[2, 3], &[1]),
            (&[0, 4], &[2]),
            (&[3, 4, 0], &[2]),
            (&[1, 6, 5], &[1, 3]),
            (&[2, 8, 3, 5], &[4]),
            (&[3, 32, 16], &[8]),
            (&[1, 4, 70, 67], &[2]),
            (&[2, 64, 9, 9], &[32]),
            (&[40, 12], &[3]),
        ];
        for (dims, groups) in shapes {
            let (n, channels) = (dims.iter().product(), dims[1]);
            for (lo, hi) in [(-9.0, 9.0), (1000.0, 1010.0)] {
                for &groups in groups {
                    let x = Input::f32(random.uniforms(n, lo, hi), dims);
                    let mut vector = || Input::f32(random.uniforms(channels, -2.0, 2.0), &[channels]);
                    cases.push(Case::new(Self::new(groups, 1e-5), vec![x, vector(), vector()]));
                }
            }
        }
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.uniforms(2 * 4 * 50, -1.0, 1.0);
            x[170] = special;
            let mut vector = || Input::f32(random.uniforms(4, -2.0, 2.0), &[4]);
            let operands = vec![Input::f32(x, &[2, 4, 50]), vector(), vector()];
            cases.push(Case::new(Self::new(2, 1e-5), operands));
        }
        cases
    }
}

impl Operation for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn formula(&self) -> &'static str {
        "(x - μ) / √(σ² + eps) γ + β, all but x those of the channel"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        infer(self.name(), self.eps, inputs, &["gamma", "beta", "mean", "variance"])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[0].shape.numel(), 4])
    }

    fn contract(&self) -> Contract {
        Contract {
            // The sum with eps rounds once, and the root halves that; the root, its reciprocal, the product with gamma, the
            // difference, the product with it and the sum with beta round once each: 6.5.
            bound: Bound::Magnitude(7.0),
            special: "IEEE 754 of the formula, the factor of x - μ being 1 / √(σ² + eps) γ; the bound is relative to \
                      (|x| + |μ|) / √(σ² + eps) |γ| + |β|",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let [_, channels, inner] = channels_of(&inputs[0].ty());
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for (i, &x) in inputs[0].data().f32().iter().enumerate() {
            let channel = i / inner % channels;
            let [gamma, beta, mean, variance] = [1, 2, 3, 4].map(|o: usize| f64::from(inputs[o].data().f32()[channel]));
            let factor = 1.0 / (variance + f64::from(self.eps.get())).sqrt() * gamma;
            let x = f64::from(x);
            values.push((x - mean) * factor + beta);
            magnitudes.push((x.abs() + mean.abs()) * factor.abs() + beta.abs());
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(109);
        let mut cases = Vec::new();
        let shapes: [&[usize]; 9] = [
            &[2, 3],
            &[0, 4],
            &[3, 4, 0],
            &[1, 6, 5],
            &[2, 8, 3, 5],
            &[3, 32, 16],
            &[1, 4, 70, 67],
            &[50, 129],
            &[7, 1, 4],
        ];
        for dims in shapes {
            let (n, channels) = (dims.iter().product(), dims[1]);
            let mut x = random.uniforms(n, -9.0, 9.0);
            let special = [f32::NAN, f32::INFINITY, -0.0].into_iter();
            x.iter_mut().skip(3).step_by(97).zip(special).for_each(|(x, special)| *x = special);
            let mut vector = |lo: f32, hi: f32| Input::f32(random.uniforms(channels, lo, hi), &[channels]);
            let operands = [vector(-2.0, 2.0), vector(-2.0, 2.0), vector(-3.0, 3.0), vector(0.01, 9.0)];
            cases.push(Case::new(Self::new(1e-5), [vec![Input::f32(x, dims)], operands.to_vec()].concat()));
        }
        // A zero and a negative variance.
        let of = |x: &[f32]| Input::f32(x.to_vec(), &[3]);
        let x = Input::f32(vec![1.0, 2.0, 3.0, -1.0, 0.5, -3.0], &[2, 3]);
        let operands =
            vec![x, of(&[1.0, -2.0, 1.0]), of(&[0.5, 0.0, 1.0]), of(&[0.0, 1.0, 2.0]), of(&[0.0, 0.0, -1.0])];
        cases.push(Case::new(Self::new(0.0), operands));
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
    fn shapes_and_parameters_that_do_not_fit_are_refused() {
        let ty = |dims: &[usize]| TensorType::f32(Shape::new(dims).unwrap());
        let (x, c) = (ty(&[2, 6, 5]), ty(&[6]));
        assert_eq!(GroupNorm::new(3, 1e-5).infer(&[x, c, c]).unwrap()[0], x);
        assert_eq!(BatchNorm::new(1e-5).infer(&[x, c, c, c, c]).unwrap()[0], x);
        for groups in [0, 4, 5, 7] {
            assert!(matches!(GroupNorm::new(groups, 1e-5).infer(&[x, c, c]), Err(Error::Parameter { .. })), "{groups}");
        }
        for eps in [-1.0, f32::NAN, f32::INFINITY] {
            assert!(matches!(GroupNorm::new(3, eps).infer(&[x, c, c]), Err(Error::Parameter { .. })));
            assert!(matches!(BatchNorm::new(eps).infer(&[x, c, c, c, c]), Err(Error::Parameter { .. })));
        }
        assert!(matches!(GroupNorm::new(1, 0.0).infer(&[c, c, c]), Err(Error::Shape { .. })));
        assert!(matches!(GroupNorm::new(1, 0.0).infer(&[x, c, ty(&[5])]), Err(Error::Shape { .. })));
        assert!(matches!(BatchNorm::new(0.0).infer(&[x, c, c, c]), Err(Error::Arity { .. })));
        let integers = TensorType::u32(c.shape);
        assert!(matches!(BatchNorm::new(0.0).infer(&[x, c, c, integers, c]), Err(Error::Type { index: 3, .. })));
    }
}
