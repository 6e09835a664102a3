const LEN: u32 = 256u;
const PARTS: u32 = 8u;
const APART: u32 = 16u;
#include book_normal

// A part is a sub-block.
fn place(part: u32) -> u32 {
    return 32u * part;
}

struct Raw {
    q: vec4<u32>,
    head: vec2<u32>,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = 34u * block;
    let q = at + 2u + 4u * part;
    return Raw(
        vec4<u32>(word_at(q), word_at(q + 1u), word_at(q + 2u), word_at(q + 3u)),
        vec2<u32>(word_at(at), word_at(at + 1u)),
    );
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let code = ((raw.head.y >> (4u * part)) & 15u) | (((raw.head.x >> (16u + 2u * part)) & 3u) << 4u);
    let step = unpack2x16float(raw.head.x).x * (f32(code) - 32.0);
    let four = vec4<u32>(0x0f0f0f0fu);
    let steps = vec4<f32>(step, 0.0, step, 0.0);
    return Part(all_looked_up(raw.q & four), all_looked_up((raw.q >> vec4<u32>(4u)) & four), steps);
}
