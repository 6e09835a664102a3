// Numbers rounded to TO_TYPE, f16 or bf16.

#if TO_TYPE == f16
// The nearest f16, the even one of two equally near. `pack2x16float` may round either way.
fn halves(x: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x);
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    // From 2^-14 on: what is cut off is rounded into the bits that stay, and 112 taken from the exponent.
    let odd = (magnitude >> vec4<u32>(13u)) & vec4<u32>(1u);
    let normal = (magnitude + vec4<u32>(0xfffu) + odd - vec4<u32>(0x38000000u)) >> vec4<u32>(13u);
    // Below: the last place of 1/2 is the step of subnormal f16, so a sum with it rounds to that.
    let sum = bitcast<vec4<f32>>(min(magnitude, vec4<u32>(0x38800000u))) + vec4<f32>(0.5);
    let subnormal = bitcast<vec4<u32>>(sum) - vec4<u32>(0x3f000000u);
    let finite = select(normal, subnormal, magnitude < vec4<u32>(0x38800000u));
    // 65520 is the middle between the greatest f16 and what would be next.
    let large = select(finite, vec4<u32>(0x7c00u), magnitude >= vec4<u32>(0x477ff000u));
    let half = select(large, vec4<u32>(0x7e00u), magnitude > vec4<u32>(0x7f800000u));
    return half | ((bits >> vec4<u32>(16u)) & vec4<u32>(0x8000u));
}
#endif
#if TO_TYPE == bf16
// The nearest bf16, the even one of two equally near: half a unit less one, and one for odd numbers, carry where that rounds up.
fn halves(x: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x);
    let odd = (bits >> vec4<u32>(16u)) & vec4<u32>(1u);
    let rounded = (bits + vec4<u32>(0x7fffu) + odd) >> vec4<u32>(16u);
    let nan = (bits & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    return select(rounded, vec4<u32>(0x7fc0u), nan);
}
#endif

// Four halves as two words.
fn paired(h: vec4<u32>) -> vec2<u32> {
    return vec2<u32>(h.x | (h.y << 16u), h.z | (h.w << 16u));
}
