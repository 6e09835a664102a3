use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, Shape, TensorType};

macro_rules! reductions {
    ($($(#[doc = $doc:literal])* $variant:ident $name:ident $formula:literal, $flops:literal, $bound:expr,
        $special:literal;)*) => {
        /// Which reduction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reduction {
            $($(#[doc = $doc])* #[doc = concat!("\n\n`", $formula, "`")] $variant,)*
        }

        impl Reduction {
            /// Every reduction.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name of it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name),)* }
            }

            const fn formula(self) -> &'static str {
                match self { $(Self::$variant => $formula,)* }
            }

            const fn flops(self) -> u64 {
                match self { $(Self::$variant => $flops,)* }
            }

            const fn contract(self) -> Contract {
                match self { $(Self::$variant => Contract { bound: $bound, special: $special },)* }
            }
        }
    };
}

/// The roundings on the way from a term to the sum of `n`: 22 + ⌈log₂ ⌈n / 2048⌉⌉, but at most n - 1.
///
/// Each addition rounds by at most u of the magnitudes below it, so the error is at most `d u Σ|terms|` for d of them one
/// upon the other (but for terms in u², a millionth of that). In the tree these are: 15 in the 16 rows of a running sum,
/// whose first addition is exact; 1 of its two halves; 6 of the 64 lanes; and the logarithm of the number of leaves, which
/// are of 2048 elements. Sums of columns pass through fewer: 5 in 16 rows, then the logarithm of their number. The bound
/// is attained: by a 1 and, in front of each of those additions, one u that it loses.
///
/// Sums of many like terms come far closer, because roundings differ in sign: the tests hold a million of them to 1e-7,
/// which is 1.7 u.
const fn roundings(n: usize) -> usize {
    const LEAF: usize = 2048;
    let leaves = if n > LEAF { n.div_ceil(LEAF) } else { 1 };
    let d = 22 + leaves.next_power_of_two().ilog2() as usize;
    if n > d { d } else { n.saturating_sub(1) }
}

/// The bound of a sum of `n` terms, each rounded `more` times beside the additions.
const fn sum_bound(n: usize, more: usize) -> Bound {
    Bound::Magnitude((roundings(n) + more) as f64)
}

/// The bound of a norm of `n` elements: the root halves the relative error of the sum of squares, in which a unit u is
/// at most one in the last place, and rounds by half a unit; squares below those that are added vanish unseen.
const fn norm_bound(n: usize) -> Bound {
    Bound::Ulp((roundings(n) + 1) as f64 / 2.0 + 1.0)
}

/// The number of terms that the bounds in the tables are for.
const TERMS: usize = 1 << 20;

reductions! {
    /// Sum, by a fixed tree.
    Sum sum "Σ xᵢ", 1, sum_bound(TERMS, 0),
        "IEEE 754; empty gives 0; the bound is that of n = 2²⁰: it is 22 + ⌈log₂ ⌈n / 2048⌉⌉, at most n - 1";
    /// Arithmetic mean: the sum by a fixed tree, divided.
    Mean mean "Σ xᵢ / n", 1, sum_bound(TERMS, 1),
        "as the sum, which overflows first, and one unit more for the division; empty gives NaN";
    /// Greatest element.
    Max max "max xᵢ", 1, Bound::Exact, "NaN if any is NaN; -0 < +0; empty gives -∞";
    /// Least element.
    Min min "min xᵢ", 1, Bound::Exact, "NaN if any is NaN; -0 < +0; empty gives +∞";
    /// Index of the greatest element, the first of equals.
    ArgMax argmax "min { i : xᵢ = max x }", 1, Bound::Exact,
        "the first NaN if any is NaN; -0 equals +0; empty is an error";
    /// Index of the least element, the first of equals.
    ArgMin argmin "min { i : xᵢ = min x }", 1, Bound::Exact,
        "the first NaN if any is NaN; -0 equals +0; empty is an error";
    /// Product, by a fixed tree.
    Prod prod "Π xᵢ", 1, Bound::Magnitude(1.0),
        "each factor adds at most u, so the bound is relative to n |Π xᵢ| / (1 - n u); IEEE 754 in tree order: partial products may \
         overflow or underflow where another order would not; empty gives 1";
    /// Sum of absolute values, by a fixed tree.
    NormL1 norm_l1 "Σ |xᵢ|", 2, sum_bound(TERMS, 0), "IEEE 754; empty gives 0; the bound is that of the sum";
    /// Euclidean norm; rescaled where the squares would overflow or vanish.
    NormL2 norm_l2 "√(Σ xᵢ²)", 2, norm_bound(TERMS),
        "∞ if any is ±∞ and none NaN; empty gives 0; the bound grows as that of the sum, by half as much";
    /// Greatest absolute value.
    NormLinf norm_linf "max |xᵢ|", 2, Bound::Exact, "NaN if any is NaN; empty gives 0";
}

impl Reduction {
    /// Whether the result is an index.
    pub const fn gives_index(self) -> bool {
        matches!(self, Self::ArgMax | Self::ArgMin)
    }
}

/// A reduction over all elements, or along one axis, which vanishes from the shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// Which reduction.
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
    /// [`Error::Shape`] when the axis is not there.
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
            return Err(Error::Shape { op, reason: format!("no element of {input} to point at") });
        }
        if u32::try_from(along).is_err() {
            return Err(Error::Shape { op, reason: format!("{along} positions do not fit the u32 of an index") });
        }
        Ok(TensorType::u32(shape).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[0].shape.numel()]) * self.reduction.flops()
    }

    fn contract(&self) -> Contract {
        self.reduction.contract()
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        let n = self.extents(&inputs[0].shape).map_or(0, |(_, along, _)| along);
        match self.reduction {
            Reduction::Sum | Reduction::NormL1 => sum_bound(n, 0),
            Reduction::Mean => sum_bound(n, 1),
            Reduction::NormL2 => norm_bound(n),
            _ => self.contract().bound,
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        let x = inputs[0].data().f32();
        let (outer, along, inner) = self.extents(&inputs[0].shape()).unwrap_or((0, 0, 0));
        let series = |o: usize, i: usize| (0..along).map(move |a| f64::from(x[(o * along + a) * inner + i]));
        let places: Vec<(usize, usize)> = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).collect();
        if self.reduction.gives_index() {
            let sign = if self.reduction == Reduction::ArgMax { 1.0 } else { -1.0 };
            let first = |(o, i): (usize, usize)| {
                let mut best = (0, f64::NEG_INFINITY);
                for (at, v) in series(o, i).map(|v| v * sign).enumerate() {
                    if v.is_nan() {
                        return at as u32;
                    }
                    if v > best.1 {
                        best = (at, v);
                    }
                }
                best.0 as u32
            };
            return vec![Expected::U32(places.into_iter().map(first).collect())];
        }
        let fold = |(o, i): (usize, usize)| {
            let s = series(o, i);
            let n = along as f64;
            match self.reduction {
                Reduction::Sum => (s.clone().sum(), s.map(f64::abs).sum()),
                Reduction::Mean => {
                    // The sum is an f32, which may overflow.
                    let total: f64 = s.clone().sum();
                    let total = if (total as f32).is_infinite() { f64::from(total as f32) } else { total };
                    (total / n, s.map(f64::abs).sum::<f64>() / n)
                }
                Reduction::Max => (s.fold(f64::NEG_INFINITY, super::maximum), 0.0),
                Reduction::Min => (s.fold(f64::INFINITY, super::minimum), 0.0),
                Reduction::Prod => {
                    let p: f64 = s.product();
                    // (1 + u)ⁿ - 1 ≤ n u / (1 - n u), as long as that is positive.
                    (p, p.abs() * n / (1.0 - n * f64::powi(2.0, -24)).max(0.0))
                }
                Reduction::NormL1 => {
                    let total: f64 = s.map(f64::abs).sum();
                    (total, total)
                }
                Reduction::NormL2 => (s.map(|v| v * v).sum::<f64>().sqrt(), 0.0),
                Reduction::NormLinf => (s.map(f64::abs).fold(0.0, super::maximum), 0.0),
                Reduction::ArgMax | Reduction::ArgMin => (f64::NAN, 0.0),
            }
        };
        let (values, magnitudes) = places.into_iter().map(fold).unzip();
        vec![Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, LENGTHS, Random, SPECIAL};
        let mut cases = Vec::new();
        for &reduction in Reduction::ALL {
            let mut random = Random::new(reduction as u64);
            // Factors spread evenly around 1 in the logarithm, so that a product of many stays in range.
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
            // Where partial products leave the range, a product depends on its order.
            let in_range = |s: f32| !product || !s.is_finite() || s == 0.0 || (1e-30..1e30).contains(&s.abs());
            // A special value at the start, in the middle and at the end, among ordinary ones and alone.
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
            return Err(Error::mismatch("dot", "operands", &inputs[0].shape, &inputs[1].shape));
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
