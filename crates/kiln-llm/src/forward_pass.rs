//! The forward pass of a decoder whose weights are in memory.

use std::collections::HashMap;

#[cfg(feature = "gpu")]
use kiln::gpu::{AdapterChoice, GpuDevice};
use kiln::op::{Rope, RopeStyle};
use kiln::waiting::{WAITING, wait};
use kiln::{DType, Engine, State, Tensor};
use kiln_gguf::{Gguf, Writer};

use crate::architecture::{ActiveAdapters, AdapterSet, Forward, Recorded, Step, Weights};
use crate::config::Config;
use crate::tensor_source::Source;
use crate::text_parts::Parts;
use crate::{Adapter, Error, Result};

/// The name of this module in errors.
const WHAT: &str = "forward pass";

/// The numbers of a decoder, as a [`ForwardPass`] computes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForwardShape {
    /// The number of elements of a token's row.
    pub hidden: usize,
    /// The number of heads of queries.
    pub heads: usize,
    /// The number of heads of keys and values.
    pub kv_heads: usize,
    /// The number of elements of a head.
    pub head_dim: usize,
    /// The number of elements between the two products of the feed-forward network.
    pub intermediate: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of tokens of the vocabulary.
    pub vocabulary: usize,
    /// The maximum number of positions.
    pub context: usize,
    /// ε of norms.
    pub rms_norm_eps: f32,
    /// θ: pair i of n elements at position p is rotated by `p θ^(-2i/n)`.
    pub rope_theta: f32,
    /// The elements of queries and keys that are rotated together.
    pub rope_style: RopeStyle,
}

/// The forward pass of a Llama-like decoder whose weights are in memory: a layer, or the whole model, with optional LoRA on the queries,
/// keys and values ([`QkvLora`](crate::QkvLora)) and on every other projection.
///
/// The engine decides where it runs. On a GPU weights are copied to its memory once, keys and values (f32) stay there, and a graph is
/// recorded once for 1, 8, 64, 256, 512 and 1024 rows: a pass sends rows or tokens with their positions, and reads back rows or logits.
/// It runs the same graph as [`Model`](crate::Model) and [`Session`](crate::Session), for programs that have weights in memory, or their
/// own layers between those of the model.
///
/// Weights have the names of GGUF files and are `[outputs, inputs]`: `blk.N.attn_norm.weight`, `attn_q`, `attn_k`, `attn_v`,
/// `attn_output`, `ffn_norm`, `ffn_gate`, `ffn_up` and `ffn_down`, and of the model `token_embd.weight`, `output_norm.weight` and
/// `output.weight`; without `output.weight` the embedding is the head. Biases (`blk.N.attn_q.bias`) are optional. All weights are
/// required before anything is computed.
#[derive(Debug)]
pub struct ForwardPass<'e> {
    engine: &'e Engine,
    shape: ForwardShape,
    config: Config,
    tensors: HashMap<String, Tensor>,
    caches: Vec<[State; 2]>,
    adapters: Vec<Adapter>,
    /// The one that is used, and its scale.
    used: Option<(Adapter, f32)>,
    /// Built at the first computation, and again after weights or adapters change.
    ready: Option<Ready<'e>>,
}

/// The forward pass of a decoder on one GPU that wgpu drives, from weights in memory: a [`ForwardPass`] on the engine of
/// [`ForwardPass::engine`].
///
/// ```no_run
/// use kiln::gpu::AdapterChoice;
/// use kiln::op::RopeStyle;
/// use kiln::{QuantFormat, Tensor};
/// use kiln_llm::{Adapter, ForwardShape, QkvLora, WgslForwardPass};
///
/// # fn weights() -> Vec<(String, Tensor)> { Vec::new() }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = WgslForwardPass::engine(&AdapterChoice::Best)?;
/// let shape = ForwardShape {
///     hidden: 64,
///     heads: 4,
///     kv_heads: 2,
///     head_dim: 16,
///     intermediate: 128,
///     layers: 2,
///     vocabulary: 100,
///     context: 512,
///     rms_norm_eps: 1e-5,
///     rope_theta: 10_000.0,
///     rope_style: RopeStyle::HalfSplit,
/// };
/// let mut pass = WgslForwardPass::new(&engine, shape)?;
/// for (name, tensor) in weights() {
///     pass.upload_weight(&name, &tensor);
/// }
/// pass.upload_weight("blk.0.ffn_up.weight", &Tensor::from_blocks(&[0; 128 * 36], &[128, 64], QuantFormat::Q4_0)?);
///
/// // Queries of the first layer, of rank 8.
/// let (a, b) = (vec![0.01; 8 * 64], vec![0.02; 64 * 8]);
/// let lora = QkvLora { q_a: &a, q_b: &b, rank: 8, scale: 2.0, ..QkvLora::default() };
/// let adapter = Adapter::from_qkv("queries", &[lora])?;
/// pass.set_adapters([&adapter]);
///
/// let logits = pass.forward_model(&[1, 17, 4], 0)?;
/// pass.use_adapter(Some(&adapter), 1.0)?;
/// let adapted = pass.forward_model(&[1, 17, 4], 0)?;
/// assert_eq!(logits.len(), adapted.len());
///
/// let rows = pass.forward_layer(1, &[0.5; 64], 3)?;
/// assert_eq!(rows.len(), 64);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "gpu")]
pub type WgslForwardPass<'e> = ForwardPass<'e>;

/// The weights, and the graphs recorded with them.
#[derive(Debug)]
struct Ready<'e> {
    weights: Weights,
    adapters: ActiveAdapters,
    steps: Vec<Step<'e>>,
    /// Graphs of single layers, by layer and number of rows.
    layers: HashMap<(usize, usize), Forward<'e>>,
}

impl<'e> ForwardPass<'e> {
    /// Makes an engine that runs everything on this adapter of wgpu.
    ///
    /// # Errors
    /// [`Error::Kiln`] if the adapter does not exist.
    #[cfg(feature = "gpu")]
    pub fn engine(adapter: &AdapterChoice) -> Result<Engine> {
        let found = GpuDevice::find(adapter)?.label;
        let builder = Engine::builder().adapter(AdapterChoice::Name(found.clone())).force(found);
        Ok(builder.build()?)
    }

    /// Makes a forward pass without weights.
    ///
    /// # Errors
    /// [`Error::Model`] for numbers that contradict one another, or exceed the limits of positions and matrices.
    pub fn new(engine: &'e Engine, shape: ForwardShape) -> Result<Self> {
        if shape.context == 0 || shape.context > Rope::POSITIONS {
            let reason = format!("a context of {} positions; 1 to {} are possible", shape.context, Rope::POSITIONS);
            return Err(Error::model(WHAT, reason));
        }
        let config = shape.config()?;
        let cache = || State::zeros(DType::F32, &[shape.kv_heads, shape.context, shape.head_dim]);
        let caches = (0..shape.layers).map(|_| Ok([cache()?, cache()?])).collect::<kiln::Result<_>>()?;
        Ok(Self {
            engine,
            shape,
            config,
            tensors: HashMap::new(),
            caches,
            adapters: Vec::new(),
            used: None,
            ready: None,
        })
    }

    /// Adds a weight, of any type that products take, or replaces it. It is copied to the device when it is first used, and stays
    /// there.
    pub fn upload_weight(&mut self, name: &str, tensor: &Tensor) {
        self.tensors.insert(name.to_owned(), tensor.clone());
        self.ready = None;
    }

    /// Replaces the adapters that the pass can switch between. None of them is used until [`ForwardPass::use_adapter`] selects
    /// one.
    pub fn set_adapters<'a>(&mut self, adapters: impl IntoIterator<Item = &'a Adapter>) {
        self.adapters = adapters.into_iter().cloned().collect();
        (self.used, self.ready) = (None, None);
    }

    /// Uses one of the adapters from now on, its changes multiplied by `scale`, or none with `None`. The recorded graphs are reused. Keys
    /// and values that were computed before stay in the caches: to replace them, compute the text again from position 0.
    ///
    /// # Errors
    /// [`Error::Adapter`] for an adapter that is not one of [`ForwardPass::set_adapters`], and for a scale that is not finite; the
    /// errors of [`ForwardPass::forward_model`].
    pub fn use_adapter(&mut self, adapter: Option<&Adapter>, scale: f32) -> Result<()> {
        let ready = Ready::of(&mut self.ready, &self.tensors, &self.config, &self.adapters, self.used.as_ref())?;
        let used: Vec<_> = adapter.map(|adapter| (adapter, scale)).into_iter().collect();
        if ready.adapters.choose(&used)? {
            for step in &mut ready.steps {
                step.set_adapters(&ready.adapters)?;
            }
            for layer in ready.layers.values_mut() {
                layer.set_adapters(&ready.adapters)?;
            }
        }
        self.used = adapter.map(|adapter| (adapter.clone(), scale));
        Ok(())
    }

    /// Returns the output of a layer for rows of `hidden` elements at positions from `position` on, and keeps their keys and values for
    /// later rows. Those of all earlier positions must have been computed.
    ///
    /// # Errors
    /// [`Error::Model`] for a layer that does not exist, and for elements that are not whole rows; [`Error::ContextFull`];
    /// the errors of [`ForwardPass::forward_model`].
    pub fn forward_layer(&mut self, layer: usize, hidden: &[f32], position: usize) -> Result<Vec<f32>> {
        let ForwardShape { hidden: width, layers, .. } = self.shape;
        if layer >= layers {
            return Err(Error::model(WHAT, format!("layer {layer}, counted from 0, is not one of {layers}")));
        }
        if hidden.is_empty() || !hidden.len().is_multiple_of(width) {
            return Err(Error::model(WHAT, format!("{} elements are not whole rows of {width}", hidden.len())));
        }
        self.check_room(position, hidden.len() / width)?;
        let Self { engine, shape, config, tensors, caches, adapters, used, ready } = self;
        let ready = Ready::of(ready, tensors, config, adapters, used.as_ref())?;
        let (mut out, mut rest, mut at) = (Vec::with_capacity(hidden.len()), hidden, position);
        while !rest.is_empty() {
            let rows = Parts::GPU.rows_for(rest.len() / width);
            let (part, others) = rest.split_at(rest.len().min(rows * width));
            if !ready.layers.contains_key(&(layer, rows)) {
                let of = Recorded { adapters: Some(&ready.adapters), layer: Some(layer), placing: None };
                let recorded = Forward::record(engine, config, &ready.weights, of, caches, shape.context, rows)?;
                ready.layers.insert((layer, rows), recorded);
            }
            if let Some(forward) = ready.layers.get_mut(&(layer, rows)) {
                out.extend(forward.through_layer(part, width, at)?);
            }
            at += part.len() / width;
            rest = others;
        }
        Ok(out)
    }

    /// Returns the logits of the token after these tokens at positions from `position` on, one for each token of the vocabulary. Keys and
    /// values of all earlier positions must have been computed.
    ///
    /// # Errors
    /// [`Error::File`] for a missing weight, [`Error::Model`] for a weight of another shape, for an unused weight, and for an empty list
    /// of tokens; [`Error::Token`], [`Error::ContextFull`]; the errors of [`Model::with_adapters`](crate::Model::with_adapters);
    /// [`Error::NotANumber`]; [`Error::Kiln`].
    pub fn forward_model(&mut self, tokens: &[u32], position: usize) -> Result<Vec<f32>> {
        let vocabulary = self.shape.vocabulary;
        if tokens.is_empty() {
            return Err(Error::model(WHAT, "0 tokens were given, 1 or more are needed"));
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::Token { token, vocabulary });
        }
        self.check_room(position, tokens.len())?;
        let Self { engine, shape, config, tensors, caches, adapters, used, ready } = self;
        let ready = Ready::of(ready, tensors, config, adapters, used.as_ref())?;
        let (mut rest, mut at) = (tokens, position);
        loop {
            let rows = Parts::GPU.rows_for(rest.len());
            let known = ready.steps.iter().position(|step| step.rows() == rows);
            let number = match known {
                Some(known) => known,
                None => {
                    let of = Recorded { adapters: Some(&ready.adapters), layer: None, placing: None };
                    let forward = Forward::record(engine, config, &ready.weights, of, caches, shape.context, rows)?;
                    ready.steps.push(Step::record(forward, config, &ready.weights)?);
                    ready.steps.len() - 1
                }
            };
            let step = &mut ready.steps[number];
            if rest.len() <= rows {
                let logits = wait(step.logits(rest, at, WAITING))?;
                return match logits.iter().position(|x| x.is_nan()) {
                    Some(token) => Err(Error::NotANumber { token }),
                    None => Ok(logits),
                };
            }
            let (part, others) = rest.split_at(rows);
            wait(step.extend(part, at, WAITING))?;
            at += rows;
            rest = others;
        }
    }

    fn check_room(&self, position: usize, count: usize) -> Result<()> {
        let context = self.shape.context;
        match position.saturating_add(count) {
            asked if asked > context => Err(Error::ContextFull { context, asked }),
            _ => Ok(()),
        }
    }
}

impl<'e> Ready<'e> {
    /// Returns `ready`, or builds it from these weights and adapters, with the one that is used.
    fn of<'r>(
        ready: &'r mut Option<Self>,
        tensors: &HashMap<String, Tensor>,
        config: &Config,
        adapters: &[Adapter],
        used: Option<&(Adapter, f32)>,
    ) -> Result<&'r mut Self> {
        let made = match ready.take() {
            Some(made) => made,
            None => {
                let weights = Weights::load(&Source::of_tensors(tensors.clone()), config)?;
                let mut adapters = ActiveAdapters::new(AdapterSet::new(config, &weights, adapters)?.into());
                adapters.choose(&used.map(|(adapter, scale)| (adapter, *scale)).into_iter().collect::<Vec<_>>())?;
                Self { weights, adapters, steps: Vec::new(), layers: HashMap::new() }
            }
        };
        Ok(ready.insert(made))
    }
}

impl ForwardShape {
    /// Builds the configuration from the keys that a GGUF file would have, so that the checks for files apply.
    fn config(&self) -> Result<Config> {
        let count = |n: usize| n.try_into().unwrap_or(u32::MAX);
        let mut writer = Writer::new();
        writer.set("general.architecture", &"llama")?;
        for (key, value) in [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.intermediate),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ] {
            writer.set(&format!("llama.{key}"), &count(value))?;
        }
        writer.set("llama.attention.layer_norm_rms_epsilon", &self.rms_norm_eps)?;
        writer.set("llama.rope.freq_base", &self.rope_theta)?;
        let mut bytes = Vec::new();
        writer.write(&mut bytes).map_err(|error| Error::model(WHAT, error.to_string()))?;
        let mut config = Config::read(Gguf::parse(&bytes)?.metadata(), self.vocabulary)?;
        config.architecture.rope = self.rope_style;
        Ok(config)
    }
}
