//! Choosing the next token.

/// How the next token is chosen from the logits.
///
/// With a temperature of 0 it is the likeliest one. Otherwise logits are divided by the temperature, and the token is drawn from
/// those that `top_k`, `top_p` and `min_p` leave, in this order. The number that is drawn depends on the seed and on the position of
/// the token alone, so equal logits give equal tokens whatever was computed before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// 0 chooses the likeliest token; 1 draws from what the model says; more makes rare tokens likelier.
    pub temperature: f32,
    /// How many of the likeliest tokens are left; 0 leaves all.
    pub top_k: usize,
    /// The likeliest tokens whose probabilities reach this sum are left; 1 leaves all.
    pub top_p: f32,
    /// Tokens less likely than this times the likeliest are left out; 0 leaves all.
    pub min_p: f32,
    /// What numbers are drawn from.
    pub seed: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 0 }
    }
}

impl Sampler {
    /// The likeliest token, always.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether it chooses the likeliest token.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature <= 0.0
    }

    /// Chooses a token for this position. Of equal logits the lower token is likelier. Logits that are not numbers are never chosen.
    pub fn choose(&self, logits: &[f32], position: usize) -> u32 {
        let mut order: Vec<u32> = (0..logits.len() as u32).filter(|&i| !logits[i as usize].is_nan()).collect();
        let Some(&first) = order.first() else { return 0 };
        let greater = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if self.is_greedy() {
            return order.into_iter().min_by(greater).unwrap_or(first);
        }
        if self.top_k > 0 && self.top_k < order.len() {
            order.select_nth_unstable_by(self.top_k - 1, greater);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(greater);
        let greatest = logits[order[0] as usize];
        let scaled = |&token: &u32| (f64::from(logits[token as usize] - greatest) / f64::from(self.temperature)).exp();
        let mut weights: Vec<f64> = order.iter().map(scaled).collect();
        if greatest.is_infinite() {
            // Several tokens may be infinitely likely; the first of them is.
            return order[0];
        }
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let left = weights.iter().position(|weight| {
            sum += weight / total;
            sum >= f64::from(self.top_p)
        });
        weights.truncate(left.map_or(weights.len(), |last| last + 1));
        let enough = weights.iter().position(|&weight| weight < f64::from(self.min_p)).unwrap_or(weights.len());
        weights.truncate(enough.max(1));
        let mut at = self.draw(position) * weights.iter().sum::<f64>();
        for (&token, weight) in order.iter().zip(&weights) {
            if at < *weight {
                return token;
            }
            at -= weight;
        }
        order[weights.len() - 1]
    }

    /// A number of `[0, 1)` for a position: SplitMix64 (Steele et al. 2014) of the seed and the position.
    fn draw(&self, position: usize) -> f64 {
        let mut z = self.seed.wrapping_add((position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, -1.0, 2.0];

    fn counts(sampler: Sampler) -> [usize; 5] {
        let mut counts = [0; 5];
        for position in 0..4000 {
            counts[sampler.choose(&LOGITS, position) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_greatest() {
        assert_eq!(Sampler::greedy().choose(&LOGITS, 0), 1);
        assert_eq!(Sampler::greedy().choose(&[f32::NAN, -1.0, f32::NEG_INFINITY], 0), 1);
        assert!(Sampler { temperature: f32::NAN, ..Sampler::default() }.is_greedy());
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let all = Sampler { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };
        let weights = LOGITS.map(|x| f64::from(x).exp());
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts(all).into_iter().zip(weights) {
            let expected = 4000.0 * weight / total;
            // Five standard deviations.
            assert!((count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{count}, not {expected}");
        }
        assert_eq!(counts(all), counts(all), "a seed repeats");
        assert_ne!(counts(all), counts(Sampler { seed: 8, ..all }));
    }

    #[test]
    fn limits_leave_the_likeliest() {
        let all = Sampler { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
        let left = |sampler| counts(sampler).map(|count| count > 0);
        assert_eq!(left(Sampler { top_k: 2, ..all }), [false, true, false, false, true]);
        assert_eq!(left(Sampler { top_k: 1, ..all }), [false, true, false, false, false]);
        assert_eq!(left(Sampler { top_p: 0.5, ..all }), [false, true, false, false, true]);
        assert_eq!(left(Sampler { min_p: 0.3, ..all }), [false, true, true, false, true]);
        assert_eq!(left(Sampler { top_p: 0.0, ..all }), [false, true, false, false, false]);
        assert_eq!(left(Sampler { temperature: 0.01, ..all }), [false, true, false, false, true]);
    }

    #[test]
    fn hostile_logits_give_a_token() {
        let sampler = Sampler::default();
        assert_eq!(sampler.choose(&[], 0), 0);
        assert_eq!(sampler.choose(&[f32::NAN; 3], 0), 0);
        assert_eq!(sampler.choose(&[0.0, f32::INFINITY, f32::NAN], 3), 1);
        assert_eq!(sampler.choose(&[f32::NEG_INFINITY; 2], 3), 0);
    }
}
