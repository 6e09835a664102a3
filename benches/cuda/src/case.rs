//! The cases: what is computed, on which data.

use half::bf16;
use kiln_ir::{QuantFormat, f16};

use crate::Result;
use crate::random::random;

/// The type of the numbers that a product reads, and their precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Numbers {
    F16,
    Bf16,
    /// f32 unchanged.
    F32,
    /// f32 in two parts in TF32; the peer multiplies unchanged f32.
    Tf32x3,
    Tf32,
}

impl Numbers {
    fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::Tf32x3 => "3xTF32",
            Self::Tf32 => "TF32",
        }
    }

    /// The stored type of a number.
    fn stored(self, x: f32) -> f32 {
        match self {
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
            Self::F32 | Self::Tf32x3 | Self::Tf32 => x,
        }
    }
}

/// A function of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rows {
    Softmax,
    LayerNorm,
    RmsNorm,
}

/// The computation of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Case {
    /// `C = A Bᵀ`, with B stored `n * k` as weights are; sums and C in f32. Everything stays on the device.
    Product { numbers: Numbers, m: usize, k: usize, n: usize },
    /// A function of rows that stay on the device.
    Rows { function: Rows, rows: usize, columns: usize },
    /// The sum of a vector that stays on the device.
    Sum { n: usize },
    /// Attention of f16 or bf16 into f32. Everything stays on the device.
    Attention(Attention),
    /// Products of rows with quantised matrices `n * k`, as one batch; the weights are beyond every cache.
    Quantized { format: QuantFormat, rows: usize, n: usize, k: usize },
    /// A matrix `n * k` that stays on the device, into blocks and back.
    Requantized { format: QuantFormat, n: usize, k: usize },
    /// The sum of two vectors from host to host.
    AddHost { n: usize },
}

/// The extents of attention: queries `batch x heads x s x d`, keys and values `batch x kv_heads x t x d`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Attention {
    /// f16 or bf16.
    pub(crate) numbers: Numbers,
    pub(crate) causal: bool,
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) s: usize,
    pub(crate) t: usize,
    pub(crate) d: usize,
}

impl Attention {
    /// The number of keys that a query of a head sees.
    fn seen(&self, query: usize) -> usize {
        if self.causal { self.t - self.s + query + 1 } else { self.t }
    }

    pub(crate) fn queries(&self) -> [usize; 4] {
        [self.batch, self.heads, self.s, self.d]
    }

    pub(crate) fn keys(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.t, self.d]
    }
}

/// The unit of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Work {
    Flops(f64),
    Bytes(f64),
    Time,
}

/// The small constant of norms.
pub(crate) const EPS: f32 = 1e-5;

/// The weights of a batch make this many bytes: more than any cache holds.
const BEYOND_CACHES: usize = 512 << 20;

/// Every case, in the order of the table.
pub(crate) fn all() -> Vec<Case> {
    use Numbers::{Bf16, F16, F32, Tf32, Tf32x3};
    let mut cases = Vec::new();
    for numbers in [F16, Bf16, Tf32, Tf32x3, F32] {
        cases.extend([1024, 2048, 4096, 8192].map(|n| Case::Product { numbers, m: n, k: n, n }));
        for m in [16, 64, 128] {
            cases.extend([4096, 14_336].map(|n| Case::Product { numbers, m, k: 4096, n }));
        }
    }
    for function in [Rows::Softmax, Rows::LayerNorm, Rows::RmsNorm] {
        cases.extend([4, 8, 16, 32, 64, 128].map(|kib| {
            let columns: usize = kib << 10;
            Case::Rows { function, rows: (1 << 26) / columns, columns }
        }));
    }
    cases.push(Case::Sum { n: 1 << 28 });
    // 16 384 queries in all, and as many elements of all heads as 2048.
    for (numbers, d) in [(F16, 64), (F16, 128), (Bf16, 128)] {
        for causal in [false, true] {
            cases.extend([2048, 8192, 16_384].map(|s| {
                let heads = 2048 / d;
                Case::Attention(Attention { numbers, causal, batch: 16_384 / s, heads, kv_heads: heads, s, t: s, d })
            }));
        }
    }
    // One query of each sequence, heads in groups.
    cases.extend([1, 16].map(|batch| {
        let (numbers, causal) = (F16, true);
        Case::Attention(Attention { numbers, causal, batch, heads: 32, kv_heads: 8, s: 1, t: 8192, d: 128 })
    }));
    for format in QuantFormat::ALL {
        cases.extend([1, 2, 4, 8, 16, 32, 64, 512].map(|rows| Case::Quantized { format, rows, n: 4096, k: 14_336 }));
        cases.push(Case::Quantized { format, rows: 1, n: 28_672, k: 8192 });
    }
    cases.extend(QuantFormat::ALL.map(|format| Case::Requantized { format, n: 4096, k: 14_336 }));
    cases.extend([1000, 1_000_000, 16_000_000].map(|n| Case::AddHost { n }));
    cases
}

impl Case {
    pub(crate) fn name(&self) -> String {
        match *self {
            Self::Product { numbers, m, k, n } => format!("matmul {} {m} x {k} x {n}", numbers.name()),
            Self::Rows { function, rows, columns } => {
                let function = match function {
                    Rows::Softmax => "softmax",
                    Rows::LayerNorm => "layer_norm",
                    Rows::RmsNorm => "rms_norm",
                };
                format!("{function} {rows} x {columns}")
            }
            Self::Sum { n } => format!("sum of {n}"),
            Self::Attention(Attention { batch, heads, kv_heads, s: 1, t, d, .. }) => {
                format!("decode f16 {batch} x {heads} of {kv_heads} x {t} x {d}")
            }
            Self::Attention(Attention { numbers, causal, batch, heads, s, d, .. }) => {
                let name = if causal { "causal" } else { "attention" };
                format!("{name} {} {batch} x {heads} x {s} x {d}", numbers.name())
            }
            Self::Quantized { format, rows: 1, n, k } => {
                format!("{} {} matvecs {n} x {k}", self.copies(), format.name())
            }
            Self::Quantized { format, rows, n, k } => {
                format!("{} {} products of {rows} rows {n} x {k}", self.copies(), format.name())
            }
            Self::Requantized { format, n, k } => format!("{} quantise and back {n} x {k}", format.name()),
            Self::AddHost { n } => format!("add {n}, host to host"),
        }
    }

    pub(crate) fn work(&self) -> Work {
        match *self {
            Self::Product { m, k, n, .. } => Work::Flops(2.0 * (m * k * n) as f64),
            // What few rows take is limited by what they read.
            Self::Quantized { rows, n, k, .. } if rows >= 128 => {
                Work::Flops(self.copies() as f64 * 2.0 * (rows * n * k) as f64)
            }
            // What one query takes is limited by what it reads.
            Self::Attention(attention) if attention.s > 1 => {
                let seen: usize = (0..attention.s).map(|query| attention.seen(query)).sum();
                Work::Flops(4.0 * (attention.batch * attention.heads * attention.d * seen) as f64)
            }
            _ => self.copied().map_or(Work::Time, |bytes| Work::Bytes(bytes as f64)),
        }
    }

    /// Bytes that have to be read or written, where memory limits the case.
    pub(crate) fn copied(&self) -> Option<usize> {
        match *self {
            Self::Sum { n } => Some(4 * n),
            Self::Rows { rows, columns, .. } => Some(8 * rows * columns),
            Self::Quantized { format, rows, n, k } if rows < 128 => {
                Some(self.copies() * (weights(format, n, k) + 4 * rows * (n + k)))
            }
            Self::Attention(attention) if attention.s == 1 => {
                let count = |dims: [usize; 4]| dims.into_iter().product::<usize>();
                Some(4 * count(attention.keys()) + 6 * count(attention.queries()))
            }
            Self::Requantized { format, n, k } => Some(2 * (4 * n * k + weights(format, n, k))),
            Self::Product { .. } | Self::Quantized { .. } | Self::Attention(_) | Self::AddHost { .. } => None,
        }
    }

    /// Copies of the weights, one for each product.
    pub(crate) fn copies(&self) -> usize {
        match *self {
            Self::Quantized { format, n, k, .. } => BEYOND_CACHES.div_ceil(weights(format, n, k)).clamp(2, 32),
            _ => 1,
        }
    }

    /// Elements of the result.
    fn results(&self) -> usize {
        match *self {
            Self::Product { m, n, .. } => m * n,
            Self::Rows { rows, columns, .. } => rows * columns,
            Self::Sum { .. } => 1,
            Self::Attention(attention) => attention.queries().into_iter().product(),
            Self::Quantized { rows, n, .. } => rows * n,
            Self::Requantized { n, k, .. } => n * k,
            Self::AddHost { n } => n,
        }
    }
}

/// Bytes of a quantised matrix.
fn weights(format: QuantFormat, n: usize, k: usize) -> usize {
    n * k / format.block_len() * format.block_bytes()
}

/// The data of a case.
pub(crate) struct Data {
    /// The f32 operands.
    pub(crate) floats: Vec<Vec<f32>>,
    /// Quantised weights, if the case has any.
    pub(crate) blocks: Vec<u8>,
}

impl Data {
    /// Random data, the same on every run.
    pub(crate) fn random(case: &Case) -> Result<Self> {
        let lengths = match *case {
            Case::Product { m, k, n, .. } => vec![m * k, n * k],
            Case::Rows { function, rows, columns } => {
                let vectors = match function {
                    Rows::Softmax => 0,
                    Rows::RmsNorm => 1,
                    Rows::LayerNorm => 2,
                };
                [vec![rows * columns], vec![columns; vectors]].concat()
            }
            Case::Sum { n } => vec![n],
            Case::Attention(attention) => {
                let [queries, keys] = [attention.queries(), attention.keys()].map(|dims| dims.into_iter().product());
                vec![queries, keys, keys]
            }
            Case::Quantized { rows, k, .. } => vec![rows * k],
            Case::Requantized { n, k, .. } => vec![n * k],
            Case::AddHost { n } => vec![n; 2],
        };
        let mut floats: Vec<Vec<f32>> = (1..).zip(lengths).map(|(seed, length)| random(length, seed)).collect();
        if let Case::Product { numbers, .. } | Case::Attention(Attention { numbers, .. }) = *case {
            floats.iter_mut().flatten().for_each(|x| *x = numbers.stored(*x));
        }
        let mut blocks = Vec::new();
        if let Case::Quantized { format, n, k, .. } = *case {
            // A few rows are fitted and repeated: fitting all would take longer than the bench.
            let few = random(n.min(16) * k, 9);
            let mut fitted = vec![0; format.bytes(few.len())?];
            format.encode(&few, &mut fitted)?;
            blocks = fitted.iter().copied().cycle().take(weights(format, n, k)).collect();
        }
        Ok(Self { floats, blocks })
    }

    /// A difference between a result and that of f64 beyond its precision; compared at a few positions.
    pub(crate) fn difference(&self, case: &Case, result: &[f32]) -> Option<String> {
        let want = case.results();
        if result.len() != want {
            return Some(format!("{} elements, not {want}", result.len()));
        }
        let allowed = match case {
            Case::Product { numbers: Numbers::Tf32, .. } => 1e-2,
            // Weights are rounded to bf16.
            Case::Attention(Attention { numbers: Numbers::Bf16, .. }) => 1e-2,
            _ => 1e-3,
        };
        (0..want).step_by(want / 61 + 1).chain([want - 1]).find_map(|at| {
            let (exact, scale) = self.exact(case, at);
            let off = (f64::from(result[at]) - exact).abs();
            (off.is_nan() || off > allowed * scale).then(|| format!("element {at} is {}, exact {exact}", result[at]))
        })
    }

    /// An element of the result, and the magnitude that its error is relative to.
    fn exact(&self, case: &Case, at: usize) -> (f64, f64) {
        let of = |operand: usize, i: usize| f64::from(self.floats[operand][i]);
        match *case {
            Case::Product { k, n, .. } => {
                let (row, column) = (at / n, at % n);
                ((0..k).map(|i| of(0, row * k + i) * of(1, column * k + i)).sum(), (k as f64).sqrt())
            }
            Case::Rows { function, columns, .. } => {
                let row: Vec<f64> =
                    self.floats[0][at / columns * columns..][..columns].iter().map(|&x| x.into()).collect();
                let (x, column, count) = (of(0, at), at % columns, columns as f64);
                let mean = row.iter().sum::<f64>() / count;
                match function {
                    Rows::Softmax => {
                        let value = x.exp() / row.iter().map(|x| x.exp()).sum::<f64>();
                        (value, value)
                    }
                    Rows::RmsNorm => {
                        let square = row.iter().map(|x| x * x).sum::<f64>() / count;
                        (x / (square + f64::from(EPS)).sqrt() * of(1, column), 1.0)
                    }
                    Rows::LayerNorm => {
                        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                        ((x - mean) / (variance + f64::from(EPS)).sqrt() * of(1, column) + of(2, column), 1.0)
                    }
                }
            }
            Case::Sum { n } => ((0..n).map(|i| of(0, i)).sum(), (n as f64).sqrt()),
            Case::Attention(attention) => {
                let Attention { heads, kv_heads, s, t, d, .. } = attention;
                let (row, column) = (at / d, at % d);
                let seen = attention.seen(row % s);
                let first = row / s / (heads / kv_heads) * t;
                let score = |j: usize| -> f64 { (0..d).map(|i| of(0, row * d + i) * of(1, (first + j) * d + i)).sum() };
                let scores: Vec<f64> = (0..seen).map(|j| score(j) / (d as f64).sqrt()).collect();
                let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
                let sum: f64 = weights.iter().enumerate().map(|(j, w)| w * of(2, (first + j) * d + column)).sum();
                (sum / weights.iter().sum::<f64>(), 1.0 / (seen as f64).sqrt())
            }
            Case::Quantized { format, n, k, .. } => {
                let (i, at) = (at / n, at % n);
                let bytes = weights(format, 1, k);
                let mut row = vec![0.0; k];
                // Whole blocks, made for this length: zeros would show as a difference.
                _ = format.decode(&self.blocks[at * bytes..][..bytes], &mut row);
                (row.iter().enumerate().map(|(j, &w)| f64::from(w) * of(0, i * k + j)).sum(), (k as f64).sqrt())
            }
            Case::Requantized { format, .. } => {
                let len = format.block_len();
                let block = &self.floats[0][at / len * len..][..len];
                let (mut blocks, mut back) = (vec![0; format.block_bytes()], vec![0.0; len]);
                // Whole blocks: zeros would show as a difference.
                _ = format.encode(block, &mut blocks).and_then(|()| format.decode(&blocks, &mut back));
                (back[at % len].into(), f64::EPSILON)
            }
            Case::AddHost { .. } => (of(0, at) + of(1, at), 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_results_are_found() {
        let small = [
            Case::Product { numbers: Numbers::F16, m: 3, k: 5, n: 7 },
            Case::Rows { function: Rows::Softmax, rows: 3, columns: 9 },
            Case::Rows { function: Rows::LayerNorm, rows: 3, columns: 9 },
            Case::Rows { function: Rows::RmsNorm, rows: 3, columns: 9 },
            Case::Sum { n: 100 },
            Case::Attention(Attention {
                numbers: Numbers::F16,
                causal: true,
                batch: 2,
                heads: 4,
                kv_heads: 2,
                s: 3,
                t: 5,
                d: 8,
            }),
            Case::Quantized { format: QuantFormat::Q6K, rows: 3, n: 20, k: 256 },
            Case::Requantized { format: QuantFormat::Q5K, n: 3, k: 512 },
            Case::AddHost { n: 10 },
        ];
        for case in small {
            let data = Data::random(&case).unwrap();
            let n = case.results();
            let mut right: Vec<f32> = (0..n).map(|at| data.exact(&case, at).0 as f32).collect();
            assert_eq!(data.difference(&case, &right), None, "{}", case.name());
            assert!(data.difference(&case, &right[1..]).is_some());
            right[n - 1] += 0.5;
            assert!(data.difference(&case, &right).is_some(), "{}", case.name());
        }
    }

    #[test]
    fn names_tell_cases_apart() {
        let names: std::collections::HashSet<String> = all().iter().map(Case::name).collect();
        assert_eq!(names.len(), all().len());
    }
}
