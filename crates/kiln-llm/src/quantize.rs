//! Quantisation: writes model files with other element types.

use std::cell::Cell;
use std::io;
use std::path::Path;

use kiln::op::{Cast, Dequantize, Op, Quantize};
use kiln::{Buffer, DType, Data, Engine, Operand, Operations, Shape};
use kiln_gguf::{Model as File, TensorKind, TensorView, Writer};

use crate::{Error, Result};

/// Elements that are cast at once: few enough to need little memory, and enough for all threads.
const ELEMENTS_AT_ONCE: usize = 1 << 22;

/// The element types that the matrices of a model are converted to.
///
/// Norms, biases and the factors of rotations keep their types. With a quantised type the matrix of the logits becomes Q6_K unless
/// the type is Q8_0, because its errors affect the result directly. Matrices whose rows are not whole blocks of 256 elements get a
/// type with blocks of 32, or f16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    name: &'static str,
    kind: TensorKind,
    /// The type of the value projections and of the second products of feed-forward networks in the first and last
    /// eighth of the layers, and in every third layer between.
    better: Option<TensorKind>,
    /// The type of the projections of queries, keys and values where they are one matrix.
    joined: Option<TensorKind>,
    /// The value of `general.file_type`.
    file_type: u32,
}

const fn recipe(name: &'static str, kind: TensorKind, file_type: u32) -> Recipe {
    Recipe { name, kind, better: None, joined: None, file_type }
}

/// The recipes. Mixtures have the names and the rules of llama.cpp.
const RECIPES: &[Recipe] = &[
    recipe("f32", TensorKind::F32, 0),
    recipe("f16", TensorKind::F16, 1),
    recipe("bf16", TensorKind::Bf16, 32),
    recipe("q8_0", TensorKind::Q8_0, 7),
    recipe("q6_k", TensorKind::Q6K, 18),
    Recipe { better: Some(TensorKind::Q6K), joined: Some(TensorKind::Q6K), ..recipe("q5_k_m", TensorKind::Q5K, 17) },
    recipe("q5_k", TensorKind::Q5K, 16),
    recipe("q5_1", TensorKind::Q5_1, 9),
    recipe("q5_0", TensorKind::Q5_0, 8),
    Recipe { better: Some(TensorKind::Q6K), joined: Some(TensorKind::Q5K), ..recipe("q4_k_m", TensorKind::Q4K, 15) },
    recipe("q4_k", TensorKind::Q4K, 14),
    recipe("q4_1", TensorKind::Q4_1, 3),
    recipe("q4_0", TensorKind::Q4_0, 2),
    recipe("iq4_nl", TensorKind::Iq4Nl, 25),
    recipe("iq4_xs", TensorKind::Iq4Xs, 30),
    recipe("mxfp4", TensorKind::Mxfp4, 38),
    recipe("q3_k", TensorKind::Q3K, 11),
    recipe("q2_k", TensorKind::Q2K, 10),
];

impl Recipe {
    /// Returns the recipe with this name, ignoring case.
    pub fn find(name: &str) -> Option<Self> {
        RECIPES.iter().copied().find(|recipe| recipe.name.eq_ignore_ascii_case(name))
    }

    /// Returns the names of all recipes, the most exact first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RECIPES.iter().map(|recipe| recipe.name)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The new type of a matrix with this name and rows of `row` elements. `tied`: the embedding is also the matrix of
    /// the logits.
    fn kind_of(&self, name: &str, row: u64, layers: u32, tied: bool) -> TensorKind {
        let blocks = self.kind.block_len() > 1;
        let kind = if blocks && (name == "output.weight" || tied && name == "token_embd.weight") {
            if self.kind == TensorKind::Q8_0 { TensorKind::Q8_0 } else { TensorKind::Q6K }
        } else {
            let joined = self.joined.filter(|_| name.ends_with(".attn_qkv.weight"));
            joined.or(self.better.filter(|_| gets_better(name, layers))).unwrap_or(self.kind)
        };
        // A type with smaller blocks and at least the same precision.
        let smaller = match kind {
            TensorKind::Q2K | TensorKind::Q3K | TensorKind::Iq4Xs => TensorKind::Iq4Nl,
            TensorKind::Q4K => TensorKind::Q5_0,
            TensorKind::Q5K => TensorKind::Q5_1,
            TensorKind::Q6K => TensorKind::Q8_0,
            kind => kind,
        };
        let fits = |kind: &TensorKind| row.is_multiple_of(kind.block_len() as u64);
        [kind, smaller].into_iter().find(fits).unwrap_or(TensorKind::F16)
    }
}

/// Whether mixtures use the better type for a matrix.
fn gets_better(name: &str, layers: u32) -> bool {
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else { return false };
    let Ok(layer) = layer.parse::<u32>() else { return false };
    let eighth = layers / 8;
    matches!(part, "attn_v.weight" | "ffn_down.weight" | "ffn_down_exps.weight")
        && (layer < eighth || u64::from(layer) >= 7 * u64::from(layers) / 8 || (layer - eighth) % 3 == 2)
}

/// Whether a tensor is a matrix of a product, or an embedding.
fn is_matrix(name: &str, extents: &[u64]) -> bool {
    // Embeddings of positions and types are added to every token, and take little memory.
    let kept = ["_norm.weight", "ffn_gate_inp.weight", "position_embd.weight", "token_types.weight"]
        .iter()
        .any(|end| name.ends_with(end));
    extents.len() > 1 && name.ends_with(".weight") && !kept
}

/// The conversion of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conversion {
    /// The name of the tensor.
    pub name: String,
    /// Its type.
    pub from: TensorKind,
    /// Its type in the new file.
    pub to: TensorKind,
    /// The number of its elements.
    pub elements: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its bytes in the new file.
    pub bytes_after: u64,
}

/// A model file, and the planned conversions of its tensors.
///
/// ```no_run
/// # fn main() -> kiln_llm::Result<()> {
/// let engine = kiln::Engine::new().map_err(kiln_llm::Error::from)?;
/// let file = kiln_gguf::Model::open("model-f16.gguf")?;
/// let recipe = kiln_llm::Recipe::find("q4_k_m").expect("one of the names");
/// kiln_llm::Quantization::new(&file, recipe, false)?.save(&engine, "model-q4_k_m.gguf", &|_| ())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Quantization<'f> {
    file: &'f File,
    recipe: Recipe,
    conversions: Vec<Conversion>,
}

impl<'f> Quantization<'f> {
    /// Plans the conversion of each tensor.
    ///
    /// # Errors
    /// [`Error::Model`] if a quantised matrix would be quantised again and `again` is false; [`Error::File`] for a matrix of a type
    /// without kernels.
    pub fn new(file: &'f File, recipe: Recipe, again: bool) -> Result<Self> {
        Ok(Self { file, recipe, conversions: plan(file, recipe, again)? })
    }

    /// The conversion of each tensor, in the order of the file.
    pub fn conversions(&self) -> &[Conversion] {
        &self.conversions
    }

    /// Writes the new file. `converted` is called after each tensor with its number. Returns the number of blocks with elements too
    /// large for their type ([`kiln::QuantFormat::saturated_blocks`]), which are reduced in the new file.
    ///
    /// A few million elements are in memory at a time. An existing file is replaced when the new one is complete.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written, or an operation fails meanwhile.
    pub fn save(&self, engine: &Engine, path: impl AsRef<Path>, converted: &dyn Fn(usize)) -> Result<u64> {
        let saturated = Cell::new(0);
        let saturated = &saturated;
        let make = |(number, conversion): (usize, &Conversion)| {
            let (tensor, kind) = (self.file.tensor(&conversion.name)?, conversion.to);
            let make = move |to: &mut dyn io::Write| {
                saturated.set(saturated.get() + convert(engine, tensor, kind, to)?);
                converted(number);
                Ok(())
            };
            Ok::<_, Error>((tensor.info(), kind, make))
        };
        let tensors = self.conversions.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?;
        let mut writer = Writer::new();
        for (key, value) in self.file.metadata().iter() {
            // The new file is a single file with its own types.
            if !key.starts_with("split.") && !["general.file_type", "general.quantization_version"].contains(&key) {
                writer.set(key, &value)?;
            }
        }
        writer.set("general.file_type", &self.recipe.file_type)?;
        writer.set("general.quantization_version", &2u32)?;
        for (info, kind, make) in &tensors {
            writer.tensor_with(info.name(), *kind, info.extents(), make)?;
        }
        writer.save(path)?;
        Ok(saturated.get())
    }
}

fn plan(model: &File, recipe: Recipe, again: bool) -> Result<Vec<Conversion>> {
    let metadata = model.metadata();
    let architecture: &str = metadata.get("general.architecture")?;
    let layers = metadata.find::<u32>(&format!("{architecture}.block_count"))?.unwrap_or(0);
    let tied = model.tensor("output.weight").is_err();
    let conversion = |info: &kiln_gguf::TensorInfo| {
        let (name, from) = (info.name(), info.kind());
        let row = info.extents().first().copied().unwrap_or(0);
        let to = match is_matrix(name, info.extents()) {
            true => recipe.kind_of(name, row, layers, tied),
            false => from,
        };
        if to != from {
            // Refuses types without kernels, which cannot be read.
            info.tensor_type()?;
            if from.block_len() > 1 && to.block_len() > 1 && !again {
                let name = name.escape_debug();
                let reason = format!("{name} is {from} already, so its errors would add to those of {to}");
                return Err(Error::model(
                    "quantize",
                    format!("{reason}: begin with an f16 or f32 file, or set `again` (--again)"),
                ));
            }
        }
        let bytes_after = to.bytes(info.elements()).unwrap_or(info.bytes() as u64);
        let bytes = info.bytes() as u64;
        Ok(Conversion { name: name.to_owned(), from, to, elements: info.elements(), bytes, bytes_after })
    };
    model.infos().map(conversion).collect()
}

/// Writes the elements of a tensor in another type, and returns the number of blocks that saturate.
fn convert(engine: &Engine, tensor: TensorView<'_>, kind: TensorKind, to: &mut dyn io::Write) -> io::Result<u64> {
    if tensor.info().kind() == kind {
        to.write_all(tensor.bytes())?;
        return Ok(0);
    }
    let ty = tensor.info().tensor_type().map_err(io::Error::other)?;
    let dtype = kind.dtype().ok_or_else(|| io::Error::other(format!("kiln does not compute with {kind}")))?;
    let columns = ty.shape.dims().last().copied().unwrap_or(1).max(1);
    let rows = ty.shape.numel() / columns;
    let row_bytes = tensor.bytes().len().checked_div(rows).unwrap_or(0);
    let rows_at_once = (ELEMENTS_AT_ONCE / columns).max(1);
    let mut saturated = 0;
    for bytes in tensor.bytes().chunks((rows_at_once * row_bytes).max(1)) {
        let part = [bytes.len() / row_bytes, columns];
        let converted = rows_as(engine, ty.dtype, bytes, &part, dtype).map_err(io::Error::other)?;
        if let DType::Blocks(format) = dtype {
            saturated += format.saturated_blocks(converted.as_data().as_bytes()) as u64;
        }
        to.write_all(converted.as_data().as_bytes())?;
    }
    Ok(saturated)
}

/// Casts rows to another type. Blocks are decoded to f32 first, and encoded from f32.
fn rows_as(engine: &Engine, from: DType, bytes: &[u8], dims: &[usize], to: DType) -> kiln::Result<Buffer> {
    let shape = Shape::new(dims)?;
    let run = |op: Op, data: Data<'_>| {
        let mut results = engine.run(&op, &[Operand::new(data, shape)?])?;
        Ok::<_, kiln::Error>(results.swap_remove(0))
    };
    let data = Data::from_bytes(from, bytes)?;
    let numbers = match from {
        DType::F32 => None,
        DType::Blocks(format) => Some(run(Dequantize { format }.into(), data)?),
        _ => Some(run(Cast { to: DType::F32 }.into(), data)?),
    };
    let data = numbers.as_ref().map_or(data, Buffer::as_data);
    match to {
        DType::Blocks(format) => run(Quantize { format }.into(), data),
        to => run(Cast { to }.into(), data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixtures_give_the_better_type_where_llama_cpp_does() {
        let of = |recipe: &str, name: &str, row| Recipe::find(recipe).unwrap().kind_of(name, row, 22, false).name();
        let better: Vec<u32> =
            (0..22).filter(|i| of("Q4_K_M", &format!("blk.{i}.attn_v.weight"), 2048) == "Q6_K").collect();
        assert_eq!(better, [0, 1, 4, 7, 10, 13, 16, 19, 20, 21]);
        assert_eq!(of("q4_k_m", "blk.0.attn_q.weight", 2048), "Q4_K");
        assert_eq!(of("q5_k_m", "blk.0.ffn_down.weight", 2048), "Q6_K");
        assert_eq!(of("q4_k_m", "blk.0.ffn_down_exps.weight", 2048), "Q6_K");
        let joined = ["q4_k_m", "q5_k_m", "q4_k"].map(|recipe| of(recipe, "blk.3.attn_qkv.weight", 2048));
        assert_eq!(joined, ["Q5_K", "Q6_K", "Q4_K"]);
        assert_eq!(of("q4_k", "blk.0.ffn_down.weight", 2048), "Q4_K");
        assert_eq!((of("q4_0", "output.weight", 2048), of("q8_0", "output.weight", 2048)), ("Q6_K", "Q8_0"));
        assert_eq!(of("f16", "output.weight", 2048), "F16");
        // Rows that are not whole blocks.
        assert_eq!((of("q4_k_m", "blk.3.attn_q.weight", 96), of("q4_k_m", "blk.3.attn_q.weight", 33)), ("Q5_0", "F16"));
        assert_eq!((of("q2_k", "blk.3.attn_q.weight", 96), of("q4_0", "output.weight", 96)), ("IQ4_NL", "Q8_0"));
        assert_eq!(Recipe::find("q9"), None);
    }

    #[test]
    fn numbers_of_layers_that_no_model_has_choose_a_type_too() {
        assert!(!gets_better("blk.613566757.ffn_down.weight", u32::MAX));
        assert!(gets_better("blk.4294967294.ffn_down.weight", u32::MAX));
    }

    #[test]
    fn matrices_are_told_by_their_names_and_ranks() {
        assert!(is_matrix("blk.0.attn_q.weight", &[64, 64]) && is_matrix("token_embd.weight", &[64, 9]));
        for (name, extents) in [("blk.0.attn_q.bias", &[64][..]), ("blk.0.attn_q_norm.weight", &[8, 8]), ("x", &[4, 4])]
        {
            assert!(!is_matrix(name, extents), "{name}");
        }
    }
}
