use super::{Bound, Contract, Operation, Outputs, Param};
use crate::{DType, Error, Result, Shape, TensorType};

/// The exponential function of every row, divided by its sum. Rows are along the last dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Softmax;

/// The logarithm of [`Softmax`], without the detour through numbers that vanish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogSoftmax;

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

fn per_element(inputs: &[TensorType], flops: u64) -> u64 {
    super::product(&[inputs[0].shape.numel()]).saturating_mul(flops)
}

/// Calls `row` for every row; it appends values and magnitudes.
#[cfg(feature = "reference")]
fn by_rows(
    inputs: &[crate::Operand<'_>],
    row: impl Fn(&[f64], &mut Vec<f64>, &mut Vec<f64>),
) -> Vec<super::reference::Expected> {
    let x: Vec<f64> = inputs[0].data().f32().iter().map(|&v| f64::from(v)).collect();
    let (mut values, mut magnitudes) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len()));
    // Without columns there are no rows.
    for r in x.chunks_exact(inputs[0].shape().columns().max(1)) {
        row(r, &mut values, &mut magnitudes);
    }
    vec![super::reference::Expected::F32 { values, magnitudes }]
}

#[cfg(feature = "reference")]
fn greatest(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::NEG_INFINITY, super::maximum)
}

/// Test inputs of every operation on rows: shapes, then special values among ordinary ones.
#[cfg(feature = "reference")]
fn row_inputs(seed: u64) -> Vec<super::reference::Input> {
    use super::reference::{Input, LENGTHS, Random, SPECIAL};
    let mut random = Random::new(seed);
    let mut inputs: Vec<Input> = LENGTHS.into_iter().map(|n| Input::f32(random.uniforms(n, -9.0, 9.0), &[n])).collect();
    let shapes: [&[usize]; 8] =
        [&[3, 5], &[17, 64], &[2, 5000], &[4, 3, 7], &[0, 5], &[5, 0], &[40, 2049], &[2, 2, 1, 33]];
    // Longer than the part of a row that any kernel holds in registers; so is the longest of the lengths.
    let long: [&[usize]; 3] = [&[2, 9001], &[2, 20_000], &[1, 131_073]];
    for dims in shapes.into_iter().chain(long) {
        inputs.push(Input::f32(random.uniforms(dims.iter().product(), -9.0, 9.0), dims));
    }
    // Ranges: narrow around a large offset, wide, small.
    for (lo, hi) in [(1000.0, 1010.0), (-1000.0, 1000.0), (-1e-3, 1e-3), (0.0, 0.1)] {
        inputs.push(Input::f32(random.uniforms(7 * 300, lo, hi), &[7, 300]));
    }
    for special in SPECIAL {
        for (n, at) in [(3, 1), (100, 0), (100, 99), (5000, 2100)] {
            let mut data = random.uniforms(n, -1.0, 1.0);
            data[at] = special;
            inputs.push(Input::f32(data, &[1, n]));
        }
        inputs.push(Input::f32(vec![special; 33], &[33]));
    }
    inputs.push(Input::f32(vec![f32::NEG_INFINITY; 5000], &[5000]));
    // One finite number after more than a block of -∞.
    let mut late = vec![f32::NEG_INFINITY; 5000];
    late[4900] = -200.0;
    inputs.push(Input::f32(late, &[5000]));
    inputs
}

/// The error bound of the sum of a row's exponentials, in u relative to the sum, including the error of each
/// exponential. An exponential has an error of (1.3 + 1.25 (m - x)) u, which weighted by the exponentials is at most
/// 1.25 ln n. Then come 15 roundings of a running sum, one for adding two of them, 5 for their sum, and 4 across the
/// lanes; the rest is f64, rounded once.
fn exponentials_worst(inputs: &[TensorType]) -> f64 {
    let n = inputs.first().map_or(1, |input| input.shape.columns().max(1));
    1.3 + 1.3 + 26.0 + 1.25 * (n as f64).ln()
}

/// Rows with equal exponentials, or with exponentials that each make the running sum round.
#[cfg(feature = "reference")]
fn worst_rows() -> Vec<super::reference::Input> {
    use super::reference::Input;
    let mut rows = Vec::new();
    for (n, x) in [(1024, -0.109), (2048, -0.22), (2049, -0.3), (100_000, -2.0)] {
        let mut row = vec![x; n];
        row[0] = 0.0;
        rows.push(Input::f32(row, &[n]));
    }
    // A little more than half a unit in the last place of 1, at every step of a lane that holds the 1.
    for lanes in [1, 4, 8, 16] {
        let mut row = vec![f32::NEG_INFINITY; 2 * lanes * 64];
        row.iter_mut().step_by(2 * lanes).for_each(|x| *x = -16.635_54);
        row[0] = 0.0;
        rows.push(Input::f32(row.clone(), &[row.len()]));
    }
    rows
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn formula(&self) -> &'static str {
        "exp(xᵢ - m) / Σ exp(xⱼ - m), m = max x"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(self.name(), inputs, &[DType::F32])?;
        Ok(TensorType::f32(inputs[0].shape).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        per_element(inputs, 14)
    }

    fn contract(&self) -> Contract {
        Contract {
            // Relative: m - x rounds by (m - x) u, which exp carries over; exp itself 2 u; the sum of exponentials
            // 2 u of theirs and, where its roundings are independent, 1.6 u of its tree; reciprocal and product 1 u each.
            bound: Bound::Magnitude(8.0),
            special: "the bound is relative to yᵢ (1 + m - xᵢ), and more than twice the error of independent roundings; if all have \
                      one direction, the error may reach 33 + 1.25 ln n on the CPU; a row with NaN or +∞, or with only -∞, gives \
                      NaN; -∞ in another row gives 0; an empty row stays empty",
        }
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        Bound::Magnitude(4.0 + exponentials_worst(inputs))
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        worst_rows().into_iter().map(|x| super::reference::Case::new(Self, vec![x])).collect()
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        by_rows(inputs, |row, values, magnitudes| {
            let m = greatest(row);
            let sum: f64 = row.iter().map(|x| (x - m).exp()).sum();
            for x in row {
                let y = (x - m).exp() / sum;
                values.push(y);
                magnitudes.push(if y == 0.0 { 0.0 } else { y * (1.0 + (m - x)) });
            }
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let mut cases: Vec<Case> = row_inputs(31).into_iter().map(|x| Case::new(Self, vec![x])).collect();
        cases.push(Case::new(Self, vec![Input::f32(vec![3.0], &[])]));
        cases
    }
}

impl Operation for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
    }

    fn formula(&self) -> &'static str {
        "xᵢ - m - ln Σ exp(xⱼ - m), m = max x"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(self.name(), inputs, &[DType::F32])?;
        Ok(TensorType::f32(inputs[0].shape).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        per_element(inputs, 14)
    }

    fn contract(&self) -> Contract {
        Contract {
            // A relative error of the sum, 3.6 u as for softmax, becomes an absolute error of its logarithm; the two
            // subtractions round by u of their results.
            bound: Bound::Magnitude(6.0),
            special: "the bound is relative to 1 + (m - xᵢ) + ln Σ, and more than twice the error of independent roundings; if all have \
                      one direction, the error may reach 32 + 1.25 ln n on the CPU; a row with NaN or +∞, or with only -∞, gives \
                      NaN; -∞ in another row gives -∞; an empty row stays empty",
        }
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        Bound::Magnitude(3.0 + exponentials_worst(inputs))
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        worst_rows().into_iter().map(|x| super::reference::Case::new(Self, vec![x])).collect()
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        by_rows(inputs, |row, values, magnitudes| {
            let m = greatest(row);
            let log = row.iter().map(|x| (x - m).exp()).sum::<f64>().ln();
            for x in row {
                values.push(x - m - log);
                magnitudes.push(1.0 + (m - x) + log);
            }
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::Case;
        row_inputs(32).into_iter().map(|x| Case::new(Self, vec![x])).collect()
    }
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
        // Scaled by the largest number, the others become subnormal and then larger again: rounding twice would give an
        // error of one step times gamma.
        let mut beside = random.uniforms(70, -1e-5, 1e-5);
        beside[3] = f32::MAX;
        let gamma = Input::f32(random.uniforms(70, -50.0, 50.0), &[70]);
        cases.push(Case::new(Self::new(1e-5), vec![Input::f32(beside, &[1, 70]), gamma]));
        cases
    }
}

/// The shape of `data` seen as rows of `columns`, for callers that hold a slice.
///
/// # Errors
/// [`Error::Shape`] when the data are not whole rows.
pub fn rows_of(op: &'static str, data: &[f32], columns: usize) -> Result<Shape> {
    let whole = if columns == 0 { data.is_empty() } else { data.len().is_multiple_of(columns) };
    if !whole {
        return Err(Error::Shape { op, reason: format!("{} elements are not whole rows of {columns}", data.len()) });
    }
    Shape::new(&[data.len() / columns.max(1), columns])
}
