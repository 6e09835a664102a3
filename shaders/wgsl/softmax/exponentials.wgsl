// Shared parts of the kernels of softmax: exponentials of numbers that are not positive, 2^24 times too large, so that none of
// them is subnormal. rows.wgsl comes first.

fn lifted_exp(x: F) -> F {
    // e^-104 rounds to zero.
    let limited = max(x, F(-104.0));
    let n = round(limited * LOG2_E);
    let r = (limited - n * LN_2_UPPER) - n * LN_2_LOWER;
    let q = (((r * 0.0014035056 + 0.008372283) * r + 0.041665554) * r + 0.16666488) * r + 0.5;
    let y = ((r * r) * q + r) + 1.0;
    return y * bitcast<F>((I(n) + I(151)) << U(23u));
}

const LOWER: f32 = 5.960464477539063e-8;

// The values that the elements of a row share: its greatest element m, and 1 / sum of the lifted exponentials, or the
// logarithm of the sum of the exponentials.
struct Common {
    greatest: f32,
    rest: f32,
}

// A row with NaN or infinity, or of -infinity alone, gives NaN.
fn common_of(key: u32, sum: f32) -> Common {
    let m = bits_of_key(key);
    let sound = (m & INFINITY_BITS) != INFINITY_BITS;
#if LOG
    let rest = ln_of(V(sum * LOWER)).x;
#else
    let rest = reciprocal(V(sum)).x;
#endif
    return Common(bitcast<f32>(select(0u, m, sound)), bitcast<f32>(select(NAN_BITS, bitcast<u32>(rest), sound)));
}
