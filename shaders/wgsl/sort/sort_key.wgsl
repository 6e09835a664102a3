// The key of an element: for top-k of a number, NaN having the largest; with SORTED of any element, in ascending or
// descending order, and the least for NaN, which comes last.
#if SORTED
#if STORED == f32
#include float_order

fn key_of(b: u32) -> u32 {
#if ASCENDING
    return select(~rising(b), 0u, stands_for_nan(b));
#else
    return select(rising(b), 0u, stands_for_nan(b));
#endif
}
#else
fn key_of(b: u32) -> u32 {
#if STORED == i32
    let rising = b ^ 0x80000000u;
#else
    let rising = b;
#endif
#if ASCENDING
    return ~rising;
#else
    return rising;
#endif
}
#endif
#else
#include top_k_key
#endif
