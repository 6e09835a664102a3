// Copies strided units of two bytes or of one, PER to a word; `strided_copy` copies larger ones. With WHOLE an invocation writes
// all units of a word: in `out` they are adjacent along the innermost dimension and begin at a multiple of PER. Otherwise
// invocations share words, and each replaces its own part of one without touching the others.
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
#constant PER = 2, 4
#constant WHOLE = 0, 1
#include common
#include strided

const BITS: u32 = 32u / ${PER}u;
const MASK: u32 = 0xffffffffu >> (32u - BITS);

fn part_at(at: u32) -> u32 {
    return (x[at / ${PER}u] >> (BITS * (at % ${PER}u))) & MASK;
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
#if WHOLE
    let at = places(${PER}u * i);
    var word = part_at(at.x);
    for (var part = 1u; part < ${PER}u; part += 1u) {
        word |= part_at(at.x + part * p.x_0) << (BITS * part);
    }
    atomicStore(&out[at.y / ${PER}u], word);
#else
    let at = places(i);
    let shift = BITS * (at.y % ${PER}u);
    atomicAnd(&out[at.y / ${PER}u], ~(MASK << shift));
    atomicOr(&out[at.y / ${PER}u], part_at(at.x) << shift);
#endif
}
