//! The static rules.

use std::fmt;

use kiln_ir::op::Op;
use kiln_ir::{Error, Result};

use crate::json::{self, Json, Value};

/// A backend that runs operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// The CPU with scalar code.
    Scalar,
    /// The CPU with vector instructions.
    Simd,
    /// A GPU through wgpu. The static rules know no other GPU.
    Gpu,
    /// An NVIDIA GPU through CUDA.
    Cuda,
}

impl Backend {
    /// Whether it is a graphics processor.
    pub const fn is_gpu(self) -> bool {
        matches!(self, Self::Gpu | Self::Cuda)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Simd => "SIMD",
            Self::Gpu => "GPU",
            Self::Cuda => "CUDA",
        })
    }
}

/// By its name in small letters.
impl Json for Backend {
    fn to_value(&self) -> Value {
        self.to_string().to_lowercase().into()
    }

    fn from_value(value: Value) -> json::Result<Self> {
        let name = String::from_value(value)?;
        let mut found = [Self::Scalar, Self::Simd, Self::Gpu, Self::Cuda].into_iter();
        let found = found.find(|backend| backend.to_string().to_lowercase() == name);
        found.ok_or_else(|| format!("unknown backend {name:?}"))
    }
}

/// The growth of an operation's arithmetic with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpComplexity {
    /// A few operations per element, each element used once: element-wise functions, transposes, gathers.
    Low,
    /// Each element used a few times or reduced to few results: reductions, inner products, normalisation of rows.
    Medium,
    /// Each element used many times: matrix products, convolutions, attention.
    High,
}

impl OpComplexity {
    /// The complexity of an operation of kiln-ir.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Matmul(_)
            | Op::Matvec(_)
            | Op::QuantMatmul(_)
            | Op::MatmulByExpert(_)
            | Op::Convolve2d(_)
            | Op::ConvolveTranspose2d(_)
            | Op::Attention(_) => Self::High,
            Op::Elementwise(_)
            | Op::Compare(_)
            | Op::Select(_)
            | Op::Arithmetic(_)
            | Op::BatchNorm(_)
            | Op::Transpose(_)
            | Op::Gather(_)
            | Op::Rope(_) => Self::Low,
            Op::Sort(_) => Self::Medium,
            op if op.reads_as_stored() => Self::Low,
            _ => Self::Medium,
        }
    }
}

/// Static rules: a backend from the sizes alone, without a measurement of the machine.
///
/// # The ratio rule
///
/// A problem of `flops` operations on `bytes` of data goes to the GPU when
///
/// ```text
/// flops / gpu_flops  >  ratio * bytes / pcie_bandwidth
/// ```
///
/// with `gpu_flops` = 20e12 FLOP/s, `pcie_bandwidth` = 32e9 B/s and `ratio` = 5 unless a builder method says otherwise;
/// the bound is exclusive. Everything else goes to SIMD.
///
/// Limits of the rule:
///
/// - A square f32 product moves `12 n²` bytes and computes `2 n³` operations, so the two sides meet at
///   `n = 5 * 6 * 20e12 / 32e9 = 18 750`: 1024 reaches a ratio of 0.27 and stays on SIMD.
/// - A vector operation needs more than 37 500 operations an element to leave the CPU, more than any has.
/// - Time on the CPU does not occur in it, nor launch latency, nor where the data are. A faster GPU is chosen *less*
///   often, because its shorter computation weighs less against the same transfer.
///
/// # The complexity table
///
/// [`select_with_moe`](Self::select_with_moe) goes by [`OpComplexity`] and the number of elements, all bounds exclusive:
///
/// | complexity | SIMD above | GPU above |
/// |---|---|---|
/// | low | 1 000 000 | never |
/// | medium | 10 000 | 100 000 |
/// | high | 1 000 | 10 000 |
///
/// It sends an addition of a million elements to scalar code, and a product of two 101 x 101 matrices to the GPU.
///
/// Both are kept because they are simple and need no measurement, and because they are the baseline that
/// [`Router`](crate::Router) has to beat; the regret of both is printed side by side by the benchmarks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackendSelector {
    pcie_bandwidth: f64,
    gpu_flops: f64,
    min_dispatch_ratio: f64,
}

impl Default for BackendSelector {
    fn default() -> Self {
        Self::new()
    }
}

impl BackendSelector {
    /// The rules with their default constants.
    pub const fn new() -> Self {
        Self { pcie_bandwidth: 32e9, gpu_flops: 20e12, min_dispatch_ratio: 5.0 }
    }

    /// Bandwidth between host and GPU, in bytes per second.
    ///
    /// # Errors
    /// [`Error::Parameter`] unless the value is positive and finite.
    pub fn with_pcie_bandwidth(self, bytes_per_second: f64) -> Result<Self> {
        Ok(Self { pcie_bandwidth: positive("pcie_bandwidth", bytes_per_second)?, ..self })
    }

    /// Arithmetic of the GPU, in operations per second (not in billions of them).
    ///
    /// # Errors
    /// [`Error::Parameter`] unless the value is positive and finite.
    pub fn with_gpu_flops(self, flops_per_second: f64) -> Result<Self> {
        Ok(Self { gpu_flops: positive("gpu_flops", flops_per_second)?, ..self })
    }

    /// Sets the minimum ratio of the time of the computation to that of the transfer.
    ///
    /// # Errors
    /// [`Error::Parameter`] unless the value is positive and finite.
    pub fn with_min_dispatch_ratio(self, ratio: f64) -> Result<Self> {
        Ok(Self { min_dispatch_ratio: positive("min_dispatch_ratio", ratio)?, ..self })
    }

    /// The ratio rule on a number of bytes moved and of operations computed.
    pub fn select_backend(&self, data_bytes: u64, flops: u64) -> Backend {
        self.select(data_bytes as f64, flops as f64)
    }

    /// The ratio rule in floating point, so that no product of extents overflows.
    fn select(&self, bytes: f64, flops: f64) -> Backend {
        let compute = flops / self.gpu_flops;
        let transfer = bytes / self.pcie_bandwidth;
        if compute > self.min_dispatch_ratio * transfer { Backend::Gpu } else { Backend::Simd }
    }

    /// The ratio rule on the product of an `m * k` and a `k * n` matrix of f32: `4 (mk + kn + mn)` bytes, `2 mnk`
    /// operations.
    pub fn select_for_matmul(&self, m: usize, n: usize, k: usize) -> Backend {
        let (m, n, k) = (m as f64, n as f64, k as f64);
        self.select(4.0 * (m * k + k * n + m * n), 2.0 * m * n * k)
    }

    /// The ratio rule on a function of two vectors of `n` f32 into a third: `12 n` bytes, `n * ops_per_element`
    /// operations.
    pub fn select_for_vector_op(&self, n: usize, ops_per_element: u64) -> Backend {
        self.select(12.0 * n as f64, n as f64 * ops_per_element as f64)
    }

    /// The low row of the complexity table.
    pub fn select_for_elementwise(&self, n: usize) -> Backend {
        self.select_with_moe(OpComplexity::Low, n)
    }

    /// The complexity table on a number of elements.
    pub fn select_with_moe(&self, complexity: OpComplexity, elements: usize) -> Backend {
        let (simd_above, gpu_above) = match complexity {
            OpComplexity::Low => (1_000_000, usize::MAX),
            OpComplexity::Medium => (10_000, 100_000),
            OpComplexity::High => (1_000, 10_000),
        };
        if elements > gpu_above {
            Backend::Gpu
        } else if elements > simd_above {
            Backend::Simd
        } else {
            Backend::Scalar
        }
    }
}

fn positive(name: &str, value: f64) -> Result<f64> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(Error::Parameter {
        op: "backend selector",
        reason: format!("{name} is {value}, but has to be positive and finite"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_square_product_leaves_the_cpu_only_above_18750() {
        let rules = BackendSelector::new();
        for n in [1, 64, 512, 1024, 2048, 18_750] {
            assert_eq!(rules.select_for_matmul(n, n, n), Backend::Simd, "{n}");
        }
        assert_eq!(rules.select_for_matmul(18_751, 18_751, 18_751), Backend::Gpu);
    }

    #[test]
    fn a_vector_operation_needs_more_than_37500_operations_an_element() {
        let rules = BackendSelector::new();
        assert_eq!(rules.select_for_vector_op(1 << 30, 37_500), Backend::Simd);
        assert_eq!(rules.select_for_vector_op(1 << 30, 37_501), Backend::Gpu);
        assert_eq!(rules.select_for_vector_op(0, u64::MAX), Backend::Simd);
    }

    #[test]
    fn the_bounds_of_the_table_are_exclusive() {
        use {Backend::*, OpComplexity::*};
        let rules = BackendSelector::new();
        for (complexity, elements, expected) in [
            (Low, 0, Scalar),
            (Low, 1_000_000, Scalar),
            (Low, 1_000_001, Simd),
            (Low, usize::MAX, Simd),
            (Medium, 10_000, Scalar),
            (Medium, 10_001, Simd),
            (Medium, 100_000, Simd),
            (Medium, 100_001, Gpu),
            (High, 1_000, Scalar),
            (High, 1_001, Simd),
            (High, 10_000, Simd),
            (High, 10_001, Gpu),
        ] {
            assert_eq!(rules.select_with_moe(complexity, elements), expected, "{complexity:?} {elements}");
        }
        assert_eq!(rules.select_for_elementwise(1_000_000), Scalar);
        assert_eq!(rules.select_for_elementwise(1_000_001), Simd);
    }

    #[test]
    fn absurd_extents_do_not_wrap() {
        let rules = BackendSelector::new();
        assert_eq!(rules.select_for_matmul(usize::MAX, usize::MAX, usize::MAX), Backend::Gpu);
        assert_eq!(rules.select_for_vector_op(usize::MAX, u64::MAX), Backend::Gpu);
        assert_eq!(rules.select_backend(u64::MAX, u64::MAX), Backend::Simd);
        assert_eq!(rules.select_backend(0, 0), Backend::Simd);
        assert_eq!(rules.select_backend(0, 1), Backend::Gpu);
    }

    #[test]
    fn constants_that_make_no_sense_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, -5.0] {
            let rules = BackendSelector::new();
            assert!(matches!(rules.with_pcie_bandwidth(bad), Err(Error::Parameter { .. })), "{bad}");
            assert!(matches!(rules.with_gpu_flops(bad), Err(Error::Parameter { .. })), "{bad}");
            assert!(matches!(rules.with_min_dispatch_ratio(bad), Err(Error::Parameter { .. })), "{bad}");
        }
        // A faster GPU is chosen less often: a known defect of the rule, kept intentionally.
        let faster = BackendSelector::new().with_gpu_flops(82.6e12).unwrap();
        assert_eq!(faster.select_for_matmul(20_000, 20_000, 20_000), Backend::Simd);
        let eager = BackendSelector::new().with_min_dispatch_ratio(0.2).unwrap();
        assert_eq!(eager.select_for_matmul(1024, 1024, 1024), Backend::Gpu);
        let wide = BackendSelector::new().with_pcie_bandwidth(1e12).unwrap();
        assert_eq!(wide.select_for_matmul(1024, 1024, 1024), Backend::Gpu);
    }
}
