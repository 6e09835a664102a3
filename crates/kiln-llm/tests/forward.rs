//! What models compute: small ones of random weights against exact arithmetic, and sessions whatever they are cut into.

use std::collections::HashSet;

use kiln::{DType, Engine, QuantFormat};
use kiln_llm::{Error, Loader, Model, Sampler, Session, SessionOptions};

use crate::support::random_model::{
    Divisors, GEMMA2, GEMMA2_LARGE, GEMMA3, GPT_OSS, KINDS, Kind, LLAMA, MIXTRAL, PHI3, QWEN2, QWEN3, QWEN3_MOE,
    RandomModel, VOCABULARY,
};
use crate::support::{distance, several};

const TOKENS: [u32; 11] = [1, 6, 7, 8, 11, 9, 5, 6, 6, 3, 10];

/// Keys and values as they are computed.
const EXACT: SessionOptions = SessionOptions { context: None, cache: DType::F32 };

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

/// A model that is saved, loaded and removed.
fn load<'e>(engine: &'e Engine, model: &RandomModel, name: &str) -> kiln_llm::Result<Model<'e>> {
    let path = model.save(name);
    // Read into memory, so that the file can be deleted.
    let loaded = kiln_gguf::Model::read(&path).map_err(Error::from).and_then(|file| Model::from_gguf(engine, file));
    std::fs::remove_file(path).unwrap();
    loaded
}

fn pushed<'m>(model: &'m Model<'m>, options: SessionOptions, tokens: &[u32]) -> Session<'m> {
    let mut session = model.session(options).unwrap();
    session.push(tokens).unwrap();
    session
}

#[test]
fn logits_are_those_of_exact_arithmetic() {
    let engine = engine();
    for (number, kind) in KINDS.into_iter().enumerate() {
        let random = RandomModel::new(kind);
        let expected = random.reference(&TOKENS);
        let model = load(&engine, &random, &format!("exact-{number}")).unwrap();
        let name = format!("{number} ({})", kind.name);
        for n in 1..=TOKENS.len() {
            let logits = pushed(&model, EXACT, &TOKENS[..n]).logits().unwrap();
            // Some two hundred roundings of f32 in the same direction.
            let far = distance(&logits, &expected[n - 1]);
            assert!(far < 2e-5, "{name} after {n} tokens: {far:e}");
        }
        // Keys and values in 16-bit and 8-bit types, with 11 and about 8 significant bits.
        let last = &expected[TOKENS.len() - 1];
        for (cache, most) in [(DType::F16, 3e-3), (DType::Bf16, 3e-2)] {
            let options = SessionOptions { cache, ..EXACT };
            let far = distance(&pushed(&model, options, &TOKENS).logits().unwrap(), last);
            assert!(far < most, "{name} with keys of {cache}: {far:e}");
        }
    }
}

#[test]
fn the_largest_gemma_2_scales_scores_by_its_width() {
    let engine = engine();
    let random = RandomModel::new(GEMMA2_LARGE);
    let model = load(&engine, &random, "gemma2-large").unwrap();
    let far = distance(&pushed(&model, EXACT, &TOKENS).logits().unwrap(), &random.reference(&TOKENS)[TOKENS.len() - 1]);
    // Some thousand roundings.
    assert!(far < 1e-4, "{far:e}");
}

#[test]
fn a_text_gives_the_same_however_it_is_cut() {
    let engine = engine();
    for kind in [LLAMA, GEMMA3, MIXTRAL, QWEN3_MOE, GPT_OSS] {
        let model = load(&engine, &RandomModel::new(kind), &format!("cut-{}", kind.name)).unwrap();
        let whole = pushed(&model, EXACT, &TOKENS).logits().unwrap();
        let wide = |logits: &[f32]| logits.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        for cut in 1..TOKENS.len() {
            let mut session = pushed(&model, EXACT, &TOKENS[..cut]);
            session.logits().unwrap();
            session.push(&TOKENS[cut..]).unwrap();
            let parts = session.logits().unwrap();
            assert!(distance(&parts, &wide(&whole)) < 1e-5, "{} {cut}", kind.name);
            // Requested again, and after other tokens were tried and removed.
            assert!(distance(&session.logits().unwrap(), &wide(&parts)) < 1e-5);
            session.truncate(cut);
            session.push(&[4, 4]).unwrap();
            session.logits().unwrap();
            session.truncate(cut);
            session.push(&TOKENS[cut..]).unwrap();
            assert_eq!(session.logits().unwrap(), parts, "{} {cut}", kind.name);
        }
    }
}

#[test]
fn texts_longer_than_the_largest_graph_are_computed_in_parts() {
    let engine = engine();
    let tokens: Vec<u32> = (0..700).map(|i| (i * 7 + i / 12) % VOCABULARY as u32).collect();
    // Windows that begin inside a part, and before the part in which they end.
    for kind in [QWEN3, Kind { window: Some(150), ..GEMMA2 }, Kind { window: Some(600), ..GEMMA3 }, QWEN3_MOE, GPT_OSS]
    {
        let random = RandomModel::new(kind);
        let model = load(&engine, &random, &format!("long-{}", kind.name)).unwrap();
        let expected = random.reference(&tokens);
        for n in [511, 513, 700] {
            let far = distance(&pushed(&model, EXACT, &tokens[..n]).logits().unwrap(), &expected[n - 1]);
            assert!(far < 1e-4, "{} after {n}: {far:e}", kind.name);
        }
    }
}

#[test]
fn prompts_can_be_computed_part_by_part() {
    let engine = engine();
    let tokens: Vec<u32> = (0..700).map(|i| (i * 7 + i / 12) % VOCABULARY as u32).collect();
    let model = load(&engine, &RandomModel::new(LLAMA), "prefill").unwrap();
    let whole = pushed(&model, EXACT, &tokens).logits().unwrap();
    let mut session = pushed(&model, EXACT, &tokens);
    let mut left = Vec::new();
    while left.last() != Some(&0) {
        left.push(session.prefill().unwrap());
    }
    assert_eq!(left, [188, 124, 0]);
    assert_eq!(session.prefill().unwrap(), 0, "the last part is for the token that follows");
    assert_eq!(session.logits().unwrap(), whole);
    assert_eq!(session.prefill().unwrap(), 0);
    // Half of it, then other tokens.
    let mut session = pushed(&model, EXACT, &tokens);
    assert_eq!(session.prefill().unwrap(), 188);
    assert_eq!(session.replace(&tokens[..600]).unwrap(), 512);
    let short = pushed(&model, EXACT, &tokens[..600]).logits().unwrap();
    assert_eq!(session.logits().unwrap(), short);
    assert_eq!(model.session(EXACT).unwrap().prefill().unwrap(), 0, "there is nothing to compute");
}

#[test]
fn long_factors_are_those_of_contexts_beyond_the_original_one() {
    let engine = engine();
    let random = RandomModel::new(PHI3);
    let short = RandomModel::new(Kind { divisors: Divisors::ByContext(false), ..PHI3 });
    let model = load(&engine, &random, "longrope").unwrap();
    let last = TOKENS.len() - 1;
    for (context, random) in [(600, &short), (601, &random)] {
        let options = SessionOptions { context: Some(context), ..EXACT };
        let far = distance(&pushed(&model, options, &TOKENS).logits().unwrap(), &random.reference(&TOKENS)[last]);
        assert!(far < 2e-5, "a context of {context}: {far:e}");
    }
    // The results differ.
    assert!(
        short.reference(&TOKENS)[last].iter().zip(&random.reference(&TOKENS)[last]).any(|(a, b)| (a - b).abs() > 1e-3)
    );
}

#[test]
fn greedy_tokens_are_the_likeliest_and_seeds_repeat() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(QWEN2), "greedy").unwrap();
    let mut session = pushed(&model, EXACT, &TOKENS[..3]);
    for _ in 0..8 {
        let logits = session.logits().unwrap();
        let likeliest = (0..VOCABULARY).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_eq!(session.sample(&Sampler::greedy()).unwrap() as usize, likeliest);
    }
    assert_eq!(session.tokens().len(), 11);
    let drawn = |seed: u64| {
        let mut session = pushed(&model, EXACT, &TOKENS[..3]);
        let sampler = Sampler { temperature: 2.0, seed, ..Sampler::default() };
        (0..20).map(|_| session.sample(&sampler).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn samplers_see_the_tokens_of_the_session() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(QWEN2), "sampling").unwrap();
    // A token is repeated only after all others were used.
    let penalties = Sampler { presence_penalty: 1e6, repeat_last_n: usize::MAX, ..Sampler::greedy() };
    let mut session = pushed(&model, EXACT, &TOKENS[..3]);
    let prompt: HashSet<u32> = TOKENS[..3].iter().copied().collect();
    for _ in prompt.len()..VOCABULARY {
        session.sample(&penalties).unwrap();
    }
    assert_eq!(session.tokens().iter().collect::<HashSet<_>>().len(), VOCABULARY, "{:?}", session.tokens());
    // Forbidden and invalid tokens are not added.
    let tokens = session.tokens().to_vec();
    let logit_bias = (0..VOCABULARY as u32).map(|token| (token, f32::NEG_INFINITY)).collect();
    let nothing = Sampler { logit_bias, ..Sampler::default() };
    assert!(matches!(session.sample(&nothing), Err(Error::Sampler { parameter: "logit_bias", .. })));
    let wrong = Sampler { top_p: f32::NAN, ..Sampler::greedy() };
    assert!(matches!(session.sample(&wrong), Err(Error::Sampler { parameter: "top_p", .. })));
    let unknown = Sampler { logit_bias: vec![(VOCABULARY as u32, 1.0)], ..Sampler::default() };
    assert!(matches!(session.sample(&unknown), Err(Error::Token { .. })));
    assert_eq!(session.tokens(), tokens);
}

#[test]
fn the_state_of_mirostat_follows_the_session() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(QWEN2), "mirostat").unwrap();
    let sampler = Sampler { temperature: 1.5, mirostat_tau: 1.5, mirostat_eta: 1.0, seed: 5, ..Sampler::default() };
    let sample =
        |session: &mut Session, n: usize| -> Vec<u32> { (0..n).map(|_| session.sample(&sampler).unwrap()).collect() };
    let mut session = pushed(&model, EXACT, &TOKENS[..3]);
    let made = sample(&mut session, 30);
    // Another session, whose prompt is pushed in parts with a computation between.
    let mut parts = pushed(&model, EXACT, &TOKENS[..1]);
    parts.logits().unwrap();
    parts.push(&TOKENS[1..3]).unwrap();
    assert_eq!(sample(&mut parts, 30), made);
    for keep in [3, 4, 12, 32] {
        session.truncate(keep);
        assert_eq!(sample(&mut session, 33 - keep), &made[keep - 3..], "{keep}");
        // Other tokens, which are then replaced by the original ones.
        session.truncate(keep);
        session.push(&[4, 4]).unwrap();
        sample(&mut session, 3);
        session.replace(&[&TOKENS[..3], &made[..keep - 3]].concat()).unwrap();
        assert_eq!(sample(&mut session, 33 - keep), &made[keep - 3..], "{keep}");
    }
    // Tokens that are pushed in place of drawn ones do not have the surprises of these.
    session.truncate(3);
    session.push(&made[..10]).unwrap();
    let pushed_again = sample(&mut session, 20);
    // The state matters: the same tokens as a prompt have another continuation.
    let mut fresh = pushed(&model, EXACT, &[&TOKENS[..3], &made[..10]].concat());
    let made_fresh = sample(&mut fresh, 20);
    assert_ne!(made_fresh, &made[10..]);
    assert_eq!(made_fresh, pushed_again);
}

#[test]
fn scores_are_the_logarithms_of_probabilities() {
    let engine = engine();
    for kind in [LLAMA, GEMMA2, MIXTRAL] {
        let random = RandomModel::new(kind);
        let model = load(&engine, &random, &format!("score-{}", kind.name)).unwrap();
        // More than the rows of the largest graph.
        let tokens: Vec<u32> = (0..600).map(|i| (i * 7 + i / 12) % VOCABULARY as u32).collect();
        let expected = random.reference(&tokens);
        let of = |i: usize| {
            let total: f64 = expected[i - 1].iter().map(|logit| logit.exp()).sum();
            expected[i - 1][tokens[i] as usize] - total.ln()
        };
        for (before, end) in [(1, 600), (3, 5), (590, 600), (4, 4)] {
            let mut session = pushed(&model, EXACT, &tokens[..before]);
            let scores = session.score(&tokens[before..end]).unwrap();
            assert_eq!((scores.len(), session.tokens()), (end - before, &tokens[..end]));
            for (i, &score) in (before..end).zip(&scores) {
                assert!((f64::from(score) - of(i)).abs() < 1e-4, "{} {before}: {i} {score} {}", kind.name, of(i));
            }
            // Scores do not change the continuation.
            let logits = session.logits().unwrap();
            assert!(distance(&logits, &expected[end - 1]) < 1e-4, "{before} to {end}");
        }
    }
    let model = load(&engine, &RandomModel::new(LLAMA), "score-errors").unwrap();
    let mut session = model.session(SessionOptions { context: Some(4), ..EXACT }).unwrap();
    assert!(matches!(session.score(&[1]), Err(Error::Model { .. })), "nothing before");
    session.push(&TOKENS[..2]).unwrap();
    assert!(matches!(session.score(&TOKENS[..3]), Err(Error::ContextFull { context: 4, asked: 5 })));
    assert!(matches!(session.score(&[99]), Err(Error::Token { token: 99, .. })));
    assert_eq!(session.tokens(), &TOKENS[..2]);
}

#[test]
fn a_context_that_is_full_and_tokens_that_do_not_exist_are_errors() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(LLAMA), "full").unwrap();
    let mut session = model.session(SessionOptions { context: Some(4), ..EXACT }).unwrap();
    assert!(matches!(session.logits(), Err(Error::Model { .. })), "nothing to follow");
    assert!(matches!(session.push(&TOKENS[..5]), Err(Error::ContextFull { context: 4, asked: 5 })));
    assert!(matches!(session.push(&[1, 12]), Err(Error::Token { token: 12, vocabulary: 12 })));
    assert!(session.tokens().is_empty());
    session.push(&TOKENS[..3]).unwrap();
    session.sample(&Sampler::greedy()).unwrap();
    assert!(matches!(session.sample(&Sampler::greedy()), Err(Error::ContextFull { context: 4, asked: 5 })));
    session.truncate(2);
    let seeded = Sampler { seed: 3, ..Sampler::default() };
    let made: Vec<_> = session.generate(&seeded, 2).map(|made| made.unwrap().token).collect();
    assert_eq!((session.tokens().len(), &session.tokens()[2..]), (4, &made[..]));
    for context in [0, usize::MAX] {
        let options = SessionOptions { context: Some(context), ..EXACT };
        assert!(matches!(model.session(options), Err(Error::Model { .. })), "{context}");
    }
    // Heads of 6 elements are not whole blocks.
    let blocks = SessionOptions { cache: DType::Blocks(QuantFormat::Q8_0), ..EXACT };
    assert!(matches!(model.session(blocks), Err(Error::Kiln(kiln::Error::Format { .. }))));
}

#[test]
fn weights_that_are_not_numbers_are_reported() {
    let engine = engine();
    let mut random = RandomModel::new(LLAMA);
    let down = random.tensors.iter_mut().find(|(name, ..)| name == "blk.1.ffn_down.weight").unwrap();
    down.2[5] = f32::NAN;
    let model = load(&engine, &random, "nan").unwrap();
    assert!(matches!(pushed(&model, EXACT, &TOKENS).logits(), Err(Error::NotANumber { .. })));
    for sampler in [Sampler::greedy(), Sampler::default()] {
        let mut session = pushed(&model, EXACT, &TOKENS);
        let made: Vec<_> = session.generate(&sampler, 9).collect();
        assert!(matches!(&made[..], [Err(Error::NotANumber { .. })]), "{made:?}");
    }
    let mut session = pushed(&model, EXACT, &TOKENS[..3]);
    assert!(matches!(session.score(&TOKENS[3..]), Err(Error::NotANumber { .. })));
    assert_eq!(session.tokens(), &TOKENS[..3]);
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let engine = engine();
    let plain = || RandomModel::new(LLAMA);
    let wrong = |model: RandomModel, name: &str| load(&engine, &model, name).err().unwrap();
    let mut lacking = plain();
    lacking.tensors.retain(|(name, ..)| name != "blk.1.attn_k.weight");
    assert!(matches!(wrong(lacking, "lacking"), Error::File(kiln_gguf::Error::MissingTensor { .. })));
    let mut turned = plain();
    let up = turned.tensors.iter_mut().find(|(name, ..)| name == "blk.0.ffn_up.weight").unwrap();
    up.1.reverse();
    let error = wrong(turned, "turned");
    assert!(matches!(&error, Error::Model { reason, .. } if reason.contains("blk.0.ffn_up.weight")), "{error}");
    let unknown = wrong(plain().with("general.architecture", "gpt-x\u{1b}"), "unknown");
    assert!(matches!(&unknown, Error::UnsupportedArchitecture { supported, .. } if supported.contains("qwen3")));
    assert!(!unknown.to_string().contains('\u{1b}'), "{unknown}");
    for (key, value) in [
        ("llama.block_count", 513u32),
        ("llama.block_count", 0),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.key_length", 0),
        ("llama.rope.dimension_count", 5),
        ("llama.rope.dimension_count", 8),
        ("llama.context_length", u32::MAX),
        ("llama.embedding_length", 25),
        ("llama.feed_forward_length", u32::MAX),
        ("llama.attention.head_count", u32::MAX),
        ("llama.attention.key_length_swa", 4),
        ("llama.rope.scaling.original_context_length", 0),
    ] {
        let error = wrong(plain().with(key, value), "keys");
        assert!(matches!(error, Error::Model { .. }), "{key} = {value}: {error}");
    }
    for (key, value) in [
        ("llama.attention.layer_norm_rms_epsilon", f32::NAN),
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.rope.freq_base", -1.0),
        ("llama.attention.scale", f32::INFINITY),
        ("llama.embedding_scale", f32::NAN),
        ("llama.residual_scale", 0.0),
        ("llama.logit_scale", -1.0),
        ("llama.attn_logit_softcapping", -50.0),
        ("llama.final_logit_softcapping", f32::INFINITY),
        ("llama.attention.clamp_kqv", 8.0),
        ("llama.rope.scaling.factor", -2.0),
        ("llama.rope.scaling.attn_factor", 0.0),
    ] {
        let error = wrong(plain().with(key, value), "numbers");
        assert!(matches!(error, Error::Model { .. }), "{key} = {value}: {error}");
    }
    let model_error = |model: RandomModel, expected: &str| {
        let error = wrong(model, "what");
        assert!(matches!(&error, Error::Model { reason, .. } if reason.contains(expected)), "{expected}: {error}");
    };
    model_error(plain().with("llama.rope.scaling.type", "dynamic\u{1b}"), "dynamic\\u{1b}");
    model_error(plain().with("llama.attention.causal", false), "later tokens");
    let scaled =
        |kind: &'static str| plain().with("llama.rope.scaling.type", kind).with("llama.rope.scaling.factor", 4.0f32);
    model_error(scaled("longrope"), "longrope");
    for (key, value) in [
        ("llama.rope.freq_base", 1.0f32),
        ("llama.rope.scaling.yarn_beta_fast", 0.0),
        ("llama.rope.scaling.yarn_beta_slow", f32::NAN),
        ("llama.rope.scaling.yarn_ext_factor", 1.5),
        ("llama.rope.scaling.yarn_attn_factor", -1.0),
        ("llama.rope.scaling.yarn_log_multiplier", -1.0),
    ] {
        model_error(scaled("yarn").with(key, value), key.trim_start_matches("llama."));
    }
    // Experts that an architecture does not have or must have, contradictory numbers of experts, and unsupported
    // features of experts.
    let mixture = || RandomModel::new(QWEN3_MOE);
    model_error(RandomModel::new(QWEN2).with("qwen2.expert_count", 8u32), "mixtures of experts");
    model_error(mixture().with("qwen3moe.expert_count", 0u32), "expert_count");
    for (key, value, expected) in [
        ("expert_used_count", 0u32, "0 of 7 experts"),
        ("expert_used_count", 8, "8 of 7 experts"),
        ("expert_count", u32::MAX, "of 4294967295 experts"),
        ("expert_count", 8, "blk.0.ffn_gate_inp.weight"),
        ("expert_feed_forward_length", 0, "expert_feed_forward_length is zero"),
        ("expert_feed_forward_length", u32::MAX, "a matrix of"),
        ("expert_feed_forward_length", 24, "blk.0.ffn_gate_exps.weight"),
        ("expert_shared_count", 1, "expert_shared_count"),
        ("expert_shared_feed_forward_length", 64, "expert_shared_feed_forward_length"),
        ("expert_group_count", 8, "expert_group_count"),
        ("expert_gating_func", 2, "expert_gating_func"),
        ("leading_dense_block_count", 1, "leading_dense_block_count"),
    ] {
        model_error(mixture().with(&format!("qwen3moe.{key}"), value), expected);
    }
    model_error(mixture().with("qwen3moe.expert_weights_scale", 0.0f32), "expert_weights_scale");
    let mut biased = mixture();
    biased.tensors.push(("blk.0.exp_probs_b.bias".to_owned(), vec![7], vec![0.5; 7]));
    model_error(biased, "blk.0.exp_probs_b.bias");
    let mut lacking = mixture();
    lacking.tensors.retain(|(name, ..)| !name.starts_with("blk.1.ffn_up."));
    let error = wrong(lacking, "experts");
    assert!(matches!(&error, Error::File(kiln_gguf::Error::MissingTensor { .. })), "{error}");
    // Factors in two forms, and half of them.
    let factors = |mut model: RandomModel, name: &str| {
        model.tensors.push((name.to_owned(), vec![3], vec![2.0; 3]));
        model
    };
    model_error(factors(scaled("linear"), "rope_freqs.weight"), "rope_freqs");
    let both = factors(factors(plain(), "rope_factors_long.weight"), "rope_factors_short.weight");
    model_error(factors(both, "rope_freqs.weight"), "rope_factors_long");
    let half = wrong(factors(plain(), "rope_factors_long.weight"), "half");
    assert!(matches!(half, Error::File(kiln_gguf::Error::MissingTensor { .. })), "{half}");
    // Windows without a pattern, and for another number of layers.
    let windowed = |kind: Kind| RandomModel::new(Kind { window: Some(4), ..kind });
    model_error(windowed(QWEN2), "sliding_window_pattern");
    let three = vec![true, false, true];
    model_error(windowed(LLAMA).with("llama.attention.sliding_window_pattern", three), "3 layers of 2");
    model_error(plain().with("llama.rope.freq_base_swa", 5e5f32), "freq_base_swa");
    // Tensors that exist and are unused.
    model_error(factors(plain(), "blk.1.attn_sinks.weight"), "blk.1.attn_sinks.weight");
    model_error(factors(plain(), "output.bias"), "output.bias");
    // Tensors that an architecture requires.
    for name in
        ["blk.3.post_ffw_norm.weight", "blk.0.attn_q_norm.weight", "rope_factors_short.weight", "blk.1.ffn_down.weight"]
    {
        let kind = if name.starts_with("rope") { PHI3 } else { GEMMA3 };
        let mut model = RandomModel::new(kind);
        model.tensors.retain(|(known, ..)| known != name);
        let error = wrong(model, "lacks");
        assert!(matches!(&error, Error::File(kiln_gguf::Error::MissingTensor { .. })), "{name}: {error}");
    }
    for part in ["attn_sinks", "post_attention_norm"] {
        let name = format!("blk.2.{part}.weight");
        let mut model = RandomModel::new(GPT_OSS);
        model.tensors.retain(|(known, ..)| *known != name);
        let error = wrong(model, "lacks-gpt-oss");
        assert!(matches!(&error, Error::File(kiln_gguf::Error::MissingTensor { .. })), "{name}: {error}");
    }
    let mut short = RandomModel::new(GPT_OSS);
    let sinks = short.tensors.iter_mut().find(|(name, ..)| name == "blk.0.attn_sinks.weight").unwrap();
    (sinks.1[0], sinks.2) = (1, vec![0.0]);
    model_error(short, "blk.0.attn_sinks.weight");
    let text = wrong(plain().with("llama.block_count", "two"), "text");
    assert!(matches!(text, Error::File(kiln_gguf::Error::Value { .. })));
}

#[test]
fn several_sequences_together_get_the_tokens_of_each_alone() {
    // Windows, caps, norms of heads, sinks, and caches of every floating-point type.
    let kinds: [(Kind, DType, &[usize]); 5] = [
        (LLAMA, DType::F16, &[0, 1, 2, 3]),
        (QWEN3, DType::Bf16, &[0, 3]),
        (GEMMA2, DType::F32, &[0, 3]),
        (GEMMA3, DType::F16, &[1, 2]),
        (GPT_OSS, DType::F32, &[0, 3]),
    ];
    several::together_is_as_alone(&engine(), &kinds, 300);
}

#[test]
fn sequences_come_and_go_while_others_go_on() {
    several::sequences_come_and_go(&engine(), 300);
}

#[test]
fn on_the_cpu_no_step_of_sequences_is_begun_ahead() {
    several::greedy_steps_begin_ahead(&engine(), false);
}

#[test]
fn sequences_leave_while_a_step_is_under_way() {
    several::steps_outlive_their_sequences(&engine());
}

#[test]
fn sequences_end_and_what_is_wrong_with_one_names_it() {
    several::sequences_end_and_errors_name_them(&engine());
}

#[test]
fn candidates_give_the_tokens_that_all_logits_give() {
    several::candidates_are_those_of_all_logits(&engine(), 4);
}

#[test]
fn a_model_from_parts_of_its_file_is_that_of_the_whole() {
    let engine = engine();
    for kind in [LLAMA, PHI3] {
        let random = RandomModel::new(kind);
        let path = random.save(&format!("parts-{}", kind.name));
        let file = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let whole = load(&engine, &random, &format!("parts-whole-{}", kind.name)).unwrap();
        let expected = pushed(&whole, EXACT, &TOKENS).logits().unwrap();
        for size in [1, 7, 1000, file.len()] {
            let mut loader = Loader::new(file.len() as u64);
            let (mut weights, mut planned) = (0, 0);
            for part in file.chunks(size) {
                loader.push(part).unwrap();
                weights += loader.completed().iter().map(|tensor| tensor.ty().bytes()).sum::<usize>();
                planned += usize::from(loader.plan().is_some());
            }
            let plan = loader.plan().unwrap().clone();
            // Known before the weights arrive, if the parts are small enough.
            assert!(size == file.len() || planned > 1, "{size}");
            assert_eq!((plan.architecture, plan.context, plan.weights), (kind.name, whole.context(), weights));
            assert!(plan.largest < weights && plan.parameters > 0 && plan.layers > 0);
            assert_eq!(plan.cache(Some(20), DType::F32), 2 * plan.cache(Some(20), DType::F16));
            let model = loader.finish(&engine).unwrap();
            assert_eq!(model.tokenizer().len(), whole.tokenizer().len());
            assert_eq!(pushed(&model, EXACT, &TOKENS).logits().unwrap(), expected, "{size}");
        }
        let with = |length: u64, bytes: &[u8]| {
            let mut loader = Loader::new(length);
            loader.push(bytes)?;
            loader.finish(&engine).map(drop)
        };
        let length = file.len() as u64;
        assert!(matches!(with(length, &file[..file.len() - 1]), Err(Error::Model { .. })));
        assert!(matches!(with(length - 1, &file), Err(Error::Model { .. })));
        // There may be padding after the last tensor.
        let short = with(length - 100, &file[..file.len() - 100]);
        assert!(matches!(short, Err(Error::File(kiln_gguf::Error::Outside { .. }))));
        // After an error nothing makes up for the bytes that are missing.
        let mut loader = Loader::new(length);
        assert!(loader.push(&[7; 5000]).is_err());
        assert!(matches!(loader.push(&file), Err(Error::Model { .. })));
        assert!(matches!(loader.finish(&engine).map(drop), Err(Error::Model { .. })));
        for none in [&b""[..], b"GG", &[7; 5000]] {
            assert!(matches!(with(none.len() as u64, none), Err(Error::File(kiln_gguf::Error::Magic { .. }))));
        }
    }
}
