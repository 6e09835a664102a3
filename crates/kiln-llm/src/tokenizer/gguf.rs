//! Tokenizers from the metadata of GGUF files.

use std::collections::HashMap;

use kiln_gguf::{Array, Metadata, Value};

use super::pretokenize::Splitter;
use super::vocabulary::{TokenKind, Vocabulary};
use super::{Algorithm, Parts, SpecialTokens, Tokenizer, bpe, spm, unigram, wordpiece};
use crate::{Error, Result};

const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";
const MODEL: &str = "tokenizer.ggml.model";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// The supported values of `tokenizer.ggml.model`.
const MODELS: &str = "llama (SentencePiece), gpt2 and gemma4 (BPE), bert (WordPiece) and t5 (unigram)";

/// The strings of an array.
fn strings<'a>(key: &'static str, array: Array<'a>) -> Result<Vec<&'a [u8]>> {
    let found = array.kind();
    let strings =
        array.strings().ok_or_else(|| Error::vocabulary(key, format!("{found} found, strings are expected")))?;
    Ok(strings.collect())
}

/// The kinds of tokens; all are normal if the file does not have the key.
fn kinds(metadata: Metadata<'_>, tokens: usize) -> Result<Vec<TokenKind>> {
    let Some(numbers) = metadata.find::<Vec<i64>>(KINDS)? else { return Ok(vec![TokenKind::Normal; tokens]) };
    let kind = |(id, number): (usize, &i64)| {
        TokenKind::from_id(*number)
            .ok_or_else(|| Error::vocabulary(KINDS, format!("token {id} has type {number}, 0 to 6 are expected")))
    };
    numbers.iter().enumerate().map(kind).collect()
}

/// The scores of tokens, which some files store as integers.
fn scores(metadata: Metadata<'_>) -> Result<Vec<f32>> {
    let Some(array) = metadata.find::<Array<'_>>(SCORES)? else { return Ok(Vec::new()) };
    let score = |value| match value {
        Value::F32(score) => Ok(score),
        Value::I32(score) => Ok(score as f32),
        other => Err(Error::vocabulary(SCORES, format!("{} found, f32 is expected", other.kind()))),
    };
    array.iter().map(score).collect()
}

impl Tokenizer {
    /// Reads the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// [`Error::UnsupportedTokenizer`] for unsupported kinds of tokenizers, [`Error::Vocabulary`] if the file contradicts itself,
    /// [`Error::File`] if it lacks a key or a value has another type.
    pub fn from_gguf(metadata: Metadata<'_>) -> Result<Self> {
        let model = metadata.get::<&str>(MODEL)?;
        let texts = strings(TOKENS, metadata.get(TOKENS)?)?;
        let kinds = kinds(metadata, texts.len())?;
        let vocabulary = Vocabulary::new(texts.iter().copied(), kinds, scores(metadata)?)?;

        // The defaults of optional keys. Ids outside of the vocabulary are omitted.
        let given = |id: u32| ((id as usize) < vocabulary.len()).then_some(id);
        let (defaults, mut add_bos, mut add_eos) = match model {
            "llama" => {
                let ids = SpecialTokens { bos: given(1), eos: given(2), unknown: given(0), ..Default::default() };
                (ids, true, false)
            }
            "bert" => {
                let ids = SpecialTokens {
                    bos: given(101),
                    unknown: given(100),
                    separator: given(102),
                    padding: given(0),
                    mask: given(103),
                    ..Default::default()
                };
                (ids, true, false)
            }
            "t5" => {
                let ids = SpecialTokens { eos: given(1), unknown: given(2), padding: given(0), ..Default::default() };
                (ids, false, true)
            }
            _ => (SpecialTokens::default(), false, false),
        };
        let id = |name: &str, default: Option<u32>| -> Result<Option<u32>> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            // Some converters write -1 for a missing token.
            let found = metadata.find::<i64>(&key)?.filter(|&id| id != -1 && id != i64::from(u32::MAX));
            let Some(found) = found else { return Ok(default) };
            let id = u32::try_from(found).ok().and_then(given).ok_or_else(|| {
                Error::vocabulary(
                    "special tokens",
                    format!("{key} is {found}, the vocabulary has {} tokens", texts.len()),
                )
            })?;
            Ok(Some(id))
        };
        let ids = SpecialTokens {
            bos: id("bos", defaults.bos)?,
            eos: id("eos", defaults.eos)?,
            eot: id("eot", None)?,
            eom: id("eom", None)?,
            unknown: id("unknown", defaults.unknown)?,
            // The format misspells the key.
            separator: id("seperator", defaults.separator)?,
            padding: id("padding", defaults.padding)?,
            mask: id("mask", defaults.mask)?,
        };
        let flag = |name: &str| metadata.find::<bool>(&format!("tokenizer.ggml.{name}"));

        let mut add_space_prefix = false;
        let algorithm = match model {
            "llama" => {
                add_space_prefix = flag("add_space_prefix")?.unwrap_or(true);
                Algorithm::Spm(spm::Spm::new(&vocabulary, ids.unknown)?)
            }
            "gpt2" | "gemma4" => {
                let pre = if model == "gemma4" { "gemma4" } else { metadata.find(PRE)?.unwrap_or("default") };
                let splitter = Splitter::named(pre).ok_or_else(|| Error::UnsupportedTokenizer {
                    found: format!("{model} with {PRE} {pre}"),
                    supported: "the families of tokenizers that llama.cpp names",
                })?;
                add_bos = splitter.adds_bos();
                let merges = strings(MERGES, metadata.get(MERGES)?)?;
                let merges: Vec<_> = merges.into_iter().map(bpe::cut).collect::<Result<_>>()?;
                let whole_words = splitter.whole_words();
                Algorithm::Bpe(bpe::Bpe::new(&vocabulary, splitter, whole_words, &merges)?)
            }
            "bert" => {
                let lower_case = flag("normalizer.lowercase")?.unwrap_or(true);
                let strip_accents = flag("normalizer.strip_accents")?.unwrap_or(lower_case);
                Algorithm::WordPiece(wordpiece::WordPiece::new(ids.unknown, lower_case, strip_accents)?)
            }
            "t5" => {
                let map = metadata.find::<Array<'_>>(CHARSMAP)?.map(bytes).transpose()?;
                let mut unigram = unigram::Unigram::new(&vocabulary, ids.unknown, map.as_deref())?;
                unigram.add_space_prefix = flag("add_space_prefix")?.unwrap_or(false);
                unigram.merge_spaces = flag("remove_extra_whitespaces")?.unwrap_or(false);
                Algorithm::Unigram(unigram)
            }
            other => {
                return Err(Error::UnsupportedTokenizer { found: other.to_owned(), supported: MODELS });
            }
        };

        // Gemma 4 requires BOS, but its first files set this to false.
        let always = model == "gemma4";
        let asked = (flag("add_bos_token")?, flag("add_eos_token")?);
        add_bos = asked.0.unwrap_or(add_bos) || always;
        add_eos = asked.1.unwrap_or(add_eos);
        // BERT puts texts between two tokens of its own.
        let (begin, end) = if model == "bert" { (ids.bos, ids.separator) } else { (ids.bos, ids.eos) };
        let ends_with = if model == "bert" { true } else { add_eos };
        let around = |asked: Option<bool>, add: bool, id: Option<u32>, name: &'static str| match id {
            _ if !add => Ok(None),
            None if asked == Some(true) => {
                Err(Error::vocabulary(name, "the file requires this token around texts, but does not name it"))
            }
            id => Ok(id),
        };
        let prefix = around(asked.0, add_bos, begin, "tokenizer.ggml.bos_token_id")?;
        let suffix = around(asked.1, ends_with, end, "tokenizer.ggml.eos_token_id")?;
        let strips = strips(metadata, &vocabulary)?;
        Self::new(Parts {
            vocabulary,
            algorithm,
            ids,
            strips,
            prefix,
            suffix,
            add_space_prefix,
            space_prefix_once: false,
        })
    }
}

/// The bytes of an array of integers of 8 bits.
fn bytes(array: Array<'_>) -> Result<Vec<u8>> {
    let byte = |value| match value {
        Value::U8(byte) => Ok(byte),
        Value::I8(byte) => Ok(byte.cast_unsigned()),
        other => Err(Error::vocabulary(CHARSMAP, format!("{} found, bytes are expected", other.kind()))),
    };
    array.iter().map(byte).collect()
}

/// The tokens that remove adjacent white space. Files do not state them; those of these models are known.
fn strips(metadata: Metadata<'_>, vocabulary: &Vocabulary) -> Result<HashMap<u32, (bool, bool)>> {
    let text = |key: &str| metadata.find::<&str>(key).map(|found| found.unwrap_or_default().to_lowercase());
    let (name, pre, architecture) = (text("general.name")?, text(PRE)?, text("general.architecture")?);
    let mut strips = HashMap::new();
    let is_one_of = |found: &str, names: &[&str]| names.iter().any(|name| found.contains(name));
    if is_one_of(&pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || is_one_of(&architecture, &["nomic-bert-moe", "jina-bert-v3"])
    {
        strips.extend(vocabulary.find(b"<mask>").map(|id| (id, (true, false))));
    } else if is_one_of(&name, &["phi-3", "phi3"]) {
        for id in 0..vocabulary.len() as u32 {
            let special =
                [TokenKind::Control, TokenKind::UserDefined, TokenKind::Unknown].contains(&vocabulary.kind(id));
            let keeps = [&b"<unk>"[..], b"<s>", b"<|endoftext|>"].contains(&vocabulary.text(id));
            if !keeps && (special || vocabulary.text(id) == b"</s>") {
                strips.insert(id, (false, true));
            }
        }
    } else if is_one_of(&name, &["modern-bert"]) {
        strips.extend(vocabulary.find(b"[MASK]").map(|id| (id, (true, false))));
    }
    Ok(strips)
}
