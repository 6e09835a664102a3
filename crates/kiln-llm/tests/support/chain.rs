// A model whose next token depends on the last token alone. The example of `Session::stream` includes this file, too.

use kiln_gguf::{TensorKind, Writer};

/// Saves a decoder with the tokens `<unk>`, `<s>`, `</s>`, which ends a text, and the given ones from 3 on, each with its type.
///
/// After token `from` the logit of token `to` is the third number of `(from, to, logit)`; other logits are 0. Attention and the
/// feed-forward network add nothing.
pub(crate) fn chain(
    name: &str,
    tokens: &[(&str, i32)],
    follows: &[(u32, u32, f32)],
    keys: &[(&str, &str)],
) -> std::path::PathBuf {
    let first = [("<unk>", 2), ("<s>", 3), ("</s>", 3)];
    let tokens: Vec<(&str, i32)> = first.iter().chain(tokens).copied().collect();
    let (count, width) = (tokens.len(), tokens.len().next_multiple_of(32));
    let mut writer = Writer::new();
    writer.set("general.architecture", &"llama").unwrap();
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 512),
        ("embedding_length", width as u32),
        ("feed_forward_length", 32),
        ("attention.head_count", 1),
    ] {
        writer.set(&format!("llama.{key}"), &value).unwrap();
    }
    writer.set("tokenizer.ggml.model", &"llama").unwrap();
    writer.set("tokenizer.ggml.tokens", &tokens.iter().map(|&(text, _)| text).collect::<Vec<_>>()).unwrap();
    writer.set("tokenizer.ggml.token_type", &tokens.iter().map(|&(_, kind)| kind).collect::<Vec<_>>()).unwrap();
    writer.set("tokenizer.ggml.scores", &vec![0.0f32; count]).unwrap();
    writer.set("tokenizer.ggml.add_space_prefix", &false).unwrap();
    for (key, value) in keys {
        writer.set(key, value).unwrap();
    }
    let mut tensors = Vec::new();
    let mut tensor = |name: &str, dims: &[u64], values: Vec<f32>| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensors.push((format!("{name}.weight"), dims.to_vec(), bytes));
    };
    // A norm multiplies a row with a single 1 by the square root of its length.
    let (mut embedding, mut output) = (vec![0.0; count * width], vec![0.0; count * width]);
    for token in 0..count {
        embedding[token * width + token] = 1.0;
    }
    for &(from, to, logit) in follows {
        output[to as usize * width + from as usize] = logit / (width as f32).sqrt();
    }
    tensor("token_embd", &[width as u64, count as u64], embedding);
    tensor("output", &[width as u64, count as u64], output);
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        tensor(name, &[width as u64], vec![1.0; width]);
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        tensor(&format!("blk.0.{name}"), &[width as u64; 2], vec![0.0; width * width]);
    }
    for (name, dims) in [("ffn_gate", [width, 32]), ("ffn_up", [width, 32]), ("ffn_down", [32, width])] {
        tensor(&format!("blk.0.{name}"), &dims.map(|n| n as u64), vec![0.0; width * 32]);
    }
    for (name, dims, bytes) in &tensors {
        writer.tensor(name, TensorKind::F32, dims, bytes).unwrap();
    }
    let path = std::env::temp_dir().join(format!("kiln-llm-{}-{name}.gguf", std::process::id()));
    writer.save(&path).unwrap();
    path
}
