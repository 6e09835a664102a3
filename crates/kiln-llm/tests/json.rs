//! Tokenizers from `tokenizer.json`.

use kiln_llm::{Encoding, Error, TokenKind, Tokenizer};
use serde_json::{Value, json};

use crate::support;

const PLAIN: Encoding = Encoding { add_special: false, parse_special: false };

fn load(file: &Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_json(&file.to_string())
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_with(text, PLAIN)
}

/// GPT-2's alphabet, `ab`, `Ġab`, and an end.
fn bytes() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (support::alphabet(byte).to_string(), byte.into())).collect();
    vocab.insert("ab".into(), 256.into());
    vocab.insert("\u{120}ab".into(), 257.into());
    json!({
        "added_tokens": [
            {"id": 258, "content": "<|im_end|>", "special": true, "lstrip": false, "rstrip": false},
            {"id": 259, "content": "<user>", "special": false, "rstrip": true},
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", ["\u{120}", "ab"]]},
    })
}

#[test]
fn bpe_of_bytes() {
    let t = load(&bytes()).unwrap();
    assert_eq!(plain(&t, "ab ab"), [256, 257]);
    assert_eq!(plain(&t, "ab<user>  ab"), [256, 259, 256]);
    assert!(t.is_end(258) && !plain(&t, "<|im_end|>").contains(&258));
    assert_eq!(t.encode_with("<|im_end|>", Encoding { add_special: false, parse_special: true }), [258]);
    assert_eq!((t.kind(258), t.kind(259)), (Some(TokenKind::Control), Some(TokenKind::UserDefined)));
    assert_eq!(t.decode(&[256, 257]), "ab ab");
}

#[test]
fn bpe_of_bytes_with_an_expression_and_tokens_around() {
    let mut file = bytes();
    let expression = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
    file["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel"},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "special_tokens": {"x": {"id": "x", "ids": [258], "tokens": ["x"]}}},
    ]});
    let t = load(&file).unwrap();
    // Here any character, not only a space, may lead a word.
    assert_eq!(t.encode("\tab ab"), [258, 9, 256, 257]);
    assert_eq!(t.special_tokens().bos, Some(258));
    file["post_processor"] = json!({"type": "RobertaProcessing", "cls": ["x", 257], "sep": ["y", 258]});
    assert_eq!(load(&file).unwrap().encode("ab"), [257, 256, 258]);
}

/// Llama 2 and Gemma: `▁` for spaces, and bytes where there is no token.
#[test]
fn bpe_with_byte_fallback() {
    let mut file = json!({
        "added_tokens": [{"id": 1, "content": "<s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]},
        "pre_tokenizer": null,
        "post_processor": null,
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<s>": 1, "<0xC3>": 2, "<0xA4>": 3, "\u{2581}": 4, "a": 5, "b": 6, "ab": 7, "\u{2581}ab": 8},
            "merges": ["a b", "\u{2581} ab"]},
    });
    let t = load(&file).unwrap();
    assert_eq!(plain(&t, "ab ab\u{e4}"), [8, 8, 2, 3]);
    assert_eq!(t.encode_with("<s>ab", Encoding { add_special: false, parse_special: true }), [1, 8]);
    assert_eq!(t.decode(&[8, 8, 2, 3]), "ab ab\u{e4}");
    // The newer form adds the space only before the whole text.
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false});
    let t = load(&file).unwrap();
    assert_eq!(t.encode_with("ab<s>ab", Encoding { add_special: false, parse_special: true }), [8, 1, 7]);
    file["pre_tokenizer"]["prepend_scheme"] = "never".into();
    assert_eq!(plain(&load(&file).unwrap(), "ab ab"), [7, 8]);
}

#[test]
fn wordpiece() {
    let file = json!({
        "added_tokens": [
            {"id": 1, "content": "[UNK]", "special": true},
            {"id": 2, "content": "[CLS]", "special": true},
            {"id": 3, "content": "[SEP]", "special": true},
        ],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        // Old files do not state their type.
        "model": {"unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "un": 4, "##able": 5, "cafe": 6}},
    });
    let t = load(&file).unwrap();
    assert_eq!(t.encode("Unable caf\u{e9} able"), [2, 4, 5, 6, 1, 3]);
    assert_eq!(t.special_tokens().separator, Some(3));
}

#[test]
fn unigram() {
    let mut file = json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u{2581}", "add_prefix_space": true},
        ]},
        "post_processor": null,
        "model": {"type": "Unigram", "unk_id": 0,
            "vocab": [["<unk>", 0.0], ["\u{2581}", -2.0], ["a", -1.0], ["b", -1.0], ["ab", -2.5], ["\u{2581}a", -2.0]]},
    });
    let t = load(&file).unwrap();
    assert_eq!(plain(&t, "ab  a"), [5, 3, 5]);
    // An empty map of characters.
    file["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAA"});
    assert_eq!(plain(&load(&file).unwrap(), "ab"), [5, 3]);
    file["normalizer"]["precompiled_charsmap"] = "****".into();
    assert!(matches!(load(&file), Err(Error::Vocabulary { .. })));
}

#[test]
fn parts_that_kiln_does_not_have_are_named() {
    let refused = |path: &str, part: Value| {
        let mut file = bytes();
        *file.pointer_mut(path).unwrap() = part;
        let error = load(&file).map(drop).unwrap_err();
        assert!(matches!(error, Error::UnsupportedTokenizer { .. }), "{error}");
        error.to_string()
    };
    assert!(refused("/normalizer", json!({"type": "Lowercase"})).contains("Lowercase"));
    assert!(refused("/pre_tokenizer", json!({"type": "Whitespace"})).contains("Whitespace"));
    assert!(refused("/pre_tokenizer/add_prefix_space", true.into()).contains("add_prefix_space"));
    let split = json!({"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": false});
    assert!(refused("/pre_tokenizer", split).contains("a+"));
    let behaviour = json!({"type": "Split", "pattern": {"Regex": r"\p{N}"}, "behavior": "MergedWithNext"});
    assert!(refused("/pre_tokenizer", behaviour).contains("MergedWithNext"));
    assert!(refused("/post_processor", json!({"type": "Unknown"})).contains("Unknown"));
    assert!(refused("/model/type", "WordLevel".into()).contains("WordLevel"));
}

#[test]
fn damaged_files_are_errors() {
    for text in ["", "{", "[]", "{}", r#"{"model": {}}"#, r#"{"model": {"vocab": 1}}"#] {
        assert!(matches!(Tokenizer::from_json(text), Err(Error::Json(_))), "{text}");
    }
    let wrong = |path: &str, part: Value, needle: &str| {
        let mut file = bytes();
        *file.pointer_mut(path).unwrap() = part;
        let error = load(&file).map(drop).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    };
    // A number that would need a table of four billion tokens.
    wrong("/added_tokens/0/id", u32::MAX.into(), "token 4294967295 exists");
    wrong("/model/vocab/ab", 7.into(), "the same number, 7");
    wrong("/model/merges", json!(["a zz"]), "\"zz\" is not in the vocabulary");
    wrong("/model/merges", json!(["ab"]), "two tokens with a space");
    wrong("/post_processor", json!({"type": "RobertaProcessing", "cls": ["x", 9999], "sep": ["y", 1]}), "9999");
}

/// The place of every part of a document.
fn places(document: &Value, place: &str, to: &mut Vec<String>) {
    to.push(place.to_owned());
    match document {
        Value::Array(parts) => {
            parts.iter().enumerate().for_each(|(at, part)| places(part, &format!("{place}/{at}"), to));
        }
        Value::Object(parts) => {
            for (name, part) in parts.iter().filter(|(name, _)| !name.contains(['/', '~'])) {
                places(part, &format!("{place}/{name}"), to);
            }
        }
        _ => {}
    }
}

/// Each part of a file replaced by something else: an error, or a tokenizer that works.
#[test]
fn files_with_any_part_replaced_give_errors_or_work() {
    let file = bytes();
    let mut all = Vec::new();
    places(&file, "", &mut all);
    let junk = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(255),
        json!("a"),
        json!(""),
        json!([]),
        json!({}),
        json!(["a"]),
    ];
    let mut works = 0;
    for place in &all {
        for part in &junk {
            let mut file = file.clone();
            *file.pointer_mut(place).unwrap() = part.clone();
            if let Ok(tokenizer) = load(&file) {
                works += 1;
                let tokens = tokenizer.encode("ab ab\n\u{e4}<|im_end|>");
                assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.len()));
                tokenizer.decode(&tokens);
            }
        }
    }
    assert!(works > 20, "{works} of {}", all.len() * junk.len());
}
