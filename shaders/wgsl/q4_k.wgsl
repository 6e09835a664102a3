#include q_affine

fn part_of(block: u32, part: u32) -> Part {
    let at = 9u * block;
    let q = blocks[at + 1u + part];
    let four = vec4<u32>(0x0f0f0f0fu);
    return Part(q & four, (q >> vec4<u32>(4u)) & four, steps_of(blocks[at], part / 2u));
}
