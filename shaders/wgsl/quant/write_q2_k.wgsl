// Words of blocks of Q2_K: the units come last.
fn word_of(block: u32, i: u32) -> u32 {
    if i == UNIT_WORD {
        return unit_words[block];
    }
    if i < 4u {
        var word = 0u;
        for (var j = 0u; j < 4u; j++) {
            let sub = 4u * i + j;
            word |= (code_byte(block, sub, false) | (code_byte(block, sub, true) << 4u)) << (8u * j);
        }
        return word;
    }
    let units = unpack2x16float(unit_words[block]) * lift_of(atomicLoad(&tops[block]));
    // Four rows of a half share its bytes.
    var word = 0u;
    for (var row = 0u; row < 4u; row++) {
        let vector = 32u * ((i - 4u) / 8u) + 8u * row + (i - 4u) % 8u;
        word |= (coded(64u * block + vector, SUBS * block + vector / 4u, units) & 0x03030303u) << (2u * row);
    }
    return word;
}
