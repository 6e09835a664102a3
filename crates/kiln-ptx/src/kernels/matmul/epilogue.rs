//! Epilogues of matrix products.

use kiln_ir::op::ElementwiseKind;
use kiln_ir::{Error, Result};

use crate::kernels::{functions, half::pack, math::F32};
use crate::{Bf16, Builder, F16, Global, Operand, Pointer, PtxType, Target, Value};

/// The epilogue `f(alpha AB + beta C + bias)`: the terms that are added, and f.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Epilogue {
    adds: bool,
    bias: bool,
    activation: Option<ElementwiseKind>,
}

impl Epilogue {
    /// `alpha AB`
    pub const PLAIN: Self = Self { adds: false, bias: false, activation: None };

    /// With `beta C`.
    pub const fn adds(self) -> Self {
        Self { adds: true, ..self }
    }

    /// With a number for each column, f32, from a buffer after the others.
    pub const fn bias(self) -> Self {
        Self { bias: true, ..self }
    }

    /// With a function of one operand and no parameters, applied last.
    ///
    /// # Errors
    /// [`Error::Parameter`] for any other function.
    pub fn activation(self, kind: ElementwiseKind) -> Result<Self> {
        if kind.arity() != 1 || !kind.param_names().is_empty() {
            return Err(Error::Parameter {
                op: "matmul",
                reason: format!(
                    "{} cannot follow a product: use a function of one operand, without parameters",
                    kind.name()
                ),
            });
        }
        Ok(Self { activation: Some(kind), ..self })
    }

    pub(super) fn reads_c(self) -> bool {
        self.adds
    }

    pub(super) fn has_bias(self) -> bool {
        self.bias
    }

    /// Its suffix in kernel names.
    pub(super) fn suffix(self) -> String {
        let parts = [self.adds.then_some("adds"), self.bias.then_some("bias"), self.activation.map(|kind| kind.name())];
        parts.into_iter().flatten().map(|part| format!("_{part}")).collect()
    }
}

/// The operands of an epilogue, for a thread.
pub(super) struct Finish<'k> {
    pub(super) epilogue: Epilogue,
    /// The type of C.
    pub(super) output: PtxType,
    pub(super) target: Target,
    pub(super) alpha: F32<'k>,
    /// `beta` and C, if it is read.
    pub(super) c: Option<(F32<'k>, Elements<'k>)>,
    pub(super) bias: Option<Pointer<'k, Global, f32>>,
}

/// A matrix of one of three types in global memory.
#[derive(Clone, Copy)]
pub(super) struct Elements<'k> {
    /// Its first element, addressed as words for every type.
    pub(super) at: Pointer<'k, Global, u32>,
    pub(super) ty: PtxType,
    /// Elements of a row, which is even for 16-bit elements.
    pub(super) columns: Value<'k, u32>,
}

impl<'k> Elements<'k> {
    /// The address of two adjacent elements; the column is even.
    fn pair(&self, row: Value<'k, u32>, column: Value<'k, u32>) -> Pointer<'k, Global, u32> {
        let k = row.builder;
        let element = k.mad_wide(row, self.columns, k.cvt_u64(column));
        let shift = u32::from(self.ty != PtxType::F32);
        self.at.index_wide(k.shr(element, shift))
    }

    /// Loads two adjacent elements if `p`.
    fn load(&self, p: Value<'k, bool>, row: Value<'k, u32>, column: Value<'k, u32>) -> [F32<'k>; 2] {
        let k = row.builder;
        let at = self.pair(row, column);
        match self.ty {
            PtxType::F32 => k.ld_v_if::<_, _, 2>(p, at, 0u32).map(|bits| k.bits_f32(bits)),
            PtxType::F16 => k.halves::<F16>(k.ld_if(p, at, 0u32)).map(|half| k.cvt_f32(half)),
            _ => k.halves::<Bf16>(k.ld_if(p, at, 0u32)).map(|half| k.cvt_f32(half)),
        }
    }

    /// Stores two adjacent elements if `p`.
    pub(super) fn store(&self, p: Value<'k, bool>, row: Value<'k, u32>, column: Value<'k, u32>, values: [F32<'k>; 2]) {
        let k = row.builder;
        let at = self.pair(row, column);
        match self.ty {
            PtxType::F32 => k.if_(p, || k.st_v(at, values.map(|value| k.bits_u32(value)))),
            ty => k.st_if(p, at, pack(k, ty, values)),
        }
    }
}

impl<'k> Finish<'k> {
    /// The bias of two adjacent columns; `there` says whether they exist.
    pub(super) fn bias(&self, there: Value<'k, bool>, column: Value<'k, u32>) -> Option<[F32<'k>; 2]> {
        self.bias.map(|bias| column.builder.ld_v_if::<_, _, 2>(there, bias.index(column), 0.0f32))
    }

    /// Applies the epilogue to two adjacent elements of C; `there` says whether they exist.
    pub(super) fn apply(
        &self,
        there: Value<'k, bool>,
        [row, column]: [Value<'k, u32>; 2],
        bias: Option<[F32<'k>; 2]>,
        sums: [F32<'k>; 2],
    ) -> [F32<'k>; 2] {
        let k = row.builder;
        let mut values = sums.map(|sum| sum * self.alpha);
        if let Some((beta, c)) = &self.c {
            let old = c.load(there, row, column);
            values = [0, 1].map(|i: usize| k.fma(*beta, old[i], values[i]));
        }
        if let Some(bias) = bias {
            values = [0, 1].map(|i: usize| values[i] + bias[i]);
        }
        match self.epilogue.activation {
            Some(kind) => values.map(|value| functions::apply(kind, self.target, &[value], &[])),
            None => values,
        }
    }
}

/// A predicate that is true, derived from any value, because instructions take no constant predicate.
pub(in crate::kernels) fn always<'k>(k: &'k Builder, any: impl Operand<u32>) -> Value<'k, bool> {
    k.ge(any, 0u32)
}
