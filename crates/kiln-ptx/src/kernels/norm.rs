//! Normalisation of rows of any length: layer norm and RMS norm.
//!
//! `(xᵢ - μ) / √(σ² + eps) γᵢ + βᵢ`, or `xᵢ / √(Σ xⱼ² / n + eps) γᵢ`. Sums and root are taken in f64: squares of f32 are exact
//! there and neither overflow nor vanish. The result is computed in f32, with the mean in two parts, unless the scale is so great
//! or so small that something could leave the range. Rows that fit the registers of a team are read once; longer ones once for
//! each sum and once for the result.
//!
//! What a team holds it sums once, as differences `d = xᵢ - x₀` and their squares, `n σ² = Σ d² - (Σ d)² / n` (Chan, Golub and
//! LeVeque 1983). Because x₀ is of the row, `(x₀ - μ)² <= n σ²`: an offset of the row costs nothing, and what cancels is at most n
//! times what is left; the precision of f64 suffices for every n.

use std::ops::Range;

use kiln_ir::Result;

use super::math::F32;
use super::rows::{self, Absent, Hold, STREAMING, Share, Walk};
use super::team::{self, WARP};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Target, Value};

/// How threads hold rows on every target, shortest rows first. Measured on an H200: for long rows 32 elements of one
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

/// Layer norm or RMS norm, for rows whose length lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Norm {
    /// Whether the mean is subtracted and `beta` added: layer norm.
    centred: bool,
    walk: Walk,
    target: Target,
}

impl Norm {
    /// Layer norm of rows of `columns` elements, for devices from `target` on. Buffers: `x`, `gamma`, `beta`, result.
    pub fn layer(columns: usize, target: Target) -> Self {
        let holds: &[&[Hold]] = match target {
            Target::Sm90a => &[&HOLDS, &BROUGHT, &CENTRED_CLUSTERS],
            _ if target >= Target::Sm90 => &[&HOLDS, &CENTRED_CLUSTERS],
            _ => &[&HOLDS, &LONG],
        };
        Self { centred: true, walk: Walk::of(columns, holds), target }
    }

    /// RMS norm of rows of `columns` elements, for devices from `target` on. Buffers: `x`, `gamma`, result.
    pub fn rms(columns: usize, target: Target) -> Self {
        let holds: &[&[Hold]] = match target {
            Target::Sm90a => &[&HOLDS, &BROUGHT, &LONG, &CLUSTERS],
            _ if target >= Target::Sm90 => &[&HOLDS, &LONG, &CLUSTERS],
            _ => &[&HOLDS, &LONG],
        };
        Self { centred: false, walk: Walk::of(columns, holds), target }
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
        let walks = || Walk::held(&HOLDS).chain(Walk::held(&LONG)).chain([Walk::Streamed]);
        walks().map(of(false)).chain(walks().map(of(true))).collect()
    }

    /// The launch for `rows` rows of `columns` elements.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 2049 columns or 2³¹ - 1 rows, divided by the blocks of a cluster
    /// where those hold a row, or where `columns` is more than the kernel holds.
    /// [`Error::Parameter`](kiln_ir::Error::Parameter) where `columns` are no whole vectors and the kernel is for those.
    pub fn launch(&self, rows: usize, columns: usize, eps: f32) -> Result<Launch> {
        let [blocks, n] = self.walk.extents(rows, columns)?;
        let buffers = if self.centred { 4 } else { 3 };
        let scalars = [Argument::U32(rows as u32), Argument::U32(n), Argument::F32(eps)];
        let arguments = (0..buffers).map(Argument::Buffer).chain(scalars).collect();
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let (x, gamma) = (k.buffer::<f32>("x"), k.buffer::<f32>("gamma"));
        let beta = self.centred.then(|| k.buffer::<f32>("beta"));
        let out = k.buffer::<f32>("out");
        let (rows, n, eps) = (k.parameter::<u32>("rows"), k.parameter::<u32>("n"), k.parameter::<f32>("eps"));
        let row = Row { k, n, eps };
        let buffers = Buffers { x, gamma, beta, out };
        match self.walk {
            Walk::Held(hold) => self.held(&row, buffers, hold.share(k, self.target, rows, n)),
            Walk::Streamed => self.streamed(&row, buffers, n),
        }
    }

    fn held<'k>(&self, row: &Row<'k>, buffers: Buffers<'k>, share: Share<'k>) {
        let k = row.k;
        let [gamma, beta] = [Some(buffers.gamma), buffers.beta].map(|vector| vector.and_then(|v| share.kept(v)));
        // Computed once for many rows, else when registers are free.
        let part_of_all = share.stays().then(|| row.part());
        let absent = if self.centred { Absent::First } else { Absent::Number(0.0) };
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
            type Formula<'k> = fn(&Scaled<'k>, F32<'k>, F32<'k>, Option<F32<'k>>) -> F32<'k>;
            let write = |result: Formula<'k>| {
                let of_group = |kept: &Option<Vec<F32<'k>>>, vector, group: Range<usize>| match kept {
                    Some(kept) => kept[group].to_vec(),
                    None => share.of_columns(vector, group),
                };
                for group in share.groups() {
                    let gamma = of_group(&gamma, buffers.gamma, group.clone());
                    let beta = buffers.beta.map(|vector| of_group(&beta, vector, group.clone()));
                    for (at, scaled) in scaled.iter().enumerate() {
                        let elements = held.elements[at][group.clone()].iter().enumerate();
                        let y = elements.map(|(e, &x)| result(scaled, x, gamma[e], beta.as_ref().map(|beta| beta[e])));
                        share.store(buffers.out, &held, at, group.clone(), y);
                    }
                }
            };
            if let Some(ordinary) = team::tree(scaled.iter().map(|row| row.ordinary).collect(), |a, b| k.and(a, b)) {
                k.if_else(ordinary, || write(Scaled::quick), || write(Scaled::exact));
            }
        });
    }

    fn streamed<'k>(&self, row: &Row<'k>, buffers: Buffers<'k>, n: Value<'k, u32>) {
        let k = row.k;
        let [at, thread] = team::place(k, STREAMING, STREAMING);
        let first = k.mul_wide(at, n);
        let [x, out] = [buffers.x, buffers.out].map(|at| at.index_wide(first));
        let sum = |term: &dyn Fn(Value<'k, f64>) -> Value<'k, f64>| {
            let sum = k.variable(0.0f64);
            rows::stream(k, x, thread, n, 0.0, |elements| {
                let term = |element: &rows::Element<'k>| k.selp(term(k.cvt_f64(element.x)), 0.0, element.there);
                let terms = team::tree(elements.iter().map(term).collect(), |a, b| a + b);
                terms.into_iter().for_each(|terms| sum.set(k.add(sum, terms)));
            });
            team::combine(k, STREAMING, thread, sum.get(), |a, b| a + b)
        };
        let part = row.part();
        let mean = self.centred.then(|| sum(&|x| x) * part);
        let square = sum(&|x| {
            let apart = mean.map_or(x, |mean| x - mean);
            apart * apart
        });
        let scaled = row.scaled(part, mean, square);
        rows::stream(k, x, thread, n, 0.0, |elements| {
            for element in elements {
                let of_column =
                    |vector: Pointer<'k, Global, f32>| k.ld_if(element.there, vector.index(element.column), 0.0);
                let y = scaled.exact(element.x, of_column(buffers.gamma), buffers.beta.map(of_column));
                k.st_if(element.there, out.index(element.column), y);
            }
        });
    }
}

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
