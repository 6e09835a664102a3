// Quotients and roots closer than WGSL promises of its own, for the few that everything else is multiplied by. Each is
// the built-in one and a correction: what it misses is computed from products that are exact, because their factors have
// at most twelve bits. Arguments are far from the ends of the range; math.wgsl comes first.
//
// Compilers reorder sums, take a b + (a c + d) for a (b + c) + d, and (a b) c with constants b and c for a (b c), which may
// vanish. Where the order counts, a result is `kept` from being mixed with what follows.

// A number and what has to be added to it.
struct Pair {
    high: V,
    low: V,
}

// s / n
fn divided(s: V, n: u32) -> Pair {
    let whole = f32(n);
    let n_upper = upper(V(whole));
    let n_lower = V(f32(n - u32(n_upper.x)));
    let q = s / whole;
    let q_upper = upper(q);
    let rest = kept(s - q_upper * n_upper) - (q_upper * n_lower + (q - q_upper) * whole);
    return Pair(q, select(V(0.0), rest / whole, finite(s)));
}

// 1 / s
fn reciprocal(s: V) -> V {
    let r = 1.0 / s;
    let r_upper = upper(r);
    let s_upper = upper(s);
    let missing = kept(1.0 - s_upper * r_upper) - (s_upper * kept(r - r_upper) + (s - s_upper) * r);
    return r + r * missing;
}

// The root of s; of zero, infinity and NaN too.
fn rooted(s: V) -> V {
    let r = sqrt(s);
    let r_upper = upper(r);
    let r_lower = kept(r - r_upper);
    let rest = kept(s - r_upper * r_upper) - (r_upper + r) * r_lower;
    return select(s, r + rest / (r + r), finite(s) & (bits(s) != Bits(0u)));
}

// 1 / sqrt(v)
fn inverse_root(v: Pair) -> V {
    let r = inverseSqrt(v.high);
    let r_upper = upper(r);
    let r_lower = kept(r - r_upper);
    let v_upper = upper(v.high);
    let v_lower = kept(v.high - v_upper);
    // v r in two parts, the first of twelve bits.
    let product = upper(v.high * r);
    let product_lower = kept(v_upper * r_upper - product) + (v_upper * r_lower + (v_lower + v.low) * r);
    let missing = kept(1.0 - product * r_upper) - (product * r_lower + product_lower * r);
    return r + r * (0.5 * missing);
}
