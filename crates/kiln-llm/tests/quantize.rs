//! Models in other element types: every byte is what the formats' own encoders write.

use std::cell::RefCell;
use std::path::PathBuf;

use kiln::{Engine, QuantFormat, f16};
use kiln_gguf::{Model, TensorKind, Writer};
use kiln_llm::{Error, Quantization, Recipe};

/// Numbers that repeat after a long while.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 1009) as f32 - 504.0) * 0.01).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kiln-llm-quantize-{}-{name}.gguf", std::process::id()))
}

/// A model of one layer: names, extents and numbers.
fn tensors() -> Vec<(&'static str, Vec<u64>, Vec<f32>)> {
    [
        ("token_embd.weight", &[512, 5][..]),
        ("blk.0.attn_norm.weight", &[512]),
        ("blk.0.attn_q.weight", &[512, 3]),
        ("blk.0.attn_q.bias", &[3]),
        // The only layer is in the last eighth.
        ("blk.0.attn_v.weight", &[512, 2]),
        ("blk.0.ffn_up.weight", &[96, 4]),
        ("blk.0.ffn_gate.weight", &[33, 4]),
        // More elements than are cast at once.
        ("blk.0.ffn_down.weight", &[4096, 1100]),
    ]
    .into_iter()
    .map(|(name, extents)| (name, extents.to_vec(), numbers(extents.iter().product::<u64>() as usize)))
    .collect()
}

fn save(name: &str) -> PathBuf {
    let tensors = tensors();
    let contents: Vec<Vec<u8>> = tensors.iter().map(|(.., numbers)| bytes(numbers)).collect();
    let mut writer = Writer::new();
    writer.set("general.architecture", &"llama").unwrap();
    writer.set("general.file_type", &0u32).unwrap();
    writer.set("llama.block_count", &1u32).unwrap();
    for ((name, extents, _), bytes) in tensors.iter().zip(&contents) {
        writer.tensor(name, TensorKind::F32, extents, bytes).unwrap();
    }
    let path = path(name);
    writer.save(&path).unwrap();
    path
}

fn encoded(format: QuantFormat, numbers: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; format.bytes(numbers.len()).unwrap()];
    format.encode(numbers, &mut blocks).unwrap();
    blocks
}

#[test]
fn a_mixture_is_written_and_quantised_again_only_where_asked() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let (from, to) = (save("mixture"), path("mixture-out"));
    let model = Model::read(&from).unwrap();
    let recipe = Recipe::find("q4_k_m").unwrap();
    let quantization = Quantization::new(&model, recipe, false).unwrap();
    let done = RefCell::new(Vec::new());
    let saturated = quantization.save(&engine, &to, &|number| done.borrow_mut().push(number)).unwrap();
    assert_eq!(saturated, 0);
    assert_eq!(done.into_inner(), (0..8).collect::<Vec<_>>());

    let written = Model::read(&to).unwrap();
    assert_eq!(written.metadata().get::<u32>("general.file_type").unwrap(), 15);
    assert_eq!(written.metadata().get::<&str>("general.architecture").unwrap(), "llama");
    let kinds = ["Q6_K", "F32", "Q4_K", "F32", "Q6_K", "Q5_0", "F16", "Q6_K"];
    for (((name, extents, numbers), kind), conversion) in
        tensors().into_iter().zip(kinds).zip(quantization.conversions())
    {
        let tensor = written.tensor(name).unwrap();
        assert_eq!((tensor.info().kind().name(), tensor.info().extents()), (kind, &extents[..]), "{name}");
        assert_eq!((&*conversion.name, conversion.to, conversion.bytes_after), {
            (name, tensor.info().kind(), tensor.bytes().len() as u64)
        });
        let expected = match kind {
            "F32" => bytes(&numbers),
            "F16" => numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            _ => encoded(QuantFormat::from_gguf_id(tensor.info().kind().id()).unwrap(), &numbers),
        };
        assert!(tensor.bytes() == expected, "{name}");
    }

    // From blocks to floats is not a second quantisation, to other blocks it is.
    let f16s = Recipe::find("F16").unwrap();
    Quantization::new(&written, f16s, false).unwrap().save(&engine, &from, &|_| ()).unwrap();
    let values = tensors().swap_remove(2).2;
    let mut decoded = vec![0.0; values.len()];
    QuantFormat::Q4K.decode(&encoded(QuantFormat::Q4K, &values), &mut decoded).unwrap();
    let rounded: Vec<u8> = decoded.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
    assert_eq!(Model::read(&from).unwrap().tensor("blk.0.attn_q.weight").unwrap().bytes(), rounded);
    let coarse = Recipe::find("q4_0").unwrap();
    let refused = Quantization::new(&written, coarse, false).unwrap_err();
    assert!(matches!(&refused, Error::Model { reason, .. } if reason.contains("Q4_K already")), "{refused}");
    assert!(Quantization::new(&written, coarse, true).is_ok());
    for path in [from, to] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn blocks_with_elements_beyond_their_type_are_counted() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let mut numbers = numbers(512);
    (numbers[3], numbers[300]) = (1e30, -1e30);
    let contents = bytes(&numbers);
    let mut writer = Writer::new();
    writer.set("general.architecture", &"llama").unwrap();
    writer.tensor("blk.0.attn_q.weight", TensorKind::F32, &[512, 1], &contents).unwrap();
    let (from, to) = (path("beyond"), path("beyond-out"));
    writer.save(&from).unwrap();
    let model = Model::read(&from).unwrap();
    for (recipe, expected) in [("q8_0", 2), ("q4_k", 2), ("mxfp4", 0), ("bf16", 0)] {
        let recipe = Recipe::find(recipe).unwrap();
        let quantization = Quantization::new(&model, recipe, false).unwrap();
        assert_eq!(quantization.save(&engine, &to, &|_| ()).unwrap(), expected, "{}", recipe.name());
    }
    for path in [from, to] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let from = save("full");
    let model = Model::read(&from).unwrap();
    std::fs::remove_file(&from).unwrap();
    let recipe = Recipe::find("q8_0").unwrap();
    let quantization = Quantization::new(&model, recipe, false).unwrap();
    for to in ["/dev/full", "/nowhere/model.gguf"] {
        let written = quantization.save(&engine, to, &|_| ());
        assert!(matches!(written, Err(Error::File(kiln_gguf::Error::Io { .. }))), "{to}: {written:?}");
    }
}
