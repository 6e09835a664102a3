//! Batches of operations for JavaScript.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Array, Float32Array, Promise};
use kiln::graph::TensorId;
use kiln::{Error, Record, Result};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

use crate::error::{parameter, to_js};
use crate::js::{explained, promise, whole};
use crate::operations;
use crate::value::{self, Tensor};

/// A list of recorded operations that run together. Tensors are numbers, which are valid only in the batch that returned them.
#[wasm_bindgen]
pub struct Batch(Rc<State>);

struct State {
    /// `None` while it runs.
    batch: RefCell<Option<kiln::Batch<'static>>>,
    tensors: RefCell<Vec<TensorId>>,
}

impl State {
    fn id(&self, number: &JsValue) -> Result<TensorId> {
        let index = whole(number).ok_or_else(|| parameter("batch", "expected a tensor of this batch"))?;
        self.tensors.borrow().get(index).copied().ok_or(Error::ForeignTensor { index })
    }

    fn ids(&self, numbers: &Array) -> Result<Vec<TensorId>> {
        numbers.iter().map(|number| self.id(&number)).collect()
    }

    fn number(&self, id: TensorId) -> JsValue {
        let mut tensors = self.tensors.borrow_mut();
        tensors.push(id);
        JsValue::from_f64((tensors.len() - 1) as f64)
    }

    fn with<T>(&self, work: impl FnOnce(&mut kiln::Batch<'static>) -> Result<T>) -> Result<T, JsValue> {
        let mut held = self.batch.borrow_mut();
        held.as_mut().ok_or_else(busy).and_then(work).map_err(|error| to_js(&error))
    }
}

fn busy() -> Error {
    parameter("batch", "it is running; await the promise of `execute`, `run` or `read`")
}

impl Batch {
    pub(crate) fn of(batch: kiln::Batch<'static>) -> Self {
        Self(Rc::new(State { batch: RefCell::new(Some(batch)), tensors: RefCell::default() }))
    }
}

#[wasm_bindgen]
impl Batch {
    /// Copies a tensor into the batch: a typed array or `{ data, dims, dtype }`.
    pub fn input(&self, tensor: &JsValue) -> Result<JsValue, JsValue> {
        self.0.with(|batch| {
            let id = batch.upload_operand(&Tensor::read(tensor)?.operand()?)?;
            Ok(self.0.number(id))
        })
    }

    /// Replaces the f32 elements of an input for the next execution.
    pub fn set(&self, tensor: &JsValue, data: &JsValue) -> Result<(), JsValue> {
        self.0.with(|batch| {
            let array: &Float32Array = data.dyn_ref().ok_or_else(|| parameter("set", "expected a Float32Array"))?;
            let mut elements: Vec<f32> = kiln_ir::zeros(array.length() as usize)?;
            array.copy_to(&mut elements);
            batch.set(self.0.id(tensor)?, &elements)
        })
    }

    /// Records an operation, and returns an array of its results.
    pub fn record(&self, name: &str, inputs: Array, params: JsValue) -> Result<Array, JsValue> {
        self.0.with(|batch| {
            let results = batch.record_all(operations::find(name, &params)?, &self.0.ids(&inputs)?)?;
            Ok(results.into_iter().map(|id| self.0.number(id)).collect())
        })
    }

    /// The extents of a tensor.
    pub fn dims(&self, tensor: &JsValue) -> Result<Array, JsValue> {
        self.0.with(|batch| {
            let shape = batch.shape(self.0.id(tensor)?)?;
            Ok(shape.dims().iter().map(|&n| JsValue::from_f64(n as f64)).collect())
        })
    }

    /// Explains where these tensors would be computed, and why.
    pub fn explain(&self, wanted: Array) -> Result<JsValue, JsValue> {
        self.0.with(|batch| Ok(explained(&batch.explain(&self.0.ids(&wanted)?)?)))
    }

    /// Computes these tensors.
    pub fn execute(&self, wanted: Array) -> Promise {
        self.promised(async move |state, batch| {
            batch.execute_async(&state.ids(&wanted)?).await?;
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Computes these tensors and reads them, on a GPU in one submission. Resolves to an array of their elements.
    pub fn run(&self, wanted: Array) -> Promise {
        self.promised(async move |state, batch| {
            let results = batch.run_async(&state.ids(&wanted)?).await?;
            Ok(results.iter().map(|result| value::typed_array(result.as_data())).collect::<Array>().into())
        })
    }

    /// Reads the elements of a wanted tensor of the last execution, or of an input.
    pub fn read(&self, tensor: JsValue) -> Promise {
        self.promised(async move |state, batch| {
            let result = batch.read_buffer_async(state.id(&tensor)?).await?;
            Ok(value::typed_array(result.as_data()))
        })
    }
}

impl Batch {
    /// Takes the batch out while `work` runs on it.
    fn promised(
        &self,
        work: impl AsyncFnOnce(&State, &mut kiln::Batch<'static>) -> Result<JsValue> + 'static,
    ) -> Promise {
        let state = self.0.clone();
        promise(async move {
            let mut batch = state.batch.borrow_mut().take().ok_or_else(busy)?;
            let done = work(&state, &mut batch).await;
            *state.batch.borrow_mut() = Some(batch);
            done
        })
    }
}
