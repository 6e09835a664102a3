//! The operations as data: names, operands, parameters and results, for languages with named parameters and for pages.

use std::ops::Range;

use crate::named::{self, Field, Form, Named, Parameter, fields, with_parameters};
use crate::op::{
    Arithmetic, Attention, BatchNorm, BroadcastTo, Cast, Compare, Comparison, Concat, Convolve2d, ConvolveTranspose2d,
    Cumsum, Dequantize, Dot, ElementwiseKind, Ends, Gather, GroupNorm, IndexAdd, IntegerFunction, LayerNorm,
    LogSoftmax, Matmul, MatmulByExpert, Matvec, Op, Pad, Padding, Permute, Pool2d, QuantMatmul, Quantize, Reduce,
    Reduction, Reshape, Resize2d, RmsNorm, Rope, Scatter, Select, Slice, Softmax, Sort, TopK, Transpose, WriteRows,
};
use crate::{DType, Error, QuantFormat, Result, elementwise_table, reduction_table};

/// A row of README's table of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Element-wise functions.
    Elementwise,
    /// Comparisons and selection.
    Comparisons,
    /// Reductions.
    Reductions,
    /// Operations on rows, and on their indices.
    Rows,
    /// Products of matrices.
    Matrices,
    /// Operations that move elements.
    Shapes,
    /// Operations on images and signals.
    Images,
    /// Attention and positions.
    Attention,
    /// Quantised weights.
    Quantised,
    /// Element types other than f32.
    Types,
}

impl Group {
    /// Every group, in the order of the page.
    pub const ALL: &[Self] = &[
        Self::Elementwise,
        Self::Comparisons,
        Self::Reductions,
        Self::Rows,
        Self::Matrices,
        Self::Shapes,
        Self::Images,
        Self::Attention,
        Self::Quantised,
        Self::Types,
    ];

    /// Its title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Elementwise => "element-wise",
            Self::Comparisons => "comparisons",
            Self::Reductions => "reductions, of all or along an axis",
            Self::Rows => "rows",
            Self::Matrices => "matrices",
            Self::Shapes => "shapes",
            Self::Images => "images and signals",
            Self::Attention => "attention",
            Self::Quantised => "quantised weights",
            Self::Types => "element types",
        }
    }
}

/// The element type of a result, as far as the operation alone decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    /// f32.
    F32,
    /// u32: indices.
    U32,
    /// Booleans, or the bytes of quantised blocks.
    Bytes,
    /// The type of the first operand.
    First,
    /// Another type, which an operand or a parameter determines.
    Any,
}

/// The constructor of an operation from its parameters.
#[derive(Debug, Clone, Copy)]
enum Make {
    Elementwise(ElementwiseKind),
    Reduction(Reduction),
    Other(fn(&dyn Named) -> Result<Op>),
}

/// An operation with its operands and its named parameters.
#[derive(Debug, Clone, Copy)]
pub struct Signature {
    /// The name.
    pub name: &'static str,
    /// The row of README's table.
    pub group: Group,
    /// The note that README adds to the name; may be empty.
    pub note: &'static str,
    /// The definition of an element-wise function; empty for others.
    pub formula: &'static str,
    /// The names of the operands; optional ones are among the parameters.
    pub operands: &'static [&'static str],
    /// Whether it takes any number of operands, instead of only the one that is named.
    pub variadic: bool,
    /// The parameters.
    pub params: &'static [Field],
    /// The elements of each result.
    pub results: &'static [Elements],
    make: Make,
}

impl Signature {
    /// The operation with these parameters.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a parameter that is missing or has another form; errors of the operation's own checks.
    pub fn operation(&self, from: &dyn Named) -> Result<Op> {
        match self.make {
            Make::Elementwise(kind) => {
                let mut values = [0.0; 2];
                for (value, name) in values.iter_mut().zip(kind.param_names()) {
                    *value = f32::read(from, self.name, name)?.ok_or_else(|| named::missing(self.name, name))?;
                }
                Ok(kind.with_params(values).into())
            }
            Make::Reduction(reduction) => Ok(match usize::read(from, self.name, "axis")? {
                Some(axis) => Reduce::along(reduction, axis).into(),
                None => Reduce::all(reduction).into(),
            }),
            Make::Other(make) => make(from),
        }
    }

    /// Whether it reduces a whole tensor to one element, unless it has an `axis`.
    pub const fn reduces(&self) -> bool {
        matches!(self.make, Make::Reduction(_))
    }

    /// The names of the optional operands, in their order.
    pub const fn optional_operands(&self) -> &'static [&'static str] {
        let mut i = 0;
        while i < self.params.len() {
            if let Form::Fields(fields) = self.params[i].form {
                let mut j = 0;
                while j < fields.len() {
                    if let Form::Operands(names) = fields[j].form {
                        return names;
                    }
                    j += 1;
                }
            }
            i += 1;
        }
        &[]
    }
}

macro_rules! signatures_of_elementwise {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        bound: $bound:ident $(($units:literal))?, formula: $formula:literal, $($ignored:tt)*
    })*) => {
        const ELEMENTWISE: &[Signature] = &[$(Signature {
            name: stringify!($name),
            group: Group::Elementwise,
            note: "",
            formula: $formula,
            operands: &[$(stringify!($x)),*],
            variadic: false,
            params: fields!($($p: f32),*),
            results: &[Elements::F32],
            make: Make::Elementwise(ElementwiseKind::$variant),
        }),*];
    };
}
elementwise_table!(signatures_of_elementwise);

/// The elements of a reduction.
macro_rules! elements {
    (f32) => {
        Elements::F32
    };
    (u32) => {
        Elements::U32
    };
}

macro_rules! signatures_of_reductions {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, whole: $whole:ident, axis: $axis:ident, axis_into: $axis_into:ident, result: $result:ident,
        $($ignored:tt)*
    })*) => {
        const REDUCTIONS: &[Signature] = &[$(Signature {
            name: stringify!($whole),
            group: Group::Reductions,
            note: "",
            formula: "",
            operands: &["x"],
            variadic: false,
            params: fields!(axis: usize = 0),
            results: &[elements!($result)],
            make: Make::Reduction(Reduction::$variant),
        }),*];
    };
}
reduction_table!(signatures_of_reductions);

/// The name of a row: that of the method, or another one.
macro_rules! name {
    ($method:ident) => {
        stringify!($method)
    };
    ($method:ident $name:ident) => {
        stringify!($name)
    };
}

/// A row of the table, or `None` if a parameter has no form in languages with named parameters.
macro_rules! signature {
    ($method:ident { group: $group:ident, named: _, $($ignored:tt)* }) => {
        None
    };
    ($method:ident {
        group: $group:ident, $(note: $note:literal,)? $(named: $name:ident,)? tensors: [$list:ident], $($row:tt)*
    }) => {
        signature!(true $method { $group, ($($note)?), ($($name)?), ($list), $($row)* })
    };
    ($method:ident {
        group: $group:ident, $(note: $note:literal,)? $(named: $name:ident,)? tensors: ($($x:ident),*), $($row:tt)*
    }) => {
        signature!(false $method { $group, ($($note)?), ($($name)?), ($($x),*), $($row)* })
    };
    ($variadic:literal $method:ident {
        $group:ident, ($($note:literal)?), ($($name:ident)?), ($($x:ident),*), params: $params:tt, op: $op:expr,
        results: ($($result:ident),*), $($ignored:tt)*
    }) => {
        Some(Signature {
            name: name!($method $($name)?),
            group: Group::$group,
            note: concat!($($note)?),
            formula: "",
            operands: &[$(stringify!($x)),*],
            variadic: $variadic,
            params: fields! $params,
            results: &[$(Elements::$result),*],
            make: Make::Other(|from| Ok(Op::from(with_parameters!(from, name!($method $($name)?), $params, $op)))),
        })
    };
}

macro_rules! signatures_of_operations {
    ($($(#[doc = $doc:literal])* $method:ident $row:tt)*) => {
        const OPERATIONS: &[Option<Signature>] = &[$(signature!($method $row)),*];
    };
}
operations!(signatures_of_operations);

const COUNT: usize = {
    let mut count = ELEMENTWISE.len() + REDUCTIONS.len();
    let mut i = 0;
    while i < OPERATIONS.len() {
        count += OPERATIONS[i].is_some() as usize;
        i += 1;
    }
    count
};

/// Every operation that has a form with named parameters.
pub static ALL: [Signature; COUNT] = {
    let mut all = [ELEMENTWISE[0]; COUNT];
    let (mut n, mut i) = (0, 0);
    while i < ELEMENTWISE.len() {
        all[n] = ELEMENTWISE[i];
        (n, i) = (n + 1, i + 1);
    }
    i = 0;
    while i < REDUCTIONS.len() {
        all[n] = REDUCTIONS[i];
        (n, i) = (n + 1, i + 1);
    }
    i = 0;
    while i < OPERATIONS.len() {
        if let Some(signature) = OPERATIONS[i] {
            all[n] = signature;
            n += 1;
        }
        i += 1;
    }
    all
};

/// The operation of this name.
///
/// # Errors
/// [`Error::Parameter`] if there is no such operation.
pub fn find(name: &str) -> Result<&'static Signature> {
    let unknown = || Error::Parameter { op: "operation", reason: format!("{name:?} is not an operation") };
    ALL.iter().find(|signature| signature.name == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named::Value;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    struct Options<'a>(&'a [(&'a str, Value)]);

    impl Named for Options<'_> {
        fn get(&self, name: &str) -> Option<Value> {
            self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        }
    }

    fn made(name: &str, options: &[(&str, Value)]) -> Result<Op> {
        find(name)?.operation(&Options(options))
    }

    fn numbers(numbers: &[f64]) -> Value {
        Value::List(numbers.iter().copied().map(Value::Number).collect())
    }

    fn reason(result: Result<Op>) -> String {
        match result {
            Err(Error::Parameter { reason, .. }) => reason,
            other => panic!("not the error of a parameter: {other:?}"),
        }
    }

    #[test]
    fn names_are_unique_and_operands_are_as_many_as_the_operation_takes() {
        for (i, signature) in ALL.iter().enumerate() {
            assert!(ALL[..i].iter().all(|other| other.name != signature.name), "{} twice", signature.name);
            assert!(!signature.operands.is_empty() && !signature.results.is_empty(), "{}", signature.name);
        }
        for kind in ElementwiseKind::ALL {
            assert_eq!(find(kind.name()).unwrap().operands.len(), kind.arity(), "{}", kind.name());
        }
    }

    #[test]
    fn parameters_may_be_left_out_if_they_are_optional() {
        fn optional(field: &Field) -> bool {
            match field.form {
                Form::Fields(fields) => fields.iter().all(optional),
                Form::Operands(_) => true,
                _ => field.optional,
            }
        }
        for signature in &ALL {
            let made = signature.operation(&Options(&[]));
            assert_eq!(made.is_ok(), signature.params.iter().all(optional), "{}: {made:?}", signature.name);
        }
        assert_eq!(made("convolve2d", &[]).unwrap(), Convolve2d::default().into());
        assert_eq!(made("rope", &[]).unwrap(), Rope::default().into());
        assert_eq!(made("attention", &[]).unwrap(), Attention::full().into());
        let size = ("size", numbers(&[4.0, 6.0]));
        assert_eq!(made("resize2d", std::slice::from_ref(&size)).unwrap(), Resize2d::nearest((4, 6)).into());
        let bilinear = made("resize2d", &[size, ("mode", Value::Text("bilinear".into()))]).unwrap();
        assert_eq!(bilinear, Resize2d::bilinear((4, 6)).into());
        assert_eq!(
            made("max_pool2d", &[("window", numbers(&[2.0, 3.0]))]).unwrap(),
            Pool2d::max((2, 3), (2, 3)).into()
        );
    }

    #[test]
    fn parameters_are_read_by_name() {
        let options = [("padding", numbers(&[2.0, 0.0])), ("dilation", Value::Number(3.0))];
        let wanted = Convolve2d {
            padding: Padding::Sides { top: 0, bottom: 0, left: 2, right: 0 },
            dilation: (1, 3),
            ..Convolve2d::default()
        };
        assert_eq!(made("convolve1d", &options).unwrap(), wanted.into());
        let options = [("axis", Value::Number(1.0)), ("end", Value::Number(3.0))];
        assert_eq!(made("slice", &options).unwrap(), Slice::along(1, 0..3, 1).unwrap().into());
        let options = [("widths", Value::List(vec![numbers(&[1.0, 2.0])])), ("value", Value::Number(0.5))];
        assert_eq!(made("pad", &options).unwrap(), Pad::new(&[(1, 2)], 0.5).unwrap().into());
        assert_eq!(
            made("clip", &[("hi", Value::Number(2.0)), ("lo", Value::Number(1.0))]).unwrap(),
            crate::op::Elementwise::clip(1.0, 2.0).into()
        );
        assert_eq!(made("sum", &[("axis", Value::Number(1.0))]).unwrap(), Reduce::along(Reduction::Sum, 1).into());
        let options = [("to", Value::Text("bf16".into()))];
        assert_eq!(made("cast", &options).unwrap(), Cast { to: DType::Bf16 }.into());
        let transposed = Matmul { transpose_a: false, transpose_b: true };
        assert_eq!(made("matmul", &[("transpose_b", Value::Flag(true))]).unwrap(), transposed.into());
    }

    #[test]
    fn optional_operands_are_there_whatever_they_are() {
        let names = find("attention").unwrap().optional_operands();
        assert_eq!(names, ["mask", "positions", "lengths", "sinks", "slopes"]);
        assert!(find("softmax").unwrap().optional_operands().is_empty());
        // A recording may number its tensors from zero on.
        let Op::Attention(attention) =
            made("attention", &[("mask", Value::Number(0.0)), ("sinks", Value::Other)]).unwrap()
        else {
            panic!("another operation");
        };
        assert!(attention.operands.mask.is_some() && attention.operands.sinks.is_some());
        assert!(attention.operands.lengths.is_none());
    }

    #[test]
    fn errors_say_what_is_expected() {
        assert_eq!(reason(made("frobnicate", &[])), "\"frobnicate\" is not an operation");
        assert_eq!(reason(made("top_k", &[])), "k is missing");
        assert_eq!(reason(made("scale", &[])), "factor is missing");
        let wrong = |name, option, value| reason(made(name, &[(option, value)]));
        assert_eq!(wrong("top_k", "k", Value::Number(1.5)), "expected a whole number for k, found 1.5");
        assert_eq!(wrong("permute", "axes", Value::Number(1.0)), "expected a list of whole numbers for axes, found 1");
        assert_eq!(
            wrong("convolve2d", "stride", numbers(&[1.0])),
            "expected two whole numbers for stride, found a list of 1"
        );
        let sides = "expected valid, same or [before, after] for padding, found \"all\"";
        assert_eq!(wrong("convolve1d", "padding", Value::Text("all".into())), sides);
        let words = "expected one of eq, ne, lt, le, gt, ge for comparison, found an object";
        assert_eq!(wrong("compare", "comparison", Value::Other), words);
    }
}
