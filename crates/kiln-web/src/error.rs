//! Errors as JavaScript sees them.

use js_sys::Reflect;
use kiln::Error;
use wasm_bindgen::JsValue;

/// The variant of an error.
fn code(error: &Error) -> &'static str {
    match error {
        Error::Length { .. } => "length",
        Error::Shape { .. } => "shape",
        Error::Type { .. } => "type",
        Error::Arity { .. } => "arity",
        Error::Parameter { .. } => "parameter",
        Error::Overflow { .. } => "overflow",
        Error::OutOfMemory { .. } => "out-of-memory",
        Error::View { .. } => "view",
        Error::Index { .. } => "index",
        Error::ForeignTensor { .. } => "foreign-tensor",
        Error::Unavailable { .. } => "unavailable",
        Error::DeviceLost { .. } => "device-lost",
        Error::Limit { .. } => "limit",
        Error::Driver { .. } => "driver",
        Error::Unsupported { .. } => "unsupported",
        Error::Format { .. } => "format",
        _ => "other",
    }
}

/// An `Error` with the name `KilnError`, and the variant as its `code`.
pub(crate) fn to_js(error: &Error) -> JsValue {
    let object = js_sys::Error::new(&error.to_string());
    object.set_name("KilnError");
    // A fresh object takes a property.
    let _ = Reflect::set(&object, &"code".into(), &code(error).into());
    object.into()
}

/// A parameter or an option that makes no sense.
pub(crate) fn parameter(op: &'static str, reason: impl Into<String>) -> Error {
    Error::Parameter { op, reason: reason.into() }
}
