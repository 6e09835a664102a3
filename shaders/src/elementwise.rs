//! Kernels for chains of element-wise functions, made on demand: one pass over memory for the whole chain.
//!
//! An invocation computes four neighbouring elements of every result, so that memory is read and written in vectors.
//! Buffers are whole vectors long: what lies beyond the last element is computed and never read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kiln_ir::DType;
use kiln_ir::graph::{Fetch, Source};
use kiln_ir::op::ElementwiseKind;

use crate::template::{self, Access, Binding, Capabilities, Head};

/// One function of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    /// The function.
    pub kind: ElementwiseKind,
    /// Its operands.
    pub operands: Vec<Source>,
}

/// An operand of a chain: its access pattern and its storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Read {
    /// The access pattern.
    pub fetch: Fetch,
    /// The type of its elements: one of floats.
    pub stored: DType,
}

/// A chain: the code of a kernel without its parameters.
///
/// The parameters of the kernel are the number of vectors to compute; for each input that is read again and again, in their
/// order, its length and its element for the first one that is computed (a multiple of four where it is
/// read in vectors); and those of the functions, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The operands.
    pub inputs: Vec<Read>,
    /// The functions, in the order of their computation.
    pub calls: Vec<Call>,
    /// The calls whose results are written.
    pub outputs: Vec<usize>,
}

impl Chain {
    /// Buffers and parameters of the kernel.
    pub fn head(&self) -> Head {
        let input = |(i, read): (usize, &Read)| {
            let item = if matches!(read.fetch, Fetch::Whole | Fetch::Vectors) { "Four" } else { "One" };
            Binding { name: format!("in{i}"), ty: format!("array<{item}_{}>", read.stored), access: Access::Read }
        };
        let output = |i| Binding { name: format!("out{i}"), ty: "array<vec4<f32>>".to_owned(), access: Access::Write };
        let inputs = self.inputs.iter().enumerate().map(input);
        let outputs = (0..self.outputs.len()).map(output);
        let mut params = vec![("n".to_owned(), "u32".to_owned())];
        for (i, _) in self.inputs.iter().enumerate().filter(|(_, read)| read.fetch.takes_length()) {
            params.extend(["length", "first"].map(|name| (format!("{name}{i}"), "u32".to_owned())));
        }
        for (i, call) in self.calls.iter().enumerate() {
            params.extend(call.kind.param_names().iter().map(|name| (format!("{name}{i}"), "f32".to_owned())));
        }
        // Invocations past the `n` vectors return at once. Results and inputs that are read whole have as many vectors,
        // because buffers are whole vectors long; in all other inputs the place is taken modulo the length. Functions
        // access no arrays.
        Head {
            bindings: inputs.chain(outputs).collect(),
            params,
            constants: Vec::new(),
            trusted: true,
            cooperative: false,
        }
    }

    /// The WGSL of the kernel.
    pub fn text(&self, capabilities: Capabilities) -> String {
        let mut text = template::declarations(&self.head(), capabilities);
        let mut constants: BTreeMap<String, u32> = crate::all_constants(&[], capabilities);
        template::expand(&self.source(), &mut constants, &crate::find, &mut text);
        text
    }

    fn source(&self) -> String {
        let mut text = String::from(source!(elementwise, elementwise));
        for (i, read) in self.inputs.iter().enumerate() {
            let stored = read.stored;
            let vector = |at: &str| format!("load_{stored}(in{i}[{at}])");
            let element = |at: &str| format!("element_{stored}(in{i}[({at}) / PER_{stored}], {at})");
            let _ = match read.fetch {
                Fetch::Whole => writeln!(text, "    let x{i} = {};", vector("i")),
                Fetch::Scalar => writeln!(text, "    let x{i} = V({});", element("0u")),
                Fetch::Vectors => {
                    writeln!(text, "    let x{i} = {};", vector(&format!("(i + p.first{i} / 4u) % (p.length{i} / 4u)")))
                }
                Fetch::Elements => {
                    let lanes = (0..4).map(|lane| element(&format!("(4u * i + {lane}u + p.first{i}) % p.length{i}")));
                    writeln!(text, "    let x{i} = V({});", lanes.collect::<Vec<_>>().join(", "))
                }
            };
        }
        for (i, call) in self.calls.iter().enumerate() {
            let operands = call.operands.iter().map(|source| match source {
                Source::Input(input) => format!("x{input}"),
                Source::Result(result) => format!("r{result}"),
            });
            let params = call.kind.param_names().iter().map(|name| format!("p.{name}{i}"));
            let arguments = operands.chain(params).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "    let r{i} = op_{}({arguments});", call.kind.name());
        }
        for (i, call) in self.outputs.iter().enumerate() {
            let _ = writeln!(text, "    out{i}[i] = r{call};");
        }
        text.push_str("}\n");
        text
    }
}
