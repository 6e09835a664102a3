//! The steps of the test device: lowering of operations, and their evaluation by the f64 reference.

use kiln_device::lower::lower_one;
use kiln_device::{Location, Lower, Lowering, Value};
use kiln_ir::graph::{Fused, Source};
use kiln_ir::op::reference::Expected;
use kiln_ir::op::*;
use kiln_ir::{Buffer, DType, Data, Error, Operand, Result, Shape, TensorType};

use super::host_driver::HostDevice;

/// What a kernel computes.
#[derive(Debug, Clone)]
pub(crate) enum Kernel {
    /// An operation.
    Op(Op),
    /// An operation with one output for each, on operands that follow one another.
    Round(Op),
    /// A fused chain of element-wise functions.
    Fused(Fused),
    /// A cast to f32 before an operation.
    Widen,
    /// A copy of a tensor.
    Copy,
}

/// One launch of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct HostStep {
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<Value>,
    /// The words that report an index out of range.
    pub(crate) fault: Option<Location>,
}

impl HostStep {
    /// The name of the kernel in profiles.
    pub(crate) fn name(&self) -> &'static str {
        match &self.kernel {
            Kernel::Op(op) | Kernel::Round(op) => op.name(),
            Kernel::Fused(_) => "fused",
            Kernel::Widen => "widen",
            Kernel::Copy => "copy",
        }
    }

    /// Whether it replaces some elements of its first input, in the memory of its output.
    pub(crate) fn updates(&self) -> bool {
        matches!(&self.kernel, Kernel::Op(op) if op.updates())
    }

    /// Identifies the compiled code: the same kernel on operands of the same types is compiled once.
    pub(crate) fn code(&self) -> String {
        let types: Vec<TensorType> = self.inputs.iter().map(|value| value.ty).collect();
        match &self.kernel {
            // The code does not depend on tensor ids.
            Kernel::Fused(fused) => format!("fused {:?} {types:?}", fused.instructions),
            kernel => format!("{kernel:?} {types:?}"),
        }
    }
}

/// An index out of range: its position, and the index.
pub(crate) type FaultWords = (u32, u32);

/// Computes the results of a kernel. An index out of range selects the first row.
pub(crate) fn evaluate(
    kernel: &Kernel,
    inputs: &[(TensorType, Buffer)],
    outputs: &[TensorType],
) -> Result<(Vec<Buffer>, Option<FaultWords>)> {
    let operands =
        inputs.iter().map(|(ty, data)| Operand::new(data.as_data(), ty.shape)).collect::<Result<Vec<_>>>()?;
    match kernel {
        Kernel::Op(op @ (Op::Gather(_) | Op::Scatter(_) | Op::IndexAdd(_))) => {
            let rows = operands[0].shape().rows();
            let indices = operands[1].data().u32();
            let Some(position) = indices.iter().position(|&index| index as usize >= rows) else {
                return Ok((reference(op, &operands)?, None));
            };
            let index = indices[position];
            let fault = Some((position as u32, index));
            if rows == 0 {
                return Ok((outputs.iter().map(Buffer::zeros).collect::<Result<_>>()?, fault));
            }
            let inside: Vec<u32> = indices.iter().map(|&i| if i as usize >= rows { 0 } else { i }).collect();
            let inside = Operand::new(Data::U32(&inside), operands[1].shape())?;
            let mut inputs = operands.clone();
            inputs[1] = inside;
            Ok((reference(op, &inputs)?, fault))
        }
        Kernel::Op(Op::WriteRows(write)) => {
            let extents = write.extents(&operands[0].shape(), &operands[1].shape(), &operands[2].shape())?;
            match write.check(operands[2].data().u32(), extents.n) {
                Err(Error::Index { position, index, .. }) => {
                    Ok((vec![inputs[0].1.clone()], Some((position as u32, index as u32))))
                }
                _ => Ok((reference(&Op::from(*write), &operands)?, None)),
            }
        }
        Kernel::Op(Op::MatmulByExpert(product)) => {
            let experts = operands[1].shape().dims()[0];
            match product.check(operands[2].data().u32(), experts) {
                Err(Error::Index { position, index, .. }) => {
                    let zeros = outputs.iter().map(Buffer::zeros).collect::<Result<_>>()?;
                    Ok((zeros, Some((position as u32, index as u32))))
                }
                _ => Ok((reference(&Op::from(*product), &operands)?, None)),
            }
        }
        Kernel::Op(Op::Attention(attention)) if let Some(place) = attention.places().lengths => {
            let shape = operands[1].shape();
            let keys = shape.dims()[shape.rank() - 2];
            let lengths = operands[place].data().u32();
            let fault = match attention.check_lengths(lengths, keys) {
                Err(Error::Index { position, index, .. }) => Some((position as u32, index as u32)),
                _ => None,
            };
            let inside: Vec<u32> = lengths.iter().map(|&length| length.min(keys as u32)).collect();
            let mut operands = operands.clone();
            operands[place] = Operand::new(Data::U32(&inside), operands[place].shape())?;
            Ok((reference(&Op::from(*attention), &operands)?, fault))
        }
        Kernel::Op(op) => Ok((reference(op, &operands)?, None)),
        Kernel::Round(op) => {
            let each = operands.chunks(operands.len() / outputs.len()).map(|operands| reference(op, operands));
            Ok((each.collect::<Result<Vec<_>>>()?.concat(), None))
        }
        Kernel::Fused(fused) => {
            let mut computed: Vec<(Shape, Vec<f32>)> = Vec::new();
            for instruction in &fused.instructions {
                let arguments = instruction.operands.iter().map(|source| match *source {
                    Source::Input(at) => Ok(operands[at]),
                    Source::Result(at) => Operand::new(Data::F32(&computed[at].1), computed[at].0),
                });
                let arguments = arguments.collect::<Result<Vec<_>>>()?;
                let op = Op::from(instruction.kind.with_params(instruction.params));
                let shape = op.infer(&types_of(&arguments))?[0].shape;
                let result = reference(&op, &arguments)?.remove(0);
                computed.push((shape, result.as_data().f32().to_vec()));
            }
            let written = fused.outputs.iter().map(|&(_, at)| Buffer::F32(computed[at].1.clone()));
            Ok((written.collect(), None))
        }
        Kernel::Widen => Ok((reference(&Op::from(Cast { to: DType::F32 }), &operands)?, None)),
        Kernel::Copy => Ok((vec![inputs[0].1.clone()], None)),
    }
}

/// The results of an operation, rounded from the f64 reference.
fn reference(op: &Op, operands: &[Operand<'_>]) -> Result<Vec<Buffer>> {
    let rounded = |expected: Expected| match expected {
        Expected::F32 { values, .. } => Buffer::F32(values.into_iter().map(|value| value as f32).collect()),
        Expected::Exact(elements) => elements,
    };
    Ok(op.reference(operands)?.into_iter().map(rounded).collect())
}

/// The kernel of a custom operation for the test device, which computes its reference.
#[derive(Debug)]
pub(crate) struct HostKernel;

/// Adds the launch of an operation. Reductions and softmax compute into scratch memory and copy, so that plans with scratch
/// memory are tested.
fn push(op: Op, plan: &mut Lowering<'_, HostDevice>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
    let lacking = matches!(op, Op::Custom(custom) if custom.kernel::<HostKernel>().is_none());
    if lacking || plan.target.unsupported == Some(op.name()) {
        return Err(Error::Unsupported { op: op.name(), backend: "host" });
    }
    let fault = match op {
        Op::Gather(_) | Op::Scatter(_) | Op::IndexAdd(_) => Some(plan.fault(op.name(), inputs[0].ty.shape.rows())),
        Op::MatmulByExpert(_) => Some(plan.fault(op.name(), inputs[1].ty.shape.dims().first().copied().unwrap_or(0))),
        // The bound is the number of rows of a matrix.
        Op::WriteRows(_) => {
            Some(plan.fault(op.name(), inputs[0].ty.shape.dims().iter().rev().nth(1).copied().unwrap_or(0)))
        }
        Op::Attention(attention) if attention.operands.lengths.is_some() => {
            let keys = inputs[1].ty.shape.dims();
            Some(plan.fault(op.name(), keys[keys.len() - 2] + 1))
        }
        _ => None,
    };
    let through_scratch = matches!(op, Op::Reduce(_) | Op::Softmax(_));
    let written: Vec<Value> = match through_scratch {
        true => outputs.iter().map(|output| plan.scratch(output.ty)).collect(),
        false => outputs.to_vec(),
    };
    let mut inputs = inputs.to_vec();
    if op.updates() {
        // The elements of the first input are in the output.
        inputs[0] = outputs[0];
    }
    plan.push(HostStep { kernel: Kernel::Op(op), inputs, outputs: written.clone(), fault });
    if through_scratch {
        for (&from, &to) in written.iter().zip(outputs) {
            plan.push(HostStep { kernel: Kernel::Copy, inputs: vec![from], outputs: vec![to], fault: None });
        }
    }
    Ok(())
}

/// Lowers an operation.
pub(crate) fn lower(op: &Op, plan: &mut Lowering<'_, HostDevice>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
    kiln_ir::for_operation!(op, op => lower_one(op, plan, inputs, outputs))
}

/// Lowers products of a round of f32 to one step.
pub(crate) fn lower_round(op: &Op, plan: &mut Lowering<'_, HostDevice>, operands: &[[Vec<Value>; 2]]) -> bool {
    let all = |at: usize| operands.iter().flat_map(move |operands| operands[at].iter().copied());
    let is_f32 = |value: Value| value.ty.dtype == DType::F32 && !value.ty.shape.is_empty();
    let joins = matches!(op, Op::Matmul(_)) && all(0).chain(all(1)).all(is_f32);
    if joins {
        let kernel = Kernel::Round(*op);
        plan.push(HostStep { kernel, inputs: all(0).collect(), outputs: all(1).collect(), fault: None });
    }
    joins
}

/// Casts f16 and bf16 to f32 in scratch memory.
pub(crate) fn widen(plan: &mut Lowering<'_, HostDevice>, value: Value) -> Value {
    let wide = plan.scratch(TensorType::f32(value.ty.shape));
    plan.push(HostStep { kernel: Kernel::Widen, inputs: vec![value], outputs: vec![wide], fault: None });
    wide
}

/// A row for each operation; those with `faults` may find fault with their data.
macro_rules! lowered {
    ($($name:ident $(($faults:ident))?),* $(,)?) => { $(
        impl Lower<HostDevice> for $name {
            const FAULTS: bool = lowered!(@ $($faults)?);

            fn lower(&self, plan: &mut Lowering<'_, HostDevice>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
                push(Op::from(*self), plan, inputs, outputs)
            }
        }
    )* };
    (@ faults) => { true };
    (@) => { false };
}
lowered! {
    Elementwise, Reduce, Dot, Matmul, Matvec, Transpose, Softmax, LogSoftmax, LayerNorm, RmsNorm, GroupNorm, BatchNorm, Gather(faults), WriteRows(faults), TopK,
    Convolve2d, ConvolveTranspose2d, Pool2d, Resize2d, Attention(faults), Rope, Quantize, Dequantize, QuantMatmul, MatmulByExpert(faults), Cast, Compare, Select, Arithmetic, Cumsum, Sort, Scatter(faults), IndexAdd(faults), Permute, Slice, BroadcastTo, Pad, Concat,
    Reshape, AllReduce, Custom,
}
