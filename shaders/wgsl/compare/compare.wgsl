// out[i] = whether a comparison of a[i] and b[i] holds, a byte each. An invocation compares four. Operands repeat, from the element
// `first` on.
#trusted i is below `n`, and the place in an operand is taken modulo its length
#input a: array<u32>
#input b: array<u32>
#output out: array<u32>
#param n: u32
#param length_a: u32
#param first_a: u32
#param length_b: u32
#param first_b: u32
#constant COMPARISON = all
#constant STORED = f32, i32, u32
#include common

// The bits of an element as a number with the order of the elements.
#if STORED == i32
fn ordered(bits: u32) -> i32 {
    return bitcast<i32>(bits);
}
#endif
#if STORED == u32
fn ordered(bits: u32) -> u32 {
    return bits;
}
#endif
#if STORED == f32
// Both zeros are 0. A comparison of floats may take subnormal numbers for zeros.
fn ordered(bits: u32) -> i32 {
    let magnitude = bitcast<i32>(bits & 0x7fffffffu);
    return select(magnitude, -magnitude, bits > 0x7fffffffu);
}
#endif

fn holds(first: u32, second: u32) -> bool {
#if STORED == f32
    if is_nan(bitcast<f32>(first)) || is_nan(bitcast<f32>(second)) {
#if COMPARISON == COMPARE_NE
        return true;
#else
        return false;
#endif
    }
#endif
    let x = ordered(first);
    let y = ordered(second);
#if COMPARISON == COMPARE_EQ
    return x == y;
#endif
#if COMPARISON == COMPARE_NE
    return x != y;
#endif
#if COMPARISON == COMPARE_LT
    return x < y;
#endif
#if COMPARISON == COMPARE_LE
    return x <= y;
#endif
#if COMPARISON == COMPARE_GT
    return x > y;
#endif
#if COMPARISON == COMPARE_GE
    return x >= y;
#endif
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
    var word = 0u;
    for (var lane = 0u; lane < 4u; lane += 1u) {
        let at = 4u * i + lane;
        let x = a[(at + p.first_a) % p.length_a];
        let y = b[(at + p.first_b) % p.length_b];
        word |= select(0u, 1u, holds(x, y)) << (8u * lane);
    }
    out[i] = word;
}
