//! The search for scales and minima: weighted least squares over a small family of roundings.
//!
//! A sub-block is to be written as `x ≈ s q` or `x ≈ s q - m` with small integers `q`. For given `q` the best `s` and
//! `m` follow from the normal equations; for given `s` and `m` the best `q` follow by rounding. So: round with sixteen
//! steps around the one that just spans the range, solve for each, and keep the solution with the least error. The
//! scales of a block are then rounded to codes in units of the largest, and each sub-block tries the neighbours of its
//! codes as well, because the rounding of one may be mended by the other.
//!
//! Errors are weighted with `rms(x) + |x|`: large weights of a layer matter more for its products.
//!
//! All sums run over eight lanes in a fixed order, so that vector code gives the same bits as scalar code. The search
//! works on elements that a power of two has taken to a range in which nothing that decides overflows or underflows, so
//! that a machine that takes subnormal numbers for zeros gives them too.

/// The bytes of the f16 NaN that marks a block as not representable.
pub(super) const NOT_FINITE: [u8; 2] = [0x00, 0x7e];

/// More than any format can represent, and small enough that no sum below overflows.
const MOST: f32 = (1u32 << 30) as f32;

/// Half of the smallest step of any format; smaller values round to zero.
const LEAST: f32 = 1.0 / (1u32 << 25) as f32;

/// Number of steps tried for each sub-block, and their distance in units of one integer.
const TRIALS: usize = 16;
const SPACING: f32 = 0.125;

/// The elements clamped to the range of all formats, and the largest magnitude among them; `None` if one of them is not
/// finite. A block that is entirely below the smallest step becomes zeros.
#[inline(always)]
pub(super) fn clean<const N: usize>(x: &[f32; N]) -> Option<([f32; N], f32)> {
    // As integers, magnitudes have the order of the numbers, and NaN is above infinity.
    let top = x.iter().fold(0, |top: u32, v| top.max(v.to_bits() & 0x7fff_ffff));
    if top >= f32::INFINITY.to_bits() {
        return None;
    }
    let largest = f32::from_bits(top);
    if largest < LEAST {
        return Some(([0.0; N], 0.0));
    }
    Some((floats(|i| x[i].clamp(-MOST, MOST)), largest.min(MOST)))
}

/// The elements of [`clean`] times a power of two that brings the largest magnitude to 2^29..2^30, and that power.
/// Elements that are then below 1, less than a thousandth of any step, become zeros.
#[inline(always)]
fn lifted<const N: usize>(x: &[f32; N]) -> Option<([f32; N], f32)> {
    let (x, largest) = clean(x)?;
    if largest == 0.0 {
        return Some((x, 1.0));
    }
    let lift = f32::from_bits((283 << 23) - (largest.to_bits() & 0x7f80_0000));
    let lifted = floats(|i| {
        let v = x[i] * lift;
        if v.abs() < 1.0 { 0.0 } else { v }
    });
    Some((lifted, lift))
}

/// `[f(0), f(1), ..]`, in one function that is always inlined: a call would lose the instruction set of the caller.
#[inline(always)]
fn floats<const N: usize>(mut f: impl FnMut(usize) -> f32) -> [f32; N] {
    let mut values = [0.0; N];
    for i in 0..N {
        values[i] = f(i);
    }
    values
}

/// Rounds to the nearest integer, ties to even, for magnitudes below 2^22.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    const MAGIC: f32 = (3u32 << 22) as f32;
    (x + MAGIC) - MAGIC
}

/// The f16 nearest to `x >= 0`, as bits; finite, and not zero unless `x` is. In the coarse subnormal range, the next
/// one above: too small a unit would clip the largest element.
#[inline(always)]
pub(super) fn unit_bits(x: f32) -> u16 {
    if x <= 0.0 {
        return 0;
    }
    let bits = half::f16::from_f32(x).to_bits().clamp(1, 0x7bff);
    if bits < 0x0400 && super::half(bits.to_le_bytes()) < x { bits + 1 } else { bits }
}

/// Sum in a fixed order; `N` is a multiple of eight.
#[inline(always)]
pub(super) fn sum<const N: usize>(terms: [f32; N]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for chunk in terms.as_chunks::<8>().0 {
        for l in 0..8 {
            lanes[l] += chunk[l];
        }
    }
    let four: [f32; 4] = floats(|i| lanes[i] + lanes[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

#[inline(always)]
fn products<const N: usize>(a: &[f32; N], b: &[f32; N]) -> [f32; N] {
    floats(|i| a[i] * b[i])
}

#[inline(always)]
fn importance<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let rms = (sum(products(x, x)) / N as f32).sqrt();
    floats(|i| rms + x[i].abs())
}

/// `Σ w (x - (s q + b))²`.
#[inline(always)]
fn error<const N: usize>(x: &[f32; N], w: &[f32; N], q: &[f32; N], s: f32, b: f32) -> f32 {
    sum::<N>(floats(|i| {
        let off = x[i] - (s * q[i] + b);
        w[i] * (off * off)
    }))
}

/// `round((x + shift) * inverse)`, clamped to `lo..=hi`.
#[inline(always)]
fn integers<const N: usize>(x: &[f32; N], shift: f32, inverse: f32, lo: f32, hi: f32) -> [f32; N] {
    floats(|i| round(((x[i] + shift) * inverse).clamp(lo, hi)))
}

/// `1 / step`, or 0 for a step that is 0.
#[inline(always)]
fn inverse(step: f32) -> f32 {
    if step == 0.0 { 0.0 } else { 1.0 / step }
}

/// Scale and minimum of `x ≈ s q - m` with `q` in `0..=levels`. Neither is negative, except that the minimum may be if
/// `SIGNED`.
#[inline(always)]
fn affine<const N: usize, const SIGNED: bool>(x: &[f32; N], w: &[f32; N], levels: f32) -> (f32, f32) {
    let start = if SIGNED { f32::MAX } else { 0.0 };
    let lo = x.iter().fold(start, |a, &b| if b < a { b } else { a });
    let hi = x.iter().fold(f32::MIN, |a, &b| if b > a { b } else { a });
    if hi <= lo {
        // A scale has a larger range than a minimum.
        return if lo > 0.0 { (lo / levels, 0.0) } else { (0.0, -lo) };
    }
    let wx = products(w, x);
    let (sum_w, sum_x) = (sum(*w), sum(wx));
    let mut best = (f32::INFINITY, 0.0, -lo);
    for trial in 0..TRIALS {
        let spread = levels + (trial as f32 - (TRIALS / 2) as f32) * SPACING;
        let q = integers(x, -lo, spread / (hi - lo), 0.0, levels);
        let wq = products(w, &q);
        let (sum_q, sum_qq, sum_xq) = (sum(wq), sum(products(&wq, &q)), sum(products(&wx, &q)));
        let determinant = sum_w * sum_qq - sum_q * sum_q;
        let (mut s, mut b) = (0.0, 0.0);
        // If all integers are equal, the determinant is rounding noise and only the scale can be solved for.
        let solvable = determinant > 1e-4 * (sum_w * sum_qq);
        if solvable {
            s = (sum_w * sum_xq - sum_x * sum_q) / determinant;
            b = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
        }
        if !solvable || (!SIGNED && b > 0.0) {
            (s, b) = (if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 }, 0.0);
        }
        let e = error(x, w, &q, s, b);
        if s >= 0.0 && e < best.0 {
            best = (e, s, -b);
        }
    }
    (best.1, best.2)
}

/// A block of affine sub-blocks.
pub(super) struct Affine<const LEN: usize, const SUBS: usize> {
    /// Bits of the f16 unit of the scales.
    pub(super) d: u16,
    /// Bits of the f16 unit of the minima.
    pub(super) dmin: u16,
    /// Codes of the scales.
    pub(super) scales: [u8; SUBS],
    /// Codes of the minima.
    pub(super) minima: [u8; SUBS],
    /// Integers of the elements.
    pub(super) q: [u8; LEN],
}

/// Fits a block of `SUBS` sub-blocks of `N` elements with integers in `0..=levels` and codes in `0..=most`; `None` when an
/// element is not finite.
#[inline(always)]
pub(super) fn fit_affine<const LEN: usize, const SUBS: usize, const N: usize>(
    x: &[f32; LEN],
    levels: f32,
    most: f32,
) -> Option<Affine<LEN, SUBS>> {
    let (x, lift) = lifted(x)?;
    let (subs, _) = x.as_chunks::<N>();
    // Loops instead of closures: a closure that is not inlined would lose the instruction set of the caller.
    let (mut weights, mut fits) = ([[0.0; N]; SUBS], [(0.0, 0.0); SUBS]);
    for j in 0..SUBS {
        weights[j] = importance(&subs[j]);
        fits[j] = affine::<N, false>(&subs[j], &weights[j], levels);
    }
    let largest = |f: fn(&(f32, f32)) -> f32| fits.iter().map(f).fold(0.0f32, |a, b| if b > a { b } else { a });
    let unit_of = |largest: f32| unit_bits(largest / most / lift);
    let (d, dmin) = (unit_of(largest(|f| f.0)), unit_of(largest(|f| f.1)));
    let mut block = Affine { d, dmin, scales: [0; SUBS], minima: [0; SUBS], q: [0; LEN] };
    let (unit, unit_min) = (super::half(d.to_le_bytes()) * lift, super::half(dmin.to_le_bytes()) * lift);
    for j in 0..SUBS {
        let code = |value: f32, unit: f32| round((value * inverse(unit)).clamp(0.0, most));
        let (scale, min) = (code(fits[j].0, unit), code(fits[j].1, unit_min));
        let mut best = (f32::INFINITY, 0.0, 0.0, [0.0; N]);
        for (ds, dm) in [(0, 0), (0, -1), (0, 1), (-1, 0), (-1, -1), (-1, 1), (1, 0), (1, -1), (1, 1)] {
            let (scale, min) = ((scale + ds as f32).clamp(0.0, most), (min + dm as f32).clamp(0.0, most));
            let (step, offset) = (unit * scale, unit_min * min);
            let q = integers(&subs[j], offset, inverse(step), 0.0, levels);
            let e = error(&subs[j], &weights[j], &q, step, -offset);
            if e < best.0 {
                best = (e, scale, min, q);
            }
        }
        (block.scales[j], block.minima[j]) = (best.1 as u8, best.2 as u8);
        for (q, v) in block.q[N * j..N * j + N].iter_mut().zip(best.3) {
            *q = v as u8;
        }
    }
    Some(block)
}

/// A block with one scale and one offset.
pub(super) struct Shifted {
    /// Bits of the f16 scale.
    pub(super) d: u16,
    /// Bits of the f16 that is added.
    pub(super) m: u16,
    /// Integers of the elements.
    pub(super) q: [u8; 32],
}

/// Fits `x ≈ d q + m` with `q` in `0..=levels`; `None` when an element is not finite.
#[inline(always)]
pub(super) fn fit_shifted(x: &[f32; 32], levels: f32) -> Option<Shifted> {
    let (x, lift) = lifted(x)?;
    let (s, minimum) = affine::<32, true>(&x, &importance(&x), levels);
    let d = unit_bits(s / lift);
    let sign = if minimum > 0.0 { 0x8000 } else { 0 };
    let m = unit_bits(minimum.abs() / lift) | sign;
    let (step, offset) = (super::half(d.to_le_bytes()) * lift, super::half(m.to_le_bytes()) * lift);
    let q = integers(&x, -offset, inverse(step), 0.0, levels);
    let mut block = Shifted { d, m, q: [0; 32] };
    for i in 0..32 {
        block.q[i] = q[i] as u8;
    }
    Some(block)
}

/// The numbers that the integers of a symmetric format encode, in units of the scale.
pub(super) trait Grid {
    /// The magnitude to which the first trial maps the largest element.
    const END: f32;
    /// The change of that magnitude between trials.
    const SPACING: f32;

    /// The nearest number.
    fn nearest(y: f32) -> f32;
    /// The integer that is stored for a number of the grid.
    fn integer(value: f32) -> u8;
}

/// Integers in `-HALF..HALF`, stored with `HALF` added.
pub(super) struct Whole<const HALF: u8>;

impl<const HALF: u8> Grid for Whole<HALF> {
    const END: f32 = HALF as f32;
    const SPACING: f32 = SPACING;

    #[inline(always)]
    fn nearest(y: f32) -> f32 {
        round(y.clamp(-Self::END, Self::END - 1.0))
    }

    #[inline(always)]
    fn integer(value: f32) -> u8 {
        (value + Self::END) as u8
    }
}

/// The numbers of [`NORMAL`], stored as their index.
pub(super) struct Normal;

/// The midpoints between neighbours of [`NORMAL`].
const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        middles[i] = (super::NORMAL[i] as f32 + super::NORMAL[i + 1] as f32) * 0.5;
        i += 1;
    }
    middles
};

impl Grid for Normal {
    const END: f32 = 127.0;
    const SPACING: f32 = 2.0;

    #[inline(always)]
    fn nearest(y: f32) -> f32 {
        let mut value = f32::from(super::NORMAL[0]);
        for i in 0..15 {
            value = if y > MIDDLES[i] { f32::from(super::NORMAL[i + 1]) } else { value };
        }
        value
    }

    #[inline(always)]
    fn integer(value: f32) -> u8 {
        let mut place = 0;
        for middle in MIDDLES {
            place += u8::from(value > middle);
        }
        place
    }
}

/// Rounds `x * inverse` to the nearest numbers of a grid.
#[inline(always)]
fn on_grid<const N: usize, G: Grid>(x: &[f32; N], inverse: f32) -> [f32; N] {
    floats(|i| G::nearest(x[i] * inverse))
}

/// The first of the numbers with the largest magnitude.
#[inline(always)]
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |a, &b| if b.abs() > a.abs() { b } else { a })
}

/// The scale of `x ≈ s q` with `q` on a grid; its sign maps the largest magnitude to the longer end of the grid.
#[inline(always)]
fn symmetric<const N: usize, G: Grid>(x: &[f32; N], w: &[f32; N]) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    let wx = products(w, x);
    let mut best = (f32::INFINITY, 0.0);
    for trial in 0..TRIALS {
        let spread = G::END + (trial as f32 - (TRIALS / 2) as f32) * G::SPACING;
        let q = on_grid::<N, G>(x, -spread / extreme);
        let wq = products(w, &q);
        let s = sum(products(&wx, &q)) / sum(products(&wq, &q));
        let e = error(x, w, &q, s, 0.0);
        if e < best.0 {
            best = (e, s);
        }
    }
    best.1
}

/// A block of symmetric sub-blocks.
pub(super) struct Symmetric<const LEN: usize, const SUBS: usize> {
    /// Bits of the f16 unit of the scales.
    pub(super) d: u16,
    /// Codes of the scales.
    pub(super) scales: [i8; SUBS],
    /// Integers of the elements.
    pub(super) q: [u8; LEN],
}

/// Fits a block of `SUBS` sub-blocks of `N` elements with codes in `-half..half`; `None` when an element is not finite.
#[inline(always)]
pub(super) fn fit_symmetric<const LEN: usize, const SUBS: usize, const N: usize, G: Grid>(
    x: &[f32; LEN],
    half: f32,
) -> Option<Symmetric<LEN, SUBS>> {
    let (x, lift) = lifted(x)?;
    let (subs, _) = x.as_chunks::<N>();
    let (mut weights, mut fits) = ([[0.0; N]; SUBS], [0.0f32; SUBS]);
    for j in 0..SUBS {
        weights[j] = importance(&subs[j]);
        fits[j] = symmetric::<N, G>(&subs[j], &weights[j]);
    }
    // The largest scale gets the code -half.
    let extreme = extreme(&fits);
    let sign = if extreme > 0.0 { 0x8000 } else { 0 };
    let d = unit_bits(extreme.abs() / half / lift) | sign;
    let mut block = Symmetric { d, scales: [0; SUBS], q: [G::integer(0.0); LEN] };
    let unit = super::half(d.to_le_bytes()) * lift;
    for j in 0..SUBS {
        let scale = round((fits[j] * inverse(unit)).clamp(-half, half - 1.0));
        let mut best = (f32::INFINITY, 0.0, [0.0; N]);
        for ds in [0.0, -1.0, 1.0] {
            let scale = (scale + ds).clamp(-half, half - 1.0);
            let step = unit * scale;
            let q = on_grid::<N, G>(&subs[j], inverse(step));
            let e = error(&subs[j], &weights[j], &q, step, 0.0);
            if e < best.0 {
                best = (e, scale, q);
            }
        }
        block.scales[j] = best.1 as i8;
        for (q, v) in block.q[N * j..N * j + N].iter_mut().zip(best.2) {
            *q = G::integer(v);
        }
    }
    Some(block)
}

/// A block with one scale.
pub(super) struct Scaled {
    /// Bits of the f16 scale.
    pub(super) d: u16,
    /// Integers of the elements.
    pub(super) q: [u8; 32],
}

/// Fits `x ≈ d q` with `q` on a grid; `None` when an element is not finite.
#[inline(always)]
pub(super) fn fit_scaled<G: Grid>(x: &[f32; 32]) -> Option<Scaled> {
    let (x, lift) = lifted(x)?;
    let s = symmetric::<32, G>(&x, &importance(&x));
    let sign = if s < 0.0 { 0x8000 } else { 0 };
    let d = unit_bits(s.abs() / lift) | sign;
    let q = on_grid::<32, G>(&x, inverse(super::half(d.to_le_bytes()) * lift));
    let mut block = Scaled { d, q: [0; 32] };
    for i in 0..32 {
        block.q[i] = G::integer(q[i]);
    }
    Some(block)
}
