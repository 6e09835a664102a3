#include words
const LEN: u32 = 256u;
const PARTS: u32 = 8u;
const APART: u32 = 16u;
const ZERO: f32 = 0.0;
const BIAS: i32 = 0;
const FLIPPED: u32 = 0u;

// A part is a row of 32 elements; four rows share bytes.
fn place(part: u32) -> u32 {
    return 32u * part;
}

struct Raw {
    low: vec4<u32>,
    high: vec4<u32>,
    // The word that holds both codes, and both units.
    codes: u32,
    units: u32,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = 21u * block;
    let q = at + 4u + 8u * (part / 4u);
    return Raw(four_words(q), four_words(q + 4u), word_at(at + part / 2u), word_at(at + 20u));
}

// The codes of a part: a scale and a minimum of four bits for the low sixteen, then those of the high ones.
fn codes_of(raw: Raw, part: u32) -> vec4<u32> {
    let codes = raw.codes >> (16u * (part & 1u));
    return vec4<u32>(codes, codes >> 4u, codes >> 8u, codes >> 12u) & vec4<u32>(15u);
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let shift = vec4<u32>(2u * (part % 4u));
    let two = vec4<u32>(0x03030303u);
    let units = unpack2x16float(raw.units);
    return Part((raw.low >> shift) & two, (raw.high >> shift) & two, vec4<f32>(codes_of(raw, part)) * units.xyxy);
}
