//! Normalisation of rows of any length: layer norm and RMS norm.
//!
//! `(xᵢ - μ) / √(σ² + eps) γᵢ + βᵢ`, or `xᵢ / √(Σ xⱼ² / n + eps) γᵢ`. Sums and root are taken in f64: squares of f32 are exact
//! there and neither overflow nor vanish. The result is computed in f32, with the mean in two parts, unless the scale, or gamma of RMS
//! norm, is so great or so small that something could leave the range. Rows that fit the registers of a team are read once; longer ones twice, in
//! parts.
//!
//! The sums are those of differences `d = xᵢ - x₀` and of their squares, `n σ² = Σ d² - (Σ d)² / n` (Chan, Golub and LeVeque 1983). Because x₀ is of the row, `(x₀ - μ)² <= n σ²`: an offset of the row costs nothing, and what cancels is at most n
//! times what is left; the precision of f64 suffices for every n.

use std::ops::Range;

use kiln_ir::Result;

use super::math::F32;
use super::rows::{Absent, Element, Hold, Part, RowsPlan, Share, Walk};
use super::team::{self, WARP};
use crate::{Argument, Builder, Global, Kernel, Pointer, PtxKernel, Target, Value};

/// Distributions of rows over threads on every target, shortest rows first. Measured on an H200: for long rows 32 elements of one
/// row per thread were the fastest, before fewer elements of two rows and before more threads.
const HOLDS: [Hold; 5] =
    [Hold::by(WARP, 4), Hold::by(WARP, 32), Hold::by(256, 16).of_rows(2), Hold::by(256, 32), Hold::by(512, 32)];
/// The same for longer rows, for layer norm without clusters.
const LONG: [Hold; 1] = [Hold::by(1024, 32)];
/// The same for long rows on Hopper that asynchronous copies load, for rows of whole vectors.
const BROUGHT: [Hold; 3] = [
    Hold::by(256, 16).in_clusters(8).of_rows(2).brought(2),
    Hold::by(512, 16).in_clusters(8).of_rows(2).brought(1),
    Hold::by(512, 32).in_clusters(8).brought(1),
];
/// The same for the longest rows with clusters, for other rows.
const CLUSTERS: [Hold; 2] = [Hold::by(256, 32).in_clusters(8), Hold::by(512, 32).in_clusters(8)];
/// The same for layer norm, whose blocks exchange two sums. There a cluster is faster than one large block.
const CENTRED_CLUSTERS: [Hold; 3] = [
    Hold::by(256, 32).in_clusters(4).counting(),
    Hold::by(256, 32).in_clusters(8).counting(),
    Hold::by(512, 32).in_clusters(8).counting(),
];
/// Scales for which f32 represents the result: the squares, the mean and its lower part stay in range.
const ORDINARY: [f64; 2] = [1.0 / (1u64 << 60) as f64, (1u64 << 60) as f64];

/// Bits of the least and the greatest gamma whose products with these scales are normal numbers: 2⁻⁶⁶ and 2⁶⁶.
const PLAIN: [u32; 2] = [(127 - 66) << 23, (127 + 66) << 23];

/// Layer norm or RMS norm, for rows whose length lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Norm {
    /// Whether the mean is subtracted and `beta` added: layer norm.
    centred: bool,
    walk: Walk,
    target: Target,
}

impl Norm {
    /// Layer norm of `rows` rows of `columns` elements, for devices from `target` on. Buffers: `x`, `gamma`, `beta`, result, scratch.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 2049 columns, or 2³¹ - 1 blocks: one for each row or part of a row, or
    /// several where the blocks of a cluster hold a row.
    pub fn layer(rows: usize, columns: usize, eps: f32, target: Target) -> Result<RowsPlan<Self>> {
        let holds: &[&[Hold]] = match target {
            Target::Sm90a => &[&HOLDS, &BROUGHT, &CENTRED_CLUSTERS],
            _ if target >= Target::Sm90 => &[&HOLDS, &CENTRED_CLUSTERS],
            _ => &[&HOLDS, &LONG],
        };
        let of = |walk| Self { centred: true, walk, target };
        Walk::plan([rows, columns], holds, 2, 4, &[Argument::F32(eps)], of)
    }

    /// RMS norm of `rows` rows of `columns` elements, for devices from `target` on. Buffers: `x`, `gamma`, result, scratch.
    ///
    /// # Errors
    /// Those of [`Norm::layer`].
    pub fn rms(rows: usize, columns: usize, eps: f32, target: Target) -> Result<RowsPlan<Self>> {
        let holds: &[&[Hold]] = match target {
            Target::Sm90a => &[&HOLDS, &BROUGHT, &LONG, &CLUSTERS],
            _ if target >= Target::Sm90 => &[&HOLDS, &LONG, &CLUSTERS],
            _ => &[&HOLDS, &LONG],
        };
        let of = |walk| Self { centred: false, walk, target };
        Walk::plan([rows, columns], holds, 1, 3, &[Argument::F32(eps)], of)
    }

    /// Every kernel for targets without clusters, or those that need them, or those for Hopper alone.
    pub fn all(target: Target) -> Vec<Self> {
        let of = |centred| move |walk| Self { centred, walk, target };
        let both = |rms: &[Hold], layer: &[Hold]| {
            Walk::held(rms).map(of(false)).chain(Walk::held(layer).map(of(true))).collect()
        };
        match target {
            Target::Sm90a => return both(&BROUGHT, &BROUGHT),
            _ if target >= Target::Sm90 => return both(&CLUSTERS, &CENTRED_CLUSTERS),
            _ => {}
        }
        let walks = || Walk::held(&HOLDS).chain(Walk::held(&LONG)).chain([Walk::States, Walk::Results]);
        walks().map(of(false)).chain(walks().map(of(true))).collect()
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<f32>("x");
        if self.walk == Walk::States {
            let states = k.buffer::<f64>("states");
            let part = Part::of_block(k, k.parameter::<u32>("n"));
            k.parameter::<f32>("eps");
            return self.states(k, x, &part, states);
        }
        let gamma = k.buffer::<f32>("gamma");
        let beta = self.centred.then(|| k.buffer::<f32>("beta"));
        let out = k.buffer::<f32>("out");
        let buffers = Buffers { x, gamma, beta, out };
        if let Walk::Held(hold) = self.walk {
            let (rows, n, eps) = (k.parameter::<u32>("rows"), k.parameter::<u32>("n"), k.parameter::<f32>("eps"));
            return self.held(&Row { k, n, eps }, buffers, hold.share(k, self.target, rows, n));
        }
        let states = k.buffer::<f64>("states");
        let n = k.parameter::<u32>("n");
        let part = Part::of_block(k, n);
        let eps = k.parameter::<f32>("eps");
        self.results(&Row { k, n, eps }, buffers, &part, states);
    }

    fn held<'k>(&self, row: &Row<'k>, buffers: Buffers<'k>, share: Share<'k>) {
        let k = row.k;
        let [gamma, beta] = [Some(buffers.gamma), buffers.beta].map(|vector| vector.and_then(|v| share.kept(v)));
        // Computed once for many rows, else when registers are free.
        let part_of_all = share.stays().then(|| row.part());
        let absent = if self.centred { Absent::First } else { Absent::Number(0.0) };
        // Of RMS norm, for all columns of the thread if their gammas are kept.
        let plain = match &gamma {
            Some(kept) if !self.centred => are_plain(k, kept),
            _ => None,
        };
        share.each(buffers.x, absent, |held| {
            // Sums, and sums of squares, of the differences between a row's elements and its first element, in two
            // chains each. Missing elements add nothing.
            let of_row = |(elements, &first): (&Vec<F32<'k>>, &F32<'k>)| {
                let zeros = [k.constant(0.0f64); 2];
                let (mut sums, mut squares) = (zeros, zeros);
                let first = self.centred.then(|| k.cvt_f64(first));
                for (e, &x) in elements.iter().enumerate() {
                    let x = first.map_or(k.cvt_f64(x), |first| k.cvt_f64(x) - first);
                    if self.centred {
                        sums[e % 2] = sums[e % 2] + x;
                    }
                    squares[e % 2] = k.fma(x, x, squares[e % 2]);
                }
                (squares[0] + squares[1], sums[0] + sums[1])
            };
            let (mut sums, of_rows): (Vec<_>, Vec<_>) = held.elements.iter().zip(&held.absent).map(of_row).unzip();
            if self.centred {
                sums.extend(of_rows);
            }
            let sums = share.combine(sums, |a, b| a + b);
            let part = part_of_all.unwrap_or_else(|| row.part());
            let rows = held.elements.len();
            let scaled = |at: usize| match sums.get(rows + at) {
                Some(&sum) => {
                    let mean = sum * part;
                    let square = sums[at] - sum * mean;
                    row.scaled(part, Some(k.cvt_f64(held.absent[at]) + mean), square)
                }
                None => row.scaled(part, None, sums[at]),
            };
            let scaled: Vec<_> = (0..rows).map(scaled).collect();
            let ordinary = scaled.iter().map(|row| row.ordinary).chain(plain).collect();
            let Some(ordinary) = team::tree(ordinary, |a, b| k.and(a, b)) else { return };
            let of_group = |kept: &Option<Vec<F32<'k>>>, vector, group: Range<usize>| match kept {
                Some(kept) => kept[group].to_vec(),
                None => share.of_columns(vector, group),
            };
            let factors = |group: &Range<usize>| {
                let beta = buffers.beta.map(|vector| of_group(&beta, vector, group.clone()));
                (of_group(&gamma, buffers.gamma, group.clone()), beta)
            };
            let write = |result: Formula<'k>, group: Range<usize>, (gamma, beta): &Factors<'k>| {
                for (at, scaled) in scaled.iter().enumerate() {
                    let elements = held.elements[at][group.clone()].iter().enumerate();
                    let y = elements.map(|(e, &x)| result(scaled, x, gamma[e], beta.as_ref().map(|beta| beta[e])));
                    share.store(buffers.out, &held, at, group.clone(), y);
                }
            };
            let write_all = |result| share.groups().for_each(|group| write(result, group.clone(), &factors(&group)));
            if self.centred || plain.is_some() {
                return k.if_else(ordinary, || write_all(Scaled::quick), || write_all(Scaled::exact));
            }
            for group in share.groups() {
                let factors = factors(&group);
                let ordinary = are_plain(k, &factors.0).map_or(ordinary, |plain| k.and(ordinary, plain));
                let write = |result| write(result, group.clone(), &factors);
                k.if_else(ordinary, || write(Scaled::quick), || write(Scaled::exact));
            }
        });
    }

    /// The origin of the differences that are summed: the first element of the row.
    fn origin<'k>(&self, k: &'k Builder, x: Pointer<'k, Global, f32>, part: &Part<'k>) -> Option<Value<'k, f64>> {
        self.centred.then(|| k.cvt_f64(k.ld(part.of_row(x))))
    }

    /// Writes the sum of squares of a part, and before it the sum if the mean is wanted.
    fn states<'k>(
        &self,
        k: &'k Builder,
        x: Pointer<'k, Global, f32>,
        part: &Part<'k>,
        states: Pointer<'k, Global, f64>,
    ) {
        let origin = self.origin(k, x, part);
        let (sum, squares) = (k.variable(0.0f64), k.variable(0.0f64));
        part.stream(part.of_matrix(x), |elements| {
            let apart = |element: &Element<'k>| {
                let x = k.cvt_f64(element.x);
                k.selp(origin.map_or(x, |origin| x - origin), 0.0, element.there)
            };
            let apart: Vec<_> = elements.iter().map(apart).collect();
            if origin.is_some() {
                team::tree(apart.clone(), |a, b| a + b).into_iter().for_each(|of_all| sum.set(k.add(sum, of_all)));
            }
            let of_all = team::tree(apart.into_iter().map(|x| x * x).collect(), |a, b| a + b);
            of_all.into_iter().for_each(|of_all| squares.set(k.add(squares, of_all)));
        });
        let squares = part.combine(squares.get(), |a, b| a + b);
        let mut state = vec![squares];
        if origin.is_some() {
            state.push(part.combine(sum.get(), |a, b| a + b));
        }
        part.write(states, &state);
    }

    /// Combines the states of the row and writes the results of a part.
    fn results<'k>(&self, row: &Row<'k>, buffers: Buffers<'k>, part: &Part<'k>, states: Pointer<'k, Global, f64>) {
        let k = row.k;
        let origin = self.origin(k, buffers.x, part);
        let (sum, squares) = (k.variable(0.0f64), k.variable(0.0f64));
        match origin {
            None => part.states(states, |[of_part]| squares.set(k.add(squares, of_part))),
            Some(_) => part.states(states, |[squares_of_part, sum_of_part]| {
                squares.set(k.add(squares, squares_of_part));
                sum.set(k.add(sum, sum_of_part));
            }),
        }
        let squares = part.combine(squares.get(), |a, b| a + b);
        let one = row.part();
        let scaled = match origin {
            None => row.scaled(one, None, squares),
            Some(origin) => {
                let sum = part.combine(sum.get(), |a, b| a + b);
                let mean = sum * one;
                row.scaled(one, Some(origin + mean), squares - sum * mean)
            }
        };
        let [x, out] = [buffers.x, buffers.out].map(|matrix| part.of_matrix(matrix));
        let (gamma, beta) = (part.of_vector(buffers.gamma), buffers.beta.map(|at| part.of_vector(at)));
        part.stream(x, |elements| {
            let of_column = |at: Pointer<'k, Global, f32>, element: &Element<'k>| {
                k.ld_if(element.there, at.index(element.column), 0.0)
            };
            let of_columns = |at| elements.iter().map(|element| of_column(at, element)).collect::<Vec<_>>();
            let (gamma, beta) = (of_columns(gamma), beta.map(of_columns));
            let write = |result: Formula<'k>| {
                for (e, element) in elements.iter().enumerate() {
                    let y = result(&scaled, element.x, gamma[e], beta.as_ref().map(|beta| beta[e]));
                    k.st_if(element.there, out.index(element.column), y);
                }
            };
            let plain = if self.centred { None } else { are_plain(k, &gamma) };
            let ordinary = plain.map_or(scaled.ordinary, |plain| k.and(scaled.ordinary, plain));
            k.if_else(ordinary, || write(Scaled::quick), || write(Scaled::exact));
        });
    }
}

/// Whether the products of these gammas with every ordinary scale are normal numbers, or 0 for 0.
fn are_plain<'k>(k: &'k Builder, gammas: &[F32<'k>]) -> Option<Value<'k, bool>> {
    let magnitudes: Vec<_> = gammas.iter().map(|&gamma| k.bits_u32(gamma) & 0x7fff_ffffu32).collect();
    // Less 1, so that 0 is not the least.
    let least = team::tree(magnitudes.iter().map(|&magnitude| magnitude - 1u32).collect(), |a, b| k.min(a, b))?;
    let greatest = team::tree(magnitudes, |a, b| k.max(a, b))?;
    Some(k.and(k.ge(least, PLAIN[0] - 1), k.le(greatest, PLAIN[1])))
}

/// The result for an element, from its gamma and beta.
type Formula<'k> = fn(&Scaled<'k>, F32<'k>, F32<'k>, Option<F32<'k>>) -> F32<'k>;

/// Elements of gamma and beta.
type Factors<'k> = (Vec<F32<'k>>, Option<Vec<F32<'k>>>);

struct Buffers<'k> {
    x: Pointer<'k, Global, f32>,
    gamma: Pointer<'k, Global, f32>,
    beta: Option<Pointer<'k, Global, f32>>,
    out: Pointer<'k, Global, f32>,
}

/// Values that all rows share.
struct Row<'k> {
    k: &'k Builder,
    n: Value<'k, u32>,
    eps: F32<'k>,
}

/// The scaling of a row's elements.
struct Scaled<'k> {
    k: &'k Builder,
    mean: Option<Value<'k, f64>>,
    scale: Value<'k, f64>,
    /// The mean in two parts and the scale, in f32.
    parts: Option<[F32<'k>; 2]>,
    rounded: F32<'k>,
    /// Whether [`Scaled::quick`] may be used.
    ordinary: Value<'k, bool>,
}

impl<'k> Row<'k> {
    /// One over the number of columns.
    fn part(&self) -> Value<'k, f64> {
        self.k.rcp(self.k.cvt_rn_f64(self.n))
    }

    fn scaled(&self, part: Value<'k, f64>, mean: Option<Value<'k, f64>>, square: Value<'k, f64>) -> Scaled<'k> {
        let k = self.k;
        let scale = k.rcp(k.sqrt(k.fma(square, part, k.cvt_f64(self.eps))));
        let parts = mean.map(|mean| {
            let upper = k.cvt_rn_f32(mean);
            [upper, k.cvt_rn_f32(mean - k.cvt_f64(upper))]
        });
        let ordinary = k.and(k.ge(scale, ORDINARY[0]), k.le(scale, ORDINARY[1]));
        Scaled { k, mean, scale, parts, rounded: k.cvt_rn_f32(scale), ordinary }
    }
}

/// If nothing is added afterwards, results of elements may be subnormal, and none is rounded to such a number twice.
impl<'k> Scaled<'k> {
    fn quick(&self, x: F32<'k>, gamma: F32<'k>, beta: Option<F32<'k>>) -> F32<'k> {
        let x = self.parts.map_or(x, |[upper, lower]| x - upper - lower);
        match beta {
            Some(beta) => self.k.fma(x * self.rounded, gamma, beta),
            None => x * (self.rounded * gamma),
        }
    }

    fn exact(&self, x: F32<'k>, gamma: F32<'k>, beta: Option<F32<'k>>) -> F32<'k> {
        let k = self.k;
        let x = k.cvt_f64(x);
        match beta {
            Some(beta) => k.fma(k.cvt_rn_f32(self.mean.map_or(x, |mean| x - mean) * self.scale), gamma, beta),
            None => k.cvt_rn_f32(x * k.cvt_f64(gamma) * self.scale),
        }
    }
}

impl Kernel for Norm {
    fn name(&self) -> String {
        format!("{}_norm_{}", if self.centred { "layer" } else { "rms" }, self.walk.suffix())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.walk.block(), 1, 1], |k| self.write(k))
    }
}
