#include nibbles

const ZERO: f32 = 0.0;
const BIAS: i32 = 0;
const FLIPPED: u32 = 0u;

struct Raw {
    units: u32,
    fifth: u32,
    q: vec4<u32>,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = 6u * block;
    let q = vec4<u32>(word_at(at + 2u), word_at(at + 3u), word_at(at + 4u), word_at(at + 5u));
    return Raw(word_at(at), word_at(at + 1u), q);
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let units = unpack2x16float(raw.units);
    let low = low_nibbles(raw.q) | fifth_bits(raw.fifth);
    let high = high_nibbles(raw.q) | fifth_bits(raw.fifth >> 16u);
    // The offset is added, where `Part` subtracts its least.
    return Part(low, high, vec4<f32>(units.x, -units.y, units.x, -units.y));
}
