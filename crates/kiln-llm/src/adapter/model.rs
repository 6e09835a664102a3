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

impl Model<'_> {
    /// Returns the model with adapters; its sessions can switch between them from one step to the next.
    ///
    /// The matrices of all adapters are stacked beside the weights: a step reads those of unused adapters, too, and multiplies
    /// them by 0. So a step costs as much as with one adapter whose rank is the sum of their ranks, and a switch only computes the keys and
    /// values of the tokens so far again. Sessions of [`Model::session`] have no such cost.
    ///
    /// # Errors
    /// [`Error::AdapterArchitecture`](crate::Error::AdapterArchitecture) for an adapter of another architecture,
    /// [`Error::AdapterShape`](crate::Error::AdapterShape) for one whose matrices do not fit, [`Error::Adapter`](crate::Error::Adapter)
    /// for layers that the model does not have, and for an adapter that is given twice.
    pub fn with_adapters<'a>(&self, adapters: impl IntoIterator<Item = &'a Adapter>) -> Result<AdaptedModel<'_>> {
        let adapters: Vec<Adapter> = adapters.into_iter().cloned().collect();
        AdaptedModel::new(self, &adapters)
    }
}

impl<'m> AdaptedModel<'m> {
    fn new(model: &'m Model<'m>, adapters: &[Adapter]) -> Result<Self> {
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

    /// Makes an empty session, which uses none of the adapters until [`Session::set_adapter`] selects one.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    pub fn session(&self, options: SessionOptions) -> Result<Session<'m>> {
        Session::with_adapters(self.model, options, Some(self.set.clone()))
    }
}
