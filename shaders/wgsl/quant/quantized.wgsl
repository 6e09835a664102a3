// Blocks of quantised formats. The layouts are described in kiln-ir.
//
// A block is read in parts of 32 elements: sixteen neighbours from `place(part)` on and the sixteen that lie APART after
// them. One kernel has the blocks in `blocks: array<vec4<u32>>`, and with GATED those of a second tensor in `ups`. Blocks that are not
// whole vectors are read by words.

// The integers of a part, a byte each, plus ZERO; an element is step (integer) - least. A byte with the bits FLIPPED turned
// over, taken as signed, is the integer plus BIAS.
struct Part {
    low: vec4<u32>,
    high: vec4<u32>,
    // Step and least of the low sixteen, step and least of the high ones. Of MXFP4 a step is in quarters, and least a factor.
    steps: vec4<f32>,
}

// The integers of a part alone.
struct Integers {
    low: vec4<u32>,
    high: vec4<u32>,
}

// The four bytes of a word as numbers, minus `zero`. Bytes are put into the significand of a number that ends at one:
// conversions are several times slower than this on many GPUs.
fn numbers(word: u32, zero: f32) -> vec4<f32> {
    let pair = vec2<u32>(word, word >> 16u);
    let even = bitcast<vec2<f32>>((pair & vec2<u32>(0xffu)) | vec2<u32>(0x4b000000u)) - (8388608.0 + zero);
    let odd = bitcast<vec2<f32>>((pair & vec2<u32>(0xff00u)) | vec2<u32>(0x47000000u)) - (32768.0 + zero);
    return vec4<f32>(even.x, odd.x, even.y, odd.y);
}

#if GATED
// Whether the blocks that are read are those of `ups`.
var<private> is_up: bool;

fn blocks_at(i: u32) -> vec4<u32> {
    if is_up {
        return ups[i];
    }
    return blocks[i];
}

fn word_at(i: u32) -> u32 {
    if is_up {
        return ups[i >> 2u][i & 3u];
    }
    return blocks[i >> 2u][i & 3u];
}
#else
fn blocks_at(i: u32) -> vec4<u32> {
    return blocks[i];
}

fn word_at(i: u32) -> u32 {
    return blocks[i >> 2u][i & 3u];
}
#endif

#if FORMAT == Q8_0
#include q8_0
#endif
#if FORMAT == Q4_0
#include q4_0
#endif
#if FORMAT == Q4_1
#include q4_1
#endif
#if FORMAT == Q5_0
#include q5_0
#endif
#if FORMAT == Q5_1
#include q5_1
#endif
#if FORMAT == IQ4_NL
#include iq4_nl
#endif
#if FORMAT == MXFP4
#include mxfp4
#endif
#if FORMAT == Q2_K
#include q2_k
#endif
#if FORMAT == Q3_K
#include q3_k
#endif
#if FORMAT == IQ4_XS
#include iq4_xs
#endif
#if FORMAT == Q4_K
#include q4_k
#endif
#if FORMAT == Q5_K
#include q5_k
#endif
#if FORMAT == Q6_K
#include q6_k
#endif

// A part as it is read (`Raw`, the words that it takes), taken apart.
fn part_of(block: u32, part: u32) -> Part {
    return unpacked(raw_of(block, part), block, part);
}

// Four elements from a word of a part.
fn elements(word: u32, step: f32, least: f32) -> vec4<f32> {
#if FORMAT == MXFP4
    return numbers(word, ZERO) * 0.25 * step * least;
#else
    return numbers(word, ZERO) * step - least;
#endif
}

// The sum of four products and a sum.
fn product(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// A finished sum. One that is subnormal has lost bits with every term, on devices that know such numbers at all.
fn finished(sum: f32) -> f32 {
    return select(sum, 0.0, abs(sum) < 1.1754944e-38);
}
