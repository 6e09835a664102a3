//! Operands whose exact quotient or root lies next to the middle of two f32: those on which an algorithm that is not
//! correctly rounded fails first. Random operands come so close once in some millions.

/// The significands of f32 as integers.
pub const SIGNIFICANDS: std::ops::Range<u32> = 1 << 23..1 << 24;

/// Calls `see(a, b)` with every significand `a` whose quotient by the significand `b` is closest to a middle.
///
/// The quotient is `m / 2ˢ` for a number `m` of 25 bits, s = 24 or 25, and the middles are the odd `m`:
/// `2ˢ a = m b + k`, the closer the smaller `|k|`. Those with `|k| <= furthest` are found, except where `b` ends in so
/// many zeros that every `k` is greater.
pub fn hard_quotients(b: u32, furthest: i64, mut see: impl FnMut(f32, f32)) {
    // Divided by the power of two in b, the remainder is one modulo an odd number, where 2 has an inverse; m is odd if
    // the remainder is.
    let zeros = b.trailing_zeros();
    let modulus = i64::from(b >> zeros);
    let half = |x: i64| if x % 2 == 0 { x / 2 } else { (x + modulus) / 2 };
    let (first, last) = (i64::from(SIGNIFICANDS.start), i64::from(SIGNIFICANDS.end));
    // Quotients of at least 1 have s = 24, smaller ones s = 25.
    for (s, range) in [(24, i64::from(b)..last), (25, first..i64::from(b))] {
        let inverse = (0..s - zeros).fold(1, |x, _| half(x)) % modulus;
        for k in (1..=furthest >> zeros).step_by(2).flat_map(|k| [k, -k]) {
            let residue = (k * inverse).rem_euclid(modulus);
            let mut a = range.start + (residue - range.start).rem_euclid(modulus);
            while a < range.end {
                see(a as f32, b as f32);
                a += modulus;
            }
        }
    }
}

/// Every number from 2²³ to 2²⁵ whose root is closest to a middle: `2ˢ a = m² + k` for a significand `a`, s = 25 or 26,
/// an odd `m` of 25 bits and `|k| <= furthest`.
pub fn hard_squares(furthest: i64) -> Vec<f32> {
    let mut squares = Vec::new();
    for s in [25, 26] {
        let modulus = 1i64 << s;
        // Odd squares are 1 modulo 8; each such residue is a square modulo every power of two, and its root is found
        // digit by digit.
        for residue in (-furthest..=furthest).filter(|r| r.rem_euclid(8) == 1) {
            let root = (3..s).fold(1i64, |root, n| root + ((root * root - residue) >> n & 1) * (1 << (n - 1)));
            for m in [root, -root, root + modulus / 2, modulus / 2 - root] {
                let mut m = m.rem_euclid(modulus);
                while m < 1 << 25 {
                    let a = (m * m - residue) >> s;
                    if m >= 1 << 24 && (i64::from(SIGNIFICANDS.start)..i64::from(SIGNIFICANDS.end)).contains(&a) {
                        // 2ˢ is a square with s = 26; the other factor of two goes to a.
                        squares.push(a as f32 * if s == 25 { 2.0 } else { 1.0 });
                    }
                    m += modulus;
                }
            }
        }
    }
    squares
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// The distance of a value from the closest midpoint between two f32, in units in the last place.
    fn distance(x: f64) -> f64 {
        let steps = x / super::super::ulp(x);
        (steps - steps.floor() - 0.5).abs()
    }

    #[test]
    fn quotients_are_next_to_a_middle() {
        let mut seen = 0;
        for b in [1 << 23, (1 << 23) + 1, 10_000_004, 12_345_677, 16_777_212, 16_777_214, 16_777_215] {
            hard_quotients(b, 9, |a, b| {
                assert!(distance(f64::from(a) / f64::from(b)) <= 9.0 / f64::from(1 << 24), "{a} / {b}");
                seen += 1;
            });
        }
        assert!(seen > 20, "{seen}");
        // The reciprocal of the largest significand is the hardest of all.
        let mut found = false;
        hard_quotients(16_777_215, 1, |a, _| found |= a == 8_388_608.0);
        assert!(found);
    }

    #[test]
    fn roots_are_next_to_a_middle() {
        let squares = hard_squares(1000);
        assert!(squares.len() > 200, "{}", squares.len());
        for x in squares {
            assert!(distance(f64::from(x).sqrt()) <= 1000.0 / f64::from(1 << 24), "{x}");
        }
    }
}
