//! Rows of x as numbers of f16.
//!
//! `x ≈ unit (h + l / 2048)`, with the nearest f16 h and then l, and a power of two for a row as the unit, so that the largest
//! magnitude of h is from 2¹⁴ to 2¹⁵. That is within 2⁻³⁶ units. Where 32 adjacent elements are all below 2⁻¹⁶ units, and are not all
//! zero, that is more than the contract of the product allows: the row's unit becomes NaN, as for elements that are not finite, and
//! so do its products, which are computed again.

use kiln_ir::op::RmsNorm;
use kiln_ir::{QuantFormat, Result};

use super::f16_weights::{CHUNK, GROUP, LOWER, MINIMUM, Packing};
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::half::{pack, unpack};
use crate::kernels::math::F32;
use crate::kernels::team;
use crate::{Argument, Builder, F16, Global, Kernel, Launch, Pointer, PtxKernel, PtxType, Value};

/// Threads of a block, which has a row.
const TEAM: u32 = 512;
/// Elements of a vector, and of a thread: a quarter of a group.
const VECTOR: u32 = 4;
const OWN: u32 = 2 * VECTOR;
/// Threads of a group, and the differences of their numbers.
const QUAD: u32 = GROUP / OWN;
const MASKS: [u32; 2] = [1, 2];
/// The exponent of the largest magnitude in units.
const TOP: u32 = 14;
/// Largest magnitudes, as bits, for which neither the unit nor its inverse is subnormal: from 2⁻¹¹² on.
const LEAST: u32 = (TOP + 1) << 23;
const MOST: u32 = f32::MAX.to_bits();
/// The smallest magnitude that a group has to reach.
const LEAST_OF_GROUP: f32 = 1.0 / 65_536.0;

/// Rounds rows of x to f16, once or in two parts, and sums groups of 32 elements where weights have minima. If they are normalised
/// first, normalised rows are written, too: products that are not finite are computed from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HalfRows {
    /// Adjacent elements that the lanes of a quad share, 16 or 32: this determines the order in a row.
    adjacent: u32,
    has_lower: bool,
    has_sums: bool,
    is_normed: bool,
}

impl HalfRows {
    pub(super) fn new(packing: Packing, has_lower: bool, is_normed: bool) -> Self {
        Self { adjacent: packing.adjacent(), has_lower, has_sums: packing.has_minima(), is_normed }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let formats = [QuantFormat::Q4K, QuantFormat::Q6K, QuantFormat::Q8_0, QuantFormat::Q4_1];
        let of = |packing| {
            [[false, false], [false, true], [true, false], [true, true]]
                .map(|[has_lower, is_normed]| Self::new(packing, has_lower, is_normed))
        };
        formats.into_iter().filter_map(Packing::of).flat_map(of).collect()
    }

    /// Bytes of rounded rows, of units, and of the sums of groups; `None` where they are beyond a `usize`.
    pub(super) fn bytes(&self, rows: usize, depth: usize) -> Option<[usize; 3]> {
        let halves = rows.checked_mul(depth)?.checked_mul(if self.has_lower { 4 } else { 2 })?;
        // Two numbers for each group.
        let sums = if self.has_sums { rows * depth / GROUP as usize * 4 } else { 0 };
        Some([halves, rows.checked_mul(4)?, sums])
    }

    /// The launch for rows of `depth` elements, a multiple of 256, and `norm` if they are normalised. Buffers: x, then gamma and
    /// normalised rows if they are normalised, rounded rows, units, sums of groups if there are any.
    pub(super) fn launch(&self, rows: usize, depth: usize, norm: Option<RmsNorm>) -> Result<Launch> {
        let words = [extent("rows", rows, MAX_GRID_X)?, extent("elements of a row", depth, MAX_GRID_X)?];
        let buffers = 3 + usize::from(self.has_sums) + if norm.is_some() { 2 } else { 0 };
        let eps = norm.map(|norm| Argument::F32(norm.eps.get()));
        let arguments = (0..buffers).map(Argument::Buffer).chain(words.map(Argument::U32)).chain(eps).collect();
        Ok(Launch { grid: [words[0], 1, 1], arguments })
    }

    fn write<'k>(&self, k: &'k Builder) {
        let x = k.buffer::<f32>("x");
        let normal = self.is_normed.then(|| ["gamma", "normal"].map(|name| k.buffer::<f32>(name)));
        let halves = k.buffer::<u32>("halves");
        let units = k.buffer::<f32>("units");
        let sums = self.has_sums.then(|| k.buffer::<F16>("sums"));
        let [rows, depth] = ["rows", "depth"].map(|name| k.parameter::<u32>(name));
        let eps = self.is_normed.then(|| k.parameter::<f32>("eps"));
        let (row, thread) = (k.ctaid_x(), k.tid_x());
        let first = k.mul_wide(row, depth);
        let t = thread & (QUAD - 1);
        // A lane of a product has eight adjacent elements of a group, or four of each half.
        let places = |at: Value<'k, u32>| match self.adjacent {
            GROUP => [k.mad(t, OWN, at), k.mad(t, OWN, at + VECTOR)],
            _ => [k.mad(t, VECTOR, at), k.mad(t, VECTOR, at + GROUP / 2)],
        };
        let groups = |body: &dyn Fn(Value<'k, u32>)| {
            k.for_(0u32, depth, TEAM / QUAD * GROUP, |turn| body(k.mad(thread >> QUAD.ilog2(), GROUP, turn)));
        };
        let load = |from: Pointer<'k, Global, f32>, at: Value<'k, u32>| {
            let is_there = k.lt(at, depth);
            places(at).map(|place| k.ld_v_if::<_, _, 4>(is_there, from.index(place), 0.0f32))
        };
        let largest = k.variable(0u32);
        let include = |x: F32<'k>| largest.set(k.max(largest.get(), k.bits_u32(x) & 0x7fff_ffffu32));
        let x = x.index_wide(first);
        let x = match (normal, eps) {
            (Some([gamma, normal]), Some(eps)) => {
                let squares = k.variable(0.0f64);
                groups(&|at| {
                    for &x in load(x, at).as_flattened() {
                        let x = k.cvt_f64(x);
                        squares.set(k.fma(x, x, squares.get()));
                    }
                });
                let squares = team::combine(k, TEAM, thread, squares.get(), |a, b| a + b);
                let mean = squares * k.rcp(k.cvt_rn_f64(depth));
                let scale = k.rcp(k.sqrt(mean + k.cvt_f64(eps)));
                let normal = normal.index_wide(first);
                groups(&|at| {
                    let is_there = k.lt(at, depth);
                    for ((place, x), gamma) in places(at).into_iter().zip(load(x, at)).zip(load(gamma, at)) {
                        let of = |i: usize| k.cvt_rn_f32(k.cvt_f64(x[i]) * scale * k.cvt_f64(gamma[i]));
                        let of: [F32<'k>; VECTOR as usize] = std::array::from_fn(of);
                        of.into_iter().for_each(include);
                        k.st_v_if(is_there, normal.index(place), of);
                    }
                });
                // Threads read again what they have written themselves.
                normal
            }
            _ => {
                groups(&|at| load(x, at).into_iter().flatten().for_each(include));
                x
            }
        };
        let largest = team::combine(k, TEAM, thread, largest.get(), |a, b| k.max(a, b));
        let is_zero = k.eq(largest, 0);
        let in_range = k.or(is_zero, k.le(largest - LEAST, MOST - LEAST));
        let exponent = largest & 0x7f80_0000u32;
        let over = k.bits_f32(k.selp(1f32.to_bits(), k.constant((2 * 127 + TOP) << 23) - exponent, is_zero));
        let unit = k.bits_f32(k.selp(1f32.to_bits(), exponent - (TOP << 23), is_zero));

        let upper = halves.index_wide(first >> 1);
        let lower = upper.index_wide(k.mul_wide(rows, depth) >> 1);
        let fits = k.variable(1u32);
        groups(&|at| {
            let is_there = k.lt(at, depth);
            let x: Vec<F32<'k>> = load(x, at).as_flattened().iter().map(|&x| x * over).collect();
            // In the order of weights: the first and the third of four elements are a pair.
            let pairs: Vec<[F32<'k>; 2]> =
                x.chunks_exact(VECTOR as usize).flat_map(|x| [[x[0], x[2]], [x[1], x[3]]]).collect();
            let store = |to: Pointer<'k, Global, u32>, words: [Value<'k, u32>; 4]| {
                // Word `4 i + t` of a group is word i of lane t of a product.
                let to = to.index(k.mad(t, VECTOR, at >> 1));
                k.st_v_if(is_there, to, transposed(k, words, t));
            };
            let halves = [0, 1, 2, 3].map(|i: usize| pack(k, PtxType::F16, pairs[i]));
            store(upper, halves);
            if self.has_lower {
                let rest = [0, 1, 2, 3].map(|i: usize| {
                    let upper = unpack(k, PtxType::F16, halves[i]);
                    pack(k, PtxType::F16, [0, 1].map(|j: usize| (pairs[i][j] - upper[j]) * LOWER))
                });
                store(lower, rest);
            }
            let most = team::tree(x.iter().map(|&x| k.abs(x)).collect(), |a, b| k.max(a, b));
            let most = most.map(|most| of_group(k, most, |a, b| k.max(a, b)));
            let is_small = most.map(|most| k.and(k.ne(most, 0.0), k.lt(most, LEAST_OF_GROUP)));
            is_small.into_iter().for_each(|is_small| k.if_(is_small, || fits.set(0u32)));
            if let (Some(sums), Some(sum)) = (sums, team::tree(x, |a, b| a + b)) {
                let sum = of_group(k, sum, |a, b| a + b) * (1.0 / MINIMUM);
                let upper = pack(k, PtxType::F16, [sum, sum]);
                let rest = (sum - unpack(k, PtxType::F16, upper)[0]) * LOWER;
                let rest = pack(k, PtxType::F16, [rest, rest]);
                // A chunk has the sums of its groups and then their second parts.
                let of_chunk = at / CHUNK * (2 * CHUNK / GROUP) + ((at / GROUP) & 7u32);
                let to = sums.index_wide(k.mad_wide(row, depth / (GROUP / 2), k.cvt_u64(of_chunk)));
                let writes = k.and(is_there, k.eq(t, 0));
                k.st_if(writes, to, k.halves::<F16>(upper)[0]);
                k.st_if(writes, to.offset((CHUNK / GROUP) as i32), k.halves::<F16>(rest)[0]);
            }
        });
        let fits = team::combine(k, TEAM, thread, fits.get(), |a, b| k.min(a, b));
        let unit = k.selp(unit, f32::NAN, k.and(in_range, k.ne(fits, 0)));
        k.st_if(k.eq(thread, 0), units.index(row), unit);
    }
}

/// Combines what the lanes of a group have.
fn of_group<'k>(k: &'k Builder, own: F32<'k>, combine: impl Fn(F32<'k>, F32<'k>) -> F32<'k>) -> F32<'k> {
    MASKS.into_iter().fold(own, |own, mask| combine(own, k.shfl_bfly(own, mask, 31, u32::MAX)))
}

/// Word t of each lane of a quad, given the words of lane t.
fn transposed<'k>(k: &'k Builder, mut words: [Value<'k, u32>; 4], t: Value<'k, u32>) -> [Value<'k, u32>; 4] {
    for mask in MASKS {
        let is_second = k.ne(t & mask, 0);
        for first in (0..4usize).filter(|i| i & mask as usize == 0) {
            let second = first + mask as usize;
            let sent = k.selp(words[first], words[second], is_second);
            let found = k.shfl_bfly(sent, mask, 31, u32::MAX);
            words[first] = k.selp(found, words[first], is_second);
            words[second] = k.selp(words[second], found, is_second);
        }
    }
    words
}

impl Kernel for HalfRows {
    fn name(&self) -> String {
        let parts = [(self.has_lower, "_twice"), (self.has_sums, "_summing"), (self.is_normed, "_normed")];
        let parts: String = parts.into_iter().filter(|(is, _)| *is).map(|(_, part)| part).collect();
        format!("half_rows_{}{parts}", self.adjacent)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [TEAM, 1, 1], |k| self.write(k))
    }
}
