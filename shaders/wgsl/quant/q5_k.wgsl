#include q_affine

struct Raw {
    q: vec4<u32>,
    fifth: vec4<u32>,
    head: vec4<u32>,
}

fn raw_of(block: u32, part: u32) -> Raw {
    let at = 11u * block;
    return Raw(blocks_at(at + 3u + part), blocks_at(at + 1u + part % 2u), blocks_at(at));
}

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let pair = part / 2u;
    let fifth = raw.fifth >> vec4<u32>(2u * pair);
    let four = vec4<u32>(0x0f0f0f0fu);
    let low = (raw.q & four) | ((fifth << vec4<u32>(4u)) & vec4<u32>(0x10101010u));
    let high = ((raw.q >> vec4<u32>(4u)) & four) | ((fifth << vec4<u32>(3u)) & vec4<u32>(0x10101010u));
    return Part(low, high, steps_of(raw.head, pair));
}
