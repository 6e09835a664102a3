//! Errors for JavaScript.

use js_sys::Reflect;
use kiln::Error;
use wasm_bindgen::JsValue;

/// The code of an error: the name of its variant.
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

/// The same for an error of models.
#[cfg(feature = "models")]
fn model_code(error: &kiln_llm::Error) -> &'static str {
    use kiln_llm::Error as E;
    match error {
        E::Kiln(error) => code(error),
        E::File(_) | E::Vocabulary { .. } => "file",
        E::UnsupportedTokenizer { .. } | E::UnsupportedArchitecture { .. } | E::NotADecoder { .. } => "unsupported",
        E::Model { .. } | E::Adapter { .. } => "model",
        E::ContextFull { .. } => "context-full",
        E::Token { .. } => "token",
        E::Sampler { .. } => "parameter",
        E::NotANumber { .. } => "not-a-number",
        E::Template { .. } | E::MissingTemplate { .. } => "template",
        _ => "other",
    }
}

/// An `Error` with the name `KilnError`, and the variant as its `code`.
#[cfg(feature = "operations")]
pub(crate) fn to_js(error: &Error) -> JsValue {
    object(&error.to_string(), code(error))
}

/// The same for an error of models.
#[cfg(feature = "models")]
pub(crate) fn model_error(error: &kiln_llm::Error) -> JsValue {
    object(&error.to_string(), model_code(error))
}

fn object(message: &str, code: &str) -> JsValue {
    let object = js_sys::Error::new(message);
    object.set_name("KilnError");
    // Setting a property of a new object cannot fail.
    let _ = Reflect::set(&object, &"code".into(), &code.into());
    object.into()
}

/// The error for an invalid parameter or option.
pub(crate) fn parameter(op: &'static str, reason: impl Into<String>) -> Error {
    Error::Parameter { op, reason: reason.into() }
}
