//! Access to a browser beside wgpu: the vendor of its adapter, the reason for a missing adapter, and turns of its event loop.

use js_sys::{Function, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

fn member(of: &JsValue, name: &str) -> Option<JsValue> {
    let value = Reflect::get(of, &name.into()).ok()?;
    (!value.is_undefined() && !value.is_null()).then_some(value)
}

/// `navigator.gpu`, in a page or a worker.
fn gpu() -> Option<JsValue> {
    member(&member(&js_sys::global(), "navigator")?, "gpu")
}

/// Whether this is a page or worker of a browser with WebGPU.
pub(crate) fn has_webgpu() -> bool {
    gpu().is_some()
}

/// The vendor and architecture of the adapter, as in `google swiftshader`, or `WebGPU` where the browser hides them.
pub(crate) async fn adapter_name() -> String {
    let name = reported_name().await.unwrap_or_default();
    if name.is_empty() { "WebGPU".to_owned() } else { name }
}

async fn reported_name() -> Option<String> {
    let gpu = gpu()?;
    let request: Function = member(&gpu, "requestAdapter")?.dyn_into().ok()?;
    let promise: Promise = request.call0(&gpu).ok()?.dyn_into().ok()?;
    let info = member(&JsFuture::from(promise).await.ok()?, "info")?;
    let words = ["vendor", "architecture", "description"].iter().filter_map(|name| member(&info, name)?.as_string());
    Some(words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}

/// The reason why the browser offers no adapter.
pub(crate) fn why_none() -> &'static str {
    match gpu() {
        None => "this browser has no WebGPU, or the page was loaded neither over https nor from this machine",
        Some(_) => {
            "the browser has WebGPU but offers no adapter: WebGPU may be disabled, or the browser may block this GPU"
        }
    }
}

/// A turn of the event loop.
pub(crate) async fn pause() {
    let global = js_sys::global();
    let Some(timer) = member(&global, "setTimeout").and_then(|timer| timer.dyn_into::<Function>().ok()) else { return };
    let promise = Promise::new(&mut |resolve, _| {
        // If no timer can be set, resolves the promise at once.
        if timer.call1(&global, &resolve).is_err() {
            let _ = resolve.call0(&JsValue::UNDEFINED);
        }
    });
    let _ = JsFuture::from(promise).await;
}
