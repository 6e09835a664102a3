//! Compiled kernels, each made once for a device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::plan::Code;

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// Whether parameters are immediates; otherwise they are in a uniform buffer.
    pub(crate) immediates: bool,
}

/// The compiled kernels of a device, by their code and constants.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    compiled: Mutex<HashMap<Code, Arc<Pipeline>>>,
}

impl Pipelines {
    /// The pipeline of a code, if it was compiled.
    pub(super) fn find(&self, code: &Code) -> Option<Arc<Pipeline>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).get(code).cloned()
    }

    /// Stores a pipeline, or returns the one that another thread stored meanwhile.
    pub(super) fn keep(&self, code: &Code, pipeline: Pipeline) -> Arc<Pipeline> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.entry(code.clone()).or_insert_with(|| Arc::new(pipeline)).clone()
    }

    /// Number of compiled kernels.
    pub(crate) fn len(&self) -> usize {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
