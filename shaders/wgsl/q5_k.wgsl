#include q_affine

fn part_of(block: u32, part: u32) -> Part {
    let at = 11u * block;
    let pair = part / 2u;
    let fifth = blocks[at + 1u + part % 2u] >> vec4<u32>(2u * pair);
    let q = blocks[at + 3u + part];
    let four = vec4<u32>(0x0f0f0f0fu);
    let low = (q & four) | ((fifth << vec4<u32>(4u)) & vec4<u32>(0x10101010u));
    let high = ((q >> vec4<u32>(4u)) & four) | ((fifth << vec4<u32>(3u)) & vec4<u32>(0x10101010u));
    return Part(low, high, steps_of(blocks[at], pair));
}
