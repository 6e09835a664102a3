#include nibbles
#include q4_0_words

const ZERO: f32 = 8.0;
const BIAS: i32 = 8;
const FLIPPED: u32 = 0u;

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let q = nibbles_of(raw, block);
    let scale = scale_of(raw, block);
    return Part(low_nibbles(q), high_nibbles(q), vec4<f32>(scale, 0.0, scale, 0.0));
}
