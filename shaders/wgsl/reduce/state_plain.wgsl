// A state that is one word. A is F or U, S its element.

const STATE_WORDS: u32 = 1u;

fn spread(s: S) -> A { return A(s); }
#if WIDTH == 4
fn lane(a: A, i: u32) -> S { return a[i]; }
// a where there is an element, the neutral state elsewhere.
fn only(a: A, there: vec4<bool>) -> A { return select(nothing(), a, there); }
#else
fn lane(a: A, i: u32) -> S { return a; }
#endif
