//! Where the numerics of GPUs differ from the contract of kiln-ir.
//!
//! WGSL promises correct rounding of sums, differences and products, and 2.5 units in the last place of quotients. It
//! allows implementations to take subnormal numbers for zeros anywhere. What is built from these has wider bounds.

use kiln_ir::op::{Bound, Elementwise, ElementwiseKind, Op, Pooling, ResizeMode, product_bound_of};
use kiln_ir::{DType, Result, TensorType};

use crate::GpuDevice;
use crate::lower::pool::SMALL_WINDOW;

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

/// What a product of `k` terms with quantised weights adds to its bound if both operands are rounded to f16, in units of u: 2⁻¹¹ of
/// each factor, because WGSL leaves the direction of rounding open, and what units for cooperative matrices cut off.
fn rounded_units(k: usize) -> f64 {
    16_384.0 + k as f64 / 8.0
}

/// The error bound of an operation on a device: that of a GPU, or, for products of f16 through cooperative matrices, what
/// their units keep.
///
/// Such a unit adds sixteen products to a sum at a time and cuts off what exceeds 24 bits, so that errors are of one sign: 2 u
/// of the sum each time, k / 8 u in all, and 16 u for what is cut off from the products themselves.
///
/// # Errors
/// The errors of [`Op::bound`].
pub fn bound_on(device: &GpuDevice, op: &Op, inputs: &[TensorType]) -> Result<Bound> {
    let plain = bound(op, inputs)?;
    if let (Op::QuantMatmul(_), Bound::Magnitude(units), true) = (op, plain, device.inner.target.rounds()) {
        return Ok(Bound::Magnitude(units + rounded_units(inputs[1].shape.columns())));
    }
    let halves = inputs.iter().all(|input| input.dtype == DType::F16);
    let (Op::Matmul(matmul), true, true) = (op, device.has_cooperative_matrices(), halves) else { return Ok(plain) };
    let k = matmul.extents(&inputs[0].shape, &inputs[1].shape)?.k;
    Ok(match plain {
        Bound::Magnitude(units) => Bound::Magnitude(units.max((k / 8 + 16) as f64)),
        other => other,
    })
}

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
