//! Lowering: from an operation to launches of kernels. A backend implements [`Lower`] for each operation.

use std::collections::HashMap;

use kiln_ir::op::{BroadcastTo, Cast, Elementwise, Op, Operation, Permute, Quantize, RmsNorm};
use kiln_ir::{DType, Result, Shape, TensorType};

use crate::driver::Driver;
use crate::location::{Fault, Location, Value};

/// An operation that a backend has kernels for.
pub trait Lower<D: Driver>: Operation {
    /// The floating-point types besides f32 that its kernels read as stored. Operands of other types are cast to f32
    /// first, except for operations that take every type ([`Operation::AS_STORED`]).
    const READS: &'static [DType] = &[];

    /// Whether it can report faults of its data. If so, it is lowered even if all outputs are empty.
    const FAULTS: bool = false;

    /// Adds the launches that compute the outputs. The shape rule has accepted the inputs, and at least one output is
    /// not empty, except for operations that report faults. The output of an operation that updates
    /// ([`Operation::UPDATES`]) already contains the elements of its first input.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Limit`] if its kernels cannot run it at this size, [`kiln_ir::Error::Unsupported`] if it
    /// has no kernels.
    fn lower(&self, plan: &mut Lowering<'_, D>, inputs: &[Value], outputs: &[Value]) -> Result<()>;
}

/// Lowers one operation of a concrete type, its inputs of f16 and bf16 cast where its kernels ask for that: the body of
/// [`Driver::lower`] behind [`kiln_ir::for_operation!`].
///
/// # Errors
/// The errors of [`Driver::lower`].
pub fn lower_one<D: Driver, O: Lower<D>>(
    op: &O,
    plan: &mut Lowering<'_, D>,
    inputs: &[Value],
    outputs: &[Value],
) -> Result<()> {
    if !O::FAULTS && outputs.iter().all(|output| output.ty.shape.is_empty()) {
        return Ok(());
    }
    let as_it_is =
        |ty: TensorType| O::AS_STORED || !ty.dtype.is_float() || ty.dtype == DType::F32 || O::READS.contains(&ty.dtype);
    let read = inputs.iter().map(|&input| if as_it_is(input.ty) { Ok(input) } else { D::widen(plan, input) });
    let read = read.collect::<Result<Vec<_>>>()?;
    if O::UPDATES && read[0].at != outputs[0].at && !outputs[0].ty.shape.is_empty() {
        let copy = BroadcastTo::new(read[0].ty.shape.dims())?;
        plan.part(|plan| D::lower(&copy.into(), plan, &read[..1], &outputs[..1]))?;
    }
    op.lower(plan, &read, outputs)
}

/// Lowers a product whose rows are normalised first: the norm to scratch memory, then the product. The body of
/// [`Driver::lower_normed`] where no kernel does both.
///
/// # Errors
/// The errors of [`Driver::lower`].
pub fn normed<D: Driver>(
    norm: &RmsNorm,
    op: &Op,
    plan: &mut Lowering<'_, D>,
    inputs: &[Value],
    outputs: &[Value],
) -> Result<()> {
    let [x, operands @ .., gamma] = inputs else { return D::lower(op, plan, inputs, outputs) };
    let normal = plan.scratch(x.ty);
    D::lower(&Op::from(*norm), plan, &[*x, *gamma], &[normal])?;
    D::lower(op, plan, &[&[normal], operands].concat(), outputs)
}

/// Lowers a gate and the two products that it takes: the products to scratch memory, then the gate. The body of
/// [`Driver::lower_gated`] where no kernel does all.
///
/// # Errors
/// The errors of [`Driver::lower`].
pub fn gated<D: Driver>(
    gate: &Elementwise,
    norm: Option<&RmsNorm>,
    op: &Op,
    plan: &mut Lowering<'_, D>,
    inputs: &[Value],
    outputs: &[Value],
) -> Result<()> {
    let (&[x, first, second, ref gamma @ ..], &[out]) = (inputs, outputs) else {
        return D::lower(&(*gate).into(), plan, inputs, outputs);
    };
    let mut products = Vec::with_capacity(2);
    for weights in [first, second] {
        let product = plan.scratch(out.ty);
        let operands = [&[x, weights], gamma].concat();
        match norm {
            None => D::lower(op, plan, &operands, &[product])?,
            Some(norm) => D::lower_normed(norm, op, plan, &operands, &[product])?,
        }
        products.push(product);
    }
    D::lower(&(*gate).into(), plan, &products, outputs)
}

/// Lowers an operation that works along the last dimension, along dimension `axis` of `x`: on a copy in which it is the last, where
/// the order of elements differs, with results that are copied back.
///
/// # Errors
/// The errors of `lower` and of [`Driver::lower`].
pub fn along_last<D: Driver>(
    plan: &mut Lowering<'_, D>,
    axis: usize,
    x: Value,
    outputs: &[Value],
    lower: impl FnOnce(&mut Lowering<'_, D>, Value, &[Value]) -> Result<()>,
) -> Result<()> {
    let dims = x.ty.shape.dims();
    if dims[axis + 1..].iter().all(|&extent| extent == 1) {
        // The elements already are in the order of the result.
        let shape = Shape::new(&[dims[..axis].iter().product(), dims[axis]])?;
        let of = |value: &Value| Value { ty: TensorType { shape, ..value.ty }, ..*value };
        return lower(plan, of(&x), &outputs.iter().map(of).collect::<Vec<_>>());
    }
    let [there, back] = Permute::to_last(dims.len(), axis)?;
    let shape = there.infer(&[x.ty])?[0].shape;
    let mut moved = |value: &Value| plan.scratch(TensorType { shape, ..value.ty });
    let (first, results) = (moved(&x), outputs.iter().map(moved).collect::<Vec<_>>());
    D::lower(&there.into(), plan, &[x], &[first])?;
    lower(plan, first, &results)?;
    results.iter().zip(outputs).try_for_each(|(&result, &output)| D::lower(&back.into(), plan, &[result], &[output]))
}

/// Rows of floats as elements or blocks of another type, in scratch memory; rows of that type are returned as they are.
///
/// # Errors
/// The errors of [`Driver::lower`].
pub fn stored_as<D: Driver>(plan: &mut Lowering<'_, D>, rows: Value, dtype: DType) -> Result<Value> {
    if rows.ty.dtype == dtype || rows.ty.shape.is_empty() {
        return Ok(rows);
    }
    let stored = plan.scratch(TensorType::of(dtype, rows.ty.shape)?);
    let op = match dtype {
        DType::Blocks(format) => Op::from(Quantize { format }),
        to => Cast { to }.into(),
    };
    D::lower(&op, plan, &[rows], &[stored])?;
    Ok(stored)
}

/// The plan that one step of a schedule adds its launches to.
#[derive(Debug)]
pub struct Lowering<'a, D: Driver> {
    /// The properties of the device.
    pub target: &'a D::Target,
    steps: &'a mut Vec<D::Step>,
    scratch: &'a mut Vec<u64>,
    /// Number of pieces of scratch memory that this step uses.
    used: usize,
    kept: &'a mut Kept,
    faults: &'a mut Vec<Fault>,
}

/// The identity of a value that several steps of a plan need: its kind, its parameters, and the operands that it is computed from.
type Key = (&'static str, Vec<u32>, Vec<Location>);

/// The values that several steps of a plan share.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    known: HashMap<Key, usize>,
    /// Bytes of each.
    pub(crate) bytes: Vec<u64>,
}

impl<'a, D: Driver> Lowering<'a, D> {
    pub(crate) fn new(
        target: &'a D::Target,
        steps: &'a mut Vec<D::Step>,
        scratch: &'a mut Vec<u64>,
        kept: &'a mut Kept,
        faults: &'a mut Vec<Fault>,
    ) -> Self {
        Self { target, steps, scratch, used: 0, kept, faults }
    }

    /// Lowers for another driver, to `steps`, with the scratch memory and the faults of this plan.
    pub(crate) fn with_steps<E: Driver, T>(
        &mut self,
        target: &E::Target,
        steps: &mut Vec<E::Step>,
        lower: impl FnOnce(&mut Lowering<'_, E>) -> Result<T>,
    ) -> Result<T> {
        let mut inner = Lowering {
            target,
            steps,
            scratch: &mut *self.scratch,
            used: self.used,
            kept: &mut *self.kept,
            faults: &mut *self.faults,
        };
        let lowered = lower(&mut inner);
        self.used = inner.used;
        lowered
    }

    /// Memory of this many bytes for the duration of this step, its contents undefined.
    pub fn scratch_bytes(&mut self, bytes: usize) -> Location {
        let bytes = bytes as u64;
        match self.scratch.get_mut(self.used) {
            Some(held) => *held = bytes.max(*held),
            None => self.scratch.push(bytes),
        }
        self.used += 1;
        Location::Scratch(self.used - 1)
    }

    /// Memory for a tensor for the duration of this step, its contents undefined.
    pub fn scratch(&mut self, ty: TensorType) -> Value {
        Value { at: self.scratch_bytes(ty.bytes()), ty }
    }

    /// Memory for a value that later steps of the plan may need again, and whether this is the first step that does: it computes
    /// the value. `what`, `params` and `operands` identify it. If an operand is not an input of the plan, which no step writes, the
    /// memory is scratch memory.
    pub fn kept_bytes(
        &mut self,
        what: &'static str,
        params: &[u32],
        operands: &[Location],
        bytes: usize,
    ) -> (Location, bool) {
        if !operands.iter().all(|operand| matches!(operand, Location::Input(_))) {
            return (self.scratch_bytes(bytes), true);
        }
        let number = self.kept.bytes.len();
        let known = *self.kept.known.entry((what, params.to_vec(), operands.to_vec())).or_insert(number);
        if known == number {
            self.kept.bytes.push(bytes as u64);
        }
        (Location::Kept(known), known == number)
    }

    /// Lowers a part of this step, whose scratch memory the next part uses again.
    ///
    /// # Errors
    /// The errors of `lower`.
    pub fn part<T>(&mut self, lower: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let used = self.used;
        let lowered = lower(self);
        self.used = used;
        lowered
    }

    /// Two words, at first all ones, that a kernel may set: the least position of an index outside of `0..bound`, and that
    /// index. The execution then fails with [`kiln_ir::Error::Index`].
    pub fn fault(&mut self, op: &'static str, bound: usize) -> Location {
        self.faults.push(Fault { op, bound });
        Location::Fault(self.faults.len() - 1)
    }

    /// The launches so far of this step and, unless the device is one of a group, of the steps before it.
    pub fn steps(&self) -> &[D::Step] {
        self.steps
    }

    /// Adds a launch.
    pub fn push(&mut self, step: D::Step) {
        self.steps.push(step);
    }
}
