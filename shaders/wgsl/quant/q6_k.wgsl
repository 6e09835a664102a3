#include words
const LEN: u32 = 256u;
const PARTS: u32 = 8u;
const APART: u32 = 64u;
const ZERO: f32 = 32.0;
const BIAS: i32 = 32;
const FLIPPED: u32 = 0u;

fn place(part: u32) -> u32 {
    return 128u * (part / 4u) + 16u * (part % 4u);
}

// The bytes of a part as they are loaded: sixteen from an even number on lie in four words and half of a fifth.
struct Bytes {
    q: Two,
    upper: Two,
}

struct Raw {
    bytes: Bytes,
    // The words of both scales, and of the unit.
    scales: vec2<u32>,
    unit: u32,
}

// The byte of the scale of the low sixteen; that of the high ones is four bytes after it.
fn scale_at(block: u32, part: u32) -> u32 {
    return 210u * block + 192u + 8u * (part / 4u) + part % 4u;
}

// The words where the bytes of both kinds begin: a half, a row of 32 elements in it (the other row is that of the high nibbles), and the
// first or last sixteen.
fn words_at(block: u32, part: u32) -> vec2<u32> {
    let bytes = vec2<u32>(16u * part, 128u + 32u * (part / 4u) + 16u * (part % 2u));
    return (vec2<u32>(210u * block) + bytes) >> vec2<u32>(2u);
}

fn bytes_of(block: u32, part: u32) -> Bytes {
    let at = words_at(block, part);
    return Bytes(load_five(at.x), load_five(at.y));
}

fn raw_of(block: u32, part: u32) -> Raw {
    let scales = scale_at(block, part) >> 2u;
    return Raw(
        bytes_of(block, part),
        vec2<u32>(word_at(scales), word_at(scales + 1u)),
        word_at((210u * block + 208u) >> 2u),
    );
}

fn joined(bytes: Bytes, block: u32, part: u32) -> Integers {
    // A block begins in the middle of a word if its number is odd.
    let odd = (block & 1u) != 0u;
    let row = (part / 2u) % 2u;
    let at = words_at(block, part);
    let of_q = five_of(bytes.q, at.x);
    let of_upper = five_of(bytes.upper, at.y);
    let q = sixteen_bytes(of_q.four, of_q.next, odd);
    let upper = sixteen_bytes(of_upper.four, of_upper.next, odd) >> vec4<u32>(2u * row);
    let four = vec4<u32>(0x0f0f0f0fu);
    return Integers(
        (q & four) | ((upper << vec4<u32>(4u)) & vec4<u32>(0x30303030u)),
        ((q >> vec4<u32>(4u)) & four) | (upper & vec4<u32>(0x30303030u)),
    );
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let q = joined(raw.bytes, block, part);
    let shift = 8u * (scale_at(block, part) & 3u);
    let unit = unpack2x16float(raw.unit >> (16u * (block & 1u))).x;
    let low_step = unit * f32(extractBits(bitcast<i32>(raw.scales.x), shift, 8u));
    let high_step = unit * f32(extractBits(bitcast<i32>(raw.scales.y), shift, 8u));
    return Part(q.low, q.high, vec4<f32>(low_step, 0.0, high_step, 0.0));
}
