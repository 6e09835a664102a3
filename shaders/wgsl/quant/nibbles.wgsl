// Nibbles and fifth bits of 32 elements: byte j of sixteen holds element j in its low and element j + 16 in its high nibble,
// bit i of a word the fifth bit of element i.
const LEN: u32 = 32u;
const PARTS: u32 = 1u;
const APART: u32 = 16u;

fn place(part: u32) -> u32 {
    return 0u;
}

fn low_nibbles(q: vec4<u32>) -> vec4<u32> {
    return q & vec4<u32>(0x0f0f0f0fu);
}

fn high_nibbles(q: vec4<u32>) -> vec4<u32> {
    return (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
}

// Sixteen bits, each as the fifth bit of a byte.
fn fifth_bits(bits: u32) -> vec4<u32> {
    let fours = (vec4<u32>(bits) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    return ((fours * 0x00204081u) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
}
