const LEN: u32 = 32u;
const PARTS: u32 = 1u;
const APART: u32 = 16u;
const ZERO: f32 = 128.0;
const BIAS: i32 = 0;
const FLIPPED: u32 = 0x80808080u;

fn place(part: u32) -> u32 {
    return 0u;
}

// The scale and the integers are in nine words: a block of even number fills the first of them, one of odd number the
// last.
struct Raw {
    first: vec4<u32>,
    second: vec4<u32>,
    last: u32,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = (17u * block) >> 1u;
    let first = vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u));
    let second = vec4<u32>(word_at(at + 4u), word_at(at + 5u), word_at(at + 6u), word_at(at + 7u));
    return Raw(first, second, word_at(at + 8u));
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let odd = (block & 1u) != 0u;
    let first_next = vec4<u32>(raw.first.yzw, raw.second.x);
    let second_next = vec4<u32>(raw.second.yzw, raw.last);
    let half = vec4<u32>(16u);
    let low = select((raw.first >> half) | (first_next << half), first_next, odd);
    let high = select((raw.second >> half) | (second_next << half), second_next, odd);
    let scale = unpack2x16float(select(raw.first.x, raw.first.x >> 16u, odd)).x;
    // Signed bytes, made unsigned.
    let sign = vec4<u32>(0x80808080u);
    return Part(low ^ sign, high ^ sign, vec4<f32>(scale, 0.0, scale, 0.0));
}
