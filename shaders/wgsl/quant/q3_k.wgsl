#include words
const LEN: u32 = 256u;
const PARTS: u32 = 8u;
const APART: u32 = 16u;
const ZERO: f32 = 4.0;
const BIAS: i32 = 4;
const FLIPPED: u32 = 0u;

// A part is a row of 32 elements; four rows share bytes of low bits and eight share bytes of third bits.
fn place(part: u32) -> u32 {
    return 32u * part;
}

struct Raw {
    // Thirty-two bytes from an even number on lie in eight words and half of a ninth.
    low_q: vec4<u32>,
    high_q: vec4<u32>,
    low_third: vec4<u32>,
    high_third: vec4<u32>,
    next: vec2<u32>,
    // The words in which the codes and the unit lie.
    codes: vec4<u32>,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let byte = 110u * block;
    let third = byte >> 2u;
    let q = (byte + 32u + 32u * (part / 4u)) >> 2u;
    let high_q = five_words(q + 4u);
    let high_third = five_words(third + 4u);
    return Raw(
        four_words(q),
        high_q.four,
        four_words(third),
        high_third.four,
        vec2<u32>(high_q.next, high_third.next),
        four_words((byte + 96u) >> 2u),
    );
}

fn unit_of(raw: Raw, odd: bool) -> f32 {
    return unpack2x16float(select(raw.codes.w, raw.codes.w >> 16u, odd)).x;
}

// Codes 2 part and its neighbour, steps plus 32: four bits in neighbouring bytes of the first eight of twelve, two in neighbouring ones of
// the rest.
fn codes_of(raw: Raw, part: u32, odd: bool) -> vec2<u32> {
    let codes = sixteen_bytes(raw.codes, 0u, odd);
    let lower = select(codes.x, codes.y, (part & 2u) != 0u) >> (16u * (part & 1u) + 4u * (part / 4u));
    let upper = codes.z >> (16u * (part & 1u) + 2u * (part / 2u));
    let both = (lower & 0x0f0fu) | ((upper << 4u) & 0x3030u);
    return vec2<u32>(both & 63u, both >> 8u);
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    // A block begins in the middle of a word if its number is odd.
    let odd = (block & 1u) != 0u;
    let shift = vec4<u32>(2u * (part % 4u));
    let two = vec4<u32>(0x03030303u);
    let one = vec4<u32>(0x01010101u);
    let low_third = sixteen_bytes(raw.low_third, raw.high_third.x, odd) >> vec4<u32>(part);
    let high_third = sixteen_bytes(raw.high_third, raw.next.y, odd) >> vec4<u32>(part);
    let low = (sixteen_bytes(raw.low_q, raw.high_q.x, odd) >> shift) & two;
    let high = (sixteen_bytes(raw.high_q, raw.next.x, odd) >> shift) & two;
    let unit = unit_of(raw, odd);
    let steps = unit * (vec2<f32>(codes_of(raw, part, odd)) - vec2<f32>(32.0));
    return Part(
        low | ((low_third & one) << vec4<u32>(2u)),
        high | ((high_third & one) << vec4<u32>(2u)),
        vec4<f32>(steps.x, 0.0, steps.y, 0.0),
    );
}
