// Words of blocks of Q4_K and Q5_K.

// Four codes of a kind, the lower sub-blocks' whole, with two bits of the upper ones' above.
fn code_word(block: u32, minimum: bool) -> u32 {
    var word = 0u;
    for (var i = 0u; i < 4u; i++) {
        word |= (code_byte(block, i, minimum) | ((code_byte(block, i + 4u, minimum) >> 4u) << 6u)) << (8u * i);
    }
    return word;
}

fn lower_codes(block: u32) -> u32 {
    var word = 0u;
    for (var i = 4u; i < 8u; i++) {
        let codes = (code_byte(block, i, false) & 15u) | ((code_byte(block, i, true) & 15u) << 4u);
        word |= codes << (8u * (i - 4u));
    }
    return word;
}

fn word_of(block: u32, i: u32) -> u32 {
    if i == 0u {
        return unit_words[block];
    }
    if i == 1u || i == 2u {
        return code_word(block, i == 2u);
    }
    if i == 3u {
        return lower_codes(block);
    }
    let units = unpack2x16float(unit_words[block]) * lift_of(atomicLoad(&tops[block]));
#if FORMAT == Q5_K
    if i < 12u {
        var word = 0u;
        for (var sub = 0u; sub < 8u; sub++) {
            let q = coded(64u * block + 8u * sub + i - 4u, 8u * block + sub, units);
            word |= ((q >> 4u) & 0x01010101u) << sub;
        }
        return word;
    }
    let j = i - 12u;
#else
    let j = i - 4u;
#endif
    // A pair of sub-blocks, and four elements in each.
    let pair = j / 8u;
    let vector = 64u * block + 16u * pair + j % 8u;
    let low = coded(vector, 8u * block + 2u * pair, units) & 0x0f0f0f0fu;
    let high = coded(vector + 8u, 8u * block + 2u * pair + 1u, units) & 0x0f0f0f0fu;
    return low | (high << 4u);
}
