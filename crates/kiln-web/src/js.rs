//! Values of JavaScript: options that come in, promises and objects that go out.

use js_sys::{Array, Object, Reflect};
use kiln::{Error, Result};
#[cfg(feature = "operations")]
use wasm_bindgen::JsCast;
use wasm_bindgen::JsValue;

use crate::error::parameter;

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
    let wrong = || parameter("dims", "an array of whole numbers is taken");
    let array: &Array = value.dyn_ref().ok_or_else(wrong)?;
    array.iter().map(|extent| whole(&extent).ok_or_else(wrong)).collect()
}

/// The members of an object that is a list of options.
pub(crate) struct Options<'a>(pub(crate) &'a JsValue);

impl Options<'_> {
    pub(crate) fn number(&self, op: &'static str, name: &str) -> Result<Option<f32>> {
        let Some(value) = member(self.0, name) else { return Ok(None) };
        value.as_f64().map(|n| Some(n as f32)).ok_or_else(|| parameter(op, format!("{name} is no number")))
    }

    pub(crate) fn whole(&self, op: &'static str, name: &str) -> Result<Option<usize>> {
        let Some(value) = member(self.0, name) else { return Ok(None) };
        whole(&value).map(Some).ok_or_else(|| parameter(op, format!("{name} is no whole number")))
    }

    #[cfg(feature = "operations")]
    pub(crate) fn pair(&self, op: &'static str, name: &str) -> Result<Option<(usize, usize)>> {
        let Some(value) = member(self.0, name) else { return Ok(None) };
        match &dims(&value)?[..] {
            &[first, second] => Ok(Some((first, second))),
            other => Err(parameter(op, format!("{name} has {} numbers, 2 are taken", other.len()))),
        }
    }

    #[cfg(feature = "operations")]
    pub(crate) fn list(&self, name: &str) -> Result<Option<Vec<usize>>> {
        member(self.0, name).map(|value| dims(&value)).transpose()
    }

    #[cfg(feature = "operations")]
    pub(crate) fn pairs(&self, op: &'static str, name: &str) -> Result<Option<Vec<(usize, usize)>>> {
        let Some(value) = member(self.0, name) else { return Ok(None) };
        let wrong = || parameter(op, format!("{name} is no array of pairs of whole numbers"));
        let array: &Array = value.dyn_ref().ok_or_else(wrong)?;
        let pair = |entry: JsValue| match &dims(&entry)?[..] {
            &[first, second] => Ok((first, second)),
            _ => Err(wrong()),
        };
        array.iter().map(pair).collect::<Result<_>>().map(Some)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        member(self.0, name).is_some_and(|value| value.is_truthy())
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        member(self.0, name)?.as_string()
    }
}

/// The value of a required member, or an error.
pub(crate) fn required<T>(value: Option<T>, op: &'static str, name: &str) -> Result<T, Error> {
    value.ok_or_else(|| parameter(op, format!("{name} is missing")))
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
