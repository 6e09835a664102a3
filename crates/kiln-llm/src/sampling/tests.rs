//! Each step against a calculation by hand, and what holds for all of them.

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;

const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, -1.0, 2.0];

/// The probabilities of [`shares`].
const SHARES: [f64; 4] = [0.5, 0.25, 0.15, 0.1];

/// Logits whose softmax is [`SHARES`].
fn shares() -> [f32; 4] {
    SHARES.map(|share| share.ln() as f32)
}

/// A sampler without any steps.
fn plain() -> Sampler {
    Sampler { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7, ..Sampler::default() }
}

/// Chooses without a history of surprises, with zeros as tokens.
fn choose(sampler: &Sampler, logits: &[f32], position: usize) -> u32 {
    sampler.choose(logits, &vec![0; position], &mut Surprises::default()).unwrap()
}

fn counts(sampler: &Sampler) -> [usize; 5] {
    let mut counts = [0; 5];
    for position in 0..4000 {
        counts[choose(sampler, &LOGITS, position) as usize] += 1;
    }
    counts
}

/// Compares the distribution after `tokens` with the expected weight of each token, up to a common factor.
fn expect(sampler: &Sampler, logits: &[f32], tokens: &[u32], weights: &[f64]) {
    let found = sampler.probabilities(logits, tokens, &Surprises::default()).unwrap();
    expect_weights(&found, weights);
}

fn expect_weights(found: &[(u32, f64)], weights: &[f64]) {
    let total: f64 = weights.iter().sum();
    let mut probabilities = vec![0.0; weights.len()];
    for &(token, probability) in found {
        probabilities[token as usize] = probability;
    }
    for (found, weight) in probabilities.iter().zip(weights) {
        assert!((found - weight / total).abs() < 1e-6, "{probabilities:?}, expected {weights:?} / {total}");
    }
    assert!(found.is_sorted_by(|a, b| a.1 > b.1 || (a.1 == b.1 && a.0 < b.0)), "{found:?}");
    assert_eq!(found.len(), weights.iter().filter(|&&weight| weight > 0.0).count());
}

#[test]
fn greedy_takes_the_first_of_the_greatest() {
    assert_eq!(choose(&Sampler::greedy(), &LOGITS, 0), 1);
    assert_eq!(choose(&Sampler::greedy(), &[f32::NAN, -1.0, f32::NEG_INFINITY], 0), 1);
    assert_eq!(choose(&Sampler::greedy(), &[-0.0, 0.0], 0), 0);
}

#[test]
fn tokens_come_as_often_as_they_are_likely() {
    let weights = LOGITS.map(|x| f64::from(x).exp());
    expect(&plain(), &LOGITS, &[], &weights);
    let total: f64 = weights.iter().sum();
    for (count, weight) in counts(&plain()).into_iter().zip(weights) {
        let expected = 4000.0 * weight / total;
        // Five standard deviations.
        assert!((count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{count}, not {expected}");
    }
    assert_eq!(counts(&plain()), counts(&plain()), "a seed repeats");
    assert_ne!(counts(&plain()), counts(&Sampler { seed: 8, ..plain() }));
}

#[test]
fn limits_leave_the_likeliest() {
    let left = |sampler| counts(&sampler).map(|count| count > 0);
    assert_eq!(left(Sampler { top_k: 2, ..plain() }), [false, true, false, false, true]);
    assert_eq!(left(Sampler { top_k: 1, ..plain() }), [false, true, false, false, false]);
    assert_eq!(left(Sampler { top_p: 0.5, ..plain() }), [false, true, false, false, true]);
    assert_eq!(left(Sampler { min_p: 0.3, ..plain() }), [false, true, true, false, true]);
    assert_eq!(left(Sampler { top_p: f32::MIN_POSITIVE, ..plain() }), [false, true, false, false, false]);
    assert_eq!(left(Sampler { temperature: 0.01, ..plain() }), [false, true, false, false, true]);
    assert_eq!(left(Sampler { temperature: 1e-45, ..plain() }), [false, true, false, false, true]);
}

#[test]
fn temperature_comes_last() {
    // With the square roots of the shares the first would not reach 0.5, and the third would be more than half of the
    // first.
    let warm = Sampler { temperature: 2.0, ..plain() };
    expect(&warm, &shares(), &[], &SHARES.map(f64::sqrt));
    expect(&Sampler { top_p: 0.49, ..warm.clone() }, &shares(), &[], &[1.0, 0.0, 0.0, 0.0]);
    let [a, b, ..] = SHARES.map(f64::sqrt);
    expect(&Sampler { min_p: 0.4, ..warm }, &shares(), &[], &[a, b, 0.0, 0.0]);
}

#[test]
fn dynamic_temperature_follows_the_entropy() {
    // H = 1.2079740 nats of ln 4 = 1.3862944, so the temperature is 0.5 + 0.8713690^2.
    let sampler = Sampler { dynatemp_range: 0.5, dynatemp_exponent: 2.0, ..plain() };
    expect(&sampler, &shares(), &[], &SHARES.map(|share| share.powf(1.0 / 1.2592839)));
    // A single token has no entropy to divide by, and the lowest temperature may be 0.
    expect(&sampler, &[1.0], &[], &[1.0]);
    let to_0 = Sampler { dynatemp_range: 1.0, dynatemp_exponent: 60.0, ..plain() };
    expect(&to_0, &[20.0, 0.0, f32::NEG_INFINITY], &[], &[1.0, 0.0, 0.0]);
}

#[test]
fn typical_tokens_are_closest_to_the_entropy() {
    // H = 1.2080; the distances of -ln p are 0.5148, 0.1783, 0.6891 and 1.0946.
    for (typical_p, expected) in [
        (0.2, [0.0, 1.0, 0.0, 0.0]),
        (0.6, [2.0, 1.0, 0.0, 0.0]),
        (0.8, [0.5, 0.25, 0.15, 0.0]),
        (0.95, SHARES),
        (1.0, SHARES),
    ] {
        expect(&Sampler { typical_p, ..plain() }, &shares(), &[], &expected);
    }
}

#[test]
fn sigma_is_the_standard_deviation_of_the_logits() {
    // Mean 1, variance 1.5; forbidden tokens do not count.
    let logits = [3.0, 1.0, 0.0, 0.0, f32::NEG_INFINITY];
    let (e3, e1) = (3f64.exp(), 1f64.exp());
    for (top_n_sigma, expected) in [
        (1.0, [e3, 0.0, 0.0, 0.0, 0.0]),
        (1.7, [e3, e1, 0.0, 0.0, 0.0]),
        (2.5, [e3, e1, 1.0, 1.0, 0.0]),
        (0.0, [e3, e1, 1.0, 1.0, 0.0]),
    ] {
        expect(&Sampler { top_n_sigma, ..plain() }, &logits, &[], &expected);
    }
}

#[test]
fn xtc_excludes_all_top_choices_but_the_last() {
    let always = Sampler { xtc_probability: 1.0, xtc_threshold: 0.2, ..plain() };
    expect(&always, &shares(), &[], &[0.0, 0.25, 0.15, 0.1]);
    expect(&Sampler { xtc_threshold: 0.12, ..always.clone() }, &shares(), &[], &[0.0, 0.0, 0.15, 0.1]);
    expect(&Sampler { xtc_threshold: 0.0, ..always.clone() }, &shares(), &[], &[0.0, 0.0, 0.0, 0.1]);
    for xtc_threshold in [0.3, 0.6, 1.0] {
        expect(&Sampler { xtc_threshold, ..always.clone() }, &shares(), &[], &SHARES);
    }
    let sometimes = Sampler { xtc_probability: 0.25, ..always };
    let excluded = (0..4000).filter(|&position| {
        sometimes.probabilities(&shares(), &vec![0; position], &Surprises::default()).unwrap().len() == 3
    });
    // 1000 with a standard deviation of 27.
    assert!((860..1140).contains(&excluded.count()));
    // Whether choices are excluded is independent of the random number that chooses the token.
    let first = (0..4000).filter(|&position| choose(&sometimes, &shares(), position) == 0).count();
    // 4000 of 0.75 * 0.5, with a standard deviation of 31.
    assert!((1345..1655).contains(&first), "{first}");
}

#[test]
fn penalties_count_recent_tokens() {
    let logits = [2.0, -1.0, 0.5, 1.0];
    let penalties = Sampler { repeat_penalty: 2.0, frequency_penalty: 0.5, presence_penalty: 0.25, ..plain() };
    let tokens = [0, 1, 1];
    expect(&penalties, &logits, &tokens, &[0.25, -3.25, 0.5, 1.0].map(f64::exp));
    // Tokens without logits are ignored.
    expect(&penalties, &logits, &[9, 0, 1, 1], &[0.25, -3.25, 0.5, 1.0].map(f64::exp));
    let last = Sampler { repeat_last_n: 1, ..penalties.clone() };
    expect(&last, &logits, &tokens, &[2.0, -2.75, 0.5, 1.0].map(f64::exp));
    let none = Sampler { repeat_last_n: 0, ..penalties.clone() };
    expect(&none, &logits, &tokens, &[2.0, -1.0, 0.5, 1.0].map(f64::exp));
    let all = Sampler { repeat_last_n: usize::MAX, ..penalties.clone() };
    expect(&all, &logits, &tokens, &[0.25, -3.25, 0.5, 1.0].map(f64::exp));
    // Without randomness the likeliest after the penalties is chosen.
    let greedy = Sampler { temperature: 0.0, ..penalties };
    assert!(!greedy.is_greedy() && Sampler { repeat_last_n: 0, ..greedy.clone() }.is_greedy());
    expect(&greedy, &logits, &tokens, &[0.0, 0.0, 0.0, 1.0]);
}

/// `a b c c b c y a b c`: after the 3 tokens `a b c` came c, after `b c` came y, and after c came b.
const REPEATING: [u32; 10] = [0, 1, 2, 2, 1, 2, 3, 0, 1, 2];

#[test]
fn dry_penalises_what_continues_a_repetition() {
    let dry = |dry_allowed_length, breakers: &[&[u32]]| Sampler {
        dry_multiplier: 0.5,
        dry_base: 2.0,
        dry_allowed_length,
        dry_breakers: SequenceBreakers::from_tokens(breakers.iter().map(|b| b.to_vec())).unwrap(),
        ..plain()
    };
    let expect = |sampler: &Sampler, penalties: [f64; 5]| {
        expect(sampler, &[0.0; 5], &REPEATING, &penalties.map(|penalty| (-penalty).exp()));
    };
    expect(&dry(1, &[]), [0.0, 0.5, 2.0, 1.0, 0.0]);
    expect(&dry(2, &[]), [0.0, 0.0, 1.0, 0.5, 0.0]);
    expect(&dry(3, &[]), [0.0, 0.0, 0.5, 0.0, 0.0]);
    expect(&dry(4, &[]), [0.0; 5]);
    expect(&dry(usize::MAX, &[]), [0.0; 5]);
    // All tokens that occurred and have a predecessor.
    expect(&dry(0, &[]), [0.5, 1.0, 4.0, 2.0, 0.0]);
    // After b there is one token. A breaker of one token has no penalty itself.
    expect(&dry(1, &[&[1]]), [0.0, 0.0, 0.5, 0.5, 0.0]);
    expect(&dry(1, &[&[0, 1], &[3]]), [0.0, 0.5, 0.5, 0.0, 0.0]);
    // The longest breaker counts, and nothing is left after it.
    expect(&dry(1, &[&[1, 2], &[1], &[1, 3]]), [0.0; 5]);
    // Two tokens of a breaker of three are not a breaker.
    expect(&dry(2, &[&[2, 2, 2]]), [0.0, 0.0, 1.0, 0.5, 0.0]);
    // The tokens that are considered: `y a b c`, and `b c y a b c`.
    expect(&Sampler { dry_last_n: 4, ..dry(1, &[]) }, [0.0; 5]);
    expect(&Sampler { dry_last_n: 6, ..dry(1, &[]) }, [0.0, 0.0, 0.0, 1.0, 0.0]);
    expect(&Sampler { dry_last_n: 0, ..dry(1, &[]) }, [0.0; 5]);
    let greedy = Sampler { temperature: 0.0, ..dry(1, &[]) };
    assert!(!greedy.is_greedy());
    assert_eq!(greedy.choose(&[0.0, 0.0, 1.5, 0.6, 0.0], &REPEATING, &mut Surprises::default()).unwrap(), 0);
    // Penalties beyond f32 forbid no token.
    let steep = Sampler { dry_base: f32::MAX, ..dry(1, &[]) };
    assert_eq!(steep.choose(&[0.0], &[0; 99], &mut Surprises::default()).unwrap(), 0);
}

#[test]
fn repetitions_are_those_of_a_search() {
    let mut state = 1u32;
    for n in 0..60 {
        let tokens: Vec<u32> = (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % (1 + n as u32 % 3)
            })
            .collect();
        for (back, length) in dry::repetitions(&tokens) {
            let searched = (0..n - back).take_while(|i| tokens[n - 1 - i] == tokens[n - 1 - back - i]).count();
            assert_eq!(length, searched, "{back} of {tokens:?}");
        }
        assert_eq!(dry::repetitions(&tokens).count(), usize::max(n, 1) - 1);
    }
}

#[test]
fn mirostat_limits_the_surprise() {
    // The surprises are 1, 2, 2.737 and 3.322 bits; the first limit is 2.1. The surprises of the remaining two are
    // 0.585 and 1.585, so the next limit is 2.1 + 2 * 0.465 = 3.03 or 2.1 - 2 * 0.535 = 1.03.
    let sampler = Sampler { mirostat_tau: 1.05, mirostat_eta: 2.0, top_k: 1, ..plain() };
    expect(&sampler, &shares(), &[], &[2.0, 1.0, 0.0, 0.0]);
    let mut seen = [0; 2];
    for position in 0..50 {
        let tokens = vec![0; position];
        let mut surprises = Surprises::default();
        let token = sampler.choose(&shares(), &tokens, &mut surprises).unwrap() as usize;
        seen[token] += 1;
        let after = |n: usize| sampler.probabilities(&shares(), &vec![0; n], &surprises).unwrap();
        expect_weights(&after(position), &[2.0, 1.0, 0.0, 0.0]);
        expect_weights(&after(position + 1), &[[0.5, 0.25, 0.15, 0.0], [1.0, 0.0, 0.0, 0.0]][token]);
        // Choosing again replaces the recorded surprise.
        let recorded = surprises.clone();
        assert_eq!(sampler.choose(&shares(), &tokens, &mut surprises).unwrap() as usize, token);
        assert_eq!(surprises, recorded);
        surprises.truncate(position);
        assert_eq!(surprises, Surprises::default());
    }
    assert!(seen[0] > 0 && seen[1] > 0);
    // The likeliest token always stays, and a temperature of 0 draws nothing.
    expect(&Sampler { mirostat_tau: 0.1, ..sampler.clone() }, &shares(), &[], &[1.0, 0.0, 0.0, 0.0]);
    let mut surprises = Surprises::default();
    Sampler { temperature: 0.0, ..sampler.clone() }.choose(&shares(), &[], &mut surprises).unwrap();
    assert_eq!(surprises, Surprises::default());
    // In the long run surprises are near tau, which is between those of the likeliest token and of all.
    let sampler = Sampler { mirostat_tau: 1.2, mirostat_eta: 0.1, ..sampler };
    let (mut tokens, mut sum) = (Vec::new(), 0.0);
    for _ in 0..2000 {
        let left = sampler.probabilities(&shares(), &tokens, &surprises).unwrap();
        let token = sampler.choose(&shares(), &tokens, &mut surprises).unwrap();
        sum -= left.iter().find(|&&(left, _)| left == token).unwrap().1.log2();
        tokens.push(token);
    }
    assert!((sum / 2000.0 - 1.2).abs() < 0.02, "{}", sum / 2000.0);
}

#[test]
fn biases_add_up_and_forbid() {
    let biased = |logit_bias: &[(u32, f32)]| Sampler { logit_bias: logit_bias.to_vec(), ..plain() };
    let ln_2 = 2f32.ln();
    expect(&biased(&[(3, ln_2), (1, -ln_2), (3, ln_2)]), &shares(), &[], &[0.5, 0.125, 0.15, 0.4]);
    expect(&biased(&[(0, f32::NEG_INFINITY), (0, 5.0)]), &shares(), &[], &[0.0, 0.25, 0.15, 0.1]);
    let greedy = Sampler { temperature: 0.0, ..biased(&[(2, 9.0)]) };
    assert!(!greedy.is_greedy());
    expect(&greedy, &shares(), &[], &[0.0, 0.0, 1.0, 0.0]);
    let all: Vec<_> = (0..4).map(|token| (token, f32::NEG_INFINITY)).collect();
    for sampler in [biased(&all), Sampler { temperature: 0.0, ..biased(&all) }] {
        let chosen = sampler.choose(&shares(), &[], &mut Surprises::default());
        assert!(matches!(chosen, Err(Error::Sampler { parameter: "logit_bias", .. })), "{chosen:?}");
    }
    // A penalty that makes a forbidden token likelier does not allow it.
    let rewarded = Sampler { frequency_penalty: f32::MIN, ..biased(&[(1, f32::NEG_INFINITY)]) };
    assert!(rewarded.probabilities(&shares(), &[1; 64], &Surprises::default()).unwrap().iter().all(|left| left.0 != 1));
}

/// One sampler for each step, and one with all steps.
fn samplers() -> Vec<Sampler> {
    let breakers = || SequenceBreakers::from_tokens([vec![3], vec![1, 2]]).unwrap();
    vec![
        plain(),
        Sampler::default(),
        Sampler { temperature: 9.0, ..plain() },
        Sampler { dynatemp_range: 0.5, ..plain() },
        Sampler { typical_p: 0.7, ..plain() },
        Sampler { top_n_sigma: 1.0, ..plain() },
        Sampler { xtc_probability: 0.5, ..plain() },
        Sampler { repeat_penalty: 0.5, frequency_penalty: -0.1, presence_penalty: -1.0, ..plain() },
        Sampler { dry_multiplier: 1.0, dry_breakers: breakers(), ..plain() },
        Sampler { mirostat_tau: 3.0, ..plain() },
        Sampler {
            dynatemp_range: 0.3,
            typical_p: 0.95,
            top_n_sigma: 2.0,
            xtc_probability: 0.5,
            repeat_penalty: 1.1,
            frequency_penalty: 0.1,
            presence_penalty: 0.1,
            dry_multiplier: 0.8,
            dry_breakers: breakers(),
            ..Sampler::default()
        },
    ]
}

#[test]
fn a_forbidden_token_is_never_drawn_and_a_seed_repeats() {
    for sampler in samplers() {
        // Limits how far DRY looks back, which keeps this test fast.
        let sampler = Sampler { logit_bias: vec![(4, f32::NEG_INFINITY)], dry_last_n: 64, ..sampler };
        let drawn = |n: usize| {
            let (mut tokens, mut surprises) = (vec![4], Surprises::default());
            for _ in 0..n {
                tokens.push(sampler.choose(&LOGITS, &tokens, &mut surprises).unwrap());
            }
            tokens.split_off(1)
        };
        assert!(!drawn(10_000).contains(&4), "{sampler:?}");
        assert_eq!(drawn(200), drawn(200));
    }
}

/// The sampler as it was before the other steps existed, with the temperature first.
fn simple(sampler: &Sampler, logits: &[f32], position: usize) -> u32 {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    order.truncate(if sampler.top_k > 0 { sampler.top_k } else { usize::MAX });
    let greatest = f64::from(logits[order[0] as usize]);
    let weight = |&token: &u32| ((f64::from(logits[token as usize]) - greatest) / f64::from(sampler.temperature)).exp();
    let mut weights: Vec<f64> = order.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let reached = weights.iter().position(|weight| {
        sum += weight / total;
        sum >= f64::from(sampler.top_p)
    });
    weights.truncate(reached.map_or(weights.len(), |last| last + 1));
    weights.retain(|&weight| weight >= f64::from(sampler.min_p));
    let mut at = sampler.draw(position, Purpose::Token) * weights.iter().sum::<f64>();
    for (&token, weight) in order.iter().zip(&weights) {
        if at < *weight {
            return token;
        }
        at -= weight;
    }
    order[weights.len() - 1]
}

#[test]
fn steps_that_are_off_change_nothing() {
    let logits: Vec<f32> = (0..60).map(|i| ((i * 37 % 60) as f32 * 0.1).sin() * 4.0).collect();
    // Without a temperature its order has no effect, and neither has it without limits of probabilities.
    for sampler in [
        plain(),
        Sampler { temperature: 1.0, ..Sampler::default() },
        Sampler { temperature: 0.8, top_k: 9, ..plain() },
        Sampler { top_p: 0.6, ..plain() },
        Sampler { min_p: 0.2, ..plain() },
    ] {
        // Parameters of disabled steps.
        let off = Sampler {
            dynatemp_exponent: 3.0,
            xtc_threshold: 0.0,
            repeat_last_n: usize::MAX,
            dry_base: 4.0,
            dry_allowed_length: 0,
            mirostat_eta: 1.0,
            dry_breakers: SequenceBreakers::from_tokens([vec![3]]).unwrap(),
            ..sampler.clone()
        };
        for position in 0..1000 {
            let expected = simple(&sampler, &logits, position);
            assert_eq!(choose(&sampler, &logits, position), expected, "{sampler:?} at {position}");
            assert_eq!(choose(&off, &logits, position), expected, "{off:?} at {position}");
        }
    }
}

#[test]
fn parameters_that_make_no_sense_are_errors() {
    type Set = fn(&mut Sampler, f32);
    let fields: [(&str, Set, &[f32]); 16] = [
        ("temperature", |s, x| s.temperature = x, &[-0.1]),
        ("dynatemp_range", |s, x| s.dynatemp_range = x, &[-0.1]),
        ("dynatemp_exponent", |s, x| s.dynatemp_exponent = x, &[-0.1]),
        ("top_p", |s, x| s.top_p = x, &[0.0, -0.1, 1.1]),
        ("min_p", |s, x| s.min_p = x, &[-0.1, 1.1]),
        ("typical_p", |s, x| s.typical_p = x, &[0.0, -0.1, 1.1]),
        ("top_n_sigma", |s, x| s.top_n_sigma = x, &[-1.0]),
        ("xtc_probability", |s, x| s.xtc_probability = x, &[-0.1, 1.1]),
        ("xtc_threshold", |s, x| s.xtc_threshold = x, &[-0.1, 1.1]),
        ("repeat_penalty", |s, x| s.repeat_penalty = x, &[0.0, -1.0]),
        ("frequency_penalty", |s, x| s.frequency_penalty = x, &[]),
        ("presence_penalty", |s, x| s.presence_penalty = x, &[]),
        ("dry_multiplier", |s, x| s.dry_multiplier = x, &[-0.1]),
        ("dry_base", |s, x| s.dry_base = x, &[0.9]),
        ("mirostat_tau", |s, x| s.mirostat_tau = x, &[-0.1]),
        ("mirostat_eta", |s, x| s.mirostat_eta = x, &[-0.1]),
    ];
    for (name, set, values) in fields {
        for &value in values.iter().chain(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
            for mut sampler in [Sampler::default(), Sampler::greedy()] {
                set(&mut sampler, value);
                let error = sampler.choose(&LOGITS, &[], &mut Surprises::default()).unwrap_err();
                assert!(matches!(&error, Error::Sampler { parameter, .. } if *parameter == name), "{value}: {error}");
                assert!(error.to_string().contains("expected"), "{error}");
            }
        }
    }
    for addend in [f32::NAN, f32::INFINITY] {
        let error = Sampler { logit_bias: vec![(1, addend)], ..plain() }.check(5).unwrap_err();
        assert!(matches!(error, Error::Sampler { parameter: "logit_bias", .. }), "{error}");
    }
    let bias = Sampler { logit_bias: vec![(5, 1.0)], ..plain() };
    let dry_breakers = SequenceBreakers::from_tokens([vec![1, 5], vec![2]]).unwrap();
    for sampler in [bias, Sampler { dry_breakers, ..plain() }] {
        assert!(matches!(sampler.check(5), Err(Error::Token { token: 5, vocabulary: 5 })));
        assert!(sampler.check(6).is_ok());
    }
    let empty = SequenceBreakers::from_tokens([vec![1], vec![]]);
    assert!(matches!(empty, Err(Error::Sampler { parameter: "dry_breakers", .. })));
}

#[test]
fn hostile_logits_give_a_token_or_an_error() {
    for sampler in samplers() {
        for logits in [&[][..], &[f32::NAN; 4], &[f32::NEG_INFINITY; 4]] {
            // Breakers contain tokens up to 3.
            let chosen = sampler.choose(logits, &[], &mut Surprises::default());
            assert!(matches!(chosen, Err(Error::Sampler { .. } | Error::Token { .. })), "{chosen:?}");
        }
        let [infinite, huge, one] = [
            [0.0, f32::INFINITY, f32::NAN, f32::INFINITY],
            [f32::MIN, f32::MAX, f32::MIN, 0.0],
            [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, f32::NAN],
        ];
        for logits in [infinite, huge, one] {
            assert_eq!(choose(&sampler, &logits, 3), 1, "{sampler:?} {logits:?}");
        }
    }
}
