// As `strided_copy`, of units of two bytes, two to a word. With PAIRS an invocation writes both halves of a word, which the
// innermost dimension, from an even place on, lays side by side. Otherwise invocations share words, and each replaces its own
// half of one without touching the other.
#trusted indices are below `n`, and the host has checked that both sides hold the units that they stand for
#input x: array<u32>
#output out: array<atomic<u32>>
#param n: u32
#param x_first: u32
#param out_first: u32
#param extent_0: u32
#param x_0: u32
#param out_0: u32
#param extent_1: u32
#param x_1: u32
#param out_1: u32
#param extent_2: u32
#param x_2: u32
#param out_2: u32
#param extent_3: u32
#param x_3: u32
#param out_3: u32
#param extent_4: u32
#param x_4: u32
#param out_4: u32
#param x_5: u32
#param out_5: u32
#constant RANK = 1, 2, 3, 6
#constant PAIRS = 0, 1
#include common
#include strided

fn half_at(at: u32) -> u32 {
    return (x[at / 2u] >> (16u * (at % 2u))) & 0xffffu;
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i >= p.n {
        return;
    }
#if PAIRS
    let at = places(2u * i);
    atomicStore(&out[at.y / 2u], half_at(at.x) | (half_at(at.x + p.x_0) << 16u));
#else
    let at = places(i);
    let shift = 16u * (at.y % 2u);
    atomicAnd(&out[at.y / 2u], ~(0xffffu << shift));
    atomicOr(&out[at.y / 2u], half_at(at.x) << shift);
#endif
}
