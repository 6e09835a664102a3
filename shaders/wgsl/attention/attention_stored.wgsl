// Keys and values as they are stored, four elements at a time.
#include storage

#if BLOCKS
alias Stored = u32;
#else
alias Stored = Four_${STORED};
#endif

#if BLOCKS
// The offset of the bytes of four elements of Q8_0: blocks of 32 elements are 34 bytes, the scale first.
fn byte_of(i: u32) -> u32 {
    return (i / 8u) * 34u + 2u + 4u * (i % 8u);
}

// Four signed bytes times their scale. `word` has the bytes, or two of them in its upper half and the others in `next`; `first` is
// the word that the scale is in.
fn four_of(i: u32, word: u32, next: u32, first: u32) -> vec4<f32> {
    let odd = (i / 8u) % 2u == 1u;
    let bytes = select((word >> 16u) | (next << 16u), word, odd);
    let scale = unpack2x16float(select(first, first >> 16u, odd)).x;
    return scale * vec4<f32>(load_i8(bytes));
}

// The scale of a block of even number is in the lower half of a word, and its bytes begin in the upper one.
fn key(i: u32) -> vec4<f32> {
    let at = byte_of(i) / 4u;
    return four_of(i, k[at], k[at + 1u - (i / 8u) % 2u], k[(i / 8u) * 34u / 4u]);
}

fn value(i: u32) -> vec4<f32> {
    let at = byte_of(i) / 4u;
    return four_of(i, v[at], v[at + 1u - (i / 8u) % 2u], v[(i / 8u) * 34u / 4u]);
}
#else
fn key(i: u32) -> vec4<f32> {
    return load_${STORED}(k[i]);
}

fn value(i: u32) -> vec4<f32> {
    return load_${STORED}(v[i]);
}
#endif

// A sum with a value times its weight, which is below zero where the query does not see the key.
fn added(sum: vec4<f32>, w: f32, y: vec4<f32>) -> vec4<f32> {
    if w < 0.0 {
        return sum;
    }
    return fma(vec4<f32>(w), y, sum);
}
