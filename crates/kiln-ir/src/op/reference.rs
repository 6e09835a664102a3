//! The oracle: expected results in f64, cases, and the check of a result against its contract.

use super::{Bound, Op};
use crate::{Buffer, DType, Data, Error, Kind, Operand, Result, Shape, TensorType};

pub mod hard;

/// The exact elements of one result.
#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    /// Values, each with the magnitude that [`Bound::Magnitude`] is relative to.
    F32 {
        /// Exact values.
        values: Vec<f64>,
        /// Magnitudes, one for each value.
        magnitudes: Vec<f64>,
    },
    /// These elements; any NaN matches a NaN, any true matches a true.
    Exact(Buffer),
}

/// One input of a case.
#[derive(Debug, Clone)]
pub struct Input {
    /// Elements.
    pub buffer: Buffer,
    /// Extents.
    pub shape: Shape,
}

impl Input {
    /// A tensor of f32.
    ///
    /// # Panics
    /// When the data do not fill the extents: a case that is wrong must not run.
    pub fn f32(data: Vec<f32>, dims: &[usize]) -> Self {
        Self::new(Buffer::F32(data), dims)
    }

    /// A tensor of a type of single elements, with any bits at all.
    ///
    /// # Panics
    /// Panics where [`Input::f32`] does.
    pub fn any(dtype: DType, dims: &[usize], random: &mut Random) -> Self {
        let n: usize = dims.iter().product();
        let mut elements = Buffer::with_bytes(dtype, n * dtype.size()).expect("a case fits memory");
        elements.as_mut().as_bytes().fill_with(|| random.bits() as u8);
        // Half of all booleans are false.
        if dtype == DType::Bool {
            elements.as_mut().as_bytes().iter_mut().filter(|byte| **byte % 2 == 0).for_each(|byte| *byte = 0);
        }
        Self::new(elements, dims)
    }

    /// A tensor of any element type.
    ///
    /// # Panics
    /// Panics where [`Input::f32`] does.
    pub fn new(buffer: Buffer, dims: &[usize]) -> Self {
        let input = Self { buffer, shape: Shape::new(dims).expect("a case has a sound shape") };
        input.operand().expect("the data of a case fill its shape");
        input
    }

    /// Whether f32 elements are subnormal. Subnormal f16 are normal in f32, and subnormal bf16 are rare.
    fn has_subnormals(&self) -> bool {
        matches!(&self.buffer, Buffer::F32(elements) if elements.iter().any(|x| x.is_subnormal()))
    }

    /// The input with zeros in place of its subnormal f32 elements.
    fn flushed(&self) -> Self {
        let mut flushed = self.clone();
        if let Buffer::F32(elements) = &mut flushed.buffer {
            elements.iter_mut().filter(|x| x.is_subnormal()).for_each(|x| *x = 0f32.copysign(*x));
        }
        flushed
    }

    /// The input with its f32 elements cast to another type.
    pub(super) fn narrowed(&self, dtype: DType) -> Self {
        let mut narrowed = self.clone();
        if let Buffer::F32(elements) = &self.buffer {
            let bytes = elements.len() * dtype.size();
            narrowed.buffer = Buffer::with_bytes(dtype, bytes).expect("a case fits memory");
            crate::narrow(elements, narrowed.buffer.as_mut());
        }
        narrowed
    }

    /// The input as an operand.
    ///
    /// # Errors
    /// The errors of [`Operand::new`].
    pub fn operand(&self) -> Result<Operand<'_>> {
        Operand::new(self.buffer.as_data(), self.shape)
    }
}

/// An operation on inputs, to be run on every backend.
#[derive(Debug, Clone)]
pub struct Case {
    /// The operation.
    pub op: Op,
    /// Its inputs.
    pub inputs: Vec<Input>,
}

impl Case {
    /// A case.
    pub fn new(op: impl Into<Op>, inputs: Vec<Input>) -> Self {
        Self { op: op.into(), inputs }
    }

    /// The inputs as operands.
    ///
    /// # Errors
    /// The errors of [`Operand::new`].
    pub fn operands(&self) -> Result<Vec<Operand<'_>>> {
        self.inputs.iter().map(Input::operand).collect()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on", self.op)?;
        self.inputs.iter().try_for_each(|i| write!(f, " {}", i.shape))
    }
}

/// The accuracy of a result: the worst error in the unit of the bound.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Accuracy {
    /// Worst error: ULP for [`Bound::Ulp`] and [`Bound::Exact`], `u` times the magnitude for [`Bound::Magnitude`].
    pub worst: f64,
    /// Elements compared.
    pub compared: usize,
}

impl Accuracy {
    /// The worse of two.
    pub fn merge(self, other: Self) -> Self {
        Self { worst: self.worst.max(other.worst), compared: self.compared + other.compared }
    }
}

/// The distance of two neighbouring f32 at `x`: 2^-149 in the subnormal range, growing by binades above.
pub fn ulp(x: f64) -> f64 {
    let exponent = ((x.abs().to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
    f64::powi(2.0, exponent - 23)
}

/// The error of one value in the unit of the bound; `None` where the classes differ (NaN, infinity, sign of zero). Where the terms of a sum
/// add up to a magnitude beyond f32, so may a partial sum, and the result is then infinite or NaN.
pub fn error_of(bound: Bound, got: f32, exact: f64, magnitude: f64) -> Option<f64> {
    let rounded = exact as f32;
    let overflows = matches!(bound, Bound::Magnitude(_)) && magnitude > f64::from(f32::MAX);
    if overflows && exact.is_finite() && !got.is_finite() {
        return Some(0.0);
    }
    if exact.is_nan() || got.is_nan() {
        return (exact.is_nan() && got.is_nan()).then_some(0.0);
    }
    if got == rounded {
        let zero_of_another_sign = got == 0.0 && exact == 0.0 && got.is_sign_negative() != exact.is_sign_negative();
        return (!zero_of_another_sign || bound != Bound::Exact).then(|| match bound {
            Bound::Exact => 0.0,
            _ if got.is_infinite() => 0.0,
            Bound::Ulp(_) => (f64::from(got) - exact).abs() / ulp(exact),
            // One step of the subnormal range is always allowed: f32 has no closer numbers.
            Bound::Magnitude(_) => match ((f64::from(got) - exact).abs() - f64::powi(2.0, -149)).max(0.0) {
                0.0 => 0.0,
                error => error / (magnitude * f64::powi(2.0, -24)),
            },
        });
    }
    // Near overflow a result may round to either side: an infinity is measured as the first value beyond f32.
    let beyond = f64::powi(2.0, 128);
    let got = if got.is_infinite() { beyond.copysign(f64::from(got)) } else { f64::from(got) };
    if exact.is_infinite() || (got.abs() == beyond && exact.abs() < f64::from(f32::MAX) * (1.0 - 1e-6)) {
        return None;
    }
    let error = (got - exact).abs();
    Some(match bound {
        Bound::Exact | Bound::Ulp(_) => error / ulp(exact),
        Bound::Magnitude(_) => (error - f64::powi(2.0, -149)).max(0.0) / (magnitude * f64::powi(2.0, -24)),
    })
}

/// Compares results with what is expected.
///
/// # Errors
/// A sentence that names the first element beyond the bound.
pub fn check(bound: Bound, expected: &[Expected], got: &[Data<'_>]) -> Result<Accuracy, String> {
    check_either(bound, [expected, expected], false, got)
}

/// Compares results with two alternatives for each element. A `flushed` result may differ by at most the smallest
/// normal number.
fn check_either(bound: Bound, expected: [&[Expected]; 2], flushed: bool, got: &[Data<'_>]) -> Result<Accuracy, String> {
    let allowed = match bound {
        Bound::Exact => 0.0,
        Bound::Ulp(n) | Bound::Magnitude(n) => n,
    };
    let [first, second] = expected;
    if first.len() != got.len() {
        return Err(format!("{} results, expected {}", got.len(), first.len()));
    }
    let mut accuracy = Accuracy::default();
    for (result, ((first, second), got)) in first.iter().zip(second).zip(got).enumerate() {
        match (first, second, got) {
            (
                Expected::F32 { values, magnitudes },
                Expected::F32 { values: other_values, magnitudes: other_magnitudes },
                Data::F32(got),
            ) => {
                if values.len() != got.len() {
                    return Err(format!("result {result}: {} elements, expected {}", got.len(), values.len()));
                }
                for (i, &got) in got.iter().enumerate() {
                    let exact = values[i];
                    let of = |exact: f64, magnitude: f64| {
                        let off = (f64::from(got) - exact).abs();
                        let vanished = flushed && off <= f64::from(f32::MIN_POSITIVE);
                        if vanished { Some(0.0) } else { error_of(bound, got, exact, magnitude) }
                    };
                    let fits = |error: &f64| *error <= allowed;
                    let error = of(exact, magnitudes[i]);
                    let error = error.filter(fits).or_else(|| of(other_values[i], other_magnitudes[i]).filter(fits));
                    let Some(error) = error else {
                        let off = of(exact, magnitudes[i]);
                        return Err(format!(
                            "result {result}, element {i}: got {got:e}, exact {exact:e}, off by {off:?}, bound {bound}"
                        ));
                    };
                    accuracy = accuracy.merge(Accuracy { worst: error, compared: 1 });
                }
            }
            (Expected::Exact(want), Expected::Exact(other), got)
                if want.as_data().dtype() == got.dtype() && want.as_data().bytes() == got.bytes() =>
            {
                let n = got.bytes() / got.dtype().size();
                let [want, other] = [want, other].map(Buffer::as_data);
                if let Some(i) = (0..n).find(|&i| !same(&want, got, i) && !same(&other, got, i)) {
                    let (found, exact) = (got.load(i), want.load(i));
                    return Err(format!("result {result}, element {i}: got {found:e}, exact {exact:e}"));
                }
                accuracy.compared += n;
            }
            _ => return Err(format!("result {result}: got {got:?}, expected {first:?}")),
        }
    }
    Ok(accuracy)
}

/// Runs a case through `run` and checks what comes back.
///
/// # Errors
/// A sentence that names the case and what was wrong.
pub fn conform(
    case: &Case,
    run: impl FnOnce(&Op, &[Operand<'_>]) -> Result<Vec<Buffer>, Error>,
) -> Result<Accuracy, String> {
    conform_within(case, Op::bound, false, run)
}

/// Runs a case on a device with bounds of its own, which may take subnormal numbers for zero where `flushes`.
///
/// # Errors
/// A sentence that names the case and what was wrong.
pub fn conform_within(
    case: &Case,
    bound: impl FnOnce(&Op, &[TensorType]) -> Result<Bound>,
    flushes: bool,
    run: impl FnOnce(&Op, &[Operand<'_>]) -> Result<Vec<Buffer>, Error>,
) -> Result<Accuracy, String> {
    let name = |e: String| format!("{case}: {e}");
    let operands = case.operands().map_err(|e| name(e.to_string()))?;
    let expected = case.op.reference(&operands).map_err(|e| name(e.to_string()))?;
    // Most cases have no subnormal input, and the reference takes longer than the device.
    let flushed = match flushes && case.inputs.iter().any(Input::has_subnormals) {
        false => None,
        true => {
            let inputs: Vec<Input> = case.inputs.iter().map(Input::flushed).collect();
            let operands = inputs.iter().map(Input::operand).collect::<Result<Vec<_>>>();
            Some(operands.and_then(|operands| case.op.reference(&operands)).map_err(|e| name(e.to_string()))?)
        }
    };
    let got = run(&case.op, &operands).map_err(|e| name(e.to_string()))?;
    let got: Vec<Data<'_>> = got.iter().map(Buffer::as_data).collect();
    let types: Vec<TensorType> = operands.iter().map(Operand::ty).collect();
    let bound = bound(&case.op, &types).map_err(|e| name(e.to_string()))?;
    check_either(bound, [&expected, flushed.as_ref().unwrap_or(&expected)], flushes, &got).map_err(name)
}

/// Whether the elements of both at one position are equal, both NaN, or both true.
fn same(want: &Data<'_>, got: &Data<'_>, at: usize) -> bool {
    let size = got.dtype().size();
    let bytes = at * size..(at + 1) * size;
    let both = |holds: fn(f32) -> bool| holds(want.load(at)) && holds(got.load(at));
    match got.dtype().kind() {
        Kind::Float if both(f32::is_nan) => true,
        Kind::Truth => want.load(at) == got.load(at),
        _ => want.as_bytes()[bytes.clone()] == got.as_bytes()[bytes],
    }
}

/// Cases with f16 and with bf16 in place of f32, for every operation: the first few that are neither tiny nor large.
pub(super) fn stored_narrow(cases: &[Case]) -> Vec<Case> {
    [stored_as(cases, DType::F16, 6), stored_as(cases, DType::Bf16, 1)].concat()
}

fn stored_as(cases: &[Case], dtype: DType, few: usize) -> Vec<Case> {
    const LARGE: usize = 40_000;
    let mut taken = std::collections::HashMap::<&str, usize>::new();
    let mut stored = Vec::new();
    for case in cases {
        let elements: usize = case.inputs.iter().map(|input| input.shape.numel()).sum();
        let wide = |input: &Input| matches!(input.buffer, Buffer::F32(_));
        let count = taken.entry(case.op.name()).or_default();
        if !(64..LARGE).contains(&elements) || *count == few || !case.inputs.iter().any(wide) {
            continue;
        }
        *count += 1;
        // All inputs narrowed, and only the last one, as 16-bit weights with f32 activations. Operations that only move
        // elements have operands of one type.
        let all = case.inputs.iter().map(|input| input.narrowed(dtype)).collect();
        stored.push(Case { op: case.op, inputs: all });
        if !case.op.reads_as_stored()
            && let [before @ .., last] = &case.inputs[..]
            && !before.is_empty()
            && wide(last)
        {
            let inputs = [before, &[last.narrowed(dtype)]].concat();
            stored.push(Case { op: case.op, inputs });
        }
    }
    stored
}

/// Lengths around every boundary that a vector, a block of a tree or a cache block has: 0, 1, odd, prime, one before
/// and past lane counts, leaves and blocks.
pub const LENGTHS: [usize; 22] =
    [0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 257, 1000, 1023, 1025, 4099, 70_001];

/// Values with their own rules: zeros, subnormals, the ends of the range, infinities, NaN, and arguments where
/// activations saturate.
pub const SPECIAL: [f32; 40] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    1e-40,
    -1e-40,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-8,
    -1e-8,
    20.0,
    -20.0,
    88.7,
    88.8,
    -87.3,
    -88.0,
    -103.9,
    -104.0,
    -12.13,
    45.0,
    -95.0,
    1e20,
    -1e20,
    9.0,
    -9.0,
    0.1,
    1e-20,
];

/// A small deterministic generator (splitmix64): the same cases on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer below `bound` (0 when `bound` is 0).
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % (bound as u64).max(1)) as usize
    }

    /// Uniform in `lo..hi`.
    pub fn uniform(&mut self, lo: f32, hi: f32) -> f32 {
        let unit = (self.bits() >> 40) as f32 / (1u64 << 24) as f32;
        lo + unit * (hi - lo)
    }

    /// `n` values uniform in `lo..hi`.
    pub fn uniforms(&mut self, n: usize, lo: f32, hi: f32) -> Vec<f32> {
        (0..n).map(|_| self.uniform(lo, hi)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn only_sums_of_terms_beyond_f32_may_overflow_on_the_way() {
        let sum = Bound::Magnitude(8.0);
        for got in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(error_of(sum, got, -1e38, 4e38), Some(0.0), "{got}");
            assert_eq!(error_of(sum, got, -1e38, 3e38), None, "{got}");
            assert_eq!(error_of(Bound::Ulp(2.0), got, -1e38, 4e38), None, "{got}");
        }
        assert_eq!(error_of(sum, f32::NAN, f64::INFINITY, f64::INFINITY), None, "an infinite term");
        assert_eq!(error_of(sum, 1e38, f64::NAN, f64::INFINITY), None);
        assert!(error_of(sum, 1e38, -1e38, 4e38).is_some_and(|error| error > 8.0), "a finite result keeps the bound");
    }
}
