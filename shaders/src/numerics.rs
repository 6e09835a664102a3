//! The differences between the numerics of shaders and the contract of kiln-ir.
//!
//! WGSL promises correct rounding of sums, differences and products, and 2.5 units in the last place of quotients. It
//! allows implementations to take subnormal numbers for zeros anywhere. What is built from these has wider bounds.

use kiln_ir::op::{Bound, Elementwise, ElementwiseKind, Op, Pooling, ResizeMode, product_bound_of};
use kiln_ir::{Result, TensorType};

/// Bounds that differ, for element-wise functions.
///
/// They hold on all that a backend runs on; most GPUs are closer.
pub const DIFFERENCES: &[(ElementwiseKind, Bound)] = &[
    (ElementwiseKind::Div, Bound::Ulp(2.5)),
    (ElementwiseKind::Recip, Bound::Ulp(2.5)),
    (ElementwiseKind::Sqrt, Bound::Ulp(2.5)),
    (ElementwiseKind::Rsqrt, Bound::Ulp(2.5)),
    (ElementwiseKind::Exp, Bound::Ulp(2.0)),
    (ElementwiseKind::Ln, Bound::Ulp(2.0)),
    // One rounding if the device has a fused instruction, else two.
    (ElementwiseKind::Fma, Bound::Magnitude(2.0)),
    (ElementwiseKind::Elu, Bound::Ulp(4.0)),
    (ElementwiseKind::Sigmoid, Bound::Ulp(5.0)),
    (ElementwiseKind::Tanh, Bound::Ulp(4.0)),
    (ElementwiseKind::Swish, Bound::Ulp(6.0)),
    (ElementwiseKind::Gelu, Bound::Ulp(8.0)),
    (ElementwiseKind::GeluTanh, Bound::Ulp(6.0)),
    (ElementwiseKind::Mish, Bound::Ulp(8.0)),
    (ElementwiseKind::Softplus, Bound::Ulp(4.0)),
    (ElementwiseKind::Sin, Bound::Ulp(4.0)),
    (ElementwiseKind::Cos, Bound::Ulp(4.0)),
    (ElementwiseKind::Erf, Bound::Ulp(4.0)),
    (ElementwiseKind::Ln1p, Bound::Ulp(4.0)),
    (ElementwiseKind::ExpM1, Bound::Ulp(4.0)),
    (ElementwiseKind::Pow, Bound::Ulp(6.0)),
    // Two roundings of 2⁻²⁴ for each unit of the function, and two for the products.
    (ElementwiseKind::Swiglu, Bound::Magnitude(14.0)),
    (ElementwiseKind::Geglu, Bound::Magnitude(18.0)),
    (ElementwiseKind::GegluTanh, Bound::Magnitude(14.0)),
];

/// Products that a matrix product or a convolution sums in one chain at most: a shorter one would cost a GPU more, which
/// keeps the sums of chains in the memory of the result.
pub const CHAIN: usize = 512;

/// The error bound of bilinear interpolation: along each dimension a weight is a quotient, off by 5 u, where the contract counts 1 u.
pub const BILINEAR: Bound = Bound::Magnitude(15.0);

/// Maximum elements of a window of pooling for one invocation: longer chains would round too often.
pub const SMALL_WINDOW: usize = 64;

/// The error bound of an operation on a GPU without cooperative matrices.
///
/// # Errors
/// The errors of [`Op::bound`].
pub fn bound(op: &Op, inputs: &[TensorType]) -> Result<Bound> {
    let bound = op.bound(inputs)?;
    let shapes = || (&inputs[0].shape, &inputs[1].shape);
    let products = match op {
        Op::Elementwise(op) => return Ok(of(op).unwrap_or(bound)),
        Op::Matmul(op) => op.extents(shapes().0, shapes().1)?.k,
        Op::Matvec(op) => op.extents(shapes().0, shapes().1)?.0,
        Op::Convolve2d(op) => op.extents(shapes().0, shapes().1)?.terms(),
        Op::ConvolveTranspose2d(op) => op.extents(shapes().0, shapes().1)?.terms(),
        Op::Resize2d(op) if op.mode == ResizeMode::Bilinear => return Ok(BILINEAR),
        Op::MatmulByExpert(_) if inputs[1].dtype.is_float() => inputs[1].shape.columns(),
        // Root and quotient have an error of 2.5 units in the last place each, which is 5 u; the contract counts 1 u.
        Op::BatchNorm(_) => return Ok(Bound::Magnitude(15.0)),
        Op::Pool2d(op) if op.pooling == Pooling::Average => return Ok(average_bound(op.window)),
        _ => return Ok(bound),
    };
    Ok(product_bound_of(products, CHAIN))
}

/// The error bound of means of windows: each rounding that an element passes through, and five of the quotient.
///
/// Of small windows rows are added, then their sums. Of others an invocation adds one element of 64 at least, in chains of 64,
/// 4096 and the rest; workgroups of up to 256 join what theirs have added.
pub fn average_bound((h, w): (usize, usize)) -> Bound {
    let area = h.max(1).saturating_mul(w.max(1));
    let roundings = if area <= SMALL_WINDOW {
        h + w - 2
    } else {
        let own = area.div_ceil(64);
        own.min(64) + (own / 64).min(64) + own / 4096 + 8
    };
    Bound::Magnitude((roundings + 5) as f64)
}

fn of(op: &Elementwise) -> Option<Bound> {
    DIFFERENCES.iter().find(|(kind, _)| *kind == op.kind()).map(|&(_, bound)| bound)
}
