//! Tokenizers from the `tokenizer.json` of Hugging Face's models, converted to the tables of GGUF files.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::merge::SPACE;
use super::pretokenize::Splitter;
use super::vocabulary::{TokenKind, Vocabulary, byte_of};
use super::{Algorithm, Parts, SpecialTokens, Tokenizer, bpe, unigram, wordpiece};
use crate::{Error, Result};

/// The relevant keys of the file.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    model: Model,
}

/// A token that is recognised before the text is split.
#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Model {
    /// Missing in old files.
    r#type: Option<String>,
    vocab: Vocab,
    #[serde(default)]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    unk_id: Option<u32>,
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vocab {
    Ids(HashMap<String, u32>),
    Scores(Vec<(String, f32)>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}

impl Merge {
    fn pair(&self) -> Result<(&[u8], &[u8])> {
        match self {
            Self::Pair(left, right) => Ok((left.as_bytes(), right.as_bytes())),
            Self::Joined(merge) => bpe::cut(merge.as_bytes()),
        }
    }
}

fn unsupported(what: &str, found: &Value) -> Error {
    let found: String = found.to_string().chars().take(200).collect();
    Error::UnsupportedTokenizer {
        found: format!("{what} {found}"),
        supported: "BPE of bytes or with byte_fallback, WordPiece of BERT and Unigram, with the parts that their models have,",
    }
}

/// The type of a part.
fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// A part, or the parts of a sequence, including nested ones.
fn flat<'v>(part: &'v Value, list: &str) -> Vec<&'v Value> {
    match part {
        Value::Null => Vec::new(),
        _ if kind(part) == "Sequence" => {
            part.get(list).and_then(Value::as_array).into_iter().flatten().flat_map(|part| flat(part, list)).collect()
        }
        _ => vec![part],
    }
}

fn flag(part: &Value, name: &str) -> Option<bool> {
    part.get(name).and_then(Value::as_bool)
}

/// The pattern of a part: a text or an expression.
fn pattern(part: &Value) -> Option<&str> {
    let pattern = part.get("pattern")?;
    pattern.get("Regex").or_else(|| pattern.get("String"))?.as_str()
}

/// The treatment of spaces in a file: whether `▁` replaces them, and whether one is added before texts.
#[derive(Default)]
struct Spaces {
    replaced: bool,
    prefix: bool,
    /// Added only before the whole text, not after special tokens.
    first_only: bool,
    merged: bool,
}

/// The tokens by their numbers.
struct Table {
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
    scores: Vec<f32>,
    strips: HashMap<u32, (bool, bool)>,
}

impl Table {
    fn of(vocab: Vocab, added: Vec<Added>) -> Result<Self> {
        let (mut tokens, scores): (Vec<(u32, String)>, Vec<f32>) = match vocab {
            Vocab::Ids(ids) => (ids.into_iter().map(|(text, id)| (id, text)).collect(), Vec::new()),
            Vocab::Scores(scores) => {
                let (texts, scores): (Vec<_>, Vec<_>) = scores.into_iter().unzip();
                ((0..).zip(texts).collect(), scores)
            }
        };
        // The numbers may have gaps, but a small file must not allocate a table of four billion tokens.
        let most = 2 * (tokens.len() + added.len()) as u64 + 1024;
        let len = tokens
            .iter()
            .map(|&(id, _)| id)
            .chain(added.iter().map(|token| token.id))
            .max()
            .map_or(0, |id| u64::from(id) + 1);
        if len > most {
            let reason = format!("token {} exists, of {} tokens", len - 1, tokens.len() + added.len());
            return Err(Error::vocabulary("vocab", reason));
        }
        let len = len as usize;
        let mut this = Self {
            texts: vec![String::new(); len],
            kinds: vec![TokenKind::Unused; len],
            scores,
            strips: HashMap::new(),
        };
        if !this.scores.is_empty() {
            this.scores.resize(len, 0.0);
        }
        tokens.sort_unstable();
        for (id, text) in tokens {
            let at = id as usize;
            if this.kinds[at] != TokenKind::Unused {
                let reason = format!("{:?} and {text:?} have the same number, {id}", this.texts[at]);
                return Err(Error::vocabulary("vocab", reason));
            }
            (this.texts[at], this.kinds[at]) = (text, TokenKind::Normal);
        }
        for token in added {
            let at = token.id as usize;
            this.kinds[at] = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
            this.texts[at] = token.content;
            if token.lstrip || token.rstrip {
                this.strips.insert(token.id, (token.lstrip, token.rstrip));
            }
        }
        Ok(this)
    }

    /// Marks the tokens `<0xHH>` as bytes.
    fn mark_bytes(&mut self) {
        for (text, kind) in self.texts.iter().zip(&mut self.kinds) {
            if *kind == TokenKind::Normal && byte_of(text.as_bytes()).is_some() {
                *kind = TokenKind::Byte;
            }
        }
    }

    fn vocabulary(self) -> Result<Vocabulary> {
        Vocabulary::new(self.texts.iter().map(String::as_bytes), self.kinds, self.scores)
    }
}

impl Tokenizer {
    /// Reads a tokenizer from the text of a `tokenizer.json`.
    ///
    /// Normal forms of Unicode (NFC) that a file requests are not applied: texts are tokenized as they are.
    ///
    /// # Errors
    /// [`Error::Json`] if the text is not such a file, [`Error::UnsupportedTokenizer`] if it has an unsupported part,
    /// [`Error::Vocabulary`] if it contradicts itself.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_json_of(text, None)
    }

    /// [`Tokenizer::from_json`] without added tokens from the number `rows` on, for which a model has no row: models of a family
    /// share a file.
    pub(crate) fn from_json_of(text: &str, rows: Option<usize>) -> Result<Self> {
        let File { mut added_tokens, normalizer, pre_tokenizer, post_processor, model } = serde_json::from_str(text)?;
        added_tokens.retain(|token| rows.is_none_or(|rows| (token.id as usize) < rows));
        let Model { vocab, merges, unk_token, unk_id, .. } = model;
        let kind = model.r#type.unwrap_or_else(|| {
            let scores = matches!(vocab, Vocab::Scores(_));
            if scores {
                "Unigram"
            } else if merges.is_empty() {
                "WordPiece"
            } else {
                "BPE"
            }
            .to_owned()
        });
        let mut table = Table::of(vocab, added_tokens)?;
        let strips = std::mem::take(&mut table.strips);
        let normalizers = flat(&normalizer, "normalizers");
        let pre_tokenizers = flat(&pre_tokenizer, "pretokenizers");
        let mut spaces = Spaces::default();
        let (vocabulary, unknown, algorithm);
        match &*kind {
            "BPE" => {
                let splitter = bpe_splitter(&normalizers, &pre_tokenizers, &mut spaces)?;
                if splitter.is_plain() && model.byte_fallback {
                    table.mark_bytes();
                }
                vocabulary = table.vocabulary()?;
                unknown = unk_token.and_then(|text| vocabulary.find(text.as_bytes()));
                let merges: Vec<_> = merges.iter().map(Merge::pair).collect::<Result<_>>()?;
                algorithm = Algorithm::Bpe(bpe::Bpe::new(&vocabulary, splitter, model.ignore_merges, &merges)?);
            }
            "WordPiece" => {
                let (lower_case, strip_accents) = bert(&normalizers, &pre_tokenizers)?;
                let inside = model.continuing_subword_prefix.as_deref().unwrap_or("##");
                for (text, kind) in table.texts.iter_mut().zip(&table.kinds) {
                    if *kind == TokenKind::Normal && Some(&*text) != unk_token.as_ref() {
                        *text = match text.strip_prefix(inside) {
                            Some(piece) => piece.to_owned(),
                            None => format!("{SPACE}{text}"),
                        };
                    }
                }
                vocabulary = table.vocabulary()?;
                unknown = unk_token.and_then(|text| vocabulary.find(text.as_bytes()));
                algorithm = Algorithm::WordPiece(wordpiece::WordPiece::new(unknown, lower_case, strip_accents)?);
            }
            "Unigram" => {
                if model.byte_fallback {
                    return Err(unsupported("a unigram tokenizer with", &"byte_fallback".into()));
                }
                let map = unigram_parts(&normalizers, &pre_tokenizers, &mut spaces)?;
                vocabulary = table.vocabulary()?;
                unknown = unk_id.filter(|&id| (id as usize) < vocabulary.len());
                let mut unigram = unigram::Unigram::new(&vocabulary, unknown, map.as_deref())?;
                (unigram.add_space_prefix, unigram.merge_spaces) = (spaces.prefix, spaces.merged);
                algorithm = Algorithm::Unigram(unigram);
            }
            other => return Err(unsupported("the model", &other.into())),
        }
        let (prefix, suffix) = around(&post_processor)?;
        let mut ids = SpecialTokens { bos: prefix, unknown, ..Default::default() };
        if kind == "WordPiece" {
            ids.separator = suffix;
        } else {
            ids.eos = suffix;
        }
        Self::new(Parts {
            vocabulary,
            algorithm,
            ids,
            strips,
            prefix,
            suffix,
            add_space_prefix: spaces.prefix,
            space_prefix_once: spaces.first_only,
        })
    }
}

/// Reads the settings of a `Metaspace`.
fn metaspace(part: &Value, spaces: &mut Spaces) {
    spaces.replaced = true;
    match part.get("prepend_scheme").and_then(Value::as_str) {
        Some("never") => {}
        Some("first") => (spaces.prefix, spaces.first_only) = (true, true),
        Some(_) => spaces.prefix = true,
        None => spaces.prefix = flag(part, "add_prefix_space").unwrap_or(true),
    }
}

/// How texts are split before BPE.
fn bpe_splitter(normalizers: &[&Value], pre_tokenizers: &[&Value], spaces: &mut Spaces) -> Result<Splitter> {
    let text = |part: &Value, name: &str| part.get(name).and_then(Value::as_str).map(str::to_owned);
    for part in normalizers {
        match kind(part) {
            "NFC" => {}
            "Prepend" if text(part, "prepend").as_deref() == Some(SPACE) => spaces.prefix = true,
            "Replace" if pattern(part) == Some(" ") && text(part, "content").as_deref() == Some(SPACE) => {
                spaces.replaced = true;
            }
            _ => return Err(unsupported("the normalizer", part)),
        }
    }
    let mut expressions = Vec::new();
    for part in pre_tokenizers {
        match kind(part) {
            "Metaspace" => metaspace(part, spaces),
            // Spaces that `▁` replaces no longer occur in texts.
            "Split" if spaces.replaced && pattern(part) == Some(" ") => {}
            "Split" => {
                let behaviour = text(part, "behavior");
                let found = match (behaviour.as_deref(), flag(part, "invert").unwrap_or(false)) {
                    (Some("Isolated"), false) | (Some("Removed" | "Isolated"), true) => pattern(part),
                    _ => None,
                };
                // Expressions contain newlines directly or as escapes.
                let found = found.ok_or_else(|| unsupported("the pre-tokenizer", part))?;
                expressions.push(found.replace('\r', "\\r").replace('\n', "\\n"));
            }
            "Digits" => {
                let one = flag(part, "individual_digits").unwrap_or(false);
                expressions.push(if one { r"\p{N}" } else { r"\p{N}+" }.to_owned());
            }
            "ByteLevel" if !flag(part, "add_prefix_space").unwrap_or(true) => {
                if flag(part, "use_regex").unwrap_or(true) {
                    expressions.push(super::pretokenize::GPT_2_EXPRESSION.to_owned());
                }
            }
            _ => return Err(unsupported("the pre-tokenizer", part)),
        }
    }
    if spaces.replaced && expressions.is_empty() {
        return Ok(Splitter::whole_text());
    }
    Splitter::of_expressions(&expressions).map_err(|found| unsupported("the pre-tokenizer with", &found.into()))
}

/// Whether BERT's normalizer changes cases and removes accents.
fn bert(normalizers: &[&Value], pre_tokenizers: &[&Value]) -> Result<(bool, bool)> {
    let [normalizer] = normalizers else { return Err(unsupported("the normalizers", &normalizers.len().into())) };
    let all = flag(normalizer, "clean_text") != Some(false) && flag(normalizer, "handle_chinese_chars") != Some(false);
    if kind(normalizer) != "BertNormalizer" || !all {
        return Err(unsupported("the normalizer", normalizer));
    }
    match pre_tokenizers {
        [part] if kind(part) == "BertPreTokenizer" => {}
        [part, ..] => return Err(unsupported("the pre-tokenizer", part)),
        [] => return Err(unsupported("the pre-tokenizer", &Value::Null)),
    }
    let lower_case = flag(normalizer, "lowercase").unwrap_or(true);
    Ok((lower_case, flag(normalizer, "strip_accents").unwrap_or(lower_case)))
}

/// The character map of a unigram tokenizer.
fn unigram_parts(normalizers: &[&Value], pre_tokenizers: &[&Value], spaces: &mut Spaces) -> Result<Option<Vec<u8>>> {
    let mut map = None;
    for part in normalizers {
        match kind(part) {
            "Precompiled" => {
                let text = part.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or_default();
                let wrong = || Error::vocabulary("precompiled_charsmap", "it is not base64");
                map = Some(base64(text.as_bytes()).ok_or_else(wrong)?);
            }
            "Replace" if pattern(part) == Some(" {2,}") => spaces.merged = true,
            _ => return Err(unsupported("the normalizer", part)),
        }
    }
    for part in pre_tokenizers {
        match kind(part) {
            "WhitespaceSplit" => spaces.merged = true,
            "Metaspace" => metaspace(part, spaces),
            _ => return Err(unsupported("the pre-tokenizer", part)),
        }
    }
    Ok(map)
}

/// Decodes base64 with padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut held) = (0u32, 0);
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    text.len().is_multiple_of(4).then_some(bytes)
}

/// The tokens before and after a text.
fn around(post_processor: &Value) -> Result<(Option<u32>, Option<u32>)> {
    let wrong = || unsupported("the post-processor", post_processor);
    let (mut prefix, mut suffix) = (None, None);
    let id = |found: &Value| found.as_u64().and_then(|id| u32::try_from(id).ok());
    for part in flat(post_processor, "processors") {
        match kind(part) {
            "ByteLevel" => {}
            "BertProcessing" | "RobertaProcessing" => {
                let named = |name: &str| part.get(name).and_then(|pair| id(pair.get(1)?)).ok_or_else(wrong);
                (prefix, suffix) = (Some(named("cls")?), Some(named("sep")?));
            }
            "TemplateProcessing" => {
                let mut behind = false;
                for item in part.get("single").and_then(Value::as_array).ok_or_else(wrong)? {
                    let Some(special) = item.get("SpecialToken") else {
                        behind = true;
                        continue;
                    };
                    let name = special.get("id").and_then(Value::as_str).ok_or_else(wrong)?;
                    let ids = part.get("special_tokens").and_then(|all| all.get(name)?.get("ids")?.as_array());
                    let [one] = &ids.ok_or_else(wrong)?[..] else { return Err(wrong()) };
                    let place = if behind { &mut suffix } else { &mut prefix };
                    if place.replace(id(one).ok_or_else(wrong)?).is_some() {
                        return Err(wrong());
                    }
                }
            }
            _ => return Err(wrong()),
        }
    }
    Ok((prefix, suffix))
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [("", ""), ("TQ==", "M"), ("TWE=", "Ma"), ("TWFu", "Man"), ("TWFuTWE=", "ManMa")] {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(base64(b"+/+/").as_deref(), Some(&[0xfb, 0xff, 0xbf][..]));
        assert!([&b"TWE"[..], b"T*==", b"===="].iter().all(|text| base64(text).is_none()));
    }
}
