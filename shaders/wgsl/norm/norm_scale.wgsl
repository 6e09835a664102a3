// Rows of numbers so large or so small that their squares would overflow or vanish are scaled by a power of two.
// rows.wgsl comes first; the parameters eps, large_eps, small_eps and small_back belong to this.
#include norm_factors

struct Scale {
    // 2^-90, 1 or 2^90: the factor of elements.
    factor: f32,
    // The factor of results, and twice of the mean of squares: 1, or 2^-90 where eps is not scaled.
    back: f32,
    // eps, scaled as the squares of the elements.
    eps: f32,
    small: bool,
}

// By the bits of the greatest magnitude.
fn scale_of(greatest: u32) -> Scale {
    // Below 2^-40.
    if greatest < 0x2b800000u {
        return Scale(1.2379400392853803e27, p.small_back, p.small_eps, true);
    }
    // From 2^50 on.
    if greatest >= 0x58800000u {
        return Scale(8.077935669463161e-28, 1.0, p.large_eps, false);
    }
    return Scale(1.0, 1.0, p.eps, false);
}

fn rescaled(x: F, scale: Scale) -> F {
    return select(x * scale.factor, lifted(x), B(scale.small));
}

// 1 / sqrt(square / count + eps), for a sum of squares; by IEEE 754 also where that is zero or infinite. NaN where an
// element is NaN, which the greatest magnitude shows. Where eps has vanished beside large numbers that are all the same,
// the differences are zero whatever they are multiplied by.
fn inverse_deviation(squares: f32, count: u32, scale: Scale, greatest: u32) -> f32 {
    let mean = divided(V(squares), count);
    let high = (mean.high * scale.back) * scale.back;
    let low = (mean.low * scale.back) * scale.back;
    // high + eps, and what the addition loses.
    let v = kept(high + scale.eps);
    let second = kept(v - high);
    let lost = (high - kept(v - second)) + (scale.eps - second);
    let root = inverse_root(Pair(v, lost + low)).x;
    let zero = (bitcast<u32>(v.x) & 0x7fffffffu) == 0u;
    let result = select(bitcast<u32>(root), select(0u, INFINITY_BITS, bitcast<u32>(p.eps) == 0u), zero);
#if LAYER
    return bitcast<f32>(select(result, NAN_BITS, greatest >= INFINITY_BITS));
#else
    return bitcast<f32>(select(select(result, 0u, greatest == INFINITY_BITS), NAN_BITS, greatest > INFINITY_BITS));
#endif
}
