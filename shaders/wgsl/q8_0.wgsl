const LEN: u32 = 32u;
const PARTS: u32 = 1u;
const APART: u32 = 16u;
const ZERO: f32 = 128.0;

fn place(part: u32) -> u32 {
    return 0u;
}

fn part_of(block: u32, part: u32) -> Part {
    // The scale and the integers lie in nine words, of which a block of even number fills the first, one of odd number
    // the last.
    let at = (17u * block) >> 1u;
    let odd = (block & 1u) != 0u;
    let first = vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u));
    let second = vec4<u32>(word_at(at + 4u), word_at(at + 5u), word_at(at + 6u), word_at(at + 7u));
    let first_next = vec4<u32>(first.yzw, second.x);
    let second_next = vec4<u32>(second.yzw, word_at(at + 8u));
    let half = vec4<u32>(16u);
    let low = select((first >> half) | (first_next << half), first_next, odd);
    let high = select((second >> half) | (second_next << half), second_next, odd);
    let scale = unpack2x16float(select(first.x, first.x >> 16u, odd)).x;
    // Signed bytes, made unsigned.
    let sign = vec4<u32>(0x80808080u);
    return Part(low ^ sign, high ^ sign, vec4<f32>(scale, 0.0, scale, 0.0));
}
