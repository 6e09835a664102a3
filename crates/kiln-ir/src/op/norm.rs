use super::rows::per_element;
#[cfg(feature = "reference")]
use super::rows::{by_rows, row_inputs};
use super::{Bound, Contract, Operation, Outputs, Param};
use crate::{DType, Error, Result, TensorType};

/// Every row shifted to mean 0 and scaled to variance 1, then scaled by `gamma` and shifted by `beta`.
///
/// Operands: `x` `[.., n]`, `gamma` `[n]`, `beta` `[n]`. The variance is that of the population (divided by n).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerNorm {
    /// Added to the variance: finite, not negative.
    pub eps: Param,
}

/// Every row scaled to a mean square of 1, then scaled by `gamma`.
///
/// Operands: `x` `[.., n]`, `gamma` `[n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    /// Added to the mean square: finite, not negative.
    pub eps: Param,
}

impl LayerNorm {
    /// With this constant added to the variance.
    pub fn new(eps: f32) -> Self {
        Self { eps: eps.into() }
    }
}

impl RmsNorm {
    /// With this constant added to the mean square.
    pub fn new(eps: f32) -> Self {
        Self { eps: eps.into() }
    }
}

/// The shape rule of the normalisations: every operand except the first is a vector as long as a row.
fn infer_norm(op: &'static str, eps: Param, inputs: &[TensorType], operands: &[&str]) -> Result<Outputs> {
    super::expect_types(op, inputs, &[DType::F32; 3][..operands.len() + 1])?;
    let x = inputs[0].shape;
    if x.rank() == 0 {
        return Err(Error::Shape { op, reason: "a scalar has no rows".into() });
    }
    for (input, operand) in inputs[1..].iter().zip(operands) {
        if input.shape.dims() != [x.columns()] {
            let reason = format!("{operand} {} is not [{}], the length of a row of {x}", input.shape, x.columns());
            return Err(Error::Shape { op, reason });
        }
    }
    let eps = eps.get();
    if !eps.is_finite() || eps < 0.0 {
        return Err(Error::Parameter { op, reason: format!("eps = {eps} is not finite or is negative") });
    }
    Ok(TensorType::f32(x).into())
}

impl Operation for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn formula(&self) -> &'static str {
        "(xᵢ - μ) / √(σ² + eps) γᵢ + βᵢ, μ and σ² mean and variance of the row"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        infer_norm(self.name(), self.eps, inputs, &["gamma", "beta"])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        per_element(inputs, 8)
    }

    fn contract(&self) -> Contract {
        Contract {
            // The mean is corrected by the mean of the differences from it, so an offset of the row does not reduce
            // accuracy.
            //
            // Let d be the differences from a center, m and M the means of d and of d². A sum takes 22 roundings as in
            // RMS normalisation: with the roundings of d and d², m has an error of 23 u √M at most, M of 24 u M
            // (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). A center is used only if 2 m² <= M, or it
            // is the f32 next to the mean, which has the same effect: so σ² = M - m², at least M / 2, has a relative
            // error of 2 (24 + 46 √½) u, and its root of half of that, 57 u. z has an error of 57 + 6 relative to its
            // own magnitude, and a smaller one, 23 √2 + 6, relative to 1. If all roundings were independent with mean
            // zero, each count would contribute a quarter of its square root, as for products of matrices: 2 u in the
            // root mean square, a quarter of the bound.
            bound: Bound::Magnitude(8.0),
            special: "the bound is relative to (1 + |zᵢ|) |γᵢ| + |βᵢ|, z = (x - μ) / √(σ² + eps), whatever the offset of the \
                      row; it is four times the error of independent roundings, and is tested; the proven bound on the CPU, for any \
                      row, is 63 u; a row with NaN or ±∞ gives NaN; finite rows neither \
                      overflow nor vanish; σ² + eps = 0 gives NaN",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (gamma, beta) = (inputs[1].data().f32(), inputs[2].data().f32());
        let eps = f64::from(self.eps.get());
        by_rows(inputs, |row, values, magnitudes| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let deviation = (row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n + eps).sqrt();
            for ((x, &gamma), &beta) in row.iter().zip(gamma).zip(beta) {
                let (z, gamma, beta) = ((x - mean) / deviation, f64::from(gamma), f64::from(beta));
                values.push(z * gamma + beta);
                magnitudes.push((1.0 + z.abs()) * gamma.abs() + beta.abs());
            }
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(33);
        let mut inputs = row_inputs(34);
        // Variances far below the square of the mean.
        for offset in [1e4, 1e6, -3e7] {
            inputs.push(Input::f32(random.uniforms(5 * 1000, offset, offset + 100.0), &[5, 1000]));
        }
        let mut cases = Vec::new();
        for x in inputs {
            let n = x.shape.columns();
            let gamma = Input::f32(random.uniforms(n, -2.0, 2.0), &[n]);
            let beta = Input::f32(random.uniforms(n, -2.0, 2.0), &[n]);
            cases.push(Case::new(Self::new(1e-5), vec![x, gamma, beta]));
        }
        for (lo, hi) in [(-1e-20, 1e-20), (1e-40, 2e-40), (1e30, 2e30), (-3e38, 3e38)] {
            let x = Input::f32(random.uniforms(2 * 77, lo, hi), &[2, 77]);
            let ones = Input::f32(vec![1.0; 77], &[77]);
            cases.push(Case::new(Self::new(0.0), vec![x, ones.clone(), ones]));
        }
        cases
    }
}

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn formula(&self) -> &'static str {
        "xᵢ / √(Σ xⱼ² / n + eps) γᵢ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        infer_norm(self.name(), self.eps, inputs, &["gamma"])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        per_element(inputs, 4)
    }

    fn contract(&self) -> Contract {
        Contract {
            // A square passes through at most 22 roundings of its sum: 8 of a running sum, 4 of such sums, 4 of the
            // remainder at the end of a row, 2 and 4 for sums side by side; the rest is f64. The root halves them; the
            // root and its reciprocal are computed in f64 and rounded once; two products follow.
            bound: Bound::Magnitude(14.0),
            special: "the bound is relative to |yᵢ|; a row with NaN or ±∞ gives NaN where xᵢ is one and NaN or 0 \
                      elsewhere; finite rows neither overflow nor vanish; a row of zeros with eps = 0 gives NaN",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let gamma = inputs[1].data().f32();
        let eps = f64::from(self.eps.get());
        by_rows(inputs, |row, values, magnitudes| {
            let scale = (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + eps).sqrt();
            for (x, &gamma) in row.iter().zip(gamma) {
                let y = x / scale * f64::from(gamma);
                values.push(y);
                magnitudes.push(y.abs());
            }
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(35);
        let mut cases = Vec::new();
        for x in row_inputs(36) {
            let n = x.shape.columns();
            let gamma = Input::f32(random.uniforms(n, -2.0, 2.0), &[n]);
            cases.push(Case::new(Self::new(1e-5), vec![x, gamma]));
        }
        for (lo, hi) in [(-1e-20, 1e-20), (1e-40, 2e-40), (1e30, 2e30), (-3e38, 3e38)] {
            let x = Input::f32(random.uniforms(2 * 77, lo, hi), &[2, 77]);
            cases.push(Case::new(Self::new(0.0), vec![x, Input::f32(vec![1.0; 77], &[77])]));
        }
        // The factors of an element, the scale and gamma, are subnormal numbers or infinities as a product. Zeros stay zeros.
        for (x, gamma) in [(1e15, 1e-25), (1e-12, 1e27)] {
            let mut gammas = random.uniforms(77, gamma, 2.0 * gamma);
            gammas[5] = 0.0;
            let x = Input::f32(random.uniforms(2 * 77, x, 2.0 * x), &[2, 77]);
            cases.push(Case::new(Self::new(0.0), vec![x, Input::f32(gammas, &[77])]));
        }
        let gamma = Input::f32(vec![1e27; 77], &[77]);
        cases.push(Case::new(Self::new(1e-30), vec![Input::f32(vec![0.0; 77], &[1, 77]), gamma]));
        // Scaled by the largest number, the others become subnormal and then larger again: rounding twice would give an
        // error of one step times gamma.
        let mut beside = random.uniforms(70, -1e-5, 1e-5);
        beside[3] = f32::MAX;
        let gamma = Input::f32(random.uniforms(70, -50.0, 50.0), &[70]);
        cases.push(Case::new(Self::new(1e-5), vec![Input::f32(beside, &[1, 70]), gamma]));
        cases
    }
}
