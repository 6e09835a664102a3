#include q_affine

struct Raw {
    q: vec4<u32>,
    head: vec4<u32>,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = 9u * block;
    return Raw(blocks_at(at + 1u + part), blocks_at(at));
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let four = vec4<u32>(0x0f0f0f0fu);
    return Part(raw.q & four, (raw.q >> vec4<u32>(4u)) & four, steps_of(raw.head, part / 2u));
}
