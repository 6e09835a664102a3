// A reduction: the state of an element (A, for WIDTH elements at once), how two states are joined, and the result of
// the last one. S is the A of one element.
#include math
#include precise

#if WIDTH == 4
alias F = vec4<f32>;
alias U = vec4<u32>;
fn to_vector(x: F) -> V { return x; }
fn from_vector(x: V) -> F { return x; }
fn folded(a: A) -> S { return join(join(lane(a, 0u), lane(a, 1u)), join(lane(a, 2u), lane(a, 3u))); }
fn first_word(u: U) -> u32 { return u.x; }
#else
alias F = f32;
alias U = u32;
fn to_vector(x: F) -> V { return V(x); }
fn from_vector(x: V) -> F { return x.x; }
fn folded(a: A) -> S { return a; }
fn first_word(u: U) -> u32 { return u; }
#endif

fn magnitude_bits(x: F) -> U { return bitcast<U>(x) & U(0x7fffffffu); }

// Extremes are found among keys, which are integers: exact, whatever a device makes of NaN, zeros and subnormal numbers.
// The larger a number, the larger its key; that of NaN is the largest, also where the order is turned around.
fn rising(b: U) -> U { return b ^ ((U(0u) - (b >> U(31u))) | U(0x80000000u)); }
fn nan_first(key: U, x: F) -> U { return select(key, U(0xffffffffu), magnitude_bits(x) > U(INFINITY_BITS)); }
fn without_sign_of_zero(x: F) -> U { return select(bitcast<U>(x), U(0u), magnitude_bits(x) == U(0u)); }
// The bits of the number that `rising` made `risen` of; NaN where `key` is that of NaN.
fn number_of(risen: U, key: U) -> U {
    let b = select(~risen, risen ^ U(0x80000000u), risen >= U(0x80000000u));
    return select(b, U(NAN_BITS), key == U(0xffffffffu));
}

// A row of this table is a reduction: the file of its state, the state of an element, and the result of the last state.
#if REDUCTION == REDUCE_SUM
#include state_sum
fn element(x: F, position: U) -> A { return x; }
fn finished(a: A, count: u32) -> U { return bitcast<U>(a); }
#endif
#if REDUCTION == REDUCE_MEAN
#include state_sum
fn element(x: F, position: U) -> A { return x; }
fn finished(a: A, count: u32) -> U {
    if count == 0u {
        return U(NAN_BITS);
    }
    let mean = divided(to_vector(a), count);
    return bitcast<U>(from_vector(mean.high + mean.low));
}
#endif
#if REDUCTION == REDUCE_MAX
#include state_key
// The key of the infinity that is less than all.
fn nothing() -> A { return A(0x007fffffu); }
fn element(x: F, position: U) -> A { return nan_first(rising(bitcast<U>(x)), x); }
fn finished(a: A, count: u32) -> U { return number_of(a, a); }
#endif
#if REDUCTION == REDUCE_MIN
#include state_key
// The key of the infinity that is greater than all.
fn nothing() -> A { return A(0x007fffffu); }
fn element(x: F, position: U) -> A { return nan_first(~rising(bitcast<U>(x)), x); }
fn finished(a: A, count: u32) -> U { return number_of(~a, a); }
#endif
#if REDUCTION == REDUCE_ARGMAX
#include state_position
fn element(x: F, position: U) -> A { return A(nan_first(rising(without_sign_of_zero(x)), x), position); }
fn finished(a: A, count: u32) -> U { return a.position; }
#endif
#if REDUCTION == REDUCE_ARGMIN
#include state_position
fn element(x: F, position: U) -> A { return A(nan_first(~rising(without_sign_of_zero(x)), x), position); }
fn finished(a: A, count: u32) -> U { return a.position; }
#endif
#if REDUCTION == REDUCE_PROD
#include state_product
fn element(x: F, position: U) -> A { return x; }
fn finished(a: A, count: u32) -> U { return bitcast<U>(a); }
#endif
#if REDUCTION == REDUCE_NORM_L1
#include state_sum
fn element(x: F, position: U) -> A { return bitcast<F>(magnitude_bits(x)); }
fn finished(a: A, count: u32) -> U { return bitcast<U>(a); }
#endif
#if REDUCTION == REDUCE_NORM_L2
#include state_squares
fn element(x: F, position: U) -> A { return square_of(x); }
fn finished(a: A, count: u32) -> U { return root_of(a); }
#endif
#if REDUCTION == REDUCE_NORM_LINF
#include state_key
fn nothing() -> A { return A(0u); }
fn element(x: F, position: U) -> A { return magnitude_bits(x); }
fn finished(a: A, count: u32) -> U { return a; }
#endif
