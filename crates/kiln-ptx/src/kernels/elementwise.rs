//! Chains of element-wise functions: one pass over memory for the whole chain.

use kiln_ir::graph::{Fetch, Fused, Source};
use kiln_ir::op::{Elementwise, ElementwiseKind};
use kiln_ir::{Error, Result};

use super::functions;
use super::math::F32;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Target, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements that a thread computes.
const LANES: u32 = 4;
/// Maximum elements of a result, so that they fit 32 bits.
const MOST: u64 = u32::MAX as u64 - (BLOCK * LANES) as u64;

/// One function of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Call {
    kind: ElementwiseKind,
    operands: Vec<Source>,
}

/// Element-wise functions applied one after another to each element. Shapes and parameters are those of the launch.
///
/// A thread computes four neighbouring elements, so that memory is read and written in vectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    inputs: Vec<Fetch>,
    calls: Vec<Call>,
    outputs: Vec<usize>,
    target: Target,
}

impl Chain {
    /// One function, for devices from `target` on. `inputs` says how each operand is read.
    ///
    /// # Errors
    /// [`Error::Arity`] when these are not as many as the function takes.
    pub fn of(op: &Elementwise, inputs: &[Fetch], target: Target) -> Result<Self> {
        let kind = op.kind();
        if kind.arity() != inputs.len() {
            return Err(Error::Arity { op: kind.name(), expected: kind.arity(), found: inputs.len() });
        }
        let operands = (0..inputs.len()).map(Source::Input).collect();
        Ok(Self { inputs: inputs.to_vec(), calls: vec![Call { kind, operands }], outputs: vec![0], target })
    }

    /// A fused step of a graph, for devices from `target` on. `inputs` says how each tensor of the step is read.
    ///
    /// # Errors
    /// [`Error::Arity`] when these are not as many as the step reads, or an instruction has not as many operands as its
    /// function takes; [`Error::Index`] when an operand or a result is of an instruction that has not run.
    pub fn fused(step: &Fused, inputs: &[Fetch], target: Target) -> Result<Self> {
        if step.inputs.len() != inputs.len() {
            return Err(Error::Arity { op: "fused", expected: step.inputs.len(), found: inputs.len() });
        }
        let within = |position, index, bound| match index < bound {
            true => Ok(()),
            false => Err(Error::Index { op: "fused", position, index, bound }),
        };
        for (at, instruction) in step.instructions.iter().enumerate() {
            let (kind, found) = (instruction.kind, instruction.operands.len());
            if found != kind.arity() {
                return Err(Error::Arity { op: kind.name(), expected: kind.arity(), found });
            }
            for operand in &instruction.operands {
                match *operand {
                    Source::Input(index) => within(at, index, inputs.len())?,
                    Source::Result(index) => within(at, index, at)?,
                }
            }
        }
        for (at, &(_, instruction)) in step.outputs.iter().enumerate() {
            within(at, instruction, step.instructions.len())?;
        }
        let call = |i: &kiln_ir::graph::Instruction| Call { kind: i.kind, operands: i.operands.clone() };
        Ok(Self {
            inputs: inputs.to_vec(),
            calls: step.instructions.iter().map(call).collect(),
            outputs: step.outputs.iter().map(|&(_, instruction)| instruction).collect(),
            target,
        })
    }

    /// The launch for results of `n` elements. `lengths` are the elements of each input, `params` the parameters of each
    /// function.
    ///
    /// # Errors
    /// [`Error::Length`] when a length is not one that the chain was made for; [`Error::Arity`] when there are not as many
    /// as there are inputs and functions; [`Error::Limit`] beyond 2³² - 1025 elements.
    pub fn launch(&self, n: usize, lengths: &[usize], params: &[[f32; 2]]) -> Result<Launch> {
        for (expected, found) in [(self.inputs.len(), lengths.len()), (self.calls.len(), params.len())] {
            if expected != found {
                return Err(Error::Arity { op: "elementwise", expected, found });
            }
        }
        let elements = extent("elements", n, MOST)?;
        let mut arguments: Vec<Argument> = (0..self.inputs.len() + self.outputs.len()).map(Argument::Buffer).collect();
        arguments.push(Argument::U32(elements));
        for (&fetch, &length) in self.inputs.iter().zip(lengths) {
            let expected = match fetch {
                Fetch::Whole => length == n,
                Fetch::Scalar => length == 1,
                Fetch::Vectors => length > 0 && length.is_multiple_of(LANES as usize) && n.is_multiple_of(length),
                Fetch::Elements => length > 0 && n.is_multiple_of(length),
            };
            if !expected {
                return Err(Error::Length { op: "elementwise", operand: "input", expected: n, found: length });
            }
            if fetch.takes_length() {
                arguments.push(Argument::U32(extent("elements", length, MOST)?));
            }
        }
        for (call, values) in self.calls.iter().zip(params) {
            arguments.extend(values.iter().take(call.kind.param_names().len()).map(|&value| Argument::F32(value)));
        }
        let blocks = extent("blocks", n.div_ceil((BLOCK * LANES) as usize), MAX_GRID_X)?;
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    /// The results of one element.
    fn element<'k>(&self, inputs: &[F32<'k>], params: &[Vec<F32<'k>>]) -> Vec<F32<'k>> {
        let mut results: Vec<F32<'k>> = Vec::with_capacity(self.calls.len());
        for (call, params) in self.calls.iter().zip(params) {
            let mut operands = Vec::with_capacity(3);
            operands.extend(call.operands.iter().map(|source| match *source {
                Source::Input(i) => inputs[i],
                Source::Result(i) => results[i],
            }));
            results.push(functions::apply(call.kind, self.target, &operands, params));
        }
        self.outputs.iter().map(|&call| results[call]).collect()
    }
}

/// An input as the kernel accesses it.
struct Input<'k> {
    fetch: Fetch,
    at: Pointer<'k, Global, f32>,
    length: Option<Value<'k, u32>>,
}

impl<'k> Input<'k> {
    /// Element `i`.
    fn element(&self, k: &'k Builder, i: Value<'k, u32>) -> F32<'k> {
        match (self.fetch, self.length) {
            (Fetch::Scalar, _) => k.ld(self.at),
            (_, Some(length)) => k.ld(self.at.index(i % length)),
            (_, None) => k.ld(self.at.index(i)),
        }
    }

    /// The elements from `i` on, a multiple of four.
    fn vector(&self, k: &'k Builder, i: Value<'k, u32>) -> [F32<'k>; LANES as usize] {
        match (self.fetch, self.length) {
            (Fetch::Scalar, _) => [k.ld(self.at); LANES as usize],
            (Fetch::Elements, _) => [0, 1, 2, 3].map(|lane| self.element(k, i + lane)),
            (_, Some(length)) => k.ld_v(self.at.index(i % length)),
            (_, None) => k.ld_v(self.at.index(i)),
        }
    }
}

impl Kernel for Chain {
    fn name(&self) -> String {
        self.calls.iter().fold("elementwise".to_owned(), |name, call| name + "_" + call.kind.name())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| {
            let at: Vec<_> = (0..self.inputs.len()).map(|i| k.buffer::<f32>(("in", i))).collect();
            let outputs: Vec<_> = (0..self.outputs.len()).map(|i| k.buffer::<f32>(("out", i))).collect();
            let n = k.parameter::<u32>("n");
            let inputs = self.inputs.iter().zip(at).enumerate().map(|(i, (&fetch, at))| {
                let length = fetch.takes_length().then(|| k.parameter::<u32>(("length", i)));
                Input { fetch, at, length }
            });
            let inputs: Vec<Input<'_>> = inputs.collect();
            let params =
                self.calls.iter().enumerate().map(|(i, call)| {
                    call.kind.param_names().iter().map(|&name| k.parameter::<f32>((name, i))).collect()
                });
            let params: Vec<Vec<F32<'_>>> = params.collect();

            let first = k.mad(k.ctaid_x(), BLOCK, k.tid_x()) * LANES;
            let whole = k.le(first + LANES, n);
            k.if_else(
                whole,
                || {
                    let vectors: Vec<_> = inputs.iter().map(|input| input.vector(k, first)).collect();
                    let lanes: [Vec<F32<'_>>; LANES as usize] = std::array::from_fn(|lane| {
                        let elements: Vec<_> = vectors.iter().map(|vector| vector[lane]).collect();
                        self.element(&elements, &params)
                    });
                    for (i, output) in outputs.iter().enumerate() {
                        k.st_v(output.index(first), [0, 1, 2, 3].map(|lane: usize| lanes[lane][i]));
                    }
                },
                || {
                    k.for_(first, n, 1, |i| {
                        let elements: Vec<_> = inputs.iter().map(|input| input.element(k, i)).collect();
                        for (result, output) in self.element(&elements, &params).into_iter().zip(&outputs) {
                            k.st(output.index(i), result);
                        }
                    });
                },
            );
        })
    }
}
