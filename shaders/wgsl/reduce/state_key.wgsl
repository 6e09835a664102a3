// The largest of keys.

alias A = U;
alias S = u32;
#include state_plain

fn joined(a: A, b: A) -> A { return max(a, b); }
fn join(a: S, b: S) -> S { return max(a, b); }
#if SUBGROUP
fn subgroup_joined(s: S) -> S { return subgroupMax(s); }
#endif
