#![doc = include_str!("../README.md")]
//!
//! Entry points: [`Model::load`] reads a model, and [`Model::session`] returns a [`Session`], which generates tokens with a [`Sampler`].
//! [`Sequences`] generates several texts at once, an [`Adapter`] changes a model, and a [`Tokenizer`] encodes texts. Encoders compute
//! embeddings of texts: see [`EmbeddingModel`].
//!
//! # Source map
//!
//! For contributors: these modules are private, and the crate exports their public items at its root.
//!
//! | module | what it holds |
//! |---|---|
//! | `model`, `config`, `tensor_source` | [`Model`]: the checked configuration of a file, and its weights as tensors |
//! | `outline` | `ModelOutline`: a model without its weights, for plans |
//! | `placement` | [`DeviceLayers`], [`MemoryPlan`]: the placement of layers, and the plan of memory before any is allocated |
//! | `loading` | [`Loader`]: a model from a file that arrives in parts; [`ModelPlan`]: the memory that it takes |
//! | `adapter` | [`Adapter`]: LoRA from GGUF files and folders of PEFT; [`AdaptedModel`] |
//! | `embedding`, `sentences` | [`EmbeddingModel`]: texts as vectors; settings of files for them |
//! | `folder` | [`Folder`]: `config.json` as metadata, safetensors files, and the names of their tensors |
//! | `architecture` | [`ModelKind`], and the decoders as a table: llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3, granite, smollm3, olmo2, gpt-oss |
//! | `architecture/weights`, `rope`, `decoder` | the weights by name, the rotations with their factors, and the graph of a step |
//! | `architecture/feed_forward` | gated networks and mixtures of experts |
//! | `architecture/cached`, `rows` | attention to cached keys and values; the graph of several sequences |
//! | `architecture/outcome`, `candidates`, `drawing` | logits and the choices by them; the likeliest tokens; a token drawn on the device |
//! | `architecture/adapters`, `modules` | adapters stacked beside the weights of a decoder; the names of the projections that they change |
//! | `architecture/encoder` | encoders: bert; their configuration and weights, and the graph of some texts |
//! | `session` | [`Session`]: tokens with their keys and values; [`Generation`] |
//! | `text_parts` | the numbers of tokens that graphs compute at once |
//! | `stream` | [`GenerationStream`]: generated tokens as an asynchronous stream |
//! | `sequences`, `sequence_id` | [`Sequences`]: several sequences of tokens, one token of each a step |
//! | `throughput` | the tests of `kiln-llm bench`: [`Session::time_prompt`], [`Session::time_decode`], [`Sequences::time`] |
//! | `quantize` | [`Quantization`]: model files in other element types |
//! | `sampling` | [`Sampler`]: the choice of the next token; penalties, and random numbers |
//! | `sampling/candidates`, `dry`, `mirostat` | the steps that exclude tokens; [`SequenceBreakers`]; [`Surprises`] |
//! | `chat` | `ChatTemplate`, `Message`, `Reply` (the feature `chat`): conversations as prompts, and the answer in a reply |
//! | `tokenizer` | [`Tokenizer`]: from texts to tokens and back |
//! | `tokenizer/gguf`, `json` | tokenizers from the metadata of GGUF files, and from `tokenizer.json` |
//! | `tokenizer/spm`, `bpe`, `wordpiece`, `unigram` | how each kind splits texts; the first two share `merge` |
//! | `tokenizer/pretokenize` | how each family of byte-pair encoding splits texts into words |
//! | `tokenizer/special` | tokens that are recognised before anything else, and tokens that end a generation |
//! | `tokenizer/vocabulary`, `hash` | the tokens, and the token of a text |
//! | `tokenizer/decode` | [`Decoder`]: text from tokens as they arrive |
//! | `unicode` | classes of characters, and characters without accents, from generated tables |
//! | `forward_pass` | [`ForwardPass`], `WgslForwardPass` (the feature `gpu`): a layer or a model from weights in memory |
//! | `error` | [`Error`]: says what was expected, what was found and what to change |
//!
//! A step is recorded once for 1, 8, 64, 512 and 1024 tokens of a text (on GPUs also 256), and for 1, 2, 4 and so on up to 64
//! sequences, and then executed many times: tokens and positions are data. Keys and values are states of the engine, which executions
//! change in place. Layers that see a window of the last keys also keep all keys, because their window is a mask. The program
//! `kiln-llm` runs models, and inspects their files.
//!
//! In a page with WebGPU (the feature `gpu-wasm`) nothing can block: [`Loader`] loads a model, and [`Session::sample_async`],
//! [`Session::logits_async`] and [`Session::stream`] replace the blocking forms. Features with only blocking forms are unavailable
//! there: several sequences, embeddings, scores of texts, [`ForwardPass`] and quantising files.
//!
//! Texts are tokenized as they are: like llama.cpp, kiln does not convert them to a normal form of Unicode. BERT and unigram
//! tokenizers map characters as their files say.
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
