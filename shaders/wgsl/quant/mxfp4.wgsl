#include nibbles

const BOOK_0: u32 = 0x83828180u;
const BOOK_1: u32 = 0x8c888684u;
const BOOK_2: u32 = 0x7d7e7f80u;
const BOOK_3: u32 = 0x74787a7cu;
#include book

// A block of 17 bytes lies in five words, from any byte of the first on.
struct Raw {
    words: vec4<u32>,
    last: u32,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = (17u * block) >> 2u;
    return Raw(vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u)), word_at(at + 4u));
}

// Steps are four times the scale, which then is no subnormal number, but for the greatest one: that comes in two factors.
fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    // The byte of the scale; nibbles begin after it, in the next word if it is the last of its own.
    let byte = block & 3u;
    let next = vec4<u32>(raw.words.yzw, raw.last);
    let down = vec4<u32>(8u * ((byte + 1u) & 3u));
    let up = vec4<u32>(8u * (3u - byte));
    let q = select((raw.words >> down) | (next << up), next, byte == 3u);
    let e = (raw.words.x >> (8u * byte)) & 255u;
    let step = bitcast<f32>(select((min(e, 253u) + 1u) << 23u, NAN_BITS, e == 255u));
    let factor = select(1.0, 2.0, e == 254u);
    let steps = vec4<f32>(step, factor, step, factor);
    return Part(all_looked_up(low_nibbles(q)), all_looked_up(high_nibbles(q)), steps);
}
