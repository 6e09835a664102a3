//! Vocabularies written by hand.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod chain;
pub(crate) mod divided;
pub(crate) mod placed;
pub(crate) mod random_adapter;
pub(crate) mod random_bert;
pub(crate) mod random_folder;
pub(crate) mod random_model;
pub(crate) mod several;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use kiln_gguf::{Gguf, ToValue, Writer};
use kiln_llm::{Result, Tokenizer};

/// The greatest distance of an element, relative to the greatest element.
pub(crate) fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0, |size: f64, x| size.max(x.abs()));
    found.iter().zip(expected).fold(0.0, |far: f64, (&x, y)| far.max((f64::from(x) - y).abs())) / size
}

/// The path of a temporary file or folder that no other test has.
pub(crate) fn temporary(name: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("kiln-llm-{}-{number}-{name}", std::process::id()))
}

/// Metadata of a tokenizer, to be changed by tests.
pub(crate) struct Keys(Vec<(String, Box<dyn ToValue>)>);

impl Keys {
    pub(crate) fn new(model: &'static str) -> Self {
        Self(Vec::new()).with("model", model)
    }

    /// Sets a key below `tokenizer.ggml.`.
    pub(crate) fn with(mut self, key: &str, value: impl ToValue + 'static) -> Self {
        let key = format!("tokenizer.ggml.{key}");
        self.0.retain(|(existing, _)| *existing != key);
        self.0.push((key, Box::new(value)));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        self.0.retain(|(existing, _)| *existing != format!("tokenizer.ggml.{key}"));
        self
    }

    /// The keys and values.
    pub(crate) fn into_entries(self) -> Vec<(String, Box<dyn ToValue>)> {
        self.0
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        for (key, value) in &self.0 {
            writer.set(key, &**value).expect("keys are unique");
        }
        let mut bytes = Vec::new();
        writer.write(&mut bytes).expect("a Vec takes everything");
        bytes
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        let bytes = self.bytes();
        Tokenizer::from_gguf(Gguf::parse(&bytes).expect("the file is valid").metadata())
    }
}

/// Token types, for short.
pub(crate) const NORMAL: i32 = 1;
pub(crate) const UNKNOWN: i32 = 2;
pub(crate) const CONTROL: i32 = 3;
pub(crate) const USER: i32 = 4;
pub(crate) const BYTE: i32 = 6;

/// SentencePiece: the bytes of ä, and a few words.
pub(crate) fn spm() -> Keys {
    let tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA4>", "\u{2581}", "a", "b", "ab", "\u{2581}ab", "<user>", "x"];
    let kinds = vec![UNKNOWN, CONTROL, CONTROL, BYTE, BYTE, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, USER, NORMAL];
    let scores = vec![0.0f32, 0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -1.5, -1.2, 0.0, -9.0];
    Keys::new("llama").with("tokens", tokens.to_vec()).with("token_type", kinds).with("scores", scores)
}

/// BPE with GPT-2's alphabet: all bytes, `ab`, `Ġab`, and an end.
pub(crate) fn bpe() -> Keys {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| alphabet(byte).to_string()).collect();
    tokens.extend(["ab", "\u{120}ab", "<|im_end|>"].map(String::from));
    let mut kinds = vec![NORMAL; 258];
    kinds.push(CONTROL);
    Keys::new("gpt2")
        .with("pre", "gpt-2")
        .with("tokens", tokens)
        .with("token_type", kinds)
        .with("merges", vec!["a b", "\u{120} ab"])
        .with("eos_token_id", 258u32)
}

/// The same with the tokens of the format harmony.
pub(crate) fn harmony() -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| alphabet(byte).to_string()).collect();
    tokens.extend(["ab", "\u{120}ab", "<|return|>"].map(String::from));
    tokens
        .extend(["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>"].map(String::from));
    let mut kinds = vec![NORMAL; 258];
    kinds.extend([CONTROL; 7]);
    bpe().with("tokens", tokens).with("token_type", kinds).tokenizer().unwrap()
}

/// GPT-2's character of a byte, as its own source has it: printable ones first, then the others from 256 on.
pub(crate) fn alphabet(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        char::from(byte)
    } else {
        let before = (0..byte).filter(|&byte| !printable(byte)).count();
        char::from_u32(256 + before as u32).expect("below 0x144")
    }
}

/// WordPiece: a few words and pieces.
pub(crate) fn wordpiece() -> Keys {
    let tokens =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u{2581}un", "able", "\u{2581}cafe", "\u{2581},", "\u{2581}\u{4e2d}"];
    let kinds = vec![CONTROL, CONTROL, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL];
    Keys::new("bert")
        .with("tokens", tokens.to_vec())
        .with("token_type", kinds)
        .with("unknown_token_id", 1u32)
        .with("bos_token_id", 2u32)
        .with("seperator_token_id", 3u32)
}

/// Unigram: two ways to cut `ab`.
pub(crate) fn unigram() -> Keys {
    let tokens = ["<pad>", "</s>", "<unk>", "\u{2581}", "a", "b", "ab", "\u{2581}a"];
    let kinds = vec![CONTROL, CONTROL, UNKNOWN, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL];
    let scores = vec![0.0f32, 0.0, 0.0, -2.0, -1.0, -1.0, -2.5, -2.0];
    Keys::new("t5")
        .with("tokens", tokens.to_vec())
        .with("token_type", kinds)
        .with("scores", scores)
        .with("add_space_prefix", true)
}

/// Numbers of a generator that tests start themselves, between `-size` and `size`: Marsaglia's xorshift.
pub(crate) fn random(mut state: u32) -> impl FnMut(f32) -> f32 {
    move |size| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 2.0 * size
    }
}
