//! A model with adapters.

use std::sync::Arc;

use super::Adapter;
use crate::architecture::AdapterSet;
use crate::{Error, Model, Result, Session, SessionOptions};

/// A model with adapters that its sessions switch between: see [`Model::with_adapters`].
#[derive(Debug)]
pub struct AdaptedModel<'m> {
    model: &'m Model<'m>,
    set: Arc<AdapterSet>,
}

impl<'m> AdaptedModel<'m> {
    pub(crate) fn new(model: &'m Model<'m>, adapters: &[Adapter]) -> Result<Self> {
        if model.devices > 1 && !adapters.is_empty() {
            let reason =
                format!("adapters of a model that is divided over {} devices are not supported", model.devices);
            return Err(Error::model("adapters", reason));
        }
        Ok(Self { model, set: Arc::new(AdapterSet::new(&model.config, &model.weights, adapters)?) })
    }

    /// The model.
    pub fn model(&self) -> &'m Model<'m> {
        self.model
    }

    /// The adapters.
    pub fn adapters(&self) -> &[Adapter] {
        self.set.adapters()
    }

    /// A new, empty sequence of tokens, which uses none of the adapters until [`Session::set_adapter`] says so.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    pub fn session(&self, options: SessionOptions) -> Result<Session<'m>> {
        Session::with_adapters(self.model, options, Some(self.set.clone()))
    }
}
