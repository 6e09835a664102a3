//! Operations by name.

use js_sys::{Array, Object};
use kiln::op::{
    Arithmetic, Attention, AttentionOperands, BatchNorm, BroadcastTo, Cast, Compare, Comparison, Concat, Convolve2d,
    ConvolveTranspose2d, Cumsum, Dequantize, Dot, ElementwiseKind, Gather, GroupNorm, IndexAdd, IntegerFunction,
    LayerNorm, LogSoftmax, Matmul, MatmulByExpert, Matvec, Op, Pad, Padding, Permute, Pool2d, QuantMatmul, Quantize,
    Reduce, Reduction, Reshape, Resize2d, ResizeCoordinates, RmsNorm, Rope, RopeStyle, Scatter, Select, Slice, Softmax,
    Sort, TopK, Transpose, WriteRows,
};
use kiln::{QuantFormat, Result};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::parameter;
use crate::js::{Options, required, set};
use crate::value::{dtype, format};

/// The JavaScript array type of an element type.
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

/// Whether TypeScript may omit the parameters: not if some are listed here.
macro_rules! optional {
    () => {
        "?"
    };
    ($($required:ident)+) => {
        ""
    };
}

/// An operation that is neither element-wise nor a reduction.
struct Row {
    name: &'static str,
    operands: usize,
    /// Parameters that are operands, in order after the others.
    beside: &'static [&'static str],
    params: &'static str,
    make: fn(&Options<'_>) -> Result<Op>,
}

/// A row is the name of an operation and these fields:
///
/// - `operands`: their names
/// - `beside` (optional): names of parameters that are operands after those, in this order; each may be omitted
/// - `params`: the other parameters in TypeScript's syntax
/// - `required` (optional): they cannot be omitted
/// - `engine`, `batch`: the results in TypeScript's syntax
/// - `make`: the operation, from the parameters
macro_rules! others {
    ($($name:ident {
        operands: ($($operand:ident),*), $(beside: ($($beside:ident),*),)? params: $params:literal,
        $(required: $required:ident,)? engine: $engine:literal, batch: $batch:literal, make: $make:expr,
    })*) => {
        const OTHERS: &[Row] = &[$(Row {
            name: stringify!($name),
            operands: [$(stringify!($operand)),*].len(),
            beside: &[$($(stringify!($beside)),*)?],
            params: $params,
            make: $make,
        }),*];

        #[wasm_bindgen(typescript_custom_section)]
        const OTHERS_OF_ENGINE: &'static str = concat!("export interface EngineOperations {\n", $(
            "  ", stringify!($name), "(", $(stringify!($operand), ": TensorLike, ",)* "params", optional!($($required)?),
            ": { ", $($(stringify!($beside), "?: TensorLike, ",)*)? $params, " }): Promise<",
            $engine, ">;\n",
        )* "}\n");

        #[wasm_bindgen(typescript_custom_section)]
        const OTHERS_OF_BATCHES: &'static str = concat!("export interface BatchOperations {\n", $(
            "  ", stringify!($name), "(", $(stringify!($operand), ": BatchTensor, ",)* "params", optional!($($required)?),
            ": { ", $($(stringify!($beside), "?: BatchTensor, ",)*)? $params, " }): ", $batch, ";\n",
        )* "}\n");
    };
}

others! {
    dot {
        operands: (a, b), params: "", engine: "Float32Array", batch: "BatchTensor",
        make: |_| Ok(Dot.into()),
    }
    matmul {
        operands: (a, b), params: "transpose_a?: boolean, transpose_b?: boolean",
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Matmul { transpose_a: o.flag("transpose_a"), transpose_b: o.flag("transpose_b") }.into()),
    }
    matvec {
        operands: (a, x), params: "transpose?: boolean", engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Matvec { transpose: o.flag("transpose") }.into()),
    }
    transpose {
        operands: (x), params: "", engine: "Float32Array", batch: "BatchTensor",
        make: |_| Ok(Transpose.into()),
    }
    softmax {
        operands: (x), params: "", engine: "Float32Array", batch: "BatchTensor",
        make: |_| Ok(Softmax.into()),
    }
    log_softmax {
        operands: (x), params: "", engine: "Float32Array", batch: "BatchTensor",
        make: |_| Ok(LogSoftmax.into()),
    }
    layer_norm {
        operands: (x, gamma, beta), params: "eps?: number", engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(LayerNorm::new(o.number("layer_norm", "eps")?.unwrap_or(1e-5)).into()),
    }
    rms_norm {
        operands: (x, gamma), params: "eps?: number", engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(RmsNorm::new(o.number("rms_norm", "eps")?.unwrap_or(1e-5)).into()),
    }
    group_norm {
        operands: (x, gamma, beta), params: "groups: number, eps?: number", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let groups = required(o.whole("group_norm", "groups")?, "group_norm", "groups")?;
            Ok(GroupNorm::new(groups, o.number("group_norm", "eps")?.unwrap_or(1e-5)).into())
        },
    }
    batch_norm {
        operands: (x, gamma, beta, mean, variance), params: "eps?: number", engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(BatchNorm::new(o.number("batch_norm", "eps")?.unwrap_or(1e-5)).into()),
    }
    gather {
        operands: (table, indices), params: "", engine: "Float32Array", batch: "BatchTensor",
        make: |_| Ok(Gather.into()),
    }
    write_rows {
        operands: (x, rows, positions), params: "", engine: "Elements", batch: "BatchTensor",
        make: |_| Ok(WriteRows.into()),
    }
    scatter {
        operands: (table, indices, source), params: "", engine: "Elements", batch: "BatchTensor",
        make: |_| Ok(Scatter.into()),
    }
    index_add {
        operands: (table, indices, source), params: "", engine: "Elements", batch: "BatchTensor",
        make: |_| Ok(IndexAdd.into()),
    }
    top_k {
        operands: (x), params: "k: number", required: true,
        engine: "[Float32Array, Uint32Array]", batch: "[BatchTensor, BatchTensor]",
        make: |o| Ok(TopK { k: required(o.whole("top_k", "k")?, "top_k", "k")? }.into()),
    }
    convolve2d {
        operands: (input, kernel),
        params: "padding?: \"valid\" | \"same\" | [top: number, bottom: number, left: number, right: number], \
                 stride?: [number, number], dilation?: [number, number], groups?: number",
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let padding = padding(o, "convolve2d", around_image)?;
            let pair = |name| Ok(o.pair("convolve2d", name)?.unwrap_or((1, 1)));
            let groups = o.whole("convolve2d", "groups")?.unwrap_or(1);
            Ok(Convolve2d { padding, stride: pair("stride")?, dilation: pair("dilation")?, groups }.into())
        },
    }
    convolve1d {
        operands: (input, kernel),
        params: "padding?: \"valid\" | \"same\" | [before: number, after: number], stride?: number, dilation?: number, \
                 groups?: number",
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let padding = padding(o, "convolve1d", around_signal)?;
            let whole = |name| Ok(o.whole("convolve1d", name)?.unwrap_or(1));
            let (stride, dilation) = ((1, whole("stride")?), (1, whole("dilation")?));
            Ok(Convolve2d { padding, stride, dilation, groups: whole("groups")? }.into())
        },
    }
    convolve_transpose2d {
        operands: (input, kernel),
        params: "padding?: \"valid\" | \"same\" | [top: number, bottom: number, left: number, right: number], \
                 stride?: [number, number], dilation?: [number, number], groups?: number, output_padding?: [number, number]",
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let name = "convolve_transpose2d";
            let pair = |option, otherwise| Ok(o.pair(name, option)?.unwrap_or(otherwise));
            Ok(ConvolveTranspose2d {
                padding: padding(o, name, around_image)?,
                stride: pair("stride", (1, 1))?,
                dilation: pair("dilation", (1, 1))?,
                groups: o.whole(name, "groups")?.unwrap_or(1),
                output_padding: pair("output_padding", (0, 0))?,
            }.into())
        },
    }
    convolve_transpose1d {
        operands: (input, kernel),
        params: "padding?: \"valid\" | \"same\" | [before: number, after: number], stride?: number, dilation?: number, \
                 groups?: number, output_padding?: number",
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let name = "convolve_transpose1d";
            let whole = |option, otherwise| Ok(o.whole(name, option)?.unwrap_or(otherwise));
            Ok(ConvolveTranspose2d {
                padding: padding(o, name, around_signal)?,
                stride: (1, whole("stride", 1)?),
                dilation: (1, whole("dilation", 1)?),
                groups: whole("groups", 1)?,
                output_padding: (0, whole("output_padding", 0)?),
            }.into())
        },
    }
    resize2d {
        operands: (x),
        params: "size: [number, number], mode?: \"nearest\" | \"bilinear\", \
                 coordinates?: \"half_pixel\" | \"align_corners\" | \"asymmetric\"",
        required: true, engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let size = required(o.pair("resize2d", "size")?, "resize2d", "size")?;
            let usual = match o.text("mode").as_deref() {
                None | Some("nearest") => Resize2d::nearest(size),
                Some("bilinear") => Resize2d::bilinear(size),
                Some(other) => return Err(parameter("resize2d", format!("mode {other:?} is neither nearest nor bilinear"))),
            };
            let coordinates = match o.text("coordinates").as_deref() {
                None => usual.coordinates,
                Some("half_pixel") => ResizeCoordinates::HalfPixel,
                Some("align_corners") => ResizeCoordinates::AlignCorners,
                Some("asymmetric") => ResizeCoordinates::Asymmetric,
                Some(other) => {
                    let reason = format!("coordinates {other:?} are neither half_pixel nor align_corners nor asymmetric");
                    return Err(parameter("resize2d", reason));
                }
            };
            Ok(Resize2d { coordinates, ..usual }.into())
        },
    }
    max_pool2d {
        operands: (x), params: "window: [number, number], stride?: [number, number]", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let window = required(o.pair("max_pool2d", "window")?, "max_pool2d", "window")?;
            Ok(Pool2d::max(window, o.pair("max_pool2d", "stride")?.unwrap_or(window)).into())
        },
    }
    avg_pool2d {
        operands: (x), params: "window: [number, number], stride?: [number, number]", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let window = required(o.pair("avg_pool2d", "window")?, "avg_pool2d", "window")?;
            Ok(Pool2d::average(window, o.pair("avg_pool2d", "stride")?.unwrap_or(window)).into())
        },
    }
    attention {
        operands: (q, k, v), beside: (mask, positions, lengths, sinks, slopes),
        params: "causal?: boolean, scale?: number, window?: number, soft_cap?: number",
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let number = |name: &str| Ok(o.number("attention", name)?.map(Into::into));
            let window = o.whole("attention", "window")?.map(|window| u32::try_from(window).unwrap_or(u32::MAX));
            let there = |name: &str| o.flag(name).then_some(());
            let operands = AttentionOperands {
                mask: there("mask"),
                positions: there("positions"),
                lengths: there("lengths"),
                sinks: there("sinks"),
                slopes: there("slopes"),
            };
            let (scale, soft_cap) = (number("scale")?, number("soft_cap")?);
            Ok(Attention { causal: o.flag("causal"), scale, window, soft_cap, operands }.into())
        },
    }
    rope {
        operands: (x), params: "theta?: number, position?: number, interleaved?: boolean, rotated?: number, magnitude?: number",
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let usual = Rope::default();
            let theta = o.number("rope", "theta")?.map_or(usual.theta, Into::into);
            let style = if o.flag("interleaved") { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
            let position = o.whole("rope", "position")?.unwrap_or(0);
            let magnitude = o.number("rope", "magnitude")?.map_or(usual.magnitude, Into::into);
            Ok(Rope { theta, style, position, rotated: o.whole("rope", "rotated")?, magnitude }.into())
        },
    }
    quantize {
        operands: (x), params: "format: QuantFormat", required: true, engine: "Uint8Array", batch: "BatchTensor",
        make: |o| Ok(Quantize { format: named_format(o, "quantize")? }.into()),
    }
    dequantize {
        operands: (blocks), params: "format: QuantFormat", required: true, engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Dequantize { format: named_format(o, "dequantize")? }.into()),
    }
    quant_matmul {
        operands: (x, w), params: "format: QuantFormat", required: true, engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(QuantMatmul { format: named_format(o, "quant_matmul")? }.into()),
    }
    matmul_by_expert {
        operands: (x, weights, indices), params: "", engine: "Float32Array", batch: "BatchTensor",
        make: |_| Ok(MatmulByExpert.into()),
    }
    compare {
        operands: (a, b), params: "comparison: \"eq\" | \"ne\" | \"lt\" | \"le\" | \"gt\" | \"ge\"", required: true,
        engine: "Uint8Array", batch: "BatchTensor",
        make: |o| {
            let name = o.text("comparison").unwrap_or_default();
            let found = Comparison::ALL.iter().copied().find(|comparison| comparison.name() == name);
            let comparison = found.ok_or_else(|| parameter("compare", "comparison is eq, ne, lt, le, gt or ge"))?;
            Ok(Compare { comparison }.into())
        },
    }
    select {
        operands: (condition, a, b), params: "", engine: "Elements", batch: "BatchTensor",
        make: |_| Ok(Select.into()),
    }
    arithmetic {
        operands: (a, b), params: "function: \"add\" | \"sub\" | \"mul\" | \"min\" | \"max\"", required: true,
        engine: "Elements", batch: "BatchTensor",
        make: |o| {
            let name = o.text("function").unwrap_or_default();
            let found = IntegerFunction::ALL.iter().copied().find(|function| function.name() == name);
            let function = found.ok_or_else(|| parameter("arithmetic", "function is add, sub, mul, min or max"))?;
            Ok(Arithmetic { function }.into())
        },
    }
    sort {
        operands: (x), params: "axis: number, descending?: boolean", required: true,
        engine: "[Elements, Uint32Array]", batch: "[BatchTensor, BatchTensor]",
        make: |o| {
            let axis = required(o.whole("sort", "axis")?, "sort", "axis")?;
            Ok(Sort { axis, descending: o.flag("descending") }.into())
        },
    }
    cumsum {
        operands: (x), params: "axis: number", required: true, engine: "Elements", batch: "BatchTensor",
        make: |o| Ok(Cumsum { axis: required(o.whole("cumsum", "axis")?, "cumsum", "axis")? }.into()),
    }
    cast {
        operands: (x), params: "to: DType", required: true, engine: "Elements", batch: "BatchTensor",
        make: |o| Ok(Cast { to: dtype(&o.text("to").unwrap_or_default())? }.into()),
    }
    permute {
        operands: (x), params: "axes: number[]", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Permute::new(&required(o.list("axes")?, "permute", "axes")?)?.into()),
    }
    slice {
        operands: (x), params: "axis: number, start?: number, end?: number, step?: number", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let axis = required(o.whole("slice", "axis")?, "slice", "axis")?;
            let range = o.whole("slice", "start")?.unwrap_or(0)..o.whole("slice", "end")?.unwrap_or(usize::MAX);
            Ok(Slice::along(axis, range, o.whole("slice", "step")?.unwrap_or(1))?.into())
        },
    }
    broadcast_to {
        operands: (x), params: "shape: number[]", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(BroadcastTo::new(&required(o.list("shape")?, "broadcast_to", "shape")?)?.into()),
    }
    pad {
        operands: (x), params: "widths: [number, number][], value?: number", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| {
            let widths = required(o.pairs("pad", "widths")?, "pad", "widths")?;
            Ok(Pad::new(&widths, o.number("pad", "value")?.unwrap_or(0.0))?.into())
        },
    }
    concat {
        operands: (a, b), params: "axis: number", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Concat { axis: required(o.whole("concat", "axis")?, "concat", "axis")? }.into()),
    }
    reshape {
        operands: (x), params: "shape: number[]", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Reshape::to(&required(o.list("shape")?, "reshape", "shape")?)?.into()),
    }
    squeeze {
        operands: (x), params: "axis: number", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Reshape::Squeeze(required(o.whole("squeeze", "axis")?, "squeeze", "axis")?).into()),
    }
    unsqueeze {
        operands: (x), params: "axis: number", required: true,
        engine: "Float32Array", batch: "BatchTensor",
        make: |o| Ok(Reshape::Unsqueeze(required(o.whole("unsqueeze", "axis")?, "unsqueeze", "axis")?).into()),
    }
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
const IMPORTS: &'static str =
    "import type { BatchTensor, DType, Elements, QuantFormat, TensorLike } from \"../kiln.js\";\n";

/// Zeros on each side of an image, or how they are written.
fn around_image(sides: &[usize]) -> std::result::Result<Padding, &'static str> {
    match *sides {
        [top, bottom, left, right] => Ok(Padding::Sides { top, bottom, left, right }),
        _ => Err("[top, bottom, left, right]"),
    }
}

/// Zeros on each side of a signal, or how they are written.
fn around_signal(sides: &[usize]) -> std::result::Result<Padding, &'static str> {
    match *sides {
        [left, right] => Ok(Padding::Sides { top: 0, bottom: 0, left, right }),
        _ => Err("[before, after]"),
    }
}

/// The padding of a convolution: a name, or the zeros of each side, which `sides` parses or describes.
fn padding(
    options: &Options<'_>,
    op: &'static str,
    sides: impl Fn(&[usize]) -> std::result::Result<Padding, &'static str>,
) -> Result<Padding> {
    let wrong = |found: String| {
        let sides = sides(&[]).err().unwrap_or_default();
        parameter(op, format!("padding {found} is neither valid nor same nor {sides}"))
    };
    match options.text("padding").as_deref() {
        Some("valid") => Ok(Padding::Valid),
        Some("same") => Ok(Padding::Same),
        Some(other) => Err(wrong(format!("{other:?}"))),
        None => match options.list("padding")? {
            Some(given) => sides(&given).map_err(|_| wrong(format!("{given:?}"))),
            None => Ok(Padding::Valid),
        },
    }
}

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
        None => Err(parameter("operation", format!("{name:?} is not an operation"))),
    }
}

/// Every operation: `{ name, operands, beside, params }`, and `reduces` for those that give one number of a whole tensor.
#[wasm_bindgen]
pub fn operations() -> Array {
    let entry = |name: &str, operands: usize, beside: &[&str], params: &str, reduces: bool| -> JsValue {
        let object = Object::new();
        set(&object, "name", name);
        set(&object, "operands", operands as f64);
        set(&object, "beside", beside.iter().map(|&name| JsValue::from(name)).collect::<Array>());
        set(&object, "params", params);
        set(&object, "reduces", reduces);
        object.into()
    };
    let elementwise = ElementwiseKind::ALL.iter().map(|kind| {
        let params: Vec<String> = kind.param_names().iter().map(|name| format!("{name}: number")).collect();
        entry(kind.name(), kind.arity(), &[], &params.join(", "), false)
    });
    let reductions = REDUCTIONS.iter().map(|(name, _)| entry(name, 1, &[], "axis?: number", true));
    let others = OTHERS.iter().map(|row| entry(row.name, row.operands, row.beside, row.params, false));
    elementwise.chain(reductions).chain(others).collect()
}
