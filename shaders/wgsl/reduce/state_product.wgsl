// A product.

alias A = F;
alias S = f32;
#include state_plain

fn nothing() -> A { return A(1.0); }
fn joined(a: A, b: A) -> A { return a * b; }
fn join(a: S, b: S) -> S { return a * b; }
#if SUBGROUP
fn subgroup_joined(s: S) -> S { return subgroupMul(s); }
#endif
