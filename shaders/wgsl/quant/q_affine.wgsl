// Shared parts of Q4_K and Q5_K: scales and minima of six bits in the first sixteen bytes.
const LEN: u32 = 256u;
const PARTS: u32 = 8u;
const APART: u32 = 32u;
const ZERO: f32 = 0.0;
const BIAS: i32 = 0;
const FLIPPED: u32 = 0u;

fn place(part: u32) -> u32 {
    return 64u * (part / 2u) + 16u * (part % 2u);
}

// The codes of the steps of sub-blocks 2 pair and 2 pair + 1, and those of their minima, a byte each.
fn codes_of(head: vec4<u32>, pair: u32) -> u32 {
    // Both codes of a kind side by side: the lower two pairs have them whole, the upper two in parts.
    let shift = 16u * (pair & 1u);
    let upper = pair > 1u;
    let rest = head.w >> shift;
    let scales = select(head.y >> shift, (rest & 0x0f0fu) | ((head.y >> (shift + 2u)) & 0x3030u), upper);
    let minima = select(head.z >> shift, ((rest >> 4u) & 0x0f0fu) | ((head.z >> (shift + 2u)) & 0x3030u), upper);
    return (scales & 0x3f3fu) | ((minima & 0x3f3fu) << 16u);
}

// Steps and minima of sub-blocks 2 pair and 2 pair + 1.
fn steps_of(head: vec4<u32>, pair: u32) -> vec4<f32> {
    let units = unpack2x16float(head.x);
    let codes = numbers(codes_of(head, pair), 0.0);
    return vec4<f32>(units.x * codes.x, units.y * codes.z, units.x * codes.y, units.y * codes.w);
}
