//! LoRA adapters: matrices of low rank that are added to the projections of a decoder.

mod gguf;
mod model;
mod modules;
mod peft;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use kiln::{DType, Tensor, bf16, f16};
use kiln_gguf::Gguf;
pub use model::AdaptedModel;
pub(crate) use modules::MODULES;

use crate::{Error, Result};

/// A LoRA adapter: for some projections of a decoder `x Wᵀ` two matrices A `[rank, inputs]` and B `[outputs, rank]`, which make it
/// `x Wᵀ + s f (x Aᵀ) Bᵀ`. The factor f is `alpha / rank`, or `alpha / √rank` where a PEFT adapter says `use_rslora`; the scale s is
/// chosen when the adapter is used.
///
/// [`Model::with_adapters`](crate::Model::with_adapters) makes sessions that switch between adapters. Cloning one is cheap, and the
/// clone is the same adapter.
///
/// ```no_run
/// use kiln_llm::{Adapter, Model, Sampler, SessionOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = kiln::Engine::new()?;
/// let model = Model::load(&engine, "model.gguf")?;
/// let [poems, letters] = [Adapter::load("poems.gguf")?, Adapter::load("letters")?];
/// let adapted = model.with_adapters([&poems, &letters])?;
/// let mut session = adapted.session(SessionOptions::default())?;
/// session.push(&model.tokenizer().encode("Dear"))?;
/// for (adapter, scale) in [(Some(&poems), 1.0), (Some(&letters), 0.5), (None, 1.0)] {
///     session.set_adapter(adapter, scale)?;
///     println!("{}", session.sample(&Sampler::greedy())?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Adapter(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    name: String,
    /// The value of `general.architecture` of the model, if the adapter states it.
    architecture: Option<String>,
    order: RowOrder,
    /// Modules by layer and by an element of [`MODULES`].
    modules: BTreeMap<(usize, &'static str), Module>,
}

/// The order of the rows of B for queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The order of transformers, which rotates halves.
    Halves,
    /// The order of GGUF files of the architecture.
    Gguf,
    /// The order of the model.
    Model,
}

/// The low-rank update of one projection.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    /// The factor f.
    pub(crate) factor: f32,
}

/// A matrix, and the narrowest type that represents its elements.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The elements, row by row.
    pub(crate) values: Vec<f32>,
    /// F32, F16 or Bf16.
    pub(crate) dtype: DType,
}

impl Matrix {
    /// A matrix from the bytes of a file.
    fn from_bytes(bytes: &[u8], dtype: DType, [rows, columns]: [usize; 2]) -> kiln::Result<Self> {
        let (of_four, of_two) = (bytes.as_chunks::<4>().0.iter(), bytes.as_chunks::<2>().0.iter());
        let (values, dtype) = match dtype {
            DType::F16 => (of_two.map(|&two| f16::from_le_bytes(two).to_f32()).collect(), dtype),
            DType::Bf16 => (of_two.map(|&two| bf16::from_le_bytes(two).to_f32()).collect(), dtype),
            DType::Blocks(format) => {
                let mut values = vec![0.0; rows * columns];
                format.decode(bytes, &mut values)?;
                (values, DType::F32)
            }
            _ => (of_four.map(|&four| f32::from_le_bytes(four)).collect(), DType::F32),
        };
        Ok(Self { rows, columns, values, dtype })
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// The tensor `[rows, columns]`.
    pub(crate) fn into_tensor(self) -> kiln::Result<Tensor> {
        let dims = [self.rows, self.columns];
        match self.dtype {
            DType::F16 => Tensor::from_elements(&self.values.into_iter().map(f16::from_f32).collect::<Vec<_>>(), &dims),
            DType::Bf16 => {
                Tensor::from_elements(&self.values.into_iter().map(bf16::from_f32).collect::<Vec<_>>(), &dims)
            }
            _ => Tensor::from_vec(self.values, &dims),
        }
    }
}

/// What an adapter adds to one projection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterModule<'a> {
    /// The number of the layer, from 0 on.
    pub layer: usize,
    /// The projection as GGUF files name it, such as `attn_q`.
    pub projection: &'a str,
    /// The columns of A.
    pub inputs: usize,
    /// The rows of B.
    pub outputs: usize,
    /// The rows of A, and the columns of B.
    pub rank: usize,
    /// What the product is multiplied by before the scale of its use.
    pub factor: f32,
}

/// LoRA of the queries, keys and values of one layer, from matrices in memory. A is `[rank, inputs]` and B is `[outputs, rank]`, row by
/// row, with the rows of B in the order of the model's own. An empty pair leaves a projection as it is.
///
/// [`Adapter::from_qkv`] makes an adapter of those of all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct QkvLora<'a> {
    /// A of the queries.
    pub q_a: &'a [f32],
    /// B of the queries.
    pub q_b: &'a [f32],
    /// A of the keys.
    pub k_a: &'a [f32],
    /// B of the keys.
    pub k_b: &'a [f32],
    /// A of the values.
    pub v_a: &'a [f32],
    /// B of the values.
    pub v_b: &'a [f32],
    /// The rank of all of them.
    pub rank: usize,
    /// What the products are multiplied by: `alpha / rank`.
    pub scale: f32,
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Adapter({}, {} projections)", self.name(), self.0.modules.len())
    }
}

impl Adapter {
    /// Loads an adapter: a GGUF file, or a folder of PEFT with `adapter_config.json` and `adapter_model.safetensors`. It is read into
    /// memory.
    ///
    /// # Errors
    /// [`Error::File`] for a GGUF file that is not valid, [`Error::Folder`] for files of a folder that are missing or not valid,
    /// [`Error::Adapter`] for adapters of another kind, tensors that nothing is computed with, elements that are not finite, and
    /// matrices that do not belong together.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        match path.is_dir() {
            true => peft::load(path),
            false => Self::from_gguf(&path.display().to_string(), &Gguf::read(path)?),
        }
    }

    /// The adapter in a GGUF file. Errors give it this name.
    ///
    /// # Errors
    /// The errors of [`Adapter::load`].
    pub fn from_gguf(name: &str, file: &Gguf<'_>) -> Result<Self> {
        gguf::read(name, file)
    }

    /// The adapter that PEFT writes, from the text of `adapter_config.json` and the bytes of `adapter_model.safetensors`. Errors give it
    /// this name.
    ///
    /// # Errors
    /// The errors of [`Adapter::load`].
    pub fn from_peft(name: &str, config: &str, weights: &[u8]) -> Result<Self> {
        peft::read(name, config, Path::new("adapter_model.safetensors"), weights)
    }

    /// The adapter of these layers, the first one first.
    ///
    /// # Errors
    /// [`Error::Adapter`] where a pair has one matrix alone, or matrices that are not whole rows of the rank.
    pub fn from_qkv(name: &str, layers: &[QkvLora<'_>]) -> Result<Self> {
        let mut modules = Modules::new(name);
        for (layer, of) in layers.iter().enumerate() {
            for (stem, a, b) in [("attn_q", of.q_a, of.q_b), ("attn_k", of.k_a, of.k_b), ("attn_v", of.v_a, of.v_b)] {
                if a.is_empty() && b.is_empty() {
                    continue;
                }
                let rank = of.rank;
                if rank == 0 || !a.len().is_multiple_of(rank) || !b.len().is_multiple_of(rank) {
                    let reason = format!("of {} and {} elements are no matrices of rank {rank}", a.len(), b.len());
                    return Err(Error::adapter(name, format!("layer {layer}, {stem}: A and B {reason}")));
                }
                let of_file = |side: &str| format!("blk.{layer}.{stem}.weight.{side}");
                let matrix = |rows, columns, values: &[f32]| {
                    let dtype = DType::F32;
                    Matrix { rows, columns, values: values.to_vec(), dtype }
                };
                modules.add((layer, stem), Side::A, &of_file("lora_a"), matrix(rank, a.len() / rank, a))?;
                modules.add((layer, stem), Side::B, &of_file("lora_b"), matrix(b.len() / rank, rank, b))?;
            }
        }
        modules.into_adapter(None, RowOrder::Model, |(layer, _), _| Ok(layers[layer].scale))
    }

    /// What errors call the adapter: its path, or the name that it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The architecture of the models that it is for, where it names one. PEFT adapters do not.
    pub fn architecture(&self) -> Option<&str> {
        self.0.architecture.as_deref()
    }

    /// The projections that it changes, those of the first layer first.
    pub fn modules(&self) -> impl Iterator<Item = AdapterModule<'_>> {
        self.0.modules.iter().map(|(&(layer, projection), module)| AdapterModule {
            layer,
            projection,
            inputs: module.a.columns,
            outputs: module.b.rows,
            rank: module.a.rows,
            factor: module.factor,
        })
    }

    pub(crate) fn order(&self) -> RowOrder {
        self.0.order
    }

    pub(crate) fn find(&self, layer: usize, projection: &'static str) -> Option<&Module> {
        self.0.modules.get(&(layer, projection))
    }

    /// Whether both handles refer to the same adapter.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The side of a tensor in its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    A,
    B,
}

/// The matrices of an adapter while they are read.
struct Modules<'n> {
    name: &'n str,
    found: BTreeMap<(usize, &'static str), [Option<Matrix>; 2]>,
}

impl<'n> Modules<'n> {
    fn new(name: &'n str) -> Self {
        Self { name, found: BTreeMap::new() }
    }

    /// Adds a matrix, whose name in the file is `tensor`.
    fn add(&mut self, key: (usize, &'static str), side: Side, tensor: &str, matrix: Matrix) -> Result<()> {
        let wrong = |reason: String| Err(Error::adapter(self.name, format!("tensor {tensor:?} {reason}")));
        if let Some(at) = matrix.values.iter().position(|x| !x.is_finite()) {
            return wrong(format!("has element {at} = {}: it is damaged, or its training diverged", matrix.values[at]));
        }
        if matrix.values.is_empty() {
            return wrong(format!("is {} x {}, which is empty", matrix.rows, matrix.columns));
        }
        let place = &mut self.found.entry(key).or_default()[side as usize];
        if place.is_some() {
            return wrong("is there twice".to_owned());
        }
        *place = Some(matrix);
        Ok(())
    }

    /// Builds the adapter. `factor` receives a module's key and its rank.
    fn into_adapter(
        self,
        architecture: Option<String>,
        order: RowOrder,
        factor: impl Fn((usize, &'static str), usize) -> Result<f32>,
    ) -> Result<Adapter> {
        let wrong = |reason: String| Error::adapter(self.name, reason);
        let mut modules = BTreeMap::new();
        for (key @ (layer, stem), matrices) in self.found {
            let [Some(a), Some(b)] = matrices else {
                return Err(wrong(format!("layer {layer} has one of the matrices A and B of {stem} alone")));
            };
            if a.rows != b.columns {
                let (shape_a, shape_b) = ([a.rows, a.columns], [b.rows, b.columns]);
                let reason = format!("A {shape_a:?} and B {shape_b:?} of layer {layer}, {stem} have different ranks");
                return Err(wrong(format!("{reason}: A is [rank, inputs] and B is [outputs, rank]")));
            }
            let factor = factor(key, a.rows)?;
            if !factor.is_finite() {
                return Err(wrong(format!("the factor of layer {layer}, {stem} is {factor}")));
            }
            modules.insert(key, Module { a, b, factor });
        }
        if modules.is_empty() {
            return Err(wrong("it changes nothing: there is no pair of matrices A and B in it".to_owned()));
        }
        Ok(Adapter(Arc::new(Parts { name: self.name.to_owned(), architecture, order, modules })))
    }
}

#[cfg(test)]
mod tests {
    use kiln::QuantFormat;

    use super::*;

    #[test]
    fn matrices_of_every_type_are_their_elements_and_keep_the_narrow_types() {
        let values: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
        let mut blocks = vec![0; 2 * 34];
        QuantFormat::Q8_0.encode(&values, &mut blocks).unwrap();
        let of = |encode: fn(f32) -> Vec<u8>| values.iter().flat_map(|&x| encode(x)).collect::<Vec<u8>>();
        for (bytes, dtype, kept) in [
            (of(|x| x.to_le_bytes().to_vec()), DType::F32, DType::F32),
            (of(|x| f16::from_f32(x).to_le_bytes().to_vec()), DType::F16, DType::F16),
            (of(|x| bf16::from_f32(x).to_le_bytes().to_vec()), DType::Bf16, DType::Bf16),
            (blocks, DType::Blocks(QuantFormat::Q8_0), DType::F32),
        ] {
            let matrix = Matrix::from_bytes(&bytes, dtype, [2, 32]).unwrap();
            assert_eq!((matrix.dtype, matrix.values.len(), matrix.row(1).len()), (kept, 64, 32));
            // A block of 8 bits has steps of 31.5 / 127.
            assert!(matrix.values.iter().zip(&values).all(|(a, b)| (a - b).abs() < 0.13), "{dtype}");
            if kept != DType::F32 {
                // Written again, it has the original bytes.
                assert_eq!(matrix.into_tensor().unwrap().to_buffer().unwrap().as_data().as_bytes(), bytes);
            }
        }
    }
}
