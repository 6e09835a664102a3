// The largest of keys, and the position of the first that has it.

const STATE_WORDS: u32 = 2u;

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
// a where there is an element, the neutral state elsewhere.
fn only(a: A, there: vec4<bool>) -> A {
    let none = nothing();
    return A(select(none.key, a.key, there), select(none.position, a.position, there));
}
#else
alias A = S;
fn joined(a: A, b: A) -> A { return join(a, b); }
fn lane(a: A, i: u32) -> S { return a; }
#endif
fn nothing() -> A { return A(U(0u), U(0xffffffffu)); }
fn spread(s: S) -> A { return A(U(s.key), U(s.position)); }
#if SUBGROUP
fn subgroup_joined(s: S) -> S {
    let key = subgroupMax(s.key);
    return S(key, subgroupMin(select(0xffffffffu, s.position, s.key == key)));
}
#endif
