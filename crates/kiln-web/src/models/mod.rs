//! Language models: loaded in parts, and continued token by token.
//!
//! A model and its sessions borrow from one another, so one asynchronous task owns them all ([`task`]) and answers the requests of a
//! page in turn. The memory of a model is free when its task ends, which `close` asks for.

mod requests;
mod task;

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Object, Promise, Uint8Array};
#[cfg(feature = "webgpu")]
use kiln::gpu::AdapterChoice;
use kiln::{Backend, DType, Engine};
use kiln_llm::{Error, Loader, Result};
use requests::{Kind, Requests};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen_futures::{future_to_promise, spawn_local};

use crate::error::{model_error, parameter};
use crate::js::{Options, set};

/// A promise for the result of a future.
fn promise(future: impl Future<Output = Result<JsValue>> + 'static) -> Promise {
    future_to_promise(async move { future.await.map_err(|error| model_error(&error)) })
}

/// Minimum bytes of weights for which a GPU is chosen automatically: a token of a small decoder takes some hundred
/// launches, a few milliseconds in browsers, in which one thread reads this many bytes.
const WORTH_A_GPU: usize = 32 << 20;

/// An engine for a model.
async fn loading(bytes: u64, options: &JsValue) -> Result<Loading> {
    let options = Options(options);
    let device = options.text("device").unwrap_or_else(|| "auto".into());
    let mut builder = Engine::builder();
    builder = match options.text("profile") {
        Some(json) => builder.kept_profile(json),
        None => builder.without_profile(),
    };
    let cpu = [Backend::Scalar, Backend::Simd];
    builder = match (device.as_str(), cfg!(feature = "webgpu")) {
        ("cpu", _) | ("auto", false) => builder.backends(&cpu),
        #[cfg(feature = "webgpu")]
        ("auto", true) => builder.allow_software(options.flag("software")),
        #[cfg(feature = "webgpu")]
        ("gpu", true) => {
            let software = options.flag("software");
            let choice = if software { AdapterChoice::Any } else { AdapterChoice::Best };
            builder.allow_software(software).adapter(choice)
        }
        ("gpu", _) => {
            let reason = "this build of kiln has no WebGPU".into();
            return Err(kiln::Error::Unavailable { what: "WebGPU".into(), reason }.into());
        }
        (other, _) => {
            return Err(parameter("device", format!("expected auto, gpu or cpu, found {other:?}")).into());
        }
    };
    let engine = builder.build_async().await?;
    let gpu = engine.places().iter().find(|place| place.backend == Backend::Gpu).map(|place| place.name.clone());
    // A device that is named explicitly is required: weights that do not fit it are an error then.
    let forced = device == "gpu";
    let engine = if forced { engine.with_force(gpu.as_deref())? } else { engine };
    Ok(Loading { loader: Loader::new(bytes), engine, gpu, forced, all_there: true })
}

/// A model that is being loaded.
#[wasm_bindgen]
pub struct ModelLoader(Rc<RefCell<Option<Loading>>>);

struct Loading {
    loader: Loader,
    engine: Engine,
    /// The GPU that receives the weights.
    gpu: Option<String>,
    /// Whether the GPU was requested by name.
    forced: bool,
    /// Whether the GPU has taken all weights so far.
    all_there: bool,
}

fn used() -> Error {
    parameter("load", "it has ended, or the promise of the last part was not awaited").into()
}

#[wasm_bindgen]
impl ModelLoader {
    /// Begins a file of this many bytes: `{ device, software, profile }`.
    pub fn create(bytes: f64, options: JsValue) -> Promise {
        promise(async move {
            let loading = loading(bytes as u64, &options).await?;
            Ok(Self(Rc::new(RefCell::new(Some(loading)))).into())
        })
    }

    /// Takes the next bytes of the file. Complete weights are uploaded to the GPU.
    pub fn push(&self, bytes: Uint8Array) -> Promise {
        let held = self.0.clone();
        promise(async move {
            let mut loading = held.borrow_mut().take().ok_or_else(used)?;
            let done = loading.push(&bytes.to_vec()).await;
            *held.borrow_mut() = Some(loading);
            done.map(|()| JsValue::UNDEFINED)
        })
    }

    /// Describes the model and the memory that it takes, once the header has arrived.
    pub fn plan(&self, options: JsValue) -> Result<JsValue, JsValue> {
        let held = self.0.borrow();
        let Some(loading) = held.as_ref() else { return Ok(JsValue::UNDEFINED) };
        let Some(plan) = loading.loader.plan() else { return Ok(JsValue::UNDEFINED) };
        let context = Options(&options).whole("plan", "context").map_err(|error| model_error(&error.into()))?;
        let object = Object::new();
        set(&object, "architecture", plan.architecture);
        set(&object, "parameters", plan.parameters as f64);
        set(&object, "layers", plan.layers as f64);
        set(&object, "weights", plan.weights as f64);
        set(&object, "largest", plan.largest as f64);
        set(&object, "context", plan.context as f64);
        set(&object, "cache", plan.cache(context, DType::F16) as f64);
        set(&object, "device", loading.device());
        Ok(object.into())
    }

    /// Whether the weights are uploaded to a GPU.
    pub fn on_gpu(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(|loading| loading.gpu.is_some())
    }

    /// The reason why no GPU is used, if one was looked for.
    pub fn problem(&self) -> Option<String> {
        let held = self.0.borrow();
        let loading = held.as_ref().filter(|loading| loading.gpu.is_none())?;
        loading.engine.gpu_problem().map(ToString::to_string)
    }

    /// Returns the model, after all bytes have arrived.
    pub fn finish(&self) -> Promise {
        let held = self.0.clone();
        let requests = Rc::new(Requests::default());
        let model = Model(requests.clone());
        let ready = requests.ask(Kind::Ready, JsValue::UNDEFINED);
        if let Some(loading) = held.borrow_mut().take() {
            spawn_local(task::serve(loading, requests));
        } else {
            requests.refuse(used);
        }
        future_to_promise(async move {
            wasm_bindgen_futures::JsFuture::from(ready).await?;
            Ok(model.into())
        })
    }
}

impl Loading {
    fn device(&self) -> &str {
        match (&self.gpu, self.all_there) {
            (Some(name), true) => name,
            _ => {
                let cpu = self.engine.places().iter().rfind(|place| place.backend != Backend::Gpu);
                cpu.map_or("", |place| &place.name)
            }
        }
    }

    async fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let planned = self.loader.plan().is_some();
        self.loader.push(bytes)?;
        if let (false, false, Some(plan)) = (planned, self.forced, self.loader.plan())
            && plan.weights < WORTH_A_GPU
            && self.gpu.take().is_some()
        {
            let cpu = self.engine.places().iter().rfind(|place| place.backend != Backend::Gpu);
            let cpu = cpu.map(|place| place.name.clone());
            self.engine = self.engine.with_force(cpu.as_deref())?;
        }
        let completed = self.loader.completed();
        let Some(gpu) = self.gpu.as_ref().filter(|_| self.all_there) else { return Ok(()) };
        for tensor in completed {
            match self.engine.move_to_async(&tensor, gpu).await {
                Ok(()) => {}
                Err(error) if self.forced => return Err(error.into()),
                // The remaining weights stay in the memory of the module, and the router decides with the available
                // copies.
                Err(_) => {
                    self.all_there = false;
                    break;
                }
            }
        }
        Ok(())
    }
}

/// A model that is loaded: its requests.
#[wasm_bindgen]
pub struct Model(Rc<Requests>);

#[wasm_bindgen]
impl Model {
    /// Adds a request to the queue: see [`Kind`].
    pub fn ask(&self, what: &str, of: JsValue) -> Promise {
        match Kind::named(what) {
            Some(kind) => self.0.ask(kind, of),
            None => promise(std::future::ready(Err(parameter("ask", format!("{what:?} is not a request")).into()))),
        }
    }

    /// Closes the model. Its memory is freed after the last answer.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.0.close();
    }
}
