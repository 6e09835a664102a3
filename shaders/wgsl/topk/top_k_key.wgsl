// The key of a number: NaN has the largest. No key is zero: that is nothing.
#include float_order

fn key_of(b: u32) -> u32 {
    return select(rising(b), 0xffffffffu, stands_for_nan(b));
}
