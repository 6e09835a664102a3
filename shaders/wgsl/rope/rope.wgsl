// Rotary position embedding: pairs of elements rotated by angles that are exact at every position.
//
// Angles are fractions of a turn in fixed point, 64 bits as two words, upper one first: a position times the angle from one
// position to the next is an integer product, whole turns drop out of it. The angle of pair i is `base` times ratio^i, the
// product of the powers of the ratio that the bits of i name.
//
// An invocation takes a pair at up to four positions, and there all heads of its share. Pairs past `rotated` are copied.
//
// With TABLE 1 only the rotations are written, the cosine and the sine of each pair at each position times `magnitude`, for kernels with
// TABLE 2, which read them from `factors`.
#trusted heads and positions are guarded, pairs are below half a row; rows and heads grow
#input x: array<Item>
#input positions: array<u32>
#input factors: array<f32>
#output out: array<Item>
#param base_high: u32
#param base_low: u32
#param high0: u32
#param low0: u32
#param high1: u32
#param low1: u32
#param high2: u32
#param low2: u32
#param high3: u32
#param low3: u32
#param high4: u32
#param low4: u32
#param high5: u32
#param low5: u32
#param high6: u32
#param low6: u32
#param high7: u32
#param low7: u32
#param high8: u32
#param low8: u32
#param first_pair: u32
#param pairs: u32
#param rotated: u32
#param row: u32
#param magnitude: f32
#param rows: u32
#param position: u32
#param heads: u32
#param share: u32
#param fours: u32
#param n: u32
#constant INTERLEAVED = 0, 1
#constant POSITIONS = 0, 1
#constant FACTORS = 0, 1
#constant TABLE = 0, 1, 2
#include common

#if TABLE == 1
alias Item = vec2<f32>;
#else
#if INTERLEAVED
alias Item = vec2<f32>;
#else
alias Item = f32;
#endif
#endif

// The upper word of a product.
fn upper_product(a: u32, b: u32) -> u32 {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 16u);
    let other = a_low * b_high + (middle & 0xffffu);
    return a_high * b_high + (middle >> 16u) + (other >> 16u);
}

// A number of 64 bits: upper word, lower word.
fn plus(a: vec2<u32>, b: u32) -> vec2<u32> {
    let low = a.y + b;
    return vec2<u32>(a.x + u32(low < b), low);
}

// The product of two fractions, short by at most three units.
fn times(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let product = vec2<u32>(upper_product(a.x, b.x), a.x * b.x);
    return plus(plus(product, upper_product(a.x, b.y)), upper_product(a.y, b.x));
}

// The power of the ratio if the bit of i is set.
fn powered(angle: vec2<u32>, i: u32, bit: u32, high: u32, low: u32) -> vec2<u32> {
    if ((i >> bit) & 1u) == 0u {
        return angle;
    }
    return times(angle, vec2<u32>(high, low));
}

#if FACTORS
// An angle divided by a number: long division by its significand in digits of 8 bits, after 24 zero bits are appended
// to the angle. Whole turns are dropped.
fn divided(angle: vec2<u32>, by: f32) -> vec2<u32> {
    let bits = bitcast<u32>(by);
    let significand = (bits & 0x7fffffu) | 0x800000u;
    let exponent = i32((bits >> 23u) & 0xffu) - 127;
    var quotient = vec3<u32>();
    var left = 0u;
    for (var digit = 0u; digit < 11u; digit++) {
        let word = select(select(0u, angle.y, digit < 8u), angle.x, digit < 4u);
        let next = (left << 8u) | ((word >> (8u * (3u - digit % 4u))) & 0xffu);
        let part = next / significand;
        left = next % significand;
        quotient = vec3<u32>(
            (quotient.x << 8u) | (quotient.y >> 24u),
            (quotient.y << 8u) | (quotient.z >> 24u),
            (quotient.z << 8u) | part,
        );
    }
    // It is the angle over the significand, times 2^24; the number is the significand times 2^(exponent - 23).
    return shifted(quotient, exponent + 1);
}

// A number of 96 bits shifted to the right (to the left where `by` is negative), its lower 64 bits.
fn shifted(x: vec3<u32>, by: i32) -> vec2<u32> {
    var y = x;
    var left = abs(by);
    while left > 0 {
        let step = u32(min(left, 31));
        left -= i32(step);
        if by > 0 {
            y = vec3<u32>(y.x >> step, (y.y >> step) | (y.x << (32u - step)), (y.z >> step) | (y.y << (32u - step)));
        } else {
            y = vec3<u32>((y.x << step) | (y.y >> (32u - step)), (y.y << step) | (y.z >> (32u - step)), y.z << step);
        }
    }
    return y.yz;
}
#endif

// The cosine and the sine of a fraction of a turn.
fn rotation(turn: vec2<u32>) -> vec2<f32> {
    // The nearest quarter turn, and what is left: at most an eighth, with its sign apart.
    let quarter = (turn.x + 0x20000000u) >> 30u;
    let left = vec2<u32>(turn.x - (quarter << 30u), turn.y);
    let negative = (left.x >> 31u) != 0u;
    let size = select(left, plus(vec2<u32>(~left.x, ~left.y), 1u), negative);
    // All of its significant bits, so that small angles are exact too; then times pi/4.
    let zeros = select(32u + countLeadingZeros(size.y), countLeadingZeros(size.x), size.x != 0u);
    let shift = zeros % 32u;
    let words = select(size, vec2<u32>(size.y, 0u), zeros >= 32u);
    // A word may not be shifted by all of its bits at once.
    let whole = vec2<u32>((words.x << shift) | ((words.y >> 1u) >> (31u - shift)), words.y << shift);
    let angle = times(whole, vec2<u32>(0xc90fdaa2u, 0x2168c235u));
    // The angle as a sum of two numbers: a unit of its upper word is 2^-29 before the shift.
    let scale = bitcast<f32>((98u - min(zeros, 64u)) << 23u);
    let upper = f32(angle.x >> 8u) * (256.0 * scale);
    let lower = f32(((angle.x & 0xffu) << 16u) | (angle.y >> 16u)) * (scale * 1.52587890625e-5);
    let square = upper * upper;
    let odd = ((square * -0.00019515218 + 0.00833216) * square - 0.16666655) * (square * upper);
    let sine = upper + (odd + lower * (1.0 - 0.5 * square));
    let even = ((square * 2.4433082e-5 - 0.0013887315) * square + 0.041666646) * (square * square);
    let cosine = 1.0 - (0.5 * square - (even - upper * lower));
    let s = select(sine, -sine, negative);
    // Whole quarters exchange the two and change their signs.
    let odd_quarter = (quarter & 1u) != 0u;
    let c0 = select(cosine, s, odd_quarter);
    let s0 = select(s, cosine, odd_quarter);
    let c = select(c0, -c0, quarter == 1u || quarter == 2u);
    return vec2<f32>(c, select(s0, -s0, quarter >= 2u));
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups) * ${WORKGROUP}u + local;
    if number >= p.n {
        return;
    }
    let i = number % p.pairs;
    let above = number / p.pairs;
    let first = 4u * (above % p.fours);
    let head = (above / p.fours) * p.share;
    let last_head = min(head + p.share, p.heads);

    let number_of_pair = p.first_pair + i;
#if TABLE == 0, 1
    var angle = vec2<u32>(p.base_high, p.base_low);
    angle = powered(angle, i, 0u, p.high0, p.low0);
    angle = powered(angle, i, 1u, p.high1, p.low1);
    angle = powered(angle, i, 2u, p.high2, p.low2);
    angle = powered(angle, i, 3u, p.high3, p.low3);
    angle = powered(angle, i, 4u, p.high4, p.low4);
    angle = powered(angle, i, 5u, p.high5, p.low5);
    angle = powered(angle, i, 6u, p.high6, p.low6);
    angle = powered(angle, i, 7u, p.high7, p.low7);
    angle = powered(angle, i, 8u, p.high8, p.low8);

    var magnitude = p.magnitude;
#if FACTORS
    let factor = factors[min(number_of_pair, p.rotated - 1u)];
    angle = divided(angle, factor);
    // Anything but a positive normal number gives NaN.
    let normal = bitcast<u32>(factor) - 0x800000u < 0x7f000000u;
    magnitude = bitcast<f32>(select(0x7fc00000u, bitcast<u32>(magnitude), normal));
#endif
#endif
    let last = min(first + 4u, p.rows);
    for (var row = first; row < last; row++) {
        let rotation_at = row * (p.row / 2u) + number_of_pair;
#if TABLE == 2
        let cs = vec2<f32>(factors[2u * rotation_at], factors[2u * rotation_at + 1u]);
#else
#if POSITIONS
        let position = p.position + positions[row];
#else
        let position = p.position + row;
#endif
        let low = angle.y * position;
        let turn = vec2<u32>(angle.x * position + upper_product(angle.y, position), low);
        let cs = rotation(turn) * magnitude;
#endif
#if TABLE == 1
        out[rotation_at] = cs;
#else
        for (var h = head; h < last_head; h++) {
#if INTERLEAVED
            let at = (h * p.rows + row) * (p.row / 2u) + number_of_pair;
            let pair = x[at];
            let a = pair.x;
            let b = pair.y;
            let turned = vec2<f32>(a * cs.x - b * cs.y, a * cs.y + b * cs.x);
            out[at] = select(pair, turned, number_of_pair < p.rotated);
#else
            let start = (h * p.rows + row) * p.row;
            if number_of_pair < p.rotated {
                let at = start + number_of_pair;
                let a = x[at];
                let b = x[at + p.rotated];
                out[at] = a * cs.x - b * cs.y;
                out[at + p.rotated] = a * cs.y + b * cs.x;
            } else {
                let at = start + 2u * number_of_pair;
                out[at] = x[at];
                out[at + 1u] = x[at + 1u];
            }
#endif
        }
#endif
    }
}
