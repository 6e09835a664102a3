// A word with the order of the numbers: the larger the number of these bits, the larger the word; both zeros have the
// same. It is neither 0 nor the greatest word.
fn rising(b: u32) -> u32 {
    let number = select(b, 0u, (b & 0x7fffffffu) == 0u);
    return number ^ ((0u - (number >> 31u)) | 0x80000000u);
}

fn stands_for_nan(b: u32) -> bool {
    return (b & 0x7fffffffu) > INFINITY_BITS;
}
