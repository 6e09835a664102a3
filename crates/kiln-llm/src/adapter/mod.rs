//! LoRA adapters: matrices of low rank that are added to the projections of a decoder.

mod gguf;
mod model;
mod names;
mod parts;
mod peft;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use kiln::DType;
use kiln_gguf::Gguf;
pub use model::AdaptedModel;
pub(crate) use parts::{Matrix, RowOrder};
use parts::{Module, Modules, Parts, Side};

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

/// The update that an adapter makes to one projection.
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
    /// The factor f of the product, before the scale that is chosen when the adapter is used.
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
    /// The factor of the products: `alpha / rank`.
    pub scale: f32,
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Adapter({}, {} projections)", self.name(), self.0.modules.len())
    }
}

impl Adapter {
    fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Loads an adapter: a GGUF file, or a folder of PEFT with `adapter_config.json` and `adapter_model.safetensors`. It is read into
    /// memory.
    ///
    /// # Errors
    /// [`Error::File`] for a GGUF file that is not valid, [`Error::Folder`] for files of a folder that are missing or not valid,
    /// [`Error::Adapter`] for adapters of another kind, unsupported tensors, elements that are not finite, and matrices that do not
    /// belong together.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        match path.is_dir() {
            true => peft::load(path).map(Self::new),
            false => Self::from_gguf(&path.display().to_string(), &Gguf::read(path)?),
        }
    }

    /// Reads an adapter from a GGUF file. Error messages use this name for it.
    ///
    /// # Errors
    /// The errors of [`Adapter::load`].
    pub fn from_gguf(name: &str, file: &Gguf<'_>) -> Result<Self> {
        gguf::read(name, file).map(Self::new)
    }

    /// Reads an adapter that PEFT saved, from the text of `adapter_config.json` and the bytes of `adapter_model.safetensors`. Error
    /// messages use this name for it.
    ///
    /// # Errors
    /// The errors of [`Adapter::load`].
    pub fn from_peft(name: &str, config: &str, weights: &[u8]) -> Result<Self> {
        peft::read(name, config, Path::new("adapter_model.safetensors"), weights).map(Self::new)
    }

    /// Makes an adapter of the updates of all layers, in their order.
    ///
    /// # Errors
    /// [`Error::Adapter`] if a pair has only one matrix, or matrices that are not whole rows of the rank.
    pub fn from_qkv(name: &str, layers: &[QkvLora<'_>]) -> Result<Self> {
        let mut modules = Modules::new(name);
        for (layer, of) in layers.iter().enumerate() {
            for (stem, a, b) in [("attn_q", of.q_a, of.q_b), ("attn_k", of.k_a, of.k_b), ("attn_v", of.v_a, of.v_b)] {
                if a.is_empty() && b.is_empty() {
                    continue;
                }
                let rank = of.rank;
                if rank == 0 || !a.len().is_multiple_of(rank) || !b.len().is_multiple_of(rank) {
                    let reason = format!("of {} and {} elements are not matrices of rank {rank}", a.len(), b.len());
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
        modules.into_parts(None, RowOrder::Model, |(layer, _), _| Ok(layers[layer].scale)).map(Self::new)
    }

    /// The name of the adapter in error messages: its path, or the name that it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The architecture of the models that it is for, if it names one. PEFT adapters do not.
    pub fn architecture(&self) -> Option<&str> {
        self.0.architecture.as_deref()
    }

    /// The projections that it changes, ordered by layer.
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
