//! Operations by name.

use js_sys::{Array, Object};
use kiln::op::{
    Attention, Convert, Convolve2d, Dequantize, Dot, ElementwiseKind, Gather, LayerNorm, LogSoftmax, Matmul, Matvec,
    Op, Padding, Pool2d, QuantMatmul, Quantize, Reduce, Reduction, RmsNorm, Rope, RopeStyle, Softmax, TopK, Transpose,
};
use kiln::{DType, QuantFormat, Result};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::parameter;
use crate::value::{Options, format, required, set};

/// The array of JavaScript for an element type.
macro_rules! array {
    (f32) => {
        "Float32Array"
    };
    (u32) => {
        "Uint32Array"
    };
}

/// Reductions, as the methods of [`kiln::Operations`] name them.
macro_rules! reductions {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, whole: $whole:ident, axis: $axis:ident, axis_into: $axis_into:ident, result: $result:ident,
        $($ignored:tt)*
    })*) => {
        const REDUCTIONS: &[(&str, Reduction)] = &[$((stringify!($whole), Reduction::$variant)),*];

        #[wasm_bindgen(typescript_custom_section)]
        const REDUCTIONS_OF_ENGINE: &'static str = concat!("export interface EngineOperations {\n", $(
            "  ", stringify!($whole), "(x: TensorLike): Promise<number>;\n  ",
            stringify!($whole), "(x: TensorLike, params: { axis: number }): Promise<", array!($result), ">;\n",
        )* "}\n");

        #[wasm_bindgen(typescript_custom_section)]
        const REDUCTIONS_OF_BATCHES: &'static str = concat!("export interface BatchOperations {\n", $(
            "  ", stringify!($whole), "(x: BatchTensor, params?: { axis?: number }): BatchTensor;\n",
        )* "}\n");
    };
}
kiln_ir::reduction_table!(reductions);

/// Whether TypeScript lets parameters be left out: where some are listed here they must be there.
macro_rules! optional {
    () => {
        "?"
    };
    ($($required:ident)+) => {
        ""
    };
}

/// One that is neither element-wise nor a reduction.
struct Row {
    name: &'static str,
    operands: usize,
    params: &'static str,
    make: fn(&Options<'_>) -> Result<Op>,
}

/// A row is: name, operands, parameters and results as TypeScript writes them, and the operation that they make. Where
/// parameters cannot be left out they are `required`.
macro_rules! others {
    ($($name:ident ($($operand:ident),*) $params:literal $($required:ident)?, $engine:literal $batch:literal, $make:expr;)*) => {
        const OTHERS: &[Row] = &[$(Row {
            name: stringify!($name),
            operands: [$(stringify!($operand)),*].len(),
            params: $params,
            make: $make,
        }),*];

        #[wasm_bindgen(typescript_custom_section)]
        const OTHERS_OF_ENGINE: &'static str = concat!("export interface EngineOperations {\n", $(
            "  ", stringify!($name), "(", $(stringify!($operand), ": TensorLike, ",)* "params", optional!($($required)?),
            ": { ", $params, " }): Promise<",
            $engine, ">;\n",
        )* "}\n");

        #[wasm_bindgen(typescript_custom_section)]
        const OTHERS_OF_BATCHES: &'static str = concat!("export interface BatchOperations {\n", $(
            "  ", stringify!($name), "(", $(stringify!($operand), ": BatchTensor, ",)* "params", optional!($($required)?),
            ": { ", $params, " }): ", $batch, ";\n",
        )* "}\n");
    };
}

others! {
    dot (a, b) "", "Float32Array" "BatchTensor",
        |_| Ok(Dot.into());
    matmul (a, b) "transpose_a?: boolean, transpose_b?: boolean", "Float32Array" "BatchTensor",
        |o| Ok(Matmul { transpose_a: o.flag("transpose_a"), transpose_b: o.flag("transpose_b") }.into());
    matvec (a, x) "transpose?: boolean", "Float32Array" "BatchTensor",
        |o| Ok(Matvec { transpose: o.flag("transpose") }.into());
    transpose (x) "", "Float32Array" "BatchTensor",
        |_| Ok(Transpose.into());
    softmax (x) "", "Float32Array" "BatchTensor",
        |_| Ok(Softmax.into());
    log_softmax (x) "", "Float32Array" "BatchTensor",
        |_| Ok(LogSoftmax.into());
    layer_norm (x, gamma, beta) "eps?: number", "Float32Array" "BatchTensor",
        |o| Ok(LayerNorm::new(o.number("layer_norm", "eps")?.unwrap_or(1e-5)).into());
    rms_norm (x, gamma) "eps?: number", "Float32Array" "BatchTensor",
        |o| Ok(RmsNorm::new(o.number("rms_norm", "eps")?.unwrap_or(1e-5)).into());
    gather (table, indices) "", "Float32Array" "BatchTensor",
        |_| Ok(Gather.into());
    top_k (x) "k: number" required, "[Float32Array, Uint32Array]" "[BatchTensor, BatchTensor]",
        |o| Ok(TopK { k: required(o.whole("top_k", "k")?, "top_k", "k")? }.into());
    convolve2d (input, kernel) "padding?: \"valid\" | \"same\", stride?: [number, number]", "Float32Array" "BatchTensor",
        |o| {
            let padding = match o.text("padding").as_deref() {
                None | Some("valid") => Padding::Valid,
                Some("same") => Padding::Same,
                Some(other) => {
                    return Err(parameter("convolve2d", format!("padding {other:?} is neither valid nor same")));
                }
            };
            Ok(Convolve2d { padding, stride: o.pair("convolve2d", "stride")?.unwrap_or((1, 1)) }.into())
        };
    max_pool2d (x) "window: [number, number], stride?: [number, number]" required, "Float32Array" "BatchTensor",
        |o| {
            let window = required(o.pair("max_pool2d", "window")?, "max_pool2d", "window")?;
            Ok(Pool2d::max(window, o.pair("max_pool2d", "stride")?.unwrap_or(window)).into())
        };
    avg_pool2d (x) "window: [number, number], stride?: [number, number]" required, "Float32Array" "BatchTensor",
        |o| {
            let window = required(o.pair("avg_pool2d", "window")?, "avg_pool2d", "window")?;
            Ok(Pool2d::average(window, o.pair("avg_pool2d", "stride")?.unwrap_or(window)).into())
        };
    attention (q, k, v) "causal?: boolean, scale?: number", "Float32Array" "BatchTensor",
        |o| {
            let scale = o.number("attention", "scale")?.map(Into::into);
            Ok(Attention { causal: o.flag("causal"), scale }.into())
        };
    rope (x) "theta?: number, position?: number, interleaved?: boolean", "Float32Array" "BatchTensor",
        |o| {
            let usual = Rope::default();
            let theta = o.number("rope", "theta")?.map_or(usual.theta, Into::into);
            let style = if o.flag("interleaved") { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
            Ok(Rope { theta, style, position: o.whole("rope", "position")?.unwrap_or(0) }.into())
        };
    quantize (x) "format: QuantFormat" required, "Uint8Array" "BatchTensor",
        |o| Ok(Quantize { format: named_format(o, "quantize")? }.into());
    dequantize (blocks) "format: QuantFormat" required, "Float32Array" "BatchTensor",
        |o| Ok(Dequantize { format: named_format(o, "dequantize")? }.into());
    quant_matmul (x, w) "format: QuantFormat" required, "Float32Array" "BatchTensor",
        |o| Ok(QuantMatmul { format: named_format(o, "quant_matmul")? }.into());
    convert (x) "to: \"f32\" | \"f16\"" required, "Float32Array | Uint16Array" "BatchTensor",
        |o| match o.text("to").as_deref() {
            Some("f32") => Ok(Convert { to: DType::F32 }.into()),
            Some("f16") => Ok(Convert { to: DType::F16 }.into()),
            _ => Err(parameter("convert", "to is neither f32 nor f16")),
        };
}

macro_rules! elementwise {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        bound: $bound:ident $(($units:literal))?, formula: $formula:literal, $($ignored:tt)*
    })*) => {
        #[wasm_bindgen(typescript_custom_section)]
        const ELEMENTWISE_OF_ENGINE: &'static str = concat!("export interface EngineOperations {\n", $(
            "  /** ", $formula, " */\n  ", stringify!($name), "(", $(stringify!($x), ": TensorLike, ",)*
            "params", optional!($($p)*), ": { ", $(stringify!($p), ": number, ",)* "}): Promise<Float32Array>;\n",
        )* "}\n");

        #[wasm_bindgen(typescript_custom_section)]
        const ELEMENTWISE_OF_BATCHES: &'static str = concat!("export interface BatchOperations {\n", $(
            "  /** ", $formula, " */\n  ", stringify!($name), "(", $(stringify!($x), ": BatchTensor, ",)*
            "params", optional!($($p)*), ": { ", $(stringify!($p), ": number, ",)* "}): BatchTensor;\n",
        )* "}\n");
    };
}
kiln_ir::elementwise_table!(elementwise);

#[wasm_bindgen(typescript_custom_section)]
const IMPORTS: &'static str = "import type { BatchTensor, QuantFormat, TensorLike } from \"../kiln.js\";\n";

fn named_format(options: &Options<'_>, op: &'static str) -> Result<QuantFormat> {
    format(&required(options.text("format"), op, "format")?)
}

/// The operation of this name with these parameters.
pub(crate) fn find(name: &str, params: &JsValue) -> Result<Op> {
    let options = Options(params);
    if let Some(kind) = ElementwiseKind::ALL.iter().find(|kind| kind.name() == name) {
        let mut values = [0.0; 2];
        for (value, param) in values.iter_mut().zip(kind.param_names()) {
            *value = required(options.number(kind.name(), param)?, kind.name(), param)?;
        }
        return Ok(kind.with_params(values).into());
    }
    if let Some((_, reduction)) = REDUCTIONS.iter().find(|(known, _)| *known == name) {
        return Ok(match options.whole(reduction.name(), "axis")? {
            Some(axis) => Reduce::along(*reduction, axis).into(),
            None => Reduce::all(*reduction).into(),
        });
    }
    match OTHERS.iter().find(|row| row.name == name) {
        Some(row) => (row.make)(&options),
        None => Err(parameter("operation", format!("{name:?} is none"))),
    }
}

/// Every operation: `{ name, operands, params }`, and `reduces` for those that give one number of a whole tensor.
#[wasm_bindgen]
pub fn operations() -> Array {
    let entry = |name: &str, operands: usize, params: &str, reduces: bool| -> JsValue {
        let object = Object::new();
        set(&object, "name", name);
        set(&object, "operands", operands as f64);
        set(&object, "params", params);
        set(&object, "reduces", reduces);
        object.into()
    };
    let elementwise = ElementwiseKind::ALL.iter().map(|kind| {
        let params: Vec<String> = kind.param_names().iter().map(|name| format!("{name}: number")).collect();
        entry(kind.name(), kind.arity(), &params.join(", "), false)
    });
    let reductions = REDUCTIONS.iter().map(|(name, _)| entry(name, 1, "axis?: number", true));
    let others = OTHERS.iter().map(|row| entry(row.name, row.operands, row.params, false));
    elementwise.chain(reductions).chain(others).collect()
}
