// What the kernels of top-k share: candidates are a key and a position in the row, in descending order of keys, equals in
// ascending order of positions. WORKGROUP candidates times eight fit the memory of a workgroup.

const NOWHERE: u32 = 0xffffffffu;

// The larger the number, the larger the key: NaN has the largest, zeros have the same. No key is zero: that is nothing.
fn key_of(b: u32) -> u32 {
    let magnitude = b & 0x7fffffffu;
    let number = select(b, 0u, magnitude == 0u);
    let rising = number ^ ((0u - (number >> 31u)) | 0x80000000u);
    return select(rising, 0xffffffffu, magnitude > INFINITY_BITS);
}

struct Candidate {
    key: u32,
    position: u32,
}

fn before(a: Candidate, b: Candidate) -> bool {
    return (a.key > b.key) | ((a.key == b.key) & (a.position < b.position));
}
