// Powers: 2^(b log2 a), with the logarithm and its product carried as sums of two numbers, because the exponential magnifies their
// errors a hundredfold. Factors that have at most twelve bits make products exact. math.wgsl comes first.

// 2^(b log2 a) for a positive finite a.
fn positive_power(a: V, b: V) -> V {
    // a is m 2^k with m in sqrt(1/2)..sqrt(2). A subnormal number is its bits times 2^-149, and these are converted, because a
    // device may take the number itself for zero wherever it computes with it.
    let tiny = bits(a) < Bits(0x00800000u);
    let lifted = bitcast<vec4<i32>>(select(a, V(bits(a)), tiny));
    let exponent = (lifted - vec4<i32>(0x3f3504f3)) >> vec4<u32>(23u);
    let m = bitcast<V>(lifted - (exponent << vec4<u32>(23u)));
    let k = V(exponent) - select(V(0.0), V(149.0), tiny);
    // q = (m - 1) / (m + 1) as a sum, its first part of twelve bits; what the part misses of m - 1 is exact.
    let m_1 = m - 1.0;
    let m_upper = upper(m_1);
    let q_upper = upper(m_1 / (m_1 + 2.0));
    let missing = kept(kept(m_1 - 2.0 * q_upper) - q_upper * m_upper) - q_upper * kept(m_1 - m_upper);
    let q_lower = missing / (m_1 + 2.0);
    // log2 m = 2 / ln 2 atanh q. The linear coefficient is in two parts, the first of twelve bits.
    let q = q_upper + q_lower;
    let square = q * q;
    var p = square * 0.37317756 + 0.40970993;
    p = p * square + 0.57712078;
    p = p * square + 0.96179646;
    let linear = q_upper * 2.884765625;
    let tail = (square * q) * p + (q_lower * 2.884765625 + q * 0.000624456777926702);
    // log2 a, again in two parts.
    let log_upper = upper(k + (linear + tail));
    let log_lower = kept(kept(k - log_upper) + linear) + tail;
    let b_upper = upper(b);
    let y = b_upper * log_upper;
    let y_lower = b_upper * log_lower + kept(b - b_upper) * (log_upper + log_lower);
    // Beyond it the power is 0 or infinite, and the rest may be NaN.
    let within = abs(y) < V(160.0);
    let whole = clamp(select(y, y + y_lower, within), V(-160.0), V(160.0));
    let n = round(whole);
    let f = select(V(0.0), kept(y - n) + y_lower, within);
    // 2^f - 1
    var r = f * 0.00017148428 + 0.0013423698;
    r = r * f + 0.009612299;
    r = r * f + 0.055502597;
    r = r * f + 0.24022694;
    r = r * f + 0.69314724;
    return scaled(f * r + 1.0, n);
}

// a^b with the special values of pow in C.
fn power_of(a: V, b: V) -> V {
    let base = bitcast<V>(bits(a) & Bits(0x7fffffffu));
    let infinity = infinity_signed_as(base);
    // Signs are read as bits: a device may take a subnormal number for zero where it compares.
    let positive = (bits(b) & Bits(0x80000000u)) == Bits(0u);
    var y = positive_power(base, b);
    y = select(y, select(infinity, V(0.0), positive), zeros(a));
    y = select(y, select(V(0.0), infinity, positive), infinities(a));
    y = select(y, V(1.0), base == V(1.0));
    // An odd exponent keeps the sign of the base; of a negative one that is finite there are integral powers alone.
    let whole = (abs(b) >= V(8388608.0)) | (trunc(b) == b);
    let even = (abs(b) >= V(16777216.0)) | (trunc(b * 0.5) == b * 0.5);
    y = select(y, signed_as(y, a), whole & !even);
    let negative = bits(a) > Bits(0x80000000u);
    y = select(y, nan_of(a), negative & !whole & finite(a));
    // NaN stays, but for the two rules that come first in C.
    y = keeping_nan(keeping_nan(y, a), b);
    return select(y, V(1.0), zeros(b) | (a == V(1.0)));
}
