// Sine and cosine. An angle is n pi/2 + r with r in +-pi/4; n modulo 4 chooses one of the two functions of r, and its
// sign. math.wgsl comes first.

struct Turned {
    n: vec4<i32>,
    r: V,
}

// Up to here n has 12 bits, and so have the first three parts of pi/2: their products are exact.
const ANGLE_LIMIT: f32 = 6400.0;

fn turned(x: V) -> Turned {
    let whole = round(x * 0.63661975);
    var r = kept(x - whole * 1.57080078125);
    r = kept(r + whole * 4.453584551811218e-6);
    r = kept(r + whole * 8.706138032721356e-10);
    r = r - whole * 6.223371969669989e-14;
    var n = vec4<i32>(whole);
    let large = abs(x) > V(ANGLE_LIMIT);
    if any(large) {
        let a = turned_exactly(x.x);
        let b = turned_exactly(x.y);
        let c = turned_exactly(x.z);
        let d = turned_exactly(x.w);
        n = select(n, vec4<i32>(V(a.x, b.x, c.x, d.x)), large);
        r = select(r, V(a.y, b.y, c.y, d.y), large);
    }
    return Turned(n, r);
}

// A word of the bits of 1 / (2 pi) below the point, after one of zeros.
fn inverse_word(i: u32) -> u32 {
    switch i {
        case 1u: { return 0x28be60dbu; }
        case 2u: { return 0x9391054au; }
        case 3u: { return 0x7f09d5f4u; }
        case 4u: { return 0x7d4d3770u; }
        case 5u: { return 0x36d8a566u; }
        case 6u: { return 0x4f10e410u; }
        case 7u: { return 0x7f9458eau; }
        default: { return 0u; }
    }
}

// 32 bits from a place on.
fn inverse_bits(place: u32) -> u32 {
    let shift = place % 32u;
    let word = inverse_word(place / 32u) << shift;
    // A shift by 32 is not defined, one by 31 and one by 1 are.
    return word | ((inverse_word(place / 32u + 1u) >> (31u - shift)) >> 1u);
}

// The upper half of a product.
fn upper_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
}

// n modulo 4 and r of an angle that is at least 1: the method of Payne and Hanek (1983). Smaller angles give arbitrary
// results.
fn turned_exactly(x: f32) -> vec2<f32> {
    let word = bitcast<u32>(x);
    // x is m 2^(place - 31); of the bits of 1 / (2 pi) only 96 matter, those above give whole turns.
    let m = (word << 8u) | 0x80000000u;
    let place = max((word >> 23u) & 255u, 127u) - 126u;
    let middle = inverse_bits(place + 32u);
    let low = m * middle + upper_product(m, inverse_bits(place + 64u));
    let carry = select(0u, 1u, low < m * middle);
    let high = m * inverse_bits(place) + upper_product(m, middle) + carry;
    // The first two bits count quarters of a turn, the others are a part of a quarter, taken as one of both signs.
    let n = f32(((high + 0x20000000u) >> 30u) & 3u);
    var part = vec2<u32>((high << 2u) | (low >> 30u), low << 2u);
    let negative = part.x >= 0x80000000u;
    if negative {
        part = vec2<u32>(~part.x + select(0u, 1u, part.y == 0u), ~part.y + 1u);
    }
    let zeros = min(countLeadingZeros(part.x), 31u);
    let digits = (part.x << zeros) | ((part.y >> (31u - zeros)) >> 1u);
    // 24 bits and 8: either is exact.
    let value = (f32(digits >> 8u) * 256.0 + f32(digits & 255u)) * 1.5707964;
    let r = value * bitcast<f32>((95u - zeros) << 23u);
    let below = word >= 0x80000000u;
    return vec2<f32>(select(n, -n, below), select(r, -r, negative != below));
}

// sin(n pi/2 + r)
fn sine_turned(n: vec4<i32>, r: V) -> V {
    let square = r * r;
    let p = (square * -0.00019515296 + 0.008332161) * square - 0.16666655;
    let sine = (r * square) * p + r;
    let q = (square * 2.4467707e-5 - 0.001388773) * square + 0.041666657;
    let cosine = (square * square) * q + (1.0 - 0.5 * square);
    let y = select(sine, cosine, (n & vec4<i32>(1)) == vec4<i32>(1));
    return bitcast<V>(bits(y) ^ (vec4<u32>(n & vec4<i32>(2)) << vec4<u32>(30u)));
}

fn sine_of(x: V) -> V {
    let angle = turned(x);
    // The polynomial loses the sign of -0.
    let y = select(sine_turned(angle.n, angle.r), x, zeros(x));
    return select(y, nan_of(x), !finite(x));
}

fn cosine_of(x: V) -> V {
    let angle = turned(x);
    return select(sine_turned(angle.n + vec4<i32>(1), angle.r), nan_of(x), !finite(x));
}
