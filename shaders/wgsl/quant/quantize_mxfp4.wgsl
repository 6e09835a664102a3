// Writes f32 as blocks of MXFP4: `mxfp4::encode` of kiln-ir. An invocation makes a block, a workgroup as many whole words.
#input x: array<vec4<f32>>
#output out: array<u32>
#param block_count: u32
#param words: u32
#param total: u32
#param negative_zero: f32
#include common
#include exact
#include fit

// The bits of 2^-96, below which a block is zeros, and the greatest exponent that is written.
const LEAST_BITS: u32 = 0x0f800000u;
const MOST_EXPONENT: u32 = 252u;

var<workgroup> exponents: array<u32, ${WORKGROUP}u>;
var<workgroup> nibble_words: array<u32, 4u * ${WORKGROUP}u>;

// The nearest numbers of the grid; halfway the one nearer to zero.
fn nearest(y: vec4<f32>) -> vec4<f32> {
    let m = abs(y);
    var q = select(vec4<f32>(0.0), vec4<f32>(1.0), m > vec4<f32>(0.5));
    q = select(q, vec4<f32>(2.0), m > vec4<f32>(1.5));
    q = select(q, vec4<f32>(3.0), m > vec4<f32>(2.5));
    q = select(q, vec4<f32>(4.0), m > vec4<f32>(3.5));
    q = select(q, vec4<f32>(6.0), m > vec4<f32>(5.0));
    q = select(q, vec4<f32>(8.0), m > vec4<f32>(7.0));
    q = select(q, vec4<f32>(12.0), m > vec4<f32>(10.0));
    return select(q, -q, y < vec4<f32>(0.0));
}

// The places of four numbers of the grid, a byte each.
fn places(q: vec4<f32>) -> u32 {
    let m = abs(q);
    // Numbers up to 4 are their places; 6, 8 and 12 follow.
    var place = min(m, vec4<f32>(4.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), m > vec4<f32>(5.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), m > vec4<f32>(7.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), m > vec4<f32>(10.0));
    return packed(place + select(vec4<f32>(0.0), vec4<f32>(8.0), q < vec4<f32>(0.0)));
}

fn squares(y: vec4<f32>) -> vec4<f32> {
    let off = y - nearest(y);
    return times_each(off, off);
}

// Four elements in units of the lower scale; what is far below the grid is zero.
fn scaled(x: vec4<f32>, inverse_of_scale: f32) -> vec4<f32> {
    let y = x * inverse_of_scale * 2.0;
    return select(y, vec4<f32>(0.0), abs(y) < vec4<f32>(9.5367431640625e-7));
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
    let block = number * ${WORKGROUP}u + local;
    var top = 0u;
    if block < p.block_count {
        for (var i = 0u; i < 8u; i++) {
            top = max(top, top_of(x[8u * block + i]));
        }
    }
    var exponent = 0u;
    var words = vec4<u32>(0u);
    if top >= INFINITY_BITS {
        exponent = 255u;
    } else if top >= LEAST_BITS {
        let lower = (top >> 23u) - 2u;
        let inverse_of_scale = bitcast<f32>((254u - lower) << 23u);
        var fine_even = vec4<f32>(0.0);
        var fine_odd = vec4<f32>(0.0);
        var coarse_even = vec4<f32>(0.0);
        var coarse_odd = vec4<f32>(0.0);
        for (var i = 0u; i < 8u; i += 2u) {
            let y0 = scaled(x[8u * block + i], inverse_of_scale);
            let y1 = scaled(x[8u * block + i + 1u], inverse_of_scale);
            fine_even += squares(y0);
            fine_odd += squares(y1);
            coarse_even += squares(y0 * 0.5);
            coarse_odd += squares(y1 * 0.5);
        }
        let is_coarse = lower < MOST_EXPONENT
            && total(coarse_even, coarse_odd) * 4.0 < total(fine_even, fine_odd);
        let factor = select(1.0, 0.5, is_coarse);
        exponent = lower + u32(is_coarse);
        for (var i = 0u; i < 4u; i++) {
            let low = places(nearest(scaled(x[8u * block + i], inverse_of_scale) * factor));
            let high = places(nearest(scaled(x[8u * block + i + 4u], inverse_of_scale) * factor));
            words[i] = low | (high << 4u);
        }
    }
    exponents[local] = exponent;
    for (var i = 0u; i < 4u; i++) {
        nibble_words[4u * local + i] = words[i];
    }
    workgroupBarrier();
    // As many words as a quarter of the bytes.
    let of_group = 17u * ${WORKGROUP}u / 4u;
    for (var i = local; i < of_group; i += ${WORKGROUP}u) {
        let at = number * of_group + i;
        if at < p.words {
            var word = 0u;
            for (var j = 0u; j < 4u; j++) {
                let owner = (4u * i + j) / 17u;
                let place = (4u * i + j) % 17u;
                let nibbles = nibble_words[4u * owner + (max(place, 1u) - 1u) / 4u] >> (8u * ((max(place, 1u) - 1u) % 4u));
                word |= select(nibbles & 255u, exponents[owner], place == 0u) << (8u * j);
            }
            out[at] = word;
        }
    }
}
