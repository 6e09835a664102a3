#include nibbles

const ZERO: f32 = 16.0;
const BIAS: i32 = 16;
const FLIPPED: u32 = 0u;

// A block is in six words: one of even number fills the first of them, one of odd number the last.
struct Raw {
    first: vec2<u32>,
    rest: vec4<u32>,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = (11u * block) >> 1u;
    let rest = vec4<u32>(word_at(at + 2u), word_at(at + 3u), word_at(at + 4u), word_at(at + 5u));
    return Raw(vec2<u32>(word_at(at), word_at(at + 1u)), rest);
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let odd = (block & 1u) != 0u;
    let before = vec4<u32>(raw.first.y, raw.rest.xyz);
    let half = vec4<u32>(16u);
    let q = select((before >> half) | (raw.rest << half), raw.rest, odd);
    let fifth = select((raw.first.x >> 16u) | (raw.first.y << 16u), raw.first.y, odd);
    let scale = unpack2x16float(raw.first.x >> (16u * (block & 1u))).x;
    let low = low_nibbles(q) | fifth_bits(fifth);
    return Part(low, high_nibbles(q) | fifth_bits(fifth >> 16u), vec4<f32>(scale, 0.0, scale, 0.0));
}
