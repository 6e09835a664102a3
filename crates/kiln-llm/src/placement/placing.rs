//! The layers that run on each device.

use kiln::Batch;

use crate::Result;

/// The number of layers of a model that run on a GPU. They are the last layers, so that the head and sampling run on the GPU, too. The
/// earlier layers run on the CPU, so each step transfers one row of activations per token to the GPU.
///
/// Layers that do not fit one GPU run on the next one of the same backend, if the engine has several and does not force one: the fastest
/// GPU has the last layers, as many as fit, the next one those before, and the CPU the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceLayers {
    /// All layers or none, as predicted, if all fit the memory of GPUs; otherwise as many as fit, if that is
    /// predicted to be faster than the CPU alone. On an engine that forces a GPU all layers run there, or the result is
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[default]
    Predicted,
    /// As many as fit the memory of GPUs, whatever is predicted.
    Fitting,
    /// This many of the last layers.
    Last(usize),
}

/// The placements of layers, each with its first layer; empty if the engine decides about each graph.
#[derive(Debug, Clone, Default)]
pub(crate) struct Placing(pub(super) Vec<(String, usize)>);

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
