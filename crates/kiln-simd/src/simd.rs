use std::sync::OnceLock;

use kiln_core::op::{Elementwise, Matmul, Op, Operation, Reduction, check};
use kiln_core::{Data, DataMut, Error, Operand, Operations, Result, for_operation};

use crate::{Isa, elementwise, gemm, reduce, threads};

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
}

impl Operations for Simd {
    /// As [`Operations::run_into`]; allocates nothing but what scratch memory still has to grow.
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        if let Op::Elementwise(op) = op
            && elementwise::run_alike(self, op, inputs, outputs)
        {
            return Ok(());
        }
        for_operation!(op, op => checked(self, op, inputs, outputs))
    }

    fn quick_elementwise(&self, op: Elementwise, operands: &[&[f32]], out: &mut [f32]) -> bool {
        elementwise::run_slices(self, &op, operands, out)
    }

    fn quick_reduce(&self, reduction: Reduction, x: &[f32]) -> Option<f32> {
        reduce::whole(self, reduction, x)
    }

    fn quick_reduce_index(&self, reduction: Reduction, x: &[f32]) -> Option<u32> {
        reduce::whole_index(self, reduction, x)
    }

    fn quick_dot(&self, a: &[f32], b: &[f32]) -> Option<f32> {
        (a.len() == b.len()).then(|| reduce::dot(self, a, b))
    }

    fn quick_matmul(&self, op: Matmul, a: &[f32], b: &[f32], extents: (usize, usize, usize), out: &mut [f32]) -> bool {
        gemm::run_slices(self, op, a, b, extents, out)
    }
}

fn checked<O: Operation + Execute>(
    simd: &Simd,
    op: &O,
    inputs: &[Operand<'_>],
    outputs: &mut [DataMut<'_>],
) -> Result<()> {
    check(op, inputs, outputs)?;
    op.execute(simd, inputs, outputs)
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
