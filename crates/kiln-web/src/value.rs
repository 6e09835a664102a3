//! Tensors and parameters from JavaScript, and tensors to it.

use js_sys::{Array, Float32Array, Object, Reflect, Uint8Array, Uint16Array, Uint32Array};
use kiln::{Buffer, Data, Error, Operand, QuantFormat, Result, Shape, TensorType, f16};
use wasm_bindgen::{JsCast, JsValue};

use crate::error::parameter;

/// A member of an object, unless it is missing, `undefined` or `null`.
pub(crate) fn member(of: &JsValue, name: &str) -> Option<JsValue> {
    let value = Reflect::get(of, &name.into()).ok()?;
    (!value.is_undefined() && !value.is_null()).then_some(value)
}

pub(crate) fn set(on: &Object, name: &str, value: impl Into<JsValue>) {
    // Objects made here take properties.
    let _ = Reflect::set(on, &name.into(), &value.into());
}

/// A whole number that JavaScript holds exactly.
pub(crate) fn whole(value: &JsValue) -> Option<usize> {
    let number = value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=9e15).contains(n))?;
    usize::try_from(number as u64).ok()
}

/// Extents: an array of whole numbers.
pub(crate) fn dims(value: &JsValue) -> Result<Vec<usize>> {
    let wrong = || parameter("dims", "an array of whole numbers is taken");
    let array: &Array = value.dyn_ref().ok_or_else(wrong)?;
    array.iter().map(|extent| whole(&extent).ok_or_else(wrong)).collect()
}

/// The name of a quantised format.
pub(crate) fn format(name: &str) -> Result<QuantFormat> {
    let found = QuantFormat::ALL.into_iter().find(|format| format.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = QuantFormat::ALL.iter().map(|format| format.name()).collect();
        parameter("format", format!("{name:?} is none of {}", names.join(", ")))
    })
}

/// The type of a tensor that is described by extents alone, or by `{ dims, format }`.
pub(crate) fn described(value: &JsValue) -> Result<TensorType> {
    if value.is_instance_of::<Array>() {
        return Ok(TensorType::f32(Shape::new(&dims(value)?)?));
    }
    let extents = member(value, "dims").ok_or_else(|| parameter("inputs", "extents are taken, or { dims, format }"))?;
    let shape = Shape::new(&dims(&extents)?)?;
    match member(value, "format").and_then(|name| name.as_string()) {
        Some(name) => TensorType::blocks(format(&name)?, shape),
        None => Ok(TensorType::f32(shape)),
    }
}

/// A tensor of the host.
pub(crate) struct Tensor {
    pub(crate) buffer: Buffer,
    pub(crate) dims: Vec<usize>,
}

impl Tensor {
    /// A typed array, which is a vector, or `{ data, dims, format }`.
    pub(crate) fn read(value: &JsValue) -> Result<Self> {
        let data = member(value, "data");
        let name = member(value, "format").and_then(|name| name.as_string());
        let buffer = elements(data.as_ref().unwrap_or(value), name.as_deref())?;
        let dims = match member(value, "dims") {
            Some(extents) => dims(&extents)?,
            None => vec![match buffer.as_data() {
                Data::Blocks(format, bytes) => bytes.len() / format.block_bytes() * format.block_len(),
                data => data.bytes() / data.dtype().size(),
            }],
        };
        Ok(Self { buffer, dims })
    }

    pub(crate) fn operand(&self) -> Result<Operand<'_>> {
        Operand::new(self.buffer.as_data(), Shape::new(&self.dims)?)
    }
}

/// The elements of a typed array, by its type: f32, f16 as their bits, indices, or blocks of a format.
fn elements(value: &JsValue, name: Option<&str>) -> Result<Buffer> {
    if let Some(name) = name {
        let array: &Uint8Array =
            value.dyn_ref().ok_or_else(|| parameter("data", "blocks of a format are a Uint8Array"))?;
        let mut bytes: Vec<u8> = kiln_ir::zeros(array.length() as usize)?;
        array.copy_to(&mut bytes);
        return Ok(Buffer::Blocks(format(name)?, bytes));
    }
    if let Some(array) = value.dyn_ref::<Float32Array>() {
        let mut elements: Vec<f32> = kiln_ir::zeros(array.length() as usize)?;
        array.copy_to(&mut elements);
        return Ok(Buffer::F32(elements));
    }
    if let Some(array) = value.dyn_ref::<Uint32Array>() {
        let mut elements: Vec<u32> = kiln_ir::zeros(array.length() as usize)?;
        array.copy_to(&mut elements);
        return Ok(Buffer::U32(elements));
    }
    if let Some(array) = value.dyn_ref::<Uint16Array>() {
        let mut bits: Vec<u16> = kiln_ir::zeros(array.length() as usize)?;
        array.copy_to(&mut bits);
        return Ok(Buffer::F16(bits.into_iter().map(f16::from_bits).collect()));
    }
    Err(parameter("data", "a Float32Array, Uint32Array, Uint16Array (bits of f16) or { data, dims, format } is taken"))
}

/// A typed array of its own with these elements.
pub(crate) fn typed_array(data: Data<'_>) -> JsValue {
    match data {
        Data::F32(elements) => Float32Array::from(elements).into(),
        Data::U32(elements) => Uint32Array::from(elements).into(),
        Data::F16(elements) => {
            let bits: Vec<u16> = elements.iter().map(|x| x.to_bits()).collect();
            Uint16Array::from(&bits[..]).into()
        }
        Data::Blocks(_, bytes) => Uint8Array::from(bytes).into(),
    }
}

/// `{ data, dims }`.
pub(crate) fn to_js(data: Data<'_>, shape: &Shape) -> JsValue {
    let object = Object::new();
    set(&object, "data", typed_array(data));
    set(&object, "dims", shape.dims().iter().map(|&n| JsValue::from_f64(n as f64)).collect::<Array>());
    object.into()
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

    pub(crate) fn pair(&self, op: &'static str, name: &str) -> Result<Option<(usize, usize)>> {
        let Some(value) = member(self.0, name) else { return Ok(None) };
        match &dims(&value)?[..] {
            &[first, second] => Ok(Some((first, second))),
            other => Err(parameter(op, format!("{name} has {} numbers, 2 are taken", other.len()))),
        }
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<Vec<usize>>> {
        member(self.0, name).map(|value| dims(&value)).transpose()
    }

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

/// What cannot be missing.
pub(crate) fn required<T>(value: Option<T>, op: &'static str, name: &str) -> Result<T, Error> {
    value.ok_or_else(|| parameter(op, format!("{name} is missing")))
}
