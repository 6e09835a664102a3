//! Finds operations by name, from the signatures of kiln-ir.

use js_sys::{Array, Object};
use kiln::Result;
use kiln::op::Op;
use kiln_ir::named::{Named, Value};
use kiln_ir::signatures::{self, Signature};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

use crate::js::{Options, member, set};
use crate::typescript;

impl Named for Options<'_> {
    fn get(&self, name: &str) -> Option<Value> {
        member(self.0, name).map(|given| value(&given))
    }
}

fn value(given: &JsValue) -> Value {
    if let Some(flag) = given.as_bool() {
        Value::Flag(flag)
    } else if let Some(number) = given.as_f64() {
        Value::Number(number)
    } else if let Some(text) = given.as_string() {
        Value::Text(text)
    } else if let Some(array) = given.dyn_ref::<Array>() {
        Value::List(array.iter().map(|element| value(&element)).collect())
    } else {
        Value::Other
    }
}

/// Returns the operation with this name and these parameters.
pub(crate) fn find(name: &str, params: &JsValue) -> Result<Op> {
    signatures::find(name)?.operation(&Options(params))
}

/// Returns every operation: `{ name, operands, beside, params }`, and `reduces` for those that reduce a whole tensor to one number.
/// `beside` are the names of parameters that are operands after the others, in this order.
#[wasm_bindgen]
pub fn operations() -> Array {
    let entry = |signature: &Signature| -> JsValue {
        let object = Object::new();
        set(&object, "name", signature.name);
        set(&object, "operands", signature.operands.len() as f64);
        set(
            &object,
            "beside",
            signature.optional_operands().iter().map(|&name| JsValue::from(name)).collect::<Array>(),
        );
        set(&object, "params", typescript::params(signature).as_str());
        set(&object, "reduces", signature.reduces());
        object.into()
    };
    signatures::ALL.iter().map(entry).collect()
}
