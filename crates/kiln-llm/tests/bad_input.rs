//! Vocabularies that contradict themselves give errors that name what is wrong. The crate `fuzz` has mutated ones.

use kiln_llm::{Encoding, Error};

use crate::support::{BYTE, Keys, NORMAL, bpe, spm, unigram, wordpiece};

/// The message of the error.
#[track_caller]
fn error(keys: &Keys) -> String {
    let error = keys.tokenizer().map(drop).expect_err("the vocabulary is invalid");
    assert!(!error.to_string().chars().any(char::is_control), "{error}");
    error.to_string()
}

#[track_caller]
fn wrong(keys: &Keys, needle: &str) {
    let error = error(keys);
    assert!(error.contains(needle), "{error}");
}

#[test]
fn token_ids_are_in_the_vocabulary() {
    for name in ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"] {
        for id in [12, 1 << 31, u32::MAX - 1] {
            wrong(&spm().with(&format!("{name}_token_id"), id), &format!("{name}_token_id is {id}"));
        }
    }
    wrong(&spm().with("bos_token_id", -7i32), "bos_token_id is -7");
    // Converters write -1 for a missing token.
    spm().with("padding_token_id", -1i32).tokenizer().unwrap();
    spm().with("padding_token_id", u32::MAX).tokenizer().unwrap();
}

#[test]
fn arrays_have_an_entry_for_each_token() {
    wrong(&spm().with("scores", vec![0.0f32; 11]), "11 scores for 12 tokens");
    wrong(&spm().with("scores", vec![0.0f32; 13]), "13 scores");
    wrong(&spm().with("token_type", vec![NORMAL; 3]), "3 kinds of tokens for 12");
    wrong(&spm().with("token_type", vec![-1; 12]), "type -1");
    wrong(&spm().with("token_type", vec![7; 12]), "type 7");
    wrong(&spm().with("scores", vec![f32::NAN; 12]), "not a number");
    wrong(&spm().with("scores", vec![0u8; 12]), "u8 found");
    wrong(&spm().with("tokens", Vec::<&str>::new()).with("token_type", Vec::<i32>::new()), "0 tokens");
    assert!(matches!(spm().without("tokens").tokenizer(), Err(Error::File(_))));
    wrong(&spm().with("tokens", vec![1u32]), "strings are expected");
    wrong(&spm().with("tokens", "a"), "an array is needed");
}

/// A byte token `<0x-1>` read another reader's memory in front of a table.
#[test]
fn byte_tokens_are_two_digits() {
    for text in ["<0x-1>", "<0x1>", "<0x123>", "<0xG0>", "0x12", "<0x+1>", "", "<0x 1>", "\u{1b}[2J"] {
        let tokens = vec!["<unk>", "<s>", "</s>", text];
        let keys = Keys::new("llama").with("tokens", tokens).with("token_type", vec![2, 3, 3, BYTE]);
        wrong(&keys, "<0xHH> is expected");
    }
}

#[test]
fn merges_name_tokens() {
    wrong(&bpe().with("merges", vec!["a zz"]), "\"zz\" is not in the vocabulary");
    wrong(&bpe().with("merges", vec!["b a"]), "\"ba\" is not in the vocabulary");
    for merge in ["ab", "", " ", " a"] {
        wrong(&bpe().with("merges", vec![merge]), "two tokens with a space");
    }
    wrong(&bpe().with("merges", vec![1u32]), "strings are expected");
    assert!(matches!(bpe().without("merges").tokenizer(), Err(Error::File(_))));
    // The first of several merges of the same pair wins.
    bpe().with("merges", vec!["a b"; 3]).tokenizer().unwrap();
}

#[test]
fn other_tokenizers_are_named() {
    for model in ["rwkv", "plamo2", "none", "\u{1b}[2J"] {
        let keys = spm().with("model", model);
        assert!(matches!(keys.tokenizer(), Err(Error::UnsupportedTokenizer { .. })));
        wrong(&keys, "are");
    }
    wrong(&bpe().with("pre", "gpt-9"), "gpt-9");
}

#[test]
fn tokens_that_are_needed_are_named() {
    let bos = bpe().with("add_bos_token", true);
    wrong(&bos, "bos_token_id");
    wrong(&bpe().with("add_eos_token", true).without("eos_token_id"), "eos_token_id");
    // 100 and 2 are the default numbers, which these small vocabularies do not have.
    wrong(&wordpiece().without("unknown_token_id"), "unknown_token_id");
    let few = unigram().with("tokens", vec!["a", "b"]).with("scores", vec![0.0f32; 2]).without("token_type");
    wrong(&few, "unknown_token_id");
}

#[test]
fn maps_of_characters_that_lie_are_refused_or_harmless() {
    for map in
        [vec![], vec![0; 3], vec![0; 4], vec![255; 8], vec![4, 0, 0, 0, 1, 2, 3, 4], vec![4, 0, 0, 0, 1, 2, 3, 4, 9]]
    {
        wrong(&unigram().with("precompiled_charsmap", map), "precompiled_charsmap");
    }
    // A short text with many of these would fill the memory.
    let long = [&4u32.to_le_bytes()[..], &[0; 4], &[b'a'; 257], &[0]].concat();
    wrong(&unigram().with("precompiled_charsmap", long), "a replacement has 257 bytes");
    // Entries with arbitrary bases.
    let mut state = 1u32;
    for _ in 0..2000 {
        let mut map = 256u32.to_le_bytes().to_vec();
        for _ in 0..64 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Some match real bytes.
            let entry = if state & 64 == 0 { state } else { state & 0xffff_ff00 | u32::from(b'a') | 1 << 8 };
            map.extend(entry.to_le_bytes());
        }
        map.extend(b"\xc3\0ab\0");
        let t = unigram().with("precompiled_charsmap", map).tokenizer().unwrap();
        t.encode("aabb\u{e4}\0\u{1f980}a");
    }
}

/// A walk through them at each position of a text would take too long.
#[test]
fn tokens_that_are_searched_for_in_texts_are_short() {
    let long = "a".repeat(1025);
    let with = |keys: Keys, at: usize, of: usize| {
        // Two of one vocabulary are bytes.
        let mut tokens: Vec<String> = (0..of).map(|n| format!("<0x{n:02X}>")).collect();
        tokens[at].clone_from(&long);
        keys.with("tokens", tokens)
    };
    wrong(&with(unigram(), 4, 8), "token 4 has 1025 bytes");
    wrong(&with(spm(), 1, 12), "token 1 has 1025 bytes");
    assert!(with(spm(), 7, 12).tokenizer().is_ok());
}

#[test]
fn scores_of_pieces_are_finite() {
    for score in [f32::INFINITY, f32::NEG_INFINITY] {
        wrong(&unigram().with("scores", vec![score; 8]), "needs a finite one");
    }
}

#[test]
fn vocabularies_with_repeated_and_empty_texts_work() {
    let t = spm().with("tokens", vec![""; 12]).with("token_type", vec![NORMAL; 12]).tokenizer().unwrap();
    assert_eq!(t.encode("ab"), [1, 0, 0, 0]);
    let t = spm().with("tokens", vec!["a"; 12]).with("token_type", vec![NORMAL; 12]).tokenizer().unwrap();
    assert_eq!(t.encode_with("a", Encoding { add_special: false, parse_special: false }), [0, 0]);
}
