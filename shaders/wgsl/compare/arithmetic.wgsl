// out[i] = a function of integers a[i] and b[i], of their type. An invocation computes four, which are a word of types of a byte.
// Operands repeat, from the element `first` on.
#trusted i is below `n`, buffers are whole vectors long, and the place in an operand is taken modulo its length
#input a: array<u32>
#input b: array<u32>
#output out: array<Four>
#param n: u32
#param length_a: u32
#param first_a: u32
#param length_b: u32
#param first_b: u32
#constant FUNCTION = all
#constant STORED = i32, u32, i8, u8
#include common

#if STORED == i32, u32
alias Four = vec4<u32>;

fn of_a(at: u32) -> u32 {
    return a[at];
}

fn of_b(at: u32) -> u32 {
    return b[at];
}
#else
alias Four = u32;

#if STORED == i8
fn extended(byte: u32) -> u32 {
    return bitcast<u32>(bitcast<i32>(byte << 24u) >> 24u);
}
#else
fn extended(byte: u32) -> u32 {
    return byte;
}
#endif

fn byte_of(word: u32, at: u32) -> u32 {
    return extended((word >> (8u * (at % 4u))) & 0xffu);
}

fn of_a(at: u32) -> u32 {
    return byte_of(a[at / 4u], at);
}

fn of_b(at: u32) -> u32 {
    return byte_of(b[at / 4u], at);
}
#endif

#if STORED == i32, i8
fn is_less(x: u32, y: u32) -> bool {
    return bitcast<i32>(x) < bitcast<i32>(y);
}
#else
fn is_less(x: u32, y: u32) -> bool {
    return x < y;
}
#endif

// Of integers of either sign sums, differences and products have the same bits.
fn result(x: u32, y: u32) -> u32 {
#if FUNCTION == INTEGER_ADD
    return x + y;
#endif
#if FUNCTION == INTEGER_SUB
    return x - y;
#endif
#if FUNCTION == INTEGER_MUL
    return x * y;
#endif
#if FUNCTION == INTEGER_MIN
    return select(x, y, is_less(y, x));
#endif
#if FUNCTION == INTEGER_MAX
    return select(x, y, is_less(x, y));
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
    var four = vec4<u32>();
    for (var lane = 0u; lane < 4u; lane += 1u) {
        let at = 4u * i + lane;
        four[lane] = result(of_a((at + p.first_a) % p.length_a), of_b((at + p.first_b) % p.length_b));
    }
#if STORED == i32, u32
    out[i] = four;
#else
    four = (four & vec4<u32>(0xffu)) << vec4<u32>(0u, 8u, 16u, 24u);
    out[i] = (four.x | four.y) | (four.z | four.w);
#endif
}
