//! Conversions of tensors from and to JavaScript.

use js_sys::{Array, Float32Array, Int8Array, Int32Array, Object, Uint8Array, Uint16Array, Uint32Array};
use kiln::{Buffer, DType, Data, Operand, QuantFormat, Result, Shape, TensorType};
use wasm_bindgen::{JsCast, JsValue};

use crate::error::parameter;
use crate::js::{dims, member, set};

/// The element type with this name.
pub(crate) fn dtype(name: &str) -> Result<DType> {
    DType::from_name(name).ok_or_else(|| {
        let formats = QuantFormat::ALL.map(DType::Blocks);
        let names: Vec<&str> = DType::ALL.iter().chain(&formats).map(|dtype| dtype.name()).collect();
        parameter("dtype", format!("expected one of {}, found {name:?}", names.join(", ")))
    })
}

/// The type of a tensor that is described by extents alone, or by `{ dims, dtype }`.
pub(crate) fn described(value: &JsValue) -> Result<TensorType> {
    if value.is_instance_of::<Array>() {
        return Ok(TensorType::f32(Shape::new(&dims(value)?)?));
    }
    let extents = member(value, "dims").ok_or_else(|| parameter("inputs", "expected extents, or { dims, dtype }"))?;
    let shape = Shape::new(&dims(&extents)?)?;
    let dtype = member(value, "dtype").and_then(|name| name.as_string()).map_or(Ok(DType::F32), |name| dtype(&name))?;
    TensorType::of(dtype, shape)
}

/// A tensor of the host.
pub(crate) struct Tensor {
    pub(crate) buffer: Buffer,
    pub(crate) dims: Vec<usize>,
}

impl Tensor {
    /// Reads a typed array, which is a vector, or `{ data, dims, dtype }`.
    pub(crate) fn read(value: &JsValue) -> Result<Self> {
        let data = member(value, "data");
        let name = member(value, "dtype").and_then(|name| name.as_string());
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

/// The elements of a typed array, with the named type or that of the array. A Uint16Array holds the bits of f16.
fn elements(value: &JsValue, name: Option<&str>) -> Result<Buffer> {
    let own = if value.is_instance_of::<Float32Array>() {
        DType::F32
    } else if value.is_instance_of::<Uint32Array>() {
        DType::U32
    } else if value.is_instance_of::<Int32Array>() {
        DType::I32
    } else if value.is_instance_of::<Uint16Array>() {
        DType::F16
    } else if value.is_instance_of::<Uint8Array>() {
        DType::U8
    } else if value.is_instance_of::<Int8Array>() {
        DType::I8
    } else {
        let taken = "expected a Float32Array, Int32Array, Uint32Array, Uint16Array (bits of f16), Int8Array or Uint8Array, or \
                     { data, dims, dtype } with one of them";
        return Err(parameter("data", taken));
    };
    let dtype = name.map_or(Ok(own), dtype)?;
    if dtype.size() != own.size() {
        return Err(parameter("dtype", format!("expected an array with elements of {dtype}, found one of {own}")));
    }
    // Each of these arrays is a view of an `ArrayBuffer`.
    let view: &Float32Array = value.unchecked_ref();
    let bytes = Uint8Array::new_with_byte_offset_and_length(&view.buffer(), view.byte_offset(), view.byte_length());
    let mut elements = Buffer::with_bytes(dtype, bytes.length() as usize)?;
    bytes.copy_to(elements.as_mut().as_bytes());
    Ok(elements)
}

/// A new typed array with these elements; f16 and bf16 are given as bits.
pub(crate) fn typed_array(data: Data<'_>) -> JsValue {
    let buffer = Uint8Array::from(data.as_bytes()).buffer();
    match data.dtype() {
        DType::F32 => Float32Array::new(&buffer).into(),
        DType::U32 => Uint32Array::new(&buffer).into(),
        DType::I32 => Int32Array::new(&buffer).into(),
        DType::F16 | DType::Bf16 => Uint16Array::new(&buffer).into(),
        DType::I8 => Int8Array::new(&buffer).into(),
        DType::U8 | DType::Bool | DType::Blocks(_) => Uint8Array::new(&buffer).into(),
    }
}

/// `{ data, dims }`.
pub(crate) fn to_js(data: Data<'_>, shape: &Shape) -> JsValue {
    let object = Object::new();
    set(&object, "data", typed_array(data));
    set(&object, "dims", shape.dims().iter().map(|&n| JsValue::from_f64(n as f64)).collect::<Array>());
    object.into()
}
