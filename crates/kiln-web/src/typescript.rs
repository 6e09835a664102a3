//! The TypeScript types of operations, element types and formats. The Rust compiler generates them from the tables of kiln-ir.
#![allow(dead_code, reason = "the compiler does not count custom sections as uses")]

use kiln_ir::named::{Field, Form};
use kiln_ir::signatures::{self, Elements, Signature};
use kiln_ir::{DType, QuantFormat};
use wasm_bindgen::prelude::wasm_bindgen;

/// Text that the compiler can put together. It has the first `N` bytes, and the length of the whole.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    const fn and(mut self, text: &str) -> Self {
        let mut i = 0;
        while i < text.len() {
            if self.len < N {
                self.bytes[self.len] = text.as_bytes()[i];
            }
            (self.len, i) = (self.len + 1, i + 1);
        }
        self
    }

    pub(crate) const fn as_str(&self) -> &str {
        match str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            Err(_) => "",
        }
    }
}

/// The number of bytes of the longest parameters.
pub(crate) const LONGEST: usize = {
    let (mut longest, mut i) = (0, 0);
    while i < signatures::ALL.len() {
        let len = members(Text::<0>::EMPTY, signatures::ALL[i].params, None).len;
        if len > longest {
            longest = len;
        }
        i += 1;
    }
    longest
};

/// The parameters of an operation, without operands.
pub(crate) fn params(of: &Signature) -> Text<LONGEST> {
    members(Text::EMPTY, of.params, None)
}

/// Parameters as members of an object. Operands are among them if their type is given.
const fn members<const N: usize>(mut text: Text<N>, fields: &[Field], operand: Option<&str>) -> Text<N> {
    let (before, mut i) = (text.len, 0);
    while i < fields.len() {
        let Field { name, form, optional } = fields[i];
        if text.len > before && !matches!((form, operand), (Form::Operands(_), None)) {
            text = text.and(", ");
        }
        text = match (form, operand) {
            (Form::Fields(fields), _) => members(text, fields, operand),
            (Form::Operands(_), None) => text,
            (Form::Operands(names), Some(ty)) => list(text, names, ", ", ["", "?: ", ty]),
            _ => type_of(text.and(name).and(if optional { "?: " } else { ": " }), form),
        };
        i += 1;
    }
    text
}

/// The type of a value.
const fn type_of<const N: usize>(text: Text<N>, form: Form) -> Text<N> {
    match form {
        Form::Number => text.and("number"),
        Form::Flag => text.and("boolean"),
        Form::Pair => text.and("[number, number]"),
        Form::Numbers => text.and("number[]"),
        Form::Pairs => text.and("[number, number][]"),
        Form::Words(words) => list(text, words, " | ", ["\"", "\"", ""]),
        Form::Sides(sides) => list(text.and("\"valid\" | \"same\" | ["), sides, ", ", ["", ": ", "number"]).and("]"),
        Form::Format => text.and("QuantFormat"),
        Form::DType => text.and("DType"),
        Form::Fields(_) | Form::Operands(_) => text,
    }
}

/// Words with separators, each between the first and the others of `around`.
const fn list<const N: usize>(mut text: Text<N>, words: &[&str], separator: &str, around: [&str; 3]) -> Text<N> {
    let mut i = 0;
    while i < words.len() {
        text = text.and(if i > 0 { separator } else { "" }).and(around[0]).and(words[i]).and(around[1]).and(around[2]);
        i += 1;
    }
    text
}

/// The names of element types, without blocks.
const DTYPES: [&str; DType::ALL.len()] = {
    let (mut names, mut i) = ([""; DType::ALL.len()], 0);
    while i < names.len() {
        names[i] = DType::ALL[i].name();
        i += 1;
    }
    names
};

/// The names of quantised formats.
const FORMATS: [&str; QuantFormat::ALL.len()] = {
    let (mut names, mut i) = ([""; QuantFormat::ALL.len()], 0);
    while i < names.len() {
        names[i] = QuantFormat::ALL[i].name();
        i += 1;
    }
    names
};

/// The types of names.
const fn names<const N: usize>() -> Text<N> {
    let text = Text::EMPTY.and("/** An element type. */\nexport type DType = ");
    let text = list(text, &DTYPES, " | ", ["\"", "\"", ""]);
    let text =
        text.and(";\n/** A quantised block format, by the name that GGUF tools use. */\nexport type QuantFormat = ");
    list(text, &FORMATS, " | ", ["\"", "\"", ""]).and(";\n")
}

/// The types of operands and results.
#[derive(Clone, Copy)]
struct Types {
    interface: &'static str,
    operand: &'static str,
    /// Before and after the results.
    around: [&'static str; 2],
    /// By [`Elements`].
    results: [&'static str; 5],
    /// Of methods whose result has the type of the first operand: the parameter of their types, and the type of that operand.
    generic: [&'static str; 2],
    /// Whether a reduction without an axis returns a number.
    numbers: bool,
}

const OF_ENGINE: Types = Types {
    interface: "EngineOperations",
    operand: "TensorLike",
    around: ["Promise<", ">"],
    results: ["Float32Array", "Uint32Array", "Uint8Array", "T", "Elements"],
    generic: ["<T extends Elements>", "TensorLike<T>"],
    numbers: true,
};

const OF_BATCHES: Types = Types {
    interface: "BatchOperations",
    operand: "BatchTensor",
    around: ["", ""],
    results: ["BatchTensor"; 5],
    generic: ["", "BatchTensor"],
    numbers: false,
};

/// The methods of all operations.
const fn interface<const N: usize>(types: Types) -> Text<N> {
    let mut text = Text::EMPTY.and("export interface ").and(types.interface).and(" {\n");
    let mut i = 0;
    while i < signatures::ALL.len() {
        text = method(text, &signatures::ALL[i], types);
        i += 1;
    }
    text.and("}\n")
}

const fn method<const N: usize>(mut text: Text<N>, signature: &Signature, types: Types) -> Text<N> {
    let [before, after] = types.around;
    if !signature.formula.is_empty() {
        text = text.and("  /** ").and(signature.formula).and(" */\n");
    }
    let mut params = signature.params;
    if types.numbers && signature.reduces() {
        text = text.and("  ").and(signature.name).and("(x: ").and(types.operand).and("): Promise<number>;\n");
        params = &[Field { name: "axis", form: Form::Number, optional: false }];
    }
    let [parameter, first] = if has_type_of_first(signature) { types.generic } else { ["", types.operand] };
    text = text.and("  ").and(signature.name).and(parameter).and("(");
    if signature.variadic {
        text = text.and("...given: [...").and(first).and("[], { ");
        text = members(text, params, Some(types.operand)).and(" }]");
    } else {
        let mut i = 0;
        while i < signature.operands.len() {
            text = text.and(signature.operands[i]).and(": ").and(if i == 0 { first } else { types.operand }).and(", ");
            i += 1;
        }
        text = text.and(if has_required(params) { "params: { " } else { "params?: { " });
        text = members(text, params, Some(types.operand)).and(if params.is_empty() { "}" } else { " }" });
    }
    text = text.and("): ").and(before);
    let results = signature.results;
    text = text.and(if results.len() > 1 { "[" } else { "" });
    let mut i = 0;
    while i < results.len() {
        text = text.and(if i > 0 { ", " } else { "" }).and(match results[i] {
            Elements::F32 => types.results[0],
            Elements::U32 => types.results[1],
            Elements::Bytes => types.results[2],
            Elements::First => types.results[3],
            Elements::Any => types.results[4],
        });
        i += 1;
    }
    text.and(if results.len() > 1 { "]" } else { "" }).and(after).and(";\n")
}

/// Whether a result has the type of the first operand.
const fn has_type_of_first(signature: &Signature) -> bool {
    let (results, mut i) = (signature.results, 0);
    while i < results.len() {
        if matches!(results[i], Elements::First) {
            return true;
        }
        i += 1;
    }
    false
}

/// Whether a parameter must not be left out.
const fn has_required(fields: &[Field]) -> bool {
    let mut i = 0;
    while i < fields.len() {
        let required = match fields[i].form {
            Form::Fields(fields) => has_required(fields),
            Form::Operands(_) => false,
            _ => !fields[i].optional,
        };
        if required {
            return true;
        }
        i += 1;
    }
    false
}

#[wasm_bindgen(typescript_custom_section)]
const OPERATIONS_OF_ENGINE: &'static str = interface::<{ interface::<0>(OF_ENGINE).len }>(OF_ENGINE).as_str();

#[wasm_bindgen(typescript_custom_section)]
const OPERATIONS_OF_BATCHES: &'static str = interface::<{ interface::<0>(OF_BATCHES).len }>(OF_BATCHES).as_str();

#[wasm_bindgen(typescript_custom_section)]
const NAMES: &'static str = names::<{ names::<0>().len }>().as_str();

#[wasm_bindgen(typescript_custom_section)]
const IMPORTS: &'static str = "import type { BatchTensor, Elements, TensorLike } from \"../kiln.js\";\n";
