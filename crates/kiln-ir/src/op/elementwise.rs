use super::{Bound, Contract, Operation, Outputs, Param};
use crate::{DType, Result, TensorType};

/// The table of element-wise operations; calls `$callback!` with its rows.
///
/// A row is a variant of [`ElementwiseKind`](crate::op::ElementwiseKind) and these fields:
///
/// - `name`, `into`: the function, and its form that writes into a slice
/// - `operands`, `params`: the names of its operands and of its parameters
/// - `flops`: floating-point operations per element
/// - `bound`: the error bound
/// - `formula`: the definition, for the documentation
/// - `special`: the results of special values
/// - `exact`: the result in f64, from the named operands and parameters
/// - `magnitude` (optional): the reference magnitude of the bound, if the bound is not in units in the last place
///
/// A new element-wise operation needs a row here and one vector function in each backend, nothing else.
#[macro_export]
macro_rules! elementwise_table {
    ($callback:path) => {
        $callback! {
            /// Sum.
            Add {
                name: add, into: add_into, operands: (a, b), params: (), flops: 1, bound: Exact,
                formula: "a + b", special: "IEEE 754", exact: a + b,
            }
            /// Difference.
            Sub {
                name: sub, into: sub_into, operands: (a, b), params: (), flops: 1, bound: Exact,
                formula: "a - b", special: "IEEE 754", exact: a - b,
            }
            /// Product.
            Mul {
                name: mul, into: mul_into, operands: (a, b), params: (), flops: 1, bound: Exact,
                formula: "a * b", special: "IEEE 754", exact: a * b,
            }
            /// Quotient.
            Div {
                name: div, into: div_into, operands: (a, b), params: (), flops: 1, bound: Exact,
                formula: "a / b", special: "IEEE 754", exact: a / b,
            }
            /// Minimum; IEEE 754-2019 `minimum`.
            Min {
                name: min, into: min_into, operands: (a, b), params: (), flops: 1, bound: Exact,
                formula: "min(a, b)", special: "NaN if either is NaN; -0 < +0", exact: $crate::op::minimum(a, b),
            }
            /// Maximum; IEEE 754-2019 `maximum`.
            Max {
                name: max, into: max_into, operands: (a, b), params: (), flops: 1, bound: Exact,
                formula: "max(a, b)", special: "NaN if either is NaN; -0 < +0", exact: $crate::op::maximum(a, b),
            }
            /// Sign change.
            Neg {
                name: neg, into: neg_into, operands: (x), params: (), flops: 1, bound: Exact,
                formula: "-x", special: "flips the sign of everything, zeros and NaN included", exact: -x,
            }
            /// Absolute value.
            Abs {
                name: abs, into: abs_into, operands: (x), params: (), flops: 1, bound: Exact,
                formula: "|x|", special: "clears the sign of everything", exact: x.abs(),
            }
            /// Square root.
            Sqrt {
                name: sqrt, into: sqrt_into, operands: (x), params: (), flops: 1, bound: Exact,
                formula: "√x", special: "NaN below zero; √-0 = -0", exact: x.sqrt(),
            }
            /// Reciprocal square root.
            Rsqrt {
                name: rsqrt, into: rsqrt_into, operands: (x), params: (), flops: 2, bound: Ulp(2.0),
                formula: "1 / √x", special: "±0 gives ±∞, ∞ gives 0, NaN below zero", exact: 1.0 / x.sqrt(),
            }
            /// Reciprocal.
            Recip {
                name: recip, into: recip_into, operands: (x), params: (), flops: 1, bound: Exact,
                formula: "1 / x", special: "±0 gives ±∞, ±∞ gives ±0", exact: 1.0 / x,
            }
            /// Exponential function.
            Exp {
                name: exp, into: exp_into, operands: (x), params: (), flops: 12, bound: Ulp(1.0),
                formula: "eˣ", special: "-∞ gives 0, overflow ∞, underflow gradual", exact: x.exp(),
            }
            /// Natural logarithm.
            Ln {
                name: ln, into: ln_into, operands: (x), params: (), flops: 14, bound: Ulp(1.0),
                formula: "ln x", special: "±0 gives -∞, NaN below zero, ∞ gives ∞; subnormals are exact inputs",
                exact: x.ln(),
            }
            /// Multiplication by a number.
            Scale {
                name: scale, into: scale_into, operands: (x), params: (factor), flops: 1, bound: Exact,
                formula: "factor * x", special: "IEEE 754", exact: factor * x,
            }
            /// Clamps to an interval: min(max(x, lo), hi).
            Clip {
                name: clip, into: clip_into, operands: (x), params: (lo, hi), flops: 2, bound: Exact,
                formula: "min(max(x, lo), hi)", special: "NaN gives NaN",
                exact: $crate::op::minimum($crate::op::maximum(x, lo), hi),
            }
            /// Multiply-add with one rounding.
            Fma {
                name: fma, into: fma_into, operands: (a, b, c), params: (), flops: 2, bound: Ulp(1.0),
                formula: "a * b + c", special: "IEEE 754", exact: $crate::op::fused(a, b, c),
                magnitude: (a * b).abs() + c.abs(),
            }
            /// Linear interpolation by a number.
            Lerp {
                name: lerp, into: lerp_into, operands: (a, b), params: (t), flops: 3, bound: Magnitude(4.0),
                formula: "a + t * (b - a)", special: "IEEE 754 of the formula", exact: a + t * (b - a),
                magnitude: a.abs() + (t * (b - a)).abs(),
            }
            /// Rectified linear unit.
            Relu {
                name: relu, into: relu_into, operands: (x), params: (), flops: 1, bound: Exact,
                formula: "max(x, 0)", special: "NaN gives NaN; -0 gives +0", exact: $crate::op::maximum(x, 0.0),
            }
            /// Leaky rectified linear unit.
            LeakyRelu {
                name: leaky_relu, into: leaky_relu_into, operands: (x), params: (slope), flops: 2, bound: Exact,
                formula: "x if x > 0, else slope * x", special: "NaN gives NaN",
                exact: if x > 0.0 { x } else { slope * x },
            }
            /// Exponential linear unit.
            Elu {
                name: elu, into: elu_into, operands: (x), params: (alpha), flops: 15, bound: Ulp(3.0),
                formula: "x if x > 0, else alpha * (eˣ - 1)", special: "-∞ gives -alpha; -0 stays",
                exact: if x > 0.0 { x } else { alpha * x.exp_m1() },
            }
            /// Logistic function.
            Sigmoid {
                name: sigmoid, into: sigmoid_into, operands: (x), params: (), flops: 15, bound: Ulp(3.0),
                formula: "1 / (1 + e⁻ˣ)", special: "-∞ gives 0, ∞ gives 1; tails go on into subnormals",
                exact: if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) },
            }
            /// Hyperbolic tangent.
            Tanh {
                name: tanh, into: tanh_into, operands: (x), params: (), flops: 16, bound: Ulp(2.0),
                formula: "tanh x", special: "±∞ gives ±1; -0 stays", exact: x.tanh(),
            }
            /// Sigmoid-weighted linear unit, also called SiLU.
            Swish {
                name: swish, into: swish_into, operands: (x), params: (), flops: 16, bound: Ulp(3.0),
                formula: "x / (1 + e⁻ˣ)", special: "-∞ gives -0, ∞ gives ∞", exact: $crate::op::swish(x),
            }
            /// Gaussian error linear unit, exact form.
            Gelu {
                name: gelu, into: gelu_into, operands: (x), params: (), flops: 25, bound: Ulp(4.0),
                formula: "x / 2 * (1 + erf(x / √2))", special: "-∞ gives -0, ∞ gives ∞", exact: $crate::op::gelu(x),
            }
            /// Gaussian error linear unit, tanh form.
            GeluTanh {
                name: gelu_tanh, into: gelu_tanh_into, operands: (x), params: (), flops: 22, bound: Ulp(4.0),
                formula: "x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 x³)))", special: "-∞ gives -0, ∞ gives ∞",
                exact: $crate::op::gelu_tanh(x),
            }
            /// Piecewise-linear form of swish.
            HardSwish {
                name: hard_swish, into: hard_swish_into, operands: (x), params: (), flops: 5, bound: Ulp(3.0),
                formula: "x * min(max(x + 3, 0), 6) / 6", special: "-∞ gives -0, ∞ gives ∞",
                exact: $crate::op::hard_swish(x),
            }
            /// Self-regularised activation: x times tanh of softplus.
            Mish {
                name: mish, into: mish_into, operands: (x), params: (), flops: 25, bound: Ulp(4.0),
                formula: "x * tanh(ln(1 + eˣ))", special: "-∞ gives -0, ∞ gives ∞", exact: $crate::op::mish(x),
            }
            /// Smooth form of relu.
            Softplus {
                name: softplus, into: softplus_into, operands: (x), params: (), flops: 28, bound: Ulp(2.0),
                formula: "ln(1 + eˣ)", special: "-∞ gives 0, ∞ gives ∞; the tail goes on into subnormals",
                exact: x.max(0.0) + (-x.abs()).exp().ln_1p(),
            }
            /// Sine of an angle in radians, of any size: the reduction of large angles uses as many digits of π as they
            /// need.
            Sin {
                name: sin, into: sin_into, operands: (x), params: (), flops: 30, bound: Ulp(2.0),
                formula: "sin x", special: "±∞ gives NaN; -0 stays", exact: x.sin(),
            }
            /// Cosine of an angle in radians, of any size: the reduction of large angles uses as many digits of π as
            /// they need.
            Cos {
                name: cos, into: cos_into, operands: (x), params: (), flops: 30, bound: Ulp(2.0),
                formula: "cos x", special: "±∞ gives NaN", exact: x.cos(),
            }
            /// Error function.
            Erf {
                name: erf, into: erf_into, operands: (x), params: (), flops: 30, bound: Ulp(2.0),
                formula: "erf x", special: "±∞ gives ±1; -0 stays", exact: $crate::op::erf(x),
            }
            /// Natural logarithm of 1 + x.
            Ln1p {
                name: ln_1p, into: ln_1p_into, operands: (x), params: (), flops: 18, bound: Ulp(2.0),
                formula: "ln(1 + x)", special: "-1 gives -∞, NaN below it, ∞ gives ∞; -0 stays", exact: x.ln_1p(),
            }
            /// Exponential function minus 1.
            ExpM1 {
                name: exp_m1, into: exp_m1_into, operands: (x), params: (), flops: 16, bound: Ulp(2.0),
                formula: "eˣ - 1", special: "-∞ gives -1, overflow ∞; -0 stays", exact: x.exp_m1(),
            }
            /// The largest integer that is not above x.
            Floor {
                name: floor, into: floor_into, operands: (x), params: (), flops: 2, bound: Exact,
                formula: "⌊x⌋", special: "±∞ and -0 stay", exact: x.floor(),
            }
            /// The smallest integer that is not below x.
            Ceil {
                name: ceil, into: ceil_into, operands: (x), params: (), flops: 2, bound: Exact,
                formula: "⌈x⌉", special: "±∞ stay; -0 of what is above -1 and below 0", exact: x.ceil(),
            }
            /// The nearest integer, ties to even.
            Round {
                name: round, into: round_into, operands: (x), params: (), flops: 2, bound: Exact,
                formula: "the integer nearest to x", special: "of two the even one: 2.5 gives 2; ±∞ stay; zeros have the sign of x",
                exact: x.round_ties_even(),
            }
            /// The integer part.
            Trunc {
                name: trunc, into: trunc_into, operands: (x), params: (), flops: 2, bound: Exact,
                formula: "x without its fraction", special: "±∞ stay; zeros have the sign of x", exact: x.trunc(),
            }
            /// Power.
            Pow {
                name: pow, into: pow_into, operands: (a, b), params: (), flops: 60, bound: Ulp(3.0),
                formula: "aᵇ", special: "those of `pow` in C: b = ±0 and a = 1 give 1, even beside NaN; NaN where a < 0 is finite and b no integer",
                exact: a.powf(b),
            }
            /// Swish of a gate, times another operand.
            Swiglu {
                name: swiglu, into: swiglu_into, operands: (gate, up), params: (), flops: 17, bound: Magnitude(7.0),
                formula: "gate / (1 + e⁻ᵍᵃᵗᵉ) * up", special: "those of swish, then IEEE 754; a subnormal swish may lose digits, and beside an infinite operand give NaN",
                exact: $crate::op::swish(gate) * up,
                magnitude: $crate::op::gated_magnitude($crate::op::swish(gate), up),
            }
            /// Gelu of a gate, exact form, times another operand.
            Geglu {
                name: geglu, into: geglu_into, operands: (gate, up), params: (), flops: 26, bound: Magnitude(9.0),
                formula: "gate / 2 * (1 + erf(gate / √2)) * up",
                special: "those of gelu, then IEEE 754; a subnormal gelu may lose digits, and beside an infinite operand give NaN",
                exact: $crate::op::gelu(gate) * up,
                magnitude: $crate::op::gated_magnitude($crate::op::gelu(gate), up),
            }
            /// Gelu of a gate, tanh form, times another operand.
            GegluTanh {
                name: geglu_tanh, into: geglu_tanh_into, operands: (gate, up), params: (), flops: 23, bound: Magnitude(9.0),
                formula: "gate / 2 * (1 + tanh(√(2/π) * (gate + 0.044715 gate³))) * up",
                special: "those of gelu_tanh, then IEEE 754; a subnormal gelu may lose digits, and beside an infinite operand give NaN",
                exact: $crate::op::gelu_tanh(gate) * up,
                magnitude: $crate::op::gated_magnitude($crate::op::gelu_tanh(gate), up),
            }
        }
    };
}

macro_rules! count {
    ($($x:ident)*) => { <[&str]>::len(&[$(stringify!($x)),*]) };
}

macro_rules! define {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        bound: $bound:ident $(($units:literal))?, formula: $formula:literal, special: $special:literal, exact: $exact:expr
        $(, magnitude: $magnitude:expr)?,
    })*) => {
        /// An element-wise function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ElementwiseKind {
            $($(#[doc = $doc])* #[doc = concat!("\n\n`", $formula, "`")] $variant,)*
        }

        impl ElementwiseKind {
            /// Every element-wise function.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            const fn row(self) -> Row {
                match self {
                    $(Self::$variant => Row {
                        name: stringify!($name),
                        formula: $formula,
                        arity: count!($($x)*),
                        params: &[$(stringify!($p)),*],
                        flops: $flops,
                        contract: Contract { bound: Bound::$bound $(($units))?, special: $special },
                    },)*
                }
            }

            /// The exact value and the magnitude that an error is relative to, of `n` elements one after another:
            /// `operand(o, i)` is element `i` of operand `o`.
            #[cfg(feature = "reference")]
            #[allow(unused_variables)]
            pub fn exact(
                self,
                n: usize,
                operand: impl Fn(usize, usize) -> f64,
                params: [f32; 2],
                mut see: impl FnMut(f64, f64),
            ) {
                match self {
                    $(Self::$variant => {
                        #[allow(unused_mut)]
                        let mut rest = params.iter().map(|&p| f64::from(p));
                        $(let $p = rest.next().unwrap_or(f64::NAN);)*
                        for i in 0..n {
                            let mut position = 0..;
                            $(let $x = operand(position.next().unwrap_or(0), i);)*
                            #[allow(unused_mut, unused_assignments)]
                            let (value, mut magnitude) = { let v: f64 = $exact; (v, v.abs()) };
                            $(magnitude = $magnitude;)?
                            see(value, magnitude);
                        }
                    })*
                }
            }
        }

        impl Elementwise {
            $($(#[doc = $doc])* #[doc = concat!("\n\n`", $formula, "`")]
            #[inline]
            pub fn $name($($p: f32),*) -> Self {
                #[allow(unused_mut)]
                let mut params = [Param::from(0.0); 2];
                #[allow(unused_mut, unused_variables)]
                let mut slots = params.iter_mut();
                $(if let Some(slot) = slots.next() { *slot = $p.into(); })*
                Self { kind: ElementwiseKind::$variant, params }
            })*
        }
    };
}
elementwise_table!(define);

/// The table's entry for one function.
struct Row {
    name: &'static str,
    formula: &'static str,
    arity: usize,
    params: &'static [&'static str],
    flops: u64,
    contract: Contract,
}

impl ElementwiseKind {
    /// Gates: a function of the first operand times the second one, which in models are two products with the same rows.
    pub const GATES: &'static [Self] = &[Self::Swiglu, Self::Geglu, Self::GegluTanh];

    /// The name of the function.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Number of operands.
    pub const fn arity(self) -> usize {
        self.row().arity
    }

    /// Floating-point operations that one element counts as.
    pub const fn flops(self) -> u64 {
        self.row().flops
    }

    /// The names of its parameters.
    pub const fn param_names(self) -> &'static [&'static str] {
        self.row().params
    }

    /// The function with parameters; as many are used as it has.
    pub fn with_params(self, params: [f32; 2]) -> Elementwise {
        let mut used = [Param::from(0.0); 2];
        for (slot, value) in used.iter_mut().zip(params).take(self.param_names().len()) {
            *slot = value.into();
        }
        Elementwise { kind: self, params: used }
    }
}

/// A function applied to each element.
///
/// Operands have the shape of the result, or a shape that repeats along its outer dimensions: a row `[n]` or a
/// scalar `[]` beside a matrix `[m, n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Elementwise {
    kind: ElementwiseKind,
    params: [Param; 2],
}

impl Elementwise {
    /// The function.
    pub fn kind(&self) -> ElementwiseKind {
        self.kind
    }

    /// The parameters, in the order of the constructor; zeros beyond them.
    pub fn params(&self) -> [f32; 2] {
        self.params.map(Param::get)
    }
}

impl Operation for Elementwise {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn formula(&self) -> &'static str {
        self.kind.row().formula
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        super::expect_types(op, inputs, &[DType::F32; 3][..self.kind.arity()])?;
        Ok(TensorType::f32(super::compare::repeated_shape(op, inputs)?).into())
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        super::product(&[outputs[0].shape.numel()]).saturating_mul(self.kind.row().flops)
    }

    fn contract(&self) -> Contract {
        self.kind.row().contract
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let n = inputs.iter().map(|o| o.shape()).max_by_key(|s| (s.rank(), s.numel())).map_or(0, |s| s.numel());
        let operands: Vec<&[f32]> = inputs.iter().map(|o| o.data().f32()).collect();
        let operand = |o: usize, i: usize| f64::from(operands[o][i % operands[o].len()]);
        let (mut values, mut magnitudes) = (Vec::with_capacity(n), Vec::with_capacity(n));
        self.kind.exact(n, operand, self.params(), |value, magnitude| {
            values.push(value);
            magnitudes.push(magnitude);
        });
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::hard::{SIGNIFICANDS, hard_quotients, hard_squares};
        use super::reference::{Case, Input, LENGTHS, Random, SPECIAL};
        let mut cases = Vec::new();
        let (mut dividends, mut divisors) = (Vec::new(), Vec::new());
        SIGNIFICANDS.rev().step_by(40_001).for_each(|b| {
            hard_quotients(b, 5, |a, b| {
                dividends.push(a);
                divisors.push(b);
            });
        });
        let squares = hard_squares(400);
        let inputs = [dividends, divisors, squares].map(|x| Input::f32(x.clone(), &[x.len()]));
        let [dividends, divisors, squares] = inputs;
        cases.push(Case::new(Self::div(), vec![dividends, divisors.clone()]));
        cases.push(Case::new(Self::recip(), vec![divisors]));
        cases.push(Case::new(Self::sqrt(), vec![squares]));
        for &kind in ElementwiseKind::ALL {
            let op = kind.with_params([-0.75, 1.5]);
            let mut random = Random::new(kind as u64);
            for n in LENGTHS {
                let inputs = (0..kind.arity()).map(|_| Input::f32(random.uniforms(n, -9.0, 9.0), &[n]));
                cases.push(Case::new(op, inputs.collect()));
            }
            // Every pair of special values: each operand iterates over them with its own stride.
            let n = SPECIAL.len();
            let walk = |stride: usize| (0..n * n).map(|i| SPECIAL[(i / stride) % n]).collect::<Vec<f32>>();
            let mut walks: Vec<Vec<f32>> = (0..kind.arity()).map(|o| walk([1, n, 7][o])).collect();
            if let (ElementwiseKind::Swiglu | ElementwiseKind::Geglu | ElementwiseKind::GegluTanh, [gates, ups]) =
                (kind, &mut walks[..])
            {
                // A subnormal result may be flushed to zero, which gives NaN with an infinite operand.
                let mut up = ups.iter_mut();
                kind.exact(
                    n * n,
                    |o, i| if o == 0 { f64::from(gates[i]) } else { 1.0 },
                    [0.0; 2],
                    |function, _| {
                        let subnormal = function != 0.0 && function.abs() < f64::from(f32::MIN_POSITIVE);
                        if let Some(up) = up.next().filter(|up| subnormal && up.is_infinite()) {
                            *up = 1.0;
                        }
                    },
                );
            }
            let inputs = walks.into_iter().map(|x| Input::f32(x, &[n * n]));
            cases.push(Case::new(op, inputs.collect()));
            cases.extend(hard_cases(kind));
            if kind.arity() > 1 {
                for (rows, columns) in [(1, 1), (3, 5), (17, 64), (2, 5000)] {
                    let small = [&[columns][..], &[]];
                    for small in small {
                        let whole = Input::f32(random.uniforms(rows * columns, -9.0, 9.0), &[rows, columns]);
                        let mut inputs = vec![whole; kind.arity()];
                        inputs[1] = Input::f32(random.uniforms(small.iter().product(), -9.0, 9.0), small);
                        cases.push(Case::new(op, inputs.clone()));
                        inputs.swap(0, 1);
                        cases.push(Case::new(op, inputs));
                    }
                }
            }
        }
        cases
    }
}

/// Arguments that are hard for some functions: angles of every size and around multiples of π/2, halves and numbers
/// around 2²³, and powers of every base with exponents that keep them in range.
#[cfg(feature = "reference")]
fn hard_cases(kind: ElementwiseKind) -> Option<super::reference::Case> {
    use super::reference::{Case, Input, Random};
    let mut random = Random::new(97);
    let mut any = || f32::from_bits(random.bits() as u32);
    let operands: Vec<Vec<f32>> = match kind {
        ElementwiseKind::Sin | ElementwiseKind::Cos => {
            let near = (1..1500).map(|n| (f64::from(n * n) * std::f64::consts::FRAC_PI_2) as f32);
            vec![near.flat_map(|x| [x, -x.next_up(), any()]).collect()]
        }
        ElementwiseKind::Floor | ElementwiseKind::Ceil | ElementwiseKind::Round | ElementwiseKind::Trunc => {
            let halves = (-20..20).map(|n| n as f32 * 0.5);
            let large = (0..40).flat_map(|n| [4_194_300.5 + n as f32 * 0.5, -8_388_590.0 - n as f32]);
            vec![
                halves
                    .flat_map(|x| [x.next_down(), x, x.next_up()])
                    .chain(large)
                    .chain((0..200).map(|_| any()))
                    .collect(),
            ]
        }
        ElementwiseKind::Pow => {
            // Bases of any size, around 1 and below zero, with exponents that bring the results to between e^-104 and
            // e^89.
            let base = |i: u32| match i % 4 {
                0 => any(),
                1 => (i as f32).sqrt(),
                2 => 1.0 + (i as f32 - 1500.0) / 1e6,
                _ => -(i as f32) / 7.0,
            };
            let bases: Vec<f32> = (0..3000).map(base).collect();
            let exponent = |(i, base): (usize, &f32)| {
                let exponent = (i as f32 * 0.0643 - 104.0) / base.abs().ln();
                if *base < 0.0 { exponent.round_ties_even() } else { exponent }
            };
            let exponents = bases.iter().enumerate().map(exponent).collect();
            vec![bases, exponents]
        }
        _ => return None,
    };
    let inputs = operands.into_iter().map(|x| (x.len(), x)).map(|(n, x)| Input::f32(x, &[n])).collect();
    Some(Case::new(kind.with_params([0.0; 2]), inputs))
}

/// Scalar definitions for rows of the table whose formula is more than an expression.
#[cfg(feature = "reference")]
mod meaning {
    /// IEEE 754-2019 `maximum`.
    pub fn maximum(a: f64, b: f64) -> f64 {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else if a == b {
            if a.is_sign_positive() { a } else { b }
        } else if a > b {
            a
        } else {
            b
        }
    }

    /// IEEE 754-2019 `minimum`.
    pub fn minimum(a: f64, b: f64) -> f64 {
        -maximum(-a, -b)
    }
}
#[cfg(feature = "reference")]
#[allow(missing_docs)] // each is the formula of its row
mod exact {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

    /// The products of f32 are exact in f64; the sum rounds once more, far below the bound.
    pub fn fused(a: f64, b: f64, c: f64) -> f64 {
        a * b + c
    }

    /// x times a weight in 0..1 that vanishes faster than 1/x, so that the limit at -∞ is -0.
    fn weighted(x: f64, weight: f64) -> f64 {
        if x == f64::NEG_INFINITY { -0.0 } else { x * weight }
    }

    fn logistic(x: f64) -> f64 {
        if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
    }

    pub fn swish(x: f64) -> f64 {
        weighted(x, logistic(x))
    }

    pub fn gelu(x: f64) -> f64 {
        weighted(x, 0.5 * libm::erfc(-x * FRAC_1_SQRT_2))
    }

    pub fn gelu_tanh(x: f64) -> f64 {
        let u = FRAC_2_SQRT_PI / SQRT_2 * (x + 0.044715 * x * x * x);
        weighted(x, logistic(2.0 * u))
    }

    pub fn hard_swish(x: f64) -> f64 {
        weighted(x, (x + 3.0).clamp(0.0, 6.0) / 6.0)
    }

    /// The error function.
    pub fn erf(x: f64) -> f64 {
        libm::erf(x)
    }

    /// The magnitude of the error of a function of a gate times another operand: the product, and the part that vanishes where a
    /// device takes a subnormal function for zero, which is below 2⁻¹²⁶ and counted in units of 2⁻²⁴.
    pub fn gated_magnitude(function: f64, up: f64) -> f64 {
        (function * up).abs() + up.abs() * f64::powi(2.0, 24 - 126)
    }

    pub fn mish(x: f64) -> f64 {
        // tanh(ln(1 + e)) = e (e + 2) / (e (e + 2) + 2), with e = exp(x); beyond 30 the weight is 1 in f64.
        let e = x.min(30.0).exp();
        weighted(x, e * (e + 2.0) / (e * (e + 2.0) + 2.0))
    }
}
#[cfg(feature = "reference")]
pub use exact::{erf, fused, gated_magnitude, gelu, gelu_tanh, hard_swish, mish, swish};
#[cfg(feature = "reference")]
pub use meaning::{maximum, minimum};
