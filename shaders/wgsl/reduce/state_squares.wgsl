// Three sums of squares: of numbers whose squares are safe as they are, of larger ones times 2^-96, of smaller ones times
// 2^96. Each has room for 2^32 terms.

const STATE_WORDS: u32 = 3u;

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
// a where there is an element, the neutral state elsewhere.
fn only(a: A, there: vec4<bool>) -> A {
    let zero = F(0.0);
    return A(select(zero, a.plain, there), select(zero, a.large, there), select(zero, a.small, there));
}
#else
alias A = S;
fn joined(a: A, b: A) -> A { return join(a, b); }
fn lane(a: A, i: u32) -> S { return a; }
#endif
fn nothing() -> A { return A(F(0.0), F(0.0), F(0.0)); }
fn spread(s: S) -> A { return A(F(s.plain), F(s.large), F(s.small)); }
#if SUBGROUP
fn subgroup_joined(s: S) -> S { return S(subgroupAdd(s.plain), subgroupAdd(s.large), subgroupAdd(s.small)); }
#endif

fn square_of(x: F) -> A {
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

fn root_of(a: A) -> U {
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
