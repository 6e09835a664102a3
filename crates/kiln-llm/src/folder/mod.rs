//! Folders of Hugging Face: `config.json`, `tokenizer.json` and weights in safetensors files.

mod config;
mod encoder;
mod families;
mod files;
mod keys;
mod names;
mod packed;
pub(crate) mod safetensors;
mod tensors;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use files::text;
use files::{File, is_plain, json, missing, needed};
use keys::Object;
use kiln_gguf::{Bytes, Gguf};
pub(crate) use names::adapted_module;
use names::{DecoderNames, EncoderNames, Names};
use serde_json::Value;
pub(crate) use tensors::Weights;

use crate::architecture::encoder::Config as EncoderConfig;
#[cfg(feature = "chat")]
use crate::chat::{DEFAULT, Templates};
use crate::config::Config;
use crate::sentences::Sentences;
use crate::{Error, ModelKind, Result, Tokenizer};

/// A model in a folder, as Hugging Face's library transformers saves it. Its files are validated when it is opened.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    config: Value,
    files: Vec<File>,
    by_name: HashMap<String, (usize, usize)>,
}

/// The description of a tensor in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderTensor<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of its elements, as files name it.
    pub dtype: &'a str,
    /// The extents, outermost first.
    pub shape: &'a [usize],
    /// The bytes that it takes.
    pub bytes: usize,
    /// Whether weights of this type are supported; also true for tensors that models do not use.
    pub is_supported: bool,
}

impl Folder {
    /// Opens a folder: `config.json`, and `model.safetensors` or the files that `model.safetensors.index.json` names, which are
    /// mapped into memory and must not change while the model lives.
    ///
    /// # Errors
    /// [`Error::File`] if a file cannot be opened, [`Error::Folder`] if one is missing or not valid.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), |path| Bytes::map(path))
    }

    /// Opens a folder and reads its files into memory, so that they may change later.
    ///
    /// # Errors
    /// The errors of [`Folder::open`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), |path| Bytes::read(path))
    }

    fn with(path: &Path, load: impl Fn(&Path) -> kiln_gguf::Result<Bytes>) -> Result<Self> {
        let config = needed(&path.join("config.json"))?;
        let (one, index) = (path.join("model.safetensors"), path.join("model.safetensors.index.json"));
        // The tensor names of the index, if the folder has one, each with its file.
        let (mut expected, mut paths) = (Vec::new(), Vec::new());
        if one.exists() {
            paths.push(one);
        } else if let Some(json) = json(&index)? {
            let map = json.get("weight_map").and_then(Value::as_object);
            let map = map.ok_or_else(|| Error::folder(&index, "weight_map, an object, is expected"))?;
            let mut names = BTreeSet::new();
            for (tensor, file) in map {
                // A file outside of the folder is not accepted.
                let file = file.as_str().filter(|file| is_plain(file)).ok_or_else(|| {
                    let reason = format!("tensor {tensor:?} needs the name of a file in the folder, found {file}");
                    Error::folder(&index, reason)
                })?;
                names.insert(file);
                expected.push((tensor.clone(), path.join(file)));
            }
            paths.extend(names.into_iter().map(|name| path.join(name)));
        } else {
            let reason = "the folder has neither model.safetensors nor model.safetensors.index.json: weights in other files, such as \
                          pytorch_model.bin, are not read";
            return Err(Error::folder(path, reason));
        }
        let (mut files, mut by_name) = (Vec::with_capacity(paths.len()), HashMap::new());
        for path in paths {
            let bytes = load(&path)?;
            let infos = safetensors::parse(&path, bytes.as_ref())?;
            for (at, info) in infos.iter().enumerate() {
                if by_name.insert(info.name.clone(), (files.len(), at)).is_some() {
                    return Err(Error::folder(&path, format!("tensor {:?} is in another file, too", info.name)));
                }
            }
            files.push(File { path, bytes: Arc::new(bytes), infos });
        }
        for (tensor, path) in expected {
            let found = by_name.get(&tensor).map(|&(file, _)| &files[file].path);
            if found != Some(&path) {
                return Err(Error::folder(&path, format!("it lacks tensor {tensor:?}, which the index says it has")));
            }
        }
        Ok(Self { path: path.to_owned(), config, files, by_name })
    }

    /// The paths of the files of weights, with their bytes.
    pub fn files(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.files.iter().map(|file| (&*file.path, (*file.bytes).as_ref().len()))
    }

    /// The descriptions of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = FolderTensor<'_>> {
        self.files.iter().flat_map(|file| &file.infos).map(|info| FolderTensor {
            name: &info.name,
            dtype: info.dtype,
            shape: &info.shape,
            bytes: info.bytes.len(),
            is_supported: info.computed().is_some()
                || names::is_position_ids(&info.name)
                || info.dtype == "U8" && names::is_mxfp4_part(&info.name),
        })
    }

    /// The keys of `config.json` with their values, as JSON.
    pub fn config(&self) -> impl Iterator<Item = (&str, String)> {
        self.config.as_object().into_iter().flatten().map(|(key, value)| (&**key, value.to_string()))
    }

    /// The kind of the model, which `model_type` of `config.json` names.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`]; [`Error::Folder`] if the key is missing.
    pub fn kind(&self) -> Result<ModelKind> {
        let path = self.path.join("config.json");
        let config = Object::of(&path, &self.config)?;
        let model_type = config.needed("model_type", config.text("model_type")?)?;
        match (families::decoder(model_type), families::encoder(model_type)) {
            (Some(_), _) => Ok(ModelKind::Decoder),
            (None, Some(_)) => Ok(ModelKind::Encoder),
            (None, None) => {
                let supported = format!("{}, {}", families::decoders(), families::encoders());
                Err(Error::unsupported_architecture(model_type, supported))
            }
        }
    }

    /// The objects of `config.json` with keys of a model: the whole, and the decoder's object in a model with images.
    fn objects(&self) -> impl Iterator<Item = &Value> {
        std::iter::once(&self.config).chain(self.config.get("text_config"))
    }

    /// Reads the tokenizer: `tokenizer.json`, with the special tokens of `tokenizer_config.json`, `generation_config.json` and
    /// `config.json`.
    ///
    /// # Errors
    /// [`Error::Folder`] if a file is missing or not valid; the errors of [`Tokenizer::from_json`].
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let rows = self.objects().find_map(|value| value.get("vocab_size")?.as_u64());
        let path = self.path.join("tokenizer.json");
        let text = text(&path)?.ok_or_else(|| missing(&path))?;
        let tokenizer = Tokenizer::from_json_of(&text, rows.and_then(|rows| rows.try_into().ok()))?;

        let mut named = [None, None];
        let path = self.path.join("tokenizer_config.json");
        let config = json(&path)?;
        if let Some(config) = &config {
            let config = Object::of(&path, config)?;
            for (name, id) in ["bos_token", "eos_token"].into_iter().zip(&mut named) {
                let Some(token) = config.get(name) else { continue };
                let text = token.get("content").unwrap_or(token).as_str();
                let text = text.ok_or_else(|| Error::folder(&path, format!("{name} is not the text of a token")))?;
                let found = tokenizer.find(text.as_bytes());
                *id = Some(found.ok_or_else(|| {
                    Error::folder(&path, format!("{name} is {:?}, which is not in the vocabulary", text))
                })?);
            }
        }
        let path = self.path.join("config.json");
        let mut objects: Vec<_> = self.objects().map(|value| (path.clone(), value)).collect();
        let path = self.path.join("generation_config.json");
        let generation = json(&path)?;
        objects.extend(generation.as_ref().map(|value| (path, value)));
        let (mut begins, mut ends) = (Vec::new(), Vec::new());
        for (path, value) in &objects {
            let object = Object::of(path, value)?;
            begins.extend(object.tokens("bos_token_id")?);
            ends.extend(object.tokens("eos_token_id")?);
        }
        // A token that tokenizer_config.json omits does not exist.
        let [bos, eos] = match config {
            Some(_) => named,
            None => [begins.first().copied(), ends.first().copied()],
        };
        tokenizer.with_special(bos, eos, &ends)
    }

    /// The chat templates: `chat_template.jinja`, and those of `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`Error::Folder`] if a file is invalid.
    #[cfg(feature = "chat")]
    pub(crate) fn templates(&self) -> Result<Templates> {
        let mut templates = Vec::new();
        if let Some(template) = text(&self.path.join("chat_template.jinja"))? {
            templates.push((DEFAULT.to_owned(), template));
        }
        let path = self.path.join("tokenizer_config.json");
        let config = json(&path)?;
        let wrong = || Error::folder(&path, "chat_template is neither a template nor a list of named templates");
        match config.as_ref().and_then(|config| config.get("chat_template")) {
            None | Some(Value::Null) => {}
            // The first wins.
            Some(Value::String(template)) => templates.push((DEFAULT.to_owned(), template.clone())),
            Some(Value::Array(several)) => {
                for each in several {
                    let part = |name: &str| each.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(wrong);
                    templates.push((part("name")?, part("template")?));
                }
            }
            Some(_) => return Err(wrong()),
        }
        Ok(Templates::new(templates))
    }

    /// Reads the settings of embeddings from the files of sentence-transformers.
    ///
    /// # Errors
    /// The errors of [`encoder::sentences`].
    pub(crate) fn sentences(&self) -> Result<Sentences> {
        encoder::sentences(&self.path)
    }

    /// The number of rows of the token embedding with this name, which must agree with `config.json`.
    ///
    /// # Errors
    /// [`Error::File`] if it is missing, [`Error::Folder`] for another number.
    fn rows_of_embedding(&self, name: &str, said: Option<usize>) -> Result<usize> {
        let found = self.by_name.get(name).and_then(|&(file, at)| self.files[file].infos[at].shape.first().copied());
        let missing = || Error::File(kiln_gguf::Error::MissingTensor { name: name.to_owned() });
        let rows = found.ok_or_else(missing)?;
        match said.filter(|&said| said != rows) {
            None => Ok(rows),
            Some(said) => {
                let reason = format!("vocab_size is {said}, {name} has {rows} rows");
                Err(Error::folder(&self.path.join("config.json"), reason))
            }
        }
    }

    /// The folder's configuration of an encoder, and its weights.
    ///
    /// # Errors
    /// The errors of [`encoder::translate`] and [`EncoderConfig::read`]; [`Error::Folder`] if they contradict the
    /// weights.
    pub(crate) fn into_encoder(self) -> Result<(EncoderConfig, Weights)> {
        let translated = encoder::translate(&self.path.join("config.json"), &self.config)?;
        let names = EncoderNames::of_tensors(|name| self.by_name.contains_key(name));
        let vocabulary = self.rows_of_embedding(&names.embedding(), translated.vocabulary)?;
        let config = EncoderConfig::read(Gguf::parse(&translated.metadata)?.metadata(), vocabulary)?;
        let names = Names::Encoder(names);
        let weights = Weights {
            files: self.files,
            by_name: self.by_name,
            names,
            plus_one: false,
            computed: Vec::new(),
            copies: true,
        };
        Ok((config, weights))
    }

    /// The folder's configuration of a decoder, and its weights.
    ///
    /// # Errors
    /// The errors of [`config::translate`] and [`Config::read`]; [`Error::Model`] if both contradict the weights.
    pub(crate) fn into_parts(self) -> Result<(Config, Weights)> {
        let path = self.path.join("config.json");
        let translated = config::translate(&path, &self.config)?;
        let prefix = DecoderNames::prefix(|name| self.by_name.contains_key(name));
        let vocabulary = self.rows_of_embedding(&format!("{prefix}embed_tokens.weight"), translated.vocabulary)?;
        let mut config = Config::read(Gguf::parse(&translated.metadata)?.metadata(), vocabulary)?;
        // Folders store the rows of queries and keys in the order for half rotations.
        config.architecture.rope = kiln::op::RopeStyle::HalfSplit;
        if let Some(rotates) = &translated.rotates {
            for (layer, &rotates) in config.layers.iter_mut().zip(rotates) {
                layer.rotation = rotates.then_some(0);
            }
        }
        let names = Names::Decoder(DecoderNames {
            prefix,
            norms: config.architecture.norms,
            fused: config.architecture.name == "phi3",
            tied: translated.tied,
            experts: translated.experts,
        });
        let weights = Weights {
            files: self.files,
            by_name: self.by_name,
            names,
            plus_one: translated.plus_one,
            computed: translated.divisors,
            copies: true,
        };
        // Otherwise the embedding would be used as the head.
        if !translated.tied && !weights.has("output.weight") {
            let name = names.of("output.weight").unwrap_or_default();
            return Err(Error::File(kiln_gguf::Error::MissingTensor { name }));
        }
        Ok((config, weights))
    }
}
