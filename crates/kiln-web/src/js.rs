//! Conversions of JavaScript values: options, promises and objects.

#[cfg(feature = "operations")]
use js_sys::Promise;
use js_sys::{Array, Object, Reflect};
use kiln::Result;
#[cfg(feature = "operations")]
use wasm_bindgen::JsCast;
use wasm_bindgen::JsValue;
#[cfg(feature = "operations")]
use wasm_bindgen_futures::future_to_promise;

use crate::error::parameter;
#[cfg(feature = "operations")]
use crate::error::to_js;

/// A member of an object, unless it is missing, `undefined` or `null`.
pub(crate) fn member(of: &JsValue, name: &str) -> Option<JsValue> {
    let value = Reflect::get(of, &name.into()).ok()?;
    (!value.is_undefined() && !value.is_null()).then_some(value)
}

pub(crate) fn set(on: &Object, name: &str, value: impl Into<JsValue>) {
    // Setting a property of a new object cannot fail.
    let _ = Reflect::set(on, &name.into(), &value.into());
}

/// An integer that JavaScript represents exactly.
pub(crate) fn whole(value: &JsValue) -> Option<usize> {
    let number = value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=9e15).contains(n))?;
    usize::try_from(number as u64).ok()
}

/// Extents: an array of integers.
#[cfg(feature = "operations")]
pub(crate) fn dims(value: &JsValue) -> Result<Vec<usize>> {
    let wrong = || parameter("dims", "expected an array of whole numbers");
    let array: &Array = value.dyn_ref().ok_or_else(wrong)?;
    array.iter().map(|extent| whole(&extent).ok_or_else(wrong)).collect()
}

/// The members of an object that is a list of options.
pub(crate) struct Options<'a>(pub(crate) &'a JsValue);

impl Options<'_> {
    #[cfg(feature = "models")]
    pub(crate) fn number(&self, op: &'static str, name: &str) -> Result<Option<f32>> {
        let Some(value) = member(self.0, name) else { return Ok(None) };
        value.as_f64().map(|n| Some(n as f32)).ok_or_else(|| parameter(op, format!("{name} must be a number")))
    }

    #[cfg(feature = "models")]
    pub(crate) fn whole(&self, op: &'static str, name: &str) -> Result<Option<usize>> {
        let Some(value) = member(self.0, name) else { return Ok(None) };
        whole(&value).map(Some).ok_or_else(|| parameter(op, format!("{name} must be a whole number from 0")))
    }

    #[cfg(any(feature = "models", feature = "webgpu"))]
    pub(crate) fn flag(&self, name: &str) -> bool {
        member(self.0, name).is_some_and(|value| value.is_truthy())
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        member(self.0, name)?.as_string()
    }
}

/// The value of a required member, or an error.
#[cfg(feature = "models")]
pub(crate) fn required<T>(value: Option<T>, op: &'static str, name: &str) -> Result<T> {
    value.ok_or_else(|| parameter(op, format!("{name} is missing")))
}

/// A promise for the result of a future.
#[cfg(feature = "operations")]
pub(crate) fn promise(future: impl Future<Output = Result<JsValue>> + 'static) -> Promise {
    future_to_promise(async move { future.await.map_err(|error| to_js(&error)) })
}

/// Turns an explanation into an object.
pub(crate) fn explained(explanation: &kiln::Explanation) -> JsValue {
    let object = Object::new();
    set(&object, "question", explanation.question.as_str());
    set(&object, "chosen", explanation.chosen.as_str());
    set(&object, "unsure", explanation.unsure);
    set(&object, "why", explanation.why.as_str());
    let prediction = |(place, seconds): &(String, f64)| -> JsValue {
        let object = Object::new();
        set(&object, "place", place.as_str());
        set(&object, "seconds", *seconds);
        object.into()
    };
    set(&object, "predictions", explanation.predictions.iter().map(prediction).collect::<Array>());
    object.into()
}
