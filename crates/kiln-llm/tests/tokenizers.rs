//! Each kind of tokenizer on a vocabulary that a person can follow.

use kiln_llm::{Encoding, Error, SequenceBreakers, TokenKind, Tokenizer};

use crate::support;
use crate::support::{NORMAL, bpe, spm, unigram, wordpiece};

const PLAIN: Encoding = Encoding { add_special: false, parse_special: false };
const SPECIAL: Encoding = Encoding { add_special: false, parse_special: true };

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_with(text, PLAIN)
}

#[test]
fn spm_merges_by_score_and_spells_what_it_does_not_know() {
    let t = spm().tokenizer().unwrap();
    assert_eq!(plain(&t, "ab"), [9]);
    assert_eq!(plain(&t, "abab"), [9, 8]);
    // Neither a token nor byte tokens.
    assert_eq!(plain(&t, "\u{e4}c"), [5, 3, 4, 0]);
    assert!(plain(&t, "").is_empty());
    assert_eq!(t.encode(""), [1]);
    assert_eq!(t.encode("ab"), [1, 9]);
    assert_eq!(t.around(), (Some(1), None));
    let with_eos = spm().with("add_eos_token", true).with("add_bos_token", false).tokenizer().unwrap();
    assert_eq!(with_eos.encode("ab"), [9, 2]);
    let without_space = spm().with("add_space_prefix", false).tokenizer().unwrap();
    assert_eq!(plain(&without_space, "ab"), [8]);
}

#[test]
fn texts_of_control_tokens_are_tokens_only_where_that_is_asked_for() {
    let t = spm().tokenizer().unwrap();
    // `<`, `s` and `>` are unknown to this vocabulary.
    assert_eq!(plain(&t, "<s>ab"), [5, 0, 0, 0, 8]);
    assert_eq!(t.encode_with("<s>ab", SPECIAL), [1, 9]);
    assert_eq!(t.encode_with("ab</s>ab<unk>", SPECIAL), [9, 2, 9, 0]);
    // User-defined tokens are always recognised; a space is added to the text after one.
    assert_eq!(plain(&t, "ab<user>ab"), [9, 10, 9]);
    let b = bpe().tokenizer().unwrap();
    let text = "ab<|im_end|>";
    assert_eq!(b.encode_with(text, SPECIAL), [256, 258]);
    let spelled = plain(&b, text);
    assert!(!spelled.contains(&258));
    assert_eq!(b.decode(&spelled), text);
}

/// SentencePiece would merge the letters of a control token to it, were it not left out.
#[test]
fn control_tokens_are_not_made_of_letters() {
    let tokens = ["<unk>", "<s>", "</s>", "<", "s", ">", "<s", "<0x41>", "<0x", "41>"];
    let kinds = vec![support::UNKNOWN, support::CONTROL, support::CONTROL, 1, 1, 1, 1, support::BYTE, 1, 1];
    let keys = support::Keys::new("llama").with("tokens", tokens.to_vec()).with("token_type", kinds);
    let t = keys.with("add_space_prefix", false).tokenizer().unwrap();
    assert_eq!(plain(&t, "<s>"), [6, 5]);
    assert_eq!(t.encode_with("<s>", SPECIAL), [1]);
    // `0`, `x`, `4` and `1` are unknown; `A` has a token of its byte.
    assert_eq!(plain(&t, "<0x41>A"), [3, 0, 0, 0, 0, 5, 7]);
}

#[test]
fn bpe_merges_by_rank() {
    let t = bpe().tokenizer().unwrap();
    assert_eq!(plain(&t, "ab ab"), [256, 257]);
    assert_eq!(plain(&t, "aab"), [u32::from(b'a'), 256]);
    // Long words use the queue and give the same tokens.
    let long = "ab".repeat(1000);
    assert_eq!(plain(&t, &long), [256; 1000]);
    assert_eq!(plain(&t, &format!(" {long}"))[..2], [257, 256]);
    // The file has no token for it, so there is no BOS.
    assert_eq!(t.encode("ab"), [256]);
    assert_eq!(t.special_tokens().eos, Some(258));
    assert!(t.is_end(258) && !t.is_end(256));
}

#[test]
fn wordpiece_cuts_the_longest_pieces() {
    let t = wordpiece().tokenizer().unwrap();
    assert_eq!(plain(&t, "unable"), [4, 5]);
    assert_eq!(plain(&t, "  UNABLE,caf\u{e9} unx "), [4, 5, 7, 6, 1]);
    assert_eq!(plain(&t, "un\u{4e2d}able"), [4, 8, 1]);
    assert_eq!(plain(&t, &format!("un{}", "able".repeat(30))), [1]);
    assert_eq!(t.encode("un"), [2, 4, 3]);
    let cased = wordpiece().with("normalizer.lowercase", false).tokenizer().unwrap();
    assert_eq!(plain(&cased, "UN caf\u{e9} un"), [1, 1, 4]);
    assert_eq!(t.decode(&[2, 4, 5, 7, 3]), "unable ,");
}

#[test]
fn unigram_takes_the_greatest_sum() {
    let t = unigram().tokenizer().unwrap();
    // ▁a b: -3; ▁ ab: -4.5; ▁ a b: -4.
    assert_eq!(plain(&t, "ab"), [7, 5]);
    assert_eq!(plain(&t, "aab"), [7, 4, 5]);
    // Adjacent unknown characters are one token.
    assert_eq!(plain(&t, "xyb"), [3, 2, 5]);
    assert_eq!(t.encode("b"), [3, 5, 1]);
    assert_eq!(t.decode(&[7, 5, 1]), "ab");
    assert_eq!(plain(&t, "a  a"), [7, 3, 7]);
    // A token that ends a text is one of its pieces in no vocabulary, whatever its type.
    assert_eq!(plain(&unigram().with("token_type", vec![NORMAL; 8]).tokenizer().unwrap(), "</s>"), [3, 2]);
    let merging = unigram().with("remove_extra_whitespaces", true).tokenizer().unwrap();
    assert_eq!(plain(&merging, "a  a "), [7, 7]);
}

#[test]
fn unigram_maps_characters() {
    // A double array that maps `B` to `b`: the root has base 1 and leads to entry 1 ^ 'B', whose base leads to the
    // value.
    let mut entries = vec![0u32; 256];
    entries[0] = 1 << 10;
    let node = 1 ^ usize::from(b'B');
    entries[node] = 2 << 10 | 1 << 8 | u32::from(b'B');
    // The replacement begins at byte 1.
    entries[node ^ 2] = 1 << 31 | 1;
    let mut map = (4 * entries.len() as u32).to_le_bytes().to_vec();
    entries.iter().for_each(|entry| map.extend(entry.to_le_bytes()));
    map.extend(b"\0b\0");
    let t = unigram().with("precompiled_charsmap", map).tokenizer().unwrap();
    assert_eq!(plain(&t, "aB"), [7, 5]);
}

#[test]
fn characters_are_kept_back_until_they_are_complete() {
    let t = bpe().tokenizer().unwrap();
    let mut decoder = t.decoder();
    // The crab has four bytes.
    let pushed: Vec<String> = "\u{1f980}".bytes().map(|byte| decoder.push(byte.into()).to_owned()).collect();
    assert_eq!(pushed, ["", "", "", "\u{1f980}"]);
    assert_eq!(decoder.push(0xf0), "");
    assert_eq!(decoder.push(u32::from(b'a')), "\u{fffd}a");
    assert_eq!(decoder.push(0xff), "\u{fffd}");
    assert_eq!(decoder.push(0xc3), "");
    assert_eq!(decoder.finish(), "\u{fffd}");
    assert_eq!(decoder.finish(), "");
    // Tokens that do not exist, and control tokens, have no text.
    assert_eq!((decoder.push(u32::MAX), t.decode(&[256, 258, 9999])), ("", "ab".into()));
    assert_eq!(t.decoder().with_special().push(258), "<|im_end|>");
}

#[test]
fn the_space_in_front_of_a_text_is_dropped_at_its_start_alone() {
    let t = spm().tokenizer().unwrap();
    assert_eq!(t.decode(&[1, 9, 9]), "ab ab");
    let mut decoder = t.decoder();
    assert_eq!(decoder.push(9), " ab");
    assert_eq!(t.decode(&[5, 3, 4]), "\u{e4}");
}

#[test]
fn tokens_that_are_known_by_their_texts_end_a_generation() {
    let texts = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>"];
    let keys = support::Keys::new("llama").with("tokens", texts.to_vec()).with("scores", vec![0.0f32; 7]);
    let t = keys.tokenizer().unwrap();
    // `<|end|>` ends a part of a message in models with an end-of-message token.
    assert_eq!(t.ends().collect::<Vec<_>>(), [2, 3, 5, 6]);
    // Whatever the file says: text that spells such a token stays text.
    assert_eq!(t.kind(3), Some(TokenKind::Control));
    assert!(!plain(&t, "<|im_end|>").contains(&3));
    assert_eq!((t.kind(7), t.token(7), t.token(3)), (None, None, Some(&b"<|im_end|>"[..])));
    assert_eq!((t.find(b"</s>"), t.find(b"x"), t.len(), t.is_empty()), (Some(2), None, 7, false));
}

#[test]
fn sequence_breakers_are_all_tokens_that_spell_a_text() {
    let of = |tokenizer: &Tokenizer, texts: &[&str]| SequenceBreakers::from_texts(tokenizer, texts).unwrap();
    let tokens = |sequences: &[&[u32]]| SequenceBreakers::from_tokens(sequences.iter().map(|s| s.to_vec())).unwrap();
    let t = spm().tokenizer().unwrap();
    assert_eq!(of(&t, &["b"]), tokens(&[&[7], &[8], &[9]]));
    // In one token, or after a token that ends with a space.
    assert_eq!(of(&t, &[" a"]), tokens(&[&[9], &[5, 6]]));
    // No space comes between the parts.
    assert_eq!(of(&t, &["bx"]), tokens(&[&[7, 11], &[8, 11], &[9, 11]]));
    // Control tokens have no text; user-defined tokens and bytes have one.
    assert_eq!(of(&t, &["s"]), tokens(&[&[10]]));
    assert_eq!(of(&t, &["\u{e4}"]), tokens(&[]));
    assert_eq!(of(&t, &["b", "bx", "b"]), tokens(&[&[7], &[7, 11], &[8], &[8, 11], &[9], &[9, 11]]));
    assert_eq!(of(&t, &[]), SequenceBreakers::default());
    let t = bpe().tokenizer().unwrap();
    assert_eq!(of(&t, &SequenceBreakers::TEXTS), tokens(&[&[10], &[34], &[42], &[58]]));
    assert_eq!(of(&t, &["b:a"]), tokens(&[&[98, 58, 97], &[256, 58, 97], &[257, 58, 97]]));
    for wrong in [String::new(), "a".repeat(1025)] {
        assert!(matches!(SequenceBreakers::from_texts(&t, &["a", &wrong]), Err(Error::Sampler { .. })));
    }
}
