//! What is measured: the operations and shapes of the calibration, and those that decisions are judged by.
//!
//! Element-wise operations come from their table. The two lists share few shapes: most of those that judge are held out
//! of the calibration.

use kiln_core::op::{Dot, Elementwise, ElementwiseKind, Matmul, Matvec, Op, Reduce, Reduction, Transpose};
use kiln_core::{DataMut, Operand, Result, Shape, TensorType};
use kiln_simd::Simd;

/// An operation on inputs of given types, to be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The operation.
    pub op: Op,
    /// The types of its inputs.
    pub inputs: Vec<TensorType>,
}

impl Probe {
    /// A probe.
    ///
    /// # Errors
    /// What the shape rule of the operation says.
    pub fn new(op: impl Into<Op>, inputs: Vec<TensorType>) -> Result<Self> {
        let op = op.into();
        op.infer(&inputs)?;
        Ok(Self { op, inputs })
    }

    pub(crate) fn op_into(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        simd.run_into(&self.op, inputs, outputs)
    }
}

impl std::fmt::Display for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.op.name())?;
        self.inputs.iter().try_for_each(|input| write!(f, " {}", input.shape))
    }
}

/// Collects probes of f32 inputs.
#[derive(Default)]
struct Probes(Vec<Probe>);

impl Probes {
    fn add(&mut self, op: impl Into<Op>, inputs: &[&[usize]]) -> Result<()> {
        let types = inputs.iter().map(|dims| Ok(TensorType::f32(Shape::new(dims)?))).collect::<Result<_>>()?;
        self.0.push(Probe::new(op, types)?);
        Ok(())
    }
}

/// Parameters with which every element-wise function takes its ordinary path.
fn elementwise(kind: ElementwiseKind) -> Elementwise {
    kind.with_params([0.75, 1.5])
}

/// Shapes of `m * k` times `k * n`.
type Extents = (usize, usize, usize);

fn lists(
    flat: &[usize],
    rows: &[(usize, usize)],
    products: &[Extents],
    stacks: &[(usize, Extents)],
    kinds: &[ElementwiseKind],
) -> Result<Vec<Probe>> {
    let mut probes = Probes::default();
    for &kind in kinds {
        for &n in flat {
            probes.add(elementwise(kind), &vec![&[n][..]; kind.arity()])?;
        }
    }
    for &(m, n) in rows {
        probes.add(Elementwise::add(), &[&[m, n], &[n]])?;
        for axis in [0, 1] {
            probes.add(Reduce::along(Reduction::Sum, axis), &[&[m, n]])?;
        }
        probes.add(Matvec { transpose: false }, &[&[m, n], &[n]])?;
        probes.add(Matvec { transpose: true }, &[&[m, n], &[m]])?;
        probes.add(Transpose, &[&[m, n]])?;
    }
    for &n in flat {
        for reduction in [Reduction::Sum, Reduction::Max, Reduction::ArgMax, Reduction::NormL2] {
            probes.add(Reduce::all(reduction), &[&[n]])?;
        }
        probes.add(Dot, &[&[n], &[n]])?;
    }
    for &(m, k, n) in products {
        probes.add(Matmul::default(), &[&[m, k], &[k, n]])?;
    }
    for &(stack, (m, k, n)) in stacks {
        probes.add(Matmul::default(), &[&[stack, m, k], &[stack, k, n]])?;
    }
    Ok(probes.0)
}

/// The shapes that a calibration measures: a few sizes of every class, from the nearest cache to beyond the last.
///
/// # Errors
/// None: the shapes are sound.
pub fn calibration() -> Result<Vec<Probe>> {
    lists(
        &[64, 1 << 10, 1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 22],
        &[(4, 64), (32, 128), (128, 512), (512, 1024), (2048, 2048)],
        &[
            // square
            (24, 24, 24),
            (48, 48, 48),
            (80, 80, 80),
            (128, 128, 128),
            (192, 192, 192),
            (320, 320, 320),
            (768, 768, 768),
            // one row, one column, few rows, few columns
            (1, 64, 64),
            (1, 256, 256),
            (1, 512, 512),
            (1, 1024, 1024),
            (1, 2048, 2048),
            (1, 4096, 4096),
            (64, 64, 1),
            (256, 256, 1),
            (512, 512, 1),
            (1024, 1024, 1),
            (4096, 4096, 1),
            (8, 32, 32),
            (8, 128, 128),
            (8, 256, 256),
            (8, 512, 512),
            (8, 2048, 2048),
            (32, 32, 8),
            (128, 128, 8),
            (256, 256, 8),
            (512, 512, 8),
            (2048, 2048, 8),
        ],
        &[(4, (16, 16, 16)), (8, (32, 32, 32)), (8, (64, 64, 64)), (8, (128, 128, 128)), (8, (256, 256, 256))],
        ElementwiseKind::ALL,
    )
}

/// The shapes that decisions are judged by, each with whether it was held out of the calibration.
///
/// # Errors
/// None: the shapes are sound.
pub fn evaluation() -> Result<Vec<(Probe, bool)>> {
    use ElementwiseKind::{Add, Exp, Fma, Gelu, Relu, Sqrt, Tanh};
    let probes = lists(
        &[100, 1 << 10, 3000, 20_000, 50_000, 1 << 17, 250_000, 900_000, 3_000_000],
        &[(10, 100), (100, 300), (512, 1024), (300, 2500), (1500, 1500)],
        &[
            (16, 16, 16),
            (33, 35, 37),
            (64, 64, 64),
            (100, 100, 100),
            (128, 128, 128),
            (127, 129, 131),
            (160, 160, 160),
            (256, 256, 256),
            (300, 100, 500),
            (600, 600, 600),
            (1, 128, 128),
            (1, 700, 700),
            (1, 1024, 1024),
            (1, 1500, 3000),
            (1, 4096, 4096),
            (300, 900, 1),
            (3000, 2000, 1),
            (4, 100, 100),
            (8, 512, 512),
            (12, 300, 700),
            (16, 1500, 1500),
            (100, 100, 4),
            (300, 700, 12),
            (1500, 1500, 16),
        ],
        &[(6, (24, 24, 24)), (8, (64, 64, 64)), (5, (100, 100, 100)), (12, (48, 96, 200))],
        &[Add, Fma, Relu, Sqrt, Exp, Tanh, Gelu],
    )?;
    let calibrated = calibration()?;
    Ok(probes
        .into_iter()
        .map(|probe| {
            let held_out = !calibrated.contains(&probe);
            (probe, held_out)
        })
        .collect())
}
