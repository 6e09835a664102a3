//! Models with random weights in the shape of a public one, so that nothing has to be fetched.

use std::io::{self, Write};
use std::path::Path;

use kiln_gguf::{TensorKind, Writer};
use kiln_ir::{DType, f16};

use crate::Result;

/// The numbers that say how much a model computes and reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) layers: usize,
    pub(super) width: usize,
    pub(super) ffn: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) vocabulary: usize,
}

/// SmolLM2-135M. Its embedding is also the matrix of the logits.
pub(super) const SMOLLM2: Shape =
    Shape { name: "SmolLM2-135M", layers: 30, width: 576, ffn: 1536, heads: 9, kv_heads: 3, vocabulary: 49_152 };

/// The longest text, in tokens.
const CONTEXT: u32 = 8192;
/// Random elements that tensors take theirs from. Tensors begin at different blocks, so that no two are alike.
const DRAWN: usize = 1 << 20;
/// The distance between the beginnings of two tensors, in blocks.
const APART: usize = 1_048_583;

/// Random blocks of a type.
struct Blocks {
    bytes: Vec<u8>,
    of_block: usize,
}

impl Blocks {
    /// Blocks with which products of `columns` elements keep the size of what they multiply.
    fn new(kind: TensorKind, columns: usize) -> Result<Self> {
        // Uniform numbers up to this have the variance 1 / columns.
        let most = (3.0 / columns as f32).sqrt();
        let elements = kiln_benches::random(DRAWN, -most, most, columns as u64);
        let (bytes, of_block) = match kind.dtype() {
            Some(DType::F16) => (elements.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(), 2),
            Some(DType::Blocks(format)) => {
                let mut blocks = vec![0; DRAWN / format.block_len() * format.block_bytes()];
                format.encode(&elements, &mut blocks)?;
                (blocks, format.block_bytes())
            }
            _ => return Err(format!("random weights are f16 or blocks, not {kind}").into()),
        };
        Ok(Self { bytes, of_block })
    }

    /// Writes this many blocks of the tensor with this number.
    fn write(&self, tensor: usize, blocks: usize, to: &mut dyn Write) -> io::Result<()> {
        let mut bytes = blocks * self.of_block;
        let mut at = tensor * APART % (self.bytes.len() / self.of_block) * self.of_block;
        while bytes > 0 {
            let part = bytes.min(self.bytes.len() - at);
            to.write_all(&self.bytes[at..at + part])?;
            (bytes, at) = (bytes - part, 0);
        }
        Ok(())
    }
}

impl Shape {
    /// Writes a Llama of this shape whose matrices are of a type.
    pub(super) fn save(&self, kind: TensorKind, path: &Path) -> Result<()> {
        let &Self { layers, width, ffn, heads, kv_heads, vocabulary, .. } = self;
        let head = width / heads;
        let mut matrices = vec![("token_embd.weight".to_owned(), vocabulary, width)];
        for layer in 0..layers {
            let of_layer = [
                ("attn_q", width, width),
                ("attn_k", kv_heads * head, width),
                ("attn_v", kv_heads * head, width),
                ("attn_output", width, width),
                ("ffn_gate", ffn, width),
                ("ffn_up", ffn, width),
                ("ffn_down", width, ffn),
            ];
            matrices
                .extend(of_layer.map(|(part, rows, columns)| (format!("blk.{layer}.{part}.weight"), rows, columns)));
        }
        let [narrow, wide] = [Blocks::new(kind, width)?, Blocks::new(kind, ffn)?];
        let makes = matrices.iter().enumerate().map(|(number, &(_, rows, columns))| {
            let blocks = if columns == width { &narrow } else { &wide };
            move |to: &mut dyn Write| blocks.write(number, rows * columns / kind.block_len(), to)
        });
        let makes: Vec<_> = makes.collect();
        let ones: Vec<u8> = (0..width).flat_map(|_| 1f32.to_le_bytes()).collect();

        let mut writer = Writer::new();
        writer.set("general.architecture", &"llama")?;
        writer.set("general.name", &format!("random weights in the shape of {}", self.name).as_str())?;
        for (key, value) in [
            ("block_count", layers as u32),
            ("context_length", CONTEXT),
            ("embedding_length", width as u32),
            ("feed_forward_length", ffn as u32),
            ("attention.head_count", heads as u32),
            ("attention.head_count_kv", kv_heads as u32),
        ] {
            writer.set(&format!("llama.{key}"), &value)?;
        }
        self.set_vocabulary(&mut writer)?;
        for ((name, rows, columns), make) in matrices.iter().zip(&makes) {
            writer.tensor_with(name, kind, &[*columns as u64, *rows as u64], make)?;
        }
        for layer in 0..layers {
            for norm in ["attn_norm", "ffn_norm"] {
                writer.tensor(&format!("blk.{layer}.{norm}.weight"), TensorKind::F32, &[width as u64], &ones)?;
            }
        }
        writer.tensor("output_norm.weight", TensorKind::F32, &[width as u64], &ones)?;
        Ok(writer.save(path)?)
    }

    /// Adds a vocabulary of SentencePiece: three special tokens, the bytes, and made-up words.
    fn set_vocabulary(&self, writer: &mut Writer<'_>) -> Result<()> {
        const SPECIAL: usize = 3;
        const BYTES: usize = 256;
        let names = (0..self.vocabulary).map(|token| match token {
            0 => "<unk>".to_owned(),
            1 => "<s>".to_owned(),
            2 => "</s>".to_owned(),
            _ if token < SPECIAL + BYTES => format!("<0x{:02X}>", token - SPECIAL),
            _ => format!("\u{2581}w{token}"),
        });
        // Unknown, control, byte and normal tokens.
        let kinds = (0..self.vocabulary).map(|token| match token {
            0 => 2,
            1 | 2 => 3,
            _ if token < SPECIAL + BYTES => 6,
            _ => 1,
        });
        let names: Vec<String> = names.collect();
        writer.set("tokenizer.ggml.model", &"llama")?;
        writer.set("tokenizer.ggml.tokens", &names.iter().map(String::as_str).collect::<Vec<&str>>())?;
        writer
            .set("tokenizer.ggml.scores", &(0..self.vocabulary).map(|token| -(token as f32)).collect::<Vec<f32>>())?;
        writer.set("tokenizer.ggml.token_type", &kinds.collect::<Vec<i32>>())?;
        writer.set("tokenizer.ggml.bos_token_id", &1u32)?;
        writer.set("tokenizer.ggml.eos_token_id", &2u32)?;
        Ok(())
    }
}
