#![doc = include_str!("../README.md")]
//!
//! Encoders give texts embeddings: see [`EmbeddingModel`].
//!
//! # Modules
//!
//! | module | what it holds |
//! |---|---|
//! | `model`, `config`, `tensor_source` | [`Model`]: what a file says, checked, and its weights as tensors |
//! | `outline` | `ModelOutline`: a model without its weights, for plans |
//! | `placement` | [`DeviceLayers`], [`MemoryPlan`]: where layers run, and the memory that is planned before any is allocated |
//! | `loading` | [`Loader`]: a model from a file that comes one part after the other; [`ModelPlan`]: the memory that it takes |
//! | `adapter` | [`Adapter`]: LoRA from GGUF files and folders of PEFT; [`AdaptedModel`] |
//! | `embedding`, `sentences` | [`EmbeddingModel`]: texts as vectors; settings of files for them |
//! | `folder` | [`Folder`]: `config.json` as metadata, safetensors files, and the names of their tensors |
//! | `architecture` | [`ModelKind`], and the decoders as a table: llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3, granite, smollm3, olmo2, gpt-oss |
//! | `architecture/weights`, `rope`, `decoder` | the weights by name, the rotations with their factors, and the graph of a step |
//! | `architecture/feed_forward` | gated networks and mixtures of experts |
//! | `architecture/cached`, `rows` | how tokens see the keys that are kept; the graph of several sequences |
//! | `architecture/outcome`, `candidates`, `drawing` | logits and what is chosen by them; the likeliest tokens; a token drawn on the device |
//! | `architecture/adapters`, `modules` | adapters stacked beside the weights of a decoder; the names of the projections that they change |
//! | `architecture/encoder` | encoders: bert; their numbers and weights, and the graph of some texts |
//! | `session` | [`Session`]: tokens with their keys and values; [`Generation`] |
//! | `text_parts` | the numbers of tokens that graphs compute at once |
//! | `stream` | [`GenerationStream`]: the same as an asynchronous stream |
//! | `sequences`, `sequence_id` | [`Sequences`]: several sequences of tokens, one token of each a step |
//! | `throughput` | the tests of `kiln-llm bench`: [`Session::time_prompt`], [`Session::time_decode`], [`Sequences::time`] |
//! | `quantize` | [`Quantization`]: model files in other element types |
//! | `sampling` | [`Sampler`]: how the next token is chosen; penalties, and the random numbers |
//! | `sampling/candidates`, `dry`, `mirostat` | the steps that exclude tokens; [`SequenceBreakers`]; [`Surprises`] |
//! | `chat` | `ChatTemplate`, `Message`, `Reply` (the feature `chat`): conversations as prompts, and what of a reply is the answer |
//! | `tokenizer` | [`Tokenizer`]: from texts to tokens and back |
//! | `tokenizer/gguf`, `json` | tokenizers from the metadata of GGUF files, and from `tokenizer.json` |
//! | `tokenizer/spm`, `bpe`, `wordpiece`, `unigram` | how each kind cuts texts; `merge` is what the first two share |
//! | `tokenizer/pretokenize` | how each family of byte-pair encoding splits texts into words |
//! | `tokenizer/special` | tokens that are recognised before anything else, and tokens that end a generation |
//! | `tokenizer/vocabulary`, `hash` | the tokens, and the token of a text |
//! | `tokenizer/decode` | [`Decoder`]: text from tokens as they arrive |
//! | `unicode` | classes of characters, and characters without accents, from generated tables |
//! | `forward_pass` | [`ForwardPass`], `WgslForwardPass` (the feature `gpu`): a layer or a model from weights in memory |
//! | `error` | [`Error`]: what was expected, what was found, what to do |
//!
//! A step is recorded once for 1, 8, 64, 512 and 1024 tokens of a text (on GPUs also 256), and for 1, 2, 4 and so on up to 64 sequences, and executed again
//! and again: tokens and positions are data. Keys and values are states of the engine, which executions change where they are. Layers that see a window of the last keys keep all of them, too, as
//! their window is a mask. The program `kiln-llm` runs models, and looks into their files.
//!
//! In a page with WebGPU (the feature `gpu-wasm`) nothing can wait: a model comes from [`Loader`], [`Session::sample_async`],
//! [`Session::logits_async`] and [`Session::stream`] take the place of the blocking forms, and what has blocking forms alone is not
//! there: several sequences, embeddings, scores of texts, [`ForwardPass`] and quantising files.
//!
//! Texts are tokenized as they are: they are not brought to a normal form of Unicode, which llama.cpp does not do either. BERT and
//! unigram tokenizers map characters as their files say.
#![forbid(unsafe_code)]
#![cfg_attr(
    browser_gpu,
    allow(dead_code, unreachable_pub, reason = "some of what blocking forms share has no asynchronous form yet")
)]

mod adapter;
mod architecture;
#[cfg(feature = "chat")]
mod chat;
mod config;
mod embedding;
mod error;
mod folder;
#[cfg(not(browser_gpu))]
mod forward_pass;
mod keys;
mod loading;
mod model;
#[cfg(not(browser_gpu))]
mod outline;
mod placement;
#[cfg(not(target_arch = "wasm32"))]
mod quantize;
mod sampling;
mod sentences;
mod sequence_id;
mod sequences;
mod session;
mod stream;
mod tensor_source;
mod text_parts;
#[cfg(not(target_arch = "wasm32"))]
mod throughput;
mod tokenizer;
mod unicode;

pub use adapter::{AdaptedModel, Adapter, AdapterModule, QkvLora};
pub use architecture::ModelKind;
#[cfg(not(target_arch = "wasm32"))]
pub use architecture::TokenWork;
#[cfg(feature = "chat")]
pub use chat::{Channel, ChatTemplate, Message, Reply};
pub use embedding::{EmbeddingModel, EmbeddingOptions};
pub use error::{Error, Result};
pub use folder::{Folder, FolderTensor};
#[cfg(all(feature = "gpu", not(browser_gpu)))]
pub use forward_pass::WgslForwardPass;
#[cfg(not(browser_gpu))]
pub use forward_pass::{ForwardPass, ForwardShape};
pub use loading::{Loader, ModelPlan};
pub use model::Model;
#[cfg(not(browser_gpu))]
pub use outline::ModelOutline;
pub use placement::{Bytes, DeviceLayers, MemoryPlan, PlannedPart};
#[cfg(not(target_arch = "wasm32"))]
pub use quantize::{Conversion, Quantization, Recipe};
pub use sampling::{Sampler, SequenceBreakers, Surprises};
pub use sentences::Pooling;
pub use sequence_id::SequenceId;
#[cfg(not(browser_gpu))]
pub use sequences::{Finish, Made, SequenceOptions, Sequences, SequencesOptions, Steps};
pub use session::{Generated, Generation, Session, SessionOptions};
pub use stream::GenerationStream;
#[cfg(not(target_arch = "wasm32"))]
pub use throughput::BatchTime;
pub use tokenizer::{Decoder, Encoding, SpecialTokens, TokenKind, Tokenizer};
