//! The cases: what is computed, on which data, and how fast it should be.

use kiln_ir::{QuantFormat, f16};

use crate::Result;
use crate::random::random;

/// The computation of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Case {
    /// The product of two matrices `n * n` that stay on the device.
    Matmul { n: usize },
    /// The same of f16, with sums in f32: through cooperative matrices where the device has them.
    MatmulF16 { n: usize },
    /// The product of f32 from host to host.
    MatmulHost { n: usize },
    /// The sum of a vector that stays on the device.
    Sum { n: usize },
    /// Softmax of rows that stay on the device.
    Softmax { rows: usize, columns: usize },
    /// The sum of two vectors from host to host.
    AddHost { n: usize },
    /// `max((a + b) / 2, 0)` from host to host, as one batch.
    ChainHost { n: usize },
    /// A recorded batch of 100 operations on vectors that stay on the device, executed again.
    Replay { n: usize },
    /// Products of quantised matrices `n * k` with a vector, as one batch; the weights are beyond every cache.
    Q4K { n: usize, k: usize },
    /// The product of many rows with a quantised matrix `n * k` that stays on the device, as in a prompt: through
    /// cooperative matrices where the device has them.
    Q4KRows { m: usize, n: usize, k: usize },
}

/// The unit of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Work {
    Flops(f64),
    Bytes(f64),
    Time,
}

/// Every case, in the order of the table.
pub(crate) const ALL: &[Case] = &[
    Case::Matmul { n: 4096 },
    Case::Matmul { n: 8192 },
    Case::MatmulF16 { n: 4096 },
    Case::MatmulF16 { n: 8192 },
    Case::MatmulHost { n: 1024 },
    Case::Sum { n: 1 << 28 },
    Case::Softmax { rows: 8192, columns: 4096 },
    Case::AddHost { n: 1000 },
    Case::AddHost { n: 100_000 },
    Case::AddHost { n: 1_000_000 },
    Case::AddHost { n: 16_000_000 },
    Case::ChainHost { n: 1_000_000 },
    Case::Replay { n: 10_000 },
    Case::Q4K { n: 4096, k: 14_336 },
    Case::Q4K { n: 8192, k: 28_672 },
    Case::Q4KRows { m: 512, n: 4096, k: 14_336 },
];

/// Operations of [`Case::Replay`]: scale by [`FACTOR`], add, relu, and again.
pub(crate) const OPERATIONS: usize = 100;
pub(crate) const FACTOR: f32 = 0.75;

/// The weights of a batch make this many bytes: more than any cache holds.
const BEYOND_CACHES: usize = 512 << 20;

impl Case {
    pub(crate) fn name(&self) -> String {
        match *self {
            Self::Matmul { n } => format!("matmul {n}, resident"),
            Self::MatmulF16 { n } => format!("matmul f16 cooperative {n}, resident"),
            Self::MatmulHost { n } => format!("matmul {n}, host to host"),
            Self::Sum { n } => format!("sum of {n}, resident"),
            Self::Softmax { rows, columns } => format!("softmax {rows} x {columns}, resident"),
            Self::AddHost { n } => format!("add {n}, host to host"),
            Self::ChainHost { n } => format!("add-scale-relu {n}, host to host"),
            Self::Replay { n } => format!("replay of {OPERATIONS} on {n}, resident"),
            Self::Q4K { n, k } => format!("{} Q4_K matvecs {n} x {k}, resident", self.copies()),
            Self::Q4KRows { m, n, k } => format!("Q4_K matmul {m} x {n} x {k}, resident"),
        }
    }

    /// Bytes of the largest tensor.
    fn largest(&self) -> u64 {
        let bytes = match *self {
            Self::Matmul { n } | Self::MatmulF16 { n } | Self::MatmulHost { n } => 4 * n * n,
            Self::Softmax { rows, columns } => 4 * rows * columns,
            Self::Sum { n } | Self::AddHost { n } | Self::ChainHost { n } | Self::Replay { n } => 4 * n,
            Self::Q4K { n, k } => weights(n, k),
            Self::Q4KRows { m, n, k } => weights(n, k).max(4 * m * n.max(k)),
        };
        bytes as u64
    }

    /// The case, halved until no tensor exceeds the limit.
    pub(crate) fn within(self, limit: Option<u64>) -> Self {
        if limit.is_none_or(|limit| self.largest() <= limit) {
            return self;
        }
        let half = match self {
            Self::Matmul { n } => Self::Matmul { n: n / 2 },
            Self::MatmulF16 { n } => Self::MatmulF16 { n: n / 2 },
            Self::MatmulHost { n } => Self::MatmulHost { n: n / 2 },
            Self::Sum { n } => Self::Sum { n: n / 2 },
            Self::Softmax { rows, columns } if rows > 1 => Self::Softmax { rows: rows / 2, columns },
            Self::AddHost { n } => Self::AddHost { n: n / 2 },
            Self::ChainHost { n } => Self::ChainHost { n: n / 2 },
            Self::Replay { n } => Self::Replay { n: n / 2 },
            Self::Q4K { n, k } if n > 1 => Self::Q4K { n: n / 2, k },
            Self::Q4KRows { m, n, k } if n > 1 => Self::Q4KRows { m: m.div_ceil(2), n: n / 2, k },
            smallest => return smallest,
        };
        half.within(limit)
    }

    pub(crate) fn work(&self) -> Work {
        match *self {
            Self::Matmul { n } | Self::MatmulF16 { n } => Work::Flops(2.0 * (n as f64).powi(3)),
            Self::Q4KRows { m, n, k } => Work::Flops(2.0 * (m * n * k) as f64),
            _ => self.copied().map_or(Work::Time, |bytes| Work::Bytes(bytes as f64)),
        }
    }

    /// Bytes that have to be read or written, where memory limits the case.
    pub(crate) fn copied(&self) -> Option<usize> {
        match *self {
            Self::Sum { n } => Some(4 * n),
            Self::Softmax { rows, columns } => Some(8 * rows * columns),
            Self::Q4K { n, k } => Some(self.copies() * (weights(n, k) + 4 * (n + k))),
            _ => None,
        }
    }

    /// Copies of the weights, one for each product.
    pub(crate) fn copies(&self) -> usize {
        match *self {
            Self::Q4K { n, k } => BEYOND_CACHES.div_ceil(weights(n, k)).clamp(2, 32),
            _ => 1,
        }
    }

    /// Elements of the result.
    fn results(&self) -> usize {
        match *self {
            Self::Matmul { n } | Self::MatmulF16 { n } | Self::MatmulHost { n } => n * n,
            Self::Softmax { rows, columns } => rows * columns,
            Self::Q4KRows { m, n, .. } => m * n,
            Self::Sum { .. } => 1,
            Self::AddHost { n } | Self::ChainHost { n } | Self::Replay { n } | Self::Q4K { n, .. } => n,
        }
    }

    /// The target for kiln on an H200, in seconds.
    pub(crate) fn wanted(&self) -> f64 {
        match *self {
            Self::Matmul { n } => 2.0 * (n as f64).powi(3) / 40e12,
            Self::MatmulF16 { n } => 2.0 * (n as f64).powi(3) / 250e12,
            Self::MatmulHost { .. } => 1000e-6,
            Self::Sum { n } => 4.0 * n as f64 / 3.6e12,
            Self::Softmax { rows, columns } => 8.0 * (rows * columns) as f64 / 3.0e12,
            Self::AddHost { n: ..=1000 } => 45e-6,
            Self::AddHost { n: ..=100_000 } => 150e-6,
            // At 25 GB/s, half of the bandwidth of the bus.
            Self::AddHost { n: n @ 10_000_000.. } => 12.0 * n as f64 / 25e9,
            Self::AddHost { .. } | Self::ChainHost { .. } => 900e-6,
            Self::Replay { .. } => 5e-6 * OPERATIONS as f64,
            Self::Q4K { n, k } => (self.copies() * weights(n, k)) as f64 / 2.0e12,
            Self::Q4KRows { m, n, k } => 2.0 * (m * n * k) as f64 / 60e12,
        }
    }
}

/// Bytes of a quantised matrix.
fn weights(n: usize, k: usize) -> usize {
    let format = QuantFormat::Q4K;
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
            Case::Matmul { n } | Case::MatmulF16 { n } | Case::MatmulHost { n } => vec![n * n; 2],
            Case::Sum { n } => vec![n],
            Case::Softmax { rows, columns } => vec![rows * columns],
            Case::AddHost { n } | Case::ChainHost { n } | Case::Replay { n } => vec![n; 2],
            Case::Q4K { k, .. } => vec![k],
            Case::Q4KRows { m, k, .. } => vec![m * k],
        };
        let mut floats: Vec<Vec<f32>> = (1..).zip(lengths).map(|(seed, length)| random(length, seed)).collect();
        if let Case::MatmulF16 { .. } = case {
            // Numbers that f16 represents exactly.
            floats.iter_mut().flatten().for_each(|x| *x = f16::from_f32(*x).to_f32());
        }
        let mut blocks = Vec::new();
        if let Case::Q4K { n, k } | Case::Q4KRows { n, k, .. } = *case {
            // A few rows are fitted and repeated: fitting all would take longer than the bench.
            let format = QuantFormat::Q4K;
            let few = random(n.min(16) * k, 9);
            let mut fitted = vec![0; format.bytes(few.len())?];
            format.encode(&few, &mut fitted)?;
            blocks = fitted.iter().copied().cycle().take(weights(n, k)).collect();
        }
        Ok(Self { floats, blocks })
    }

    /// A difference between a result and that of f64 beyond single precision; compared at a few positions.
    pub(crate) fn difference(&self, case: &Case, result: &[f32]) -> Option<String> {
        let want = case.results();
        if result.len() != want {
            return Some(format!("{} elements, not {want}", result.len()));
        }
        (0..want).step_by(want / 61 + 1).chain([want - 1]).find_map(|at| {
            let (exact, scale) = self.exact(case, at);
            let off = (f64::from(result[at]) - exact).abs();
            (off.is_nan() || off > 1e-3 * scale).then(|| format!("element {at} is {}, exact {exact}", result[at]))
        })
    }

    /// An element of the result, and the magnitude that its error is relative to.
    fn exact(&self, case: &Case, at: usize) -> (f64, f64) {
        let of = |operand: usize, i: usize| f64::from(self.floats[operand][i]);
        match *case {
            Case::Matmul { n } | Case::MatmulF16 { n } | Case::MatmulHost { n } => {
                let (row, column) = (at / n, at % n);
                ((0..n).map(|i| of(0, row * n + i) * of(1, i * n + column)).sum(), (n as f64).sqrt())
            }
            Case::Sum { n } => ((0..n).map(|i| of(0, i)).sum(), (n as f64).sqrt()),
            Case::Softmax { columns, .. } => {
                let row = &self.floats[0][at / columns * columns..][..columns];
                let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
                let value = of(0, at).exp() / sum;
                (value, value)
            }
            Case::AddHost { .. } => (of(0, at) + of(1, at), 1.0),
            Case::ChainHost { .. } => (((of(0, at) + of(1, at)) / 2.0).max(0.0), 1.0),
            Case::Replay { .. } => {
                let step = |y: f64, i: usize| match i % 3 {
                    0 => y * f64::from(FACTOR),
                    1 => y + of(1, at),
                    _ => y.max(0.0),
                };
                ((0..OPERATIONS).fold(of(0, at), step), 1.0)
            }
            Case::Q4K { n, k } | Case::Q4KRows { n, k, .. } => {
                let (x, column) = (at / n * k, at % n);
                let bytes = weights(1, k);
                let mut row = vec![0.0; k];
                // Whole blocks, made for this length: zeros would show as a difference.
                _ = QuantFormat::Q4K.decode(&self.blocks[column * bytes..][..bytes], &mut row);
                (row.iter().enumerate().map(|(i, &w)| f64::from(w) * of(0, x + i)).sum(), (k as f64).sqrt())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_halved_until_they_fit() {
        assert_eq!(Case::Matmul { n: 4096 }.within(Some(1 << 20)), Case::Matmul { n: 512 });
        assert_eq!(Case::AddHost { n: 1000 }.within(Some(1 << 20)), Case::AddHost { n: 1000 });
        for case in ALL {
            let small = case.within(Some(1 << 20));
            assert!(small.largest() <= 1 << 20, "{}", small.name());
            assert_eq!(case.within(None), *case);
        }
    }

    #[test]
    fn wrong_results_are_found() {
        for case in ALL.iter().map(|case| case.within(Some(1 << 12))) {
            let data = Data::random(&case).unwrap();
            let n = case.results();
            let mut right: Vec<f32> = (0..n).map(|at| data.exact(&case, at).0 as f32).collect();
            assert_eq!(data.difference(&case, &right), None, "{}", case.name());
            assert!(data.difference(&case, &right[1..]).is_some());
            right[n - 1] += 0.5;
            assert!(data.difference(&case, &right).is_some(), "{}", case.name());
        }
    }
}
