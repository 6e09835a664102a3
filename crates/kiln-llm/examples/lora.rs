//! Switches between LoRA adapters of a model from one token to the next.
//!
//! `cargo run --release -p kiln-llm --example lora -- MODEL ADAPTER [ADAPTER...]`: MODEL is a GGUF file or a folder, an ADAPTER is a GGUF
//! file or a folder of PEFT. Without them it makes a small model of random weights and two random adapters.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kiln::Engine;
use kiln_gguf::{Gguf, TensorKind, Writer};
use kiln_llm::{Adapter, Model, Sampler, SessionOptions};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let done = match arguments.next() {
        Some(model) => of_files(&model, &arguments.collect::<Vec<_>>()),
        None => of_random_weights(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lora: {error}");
            ExitCode::FAILURE
        }
    }
}

fn of_files(model: &Path, adapters: &[PathBuf]) -> Result<()> {
    let engine = Engine::new()?;
    let model = Model::load(&engine, model)?;
    let adapters: Vec<Adapter> = adapters.iter().map(Adapter::load).collect::<kiln_llm::Result<_>>()?;
    switch(&model, &adapters, "Once upon a time", 24)
}

fn of_random_weights() -> Result<()> {
    let engine = Engine::new()?;
    let path = std::env::temp_dir().join(format!("kiln-lora-{}.gguf", std::process::id()));
    random_model(&path)?;
    // Read into memory, so that the file can be deleted.
    let file = kiln_gguf::Model::read(&path);
    std::fs::remove_file(&path)?;
    let model = Model::from_gguf(&engine, file?)?;
    let adapters = [random_adapter("first", 2)?, random_adapter("second", 3)?];
    switch(&model, &adapters, "abba", 12)
}

/// Continues a prompt without an adapter, with each of them, and with all of them at half their strength, in one session whose graphs
/// are recorded once.
fn switch(model: &Model<'_>, adapters: &[Adapter], prompt: &str, tokens: usize) -> Result<()> {
    let adapted = model.with_adapters(adapters)?;
    let mut session = adapted.session(SessionOptions { context: Some(256), ..SessionOptions::default() })?;
    let (prompt, sampler) = (model.tokenizer().encode(prompt), Sampler::greedy());
    let alone = adapters.iter().map(|adapter| (adapter.name(), vec![(adapter, 1.0)]));
    let all = adapters.iter().map(|adapter| (adapter, 0.5)).collect();
    for (name, used) in [("none", Vec::new())].into_iter().chain(alone).chain([("all by half", all)]) {
        session.replace(&prompt)?;
        session.set_adapters(&used)?;
        let mut text = String::new();
        for token in session.generate(&sampler, tokens) {
            text += &token?.text;
        }
        println!("{name:<12} {text:?}");
    }
    Ok(())
}

/// The extents of the random model.
const LAYERS: usize = 2;
const WIDTH: usize = 32;
const FFN: usize = 48;
const TOKENS: [&str; 6] = ["<unk>", "<s>", "</s>", "a", "b", "c"];

/// Numbers between -size and size: Marsaglia's xorshift.
fn random(mut state: u32) -> impl FnMut(f32) -> f32 {
    move |size| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 2.0 * size
    }
}

/// The projections of a layer that the adapters change, with their outputs and inputs.
const PROJECTIONS: [(&str, usize, usize); 7] = [
    ("attn_q", WIDTH, WIDTH),
    ("attn_k", WIDTH, WIDTH),
    ("attn_v", WIDTH, WIDTH),
    ("attn_output", WIDTH, WIDTH),
    ("ffn_gate", FFN, WIDTH),
    ("ffn_up", FFN, WIDTH),
    ("ffn_down", WIDTH, FFN),
];

/// Tensors of random elements: names, extents with the contiguous one last, and bytes.
fn tensors(of: Vec<(String, Vec<usize>, f32)>, seed: u32) -> Vec<(String, Vec<u64>, Vec<u8>)> {
    let mut random = random(seed);
    let of = of.into_iter().map(|(name, dims, size)| {
        let around = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let count = dims.iter().product();
        let bytes = (0..count).flat_map(|_| (around + random(size)).to_le_bytes()).collect();
        (name, dims.into_iter().rev().map(|n| n as u64).collect(), bytes)
    });
    of.collect()
}

/// Writes a Llama of random weights.
fn random_model(path: &Path) -> Result<()> {
    let mut of = vec![
        ("token_embd.weight".to_owned(), vec![TOKENS.len(), WIDTH], 1.0),
        ("output_norm.weight".to_owned(), vec![WIDTH], 0.5),
        ("output.weight".to_owned(), vec![TOKENS.len(), WIDTH], 0.4),
    ];
    for layer in 0..LAYERS {
        of.extend(["attn_norm", "ffn_norm"].map(|name| (format!("blk.{layer}.{name}.weight"), vec![WIDTH], 0.5)));
        of.extend(
            PROJECTIONS.map(|(name, rows, columns)| (format!("blk.{layer}.{name}.weight"), vec![rows, columns], 0.4)),
        );
    }
    let tensors = tensors(of, 7);
    let mut writer = Writer::new();
    writer.set("general.architecture", &"llama")?;
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 256),
        ("embedding_length", WIDTH),
        ("feed_forward_length", FFN),
        ("attention.head_count", 4),
    ] {
        writer.set(&format!("llama.{key}"), &(value as u32))?;
    }
    writer.set("tokenizer.ggml.model", &"llama")?;
    writer.set("tokenizer.ggml.tokens", &TOKENS.to_vec())?;
    // Unknown, control and normal tokens.
    writer.set("tokenizer.ggml.token_type", &vec![2, 3, 3, 1, 1, 1])?;
    writer.set("tokenizer.ggml.scores", &vec![0.0f32; TOKENS.len()])?;
    writer.set("tokenizer.ggml.add_space_prefix", &false)?;
    for (name, extents, bytes) in &tensors {
        writer.tensor(name, TensorKind::F32, extents, bytes)?;
    }
    Ok(writer.save(path)?)
}

/// An adapter of rank 4, as a file that is in memory.
fn random_adapter(name: &str, seed: u32) -> Result<Adapter> {
    let sides = |layer: usize, (name, rows, columns): (&str, usize, usize)| {
        let of = |side: &str| format!("blk.{layer}.{name}.weight.lora_{side}");
        [(of("a"), vec![4, columns], 0.4), (of("b"), vec![rows, 4], 0.4)]
    };
    let all = (0..LAYERS).flat_map(|layer| PROJECTIONS.into_iter().flat_map(move |of| sides(layer, of)));
    let tensors = tensors(all.collect(), seed);
    let mut writer = Writer::new();
    writer.set("general.type", &"adapter")?;
    writer.set("general.architecture", &"llama")?;
    writer.set("adapter.type", &"lora")?;
    writer.set("adapter.lora.alpha", &8.0f32)?;
    for (name, extents, bytes) in &tensors {
        writer.tensor(name, TensorKind::F32, extents, bytes)?;
    }
    let mut file = Vec::new();
    writer.write(&mut file)?;
    Ok(Adapter::from_gguf(name, &Gguf::parse(&file)?)?)
}
