//! The GPU of a browser, where nothing can wait.

mod times;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Record, Result};
use kiln_route::{Backend, Place};
use kiln_wgpu::{AdapterChoice, BufferId, GpuBackend, GpuCommandBatch, GpuDevice};

use super::recorded::Recorded;

/// Lets the browser draw its page and answer its user.
pub(crate) use kiln_wgpu::runtime::pause;

/// The GPU of an engine, and of those made from it.
#[derive(Debug, Clone)]
pub(crate) struct Gpu(Arc<State>);

#[derive(Debug)]
struct State {
    /// That of its place.
    name: String,
    /// Replaced where a lost device is opened anew.
    backend: RwLock<Arc<GpuBackend>>,
    /// Why it is gone for good, once it is: nothing more is sent to it.
    gone: OnceLock<Error>,
    /// Whether it was told that something ran elsewhere.
    told: AtomicBool,
}

impl Gpu {
    /// Opens the adapter that is meant.
    ///
    /// # Errors
    /// As [`GpuDevice::open_async`].
    pub(crate) async fn opened(choice: &AdapterChoice) -> Result<Self> {
        let device = GpuDevice::open_async(choice).await?;
        let name = device.adapter().label.clone();
        let backend = RwLock::new(Arc::new(GpuBackend::on(device)));
        Ok(Self(Arc::new(State { name, backend, gone: OnceLock::new(), told: AtomicBool::new(false) })))
    }

    /// No GPU of a browser is found by a profile.
    pub(crate) fn of_place(_: &Place, _: Option<&Path>) -> Option<Self> {
        None
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn kind(&self) -> Backend {
        Backend::Gpu
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone().is_some()
    }

    /// Why nothing more is sent to it.
    pub(crate) fn gone(&self) -> Option<&Error> {
        self.0.gone.get()
    }

    fn backend(&self) -> Arc<GpuBackend> {
        self.0.backend.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The device.
    ///
    /// # Errors
    /// As [`GpuBackend::device_async`].
    pub(crate) async fn device(&self) -> Result<GpuDevice> {
        self.backend().device_async().await.cloned()
    }

    /// # Errors
    /// As [`GpuBackend::run_into_async`].
    pub(crate) async fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.backend().run_into_async(op, inputs, outputs).await
    }

    /// Whether an error is one of the device, so that the work can go elsewhere; told once.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        let gone = matches!(error, Error::DeviceLost { .. } | Error::Unavailable { .. });
        let refused = matches!(error, Error::OutOfMemory { .. } | Error::Limit { .. } | Error::Driver { .. });
        if gone {
            // The first reason stays.
            let _ = self.0.gone.set(error.clone());
        }
        if (gone || refused) && !self.0.told.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}: {error}; the work goes on elsewhere", self.name());
        }
        gone || refused
    }

    /// Whether the error is the loss of a device in whose place another one was opened: pages lose theirs whenever the
    /// driver is updated or another page breaks it.
    pub(crate) async fn recovers(&self, error: &Error) -> bool {
        if !matches!(error, Error::DeviceLost { .. }) {
            return false;
        }
        let lost = self.backend();
        if lost.device_async().await.is_ok_and(|device| !device.is_lost()) {
            // Someone else has opened it anew meanwhile.
            return true;
        }
        let choice = AdapterChoice::Name(self.name().to_owned());
        match GpuDevice::open_async(&choice).await {
            Ok(device) => {
                tracing::warn!("{}: {error}; opened anew", self.name());
                *self.0.backend.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(GpuBackend::on(device));
                true
            }
            Err(why) => {
                tracing::warn!("{}: not opened anew: {why}", self.name());
                false
            }
        }
    }
}

/// A recorded graph on a GPU, ready to run again.
#[derive(Debug)]
pub(crate) struct OnGpu {
    batch: GpuCommandBatch,
    /// What was uploaded, under the names of both graphs.
    inputs: Vec<(TensorId, BufferId)>,
    wanted: Vec<BufferId>,
}

impl OnGpu {
    /// Records what the wanted tensors need, and uploads what that reads.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn new(
        gpu: &Gpu,
        graph: &Graph,
        host: &HashMap<TensorId, Buffer>,
        wanted: &[TensorId],
    ) -> Result<Self> {
        let mut batch = GpuCommandBatch::new(gpu.device().await?);
        let recorded = Recorded::new(graph, wanted);
        let mut inputs = Vec::new();
        for (&id, buffer) in host.iter().filter(|(id, _)| recorded.needs(id)) {
            let operand = Operand::new(buffer.as_data(), graph.ty(id)?.shape)?;
            inputs.push((id, batch.upload_operand_async(&operand).await?));
        }
        let wanted = recorded.record(&inputs, |op, inputs| batch.record_all(op, inputs))?;
        Ok(Self { batch, inputs, wanted })
    }

    /// Sends the elements of an input anew.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn set(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        match self.inputs.iter().find(|(name, _)| *name == id) {
            Some(&(_, sent)) => self.batch.set_data_async(sent, data).await,
            None => Ok(()),
        }
    }

    /// Computes and reads the wanted tensors, in their order.
    ///
    /// # Errors
    /// Errors of the data and of the device.
    pub(crate) async fn run(&mut self) -> Result<Vec<Buffer>> {
        self.batch.run_async(&self.wanted).await
    }
}
