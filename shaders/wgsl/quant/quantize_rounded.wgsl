// Writes f32 as blocks of Q8_0, 34 bytes each: 32 blocks a workgroup, four elements an invocation. Two blocks are 17 words.
#input x: array<vec4<f32>>
#output out: array<u32>
#param vectors: u32
#param words: u32
#param total: u32
#param negative_zero: f32
#include common
#include exact
#include fit

var<workgroup> tops: array<atomic<u32>, 32>;
var<workgroup> units: array<u32, 32>;
var<workgroup> integer_words: array<u32, 256>;

// x / d, rounded as the reference does: first to a number, then to an integer. Both agree with any quotient that is good to
// a few units unless that lies next to the middle of two integers.
fn rounded(x: f32, d: f32, inverse_of_d: f32) -> f32 {
    let quick = clamp(x * inverse_of_d, -127.0, 127.0);
    if abs(abs(quick - round(quick)) - 0.5) > 0.001 {
        return round(quick);
    }
    return round(clamp(exact_quotient(x, d), -127.0, 127.0));
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups);
    if number >= p.total {
        return;
    }
    if local < 32u {
        atomicStore(&tops[local], 0u);
    }
    workgroupBarrier();
    let vector = number * ${WORKGROUP}u + local;
    let block = local / 8u;
    var loaded = vec4<f32>(0.0);
    if vector < p.vectors {
        loaded = x[vector];
        atomicMax(&tops[block], top_of(loaded));
    }
    workgroupBarrier();
    let top = atomicLoad(&tops[block]);
    var word = 0u;
    var unit = 0u;
    if top >= INFINITY_BITS {
        unit = NOT_FINITE;
    } else if top >= bitcast<u32>(LEAST) {
        unit = unit_bits(exact_quotient(min(bitcast<f32>(top), MOST), 127.0), 1.0);
        let d = unpack2x16float(unit).x;
        let inverse_of_d = 1.0 / d;
        let y = clamp(loaded, vec4<f32>(-MOST), vec4<f32>(MOST));
        word = packed(vec4<f32>(rounded(y.x, d, inverse_of_d), rounded(y.y, d, inverse_of_d),
            rounded(y.z, d, inverse_of_d), rounded(y.w, d, inverse_of_d)));
    }
    integer_words[local] = word;
    if local % 8u == 0u {
        units[block] = unit;
    }
    workgroupBarrier();
    for (var i = local; i < 272u; i += ${WORKGROUP}u) {
        let at = number * 272u + i;
        if at < p.words {
            // Word `j` of a pair of blocks with the units a and b: a and the low half of the first integers, and so on.
            let pair = i / 17u;
            let j = i % 17u;
            let q = 16u * pair + j;
            var result: u32;
            if j > 8u {
                result = integer_words[q - 1u];
            } else {
                let before = select(integer_words[max(q, 1u) - 1u] >> 16u, units[2u * pair], j == 0u);
                let after = select(integer_words[min(q, 255u)], units[2u * pair + 1u], j == 8u);
                result = before | (after << 16u);
            }
            out[at] = result;
        }
    }
}
