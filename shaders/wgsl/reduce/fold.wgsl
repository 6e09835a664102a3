// The combination of two values in the tiled reductions of kiln-ir, bit for bit.

#if REDUCTION == REDUCE_SUM
fn identity() -> f32 { return 0.0; }
fn combined(a: f32, b: f32) -> f32 { return a + b; }
#else
// The key of a number grows with it.
fn rising(b: u32) -> u32 {
    return b ^ ((0u - (b >> 31u)) | 0x80000000u);
}
fn combined(a: f32, b: f32) -> f32 {
    let a_bits = bitcast<u32>(a);
    let b_bits = bitcast<u32>(b);
#if REDUCTION == REDUCE_MAX
    let result = select(a_bits, b_bits, rising(b_bits) > rising(a_bits));
    let nan = NAN_BITS;
#else
    let result = select(a_bits, b_bits, rising(b_bits) < rising(a_bits));
    let nan = NAN_BITS | 0x80000000u;
#endif
    return bitcast<f32>(select(result, nan, is_nan(a) | is_nan(b)));
}
// Infinity cannot be written: it is made of the bits of a variable.
fn identity() -> f32 {
#if REDUCTION == REDUCE_MAX
    var infinity = INFINITY_BITS | 0x80000000u;
#else
    var infinity = INFINITY_BITS;
#endif
    return bitcast<f32>(infinity);
}
#endif

fn combined4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(combined(a.x, b.x), combined(a.y, b.y), combined(a.z, b.z), combined(a.w, b.w));
}
