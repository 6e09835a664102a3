//! The problems that are measured: the operations and shapes of the calibration, and those that evaluate decisions.
//!
//! Element-wise operations come from their table. The two lists share few shapes: most shapes of the evaluation are held out
//! of the calibration.

use kiln_ir::op::{
    Attention, Convolve2d, Cumsum, Dequantize, Dot, Elementwise, ElementwiseKind, Gather, LayerNorm, LogSoftmax,
    Matmul, Matvec, Op, Padding, Permute, Pool2d, QuantMatmul, Quantize, Reduce, Reduction, RmsNorm, Rope, Softmax,
    Sort, TopK, Transpose,
};
use kiln_ir::{QuantFormat, Result, Shape, TensorType};
use kiln_route::measured_as;

/// An operation on inputs of given types, to be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The operation.
    pub op: Op,
    /// The types of its inputs.
    pub inputs: Vec<TensorType>,
}

impl Probe {
    /// Makes a probe.
    ///
    /// # Errors
    /// The errors of the operation's shape rule.
    pub fn new(op: impl Into<Op>, inputs: Vec<TensorType>) -> Result<Self> {
        let op = op.into();
        op.infer(&inputs)?;
        Ok(Self { op, inputs })
    }
}

impl std::fmt::Display for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.op.name())?;
        self.inputs.iter().try_for_each(|input| write!(f, " {}", input.shape))
    }
}

/// The sizes of the probes of a grid.
struct Sizes {
    /// Element-wise functions.
    kinds: &'static [ElementwiseKind],
    /// Elements of vectors.
    flat: &'static [usize],
    /// Rows and columns of matrices for operations along rows.
    rows: &'static [(usize, usize)],
    /// Rows and columns of matrices to transpose, in addition to `rows`.
    transposes: &'static [(usize, usize)],
    /// Products of `m * k` and `k * n`.
    products: &'static [(usize, usize, usize)],
    /// Stacks of such products.
    stacks: &'static [(usize, usize, usize, usize)],
    /// Rows and columns of images of one channel, and the extent of a square kernel.
    pictures: &'static [(usize, usize, usize)],
    /// Channels in, rows and columns, channels out, and the extent of a square kernel.
    channels: &'static [(usize, usize, usize, usize)],
    /// Heads, queries, keys, and the length of each.
    attention: &'static [(usize, usize, usize, usize)],
    /// Rows of f32, and rows and columns of quantised weights.
    quantised: &'static [(usize, usize, usize)],
}

/// A few sizes of every class, from the nearest cache to beyond the last.
const CALIBRATION: Sizes = Sizes {
    kinds: ElementwiseKind::ALL,
    flat: &[64, 1 << 10, 1 << 12, 1 << 15, 1 << 17, 1 << 18, 1 << 19, 3 << 19, 1 << 22],
    // (60, 512) and (1, 130_000) are just below the sizes from which the kernels of kiln-simd's `rows` use several threads.
    rows: &[
        (4, 64),
        (32, 128),
        (60, 512),
        (128, 512),
        (512, 1024),
        (1024, 1024),
        (2048, 2048),
        (1, 64),
        (1, 4096),
        (1, 130_000),
        (1, 131_072),
        (1, 1 << 20),
        (8, 24),
        (256, 24),
        (2500, 24),
        (8192, 32),
    ],
    transposes: &[
        (3, 30),
        (4, 1000),
        (3, 30_000),
        (3, 300_000),
        (30, 3),
        (1000, 4),
        (30_000, 3),
        (300_000, 3),
        (5, 12),
        (6, 100),
        (6, 1500),
        (7, 5000),
        (7, 200_000),
        (12, 5),
        (100, 6),
        (1500, 6),
        (5000, 7),
        (200_000, 7),
        (12, 30),
        (11, 400),
        (13, 20_000),
        (30, 12),
        (400, 11),
        (20_000, 13),
        (21, 27),
        (59, 53),
        (250, 250),
    ],
    products: &[
        (24, 24, 24),
        (48, 48, 48),
        (80, 80, 80),
        (128, 128, 128),
        (192, 192, 192),
        (320, 320, 320),
        (768, 768, 768),
        (1, 64, 64),
        (1, 96, 96),
        (1, 160, 160),
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
    stacks: &[(4, 16, 16, 16), (8, 32, 32, 32), (8, 64, 64, 64), (8, 128, 128, 128), (8, 256, 256, 256)],
    pictures: &[
        (16, 16, 3),
        (64, 64, 3),
        (256, 256, 3),
        (600, 600, 3),
        (1200, 1200, 3),
        (32, 32, 5),
        (128, 128, 5),
        (256, 256, 5),
        (512, 512, 5),
        (1024, 1024, 5),
    ],
    channels: &[(4, 8, 8, 3), (8, 16, 16, 3), (16, 28, 16, 3), (32, 28, 32, 3), (64, 56, 64, 3)],
    attention: &[
        (2, 8, 8, 16),
        (4, 32, 32, 32),
        (8, 64, 64, 64),
        (8, 192, 192, 64),
        (8, 512, 512, 64),
        (4, 1, 64, 32),
        (8, 1, 256, 64),
        (8, 1, 1024, 64),
        (8, 1, 4096, 64),
    ],
    quantised: &[
        (1, 64, 256),
        (1, 256, 512),
        (1, 512, 768),
        (1, 1024, 1024),
        (1, 4096, 2048),
        (8, 32, 256),
        (8, 256, 512),
        (8, 1024, 1024),
        (16, 256, 768),
        (64, 128, 256),
        (64, 512, 512),
        (64, 1024, 1024),
    ],
};

/// The sizes that evaluate decisions, for representative operations. Most differ from those of [`CALIBRATION`].
const EVALUATION: Sizes = Sizes {
    kinds: &[
        ElementwiseKind::Add,
        ElementwiseKind::Fma,
        ElementwiseKind::Relu,
        ElementwiseKind::Sqrt,
        ElementwiseKind::Exp,
        ElementwiseKind::Tanh,
        ElementwiseKind::Gelu,
    ],
    flat: &[100, 1 << 10, 3000, 20_000, 50_000, 1 << 17, 250_000, 900_000, 3_000_000],
    rows: &[(10, 100), (100, 300), (512, 1024), (300, 2500), (1500, 1500), (1, 30_000), (3000, 20)],
    transposes: &[(5, 300), (14, 900), (30, 40), (90, 70), (3000, 6), (20_000, 3)],
    products: &[
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
    stacks: &[(6, 24, 24, 24), (8, 64, 64, 64), (5, 100, 100, 100), (12, 48, 96, 200)],
    pictures: &[(40, 60, 3), (100, 150, 7), (256, 256, 5), (480, 640, 3), (700, 900, 3)],
    channels: &[(3, 32, 16, 3), (12, 24, 24, 3), (32, 28, 32, 3), (64, 14, 96, 3), (64, 28, 64, 1)],
    attention: &[(4, 20, 20, 32), (8, 64, 64, 64), (6, 130, 130, 48), (8, 1, 500, 64), (12, 1, 2000, 64)],
    quantised: &[(1, 150, 256), (1, 700, 768), (1, 2000, 2048), (5, 100, 256), (12, 400, 1024), (40, 600, 768)],
};

/// Collects probes of f32 inputs.
#[derive(Default)]
struct Probes(Vec<Probe>);

impl Probes {
    fn add(&mut self, op: impl Into<Op>, inputs: &[&[usize]]) -> Result<()> {
        let types = inputs.iter().map(|dims| Ok(TensorType::f32(Shape::new(dims)?))).collect::<Result<_>>()?;
        self.0.push(Probe::new(op, types)?);
        Ok(())
    }

    /// Element-wise functions, full reductions, inner products.
    fn vectors(&mut self, sizes: &Sizes) -> Result<()> {
        for &n in sizes.flat {
            for kind in sizes.kinds {
                // Parameters that keep every function on its ordinary path.
                self.add(kind.with_params([0.75, 1.5]), &vec![&[n][..]; kind.arity()])?;
            }
            for reduction in [Reduction::Sum, Reduction::Max, Reduction::ArgMax, Reduction::NormL2] {
                self.add(Reduce::all(reduction), &[&[n]])?;
            }
            self.add(Dot, &[&[n], &[n]])?;
        }
        Ok(())
    }

    /// Operations along the rows and columns of a matrix.
    fn rows(&mut self, sizes: &Sizes) -> Result<()> {
        for &(m, n) in sizes.transposes {
            self.add(Transpose, &[&[m, n]])?;
        }
        for &(m, n) in sizes.rows {
            self.add(Softmax, &[&[m, n]])?;
            self.add(LogSoftmax, &[&[m, n]])?;
            self.add(LayerNorm::new(1e-5), &[&[m, n], &[n], &[n]])?;
            self.add(RmsNorm::new(1e-5), &[&[m, n], &[n]])?;
            self.add(Rope::default(), &[&[m, n]])?;
            self.add(TopK { k: 8 }, &[&[m, n]])?;
            self.add(Cumsum { axis: 1 }, &[&[m, n]])?;
            self.add(Sort { axis: 1, descending: false }, &[&[m, n]])?;
            let table = TensorType::f32(Shape::new(&[m, n])?);
            let indices = TensorType::u32(Shape::new(&[m])?);
            self.0.push(Probe::new(Gather, vec![table, indices])?);
            if m == 1 || n < 64 {
                continue;
            }
            // Moves heads to the outside, and channels to the inside.
            self.add(Permute::new(&[1, 0, 2])?, &[&[m, n / 16, 16]])?;
            self.add(Permute::new(&[0, 2, 1])?, &[&[2, m / 2, n]])?;
            self.add(Elementwise::add(), &[&[m, n], &[n]])?;
            for axis in [0, 1] {
                self.add(Reduce::along(Reduction::Sum, axis), &[&[m, n]])?;
            }
            self.add(Matvec { transpose: false }, &[&[m, n], &[n]])?;
            self.add(Matvec { transpose: true }, &[&[m, n], &[m]])?;
            self.add(Transpose, &[&[m, n]])?;
        }
        Ok(())
    }

    /// Products, convolutions, attention.
    fn products(&mut self, sizes: &Sizes) -> Result<()> {
        for &(m, k, n) in sizes.products {
            self.add(Matmul::default(), &[&[m, k], &[k, n]])?;
        }
        for &(stack, m, k, n) in sizes.stacks {
            self.add(Matmul::default(), &[&[stack, m, k], &[stack, k, n]])?;
        }
        for &(h, w, kernel) in sizes.pictures {
            self.add(Convolve2d::default(), &[&[h, w], &[kernel, kernel]])?;
            self.add(Pool2d::max((2, 2), (2, 2)), &[&[h, w]])?;
        }
        for &(c_in, extent, c_out, kernel) in sizes.channels {
            let same = Convolve2d { padding: Padding::Same, ..Convolve2d::default() };
            self.add(same, &[&[c_in, extent, extent], &[c_out, c_in, kernel, kernel]])?;
        }
        for &(heads, queries, keys, length) in sizes.attention {
            let keys = [heads, keys, length];
            self.add(Attention::full(), &[&[heads, queries, length], &keys, &keys])?;
        }
        for format in QuantFormat::ALL.into_iter().filter(|&format| measured_as(format) == format) {
            for &(m, n, k) in sizes.quantised {
                let x = TensorType::f32(Shape::new(&[m, k])?);
                let plain = TensorType::f32(Shape::new(&[n, k])?);
                let blocks = TensorType::blocks(format, plain.shape)?;
                self.0.push(Probe::new(QuantMatmul { format }, vec![x, blocks])?);
                if m == 1 {
                    self.0.push(Probe::new(Dequantize { format }, vec![blocks])?);
                    // Quantisation is slow and done once, and a large matrix adds no information.
                    if n <= 256 {
                        self.0.push(Probe::new(Quantize { format }, vec![plain])?);
                    }
                }
            }
        }
        Ok(())
    }

    fn of(sizes: &Sizes) -> Result<Vec<Probe>> {
        let mut probes = Self::default();
        probes.vectors(sizes)?;
        probes.rows(sizes)?;
        probes.products(sizes)?;
        Ok(probes.0)
    }
}

/// Returns the problems that a calibration measures: a few sizes of every class.
///
/// # Errors
/// Never fails: the shapes are valid.
pub fn calibration() -> Result<Vec<Probe>> {
    Probes::of(&CALIBRATION)
}

/// Returns the problems that evaluate decisions, each with whether it was held out of the calibration.
///
/// # Errors
/// Never fails: the shapes are valid.
pub fn evaluation() -> Result<Vec<(Probe, bool)>> {
    let calibrated = calibration()?;
    let marked = |probe: Probe| {
        let held_out = !calibrated.contains(&probe);
        (probe, held_out)
    };
    Ok(Probes::of(&EVALUATION)?.into_iter().map(marked).collect())
}
