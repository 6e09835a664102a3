// Arithmetic that gives the same bits on every device, for results that neither overflow nor are subnormal.
//
// A compiler may fuse a product and a sum, which rounds once instead of twice. So products are made by `fma` with a zero
// that is a parameter: nothing can be fused with that, and adding -0 changes nothing, fused or not. Quotients and roots,
// which devices round as they like, are mended by their remainders, in integers. A kernel has the parameter
// `negative_zero: f32`.

fn times(a: f32, b: f32) -> f32 {
    return fma(a, b, p.negative_zero);
}

fn times_each(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return fma(a, b, vec4<f32>(p.negative_zero));
}

// a / b, rounded to nearest even.
fn exact_quotient(a: f32, b: f32) -> f32 {
    let a_bits = bitcast<u32>(a);
    let b_bits = bitcast<u32>(b);
    if (a_bits & 0x7fffffffu) == 0u {
        return 0.0;
    }
    let n = (a_bits & 0x7fffffu) | 0x800000u;
    let d = (b_bits & 0x7fffffu) | 0x800000u;
    // n 2^shift = q d + r with q of 25 bits: one more than the result. The remainder of the estimate fits a word.
    let less = u32(n < d);
    let shift = 24u + less;
    var q = u32((f32(n) / f32(d)) * select(16777216.0, 33554432.0, less != 0u));
    var r = bitcast<i32>((n << shift) - q * d);
    let off = i32(floor(f32(r) / f32(d)));
    q = bitcast<u32>(bitcast<i32>(q) + off);
    r -= off * i32(d);
    if r < 0 {
        q -= 1u;
        r += i32(d);
    }
    if r >= i32(d) {
        q += 1u;
        r -= i32(d);
    }
    let up = (q & 1u) != 0u && (r != 0 || (q & 2u) != 0u);
    let exponent = ((a_bits >> 23u) & 255u) + 126u - ((b_bits >> 23u) & 255u) - less;
    return bitcast<f32>(((a_bits ^ b_bits) & 0x80000000u) | ((exponent << 23u) + (q >> 1u) + u32(up)));
}

// The root of x >= 0, rounded to nearest even.
fn exact_root(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if bits == 0u {
        return 0.0;
    }
    let n = (bits & 0x7fffffu) | 0x800000u;
    let exponent = i32(bits >> 23u) - 127;
    // x = n 2^shift 2^(even number) with the root of n 2^shift in 2^23..2^24. The remainder of the estimate fits a word.
    let odd = u32(exponent) & 1u;
    let shift = 23u + odd;
    var root = u32(sqrt(f32(n) * select(8388608.0, 16777216.0, odd != 0u)));
    var r = bitcast<i32>((n << shift) - root * root);
    while r < 0 {
        root -= 1u;
        r += i32(2u * root + 1u);
    }
    while r > i32(2u * root) {
        r -= i32(2u * root + 1u);
        root += 1u;
    }
    // Beyond the middle between two integers; never on it.
    root += u32(r > i32(root));
    let biased = (exponent - i32(odd)) / 2 + 126;
    return bitcast<f32>((u32(biased) << 23u) + root);
}

// The f16 nearest to x factor for x >= 0 and a power of two, as bits; finite, and not zero unless x is. Among the subnormals
// the one above.
fn unit_bits(x: f32, factor: f32) -> u32 {
    if x <= 0.0 {
        return 0u;
    }
    let y = x * factor;
    if y < 6.103515625e-5 {
        return max(u32(ceil(y * 16777216.0)), 1u);
    }
    let bits = bitcast<u32>(y);
    return min(((bits + 0xfffu + ((bits >> 13u) & 1u)) >> 13u) - (112u << 10u), 0x7bffu);
}
