//! The CPU handle [`Simd`], and the trait that kernels of operations implement.

use std::sync::OnceLock;

use kiln_ir::{Data, DataMut, Error, Operand, Precision, Result};

use crate::{Isa, threads};

/// An instruction set, a number of threads, and the precision of products: everything is computed through one of these.
///
/// It is two words, cheap to copy, and holds no memory. [`Simd::new`] takes the best that the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Simd {
    isa: Isa,
    threads: usize,
    precision: Precision,
}

impl Simd {
    /// The best instruction set of this machine, or the one that the environment variable `KILN_ISA` names, and all
    /// threads of the machine. An empty variable counts as unset.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when `KILN_ISA` names an instruction set that is unknown or that the machine lacks.
    pub fn new() -> Result<Self> {
        static BEST: OnceLock<Result<Isa>> = OnceLock::new();
        let isa = BEST
            .get_or_init(|| match Isa::named() {
                None => Ok(Isa::best()),
                Some(name) => Isa::from_name(&name.to_string_lossy()),
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
        Ok(Self { isa, threads: threads::available(), precision: Precision::Contract })
    }

    /// Limits the number of threads, at least one. Fewer run if more would not be faster, and one if the build has no threads;
    /// results do not depend on the limit.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: if threads::THERE { threads.max(1) } else { 1 }, ..self }
    }

    /// Sets the precision with which products may read their operands. [`Precision::Int8`] makes products with quantised weights
    /// faster, except in WebAssembly; with any other one results keep the contract.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The precision with which products may read their operands.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The maximum number of threads.
    pub fn threads(&self) -> usize {
        // A constant in builds without threads, so that no code for several is compiled.
        if threads::THERE { self.threads } else { 1 }
    }
}

/// The kernel of an operation: the part that this backend adds to its definition.
pub(crate) trait Execute {
    /// Whether it reads every floating-point type as stored. Other operations receive f16 and bf16 operands as f32,
    /// unless the operation takes every type as stored.
    const READS_STORED: bool = false;

    /// Computes the outputs. Shapes and types have been checked. The output of an operation that updates
    /// ([`UPDATES`](kiln_ir::op::Operation::UPDATES)) already contains the elements of its first operand, and only the
    /// type of that operand is read.
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()>;
}

/// The elements of an input that the shape rule has checked to be f32.
pub(crate) fn f32s<'a>(inputs: &[Operand<'a>], i: usize) -> &'a [f32] {
    let data: Data<'a> = inputs[i].data();
    data.f32()
}
