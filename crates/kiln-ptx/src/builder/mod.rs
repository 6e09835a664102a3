//! The builder of one kernel.

mod control;
mod memory;
pub mod operands;
mod pipeline;
mod sums;

use std::cell::RefCell;
use std::marker::PhantomData;

pub use memory::{Global, Lanes, Pointer, Shared, SharedCluster, Space, VectorWidth};
pub use operands::{Fragment, TensorBox, TensorParameter};
pub use pipeline::{Consumer, Pipeline, Producer};
pub use sums::{Descriptor, Running, Sums};

use crate::kernel::{Name, Parameter, ParameterKind};
use crate::table::{CvtRn, Row};
use crate::text::{Mnemonic, Text};
use crate::types::{Class, Operand, PtxType, Raw, Scalar, Value, Variable};
use crate::{Gate, PtxKernel, Target};

/// Writes the body of a kernel, instruction by instruction, in the order of the calls.
///
/// Everything takes `&self`, so that calls nest: `k.fma(x, y, k.mul(z, 2.0))`, or `x * y + z` for what has an operator.
/// A value may be used wherever the instruction that made it has run: one that was made inside of a loop or a branch not
/// outside of it. What has to come out is a [`Variable`].
pub struct Builder {
    state: RefCell<State>,
}

struct State {
    text: Text,
    /// Registers of each class that are in use.
    registers: [u32; Class::ALL.len()],
    labels: u32,
    shared_bytes: u32,
    /// The greatest alignment of an array in shared memory.
    shared_align: u32,
    /// Blocks of a cluster along x.
    cluster: u32,
    /// Blocks that a multiprocessor is to hold; 0 where nothing was said.
    resident_blocks: u32,
    parameters: Vec<Parameter>,
    gate: Gate,
}

/// The name of the shared memory of a kernel.
pub(crate) const SHARED: &str = "smem";
/// The least alignment of an array in shared memory: that of the widest access.
const SHARED_ALIGN: u32 = 16;
/// Bytes of shared memory that a kernel may have in its text; more come with the launch.
const MOST_STATIC_SHARED: u32 = 48 << 10;

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            state: RefCell::new(State {
                text: Text::new(),
                registers: [0; Class::ALL.len()],
                labels: 0,
                shared_bytes: 0,
                shared_align: SHARED_ALIGN,
                cluster: 1,
                resident_blocks: 0,
                parameters: Vec::new(),
                gate: Gate::LEAST,
            }),
        }
    }

    /// The kernel whose body was written.
    pub(crate) fn finish(self, name: &str, block: [u32; 3]) -> PtxKernel {
        let State { text, registers, shared_bytes, shared_align, cluster, resident_blocks, parameters, gate, .. } =
            self.state.into_inner();
        let dynamic_shared = shared_bytes > MOST_STATIC_SHARED;
        let body = text.as_str();
        let mut whole = String::with_capacity(body.len() + 512 + 64 * parameters.len());
        let number = |n: u32, whole: &mut String| whole.push_str(&n.to_string());
        whole.push_str(".visible .entry ");
        whole.push_str(name);
        whole.push('(');
        for (i, parameter) in parameters.iter().enumerate() {
            whole.push_str(if i == 0 { "\n\t.param ." } else { ",\n\t.param ." });
            let (ty, array) = match parameter.kind {
                ParameterKind::Scalar(ty) => (ty.name(), ""),
                ParameterKind::Buffer => (PtxType::U64.name(), ""),
                ParameterKind::Tensor => ("align 64 .b8", "[128]"),
            };
            whole.push_str(ty);
            whole.push(' ');
            whole.push_str(parameter.name.word);
            parameter.name.number.into_iter().for_each(|n| number(n as u32, &mut whole));
            whole.push_str(array);
        }
        whole.push_str("\n)\n");
        if cluster > 1 {
            whole.push_str(".explicitcluster\n.reqnctapercluster ");
            number(cluster, &mut whole);
            whole.push_str(", 1, 1\n");
        }
        whole.push_str(".reqntid ");
        for (i, extent) in block.into_iter().enumerate() {
            whole.push_str(if i == 0 { "" } else { ", " });
            number(extent, &mut whole);
        }
        if resident_blocks > 0 {
            whole.push_str("\n.minnctapersm ");
            number(resident_blocks, &mut whole);
        }
        whole.push_str("\n{\n");
        for ((ty, prefix), count) in Class::ALL.into_iter().zip(registers) {
            if count > 0 {
                whole.push_str("\t.reg .");
                whole.push_str(ty);
                whole.push(' ');
                whole.push_str(prefix);
                whole.push('<');
                number(count, &mut whole);
                whole.push_str(">;\n");
            }
        }
        if shared_bytes > 0 && !dynamic_shared {
            whole.push_str("\t.shared .align ");
            number(shared_align, &mut whole);
            whole.push_str(" .b8 ");
            whole.push_str(SHARED);
            whole.push('[');
            number(shared_bytes, &mut whole);
            whole.push_str("];\n");
        }
        whole.push_str(body);
        whole.push_str("\tret;\n}\n");
        PtxKernel { name: name.to_owned(), parameters, block, cluster, shared_bytes, dynamic_shared, gate, text: whole }
    }

    /// A register that nothing has written yet.
    #[inline]
    pub(crate) fn fresh<T: Scalar>(&self) -> Value<'_, T> {
        let mut state = self.state.borrow_mut();
        let count = &mut state.registers[T::TYPE.class() as usize];
        let number = *count;
        *count += 1;
        Value { builder: self, number, scalar: PhantomData }
    }

    /// Values in registers beside one another.
    pub fn gather<T: Scalar, const N: usize>(&self, values: [Value<'_, T>; N]) -> Fragment<'_, T, N> {
        let fragment = self.fragment();
        values.into_iter().enumerate().for_each(|(i, value)| self.copy(fragment.get(i), value.raw()));
        fragment
    }

    /// Registers beside one another that nothing has written yet.
    pub(crate) fn fragment<T: Scalar, const N: usize>(&self) -> Fragment<'_, T, N> {
        Fragment { builder: self, first: self.fresh_many::<T>(N as u32), scalar: PhantomData }
    }

    fn fresh_many<T: Scalar>(&self, n: u32) -> u32 {
        let mut state = self.state.borrow_mut();
        let count = &mut state.registers[T::TYPE.class() as usize];
        let first = *count;
        *count += n;
        first
    }

    /// Writes one row of the table.
    #[inline]
    pub(crate) fn instruction(&self, row: &Row, to: Option<Raw>, operands: &[Raw]) {
        let mut state = self.state.borrow_mut();
        state.gate = state.gate.and(row.gate);
        let text = &mut state.text;
        text.line();
        text.mnemonic(&row.mnemonic);
        let mut first = true;
        for &Raw(source) in to.iter().chain(operands) {
            if !first {
                text.piece(b", ");
            }
            first = false;
            text.source(source);
        }
        text.piece(b";\n");
    }

    /// `mov` between registers of one class, or from a constant.
    pub(crate) fn copy<T: Scalar>(&self, to: Value<'_, T>, from: Raw) {
        const MOVES: [Mnemonic; Class::ALL.len()] = [
            Mnemonic::new("mov.pred"),
            Mnemonic::new("mov.b32"),
            Mnemonic::new("mov.b64"),
            Mnemonic::new("mov.f32"),
            Mnemonic::new("mov.f64"),
            Mnemonic::new("mov.b16"),
        ];
        let row = Row { mnemonic: MOVES[T::TYPE.class() as usize], gate: Gate::LEAST };
        self.instruction(&row, Some(to.raw()), &[from]);
    }

    pub(crate) fn special(&self, name: &str) -> Value<'_, u32> {
        let value = self.fresh::<u32>();
        let text = &mut self.state.borrow_mut().text;
        text.line();
        text.piece(b"\tmov.u32 ");
        text.register(Class::Word, value.number);
        text.piece(b", ");
        text.word(name);
        text.piece(b";\n");
        value
    }

    /// Asks for registers to be given out so that a multiprocessor holds this many blocks at once, and no more
    /// sparingly than that takes.
    pub fn resident_blocks(&self, blocks: u32) {
        self.state.borrow_mut().resident_blocks = blocks;
    }

    /// Launches blocks in clusters of so many along x, which see the shared memory of one another.
    pub fn cluster(&self, blocks: u32) {
        let state = &mut *self.state.borrow_mut();
        state.cluster = blocks;
        if blocks > 1 {
            state.gate = state.gate.and(Gate::new(7.8, Target::Sm90));
        }
    }

    /// A constant as a value.
    pub fn constant<T: Scalar>(&self, constant: impl Operand<T>) -> Value<'_, T> {
        let value = self.fresh();
        self.copy(value, constant.raw());
        value
    }

    /// A variable that begins with a value.
    pub fn variable<T: Scalar>(&self, value: impl Operand<T>) -> Variable<'_, T> {
        Variable(self.constant(value))
    }

    /// The next parameter of the kernel, a scalar.
    pub fn parameter<T: Scalar>(&self, name: impl Into<Name>) -> Value<'_, T> {
        let name = name.into();
        let value = self.fresh::<T>();
        let state = &mut *self.state.borrow_mut();
        state.parameters.push(Parameter { name, kind: ParameterKind::Scalar(T::TYPE) });
        let text = &mut state.text;
        text.line_and(name.word.len());
        text.piece(b"\tld.param.");
        text.word(T::TYPE.name());
        text.piece(b" ");
        text.source(value.raw().0);
        text.piece(b", [");
        text.word(name.word);
        name.number.into_iter().for_each(|n| text.decimal(n as u64));
        text.piece(b"];\n");
        value
    }

    /// The next parameter of the kernel, the address of a buffer in global memory, aligned to 16 bytes.
    pub fn buffer<T: Scalar>(&self, name: impl Into<Name>) -> Pointer<'_, Global, T> {
        let generic = self.parameter::<u64>(name);
        if let Some(parameter) = self.state.borrow_mut().parameters.last_mut() {
            parameter.kind = ParameterKind::Buffer;
        }
        let base = self.fresh::<u64>();
        const ROW: Row = Row { mnemonic: Mnemonic::new("cvta.to.global.u64"), gate: Gate::LEAST };
        self.instruction(&ROW, Some(base.raw()), &[generic.raw()]);
        Pointer::new(base)
    }

    /// The next parameter of the kernel, the description of a tensor of three dimensions.
    pub fn tensor(&self, name: impl Into<Name>) -> TensorParameter<'_> {
        let name = name.into();
        let address = self.fresh::<u64>();
        let state = &mut *self.state.borrow_mut();
        state.parameters.push(Parameter { name, kind: ParameterKind::Tensor });
        let text = &mut state.text;
        text.line_and(name.word.len());
        text.piece(b"\tmov.b64 ");
        text.source(address.raw().0);
        text.piece(b", ");
        text.word(name.word);
        name.number.into_iter().for_each(|n| text.decimal(n as u64));
        text.piece(b";\n\tcvta.param.u64 ");
        text.source(address.raw().0);
        text.piece(b", ");
        text.source(address.raw().0);
        text.piece(b";\n");
        state.gate = state.gate.and(Gate::new(8.0, Target::Sm90));
        TensorParameter(address)
    }

    /// An array of `len` elements in the shared memory of the block; what it holds at first is not defined.
    pub fn shared<T: Scalar>(&self, len: u32) -> Pointer<'_, Shared, T> {
        self.shared_bytes(len * T::TYPE.bytes(), SHARED_ALIGN).cast()
    }

    /// So many bytes of the shared memory of the block, aligned; what they hold at first is not defined.
    pub fn shared_bytes(&self, bytes: u32, align: u32) -> Pointer<'_, Shared, u32> {
        let base = self.special(SHARED);
        let mut state = self.state.borrow_mut();
        let offset = state.shared_bytes.next_multiple_of(align);
        state.shared_align = state.shared_align.max(align);
        state.shared_bytes = (offset + bytes).next_multiple_of(SHARED_ALIGN);
        Pointer::new(base).bytes(offset as i32)
    }
}

/// Both halves of a value.
impl Builder {
    /// `[lower, upper]` of `a`, numbers of 16 bits: `mov.b32 {lower, upper}, a`.
    pub fn halves<T: CvtRn>(&self, a: impl Operand<u32>) -> [Value<'_, T>; 2] {
        let halves = [self.fresh(), self.fresh()];
        let text = &mut self.state.borrow_mut().text;
        text.line();
        text.piece(b"\tmov.b32 {");
        text.register(Class::Half, halves[0].number);
        text.piece(b", ");
        text.register(Class::Half, halves[1].number);
        text.piece(b"}, ");
        text.source(a.raw().0);
        text.piece(b";\n");
        halves
    }

    /// `[lower, upper]` of `a`: `mov.b64 {lower, upper}, a`.
    pub fn split(&self, a: impl Operand<u64>) -> [Value<'_, u32>; 2] {
        let halves = [self.fresh(), self.fresh()];
        let text = &mut self.state.borrow_mut().text;
        text.line();
        text.piece(b"\tmov.b64 {");
        text.register(Class::Word, halves[0].number);
        text.piece(b", ");
        text.register(Class::Word, halves[1].number);
        text.piece(b"}, ");
        text.source(a.raw().0);
        text.piece(b";\n");
        halves
    }

    /// `upper * 2³² + lower`: `mov.b64 d, {lower, upper}`.
    pub fn join(&self, lower: impl Operand<u32>, upper: impl Operand<u32>) -> Value<'_, u64> {
        let value = self.fresh::<u64>();
        let text = &mut self.state.borrow_mut().text;
        text.line();
        text.piece(b"\tmov.b64 ");
        text.register(Class::Wide, value.number);
        text.piece(b", {");
        text.source(lower.raw().0);
        text.piece(b", ");
        text.source(upper.raw().0);
        text.piece(b"};\n");
        value
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.state.borrow().text.as_str())
    }
}
