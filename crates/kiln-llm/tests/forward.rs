//! What models compute: small ones of random weights against exact arithmetic, and sessions whatever they are cut into.
#![cfg(not(target_arch = "wasm32"))]

mod support;

use kiln::{DType, Engine, QuantFormat};
use kiln_llm::{Error, Model, Sampler, Session, SessionOptions};
use support::random_model::{KINDS, RandomModel, VOCABULARY};

const TOKENS: [u32; 11] = [1, 6, 7, 8, 11, 9, 5, 6, 6, 3, 10];

/// Keys and values as they are computed.
const EXACT: SessionOptions = SessionOptions { context: None, cache: DType::F32 };

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

/// A model that is saved, loaded and removed.
fn load<'e>(engine: &'e Engine, model: &RandomModel, name: &str) -> kiln_llm::Result<Model<'e>> {
    let path = model.save(name);
    // Read, so that the file may go.
    let loaded = kiln_gguf::Model::read(&path).map_err(Error::from).and_then(|file| Model::from_gguf(engine, file));
    std::fs::remove_file(path).unwrap();
    loaded
}

fn pushed<'m>(model: &'m Model<'m>, options: SessionOptions, tokens: &[u32]) -> Session<'m> {
    let mut session = model.session(options).unwrap();
    session.push(tokens).unwrap();
    session
}

/// The greatest distance between logits, relative to the greatest logit.
fn distance(found: &[f32], expected: &[f64]) -> f64 {
    let size = expected.iter().fold(0.0, |size: f64, x| size.max(x.abs()));
    found.iter().zip(expected).fold(0.0, |far: f64, (&x, y)| far.max((f64::from(x) - y).abs())) / size
}

#[test]
fn logits_are_those_of_exact_arithmetic() {
    let engine = engine();
    for (number, kind) in KINDS.into_iter().enumerate() {
        let random = RandomModel::new(kind);
        let expected = random.reference(&TOKENS);
        let model = load(&engine, &random, &format!("exact-{number}")).unwrap();
        for n in 1..=TOKENS.len() {
            let logits = pushed(&model, EXACT, &TOKENS[..n]).logits().unwrap();
            // Some two hundred roundings of f32, one way.
            let far = distance(&logits, &expected[n - 1]);
            assert!(far < 2e-5, "{} after {n} tokens: {far:e}", kind.name);
        }
        // Keys and values of 16 and of 8 bits, which keep 11 and some 8 bits of a number.
        let last = &expected[TOKENS.len() - 1];
        for (cache, most) in [(DType::F16, 3e-3), (DType::Bf16, 3e-2)] {
            let options = SessionOptions { cache, ..EXACT };
            let far = distance(&pushed(&model, options, &TOKENS).logits().unwrap(), last);
            assert!(far < most, "{} with keys of {cache}: {far:e}", kind.name);
        }
    }
}

#[test]
fn a_text_gives_the_same_however_it_is_cut() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(KINDS[0]), "cut").unwrap();
    let whole = pushed(&model, EXACT, &TOKENS).logits().unwrap();
    for cut in 1..TOKENS.len() {
        let mut session = pushed(&model, EXACT, &TOKENS[..cut]);
        session.logits().unwrap();
        session.push(&TOKENS[cut..]).unwrap();
        let parts = session.logits().unwrap();
        assert!(distance(&parts, &whole.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()) < 1e-5, "{cut}");
        // Asked again, and after other tokens were tried and forgotten.
        assert!(distance(&session.logits().unwrap(), &parts.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()) < 1e-5);
        session.truncate(cut);
        session.push(&[4, 4]).unwrap();
        session.logits().unwrap();
        session.truncate(cut);
        session.push(&TOKENS[cut..]).unwrap();
        assert_eq!(session.logits().unwrap(), parts, "{cut}");
    }
}

#[test]
fn texts_longer_than_the_largest_graph_are_computed_in_parts() {
    let engine = engine();
    let random = RandomModel::new(KINDS[3]);
    let model = load(&engine, &random, "long").unwrap();
    let tokens: Vec<u32> = (0..700).map(|i| (i * 7 + i / 12) % VOCABULARY as u32).collect();
    let expected = random.reference(&tokens);
    let logits = pushed(&model, EXACT, &tokens).logits().unwrap();
    let far = distance(&logits, &expected[699]);
    assert!(far < 5e-5, "{far:e}");
}

#[test]
fn greedy_tokens_are_the_likeliest_and_seeds_repeat() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(KINDS[2]), "greedy").unwrap();
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
fn a_context_that_is_full_and_tokens_that_do_not_exist_are_errors() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(KINDS[0]), "full").unwrap();
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
    // Heads of 6 elements are no whole blocks.
    let blocks = SessionOptions { cache: DType::Blocks(QuantFormat::Q8_0), ..EXACT };
    assert!(matches!(model.session(blocks), Err(Error::Kiln(kiln::Error::Format { .. }))));
}

#[test]
fn weights_that_are_not_numbers_are_reported() {
    let engine = engine();
    let mut random = RandomModel::new(KINDS[0]);
    let down = random.tensors.iter_mut().find(|(name, ..)| name == "blk.1.ffn_down.weight").unwrap();
    down.2[5] = f32::NAN;
    let model = load(&engine, &random, "nan").unwrap();
    assert!(matches!(pushed(&model, EXACT, &TOKENS).logits(), Err(Error::NotANumber { .. })));
    for sampler in [Sampler::greedy(), Sampler::default()] {
        let mut session = pushed(&model, EXACT, &TOKENS);
        let made: Vec<_> = session.generate(&sampler, 9).collect();
        assert!(matches!(&made[..], [Err(Error::NotANumber { .. })]), "{made:?}");
    }
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let engine = engine();
    let plain = || RandomModel::new(KINDS[0]);
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
        ("llama.expert_count", 8),
        ("llama.attention.sliding_window", 100),
    ] {
        let error = wrong(plain().with(key, value), "keys");
        assert!(matches!(error, Error::Model { .. }), "{key} = {value}: {error}");
    }
    for (key, value) in [
        ("llama.attention.layer_norm_rms_epsilon", f32::NAN),
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.rope.freq_base", -1.0),
        ("llama.attention.scale", f32::INFINITY),
    ] {
        let error = wrong(plain().with(key, value), "numbers");
        assert!(matches!(error, Error::Model { .. }), "{key} = {value}: {error}");
    }
    let scaled = wrong(plain().with("llama.rope.scaling.type", "yarn"), "scaled");
    assert!(matches!(scaled, Error::Model { .. }));
    let text = wrong(plain().with("llama.block_count", "two"), "text");
    assert!(matches!(text, Error::File(kiln_gguf::Error::Value { .. })));
}
