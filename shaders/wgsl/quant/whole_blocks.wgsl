// Sixteen blocks of 32 elements a workgroup, with sixteen invocations each, and the assembly of their half words.

var<workgroup> tile: array<vec4<f32>, 128>;
var<workgroup> tops: array<atomic<u32>, 16>;
// The result of each trial: the bits of its error.
var<workgroup> errors: array<u32, 256>;
// The integers of four elements a word.
var<workgroup> integer_words: array<u32, 128>;
var<workgroup> halves: array<u32, 192>;

// Lays out the blocks as the search takes them.
fn lay_out(first_block: u32, local: u32) {
    if local < 16u {
        atomicStore(&tops[local], 0u);
    }
    workgroupBarrier();
    var loaded = vec4<f32>(0.0);
    if local < 128u && first_block + local / 8u < p.block_count {
        loaded = x[first_block * 8u + local];
        atomicMax(&tops[local / 8u], top_of(loaded));
    }
    workgroupBarrier();
    if local < 128u {
        tile[local] = lifted(loaded, lift_of(atomicLoad(&tops[local / 8u])));
    }
    workgroupBarrier();
}

// The trial with the least error, the first of equals; TRIALS if none has one.
fn best_of(first: u32) -> u32 {
    var best = INFINITY_BITS;
    var at = TRIALS;
    for (var i = 0u; i < TRIALS; i++) {
        let error = errors[first + i];
        if error < best {
            best = error;
            at = i;
        }
    }
    return at;
}

// Half `i` of the words of a block that begins with `units`, UNITS of them, from its integers; with five bits, FIFTHS is 2.
fn half_of(block: u32, i: u32, units: u32) -> u32 {
    if i < UNITS {
        return (units >> (16u * i)) & 0xffffu;
    }
    if i < UNITS + FIFTHS {
        let first = 8u * block + 4u * (i - UNITS);
        var bits = 0u;
        for (var j = 0u; j < 4u; j++) {
            let fifth = (integer_words[first + j] >> 4u) & 0x01010101u;
            bits |= (((fifth * 0x01020408u) >> 24u) & 15u) << (4u * j);
        }
        return bits;
    }
    let j = i - UNITS - FIFTHS;
    let low = integer_words[8u * block + j / 2u] & 0x0f0f0f0fu;
    let high = integer_words[8u * block + 4u + j / 2u] & 0x0f0f0f0fu;
    return ((low | (high << 4u)) >> (16u * (j & 1u))) & 0xffffu;
}

// Writes the blocks; `units` are those of block `local / 16u`.
fn write_out(number: u32, local: u32, units: u32) {
    workgroupBarrier();
    const HALVES: u32 = UNITS + FIFTHS + 8u;
    let block = local / 16u;
    let i = local % 16u;
    if i < HALVES {
        var half = 0u;
        if atomicLoad(&tops[block]) < INFINITY_BITS {
            half = half_of(block, i, units);
        } else if i == 0u {
            half = NOT_FINITE;
        }
        halves[HALVES * block + i] = half;
    }
    workgroupBarrier();
    let at = number * 8u * HALVES + local;
    if local < 8u * HALVES && at < p.words {
        out[at] = halves[2u * local] | (halves[2u * local + 1u] << 16u);
    }
}
