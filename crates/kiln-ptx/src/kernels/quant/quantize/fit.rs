//! The search for scales and minima of kiln-ir's quantiser, step for step: the bytes must be the same.
//!
//! Sixteen lanes have a sub-block, each one of the steps that are tried, and hold all of its elements. Where products are
//! added up, both round.

use kiln_ir::QuantFormat;
use kiln_ir::quant::{DOUBLED, Values};

use crate::kernels::math::{F32, ROUNDER};
use crate::kernels::{half, team};
use crate::{Builder, Value};

type Word<'k> = Value<'k, u32>;

/// Number of steps that are tried, one per lane.
pub(super) const TRIALS: u32 = 16;
/// Their distance in units of one integer.
const SPACING: f32 = 0.125;
/// More than any format can represent.
const MOST: f32 = (1u32 << 30) as f32;
/// Half of the smallest step of any format; smaller values round to zero.
const LEAST: f32 = 1.0 / (1u32 << 25) as f32;
/// The bits of infinity: those of values that are not finite are at least this.
const INFINITY: u32 = f32::INFINITY.to_bits();

/// The bits of the largest magnitude among some elements: as integers, magnitudes have the order of the numbers.
pub(super) fn top<'k>(k: &'k Builder, x: impl IntoIterator<Item = F32<'k>>) -> Word<'k> {
    let magnitudes = x.into_iter().map(|x| k.bits_u32(x) & 0x7fff_ffffu32).collect();
    team::tree(magnitudes, |a, b| k.max(a, b)).unwrap_or_else(|| k.constant(0))
}

/// The greatest word among this many lanes, a power of two.
pub(super) fn top_of_lanes<'k>(k: &'k Builder, mut top: Word<'k>, lanes: u32) -> Word<'k> {
    let mut mask = lanes / 2;
    while mask > 0 {
        top = k.max(top, k.shfl_bfly(top, mask, team::WARP - 1, u32::MAX));
        mask /= 2;
    }
    top
}

/// The range of a block, from its largest magnitude.
#[derive(Clone, Copy)]
pub(super) struct Range<'k> {
    /// Whether it has neither NaN nor infinity.
    pub(super) finite: Value<'k, bool>,
    /// Whether it is finite and has an element that does not round to zero.
    pub(super) reached: Value<'k, bool>,
    /// The largest magnitude, clamped to the range of the formats.
    pub(super) largest: F32<'k>,
}

impl<'k> Range<'k> {
    pub(super) fn new(k: &'k Builder, top: Word<'k>) -> Self {
        let finite = k.lt(top, INFINITY);
        let reached = k.and(finite, k.ge(top, LEAST.to_bits()));
        Self { finite, reached, largest: k.bits_f32(k.min(top, MOST.to_bits())) }
    }

    /// An element, clamped to the range of the formats; 0 if the block has no nonzero element.
    pub(super) fn clean(&self, x: F32<'k>) -> F32<'k> {
        let k = x.builder;
        k.selp(clamp(x, -MOST, MOST), k.constant(0.0), self.reached)
    }

    /// The power of two that brings the largest magnitude to 2²⁹..2³⁰.
    pub(super) fn lift(&self) -> F32<'k> {
        let k = self.largest.builder;
        let lift = k.bits_f32((283u32 << 23) - (k.bits_u32(self.largest) & 0x7f80_0000u32));
        k.selp(lift, 1.0, self.reached)
    }
}

/// An element of [`Range::clean`] scaled for the search; values below 1 become 0.
pub(super) fn lifted<'k>(x: F32<'k>, lift: F32<'k>) -> F32<'k> {
    let k = x.builder;
    let x = x * lift;
    k.selp(0.0, x, k.lt(k.abs(x), 1.0))
}

/// A number other than NaN, clamped between two others.
pub(super) fn clamp<'k>(x: F32<'k>, lo: f32, hi: f32) -> F32<'k> {
    let k = x.builder;
    k.min(k.max(x, lo), hi)
}

/// A number below 2²² with its nearest integer, ties to even, in the lower bits.
pub(super) fn to_integer(x: F32<'_>) -> F32<'_> {
    x + ROUNDER
}

/// The nearest integer of a number below 2²², ties to even.
fn round(x: F32<'_>) -> F32<'_> {
    to_integer(x) - ROUNDER
}

/// `1 / step`, or 0 for a step that is 0.
pub(super) fn inverse(step: F32<'_>) -> F32<'_> {
    let k = step.builder;
    k.selp(0.0, k.rcp(step), k.eq(step, 0.0))
}

/// The bits of the nearest f16 to `x >= 0`: finite, not zero unless `x` is, and rounded up in the subnormal range.
pub(super) fn unit_bits(x: F32<'_>) -> Word<'_> {
    let k = x.builder;
    let bits = k.min(k.max(half::narrow(k, x), 1), 0x7bff);
    let below = k.and(k.lt(bits, 0x0400), k.lt(half::widen(k, bits), x));
    k.selp(k.selp(bits + 1, bits, below), 0, k.gt(x, 0.0))
}

/// The sum of a multiple of eight terms, over eight lanes.
pub(super) fn sum<'k>(terms: impl IntoIterator<Item = F32<'k>>) -> F32<'k> {
    let mut lanes: Vec<F32<'k>> = Vec::with_capacity(8);
    for (i, term) in terms.into_iter().enumerate() {
        match lanes.get_mut(i % 8) {
            Some(lane) => *lane = *lane + term,
            None => lanes.push(term),
        }
    }
    let four: Vec<F32<'k>> = (0..4).map(|i| lanes[i] + lanes[i + 4]).collect();
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The step or code that a lane tries.
pub(super) struct Trial<'k> {
    pub(super) number: Word<'k>,
}

impl<'k> Trial<'k> {
    /// Steps around the one that spans exactly this many levels.
    fn spread(&self, levels: f32, spacing: f32) -> F32<'k> {
        let k = self.number.builder;
        (k.cvt_rn_f32(self.number) - (TRIALS / 2) as f32) * spacing + levels
    }

    /// The values of the lane with the least error, the first of equal ones, among those for which `tried` holds and whose
    /// error is a number; `otherwise` where no value qualifies.
    fn best<const N: usize>(
        &self,
        error: F32<'k>,
        tried: Value<'k, bool>,
        values: [F32<'k>; N],
        otherwise: [F32<'k>; N],
    ) -> [F32<'k>; N] {
        let k = self.number.builder;
        let error = k.selp(k.bits_u32(error), INFINITY, tried);
        let least = team::butterfly(k.join(self.number, error), TRIALS, |a, b| k.min(a, b));
        let [number, error] = k.split(least);
        let lane = k.tid_x() & (team::WARP - TRIALS) | number;
        let found = k.lt(error, INFINITY);
        let value = |value| k.shfl_idx(value, lane, team::WARP - 1, u32::MAX);
        std::array::from_fn(|i| k.selp(value(values[i]), otherwise[i], found))
    }
}

/// 0, -1 and 1: the differences between a code and its neighbours.
fn neighbour(number: Word<'_>) -> F32<'_> {
    let k = number.builder;
    k.selp(-1.0, k.selp(1.0, k.constant(0.0), k.eq(number, 2)), k.eq(number, 1))
}

/// The numbers that integers of a symmetric format encode, in units of the scale.
#[derive(Debug, Clone, Copy)]
pub(super) enum Grid {
    /// Integers from this negative one up to its negation minus one.
    Whole(f32),
    /// Numbers of a code book, in ascending order.
    Book(&'static [i8; 16]),
}

impl Grid {
    pub(super) fn of(format: QuantFormat) -> Self {
        let layout = format.layout();
        match layout.values {
            Values::Book(book) => Self::Book(book),
            Values::Symmetric | Values::Affine => Self::Whole(-f32::from(1u16 << (layout.bits - 1))),
        }
    }

    /// The magnitude to which the first trial maps the largest element, and its change between trials.
    fn end(self) -> (f32, f32) {
        match self {
            Self::Whole(least) => (-least, SPACING),
            Self::Book(book) => (-f32::from(book[0]), 2.0),
        }
    }

    /// The entries of a code book except the last, each with the midpoint to the next and the next number.
    fn steps(book: &'static [i8; 16]) -> impl Iterator<Item = (f32, f32)> {
        book.windows(2).map(|pair| ((f32::from(pair[0]) + f32::from(pair[1])) * 0.5, f32::from(pair[1])))
    }

    /// The nearest number; at the midpoint of two book entries the lower.
    fn nearest<'k>(self, y: F32<'k>) -> F32<'k> {
        let k = y.builder;
        match self {
            Self::Whole(least) => round(clamp(y, least, -least - 1.0)),
            Self::Book(book) => {
                let least = k.constant(f32::from(book[0]));
                Self::steps(book).fold(least, |value, (middle, next)| k.selp(next, value, k.gt(y, middle)))
            }
        }
    }

    /// The integer that encodes the number nearest to `y`, in the lower bits.
    pub(super) fn integer<'k>(self, y: F32<'k>) -> F32<'k> {
        let k = y.builder;
        match self {
            Self::Whole(least) => to_integer(clamp(y, least, -least - 1.0)),
            Self::Book(book) => {
                let places = Self::steps(book).zip(1u8..);
                let place = places.fold(k.constant(0.0), |place, ((middle, _), next)| {
                    k.selp(f32::from(next), place, k.gt(y, middle))
                });
                to_integer(place)
            }
        }
    }
}

/// The midpoints of MXFP4's magnitudes: from here on a number rounds to the next.
const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// The MXFP4 number nearest to another; at a midpoint the one nearer to zero.
pub(super) fn doubled(y: F32<'_>) -> F32<'_> {
    let k = y.builder;
    let steps = MIDDLES.into_iter().zip(&DOUBLED[1..]);
    let magnitude =
        steps.fold(k.constant(0.0), |value, (middle, &next)| k.selp(f32::from(next), value, k.gt(k.abs(y), middle)));
    k.selp(-magnitude, magnitude, k.lt(y, 0.0))
}

/// The index of that number, as a float.
pub(super) fn place_of_doubled(y: F32<'_>) -> F32<'_> {
    let k = y.builder;
    let steps = MIDDLES.into_iter().zip(1u8..);
    let place =
        steps.fold(k.constant(0.0), |place, (middle, next)| k.selp(f32::from(next), place, k.gt(k.abs(y), middle)));
    k.selp(place + 8.0f32, place, k.and(k.lt(y, 0.0), k.gt(place, 0.0)))
}

/// The elements of a sub-block, and their weights.
pub(super) struct SubBlock<'k> {
    x: Vec<F32<'k>>,
    weights: Vec<F32<'k>>,
}

impl<'k> SubBlock<'k> {
    pub(super) fn new(x: Vec<F32<'k>>) -> Self {
        let k = x[0].builder;
        let rms = k.sqrt(sum(x.iter().map(|&x| x * x)) / x.len() as f32);
        let weights = x.iter().map(|&x| rms + k.abs(x)).collect();
        Self { x, weights }
    }

    /// `Σ w (x - (s q + b))²`
    fn error(&self, q: &[F32<'k>], s: F32<'k>, b: Option<F32<'k>>) -> F32<'k> {
        sum(self.x.iter().zip(&self.weights).zip(q).map(|((&x, &weight), &q)| {
            let y = s * q;
            let off = x - b.map_or(y, |b| y + b);
            weight * (off * off)
        }))
    }

    fn integers(&self, shift: F32<'k>, inverse: F32<'k>, most: f32) -> Vec<F32<'k>> {
        self.x.iter().map(|&x| round(clamp((x + shift) * inverse, 0.0, most))).collect()
    }

    fn on_grid(&self, grid: Grid, inverse: F32<'k>) -> Vec<F32<'k>> {
        self.x.iter().map(|&x| grid.nearest(x * inverse)).collect()
    }

    /// The scale and minimum of `x ≈ s q - m` with `q` in `0..=levels`. Neither is negative, except that the minimum
    /// may be if `signed`.
    pub(super) fn affine(&self, trial: &Trial<'k>, levels: f32, signed: bool) -> [F32<'k>; 2] {
        let k = self.x[0].builder;
        let zero = k.constant(0.0);
        let least = team::tree(self.x.clone(), |a, b| k.min(a, b)).unwrap_or(zero);
        let lo = if signed { least } else { k.min(least, 0.0) };
        let hi = team::tree(self.x.clone(), |a, b| k.max(a, b)).unwrap_or(zero);
        let q = self.integers(-lo, trial.spread(levels, SPACING) / (hi - lo), levels);
        let weights = || self.weights.iter().copied();
        let of_x = || weights().zip(&self.x).map(|(w, &x)| w * x);
        let of_q = || weights().zip(&q).map(|(w, &q)| w * q);
        let (sum_w, sum_x, sum_q) = (sum(weights()), sum(of_x()), sum(of_q()));
        let sum_qq = sum(of_q().zip(&q).map(|(wq, &q)| wq * q));
        let sum_xq = sum(of_x().zip(&q).map(|(wx, &q)| wx * q));
        // If all integers are equal, the determinant is rounding noise and only the scale can be solved for.
        let determinant = sum_w * sum_qq - sum_q * sum_q;
        let solvable = k.gt(determinant, 1e-4 * (sum_w * sum_qq));
        let s = (sum_w * sum_xq - sum_x * sum_q) / determinant;
        let b = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
        let both = if signed { solvable } else { k.and(solvable, k.le(b, 0.0)) };
        let alone = k.selp(sum_xq / sum_qq, 0.0, k.gt(sum_qq, 0.0));
        let (s, b) = (k.selp(s, alone, both), k.selp(b, zero, both));
        let tried = k.and(k.gt(hi, lo), k.ge(s, 0.0));
        let otherwise = match signed {
            // A scale has a larger range than a minimum.
            true => {
                let up = k.and(k.gt(lo, 0.0), k.le(hi, lo));
                [k.selp(lo / levels, zero, up), k.selp(zero, -lo, up)]
            }
            false => [zero, -lo],
        };
        trial.best(self.error(&q, s, Some(b)), tried, [s, -b], otherwise)
    }

    /// The codes, as floats up to `most`, of a scale and a minimum in these units, after trying the neighbours of the
    /// nearest ones.
    pub(super) fn affine_codes(
        &self,
        trial: &Trial<'k>,
        [levels, most]: [f32; 2],
        fit: [F32<'k>; 2],
        units: [F32<'k>; 2],
    ) -> [F32<'k>; 2] {
        let k = self.x[0].builder;
        let nearest = [0, 1].map(|i| round(clamp(fit[i] * inverse(units[i]), 0.0, most)));
        let neighbours = [trial.number / 3u32, trial.number % 3u32].map(neighbour);
        let codes = [0, 1].map(|i| clamp(nearest[i] + neighbours[i], 0.0, most));
        let [step, offset] = [0, 1].map(|i| units[i] * codes[i]);
        let q = self.integers(offset, inverse(step), levels);
        let error = self.error(&q, step, Some(-offset));
        trial.best(error, k.lt(trial.number, 9), codes, [k.constant(0.0); 2])
    }

    /// The scale of `x ≈ s q` with `q` on a grid; its sign maps the largest magnitude to the longer end of the grid.
    pub(super) fn symmetric(&self, trial: &Trial<'k>, grid: Grid) -> F32<'k> {
        let k = self.x[0].builder;
        let zero = k.constant(0.0);
        let extreme = extreme(&self.x);
        let (end, spacing) = grid.end();
        let q = self.on_grid(grid, -trial.spread(end, spacing) / extreme);
        let products = |with: &[F32<'k>]| {
            let terms = self.weights.iter().zip(with).zip(&q);
            sum(terms.map(|((&w, &x), &q)| w * x * q).collect::<Vec<_>>())
        };
        let s = products(&self.x) / products(&q);
        let [s] = trial.best(self.error(&q, s, None), k.ne(extreme, 0.0), [s], [zero]);
        s
    }

    /// The code, as a float, of a scale in this unit, after trying the neighbours of the nearest one.
    pub(super) fn symmetric_code(
        &self,
        trial: &Trial<'k>,
        grid: Grid,
        [least, most]: [f32; 2],
        fit: F32<'k>,
        unit: F32<'k>,
    ) -> F32<'k> {
        let k = self.x[0].builder;
        let nearest = round(clamp(fit * inverse(unit), least, most));
        let code = clamp(nearest + neighbour(trial.number), least, most);
        let step = unit * code;
        let q = self.on_grid(grid, inverse(step));
        let [code] = trial.best(self.error(&q, step, None), k.lt(trial.number, 3), [code], [k.constant(0.0)]);
        code
    }
}

/// The first of the elements of largest magnitude.
pub(super) fn extreme<'k>(x: &[F32<'k>]) -> F32<'k> {
    let k = x[0].builder;
    x.iter().fold(k.constant(0.0), |a, &b| k.selp(b, a, k.gt(k.abs(b), k.abs(a))))
}
