//! The builder of one kernel.

mod control;
mod halves;
mod memory;
pub mod operands;
mod pipeline;
mod sums;
mod value;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

pub use memory::{Global, Lanes, Pointer, Shared, SharedCluster, Space, VectorWidth};
pub use operands::{Fragment, TensorBox, TensorParameter};
pub use pipeline::{Consumer, Pipeline, Producer};
pub use sums::{Descriptor, Running, Sums};
pub use value::{Value, Variable};

use crate::kernel::{Name, Parameter, ParameterKind, SHARED, preamble};
use crate::ptx_type::Class;
use crate::text::{Line, Text};
use crate::types::{Operand, Scalar};
use crate::{Gate, PtxKernel, Target};

/// One instruction for one type.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct Row {
    /// Its name, between a tab and a space.
    pub(crate) name: &'static str,
    pub(crate) gate: Gate,
}

/// Writes the body of a kernel, instruction by instruction, in the order of the calls.
///
/// All methods take `&self`, so that calls nest: `k.fma(x, y, k.mul(z, 2.0))`, or `x * y + z` with operators. A value may be
/// used wherever the instruction that made it has run: a value that was made inside of a loop or a branch cannot be used
/// outside of it. Use a [`Variable`] to carry a value out.
pub struct Builder {
    text: RefCell<Text>,
    /// Number of used registers of each class.
    registers: [Cell<u32>; Class::ALL.len()],
    labels: Cell<u32>,
    shared_bytes: Cell<u32>,
    /// Maximum alignment of the arrays in shared memory.
    shared_align: Cell<u32>,
    /// Blocks of a cluster along x.
    cluster: Cell<u32>,
    /// Blocks that a multiprocessor must be able to run at once; 0 if unspecified.
    resident_blocks: Cell<u32>,
    /// Whether the kernel is persistent: its blocks continue with further work.
    blocks_stay: Cell<bool>,
    parameters: RefCell<Vec<Parameter>>,
    gate: Cell<Gate>,
}

/// Minimum alignment of an array in shared memory: that of the widest access.
const SHARED_ALIGN: u32 = 16;
/// Maximum bytes of static shared memory; more is allocated by the launch.
const MOST_STATIC_SHARED: u32 = 48 << 10;

impl PtxKernel {
    /// Writes a kernel for blocks of exactly `block` threads. `name` is an identifier of PTX.
    pub fn new(name: impl Into<String>, block: [u32; 3], body: impl FnOnce(&Builder)) -> Self {
        let builder = Builder::new();
        body(&builder);
        builder.finish(name.into(), block)
    }
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            text: RefCell::new(Text::new()),
            registers: Default::default(),
            labels: Cell::new(0),
            shared_bytes: Cell::new(0),
            shared_align: Cell::new(SHARED_ALIGN),
            cluster: Cell::new(1),
            resident_blocks: Cell::new(0),
            blocks_stay: Cell::new(false),
            parameters: RefCell::new(Vec::with_capacity(16)),
            gate: Cell::new(Gate::LEAST),
        }
    }

    /// The finished kernel.
    pub(crate) fn finish(self, name: String, block: [u32; 3]) -> PtxKernel {
        let (mut text, parameters) = (self.text.into_inner(), self.parameters.into_inner());
        let (shared_bytes, cluster, gate) = (self.shared_bytes.get(), self.cluster.get(), self.gate.get());
        let dynamic_shared = shared_bytes > MOST_STATIC_SHARED;
        let blocks_stay = self.blocks_stay.get();
        text.line(|line| line.put("\tret;\n}\n"));

        // The head is known only now. It is written after the body and moved before it at the end.
        let head = text.len();
        preamble(&mut text, gate, dynamic_shared);
        text.line(|line| line.put("\n"));
        let entry = text.len() - head;
        text.line(|line| line.put(".visible .entry "));
        text.name(&name);
        text.line(|line| line.put("("));
        for (i, parameter) in parameters.iter().enumerate() {
            let [ty, array] = parameter.kind.declared();
            text.line(|line| {
                line.put(if i == 0 { "\n\t.param ." } else { ",\n\t.param ." });
                line.put(ty);
                line.put(" ");
            });
            parameter.name.write(&mut text);
            text.line(|line| line.put(array));
        }
        text.line(|line| line.put("\n)\n"));
        if cluster > 1 {
            text.line(|line| {
                line.put(".explicitcluster\n.reqnctapercluster ");
                line.decimal(cluster.into());
                line.put(", 1, 1\n");
            });
        }
        text.line(|line| {
            line.put(".reqntid ");
            for (i, extent) in block.into_iter().enumerate() {
                line.put(if i == 0 { "" } else { ", " });
                line.decimal(extent.into());
            }
            if self.resident_blocks.get() > 0 {
                line.put("\n.minnctapersm ");
                line.decimal(self.resident_blocks.get().into());
            }
            line.put("\n{\n");
        });
        for (class, count) in Class::ALL.into_iter().zip(&self.registers) {
            if count.get() > 0 {
                text.line(|line| {
                    line.put("\t.reg .");
                    line.put(class.name());
                    line.put(" ");
                    line.put(class.prefix());
                    line.put("<");
                    line.decimal(count.get().into());
                    line.put(">;\n");
                });
            }
        }
        if shared_bytes > 0 && !dynamic_shared {
            text.line(|line| {
                line.put("\t.shared .align ");
                line.decimal(self.shared_align.get().into());
                line.put(" .b8 ");
                line.put(SHARED);
                line.put("[");
                line.decimal(shared_bytes.into());
                line.put("];\n");
            });
        }
        let body = text.len() - head;
        let text = text.beginning_at(head);
        PtxKernel {
            name,
            parameters,
            block,
            cluster,
            blocks_stay,
            shared_bytes,
            dynamic_shared,
            gate,
            text,
            entry,
            body,
        }
    }

    /// Appends the output of `write`, at most a line.
    #[inline(always)]
    fn line(&self, write: impl FnOnce(&mut Line<'_>)) {
        self.text.borrow_mut().line(write);
    }

    /// Writes one row of the table.
    #[inline(always)]
    pub(crate) fn instruction(&self, row: Row, operands: impl FnOnce(&mut Line<'_>)) {
        self.require(row.gate);
        self.line(|line| {
            line.put(row.name);
            operands(line);
            line.put(";\n");
        });
    }

    #[inline(always)]
    fn require(&self, gate: Gate) {
        if gate != Gate::LEAST {
            self.gate.set(self.gate.get().and(gate));
        }
    }

    /// A new register.
    #[inline(always)]
    pub(crate) fn fresh<T: Scalar>(&self) -> Value<'_, T> {
        Value { builder: self, number: self.fresh_many::<T>(1), scalar: PhantomData }
    }

    #[inline(always)]
    fn fresh_many<T: Scalar>(&self, n: u32) -> u32 {
        let count = &self.registers[T::TYPE.class() as usize];
        count.replace(count.get() + n)
    }

    /// Values in registers beside one another.
    pub fn gather<T: Scalar, const N: usize>(&self, values: [Value<'_, T>; N]) -> Fragment<'_, T, N> {
        let fragment = self.fragment();
        values.into_iter().enumerate().for_each(|(i, value)| self.copy(fragment.get(i), value));
        fragment
    }

    /// New consecutive registers.
    pub(crate) fn fragment<T: Scalar, const N: usize>(&self) -> Fragment<'_, T, N> {
        Fragment { builder: self, first: self.fresh_many::<T>(N as u32), scalar: PhantomData }
    }

    /// `mov` between registers of one class, or from a constant.
    pub(crate) fn copy<T: Scalar>(&self, to: Value<'_, T>, from: impl Operand<T>) {
        self.line(|line| {
            line.put(match T::TYPE.class() {
                Class::Predicate => "\tmov.pred ",
                Class::Word => "\tmov.b32 ",
                Class::Wide => "\tmov.b64 ",
                Class::Single => "\tmov.f32 ",
                Class::Double => "\tmov.f64 ",
                Class::Half => "\tmov.b16 ",
            });
            to.write(line);
            line.put(", ");
            from.write(line);
            line.put(";\n");
        });
    }

    pub(crate) fn special(&self, name: &'static str) -> Value<'_, u32> {
        let value = self.fresh::<u32>();
        self.line(|line| {
            line.put("\tmov.u32 ");
            value.write(line);
            line.put(", ");
            line.put(name);
            line.put(";\n");
        });
        value
    }

    /// Nanoseconds of a global clock, in steps of a microsecond or more: `mov.u64 d, %globaltimer`.
    pub fn globaltimer(&self) -> Value<'_, u64> {
        let value = self.fresh::<u64>();
        self.line(|line| {
            line.put("\tmov.u64 ");
            value.write(line);
            line.put(", %globaltimer;\n");
        });
        value
    }

    /// Requests a number of registers per thread with which a multiprocessor holds this many blocks at once, and no smaller one.
    pub fn resident_blocks(&self, blocks: u32) {
        self.resident_blocks.set(blocks);
    }

    /// Declares the kernel persistent: a launch with fewer blocks, in whole clusters, computes the same.
    pub fn blocks_stay(&self) {
        self.blocks_stay.set(true);
    }

    /// Launches blocks in clusters of this many along x, which see the shared memory of one another.
    pub fn cluster(&self, blocks: u32) {
        self.cluster.set(blocks);
        if blocks > 1 {
            self.require(Gate::new(7.8, Target::Sm90));
        }
    }

    /// A constant as a value.
    pub fn constant<T: Scalar>(&self, constant: impl Operand<T>) -> Value<'_, T> {
        let value = self.fresh();
        self.copy(value, constant);
        value
    }

    /// A variable that begins with a value.
    pub fn variable<T: Scalar>(&self, value: impl Operand<T>) -> Variable<'_, T> {
        Variable(self.constant(value))
    }

    /// The next parameter of the kernel, a scalar.
    pub fn parameter<T: Scalar>(&self, name: impl Into<Name>) -> Value<'_, T> {
        self.parameter_of(name.into(), ParameterKind::Scalar(T::TYPE))
    }

    fn parameter_of<T: Scalar>(&self, name: Name, kind: ParameterKind) -> Value<'_, T> {
        self.parameters.borrow_mut().push(Parameter { name, kind });
        let value = self.fresh::<T>();
        let text = &mut *self.text.borrow_mut();
        text.line(|line| {
            line.put("\tld.param.");
            line.put(T::TYPE.name());
            line.put(" ");
            value.write(line);
            line.put(", [");
        });
        name.write(text);
        text.line(|line| line.put("];\n"));
        value
    }

    /// The next parameter of the kernel, the address of a buffer in global memory, aligned to 16 bytes.
    pub fn buffer<T: Scalar>(&self, name: impl Into<Name>) -> Pointer<'_, Global, T> {
        let generic = self.parameter_of::<u64>(name.into(), ParameterKind::Buffer);
        let base = self.fresh::<u64>();
        self.line(|line| {
            line.put("\tcvta.to.global.u64 ");
            base.write(line);
            line.put(", ");
            generic.write(line);
            line.put(";\n");
        });
        Pointer::new(base)
    }

    /// The next parameter of the kernel, a tensor map of a tensor of three dimensions.
    pub fn tensor(&self, name: impl Into<Name>) -> TensorParameter<'_> {
        let name = name.into();
        self.parameters.borrow_mut().push(Parameter { name, kind: ParameterKind::Tensor });
        self.require(Gate::new(8.0, Target::Sm90));
        let address = self.fresh::<u64>();
        let text = &mut *self.text.borrow_mut();
        text.line(|line| {
            line.put("\tmov.b64 ");
            address.write(line);
            line.put(", ");
        });
        name.write(text);
        text.line(|line| {
            line.put(";\n\tcvta.param.u64 ");
            address.write(line);
            line.put(", ");
            address.write(line);
            line.put(";\n");
        });
        TensorParameter(address)
    }

    /// An array of `len` elements in the shared memory of the block; its initial contents are undefined.
    pub fn shared<T: Scalar>(&self, len: u32) -> Pointer<'_, Shared, T> {
        self.shared_bytes(len * T::TYPE.bytes(), SHARED_ALIGN).cast()
    }

    /// This many bytes of the shared memory of the block, aligned; their initial contents are undefined.
    pub fn shared_bytes(&self, bytes: u32, align: u32) -> Pointer<'_, Shared, u32> {
        let base = self.special(SHARED);
        let offset = self.shared_bytes.get().next_multiple_of(align);
        self.shared_align.set(self.shared_align.get().max(align));
        self.shared_bytes.set((offset + bytes).next_multiple_of(SHARED_ALIGN));
        Pointer::new(base).bytes(offset as i32)
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text.borrow().as_str())
    }
}
