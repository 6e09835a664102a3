// Words of a block, the last half full, and sub-blocks.
const WORDS: u32 = 53u;
const ENDS_IN_HALF: bool = true;
const UNIT_WORD: u32 = 52u;
const SUBS: u32 = 16u;
// The least code of a scale.
const LEAST_CODE: f32 = -128.0;

// Word `i` of a block; the unit is the last half word.
fn word_of(i: u32, unit_word: u32, unit: f32) -> u32 {
    if i < 32u {
        // Low nibbles: row `row` of a half, and the row after the next above it.
        let row = (i / 8u) % 2u;
        let vector = 32u * (i / 16u) + 8u * row + i % 8u;
        let low = coded(vector, vector / 4u, unit) & 0x0f0f0f0fu;
        let high = coded(vector + 16u, vector / 4u + 4u, unit) & 0x0f0f0f0fu;
        return low | (high << 4u);
    }
    if i < 48u {
        // Two high bits of each of the four rows of a half.
        var word = 0u;
        for (var row = 0u; row < 4u; row++) {
            let vector = 32u * ((i - 32u) / 8u) + 8u * row + i % 8u;
            word |= ((coded(vector, vector / 4u, unit) >> 4u) & 0x03030303u) << (2u * row);
        }
        return word;
    }
    if i < 52u {
        var word = 0u;
        for (var j = 0u; j < 4u; j++) {
            word |= (bitcast<u32>(i32(chosen[4u * (i - 48u) + j])) & 255u) << (8u * j);
        }
        return word;
    }
    return unit_word;
}
