// Words of a block, the last half full, and sub-blocks.
const WORDS: u32 = 28u;
const ENDS_IN_HALF: bool = true;
const UNIT_WORD: u32 = 27u;
const SUBS: u32 = 16u;
// The least code of a scale.
const LEAST_CODE: f32 = -32.0;

fn code_of(sub: u32) -> u32 {
    return u32(chosen[sub] + 32.0);
}

// Word `i` of a block; the unit is the last half word.
fn word_of(i: u32, unit_word: u32, unit: f32) -> u32 {
    var word = 0u;
    if i < 8u {
        // The third bit of each of the eight rows.
        for (var row = 0u; row < 8u; row++) {
            let vector = 8u * row + i;
            word |= ((coded(vector, vector / 4u, unit) >> 2u) & 0x01010101u) << row;
        }
        return word;
    }
    if i < 24u {
        // Two low bits of each of the four rows of a half.
        for (var row = 0u; row < 4u; row++) {
            let vector = 32u * ((i - 8u) / 8u) + 8u * row + i % 8u;
            word |= (coded(vector, vector / 4u, unit) & 0x03030303u) << (2u * row);
        }
        return word;
    }
    if i < 26u {
        // The low four bits of a code, and of the one eight after it.
        for (var j = 0u; j < 4u; j++) {
            let sub = 4u * (i - 24u) + j;
            word |= ((code_of(sub) & 15u) | ((code_of(sub + 8u) & 15u) << 4u)) << (8u * j);
        }
        return word;
    }
    if i < UNIT_WORD {
        // The high two bits of every fourth code.
        for (var sub = 0u; sub < SUBS; sub++) {
            word |= (code_of(sub) >> 4u) << (8u * (sub % 4u) + 2u * (sub / 4u));
        }
        return word;
    }
    return unit_word;
}
