// Words of blocks that are not whole vectors: two vectors are loaded instead of up to five words. A product of one row of x has too few
// operations beside the loads to hide those that take the words out of the vectors.

struct Two {
    first: vec4<u32>,
    second: vec4<u32>,
}

struct Five {
    four: vec4<u32>,
    next: u32,
}

// Loads word `at` and the four after it. The last may lie behind all blocks.
fn load_five(at: u32) -> Two {
#if ROWS == 1
    return Two(four_words(at), vec4<u32>(word_at(at + 4u), 0u, 0u, 0u));
#else
    let first = at >> 2u;
    return Two(blocks[first], blocks[min(first + 1u, arrayLength(&blocks) - 1u)]);
#endif
}

// The loaded vectors as words.
fn five_of(loaded: Two, at: u32) -> Five {
#if ROWS == 1
    return Five(loaded.first, loaded.second.x);
#else
    let a = loaded.first;
    let b = loaded.second;
    let two = (at & 2u) != 0u;
    let one = (at & 1u) != 0u;
    let low = select(a, vec4<u32>(a.zw, b.xy), two);
    let high = select(b.xy, b.zw, two);
    return Five(select(low, vec4<u32>(low.yzw, high.x), one), select(high.x, high.y, one));
#endif
}

fn five_words(at: u32) -> Five {
    return five_of(load_five(at), at);
}

fn four_words(at: u32) -> vec4<u32> {
#if ROWS == 1
    return vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u));
#else
    return five_words(at).four;
#endif
}

// Sixteen bytes that begin in the middle of a word if `odd`.
fn sixteen_bytes(words: vec4<u32>, next: u32, odd: bool) -> vec4<u32> {
    let shifted = vec4<u32>(words.yzw, next);
    return select(words, (words >> vec4<u32>(16u)) | (shifted << vec4<u32>(16u)), odd);
}
