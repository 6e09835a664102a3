use super::shape::{BroadcastTo, Movement, StridedCopy};
use super::{Bound, Contract, Operation, Outputs};
use crate::named::options;
use crate::{DType, Error, MAX_RANK, Result, Shape, TensorType};

/// The matrix product `C = A B`, of two matrices or of two stacks of them.
///
/// A is `[.., m, k]` (`[.., k, m]` when `transpose_a`), B is `[.., k, n]` (`[.., n, k]` when `transpose_b`), C is
/// `[.., m, n]`, all row-major. The outer dimensions broadcast as those of NumPy do: from the last one on they are equal or
/// one of them is 1, which repeats, and missing leading ones count as 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// A is stored transposed.
    pub transpose_a: bool,
    /// B is stored transposed: the layout of weights in most frameworks.
    pub transpose_b: bool,
}

options!(Matmul, (transpose_a: bool = false, transpose_b: bool = false), Self { transpose_a, transpose_b });

/// The results of special values in sums of products; the bound beside it is that of k = 4096.
const SPECIAL: &str = "IEEE 754; k = 0 gives zeros; the order of summation may differ between instruction sets; \
    the bound grows with the number of products k, and is given for 4096: min(w, 2√w) + 1 for w = min(k, 320) + k / 256; it \
    is eight times the error of independent roundings; if all roundings have one direction, as with equal terms, the error may \
    reach w + 1";

/// The error bound of a sum of `k` products on the CPU.
pub(super) fn product_bound(k: usize) -> Bound {
    product_bound_of(k, 320)
}

/// The error bound of a sum of `k` products that runs over at most `chain` of them, at least 256, at a time.
///
/// Then it runs over the sums of these blocks, so that a term passes through `w = min(k, chain) + ⌈k / 256⌉` roundings at
/// most, and one of its own where multiply-add rounds twice. In the worst case the error is `w + 1` units of
/// `u Σ |aᵢ bᵢ|`. Roundings do not conspire, though: as independent errors of mean zero they add up to at most `0.25 √w`
/// units in the root mean square (all terms of one sign is the worst case). The bound is eight times that where it is
/// below the worst case, so a correct kernel stays inside with all but certainty and one that drops a term, or that sums
/// thousands of products in one chain, does not.
pub fn product_bound_of(k: usize, chain: usize) -> Bound {
    let w = roundings(k, chain);
    Bound::Magnitude(w.min(2.0 * w.sqrt()) + 1.0)
}

/// The number of roundings that a term passes through.
fn roundings(k: usize, chain: usize) -> f64 {
    (k.min(chain) + k.div_ceil(256)) as f64
}

/// The worst case of a sum of `k` products on the CPU.
pub(super) fn product_worst(k: usize) -> Bound {
    Bound::Magnitude(roundings(k, 320) + 1.0)
}

/// Numbers of terms, and a term for which nearly all partial sums are rounded down.
#[cfg(feature = "reference")]
pub(super) const WORST: [(usize, f32); 4] = [(256, 0.1), (320, 0.764), (4096, 0.1), (4100, 0.519)];

/// The extents of a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulExtents {
    /// Number of products.
    pub batch: usize,
    /// Whether one A serves all of them. Otherwise there is an A for each of them, but for [`Matmul::repeats`].
    pub shared_a: bool,
    /// The same for B.
    pub shared_b: bool,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
}

impl MatmulExtents {
    /// One product of `m x k` and `k x n`.
    pub const fn of_one([m, k, n]: [usize; 3]) -> Self {
        Self { batch: 1, shared_a: true, shared_b: true, m, k, n }
    }
}

impl Matmul {
    /// The extents for two operands.
    ///
    /// # Errors
    /// [`Error::Shape`] when the operands are not matrices, do not fit one another or their outer dimensions do not
    /// broadcast.
    pub fn extents(&self, a: &Shape, b: &Shape) -> Result<MatmulExtents> {
        let ([outer_a @ .., a0, a1], [outer_b @ .., b0, b1]) = (a.dims(), b.dims()) else {
            return Err(Error::Shape { op: "matmul", reason: format!("{a} and {b} are not both matrices") });
        };
        let (m, ka) = if self.transpose_a { (*a1, *a0) } else { (*a0, *a1) };
        let (kb, n) = if self.transpose_b { (*b1, *b0) } else { (*b0, *b1) };
        let agree = outer_a.iter().rev().zip(outer_b.iter().rev()).all(|(&a, &b)| a == b || a == 1 || b == 1);
        if ka != kb || !agree {
            let t = |t: bool| if t { "ᵀ" } else { "" };
            let mut reason = format!("A{} {a} times B{} {b} do not agree", t(self.transpose_a), t(self.transpose_b));
            reason += &if ka != kb {
                format!(": A has {ka} columns, B {kb} rows")
            } else {
                format!(": the outer dimensions {outer_a:?} and {outer_b:?} must be equal or 1, from the last one on")
            };
            return Err(Error::Shape { op: "matmul", reason });
        }
        let batch = stack(outer_a, outer_b).try_fold(1usize, |n, extent| n.checked_mul(extent));
        let batch = batch.ok_or_else(|| Error::Overflow { what: "matmul", extents: [a.dims(), b.dims()].concat() })?;
        let [shared_a, shared_b] = [outer_a, outer_b].map(|outer| outer.iter().all(|&extent| extent == 1));
        Ok(MatmulExtents { batch, shared_a, shared_b, m, k: ka, n })
    }

    /// The matrices that each product multiplies, for two operands of shapes that [`Matmul::extents`] accepts.
    pub fn pairs(&self, a: &Shape, b: &Shape) -> MatmulPairs {
        let outer = |shape: &Shape| shape.dims()[..shape.rank().saturating_sub(2)].to_vec();
        let (a, b) = (outer(a), outer(b));
        let mut pairs = MatmulPairs { rank: 0, dims: [(1, [0; 2]); MAX_RANK - 2] };
        let mut sizes = [1, 1];
        // Innermost dimension first.
        for (d, (extent, dim)) in stack(&a, &b).zip(&mut pairs.dims).enumerate() {
            let own = [&a, &b].map(|outer| outer.iter().rev().nth(d).copied().unwrap_or(1));
            *dim = (extent, [0, 1].map(|i| if own[i] == extent { sizes[i] } else { 0 }));
            sizes = [0, 1].map(|i| sizes[i] * own[i]);
            pairs.rank = d + 1;
        }
        pairs
    }

    /// The copies that repeat the stacks of A and of B to as many matrices as there are products, for kernels that take either a stack
    /// of that length or one matrix for all products. `None` for a stack that is one of these already.
    ///
    /// # Errors
    /// The errors of [`Matmul::extents`]; [`Error::Overflow`] where such a stack cannot be addressed.
    pub fn repeats(&self, a: &TensorType, b: &TensorType) -> Result<[Option<StridedCopy>; 2]> {
        let e = self.extents(&a.shape, &b.shape)?;
        let count = |shape: &Shape| shape.dims()[..shape.rank() - 2].iter().product::<usize>();
        let outer = self.outer(&a.shape, &b.shape);
        let repeat = |ty: &TensorType| {
            let matrix = &ty.shape.dims()[ty.shape.rank() - 2..];
            let shape = Shape::new(&[&outer[..], matrix].concat())?;
            Ok(Some(BroadcastTo { shape }.copy(std::slice::from_ref(ty), 0)?))
        };
        Ok([
            if e.shared_a || count(&a.shape) == e.batch { None } else { repeat(a)? },
            if e.shared_b || count(&b.shape) == e.batch { None } else { repeat(b)? },
        ])
    }

    /// The outer dimensions of the result.
    fn outer(&self, a: &Shape, b: &Shape) -> Vec<usize> {
        let outer = |shape: &Shape| shape.dims()[..shape.rank().saturating_sub(2)].to_vec();
        let mut dims: Vec<usize> = stack(&outer(a), &outer(b)).collect();
        dims.reverse();
        dims
    }
}

/// The extents that outer dimensions broadcast to, innermost first.
fn stack<'a>(a: &'a [usize], b: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    (0..a.len().max(b.len())).map(|d| {
        let of = |outer: &[usize]| outer.iter().rev().nth(d).copied().unwrap_or(1);
        if of(a) == 1 { of(b) } else { of(a) }
    })
}

/// For each product of a stack, the matrices of A and of B by their positions. See [`Matmul::pairs`].
#[derive(Debug, Clone, Copy)]
pub struct MatmulPairs {
    rank: usize,
    /// For each dimension its extent and the strides of A and B in matrices; innermost first.
    dims: [(usize, [usize; 2]); MAX_RANK - 2],
}

impl MatmulPairs {
    /// The matrices of product `i`.
    #[inline]
    pub fn of(&self, mut i: usize) -> [usize; 2] {
        let mut at = [0; 2];
        for (extent, [a, b]) in &self.dims[..self.rank] {
            let here = i % extent;
            i /= extent;
            at = [at[0] + here * a, at[1] + here * b];
        }
        at
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
        let mut dims = self.outer(&a, &b);
        dims.extend([e.m, e.n]);
        Ok(TensorType::f32(Shape::new(&dims)?).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(0, |e| super::product(&[2, e.batch, e.m, e.k, e.n]))
    }

    fn contract(&self) -> Contract {
        Contract { bound: product_bound(4096), special: SPECIAL }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| product_bound(e.k))
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| product_worst(e.k))
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let equal = |term: f32, dims: [usize; 2]| Input::f32(vec![term; dims[0] * dims[1]], &dims);
        let mut cases = Vec::new();
        for (k, term) in WORST {
            // Few rows, few columns, and many of both.
            for (m, n) in [(1, 9), (9, 1), (4, 40), (40, 4), (40, 40)] {
                for transpose_b in [false, true] {
                    let b = if transpose_b { [n, k] } else { [k, n] };
                    let op = Self { transpose_a: false, transpose_b };
                    cases.push(Case::new(op, vec![equal(1.0, [m, k]), equal(term, b)]));
                }
            }
        }
        cases
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (a, b) = (inputs[0].data().f32(), inputs[1].data().f32());
        let Ok(e) = self.extents(&inputs[0].shape(), &inputs[1].shape()) else { return Vec::new() };
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        // By the definition: both stacks repeated to the extents of the result.
        let outer = self.outer(&inputs[0].shape(), &inputs[1].shape());
        let matrix = |of: &crate::Operand<'_>, mut product: usize| {
            let own = &of.shape().dims()[..of.shape().rank() - 2].to_vec();
            let (mut at, mut size) = (0, 1);
            for (d, extent) in outer.iter().rev().enumerate() {
                let has = own.iter().rev().nth(d).copied().unwrap_or(1);
                at += if has == 1 { 0 } else { product % extent * size };
                size *= has;
                product /= extent;
            }
            at
        };
        for batch in 0..e.batch {
            let a = &a[matrix(&inputs[0], batch) * e.m * e.k..];
            let b = &b[matrix(&inputs[1], batch) * e.k * e.n..];
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
            (4, 4, 4096),
            (17, 2000, 35),
            (130, 258, 514),
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
        // Terms of one sign: a bias of the rounding errors would accumulate here.
        for (m, k, n) in [(1, 2000, 40), (40, 2000, 1), (7, 640, 70), (33, 2000, 65)] {
            for transpose_b in [false, true] {
                let a = Input::f32(random.uniforms(m * k, 0.0, 1.0), &[m, k]);
                let b = Input::f32(random.uniforms(k * n, 0.0, 1.0), &if transpose_b { [n, k] } else { [k, n] });
                cases.push(Case::new(Self { transpose_a: false, transpose_b }, vec![a, b]));
            }
        }
        // A few rows times a 16-bit matrix, as in language models: k is whole vectors, and some cases have a special
        // value in each.
        let mut own = Random::new(4);
        for (m, k, n) in [(1, 2056, 37), (5, 264, 66), (8, 1024, 12), (9, 72, 20)] {
            for (dtype, special) in [(DType::F16, 0.5), (DType::Bf16, f32::INFINITY), (DType::F16, f32::NAN)] {
                let (mut a, mut b) = (own.uniforms(m * k, -1.0, 1.0), own.uniforms(n * k, -1.0, 1.0));
                (a[(m - 1) * k], b[3 * k + 5]) = (special, special);
                let b = Input::f32(b, &[n, k]).narrowed(dtype);
                let op = Self { transpose_a: false, transpose_b: true };
                cases.push(Case::new(op, vec![Input::f32(a, &[m, k]), b]));
            }
        }
        // A special value affects only its own row or column.
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-40, f32::MAX] {
            for (m, k, n) in [(1, 33, 37), (9, 21, 40), (20, 300, 33)] {
                let mut a = random.uniforms(m * k, 0.5, 1.0);
                let mut b = random.uniforms(k * n, 0.5, 1.0);
                a[(m / 2) * k + k - 1] = special;
                b[(k / 2) * n + n - 1] = special;
                cases.push(Case::new(Self::default(), vec![Input::f32(a, &[m, k]), Input::f32(b, &[k, n])]));
            }
        }
        for (batch, m, k, n) in [(0, 2, 3, 4), (3, 5, 7, 9), (4, 17, 33, 20), (2, 1, 40, 30)] {
            let a = Input::f32(random.uniforms(batch * m * k, -1.0, 1.0), &[batch, m, k]);
            let stack = Input::f32(random.uniforms(batch * k * n, -1.0, 1.0), &[batch, k, n]);
            let single = Input::f32(random.uniforms(k * n, -1.0, 1.0), &[k, n]);
            cases.push(Case::new(Self::default(), vec![a.clone(), stack]));
            cases.push(Case::new(Self::default(), vec![a, single]));
        }
        // Outer dimensions that repeat: those of A, of B, and some of both.
        let repeated: [(&[usize], &[usize]); 10] = [
            (&[], &[4]),
            (&[1], &[5]),
            (&[5], &[1]),
            (&[1, 1], &[3]),
            (&[2, 1], &[1, 3]),
            (&[2, 3], &[3]),
            (&[3], &[2, 3]),
            (&[2, 1, 3, 1], &[4, 1, 2]),
            (&[1], &[0]),
            (&[2, 0], &[1]),
        ];
        for (outer_a, outer_b) in repeated {
            for (transpose_a, transpose_b, (m, k, n)) in [
                (false, false, (3, 5, 4)),
                (true, false, (4, 7, 6)),
                (false, true, (17, 20, 9)),
                (true, true, (1, 8, 5)),
                (false, false, (1, 9, 1)),
                (false, false, (33, 30, 36)),
            ] {
                let a_dims = if transpose_a { [k, m] } else { [m, k] };
                let b_dims = if transpose_b { [n, k] } else { [k, n] };
                let mut tensor = |outer: &[usize], matrix: [usize; 2]| {
                    let dims: Vec<usize> = outer.iter().copied().chain(matrix).collect();
                    Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), &dims)
                };
                let inputs = vec![tensor(outer_a, a_dims), tensor(outer_b, b_dims)];
                cases.push(Case::new(Self { transpose_a, transpose_b }, inputs));
            }
        }
        cases
    }
}

/// The product of a matrix and a vector, `y = A x`, or `y = Aᵀ x`.
///
/// A is `[m, n]`, row-major; x has `n` elements and y has `m`, the other way round when `transpose`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Matvec {
    /// A is taken transposed.
    pub transpose: bool,
}

options!(Matvec, (transpose: bool = false), Self { transpose });

impl Matvec {
    /// The number of products in an element of y, and the number of elements.
    ///
    /// # Errors
    /// [`Error::Shape`] when A is not a matrix, x not a vector, or their extents do not agree.
    pub fn extents(&self, a: &Shape, x: &Shape) -> Result<(usize, usize)> {
        let (&[m, n], &[len]) = (a.dims(), x.dims()) else {
            return Err(Error::Shape { op: "matvec", reason: format!("{a} and {x} are not a matrix and a vector") });
        };
        let (terms, results) = if self.transpose { (m, n) } else { (n, m) };
        if terms != len {
            let t = if self.transpose { "ᵀ" } else { "" };
            let reason = format!("A{t} {a} times x {x} do not agree: A{t} has {terms} columns, x {len} elements");
            return Err(Error::Shape { op: "matvec", reason });
        }
        Ok((terms, results))
    }
}

impl Operation for Matvec {
    fn name(&self) -> &'static str {
        "matvec"
    }

    fn formula(&self) -> &'static str {
        "yᵢ = Σⱼ Aᵢⱼ xⱼ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("matvec", inputs, &[DType::F32; 2])?;
        let (_, results) = self.extents(&inputs[0].shape, &inputs[1].shape)?;
        Ok(TensorType::f32(Shape::new(&[results])?).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[2, inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract { bound: product_bound(4096), special: SPECIAL }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| product_bound(e.0))
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| product_worst(e.0))
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let mut cases = Vec::new();
        for (k, term) in WORST {
            for (transpose, dims) in [(false, [9, k]), (true, [k, 9])] {
                let a = Input::f32(vec![1.0; 9 * k], &dims);
                cases.push(Case::new(Self { transpose }, vec![a, Input::f32(vec![term; k], &[k])]));
            }
        }
        cases
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (a, x) = (inputs[0].data().f32(), inputs[1].data().f32());
        let Ok((terms, results)) = self.extents(&inputs[0].shape(), &inputs[1].shape()) else { return Vec::new() };
        let sum = |i: usize| {
            let term =
                |j: usize| f64::from(a[if self.transpose { j * results + i } else { i * terms + j }]) * f64::from(x[j]);
            (0..terms).map(term).fold((0.0, 0.0), |(v, m), t| (v + t, m + f64::abs(t)))
        };
        let (values, magnitudes) = (0..results).map(sum).unzip();
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(5);
        let mut cases = Vec::new();
        let extents = [0, 1, 2, 3, 7, 8, 15, 17, 33, 64, 129, 300, 1025];
        for m in extents {
            for n in extents {
                for transpose in [false, true] {
                    let a = Input::f32(random.uniforms(m * n, -1.0, 1.0), &[m, n]);
                    let x = Input::f32(
                        random.uniforms(if transpose { m } else { n }, -1.0, 1.0),
                        &[if transpose { m } else { n }],
                    );
                    cases.push(Case::new(Self { transpose }, vec![a, x]));
                }
            }
        }
        // Wide, deep, and of one sign: beyond every block size, and a bias of the errors would accumulate.
        for (m, n) in [(3, 20_000), (20_000, 3), (9, 5_001), (5_001, 9), (700, 400)] {
            for transpose in [false, true] {
                let a = Input::f32(random.uniforms(m * n, 0.0, 1.0), &[m, n]);
                let x = Input::f32(
                    random.uniforms(if transpose { m } else { n }, 0.0, 1.0),
                    &[if transpose { m } else { n }],
                );
                cases.push(Case::new(Self { transpose }, vec![a, x]));
            }
        }
        for special in [f32::NAN, f32::INFINITY, -0.0, 1e-40] {
            for transpose in [false, true] {
                let mut a = random.uniforms(19 * 21, 0.5, 1.0);
                a[7 * 21 + 20] = special;
                let x = Input::f32(
                    random.uniforms(if transpose { 19 } else { 21 }, 0.5, 1.0),
                    &[if transpose { 19 } else { 21 }],
                );
                cases.push(Case::new(Self { transpose }, vec![Input::f32(a, &[19, 21]), x]));
            }
        }
        cases
    }
}
