//! Engines for JavaScript.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use js_sys::{Array, Object, Promise};
#[cfg(feature = "webgpu")]
use kiln::gpu::{AdapterChoice, AdapterKind};
use kiln::{Operand, Place, Result};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::batch::Batch;
use crate::error::to_js;
use crate::js::{Options, explained, member, promise, set};
use crate::operations;
use crate::value::{self, Tensor, described};

/// The handle of a page to an engine.
#[wasm_bindgen]
pub struct Engine {
    /// Replaced when another profile is loaded.
    pub(crate) engine: Rc<RefCell<Arc<kiln::Engine>>>,
}

impl Engine {
    fn of(engine: kiln::Engine) -> Self {
        Self { engine: Rc::new(RefCell::new(Arc::new(engine))) }
    }

    pub(crate) fn current(&self) -> Arc<kiln::Engine> {
        self.engine.borrow().clone()
    }
}

/// The error if a GPU is requested.
#[cfg(not(feature = "webgpu"))]
const WITHOUT_WEBGPU: &str = "this build of kiln has no WebGPU";

async fn made(options: &JsValue) -> Result<kiln::Engine> {
    let options = Options(options);
    let mut builder = kiln::Engine::builder();
    builder = match options.text("profile") {
        Some(json) => builder.kept_profile(json),
        None => builder.without_profile(),
    };
    #[cfg(feature = "webgpu")]
    {
        let software = options.flag("software");
        builder = builder.allow_software(software);
        builder = match member(options.0, "webgpu") {
            Some(wanted) if wanted.is_falsy() => builder.backends(&[kiln::Backend::Scalar, kiln::Backend::Simd]),
            Some(wanted) if wanted == "required" => {
                builder.adapter(if software { AdapterChoice::Any } else { AdapterChoice::Best })
            }
            _ => builder,
        };
    }
    #[cfg(not(feature = "webgpu"))]
    if member(options.0, "webgpu").is_some_and(|wanted| wanted == "required") {
        return Err(kiln::Error::Unavailable { what: "WebGPU".into(), reason: WITHOUT_WEBGPU.into() });
    }
    builder.build_async().await
}

#[wasm_bindgen]
impl Engine {
    /// Makes an engine of what the browser has: `{ profile, software, webgpu }`.
    pub fn create(options: JsValue) -> Promise {
        promise(async move { Ok(Self::of(made(&options).await?).into()) })
    }

    /// The placements, those of the CPU first with the best one last, then the GPU: `{ name, backend, software }`.
    pub fn places(&self) -> Promise {
        let engine = self.current();
        promise(async move {
            #[cfg(feature = "webgpu")]
            let software: Vec<String> = {
                let devices = engine.gpu_devices_async().await?;
                let software = devices.iter().map(|device| device.adapter());
                software.filter(|info| info.kind == AdapterKind::Software).map(|info| info.name.clone()).collect()
            };
            #[cfg(not(feature = "webgpu"))]
            let software: Vec<String> = Vec::new();
            let entry = |place: &Place| -> JsValue {
                let object = Object::new();
                set(&object, "name", place.name.as_str());
                set(&object, "backend", format!("{:?}", place.backend).to_lowercase());
                set(&object, "software", software.contains(&place.name));
                object.into()
            };
            Ok(engine.places().iter().map(entry).collect::<Array>().into())
        })
    }

    /// The reason why the engine has no GPU, if it looked for one.
    pub fn problem(&self) -> Option<String> {
        #[cfg(feature = "webgpu")]
        return self.current().gpu_problem().map(ToString::to_string);
        #[cfg(not(feature = "webgpu"))]
        return Some(WITHOUT_WEBGPU.to_owned());
    }

    /// The source of the profile that the router decides by.
    pub fn profile_status(&self) -> String {
        self.current().profile_status().to_string()
    }

    /// Measures the machine within this many seconds, decides by the result from now on, and returns it, for the caller to
    /// keep.
    pub fn calibrate(&self, seconds: f64) -> Promise {
        let (engine, held) = (self.current(), self.engine.clone());
        let within = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1));
        promise(async move {
            let profile = engine.measure_async(within).await?;
            let json = profile.to_json();
            let next = engine.with_profile(profile)?;
            *held.borrow_mut() = Arc::new(next);
            Ok(json.into())
        })
    }

    /// Returns an engine that sends everything to the placement with this name. It shares the devices of this one.
    pub fn forced(&self, place: &str) -> Result<Engine, JsValue> {
        self.current().with_force(Some(place)).map(Self::of).map_err(|error| to_js(&error))
    }

    /// Explains where an operation on operands of these extents would run, and why.
    pub fn explain(&self, name: &str, inputs: Array, params: JsValue) -> Result<JsValue, JsValue> {
        let explain = || {
            let types = inputs.iter().map(|input| described(&input)).collect::<Result<Vec<_>>>()?;
            Ok(explained(&self.current().explain(operations::find(name, &params)?, &types)?))
        };
        explain().map_err(|error| to_js(&error))
    }

    /// Runs an operation where it is predicted to run fastest. Resolves to an array of `{ data, dims }`.
    pub fn run(&self, name: &str, inputs: Array, params: JsValue) -> Promise {
        let engine = self.current();
        // Copies before it returns: the caller may then modify its arrays.
        let read = || -> Result<_> {
            Ok((
                operations::find(name, &params)?,
                inputs.iter().map(|input| Tensor::read(&input)).collect::<Result<Vec<_>>>()?,
            ))
        };
        let read = read();
        promise(async move {
            let (op, tensors) = read?;
            let operands = tensors.iter().map(Tensor::operand).collect::<Result<Vec<Operand<'_>>>>()?;
            let results = engine.run_async(&op, &operands).await?;
            let types: Vec<_> = operands.iter().map(Operand::ty).collect();
            let types = op.infer(&types)?;
            let object = |(buffer, ty): (&kiln::Buffer, &kiln::TensorType)| value::to_js(buffer.as_data(), &ty.shape);
            Ok(results.iter().zip(types.iter()).map(object).collect::<Array>().into())
        })
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch {
        Batch::of(self.current().shared_batch())
    }

    /// Runs every `step`-th of the cases of an operation that have at most this many elements on the placement with this name, and
    /// compares them with the f64 reference: `{ cases, elements, worst, bound, failures }`.
    #[cfg(feature = "verify")]
    pub fn verify(&self, name: String, place: String, elements: usize, step: usize) -> Promise {
        let engine = self.current();
        promise(async move { crate::verify::verify(&engine, &name, &place, elements, step).await })
    }

    /// Destroys the device of the GPU, like unplugging it: for tests of device loss.
    #[cfg(feature = "webgpu")]
    pub fn destroy_device(&self) -> Promise {
        let engine = self.current();
        promise(async move {
            engine.gpu_devices_async().await?.iter().for_each(kiln::gpu::GpuDevice::destroy);
            Ok(JsValue::UNDEFINED)
        })
    }
}
