// Products of elements with powers of two and with gamma, in which nothing is lost to subnormal numbers or overflows on the way. A source
// that includes this declares F, U and B: f32, u32 and bool, or their vectors.

// x 2^90, also where a device takes x for zero: a subnormal number is its bits times 2^-149.
fn lifted(x: F) -> F {
    let b = bitcast<U>(x);
    let magnitude = b & U(0x7fffffffu);
    let of_bits = bitcast<F>(bitcast<U>(F(magnitude) * 1.734723475976807e-18) | (b & U(0x80000000u)));
    return select(x * 1.2379400392853803e27, of_bits, magnitude < U(0x00800000u));
}

// ((x inverse) back) gamma. Factors above 1 come before what a device may take for zero, from 2^30 on with `back`; others after it.
fn weighed(x: F, inverse: f32, back: f32, gamma: F) -> F {
    let huge = abs(gamma) >= F(1073741824.0);
    let early = (abs(gamma) >= F(1.0)) & !huge;
    let first = select(F(inverse), inverse * gamma, early);
    return ((x * first) * select(F(back), back * gamma, huge)) * select(gamma, F(1.0), early | huge);
}
