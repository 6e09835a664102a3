use std::sync::OnceLock;

use kiln_core::op::{Op, Outputs};
use kiln_core::{Buffer, Data, DataMut, Error, Operand, Result, TensorType, for_operation};

use crate::{Isa, elementwise, threads};

/// An instruction set and a number of threads: everything is computed through one of these.
///
/// It is two words, cheap to copy, and holds no memory. [`Simd::new`] takes the best that the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Simd {
    isa: Isa,
    threads: usize,
}

impl Simd {
    /// The best instruction set of this machine, or the one that the environment variable `KILN_ISA` names, and all
    /// of its threads.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when `KILN_ISA` names an instruction set that is unknown or that the machine lacks.
    pub fn new() -> Result<Self> {
        static BEST: OnceLock<Result<Isa>> = OnceLock::new();
        let isa = BEST
            .get_or_init(|| match std::env::var("KILN_ISA") {
                Err(std::env::VarError::NotPresent) => Ok(Isa::best()),
                Err(e) => Err(Error::Unavailable { what: "KILN_ISA".into(), reason: e.to_string() }),
                Ok(name) => Isa::from_name(&name),
            })
            .clone()?;
        Self::with_isa(isa)
    }

    /// A chosen instruction set, and all threads of the machine.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the machine lacks it.
    pub fn with_isa(isa: Isa) -> Result<Self> {
        if !isa.is_available() {
            return Err(Error::Unavailable {
                what: format!("instruction set {}", isa.name()),
                reason: format!("this machine has {}", Isa::available_names()),
            });
        }
        Ok(Self { isa, threads: threads::available() })
    }

    /// At most this many threads (at least one). Fewer run where more would not pay; results do not depend on it.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The greatest number of threads that it uses.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs any operation into slices of the caller; allocates nothing but what scratch memory still has to grow.
    ///
    /// # Errors
    /// What the shape rule says of the inputs; [`Error::Length`] and [`Error::Type`] for outputs that do not fit;
    /// errors of the data themselves, such as an index out of its table.
    pub fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        if let Op::Elementwise(op) = op
            && elementwise::run_alike(self, op, inputs, outputs)
        {
            return Ok(());
        }
        let expected = infer(op, inputs)?;
        if expected.len() != outputs.len() {
            return Err(Error::Arity { op: op.name(), expected: expected.len(), found: outputs.len() });
        }
        for (index, (ty, out)) in expected.iter().zip(outputs.iter()).enumerate() {
            if ty.dtype != out.dtype() {
                return Err(Error::Type { op: op.name(), index, expected: ty.dtype, found: out.dtype() });
            }
            if ty.bytes() != out.bytes() {
                let unit = if let DataMut::Blocks(..) = out { 1 } else { 4 };
                return Err(Error::Length {
                    op: op.name(),
                    operand: "output",
                    expected: ty.bytes() / unit,
                    found: out.bytes() / unit,
                });
            }
        }
        for_operation!(op, op => op.execute(self, inputs, outputs))
    }

    /// Runs any operation and returns its results.
    ///
    /// # Errors
    /// As [`Simd::run_into`].
    pub fn run(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<Buffer>> {
        let mut buffers: Vec<Buffer> = infer(op, inputs)?.iter().map(Buffer::try_zeros).collect::<Result<_>>()?;
        let mut outputs: Vec<DataMut<'_>> = buffers.iter_mut().map(Buffer::as_mut).collect();
        self.run_into(op, inputs, &mut outputs)?;
        Ok(buffers)
    }

    /// Runs an operation with one f32 result into a slice.
    pub(crate) fn f32_into(&self, op: impl Into<Op>, inputs: &[Operand<'_>], out: &mut [f32]) -> Result<()> {
        self.run_into(&op.into(), inputs, &mut [DataMut::F32(out)])
    }

    /// Runs an operation with one f32 result.
    pub(crate) fn f32_vec(&self, op: impl Into<Op>, inputs: &[Operand<'_>]) -> Result<Vec<f32>> {
        let op = op.into();
        let mut out = kiln_core::zeros(infer(&op, inputs)?[0].shape.numel())?;
        self.f32_into(op, inputs, &mut out)?;
        Ok(out)
    }
}

fn infer(op: &Op, inputs: &[Operand<'_>]) -> Result<Outputs> {
    // No operation takes more than four operands; a longer list is refused by its arity below.
    let mut types = [TensorType::f32(kiln_core::Shape::SCALAR); 5];
    let n = inputs.len().min(types.len());
    for (ty, input) in types.iter_mut().zip(inputs) {
        *ty = input.ty();
    }
    op.infer(&types[..n])
}

/// The kernel of an operation: what this backend adds to its definition.
pub(crate) trait Execute {
    /// Computes the outputs. Shapes and types have been checked.
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()>;
}

impl Isa {
    /// The best that this machine has.
    pub fn best() -> Self {
        Self::ALL.iter().copied().rev().find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
    }

    /// Every instruction set that this machine has, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|isa| isa.is_available())
    }

    fn available_names() -> String {
        Self::available().map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// The instruction set of a name, when this machine has it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the names that would do.
    pub fn from_name(name: &str) -> Result<Self> {
        let known = Self::ALL.iter().copied().find(|isa| isa.name() == name);
        known.filter(|isa| isa.is_available()).ok_or_else(|| Error::Unavailable {
            what: format!("instruction set {name:?} (KILN_ISA)"),
            reason: format!(
                "{}; this machine has {}",
                if known.is_some() { "the machine lacks it" } else { "no such name" },
                Self::available_names()
            ),
        })
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The f32 elements of an input that the shape rule has checked to be f32.
pub(crate) fn f32s<'a>(inputs: &[Operand<'a>], i: usize) -> &'a [f32] {
    let data: Data<'a> = inputs[i].data();
    data.f32()
}
