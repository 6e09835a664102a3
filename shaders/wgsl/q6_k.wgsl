const LEN: u32 = 256u;
const PARTS: u32 = 8u;
const APART: u32 = 64u;
const ZERO: f32 = 32.0;

fn place(part: u32) -> u32 {
    return 128u * (part / 4u) + 16u * (part % 4u);
}

// Sixteen bytes from an even number on.
fn sixteen_bytes(byte: u32) -> vec4<u32> {
    let at = byte >> 2u;
    let words = vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u));
    let next = vec4<u32>(words.yzw, word_at(at + 4u));
    return select(words, (words >> vec4<u32>(16u)) | (next << vec4<u32>(16u)), (byte & 2u) != 0u);
}

fn part_of(block: u32, part: u32) -> Part {
    let byte = 210u * block;
    // A half, a row of 32 elements in it (the other row is that of the high nibbles), and the first or last sixteen.
    let half = part / 4u;
    let row = (part / 2u) % 2u;
    let side = part % 2u;
    let q = sixteen_bytes(byte + 16u * part);
    let upper = sixteen_bytes(byte + 128u + 32u * half + 16u * side) >> vec4<u32>(2u * row);
    let four = vec4<u32>(0x0f0f0f0fu);
    let low = (q & four) | ((upper << vec4<u32>(4u)) & vec4<u32>(0x30303030u));
    let high = ((q >> vec4<u32>(4u)) & four) | (upper & vec4<u32>(0x30303030u));
    let at = byte + 192u + 8u * half + 2u * row + side;
    let unit = unpack2x16float(word_at((byte + 208u) >> 2u) >> (8u * (byte & 2u))).x;
    let low_step = unit * f32(extractBits(bitcast<i32>(word_at(at >> 2u)), 8u * (at & 3u), 8u));
    let high_step = unit * f32(extractBits(bitcast<i32>(word_at((at + 4u) >> 2u)), 8u * (at & 3u), 8u));
    return Part(low, high, vec4<f32>(low_step, 0.0, high_step, 0.0));
}
