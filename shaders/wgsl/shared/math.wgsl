// The difficult functions, on four elements at a time. The polynomials are those of the vectors of the CPU, fitted there.
//
// Written for arithmetic that rounds correctly and may or may not contract a product and a sum: where the rounding of an
// argument would be magnified, the argument is carried as a sum of two numbers whose products are exact, because each
// factor has at most twelve bits. Compilers reorder sums and take a - (a - b) for b: where the order counts, the first
// difference is `held` by way of an integer.

alias V = vec4<f32>;
alias Bits = vec4<u32>;

fn bits(x: V) -> Bits {
    return bitcast<Bits>(x);
}

// By bits: a compiler may take x != x for false.
fn nans(x: V) -> vec4<bool> {
    return (bits(x) & Bits(0x7fffffffu)) > Bits(0x7f800000u);
}

// By bits: a device may take subnormal numbers for zeros where it compares, though not where it computes.
fn zeros(x: V) -> vec4<bool> {
    return (bits(x) & Bits(0x7fffffffu)) == Bits(0u);
}

fn infinities(x: V) -> vec4<bool> {
    return (bits(x) & Bits(0x7fffffffu)) == Bits(0x7f800000u);
}

fn finite(x: V) -> vec4<bool> {
    return (bits(x) & Bits(0x7f800000u)) != Bits(0x7f800000u);
}

// Constants that are not finite may not be written in WGSL: they are made from the bits of a variable.
fn nan_of(x: V) -> V {
    return bitcast<V>(bits(x) | Bits(0x7fc00000u));
}

fn infinity_signed_as(x: V) -> V {
    return bitcast<V>((bits(x) & Bits(0x80000000u)) | Bits(0x7f800000u));
}

// y, but NaN where x is.
fn keeping_nan(y: V, x: V) -> V {
    return select(y, nan_of(x), nans(x));
}

// |y| with the sign of x, for y >= 0.
fn signed_as(y: V, x: V) -> V {
    return bitcast<V>(bits(y) | (bits(x) & Bits(0x80000000u)));
}

// The upper twelve bits of the significand.
fn upper(x: V) -> V {
    return bitcast<V>(bits(x) & Bits(0xfffff000u));
}

// x, which is a multiple of 1 / scale below 2^31 / scale or is truncated to one, converted to an integer and back so
// that compilers cannot merge it with later arithmetic.
fn held(x: V, scale: f32) -> V {
    return V(vec4<i32>(x * scale)) * (1.0 / scale);
}

// x, by way of its bits. These change where x is not finite, so a compiler can neither remove the conversion nor merge
// x with later arithmetic.
fn kept(x: V) -> V {
    return bitcast<V>(bits(x) ^ select(Bits(1u), Bits(0u), finite(x)));
}

// 2^n for integers in -126..=127.
fn power_of_two(n: vec4<i32>) -> V {
    return bitcast<V>((n + vec4<i32>(127)) << vec4<u32>(23u));
}

// y 2^n for integers in -252..=254, rounded once.
fn scaled(y: V, n: V) -> V {
    let whole = vec4<i32>(n);
    let half = whole >> vec4<u32>(1u);
    return (y * power_of_two(half)) * power_of_two(whole - half);
}

// a / b. WGSL promises a precision only for divisors between 2^-126 and 2^126.
fn quotient(a: V, b: V) -> V {
    let large = abs(b) > V(1.0e30);
    let small = abs(b) < V(1.0e-30);
    let factor = select(select(V(1.0), V(1073741824.0), small), V(9.313225746154785e-10), large);
    // Where the divisor is zero or infinite the factor changes nothing.
    let plain = (abs(b) == V(0.0)) | infinities(b) | infinities(a);
    return select((a / (b * factor)) * factor, a / b, plain);
}

const LN_2_UPPER: f32 = 0.69311523;
const LN_2_LOWER: f32 = 3.1946183e-5;
const LOG2_E: f32 = 1.4426950408889634;

// An argument of the exponential function as n ln 2 + r.
struct Reduced {
    r: V,
    n: V,
}

// Splits x of magnitude at most 200. The first product is exact.
fn reduced(x: V) -> Reduced {
    let n = round(x * LOG2_E);
    return Reduced((x - n * LN_2_UPPER) - n * LN_2_LOWER, n);
}

// Splits x + low, where low is small; off by 2^-26 beside the rounding of r.
fn reduced_sum(x: V, low: V) -> Reduced {
    let n = round(x * LOG2_E);
    return Reduced(held(x - n * LN_2_UPPER, 33554432.0) + (low - n * LN_2_LOWER), n);
}

// e^r - 1
fn exp_m1_of(r: V) -> V {
    let q = (((r * 0.0014035056 + 0.008372283) * r + 0.041665554) * r + 0.16666488) * r + 0.5;
    return (r * r) * q + r;
}

fn exp_of(x: V) -> V {
    // e^-104 rounds to 0, e^89 to infinity.
    let split = reduced(clamp(x, V(-104.0), V(89.0)));
    return scaled(exp_m1_of(split.r) + 1.0, split.n);
}

// e^x - 1 for x <= 0
fn exp_m1_negative(x: V) -> V {
    // e^-30 is below half a unit in the last place of 1.
    let split = reduced(max(x, V(-30.0)));
    let power = power_of_two(vec4<i32>(split.n));
    return signed_as(abs(power * exp_m1_of(split.r) + (power - 1.0)), x);
}

// e^x - 1
fn exp_m1_whole(x: V) -> V {
    // e^-30 is below half a unit in the last place of 1. From 2^25 on the 1 is, too.
    let split = reduced(clamp(x, V(-30.0), V(89.0)));
    let p = exp_m1_of(split.r);
    let power = power_of_two(vec4<i32>(min(split.n, V(25.0))));
    let y = select(power * p + (power - 1.0), scaled(p + 1.0, split.n), split.n > V(25.0));
    return keeping_nan(signed_as(abs(y), x), x);
}

// ln(1 + f) + k ln 2 for f in -0.3..=0.5 and integral k
fn ln_sum(f: V, k: V) -> V {
    var p = f * 0.037373032 - 0.09088157;
    p = p * f + 0.116980396;
    p = p * f - 0.1273166;
    p = p * f + 0.14277065;
    p = p * f - 0.16655147;
    p = p * f + 0.19999565;
    p = p * f - 0.25000167;
    p = p * f + 0.3333334;
    let tail = (f * f) * (f * p - 0.5) + k * LN_2_LOWER;
    return k * LN_2_UPPER + (f + tail);
}

fn ln_of(x: V) -> V {
    // Subnormal numbers are lifted into the normal range, m is in sqrt(1/2)..sqrt(2).
    let tiny = x < V(1.1754944e-38);
    let lifted = bitcast<vec4<i32>>(select(x, x * 16777216.0, tiny));
    let exponent = (lifted - vec4<i32>(0x3f3504f3)) >> vec4<u32>(23u);
    let m = bitcast<V>(lifted - (exponent << vec4<u32>(23u)));
    let k = V(exponent) - select(V(0.0), V(24.0), tiny);
    let f = m - 1.0;
    let finite = ln_sum(f, k);
    let y = select(select(finite, x, infinities(x)), -infinity_signed_as(abs(x)), zeros(bitcast<V>(lifted)));
    return select(y, nan_of(x), (x < V(0.0)) | nans(x));
}

// ln(1 + x) for x in 0..=1
fn ln_1p_of(x: V) -> V {
    // From 1/2 on it is ln 2 + ln((1 + x) / 2). Both arguments of the polynomial are exact.
    let large = x > V(0.5);
    return ln_sum(select(x, (x - 1.0) * 0.5, large), select(V(0.0), V(1.0), large));
}

// ln(1 + x)
fn ln_1p_whole(x: V) -> V {
    // With 1 + x near m 2^k it is ln(1 + f) + k ln 2 for f = x 2^-k + (2^-k - 1), where the difference is exact or -1.
    let exponent = (bitcast<vec4<i32>>(x + 1.0) - vec4<i32>(0x3f3504f3)) >> vec4<u32>(23u);
    let k = clamp(V(exponent), V(-126.0), V(128.0));
    let y = ln_sum(scaled(x, -k) + (scaled(V(1.0), -k) - 1.0), k);
    let finite = select(signed_as(abs(y), x), -infinity_signed_as(abs(x)), x == V(-1.0));
    return select(select(finite, x, infinities(x)), nan_of(x), (x < V(-1.0)) | nans(x));
}

fn erf_of(x: V) -> V {
    // 1 - e^p(a) from 0.93 on, which is 1 from 4 on, and an odd polynomial below.
    let a = min(abs(x), V(4.0));
    var p = a * -1.7285347e-5 + 0.00038319713;
    p = p * a - 0.0038839644;
    p = p * a + 0.024254622;
    p = p * a - 0.10677788;
    p = p * a - 0.6348467;
    p = p * a - 0.12871751;
    let large = 1.0 - exp_of(p * a - a);
    let square = min(a * a, V(1.0));
    var q = square * -0.0005967617 + 0.004991194;
    q = q * square - 0.026768135;
    q = q * square + 0.112819925;
    q = q * square - 0.37612534;
    q = q * square + 0.12837917;
    let small = a * q + a;
    return keeping_nan(signed_as(select(small, large, a > V(0.9277344)), x), x);
}

fn tanh_of(x: V) -> V {
    let a = abs(x);
    // 1 - 2 / (e^2a + 1), from 10 on 1.
    let split = reduced(2.0 * min(a, V(10.0)));
    let power = power_of_two(vec4<i32>(split.n)) * (exp_m1_of(split.r) + 1.0);
    let large = 1.0 - 2.0 / (power + 1.0);
    // The difference cancels for small a.
    let square = a * a;
    var p = square * -0.005553775 + 0.020512328;
    p = p * square - 0.053704895;
    p = p * square + 0.13331103;
    p = p * square - 0.33333275;
    let small = (a * square) * p + a;
    return keeping_nan(signed_as(select(small, large, a >= V(0.65)), x), x);
}

fn sigmoid_of(x: V) -> V {
    // p / (p + 2^-n), both times 2^-24, so that 2^-n stays in range down to where the quotient underflows.
    let split = reduced(clamp(x, V(-104.0), V(30.0)));
    let p = (exp_m1_of(split.r) + 1.0) * 5.9604645e-8;
    return keeping_nan(quotient(p, p + power_of_two(vec4<i32>(-24.0 - split.n))), x);
}

// x / (1 + p 2^-n): x 2^n / (p + 2^n), the power applied last.
fn weighted(x: V, p: V, n: V) -> V {
    return scaled(x / (p + scaled(V(1.0), n)), n);
}

fn swish_of(x: V) -> V {
    // Below -110 the result rounds to -0; from 30 on the weight is 1.
    let limited = max(x, V(-110.0));
    let split = reduced(-min(limited, V(30.0)));
    let y = weighted(limited, exp_m1_of(split.r) + 1.0, -split.n);
    return keeping_nan(select(y, x, infinities(x) & (x > V(0.0))), x);
}

fn gelu_tanh_of(x: V) -> V {
    // x / (1 + 2^-y) for y = t (2.302... + 0.1029... t^2). Below -10.9 the result rounds to -0; from 6 on the weight is 1.
    let limited = max(x, V(-10.9));
    let t = min(limited, V(6.0));
    // t^2 as a sum, its upper part of twelve bits.
    let t_upper = upper(t);
    let t_lower = t - t_upper;
    let square = t_upper * t_upper;
    let square_upper = upper(square);
    let square_lower = (square - square_upper) + t_lower * (2.0 * t_upper + t_lower);
    // The factor of t: the linear coefficient plus the cubic one times t^2. The upper part is a multiple of 1/256.
    let cubic = 0.102935791015625 * square_upper;
    let cubic_upper = floor(cubic * 256.0) * 0.00390625;
    let s_upper = cubic_upper + 2.296875;
    let cubic_lower = 0.102935791015625 * square_lower + 7.4485644e-6 * (square_upper + square_lower);
    let s_lower = held(cubic - cubic_upper, 4294967296.0) + (cubic_lower + 0.005333198);
    // y, again in two parts.
    let y = t_upper * s_upper;
    let y_lower = t_upper * s_lower + t_lower * (s_upper + s_lower);
    let n = round(y + y_lower);
    let f = held(n - y, 16777216.0) - y_lower;
    // 2^f - 1
    var q = f * 0.00017148428 + 0.0013423698;
    q = q * f + 0.009612299;
    q = q * f + 0.055502597;
    q = q * f + 0.24022694;
    q = q * f + 0.69314724;
    let result = weighted(limited, f * q + 1.0, n);
    return keeping_nan(select(result, x, infinities(x) & (x > V(0.0))), x);
}

fn gelu_of(x: V) -> V {
    // With the upper tail q(a) = erfc(a / sqrt 2) / 2 it is max(x, 0) - a q(a), a = |x|. Beyond 14.5 the tail rounds to 0.
    let a = min(abs(x), V(14.5));
    let a_upper = upper(a);
    let a_lower = a - a_upper;
    let square_upper = a_upper * a_upper * -0.5;
    let square_lower = a_lower * (a_lower * -0.5 - a_upper);
    let square = square_upper + square_lower;
    let split = reduced_sum(square_upper, square_lower);
    // q(a) = e^(-a^2/2) n / ((2 + c a) n - a d) with polynomials n and d.
    var n = square * 0.034304615 + (a * -0.1691193 - 0.76199526);
    n = square * n + (a * 0.9106926 + 1.037952);
    let minus_d = square * (a * 0.034273665 + 0.29583505) + (a * -0.54588693 - 0.945398);
    let denominator = a * (2.5066001 * n + minus_d) + (n + n);
    let tail = (a * exp_m1_of(split.r) + a) * n / denominator;
    let y = select(max(x, V(0.0)), V(0.0), x < V(0.0)) - scaled(tail, split.n);
    // -0 and -infinity give -0, and so does what rounds to zero below it.
    let low = (x <= V(0.0)) & (y == V(0.0));
    return keeping_nan(select(y, signed_as(V(0.0), x), low), x);
}

fn mish_of(x: V) -> V {
    // With e^-x = p 2^n and w = 2^-n it is x w (w + 2p) / (w (w + 2p) + 2p^2); from 20 on the weight is 1.
    let limited = max(x, V(-110.0));
    let split = reduced(-min(limited, V(20.0)));
    let n = -split.n;
    let p = exp_m1_of(split.r) + 1.0;
    let w = scaled(V(1.0), n);
    let sum = (p + p) + w;
    let y = scaled(limited * (sum / (w * sum + (p + p) * p)), n);
    return keeping_nan(select(y, x, infinities(x) & (x > V(0.0))), x);
}
