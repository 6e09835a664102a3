// f16 as it is stored: two in a word, four in a vector of two words. This is plain WGSL, which asks for no arithmetic on f16.

fn widened(x: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(x.x), unpack2x16float(x.y));
}

// The f16 at a place, of the word that holds it.
fn half_at(word: u32, at: u32) -> f32 {
    let two = unpack2x16float(word);
    return select(two.x, two.y, at % 2u == 1u);
}

// The nearest f16, the even one of two equally near. `pack2x16float` may round either way.
fn half_bits(x: vec4<f32>) -> vec4<u32> {
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

fn narrowed(x: vec4<f32>) -> vec2<u32> {
    let half = half_bits(x);
    return vec2<u32>(half.x | (half.y << 16u), half.z | (half.w << 16u));
}
