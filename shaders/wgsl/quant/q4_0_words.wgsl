// Blocks of 18 bytes are in five words: a block of even number fills the first of them, one of odd number the last.
struct Raw {
    words: vec4<u32>,
    last: u32,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = (9u * block) >> 1u;
    return Raw(vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u)), word_at(at + 4u));
}

// The sixteen bytes of nibbles, and the scale.
fn nibbles_of(raw: Raw, block: u32) -> vec4<u32> {
    let next = vec4<u32>(raw.words.yzw, raw.last);
    let half = vec4<u32>(16u);
    return select((raw.words >> half) | (next << half), next, (block & 1u) != 0u);
}

fn scale_of(raw: Raw, block: u32) -> f32 {
    return unpack2x16float(raw.words.x >> (16u * (block & 1u))).x;
}
