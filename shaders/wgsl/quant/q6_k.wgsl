const LEN: u32 = 256u;
const PARTS: u32 = 8u;
const APART: u32 = 64u;
const ZERO: f32 = 32.0;
const BIAS: i32 = 32;
const FLIPPED: u32 = 0u;

fn place(part: u32) -> u32 {
    return 128u * (part / 4u) + 16u * (part % 4u);
}

struct Raw {
    // Sixteen bytes from an even number on lie in four words and half of a fifth.
    q: vec4<u32>,
    upper: vec4<u32>,
    next: vec2<u32>,
    // The words of both scales, and of the unit.
    scales: vec2<u32>,
    unit: u32,
}

fn four_words(at: u32) -> vec4<u32> {
    return vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u));
}

// The byte of the scale of the low sixteen; that of the high ones is four bytes after it.
fn scale_at(block: u32, part: u32) -> u32 {
    return 210u * block + 192u + 8u * (part / 4u) + part % 4u;
}

fn raw_of(block: u32, part: u32) -> Raw {
    let byte = 210u * block;
    // A half, a row of 32 elements in it (the other row is that of the high nibbles), and the first or last sixteen.
    let q = (byte + 16u * part) >> 2u;
    let upper = (byte + 128u + 32u * (part / 4u) + 16u * (part % 2u)) >> 2u;
    let scales = scale_at(block, part) >> 2u;
    return Raw(
        four_words(q),
        four_words(upper),
        vec2<u32>(word_at(q + 4u), word_at(upper + 4u)),
        vec2<u32>(word_at(scales), word_at(scales + 1u)),
        word_at((byte + 208u) >> 2u),
    );
}

fn sixteen_bytes(words: vec4<u32>, next: u32, odd: bool) -> vec4<u32> {
    let shifted = vec4<u32>(words.yzw, next);
    return select(words, (words >> vec4<u32>(16u)) | (shifted << vec4<u32>(16u)), odd);
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    // A block begins in the middle of a word if its number is odd.
    let odd = (block & 1u) != 0u;
    let row = (part / 2u) % 2u;
    let q = sixteen_bytes(raw.q, raw.next.x, odd);
    let upper = sixteen_bytes(raw.upper, raw.next.y, odd) >> vec4<u32>(2u * row);
    let four = vec4<u32>(0x0f0f0f0fu);
    let low = (q & four) | ((upper << vec4<u32>(4u)) & vec4<u32>(0x30303030u));
    let high = ((q >> vec4<u32>(4u)) & four) | (upper & vec4<u32>(0x30303030u));
    let shift = 8u * (scale_at(block, part) & 3u);
    let unit = unpack2x16float(raw.unit >> (16u * (block & 1u))).x;
    let low_step = unit * f32(extractBits(bitcast<i32>(raw.scales.x), shift, 8u));
    let high_step = unit * f32(extractBits(bitcast<i32>(raw.scales.y), shift, 8u));
    return Part(low, high, vec4<f32>(low_step, 0.0, high_step, 0.0));
}
