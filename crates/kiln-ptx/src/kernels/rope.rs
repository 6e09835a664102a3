//! Rotary position embedding.
//!
//! Pair `i` of the row at position `p` turns by `p θ^(-2i/d)`. Frequency, angle, sine and cosine are taken in f64, so that
//! they are as good as exact at every position that an operation may have, and a result is rounded once.

use kiln_ir::op::{Rope as RopeOp, RopeStyle};
use kiln_ir::{Error, Result};

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Pairs at most: 32 bits count what the last block reaches over.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

type F64<'k> = Value<'k, f64>;

/// The rotation of pairs, in the style of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rope {
    style: RopeStyle,
}

impl Rope {
    /// Of pairs of this style.
    pub fn new(style: RopeStyle) -> Self {
        Self { style }
    }

    /// Every kernel.
    pub fn all() -> [Self; 2] {
        [RopeStyle::HalfSplit, RopeStyle::Interleaved].map(Self::new)
    }

    /// The launch of an operation on `rows` rows of `columns` elements, of which `positions` follow one another. Buffer 0 is
    /// read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond 2³² - 257 pairs; [`Error::Parameter`] for a base below 1, with which angles may be greater
    /// than the kernel reduces.
    pub fn launch(&self, op: &RopeOp, rows: usize, positions: usize, columns: usize) -> Result<Launch> {
        let theta = op.theta.get();
        if theta < 1.0 {
            return Err(Error::Parameter { op: "rope", reason: format!("theta {theta} is less than 1") });
        }
        let n = extent("pairs", rows.saturating_mul(columns / 2), MOST)?;
        let half = extent("columns", columns / 2, MOST)?;
        let positions = extent("positions", positions, MOST)?;
        let first = extent("positions", op.position, RopeOp::POSITIONS as u64)?;
        let logarithm = f64::from(theta).log2().to_bits();
        let words = [n, half, positions, first, logarithm as u32, (logarithm >> 32) as u32].map(Argument::U32);
        let arguments = [Argument::Buffer(0), Argument::Buffer(1)].into_iter().chain(words).collect();
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<f32>(name));
        let [n, half, positions, first, lower, upper] =
            ["n", "half", "positions", "first", "lower", "upper"].map(|name| k.parameter::<u32>(name));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, n), || {
            let (pair, row) = (at % half, at / half);
            let position = k.cvt_rn_f64(first + row % positions);
            let logarithm = k.bits_f64(k.join(lower, upper));
            let frequency = exp2(k, -(k.cvt_rn_f64(pair) / k.cvt_rn_f64(half) * logarithm));
            let (sin, cos) = sin_cos(k, position * frequency);
            let row = k.mul_wide(row, half) * 2u64;
            let (to_a, apart) = match self.style {
                RopeStyle::HalfSplit => (row + k.cvt_u64(pair), k.cvt_u64(half)),
                RopeStyle::Interleaved => (row + k.cvt_u64(pair) * 2u64, k.constant(1u64)),
            };
            let to_b = to_a + apart;
            let [a, b] = [to_a, to_b].map(|at| k.cvt_f64(k.ld(x.index_wide(at))));
            k.st(out.index_wide(to_a), k.cvt_rn_f32(a * cos - b * sin));
            k.st(out.index_wide(to_b), k.cvt_rn_f32(a * sin + b * cos));
        });
    }
}

/// Added to a number below 2⁵¹, it leaves the nearest integer in the lower bits of the sum.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// The nearest integer, and its lower 32 bits.
fn nearest<'k>(k: &'k Builder, x: F64<'k>) -> (F64<'k>, Value<'k, u32>) {
    let shifted = x + ROUNDER;
    (shifted - ROUNDER, k.split(k.bits_u64(shifted))[0])
}

/// `c[0] + c[1] x + c[2] x² + ...`
fn polynomial<'k>(k: &'k Builder, x: F64<'k>, coefficients: &[f64]) -> F64<'k> {
    let mut coefficients = coefficients.iter().rev();
    let last = k.constant(coefficients.next().copied().unwrap_or(0.0));
    coefficients.fold(last, |sum, &c| k.fma(sum, x, c))
}

/// 2ˣ for x in ±1000, by the series of the exponential function.
fn exp2<'k>(k: &'k Builder, x: F64<'k>) -> F64<'k> {
    let (integer, bits) = nearest(k, x);
    let mut factorial = 1.0;
    let series: Vec<f64> = (0..15)
        .map(|i| {
            factorial *= f64::from(i.max(1));
            1.0 / factorial
        })
        .collect();
    let fraction = polynomial(k, (x - integer) * std::f64::consts::LN_2, &series);
    fraction * k.bits_f64(k.join(0, (bits + 1023) << 20))
}

/// Sine and cosine of an angle in 0..2²⁵, by their series about the nearest multiple of π/2, which is taken away in two
/// parts.
fn sin_cos<'k>(k: &'k Builder, angle: F64<'k>) -> (F64<'k>, F64<'k>) {
    use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};
    /// What π/2 is beyond the nearest f64.
    const REST: f64 = 6.123_233_995_736_766e-17;
    let (quarters, bits) = nearest(k, angle * FRAC_2_PI);
    let r = k.fma(-quarters, REST, k.fma(-quarters, FRAC_PI_2, angle));
    let square = r * r;
    let mut factorial = 1.0;
    let mut terms = [Vec::new(), Vec::new()];
    for i in 0..18i32 {
        factorial *= f64::from(i.max(1));
        terms[i as usize % 2].push(if i / 2 % 2 == 0 { 1.0 / factorial } else { -1.0 / factorial });
    }
    let [even, odd] = terms;
    let (cos, sin) = (polynomial(k, square, &even), r * polynomial(k, square, &odd));
    // Each quarter turn makes (sin, cos) of it (cos, -sin).
    let swapped = k.eq(bits & 1u32, 1);
    let turned = |value: F64<'k>, bits: Value<'k, u32>| k.selp(-value, value, k.eq(bits & 2u32, 2));
    (turned(k.selp(cos, sin, swapped), bits), turned(k.selp(sin, cos, swapped), bits + 1))
}

impl Kernel for Rope {
    fn name(&self) -> String {
        match self.style {
            RopeStyle::HalfSplit => "rope_half_split",
            RopeStyle::Interleaved => "rope_interleaved",
        }
        .to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
