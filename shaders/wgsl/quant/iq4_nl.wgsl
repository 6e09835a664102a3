#include nibbles
#include q4_0_words
#include book_normal

fn unpacked(raw: Raw, block: u32, part: u32) -> Part {
    let q = nibbles_of(raw, block);
    let scale = scale_of(raw, block);
    let steps = vec4<f32>(scale, 0.0, scale, 0.0);
    return Part(all_looked_up(low_nibbles(q)), all_looked_up(high_nibbles(q)), steps);
}
