// A word that is larger the larger the number that these bits stand for; the zeros have the same. It is neither 0 nor the greatest.
fn rising(b: u32) -> u32 {
    let number = select(b, 0u, (b & 0x7fffffffu) == 0u);
    return number ^ ((0u - (number >> 31u)) | 0x80000000u);
}

fn stands_for_nan(b: u32) -> bool {
    return (b & 0x7fffffffu) > INFINITY_BITS;
}
