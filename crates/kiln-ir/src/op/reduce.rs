use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, Shape, TensorType};

/// The table of reductions; calls `$callback!` with its rows.
///
/// A row is a variant of [`Reduction`](crate::op::Reduction) and these fields:
///
/// - `name`: the name in graphs, reports and generated constants
/// - `whole`, `axis`, `axis_into`: the methods that reduce a whole slice, along an axis, and that into a slice
/// - `result`: the type of the result, `f32`, or `u32` for an index
/// - `identity`: the value that changes no result
/// - `formula`: the definition, for the documentation
/// - `flops`: floating-point operations per element
/// - `bound`: the error bound for `n` elements
/// - `special`: the results for special values and for no elements
/// - `exact`: the result in f64 for the `n` elements `x`, and the reference magnitude of its error
///
/// A new reduction needs a row here and one in each backend (`kiln-simd/src/reduce/mod.rs`,
/// `shaders/wgsl/reduce/reduction.wgsl`, `kiln-ptx/src/kernels/reduce.rs`), nothing else.
#[macro_export]
macro_rules! reduction_table {
    ($callback:path) => {
        $callback! {
            /// Sum, in a fixed tree: the same bits everywhere, for any number of threads. 0 when empty.
            Sum {
                name: sum, whole: sum, axis: sum_axis, axis_into: sum_axis_into, result: f32, identity: 0.0,
                formula: "Σ xᵢ", flops: 1, bound: |n| sum_bound(n, 0),
                special: "IEEE 754; empty gives 0; the bound is that of n = 2²⁰: it is 22 + ⌈log₂ ⌈n / 2048⌉⌉, at most n - 1",
                exact: |x, _n| (x.clone().sum(), x.map(f64::abs).sum()),
            }
            /// Arithmetic mean: the sum in a fixed tree, divided. NaN when empty.
            Mean {
                name: mean, whole: mean, axis: mean_axis, axis_into: mean_axis_into, result: f32, identity: 0.0,
                formula: "Σ xᵢ / n", flops: 1, bound: |n| sum_bound(n, 1),
                special: "as the sum, which overflows first, and one unit more for the division; empty gives NaN",
                exact: |x, n| (f32_range(x.clone().sum()) / n, x.map(f64::abs).sum::<f64>() / n),
            }
            /// Maximum; NaN if any element is NaN, +0 above -0, -∞ when empty.
            Max {
                name: max, whole: max_element, axis: max_axis, axis_into: max_axis_into, result: f32,
                identity: f32::NEG_INFINITY, formula: "max xᵢ", flops: 1, bound: |_n| Bound::Exact,
                special: "NaN if any is NaN; -0 < +0; empty gives -∞",
                exact: |x, _n| (x.fold(f64::NEG_INFINITY, super::maximum), 0.0),
            }
            /// Minimum; NaN if any element is NaN, -0 below +0, +∞ when empty.
            Min {
                name: min, whole: min_element, axis: min_axis, axis_into: min_axis_into, result: f32,
                identity: f32::INFINITY, formula: "min xᵢ", flops: 1, bound: |_n| Bound::Exact,
                special: "NaN if any is NaN; -0 < +0; empty gives +∞",
                exact: |x, _n| (x.fold(f64::INFINITY, super::minimum), 0.0),
            }
            /// Index of the first NaN, or of the first maximum.
            ArgMax {
                name: argmax, whole: argmax, axis: argmax_axis, axis_into: argmax_axis_into, result: u32,
                identity: f32::NEG_INFINITY, formula: "min { i : xᵢ = max x }", flops: 1, bound: |_n| Bound::Exact,
                special: "the first NaN if any is NaN; -0 equals +0; empty is an error",
                exact: |x, _n| (first_greatest(x), 0.0),
            }
            /// Index of the first NaN, or of the first minimum.
            ArgMin {
                name: argmin, whole: argmin, axis: argmin_axis, axis_into: argmin_axis_into, result: u32,
                identity: f32::INFINITY, formula: "min { i : xᵢ = min x }", flops: 1, bound: |_n| Bound::Exact,
                special: "the first NaN if any is NaN; -0 equals +0; empty is an error",
                exact: |x, _n| (first_greatest(x.map(|x| -x)), 0.0),
            }
            /// Product, in a fixed tree. 1 when empty.
            Prod {
                name: prod, whole: prod, axis: prod_axis, axis_into: prod_axis_into, result: f32, identity: 1.0,
                formula: "Π xᵢ", flops: 1, bound: |_n| Bound::Magnitude(1.0),
                special: "each factor adds at most u, so the bound is relative to n |Π xᵢ| / (1 - n u); IEEE 754 in tree order: \
                          partial products may overflow or underflow where another order would not; empty gives 1",
                exact: |x, n| product_of(x.product(), n),
            }
            /// Sum of absolute values, in a fixed tree. 0 when empty.
            NormL1 {
                name: norm_l1, whole: norm_l1, axis: norm_l1_axis, axis_into: norm_l1_axis_into, result: f32, identity: 0.0,
                formula: "Σ |xᵢ|", flops: 2, bound: |n| sum_bound(n, 0),
                special: "IEEE 754; empty gives 0; the bound is that of the sum",
                exact: |x, _n| (x.clone().map(f64::abs).sum(), x.map(f64::abs).sum()),
            }
            /// Euclidean norm, without overflow or underflow of the squares. 0 when empty.
            NormL2 {
                name: norm_l2, whole: norm_l2, axis: norm_l2_axis, axis_into: norm_l2_axis_into, result: f32, identity: 0.0,
                formula: "√(Σ xᵢ²)", flops: 2, bound: |n| norm_bound(n),
                special: "∞ if any is ±∞ and none NaN; empty gives 0; the bound grows as that of the sum, by half as much",
                exact: |x, _n| (x.map(|x| x * x).sum::<f64>().sqrt(), 0.0),
            }
            /// Maximum absolute value; NaN if any element is NaN. 0 when empty.
            NormLinf {
                name: norm_linf, whole: norm_linf, axis: norm_linf_axis, axis_into: norm_linf_axis_into, result: f32,
                identity: 0.0, formula: "max |xᵢ|", flops: 2, bound: |_n| Bound::Exact,
                special: "NaN if any is NaN; empty gives 0",
                exact: |x, _n| (x.map(f64::abs).fold(0.0, super::maximum), 0.0),
            }
        }
    };
}

macro_rules! dtype {
    (f32) => {
        DType::F32
    };
    (u32) => {
        DType::U32
    };
}

macro_rules! define {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, whole: $whole:ident, axis: $axis:ident, axis_into: $axis_into:ident, result: $result:ident,
        identity: $identity:expr, formula: $formula:literal, flops: $flops:literal, bound: |$terms:ident| $bound:expr,
        special: $special:literal, exact: |$x:ident, $n:ident| $exact:expr,
    })*) => {
        /// A reduction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reduction {
            $($(#[doc = $doc])* #[doc = concat!("\n\n`", $formula, "`")] $variant,)*
        }

        impl Reduction {
            /// Every reduction.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in snake case.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name),)* }
            }

            /// The value that changes no result: no elements reduce to it, but for the mean and for indices.
            pub const fn identity(self) -> f32 {
                match self { $(Self::$variant => $identity,)* }
            }

            /// The type of the result: f32, or u32 for an index.
            pub const fn dtype(self) -> DType {
                match self { $(Self::$variant => dtype!($result),)* }
            }

            const fn formula(self) -> &'static str {
                match self { $(Self::$variant => $formula,)* }
            }

            const fn flops(self) -> u64 {
                match self { $(Self::$variant => $flops,)* }
            }

            const fn special(self) -> &'static str {
                match self { $(Self::$variant => $special,)* }
            }

            /// The error bound for `n` elements.
            const fn bound(self, n: usize) -> Bound {
                match self { $(Self::$variant => { let $terms = n; $bound })* }
            }

            /// The exact result for `n` elements, with an index as a number, and the reference magnitude of its error.
            #[cfg(feature = "reference")]
            fn exact(self, x: impl Iterator<Item = f64> + Clone, n: f64) -> (f64, f64) {
                match self { $(Self::$variant => { let ($x, $n) = (x, n); $exact })* }
            }
        }
    };
}
reduction_table!(define);

/// A sum that is an f32 on the way, so it may overflow.
#[cfg(feature = "reference")]
fn f32_range(sum: f64) -> f64 {
    if (sum as f32).is_infinite() { f64::from(sum as f32) } else { sum }
}

/// A product of `n` factors, and its magnitude: (1 + u)ⁿ - 1 ≤ n u / (1 - n u), as long as that is positive.
#[cfg(feature = "reference")]
fn product_of(product: f64, n: f64) -> (f64, f64) {
    (product, product.abs() * n / (1.0 - n * f64::powi(2.0, -24)).max(0.0))
}

/// The index of the first NaN, or of the first maximum.
#[cfg(feature = "reference")]
fn first_greatest(x: impl Iterator<Item = f64>) -> f64 {
    let mut best = (0, f64::NEG_INFINITY);
    for (at, x) in x.enumerate() {
        if x.is_nan() {
            return at as f64;
        }
        if x > best.1 {
            best = (at, x);
        }
    }
    best.0 as f64
}

/// The roundings on the way from a term to the sum of `n`: 22 + ⌈log₂ ⌈n / 2048⌉⌉, but at most n - 1.
///
/// Each addition rounds by at most u of the magnitudes below it, so the error is at most `d u Σ|terms|` for a chain of
/// d additions (except for terms in u², a millionth of that). In the tree these are: 15 in the 16 rows of a running
/// sum, whose first addition is exact; 1 for its two halves; 6 for the 64 lanes; and the logarithm of the number of
/// leaves of 2048 elements. Sums of columns pass through fewer: 5 in 16 rows, then the logarithm of their number. The
/// bound is attained by a 1 and, in front of each of those additions, one u that it loses.
///
/// Sums of many similar terms are far closer, because roundings differ in sign: the tests require a million of them to
/// be within 1e-7, which is 1.7 u.
const fn roundings(n: usize) -> usize {
    const LEAF: usize = 2048;
    let leaves = if n > LEAF { n.div_ceil(LEAF) } else { 1 };
    let d = 22 + leaves.next_power_of_two().ilog2() as usize;
    if n > d { d } else { n.saturating_sub(1) }
}

/// The bound of a sum of `n` terms, each rounded `more` times in addition to the additions.
const fn sum_bound(n: usize, more: usize) -> Bound {
    Bound::Magnitude((roundings(n) + more) as f64)
}

/// The bound of a norm of `n` elements. The root halves the relative error of the sum of squares, in which a unit u is
/// at most one in the last place, and rounds by half a unit; squares far below the sum vanish without further error.
const fn norm_bound(n: usize) -> Bound {
    Bound::Ulp((roundings(n) + 1) as f64 / 2.0 + 1.0)
}

/// The number of terms for which the tables quote the bounds.
const TERMS: usize = 1 << 20;

impl Reduction {
    /// Whether the result is an index.
    pub const fn gives_index(self) -> bool {
        matches!(self.dtype(), DType::U32)
    }
}

/// A reduction over all elements, or along one axis, which vanishes from the shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// The reduction.
    pub reduction: Reduction,
    /// The dimension to reduce; all of them when `None`.
    pub axis: Option<usize>,
}

impl Reduce {
    /// Over all elements.
    pub const fn all(reduction: Reduction) -> Self {
        Self { reduction, axis: None }
    }

    /// Along one axis.
    pub const fn along(reduction: Reduction, axis: usize) -> Self {
        Self { reduction, axis: Some(axis) }
    }

    /// The extents outside of, along and inside of what is reduced.
    ///
    /// # Errors
    /// [`Error::Shape`] when the operand lacks the axis.
    pub fn extents(&self, shape: &Shape) -> Result<(usize, usize, usize)> {
        match self.axis {
            None => Ok((1, shape.numel(), 1)),
            Some(axis) => shape.split_at_axis(axis),
        }
    }
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        self.reduction.name()
    }

    fn formula(&self) -> &'static str {
        self.reduction.formula()
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        super::expect_types(op, inputs, &[DType::F32])?;
        let input = inputs[0].shape;
        let shape = match self.axis {
            None => Shape::SCALAR,
            Some(axis) => input.without(axis)?,
        };
        if !self.reduction.gives_index() {
            return Ok(TensorType::f32(shape).into());
        }
        let (_, along, _) = self.extents(&input)?;
        if along == 0 {
            return Err(Error::Shape { op, reason: format!("{input} has no elements, so no index can be returned") });
        }
        if u32::try_from(along).is_err() {
            return Err(Error::Shape { op, reason: format!("{along} positions are too many for indices of u32") });
        }
        Ok(TensorType::u32(shape).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[0].shape.numel()]) * self.reduction.flops()
    }

    fn contract(&self) -> Contract {
        Contract { bound: self.reduction.bound(TERMS), special: self.reduction.special() }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        let n = self.extents(&inputs[0].shape).map_or(0, |(_, along, _)| along);
        self.reduction.bound(n)
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        let x = inputs[0].data().f32();
        let (outer, along, inner) = self.extents(&inputs[0].shape()).unwrap_or((0, 0, 0));
        let series = |o: usize, i: usize| (0..along).map(move |a| f64::from(x[(o * along + a) * inner + i]));
        let places = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i)));
        let (values, magnitudes): (Vec<f64>, Vec<f64>) =
            places.map(|(o, i)| self.reduction.exact(series(o, i), along as f64)).unzip();
        if self.reduction.gives_index() {
            return vec![Expected::Exact(crate::Buffer::U32(values.into_iter().map(|index| index as u32).collect()))];
        }
        vec![Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, LENGTHS, Random, SPECIAL};
        let mut cases = Vec::new();
        for &reduction in Reduction::ALL {
            let mut random = Random::new(reduction as u64);
            // Factors spread evenly around 1 on a logarithmic scale, so that a product of many stays in range.
            let product = reduction == Reduction::Prod;
            let mut values = |n: usize| -> Vec<f32> {
                let uniform = |r: f32| if product { (0.1 * r).exp() } else { r };
                random.uniforms(n, -1.0, 1.0).into_iter().map(uniform).collect()
            };
            for n in LENGTHS.into_iter().filter(|&n| n > 0 || !reduction.gives_index()) {
                cases.push(Case::new(Self::all(reduction), vec![Input::f32(values(n), &[n])]));
            }
            let shapes: [&[usize]; 10] = [
                &[3, 5],
                &[1, 1],
                &[7, 1],
                &[1, 9],
                &[4, 1000, 3],
                &[65, 17],
                &[2, 3, 5, 7],
                &[33, 129],
                &[700, 40],
                &[2, 49, 650],
            ];
            for dims in shapes {
                for axis in 0..dims.len() {
                    let input = Input::f32(values(dims.iter().product()), dims);
                    cases.push(Case::new(Self::along(reduction, axis), vec![input]));
                }
            }
            for (dims, axis) in [([0, 5], 1), ([5, 0], 0), ([0, 5], 0), ([5, 0], 1)] {
                if dims[axis] > 0 || !reduction.gives_index() {
                    cases.push(Case::new(Self::along(reduction, axis), vec![Input::f32(Vec::new(), &dims)]));
                }
            }
            // If partial products leave the range, a product depends on its order.
            let in_range = |s: f32| !product || !s.is_finite() || s == 0.0 || (1e-30..1e30).contains(&s.abs());
            // A special value at the start, in the middle and at the end, among ordinary values and alone.
            for special in SPECIAL.into_iter().filter(|&s| in_range(s)) {
                for (n, at) in [(1, 0), (3, 1), (100, 0), (100, 57), (100, 99), (5000, 4097)] {
                    let mut data = values(n);
                    data[at] = special;
                    cases.push(Case::new(Self::all(reduction), vec![Input::f32(data, &[n])]));
                }
                cases.push(Case::new(Self::all(reduction), vec![Input::f32(vec![special; 70], &[70])]));
                for axis in 0..2 {
                    let mut data = values(37 * 41);
                    data[20 * 41 + 33] = special;
                    data[3 * 41..4 * 41].fill(special);
                    cases.push(Case::new(Self::along(reduction, axis), vec![Input::f32(data, &[37, 41])]));
                }
            }
            for pair in [[0.0, -0.0], [-0.0, 0.0], [f32::INFINITY, f32::NEG_INFINITY]] {
                let data: Vec<f32> = pair.into_iter().cycle().take(66).collect();
                cases.push(Case::new(Self::all(reduction), vec![Input::f32(data.clone(), &[66])]));
                cases.push(Case::new(Self::along(reduction, 0), vec![Input::f32(data.clone(), &[22, 3])]));
                cases.push(Case::new(Self::along(reduction, 1), vec![Input::f32(data, &[2, 33])]));
            }
        }
        cases
    }
}

/// The inner product of two vectors, by the fixed tree of the sums: multiply, then add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dot;

impl Operation for Dot {
    fn name(&self) -> &'static str {
        "dot"
    }

    fn formula(&self) -> &'static str {
        "Σ aᵢ bᵢ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("dot", inputs, &[DType::F32; 2])?;
        if inputs[0].shape != inputs[1].shape {
            return Err(Error::mismatch(
                "dot",
                "operands",
                &inputs[0].shape,
                &inputs[1].shape,
                "both need as many elements",
            ));
        }
        Ok(TensorType::f32(Shape::SCALAR).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[2, inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        let special = "IEEE 754; empty gives 0; as the sum, and one unit more for the products";
        Contract { bound: sum_bound(TERMS, 1), special }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        sum_bound(inputs[0].shape.numel(), 1)
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let terms: Vec<f64> = inputs[0]
            .data()
            .f32()
            .iter()
            .zip(inputs[1].data().f32())
            .map(|(&a, &b)| f64::from(a) * f64::from(b))
            .collect();
        vec![super::reference::Expected::F32 {
            values: vec![terms.iter().sum()],
            magnitudes: vec![terms.iter().map(|t| t.abs()).sum()],
        }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, LENGTHS, Random, SPECIAL};
        let mut random = Random::new(7);
        let mut vector = |n: usize| Input::f32(random.uniforms(n, -1.0, 1.0), &[n]);
        let mut cases: Vec<Case> = LENGTHS.into_iter().map(|n| Case::new(Self, vec![vector(n), vector(n)])).collect();
        for special in SPECIAL {
            let mut a = random.uniforms(1000, -1.0, 1.0);
            a[777] = special;
            let b = random.uniforms(1000, 0.5, 1.0);
            cases.push(Case::new(Self, vec![Input::f32(a, &[1000]), Input::f32(b, &[1000])]));
        }
        cases
    }
}
