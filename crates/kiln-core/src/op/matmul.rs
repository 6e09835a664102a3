use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, Shape, TensorType};

/// The matrix product `C = A B`, of two matrices or of two equally long stacks of them.
///
/// A is `[.., m, k]` (`[.., k, m]` when `transpose_a`), B is `[.., k, n]` (`[.., n, k]` when `transpose_b`), C is
/// `[.., m, n]`, all row-major. B may also be a single matrix used with every A.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// A is stored transposed.
    pub transpose_a: bool,
    /// B is stored transposed: the layout of weights in most frameworks.
    pub transpose_b: bool,
}

/// The extents of a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulExtents {
    /// Number of products.
    pub batch: usize,
    /// Whether one B serves all of them.
    pub shared_b: bool,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
}

impl Matmul {
    /// The extents for two operands.
    ///
    /// # Errors
    /// [`Error::Shape`] when the operands are not matrices or do not fit one another.
    pub fn extents(&self, a: &Shape, b: &Shape) -> Result<MatmulExtents> {
        let ([outer_a @ .., a0, a1], [outer_b @ .., b0, b1]) = (a.dims(), b.dims()) else {
            return Err(Error::Shape { op: "matmul", reason: format!("{a} and {b} are not both matrices") });
        };
        let (m, ka) = if self.transpose_a { (*a1, *a0) } else { (*a0, *a1) };
        let (kb, n) = if self.transpose_b { (*b1, *b0) } else { (*b0, *b1) };
        let shared_b = outer_b.is_empty();
        if ka != kb || !(shared_b || outer_a == outer_b) {
            let t = |t: bool| if t { "ᵀ" } else { "" };
            return Err(Error::Shape {
                op: "matmul",
                reason: format!("A{} {a} times B{} {b} do not agree", t(self.transpose_a), t(self.transpose_b)),
            });
        }
        Ok(MatmulExtents { batch: outer_a.iter().product(), shared_b, m, k: ka, n })
    }
}

impl Operation for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn formula(&self) -> &'static str {
        "Cᵢⱼ = Σₖ Aᵢₖ Bₖⱼ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("matmul", inputs, &[DType::F32; 2])?;
        let (a, b) = (inputs[0].shape, inputs[1].shape);
        let e = self.extents(&a, &b)?;
        let mut dims = a.dims().to_vec();
        let rank = dims.len();
        dims[rank - 2] = e.m;
        dims[rank - 1] = e.n;
        Ok(TensorType::f32(Shape::new(&dims)?).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(0, |e| super::product(&[2, e.batch, e.m, e.k, e.n]))
    }

    fn contract(&self) -> Contract {
        Contract {
            // Running sums of at most 512 products in a register, fused, then a sum over blocks of k: the worst case
            // grows with k, the observed error with its root.
            bound: Bound::Magnitude(16.0),
            special: "IEEE 754; k = 0 gives zeros; the order of summation may differ between instruction sets",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (a, b) = (inputs[0].data().f32(), inputs[1].data().f32());
        let Ok(e) = self.extents(&inputs[0].shape(), &inputs[1].shape()) else { return Vec::new() };
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for batch in 0..e.batch {
            let a = &a[batch * e.m * e.k..];
            let b = &b[if e.shared_b { 0 } else { batch * e.k * e.n }..];
            for i in 0..e.m {
                for j in 0..e.n {
                    let terms = (0..e.k).map(|p| {
                        let a = a[if self.transpose_a { p * e.m + i } else { i * e.k + p }];
                        let b = b[if self.transpose_b { j * e.k + p } else { p * e.n + j }];
                        f64::from(a) * f64::from(b)
                    });
                    let (value, magnitude) = terms.fold((0.0, 0.0), |(v, m), t| (v + t, m + f64::abs(t)));
                    values.push(value);
                    magnitudes.push(magnitude);
                }
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(3);
        let mut cases = Vec::new();
        // (m, k, n): zero, one, odd, prime, one before and past the tiles, skinny, deep, wide.
        let extents = [
            (0, 3, 4),
            (3, 0, 4),
            (3, 4, 0),
            (1, 1, 1),
            (2, 3, 5),
            (5, 7, 3),
            (13, 17, 31),
            (14, 16, 32),
            (15, 33, 33),
            (16, 16, 16),
            (29, 64, 65),
            (64, 64, 64),
            (127, 129, 131),
            (1, 300, 700),
            (700, 300, 1),
            (8, 513, 257),
            (3, 1025, 2),
            (200, 5, 300),
            (97, 700, 61),
        ];
        for (m, k, n) in extents {
            for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let op = Self { transpose_a, transpose_b };
                let a_dims = if transpose_a { [k, m] } else { [m, k] };
                let b_dims = if transpose_b { [n, k] } else { [k, n] };
                let a = Input::f32(random.uniforms(m * k, -1.0, 1.0), &a_dims);
                let b = Input::f32(random.uniforms(k * n, -1.0, 1.0), &b_dims);
                cases.push(Case::new(op, vec![a, b]));
            }
        }
        for (batch, m, k, n) in [(0, 2, 3, 4), (3, 5, 7, 9), (4, 17, 33, 20), (2, 1, 40, 30)] {
            let a = Input::f32(random.uniforms(batch * m * k, -1.0, 1.0), &[batch, m, k]);
            let stack = Input::f32(random.uniforms(batch * k * n, -1.0, 1.0), &[batch, k, n]);
            let single = Input::f32(random.uniforms(k * n, -1.0, 1.0), &[k, n]);
            cases.push(Case::new(Self::default(), vec![a.clone(), stack]));
            cases.push(Case::new(Self::default(), vec![a, single]));
        }
        cases
    }
}
