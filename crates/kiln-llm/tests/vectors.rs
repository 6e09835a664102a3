//! The vocabularies of llama.cpp and the tokens that their own tokenizers made of its texts.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;

use std::path::Path;

use kiln_gguf::Gguf;
use kiln_llm::{Encoding, Tokenizer};
use skip::skip;

/// The folder of the vocabularies, where they are.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kiln/llama.cpp");

/// Every vocabulary with texts and tokens.
const VOCABULARIES: &[&str] = &[
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

/// Without texts: they must load.
const WITHOUT_VECTORS: &[&str] = &["aquila", "baichuan", "gpt-neox", "nomic-bert-moe"];

/// Whether the vocabularies are there. Says how to get them where they are not, or fails with `KILN_REQUIRE=models`.
fn are_there() -> bool {
    let there = Path::new(FOLDER).join("ggml-vocab-qwen2.gguf").exists();
    if !there {
        let why = "the vocabularies of llama.cpp are not in target/kiln/llama.cpp: python3 xtask/src/test/sdist.py \
                   llama-cpp-python 0.3.36 target/kiln/llama.cpp vendor/llama.cpp/models";
        skip("models", why);
    }
    there
}

fn file(name: &str) -> Gguf<'static> {
    Gguf::open(format!("{FOLDER}/ggml-vocab-{name}.gguf")).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_gguf(file(name).metadata()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Texts and their tokens.
fn vectors(name: &str) -> Vec<(String, Vec<u32>)> {
    let read = |ending| std::fs::read_to_string(format!("{FOLDER}/ggml-vocab-{name}.gguf.{ending}")).unwrap();
    let (texts, tokens) = (read("inp"), read("out"));
    let texts = texts.split("\n__ggml_vocab_test__\n");
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    texts.map(str::to_owned).zip(tokens.lines().map(ids)).collect()
}

#[test]
fn tokens_are_those_of_the_vectors() {
    if !are_there() {
        return;
    }
    let mut failures = Vec::new();
    for name in VOCABULARIES {
        let tokenizer = tokenizer(name);
        let vectors = vectors(name);
        assert!(vectors.len() >= 40, "{name}");
        let plain = Encoding { add_special: false, parse_special: false };
        let mut wrong = 0;
        for (text, expected) in &vectors {
            let found = tokenizer.encode_with(text, plain);
            if found != *expected {
                wrong += 1;
                if wrong <= 3 {
                    failures.push(format!("{name}: {text:?}\n  expected {expected:?}\n  found    {found:?}"));
                }
            }
        }
        println!("{name}: {wrong} of {} wrong", vectors.len());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn vocabularies_without_vectors_load() {
    if !are_there() {
        return;
    }
    for name in WITHOUT_VECTORS {
        let tokenizer = tokenizer(name);
        let tokens = tokenizer.encode("Hello world");
        println!("{name}: {tokens:?} {:?}", tokenizer.decode(&tokens));
    }
}

/// The `tokenizer.json` that this vocabulary had, as far as it matters: bytes, split by an expression.
fn json(name: &str, expression: &str, whole_words: bool) -> String {
    let file = file(name);
    let metadata = file.metadata();
    let texts: Vec<&str> = metadata.get("tokenizer.ggml.tokens").unwrap();
    let kinds: Vec<i32> = metadata.get("tokenizer.ggml.token_type").unwrap();
    let merges: Vec<&str> = metadata.get("tokenizer.ggml.merges").unwrap();
    let tokens = || texts.iter().zip(&kinds).enumerate();
    let vocab: serde_json::Map<_, _> =
        tokens().filter(|(_, (_, kind))| **kind == 1).map(|(id, (&text, _))| (text.into(), id.into())).collect();
    let added = tokens().filter(|(_, (_, kind))| **kind != 1);
    let added: Vec<_> = added
        .map(|(id, (&text, kind))| serde_json::json!({"id": id, "content": text, "special": *kind == 3}))
        .collect();
    serde_json::json!({
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": whole_words},
    })
    .to_string()
}

#[test]
fn tokens_of_tokenizer_json_are_those_of_the_vectors() {
    if !are_there() {
        return;
    }
    let digits = |n: &str| {
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{n}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    for (name, expression, whole_words) in [("qwen2", digits(""), false), ("llama-bpe", digits("{1,3}"), true)] {
        let tokenizer = Tokenizer::from_json(&json(name, &expression, whole_words)).unwrap();
        for (text, expected) in vectors(name) {
            let plain = Encoding { add_special: false, parse_special: false };
            assert_eq!(tokenizer.encode_with(&text, plain), expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    if !are_there() {
        return;
    }
    // WordPiece removes cases and accents; the others preserve every text.
    for name in VOCABULARIES.iter().filter(|&&name| name != "bert-bge") {
        let tokenizer = tokenizer(name);
        for (text, _) in vectors(name) {
            let tokens = tokenizer.encode(&text);
            assert_eq!(tokenizer.decode(&tokens), text, "{name}");
            let mut decoder = tokenizer.decoder().from_start();
            let mut streamed = String::new();
            tokens.iter().for_each(|&token| streamed.push_str(decoder.push(token)));
            assert_eq!(streamed + decoder.finish(), text, "{name}");
        }
    }
}

/// Time that this thread has run on a processor: other programs may be busy.
fn processor_time() -> std::time::Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").expect("it is measured on Linux");
    let nanoseconds = statistics.split(' ').next().and_then(|first| first.parse().ok());
    std::time::Duration::from_nanos(nanoseconds.expect("the first number is the time"))
}

/// Times of loading vocabularies and of encoding, in a release build:
/// `cargo test --release -p kiln-llm --test vectors -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    if !are_there() {
        return;
    }
    // Prose, code and other scripts: the sources of this crate, and the texts of the vectors.
    let mut text = include_str!("../src/tokenizer/mod.rs").repeat(20);
    text.extend(vectors("llama-bpe").iter().map(|(text, _)| text.as_str()));
    for name in ["llama-bpe", "qwen2", "gpt-2", "command-r", "llama-spm", "gemma-4", "bert-bge"] {
        let file = file(name);
        let best = |mut of: Box<dyn FnMut() -> usize>| {
            let timed = (0..5).map(|_| {
                let start = processor_time();
                let n = of();
                (processor_time() - start, n)
            });
            timed.min().unwrap()
        };
        let (load, size) = best(Box::new(|| Tokenizer::from_gguf(file.metadata()).unwrap().len()));
        let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
        let text = text.clone();
        let (time, tokens) = best(Box::new(move || tokenizer.encode(&text).len()));
        let rate = tokens as f64 / time.as_secs_f64() / 1e6;
        println!("{name:<10} {size:>6} tokens loaded in {load:>10.1?}; {tokens} tokens, {rate:.2} M/s");
    }
}
