//! Where the layers of a model run, and the memory that it takes there: planned before anything is allocated.

#[cfg(not(browser_gpu))]
mod planner;

use std::fmt;
use std::ops::Range;

use kiln::{Backend, Batch, DType, Place};
#[cfg(not(browser_gpu))]
pub(crate) use planner::plan;

use crate::architecture::ActiveAdapters;
use crate::{Model, Result};

/// Which layers of a model run on a GPU. They are its last ones, so that the head and the sampling behind them are there too; the
/// layers before run on the CPU, and what passes between them crosses once for each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceLayers {
    /// All layers or none, as predicted, if they fit the memory of the GPU; otherwise as many as fit, if that is
    /// predicted to be faster than the CPU alone. On an engine that forces a GPU all layers run there, or the result is
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[default]
    Predicted,
    /// As many as fit the memory of the GPU, whatever is predicted.
    Fitting,
    /// This many of the last layers.
    Last(usize),
}

/// The memory that a session takes on each device, and how long a token is predicted to take; displays as a table.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// The tokens that each sequence has room for.
    pub context: usize,
    /// In the order in which a step runs: one where a single device runs everything.
    pub parts: Vec<PlannedPart>,
    /// Predicted seconds of a step that computes one token, once weights are where they are used.
    pub seconds: f64,
    /// Why fewer layers are on a GPU than were asked for or could be.
    pub notice: Option<String>,
}

/// Layers that run on one device, with what they need there.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PlannedPart {
    /// The name of the place.
    pub place: String,
    /// The layers, from 0 on. The embedding goes with the first part and the head with the last.
    pub layers: Range<usize>,
    /// Bytes of weights, those of adapters included.
    pub weights: u64,
    /// Bytes of keys and values of all sequences with full contexts.
    pub cache: u64,
    /// Bytes of intermediate results and of scratch memory of kernels, of the graphs of all numbers of tokens that there may be.
    pub scratch: u64,
    /// Bytes that there are, where that is known.
    pub capacity: Option<u64>,
    /// Predicted seconds of its share of a step that computes one token.
    pub seconds: f64,
}

impl PlannedPart {
    /// Bytes of everything.
    pub fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }

    /// Whether it fits, as far as that is known.
    pub fn fits(&self) -> bool {
        self.capacity.is_none_or(|capacity| self.bytes() <= capacity)
    }
}

impl MemoryPlan {
    /// Whether layers are on several devices.
    pub fn is_split(&self) -> bool {
        self.parts.len() > 1
    }
}

/// Bytes as people read them: `1.2 GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        f.pad(&match bytes {
            0..10_000 => format!("{bytes} B"),
            10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
            10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
            _ => format!("{:.1} GB", bytes as f64 / 1e9),
        })
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.parts.iter().map(|part| part.place.chars().count()).max().unwrap_or(0).max("place".len());
        write!(f, "{:width$}  {:>8}", "place", "layers")?;
        for head in ["weights", "cache", "scratch", "all", "there is", "a token"] {
            write!(f, "  {head:>9}")?;
        }
        writeln!(f)?;
        for part in &self.parts {
            let Range { start, end } = part.layers;
            let layers = if start == end { "none".to_owned() } else { format!("{start} to {}", end - 1) };
            write!(f, "{:width$}  {layers:>8}", part.place)?;
            for bytes in [part.weights, part.cache, part.scratch, part.bytes()] {
                write!(f, "  {:>9}", Bytes(bytes))?;
            }
            let capacity = part.capacity.map_or_else(|| "unknown".to_owned(), |capacity| Bytes(capacity).to_string());
            writeln!(f, "  {capacity:>9}  {:>6.2} ms", part.seconds * 1e3)?;
        }
        write!(f, "a context of {} tokens; a token is predicted to take {:.2} ms", self.context, self.seconds * 1e3)?;
        match &self.notice {
            Some(notice) => write!(f, "\n{notice}"),
            None => Ok(()),
        }
    }
}

/// The placements of layers, each with its first layer; empty if the engine decides about each graph.
#[derive(Debug, Clone, Default)]
pub(crate) struct Placing(Vec<(String, usize)>);

impl Placing {
    fn pin(batch: &mut Batch<'_>, to: Option<&(String, usize)>) -> Result<()> {
        Ok(batch.pin(to.map(|(place, _)| &**place))?)
    }

    /// Pins the operations recorded next to the placement of the embedding.
    pub(crate) fn pin_embedding(&self, batch: &mut Batch<'_>) -> Result<()> {
        Self::pin(batch, self.0.first())
    }

    /// Pins the operations recorded next to the placement of a layer.
    pub(crate) fn pin_layer(&self, batch: &mut Batch<'_>, layer: usize) -> Result<()> {
        Self::pin(batch, self.0.iter().rfind(|(_, first)| *first <= layer))
    }

    /// Pins the operations recorded from now on to the placement of the head.
    pub(crate) fn pin_head(&self, batch: &mut Batch<'_>) -> Result<()> {
        Self::pin(batch, self.0.last())
    }
}

/// The requested session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// Tokens per sequence.
    pub(crate) context: usize,
    pub(crate) cache: DType,
    /// Number of sequences with keys and values.
    pub(crate) sequences: usize,
    pub(crate) adapters: Option<&'a ActiveAdapters>,
}

/// Whether no layer runs on a GPU, as far as that is decided.
pub(crate) fn is_on_cpu(model: &Model<'_>, plan: Option<&MemoryPlan>) -> bool {
    let Some(plan) = plan else { return !has_gpus(model) };
    let gpus: Vec<&Place> = model.engine.places().iter().filter(|place| is_gpu(place)).collect();
    plan.parts.iter().all(|part| gpus.iter().all(|gpu| gpu.name != part.place))
}

/// Whether an engine has a GPU: without one there is nothing to decide.
fn has_gpus(model: &Model<'_>) -> bool {
    model.engine.places().iter().any(is_gpu)
}

/// Where the layers of a model run, and, if the engine has GPUs, the memory plan.
///
/// # Errors
/// The errors of [`plan`].
#[cfg(not(browser_gpu))]
pub(crate) fn placed<'m>(model: &'m Model<'m>, asked: Asked<'m>) -> Result<(Placing, Option<MemoryPlan>)> {
    if has_gpus(model) || matches!(model.device_layers, DeviceLayers::Fitting | DeviceLayers::Last(1..)) {
        return plan(model, asked).map(|(placing, plan)| (placing, Some(plan)));
    }
    Ok((Placing::default(), None))
}

/// A page has one GPU, which does not report its memory: if there is one, everything runs there.
#[cfg(browser_gpu)]
pub(crate) fn placed<'m>(_: &'m Model<'m>, _: Asked<'m>) -> Result<(Placing, Option<MemoryPlan>)> {
    Ok((Placing::default(), None))
}

fn is_gpu(place: &Place) -> bool {
    matches!(place.backend, Backend::Gpu | Backend::Cuda)
}
