// A reduction: what an element becomes (A, for WIDTH elements at once), how two of those are joined, and what the last
// one means. S is the A of one element. OP is the number in the table of kiln-ir: 0 sum, 1 mean, 2 max, 3 min, 4 argmax,
// 5 argmin, 6 prod, 7 norm_l1, 8 norm_l2, 9 norm_linf.
#include math
#include precise

#if WIDTH == 4
alias F = vec4<f32>;
alias U = vec4<u32>;
fn to_vector(x: F) -> V { return x; }
fn from_vector(x: V) -> F { return x; }
#else
alias F = f32;
alias U = u32;
fn to_vector(x: F) -> V { return V(x); }
fn from_vector(x: V) -> F { return x.x; }
#endif

#if OP == 0, 1, 6, 7
alias A = F;
alias S = f32;

#if OP == 6
fn nothing() -> A { return A(1.0); }
fn joined(a: A, b: A) -> A { return a * b; }
fn join(a: S, b: S) -> S { return a * b; }
#if SUBGROUP
fn subgroup_joined(s: S) -> S { return subgroupMul(s); }
#endif
#else
fn nothing() -> A { return A(0.0); }
fn joined(a: A, b: A) -> A { return a + b; }
fn join(a: S, b: S) -> S { return a + b; }
#if SUBGROUP
fn subgroup_joined(s: S) -> S { return subgroupAdd(s); }
#endif
#endif

fn element(x: F, position: U) -> A {
#if OP == 7
    return bitcast<F>(bitcast<U>(x) & U(0x7fffffffu));
#else
    return x;
#endif
}
fn spread(s: S) -> A { return A(s); }
#if WIDTH == 4
fn lane(a: A, i: u32) -> S { return a[i]; }
#else
fn lane(a: A, i: u32) -> S { return a; }
#endif
fn finished(a: A, count: u32) -> U {
#if OP == 1
    if count == 0u {
        return U(NAN_BITS);
    }
    let mean = divided(to_vector(a), count);
    return bitcast<U>(from_vector(mean.high + mean.low));
#else
    return bitcast<U>(a);
#endif
}
#endif

// Extremes are found among keys, which are integers: exact, whatever a device makes of NaN, zeros and subnormal numbers.
#if OP == 2, 3, 4, 5
// The larger the number (the smaller, if the least is looked for), the larger the key; that of NaN is the largest.
fn key_of(x: F) -> U {
    let plain = bitcast<U>(x);
    let magnitude = plain & U(0x7fffffffu);
#if OP == 4, 5
    // -0 equals +0.
    let b = select(plain, U(0u), magnitude == U(0u));
#else
    let b = plain;
#endif
    let rising = b ^ ((U(0u) - (b >> U(31u))) | U(0x80000000u));
#if OP == 3, 5
    return select(~rising, U(0xffffffffu), magnitude > U(INFINITY_BITS));
#else
    return select(rising, U(0xffffffffu), magnitude > U(INFINITY_BITS));
#endif
}
#endif

#if OP == 2, 3, 9
alias A = U;
alias S = u32;
#if OP == 9
fn nothing() -> A { return A(0u); }
fn element(x: F, position: U) -> A { return bitcast<U>(x) & U(0x7fffffffu); }
fn finished(a: A, count: u32) -> U { return a; }
#else
// The key of the infinity that is less than all.
fn nothing() -> A { return A(0x007fffffu); }
fn element(x: F, position: U) -> A { return key_of(x); }
fn finished(a: A, count: u32) -> U {
#if OP == 3
    let rising = ~a;
#else
    let rising = a;
#endif
    let b = select(~rising, rising ^ U(0x80000000u), rising >= U(0x80000000u));
    return select(b, U(NAN_BITS), a == U(0xffffffffu));
}
#endif
fn joined(a: A, b: A) -> A { return max(a, b); }
fn join(a: S, b: S) -> S { return max(a, b); }
fn spread(s: S) -> A { return A(s); }
#if WIDTH == 4
fn lane(a: A, i: u32) -> S { return a[i]; }
#else
fn lane(a: A, i: u32) -> S { return a; }
#endif
#if SUBGROUP
fn subgroup_joined(s: S) -> S { return subgroupMax(s); }
#endif
#endif

#if OP == 4, 5
struct S {
    key: u32,
    position: u32,
}
fn join(a: S, b: S) -> S {
    let second = (b.key > a.key) | ((b.key == a.key) & (b.position < a.position));
    return S(select(a.key, b.key, second), select(a.position, b.position, second));
}
#if WIDTH == 4
struct A {
    key: U,
    position: U,
}
fn joined(a: A, b: A) -> A {
    let second = (b.key > a.key) | ((b.key == a.key) & (b.position < a.position));
    return A(select(a.key, b.key, second), select(a.position, b.position, second));
}
fn lane(a: A, i: u32) -> S { return S(a.key[i], a.position[i]); }
#else
alias A = S;
fn joined(a: A, b: A) -> A { return join(a, b); }
fn lane(a: A, i: u32) -> S { return a; }
#endif
fn nothing() -> A { return A(U(0u), U(0xffffffffu)); }
fn element(x: F, position: U) -> A { return A(key_of(x), position); }
fn spread(s: S) -> A { return A(U(s.key), U(s.position)); }
fn finished(a: A, count: u32) -> U { return a.position; }
#if SUBGROUP
fn subgroup_joined(s: S) -> S {
    let key = subgroupMax(s.key);
    return S(key, subgroupMin(select(0xffffffffu, s.position, s.key == key)));
}
#endif
#endif

#if OP == 8
// Three sums of squares: of numbers whose squares are safe as they are, of larger ones times 2^-96, of smaller ones times
// 2^96. Each has room for 2^32 terms.
struct S {
    plain: f32,
    large: f32,
    small: f32,
}
fn join(a: S, b: S) -> S { return S(a.plain + b.plain, a.large + b.large, a.small + b.small); }
#if WIDTH == 4
struct A {
    plain: F,
    large: F,
    small: F,
}
fn joined(a: A, b: A) -> A { return A(a.plain + b.plain, a.large + b.large, a.small + b.small); }
fn lane(a: A, i: u32) -> S { return S(a.plain[i], a.large[i], a.small[i]); }
#else
alias A = S;
fn joined(a: A, b: A) -> A { return join(a, b); }
fn lane(a: A, i: u32) -> S { return a; }
#endif
fn nothing() -> A { return A(F(0.0), F(0.0), F(0.0)); }
fn element(x: F, position: U) -> A {
    let magnitude = bitcast<U>(x) & U(0x7fffffffu);
    // From 2^46 on, infinities and NaN among them; below 2^-60.
    let large = magnitude >= U(0x56800000u);
    let small = magnitude < U(0x21800000u);
    let scaled = x * select(select(F(1.0), F(7.922816251426434e28), small), F(1.262177448353619e-29), large);
    // A subnormal number is its bits times 2^-149, also where a device takes it for zero.
    let lifted = select(scaled, F(magnitude) * 1.1102230246251565e-16, magnitude < U(0x00800000u));
    let square = lifted * lifted;
    return A(select(square, F(0.0), large | small), select(F(0.0), square, large), select(F(0.0), square, small));
}
fn spread(s: S) -> A { return A(F(s.plain), F(s.large), F(s.small)); }
fn finished(a: A, count: u32) -> U {
    let down = 1.262177448353619e-29;
    let any_large = bits(to_vector(a.large)) != Bits(0u);
    let any_plain = bits(to_vector(a.plain)) != Bits(0u);
    let with_large = to_vector(a.large) + kept(to_vector(a.plain) * down) * down;
    let with_plain = to_vector(a.plain) + kept(to_vector(a.small) * down) * down;
    let root = rooted(select(select(to_vector(a.small), with_plain, any_plain), with_large, any_large));
    // A subnormal result is made of its bits.
    let subnormal = Bits(round(min(root, V(1.0)) * 9007199254740992.0));
    let small = select(bits(root * down), subnormal, root < V(9.313225746154785e-10));
    let result = select(select(small, bits(root), any_plain), bits(root * 7.922816251426434e28), any_large);
    return bitcast<U>(from_vector(bitcast<V>(result)));
}
#if SUBGROUP
fn subgroup_joined(s: S) -> S { return S(subgroupAdd(s.plain), subgroupAdd(s.large), subgroupAdd(s.small)); }
#endif
#endif

#if WIDTH == 4
// a where it is there, elsewhere nothing.
fn only(a: A, there: vec4<bool>) -> A {
    let none = nothing();
#if OP == 4, 5
    return A(select(none.key, a.key, there), select(none.position, a.position, there));
#else
#if OP == 8
    let zero = F(0.0);
    return A(select(zero, a.plain, there), select(zero, a.large, there), select(zero, a.small, there));
#else
    return select(none, a, there);
#endif
#endif
}
fn folded(a: A) -> S { return join(join(lane(a, 0u), lane(a, 1u)), join(lane(a, 2u), lane(a, 3u))); }
fn first_word(u: U) -> u32 { return u.x; }
#else
fn folded(a: A) -> S { return a; }
fn first_word(u: U) -> u32 { return u; }
#endif
