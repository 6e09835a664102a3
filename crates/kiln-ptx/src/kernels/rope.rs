//! Rotary position embedding.
//!
//! Pair `i` of the row at position `p` turns by `p θ^(-2i/n) / fᵢ`. Frequency, angle, sine and cosine are taken in f64, so that
//! they are as good as exact at every position that an operation may have, and a result is rounded once.

use kiln_ir::op::{Rope as RopeOp, RopeOperands, RopeStyle};
use kiln_ir::{Error, Result};

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Maximum pairs, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

type F64<'k> = Value<'k, f64>;

/// The rotation of pairs, in the style of an operation and with its operands. A thread rotates a pair, or copies two elements that
/// are not rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rope {
    style: RopeStyle,
    positions: bool,
    factors: bool,
}

impl Rope {
    /// A kernel for pairs of this style, with these operands.
    pub fn new(style: RopeStyle, operands: RopeOperands) -> Self {
        Self { style, positions: operands.positions.is_some(), factors: operands.factors.is_some() }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let bits = [false, true];
        let styles = [RopeStyle::HalfSplit, RopeStyle::Interleaved].into_iter();
        let with =
            |style| bits.into_iter().flat_map(move |positions| bits.map(|factors| Self { style, positions, factors }));
        styles.flat_map(with).collect()
    }

    /// The launch of an operation on `rows` rows of `columns` elements, with `positions` positions. Buffers: x, positions and
    /// factors where there are any, the result.
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
        let rotated = extent("columns", op.pairs(columns), MOST)?;
        let positions = extent("positions", positions, MOST)?;
        let first = extent("positions", op.position, RopeOp::POSITIONS as u64)?;
        let logarithm = f64::from(theta).log2().to_bits();
        let words = [n, half, rotated, positions, first, logarithm as u32, (logarithm >> 32) as u32].map(Argument::U32);
        let buffers = 2 + usize::from(self.positions) + usize::from(self.factors);
        let arguments = (0..buffers).map(Argument::Buffer).chain(words);
        let arguments = arguments.chain([Argument::F32(op.magnitude.get())]).collect();
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<f32>("x");
        let at = self.positions.then(|| k.buffer::<u32>("at"));
        let factors = self.factors.then(|| k.buffer::<f32>("factors"));
        let out = k.buffer::<f32>("out");
        let [n, half, rotated, positions, first, lower, upper] =
            ["n", "half", "rotated", "positions", "first", "lower", "upper"].map(|name| k.parameter::<u32>(name));
        let magnitude = k.parameter::<f32>("magnitude");
        let thread = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(thread, n), || {
            let (pair, row) = (thread % half, thread / half);
            let start = k.mul_wide(row, half) * 2u64;
            let turns = k.lt(pair, rotated);
            k.if_(turns, || {
                let index = row % positions;
                let position = k.cvt_rn_f64(first + at.map_or(index, |at| k.ld(at.index(index))));
                let logarithm = k.bits_f64(k.join(lower, upper));
                let frequency = exp2(k, -(k.cvt_rn_f64(pair) / k.cvt_rn_f64(rotated) * logarithm));
                let frequency = factors.map_or(frequency, |factors| {
                    let factor = k.ld(factors.index(pair));
                    // A factor that is not a positive normal number gives NaN.
                    let normal = k.lt(k.bits_u32(factor) - 0x80_0000u32, 0x7f00_0000u32);
                    frequency / k.selp(k.cvt_f64(factor), f64::NAN, normal)
                });
                let (sin, cos) = sin_cos(k, position * frequency);
                let magnitude = k.cvt_f64(magnitude);
                let (sin, cos) = (sin * magnitude, cos * magnitude);
                let (to_a, apart) = match self.style {
                    RopeStyle::HalfSplit => (start + k.cvt_u64(pair), k.cvt_u64(rotated)),
                    RopeStyle::Interleaved => (start + k.cvt_u64(pair) * 2u64, k.constant(1u64)),
                };
                let to_b = to_a + apart;
                let [a, b] = [to_a, to_b].map(|at| k.cvt_f64(k.ld(x.index_wide(at))));
                k.st(out.index_wide(to_a), k.cvt_rn_f32(a * cos - b * sin));
                k.st(out.index_wide(to_b), k.cvt_rn_f32(a * sin + b * cos));
            });
            k.if_(k.not(turns), || {
                let here = start + k.cvt_u64(pair) * 2u64;
                for at in [here, here + 1u64] {
                    k.st(out.index_wide(at), k.ld(x.index_wide(at)));
                }
            });
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

/// Sine and cosine of an angle in 0..2²⁵, by their series around the nearest multiple of π/2, which is subtracted in
/// two parts.
fn sin_cos<'k>(k: &'k Builder, angle: F64<'k>) -> (F64<'k>, F64<'k>) {
    use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};
    /// The difference between π/2 and the nearest f64.
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
    // Each quarter turn turns (sin, cos) into (cos, -sin).
    let swapped = k.eq(bits & 1u32, 1);
    let turned = |value: F64<'k>, bits: Value<'k, u32>| k.selp(-value, value, k.eq(bits & 2u32, 2));
    (turned(k.selp(cos, sin, swapped), bits), turned(k.selp(sin, cos, swapped), bits + 1))
}

impl Kernel for Rope {
    fn name(&self) -> String {
        let style = match self.style {
            RopeStyle::HalfSplit => "half_split",
            RopeStyle::Interleaved => "interleaved",
        };
        let operand = |there: bool, name: &'static str| if there { name } else { "" };
        format!("rope_{style}{}{}", operand(self.positions, "_at"), operand(self.factors, "_factors"))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
