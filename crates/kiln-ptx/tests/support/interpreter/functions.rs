//! The results of instructions without effects.

use kiln_ir::f16;

use super::cluster;

pub(super) fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}
fn d(x: u64) -> f64 {
    f64::from_bits(x)
}
pub(super) fn of(x: f32) -> u64 {
    u64::from(x.to_bits())
}
/// IEEE 754-2019 `minimumNumber` and `maximumNumber`, with -0 less than +0.
fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() { b } else { a };
    }
    let first = a < b || a == b && a.is_sign_negative();
    if first { a } else { b }
}
fn greatest(a: f64, b: f64) -> f64 {
    -least(-a, -b)
}

/// The nearest bfloat16, the even one of two.
pub(crate) fn to_bf16(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The result of an instruction without effects. Integers of 32 bits have zeros above.
pub(super) fn function(name: &str) -> Option<fn(&[u64]) -> u64> {
    fn word(x: impl Into<i128>) -> u64 {
        x.into() as u32 as u64
    }
    Some(match name {
        "mov.b32" | "mov.b64" | "mov.f32" | "mov.f64" | "mov.u32" | "mov.u64" | "mov.pred" | "cvta.to.global.u64"
        | "cvt.u64.u32" => |x| x[0],
        "add.rn.f32" => |x| of(f(x[0]) + f(x[1])),
        "sub.rn.f32" => |x| of(f(x[0]) - f(x[1])),
        "mul.rn.f32" => |x| of(f(x[0]) * f(x[1])),
        "div.rn.f32" => |x| of(f(x[0]) / f(x[1])),
        "fma.rn.f32" => |x| of(f(x[0]).mul_add(f(x[1]), f(x[2]))),
        "add.rn.f64" => |x| (d(x[0]) + d(x[1])).to_bits(),
        "sub.rn.f64" => |x| (d(x[0]) - d(x[1])).to_bits(),
        "mul.rn.f64" => |x| (d(x[0]) * d(x[1])).to_bits(),
        "div.rn.f64" => |x| (d(x[0]) / d(x[1])).to_bits(),
        "fma.rn.f64" => |x| d(x[0]).mul_add(d(x[1]), d(x[2])).to_bits(),
        "neg.f32" => |x| x[0] ^ 1 << 31,
        "abs.f32" => |x| x[0] & !(1 << 31),
        "neg.f64" => |x| x[0] ^ 1 << 63,
        "abs.f64" => |x| x[0] & !(1 << 63),
        "sqrt.rn.f32" => |x| of(f(x[0]).sqrt()),
        "sqrt.rn.f64" => |x| d(x[0]).sqrt().to_bits(),
        "rcp.rn.f32" | "rcp.approx.ftz.f32" => |x| of(1.0 / f(x[0])),
        "rcp.rn.f64" => |x| (1.0 / d(x[0])).to_bits(),
        "min.f32" => |x| of(least(f(x[0]).into(), f(x[1]).into()) as f32),
        "max.f32" => |x| of(greatest(f(x[0]).into(), f(x[1]).into()) as f32),
        "min.f64" => |x| least(d(x[0]), d(x[1])).to_bits(),
        "max.f64" => |x| greatest(d(x[0]), d(x[1])).to_bits(),
        "min.NaN.f32" => |x| {
            let (a, b) = (f(x[0]), f(x[1]));
            of(if a.is_nan() || b.is_nan() { f32::NAN } else { least(a.into(), b.into()) as f32 })
        },
        "max.NaN.f32" => |x| {
            let (a, b) = (f(x[0]), f(x[1]));
            of(if a.is_nan() || b.is_nan() { f32::NAN } else { greatest(a.into(), b.into()) as f32 })
        },
        "copysign.f32" => |x| x[0] & 1 << 31 | x[1] & !(1 << 31),
        "add.u32" | "add.s32" => |x| word((x[0] as u32).wrapping_add(x[1] as u32)),
        "sub.u32" | "sub.s32" => |x| word((x[0] as u32).wrapping_sub(x[1] as u32)),
        "mul.lo.u32" | "mul.lo.s32" => |x| word((x[0] as u32).wrapping_mul(x[1] as u32)),
        "mad.lo.u32" => |x| word((x[0] as u32).wrapping_mul(x[1] as u32).wrapping_add(x[2] as u32)),
        "mul.wide.u32" => |x| x[0] * x[1],
        "mad.wide.u32" => |x| (x[0] * x[1]).wrapping_add(x[2]),
        "add.u64" => |x| x[0].wrapping_add(x[1]),
        "sub.u64" => |x| x[0].wrapping_sub(x[1]),
        "mul.lo.u64" => |x| x[0].wrapping_mul(x[1]),
        "mad.lo.s32" => |x| word((x[0] as i32).wrapping_mul(x[1] as i32).wrapping_add(x[2] as i32)),
        "mad.lo.u64" => |x| x[0].wrapping_mul(x[1]).wrapping_add(x[2]),
        "div.u32" | "div.u64" => |x| x[0] / x[1],
        "rem.u32" | "rem.u64" => |x| x[0] % x[1],
        "min.s32" => |x| word((x[0] as i32).min(x[1] as i32)),
        "max.s32" => |x| word((x[0] as i32).max(x[1] as i32)),
        "min.u32" | "min.u64" => |x| x[0].min(x[1]),
        "max.u32" | "max.u64" => |x| x[0].max(x[1]),
        "and.b32" | "and.b64" | "and.pred" => |x| x[0] & x[1],
        "or.b32" | "or.b64" | "or.pred" => |x| x[0] | x[1],
        "xor.b32" | "xor.b64" | "xor.pred" => |x| x[0] ^ x[1],
        "not.b32" => |x| word(!x[0] as u32),
        "not.b64" => |x| !x[0],
        "not.pred" => |x| x[0] ^ 1,
        "shl.b32" => |x| word((x[0] as u32).checked_shl(x[1] as u32).unwrap_or(0)),
        "shl.b64" => |x| x[0].checked_shl(x[1] as u32).unwrap_or(0),
        "shr.u32" | "shr.u64" => |x| x[0].checked_shr(x[1] as u32).unwrap_or(0),
        "shr.s32" => |x| word((x[0] as u32 as i32) >> (x[1] as u32).min(31)),
        "setp.lt.f32" => |x| (f(x[0]) < f(x[1])).into(),
        "setp.le.f32" => |x| (f(x[0]) <= f(x[1])).into(),
        "setp.gt.f32" => |x| (f(x[0]) > f(x[1])).into(),
        "setp.ge.f32" => |x| (f(x[0]) >= f(x[1])).into(),
        "setp.eq.f32" => |x| (f(x[0]) == f(x[1])).into(),
        "setp.ne.f32" => |x| (!f(x[0]).is_nan() && !f(x[1]).is_nan() && f(x[0]) != f(x[1])).into(),
        "setp.nan.f32" => |x| (f(x[0]).is_nan() || f(x[1]).is_nan()).into(),
        "setp.eq.f64" => |x| (d(x[0]) == d(x[1])).into(),
        "setp.le.f64" => |x| (d(x[0]) <= d(x[1])).into(),
        "setp.ge.f64" => |x| (d(x[0]) >= d(x[1])).into(),
        "setp.lt.u32" | "setp.lt.u64" => |x| (x[0] < x[1]).into(),
        "setp.le.u32" | "setp.le.u64" => |x| (x[0] <= x[1]).into(),
        "setp.gt.u32" | "setp.gt.u64" => |x| (x[0] > x[1]).into(),
        "setp.ge.u32" | "setp.ge.u64" => |x| (x[0] >= x[1]).into(),
        "setp.eq.u32" | "setp.eq.u64" => |x| (x[0] == x[1]).into(),
        "setp.ne.u32" | "setp.ne.u64" => |x| (x[0] != x[1]).into(),
        "setp.lt.s32" => |x| ((x[0] as i32) < x[1] as i32).into(),
        "setp.gt.s32" => |x| (x[0] as i32 > x[1] as i32).into(),
        "setp.le.s32" => |x| (x[0] as i32 <= x[1] as i32).into(),
        "setp.ge.s32" => |x| (x[0] as i32 >= x[1] as i32).into(),
        "setp.eq.s32" => |x| (x[0] as i32 == x[1] as i32).into(),
        "selp.f32" | "selp.f64" | "selp.u32" | "selp.s32" | "selp.u64" => |x| if x[2] == 1 { x[0] } else { x[1] },
        "cvt.u32.u64" => |x| word(x[0] as u32),
        "cvt.rni.f32.f32" => |x| of(f(x[0]).round_ties_even()),
        "cvt.rzi.f32.f32" => |x| of(f(x[0]).trunc()),
        "cvt.rmi.f32.f32" => |x| of(f(x[0]).floor()),
        "cvt.rpi.f32.f32" => |x| of(f(x[0]).ceil()),
        "cvt.rni.s32.f32" => |x| word(f(x[0]).round_ties_even() as i32),
        "cvt.rzi.s32.f32" => |x| word(f(x[0]) as i32),
        "cvt.rzi.u32.f32" => |x| word(f(x[0]) as u32),
        "cvt.rn.f32.u32" => |x| of(x[0] as f32),
        "cvt.rn.f32.s32" => |x| of(x[0] as i32 as f32),
        "cvt.rn.f32.f64" => |x| of(d(x[0]) as f32),
        // Half away from zero, which for the bits is half up.
        "cvt.rna.tf32.f32" => |x| if f(x[0]).is_finite() { (x[0] + (1 << 12)) & 0xffff_e000 } else { x[0] },
        "cvt.rn.f64.u32" | "cvt.rn.f64.u64" => |x| (x[0] as f64).to_bits(),
        "cvt.f64.f32" => |x| f64::from(f(x[0])).to_bits(),
        "ex2.approx.ftz.f32" => |x| {
            let flushed = |x: f32| if x.is_subnormal() { 0.0 } else { x };
            of(flushed(flushed(f(x[0])).exp2()))
        },
        "cvt.f32.f16" => |x| of(f16::from_bits(x[0] as u16).to_f32()),
        "cvt.f32.bf16" => |x| x[0] << 16,
        "cvt.rn.f16x2.f32" => |x| {
            let [upper, lower] = [x[0], x[1]].map(|x| u64::from(f16::from_f32(f(x)).to_bits()));
            upper << 16 | lower
        },
        "cvt.rn.bf16x2.f32" => |x| {
            let [upper, lower] = [x[0], x[1]].map(|x| u64::from(to_bf16(f(x))));
            upper << 16 | lower
        },
        "fma.rn.f16x2" => |x| {
            let half = |x: u64, upper: u32| f64::from(f16::from_bits((x >> (16 * upper)) as u16).to_f32());
            let fma = |upper| half(x[0], upper).mul_add(half(x[1], upper), half(x[2], upper));
            // Kernels use it where the result is exact.
            let [lower, upper] = [fma(0), fma(1)].map(|sum| u64::from(f16::from_f32(sum as f32).to_bits()));
            upper << 16 | lower
        },
        "prmt.b32" => |x| {
            let bytes = x[0] | x[1] << 32;
            let byte = |digit: u64| bytes >> (8 * (digit & 7)) & 0xff;
            // The fourth bit of a digit repeats the sign of the byte.
            let chosen = |digit: u64| if digit & 8 == 0 { byte(digit) } else { 0xff * (byte(digit) >> 7) };
            (0..4).fold(0, |word, i| word | chosen(x[2] >> (4 * i) & 15) << (8 * i))
        },
        "join" => |x| x[0] | x[1] << 32,
        "mapa.shared::cluster.u32" => |x| cluster::address(x[0], x[1]),
        _ => return None,
    })
}
