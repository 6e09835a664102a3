//! Embeddings: vectors whose directions represent the meaning of texts.

use std::path::Path;

use kiln::Engine;

use crate::architecture::encoder::{Config, Pass, Weights};
use crate::sentences::{Pooling, Sentences};
use crate::tensor_source::Source;
use crate::{Error, Folder, Result, Tokenizer};

/// Tokens that are computed at once, padding included.
const ROWS: usize = 2048;

/// Tokens of all cached graphs, because each has its own memory.
const KEPT_ROWS: usize = 4 * ROWS;

/// Options of computing embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// The pooling of the rows of tokens. `None` uses that of the model, [`EmbeddingModel::pooling`].
    pub pooling: Option<Pooling>,
    /// Whether embeddings have length 1, so that the inner product of two is the cosine of their angle.
    pub normalize: bool,
    /// Whether a text with too many tokens is truncated, as sentence-transformers does: to its first tokens and the token that the
    /// model adds after a text. Otherwise such a text is an error.
    pub truncate: bool,
    /// Maximum number of tokens of a text, including those that the model adds. `None` is [`EmbeddingModel::max_tokens`]; up to
    /// [`EmbeddingModel::positions`] are possible.
    pub max_tokens: Option<usize>,
}

impl Default for EmbeddingOptions {
    /// The model's pooling, length 1, and errors for texts that are too long.
    fn default() -> Self {
        Self { pooling: None, normalize: true, truncate: false, max_tokens: None }
    }
}

/// A model that computes embeddings of texts, on an engine: BERT and models based on it, such as all-MiniLM-L6-v2.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = kiln::Engine::new()?;
/// let mut model = kiln_llm::EmbeddingModel::load(&engine, "all-MiniLM-L6-v2")?;
/// let embeddings = model.embed(&["A cat sits on the mat.", "There is a kitten on the rug."])?;
/// let cosine: f32 = embeddings[0].iter().zip(&embeddings[1]).map(|(a, b)| a * b).sum();
/// # Ok(())
/// # }
/// ```
///
/// Several texts are computed at once, those of similar length together. They do not affect one another, except that sums may be
/// added in another order than for a single text, so the last digits may differ.
#[derive(Debug)]
pub struct EmbeddingModel<'e> {
    engine: &'e Engine,
    config: Config,
    weights: Weights,
    tokenizer: Tokenizer,
    sentences: Sentences,
    /// Cached graphs, most recently used first.
    passes: Vec<Pass<'e>>,
}

impl<'e> EmbeddingModel<'e> {
    /// Loads a GGUF file, or a [`Folder`]. A folder of sentence-transformers also provides the pooling and the maximum number of tokens of
    /// a text.
    ///
    /// The files are mapped into memory: they must not change while the model lives. [`EmbeddingModel::from_gguf`] and
    /// [`EmbeddingModel::from_folder`] also accept files that were read into memory.
    ///
    /// # Errors
    /// [`Error::File`] for a file that is not valid or lacks something, [`Error::Folder`] for one of a folder,
    /// [`Error::NotAnEncoder`], [`Error::UnsupportedArchitecture`], [`Error::UnsupportedTokenizer`], [`Error::Model`] if metadata
    /// and weights contradict one another or request unsupported features.
    pub fn load(engine: &'e Engine, path: impl AsRef<Path>) -> Result<Self> {
        match path.as_ref().is_dir() {
            true => Self::from_folder(engine, Folder::open(path)?),
            false => Self::from_gguf(engine, kiln_gguf::Model::open(path)?),
        }
    }

    /// Loads a model from an open file.
    ///
    /// # Errors
    /// The errors of [`EmbeddingModel::load`].
    pub fn from_gguf(engine: &'e Engine, file: kiln_gguf::Model) -> Result<Self> {
        let embedding = file.tensor("token_embd.weight")?;
        let rows = embedding.info().extents().get(1).map_or(0, |&rows| rows as usize);
        let config = Config::read(file.metadata(), rows)?;
        let tokenizer = Tokenizer::from_gguf(file.metadata())?;
        let sentences = Sentences { pooling: config.pooling, max_tokens: config.positions, lower_case: false };
        Self::of(engine, config, tokenizer, sentences, &Source::new(file))
    }

    /// Loads a model from an open folder.
    ///
    /// # Errors
    /// The errors of [`EmbeddingModel::load`].
    pub fn from_folder(engine: &'e Engine, folder: Folder) -> Result<Self> {
        let (tokenizer, sentences) = (folder.tokenizer(), folder.sentences());
        // Reports an unsupported architecture before other errors.
        let (config, weights) = folder.into_encoder()?;
        let mut sentences = sentences?;
        sentences.max_tokens = sentences.max_tokens.min(config.positions);
        Self::of(engine, config, tokenizer?, sentences, &Source::of_folder(weights))
    }

    fn of(
        engine: &'e Engine,
        config: Config,
        tokenizer: Tokenizer,
        sentences: Sentences,
        source: &Source,
    ) -> Result<Self> {
        tokenizer.check_rows(config.vocabulary)?;
        let weights = Weights::load(source, &config)?;
        Ok(Self { engine, config, weights, tokenizer, sentences, passes: Vec::new() })
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The number of elements of an embedding.
    pub fn dimensions(&self) -> usize {
        self.config.width
    }

    /// The number of positions of the model, which is the upper limit of the tokens of a text.
    pub fn positions(&self) -> usize {
        self.config.positions
    }

    /// The default maximum number of tokens of a text: `max_seq_length` of `sentence_bert_config.json`, or `model_max_length` of
    /// `tokenizer_config.json`, but at most the number of positions. Folders with neither, and GGUF files, use the number of
    /// positions.
    pub fn max_tokens(&self) -> usize {
        self.sentences.max_tokens
    }

    /// The model's pooling of the rows of tokens, from its files; the mean if they do not state it.
    pub fn pooling(&self) -> Pooling {
        self.sentences.pooling
    }

    /// Returns the embeddings of texts, in their order, with [`EmbeddingOptions::default`]: of length 1.
    ///
    /// # Errors
    /// The errors of [`EmbeddingModel::embed_with`].
    #[cfg(not(browser_gpu))]
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        self.embed_with(texts, EmbeddingOptions::default())
    }

    /// Returns the embeddings of texts, in their order, each of [`EmbeddingModel::dimensions`] elements. Text that spells a special
    /// token stays text.
    ///
    /// # Errors
    /// [`Error::TextLength`] for a text without tokens (an empty text of a model that adds none), and for one that is too long;
    /// [`Error::Model`] if [`EmbeddingOptions::max_tokens`] is not possible; [`Error::NotFinite`]; [`Error::Kiln`].
    #[cfg(not(browser_gpu))]
    pub fn embed_with(&mut self, texts: &[impl AsRef<str>], options: EmbeddingOptions) -> Result<Vec<Vec<f32>>> {
        let most = self.most(options)?;
        let tokens = texts.iter().enumerate().map(|(i, text)| self.tokens(i, text.as_ref(), most, options.truncate));
        let tokens = tokens.collect::<Result<Vec<_>>>()?;
        let pooling = options.pooling.unwrap_or(self.sentences.pooling);
        let mut embeddings = vec![Vec::new(); texts.len()];
        for (places, length) in groups(&tokens, self.config.positions) {
            let group: Vec<&[u32]> = places.iter().map(|&place| &*tokens[place]).collect();
            let rows = self.pass(group.len(), length)?.embeddings(&group, pooling)?;
            for (row, place) in rows.chunks_exact(self.config.width).zip(places) {
                embeddings[place] = finished(row, options.normalize).ok_or(Error::NotFinite { text: place })?;
            }
        }
        Ok(embeddings)
    }

    /// Maximum number of tokens of a text.
    fn most(&self, options: EmbeddingOptions) -> Result<usize> {
        let most = options.max_tokens.unwrap_or(self.sentences.max_tokens);
        let (prefix, suffix) = self.tokenizer.around();
        let least = prefix.iter().chain(&suffix).count() + 1;
        let positions = self.config.positions;
        if most < least || most > positions {
            let reason =
                format!("texts of {most} tokens were requested, at least {least} and at most {positions} are possible");
            return Err(Error::model("max_tokens", reason));
        }
        Ok(most)
    }

    /// The tokens of a text, at least one and at most `most`.
    fn tokens(&self, place: usize, text: &str, most: usize, truncate: bool) -> Result<Vec<u32>> {
        let mut tokens = match self.sentences.lower_case {
            true => self.tokenizer.encode(&text.to_lowercase()),
            false => self.tokenizer.encode(text),
        };
        if truncate && tokens.len() > most {
            let (_, suffix) = self.tokenizer.around();
            tokens.truncate(most - suffix.iter().count());
            tokens.extend(suffix);
        }
        match tokens.is_empty() || tokens.len() > most {
            true => Err(Error::TextLength { text: place, tokens: tokens.len(), most }),
            false => Ok(tokens),
        }
    }

    /// The graph for this many texts of this length, recorded if it is not cached.
    fn pass(&mut self, texts: usize, length: usize) -> Result<&mut Pass<'e>> {
        let pass = match self.passes.iter().position(|pass| pass.extents() == [texts, length]) {
            Some(at) => self.passes.remove(at),
            None => Pass::record(self.engine, &self.config, &self.weights, texts, length)?,
        };
        let mut rows = texts * length;
        self.passes.retain(|pass| {
            rows += pass.extents().iter().product::<usize>();
            rows <= KEPT_ROWS
        });
        self.passes.insert(0, pass);
        Ok(&mut self.passes[0])
    }
}

/// The length to which a text of this many tokens is padded: at most a quarter more, from 8 on. This limits the number
/// of recorded graphs.
fn filled(tokens: usize, positions: usize) -> usize {
    let step = (tokens.next_power_of_two() / 8).max(8);
    tokens.next_multiple_of(step).min(positions)
}

/// Groups of texts that are computed together, by their indices, and the length to which they are padded. The size of a
/// group is a power of two, which also limits the number of graphs.
fn groups(tokens: &[Vec<u32>], positions: usize) -> Vec<(Vec<usize>, usize)> {
    let length = |place: usize| filled(tokens[place].len(), positions);
    let mut places: Vec<usize> = (0..tokens.len()).collect();
    places.sort_by_key(|&place| length(place));
    let mut groups = Vec::new();
    for mut same in places.chunk_by(|&a, &b| length(a) == length(b)) {
        let length = length(same[0]);
        while !same.is_empty() {
            let most = same.len().min((ROWS / length).max(1));
            let (group, rest) = same.split_at(1 << most.ilog2());
            groups.push((group.to_vec(), length));
            same = rest;
        }
    }
    groups
}

/// An embedding, normalised to length 1 if requested; `None` if an element is not finite. Zeros, which have no
/// direction, stay unchanged.
fn finished(row: &[f32], normalize: bool) -> Option<Vec<f32>> {
    if !row.iter().all(|x| x.is_finite()) {
        return None;
    }
    if !normalize {
        return Some(row.to_vec());
    }
    let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    Some(row.iter().map(|&x| (f64::from(x) * scale) as f32).collect())
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn texts_are_filled_up_to_few_lengths() {
        for tokens in 1..=1000 {
            let length = filled(tokens, 900.max(tokens));
            assert!(length >= tokens && (length <= tokens.next_multiple_of(8) || 4 * length <= 5 * tokens), "{tokens}");
        }
        let mut all: Vec<usize> = (1..=512).map(|tokens| filled(tokens, 512)).collect();
        all.dedup();
        assert_eq!(all, [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512]);
    }

    #[test]
    fn groups_hold_each_text_once() {
        let lengths = [1, 16, 17, 500, 511, 512, 514, 33, 3, 3, 3, 3, 3, 3, 3, 3, 3, 300, 300, 300, 300, 300];
        let tokens: Vec<Vec<u32>> = lengths.iter().map(|&n| vec![0; n]).collect();
        let groups = groups(&tokens, 514);
        let mut all: Vec<usize> = groups.iter().flat_map(|(places, _)| places.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
        for (places, length) in &groups {
            assert!(places.len().is_power_of_two() && places.len() * length <= ROWS.max(*length));
            assert!(places.iter().all(|&place| filled(lengths[place], 514) == *length));
        }
        let found: Vec<_> = groups.iter().map(|(places, length)| (places.len(), *length)).collect();
        let expected = [(8, 8), (2, 8), (1, 16), (1, 24), (1, 40), (4, 320), (1, 320), (2, 512), (1, 512), (1, 514)];
        assert_eq!(found, expected);
    }

    #[test]
    fn embeddings_have_length_one_or_stay_what_they_are() {
        assert_eq!(finished(&[3.0, -4.0], true).unwrap(), [0.6, -0.8]);
        assert_eq!(finished(&[3.0, -4.0], false).unwrap(), [3.0, -4.0]);
        assert_eq!(finished(&[0.0, 0.0], true).unwrap(), [0.0, 0.0]);
        // The squares of both are outside of the range of f32.
        assert_eq!(finished(&[3e38, 0.0], true).unwrap(), [1.0, 0.0]);
        assert_eq!(finished(&[1e-40, 0.0], true).unwrap(), [1.0, 0.0]);
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!(finished(&[0.0, wrong], true).is_none() && finished(&[wrong, 0.0], false).is_none());
        }
    }
}
