// As `strided_copy`, of units of BYTES bytes, several to a word. With PAIRS an invocation writes both halves of a word, units of two bytes, which the
// innermost dimension, from an even place on, lays side by side. Otherwise invocations share words, and each replaces its own
// part of one without touching the other.
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
#constant BYTES = 1, 2
#include common
#include strided

// Units of a word, the bits of one, and a word with all of them.
const UNITS: u32 = 4u / ${BYTES}u;
const BITS: u32 = 8u * ${BYTES}u;
const MASK: u32 = (1u << BITS) - 1u;

fn unit_at(at: u32) -> u32 {
    return (x[at / UNITS] >> (BITS * (at % UNITS))) & MASK;
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
    atomicStore(&out[at.y / 2u], unit_at(at.x) | (unit_at(at.x + p.x_0) << 16u));
#else
    let at = places(i);
    let shift = BITS * (at.y % UNITS);
    atomicAnd(&out[at.y / UNITS], ~(MASK << shift));
    atomicOr(&out[at.y / UNITS], unit_at(at.x) << shift);
#endif
}
