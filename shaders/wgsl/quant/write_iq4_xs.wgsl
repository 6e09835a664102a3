// Words and sub-blocks of a block.
const WORDS: u32 = 34u;
const ENDS_IN_HALF: bool = false;
const UNIT_WORD: u32 = 0u;
const SUBS: u32 = 8u;
// The least code of a scale.
const LEAST_CODE: f32 = -32.0;

// Word `i` of a block; the unit is the first half word.
fn word_of(i: u32, unit_word: u32, unit: f32) -> u32 {
    if i < 2u {
        // The high two bits of each code beside the unit, or the low four bits of each.
        var low = 0u;
        var high = 0u;
        for (var sub = 0u; sub < SUBS; sub++) {
            let code = u32(chosen[sub] + 32.0);
            low |= (code & 15u) << (4u * sub);
            high |= (code >> 4u) << (2u * sub);
        }
        return select(low, unit_word | (high << 16u), i == 0u);
    }
    let vector = 8u * ((i - 2u) / 4u) + (i - 2u) % 4u;
    return coded(vector, vector / 8u, unit) | (coded(vector + 4u, vector / 8u, unit) << 4u);
}
