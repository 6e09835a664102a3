#include nibbles

const ZERO: f32 = 0.0;
const BIAS: i32 = 0;
const FLIPPED: u32 = 0u;

struct Raw {
    units: u32,
    q: vec4<u32>,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = 5u * block;
    return Raw(word_at(at), vec4<u32>(word_at(at + 1u), word_at(at + 2u), word_at(at + 3u), word_at(at + 4u)));
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let units = unpack2x16float(raw.units);
    // The offset is added, where `Part` subtracts its least.
    return Part(low_nibbles(raw.q), high_nibbles(raw.q), vec4<f32>(units.x, -units.y, units.x, -units.y));
}
