//! Vocabularies of GGUF files and of `tokenizer.json`, and texts.

use kiln_gguf::Gguf;
use kiln_llm::{Encoding, Tokenizer};
use serde_json::{Value, json};

use super::message;
use crate::model_files::{alphabet, bpe, random_folder, spm, unigram, wordpiece};
use crate::parts;

/// Texts with everything that tokenizers look for.
const TEXTS: [&str; 3] =
    ["ab ab\n\n<s>\u{e4}\u{1f980}  <|im_end|>12345", "\u{ac00}\u{4e2d}don't\t ab\u{301}", "un\u{e9}able, cafe"];

/// A text and a vocabulary of each kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let files = [spm(), bpe(), wordpiece(), unigram()].map(|keys| keys.bytes());
    let json = [random_folder::tokenizer(), byte_level(), pieces()].map(|value| value.to_string().into_bytes());
    let vocabularies = files.iter().chain(&json).enumerate();
    vocabularies.map(|(at, file)| parts::join(&[TEXTS[at % TEXTS.len()].as_bytes(), file])).collect()
}

/// `tokenizer.json` with GPT-2's alphabet, `ab` and `Ġab`.
fn byte_level() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (alphabet(byte).to_string(), byte.into())).collect();
    vocab.insert("ab".into(), 256.into());
    vocab.insert("\u{120}ab".into(), 257.into());
    let expression = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "added_tokens": [
            {"id": 258, "content": "<|im_end|>", "special": true, "lstrip": false, "rstrip": false},
            {"id": 259, "content": "<user>", "special": false, "rstrip": true},
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": {"type": "RobertaProcessing", "cls": ["x", 257], "sep": ["y", 258]},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", ["\u{120}", "ab"]]},
    })
}

/// `tokenizer.json` of BERT.
fn pieces() -> Value {
    json!({
        "added_tokens": [{"id": 1, "content": "[UNK]", "special": true}, {"id": 2, "content": "[CLS]", "special": true}],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "un": 3, "##able": 4, "cafe": 5, ",": 6}},
    })
}

/// Reads a vocabulary, and encodes and decodes a text with it.
pub(crate) fn run(bytes: &[u8]) {
    let [text, file] = parts::split(bytes);
    let text = String::from_utf8_lossy(text);
    let tokenizer = if file.starts_with(b"GGUF") {
        let Ok(file) = Gguf::parse(file) else { return };
        Tokenizer::from_gguf(file.metadata())
    } else {
        let Ok(file) = std::str::from_utf8(file) else { return };
        Tokenizer::from_json(file)
    };
    match tokenizer {
        Ok(tokenizer) => round_trip(&tokenizer, &text),
        Err(error) => message(error),
    }
}

/// Encodes a text in every way and decodes the tokens, all at once and one after another.
pub(super) fn round_trip(tokenizer: &Tokenizer, text: &str) {
    for (add_special, parse_special) in [(true, false), (true, true), (false, false)] {
        let tokens = tokenizer.encode_with(text, Encoding { add_special, parse_special });
        assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.len()));
        tokenizer.decode(&tokens);
        let mut decoder = tokenizer.decoder().with_special();
        for &token in &tokens {
            decoder.push(token);
        }
        decoder.finish();
    }
    // Tokens that the vocabulary has not decode to nothing.
    tokenizer.decode(&[0, u32::MAX, tokenizer.len() as u32]);
}
