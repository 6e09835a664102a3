//! Fused element-wise chains: blocks that stay in the first-level cache while every function of the chain runs on them.

use std::cell::RefCell;

use kiln_ir::graph::{Fused, Instruction, Source};
use kiln_ir::{Error, Result};

use crate::elementwise::{Call, Flat, part_len};
use crate::float_state::require_default;
use crate::simd::Simd;
use crate::threads::{self, Shared};

/// Elements of a block. Even with the eight registers of a long chain it fits 32 KiB of cache.
const BLOCK: usize = 1024;

thread_local! {
    /// The blocks of this thread, reused between calls.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The storage of each instruction's result while the chain runs on a block.
struct Registers {
    of: Vec<usize>,
    count: usize,
}

impl Registers {
    /// Assigns each result a register that no later reader of another result needs.
    fn assign(instructions: &[Instruction]) -> Self {
        let mut last_read = vec![0; instructions.len()];
        for (at, instruction) in instructions.iter().enumerate() {
            for source in &instruction.operands {
                if let Source::Result(i) = source {
                    last_read[*i] = at;
                }
            }
        }
        let mut of = Vec::with_capacity(instructions.len());
        let mut busy_until: Vec<usize> = Vec::new();
        for (at, &last) in last_read.iter().enumerate() {
            // An instruction may overwrite its operands: each vector is read before it is written.
            let free = busy_until.iter().position(|&until| until <= at);
            let register = free.unwrap_or_else(|| {
                busy_until.push(0);
                busy_until.len() - 1
            });
            busy_until[register] = last.max(at + 1);
            of.push(register);
        }
        Self { of, count: busy_until.len() }
    }
}

impl Simd {
    /// Runs a fused step of a schedule: `inputs` as the step lists them, `outputs` as it lists its results.
    ///
    /// The results have the same bits as those of its functions run one after another.
    ///
    /// # Errors
    /// [`Error::Length`] when a slice does not have the length that the step needs, [`Error::Arity`] when there are more or
    /// fewer of them, and as [`Fused::check`].
    pub fn run_fused(&self, fused: &Fused, inputs: &[&[f32]], outputs: &mut [&mut [f32]]) -> Result<()> {
        require_default!(self.run_fused(fused, inputs, outputs));
        fused.check()?;
        let n = fused.shape.numel();
        let op = "fused chain";
        let counts = [(fused.inputs.len(), inputs.len()), (fused.outputs.len(), outputs.len())];
        if let Some(&(expected, found)) = counts.iter().find(|(expected, found)| expected != found) {
            return Err(Error::Arity { op, expected, found });
        }
        if let Some(out) = outputs.iter().find(|out| out.len() != n) {
            return Err(Error::Length { op, operand: "output", expected: n, found: out.len() });
        }
        if n == 0 {
            return Ok(());
        }
        // An input repeats, so its length must divide that of the result.
        if let Some(input) = inputs.iter().find(|input| input.is_empty() || !n.is_multiple_of(input.len())) {
            return Err(Error::Length { op, operand: "input", expected: n, found: input.len() });
        }
        let registers = Registers::assign(&fused.instructions);
        let outputs: Vec<Shared<f32>> = outputs.iter_mut().map(|out| Shared::new(out.as_mut_ptr())).collect();
        let blocks = n.div_ceil(BLOCK);
        // Each part is several whole blocks, so that a thread streams through memory.
        let flops = fused.instructions.iter().map(|i| i.kind.flops()).sum();
        let part = part_len(flops, n, self).div_ceil(BLOCK);
        threads::for_each(blocks.div_ceil(part), self.threads(), |p| {
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.resize((registers.count + inputs.len()) * BLOCK, 0.0);
                for block in p * part..blocks.min((p + 1) * part) {
                    let start = block * BLOCK;
                    self.block(fused, &registers, inputs, &outputs, scratch, start..n.min(start + BLOCK));
                }
            });
        });
        Ok(())
    }

    /// Runs the chain on one block: `scratch` holds the registers, followed by space for repeated rows.
    fn block(
        &self,
        fused: &Fused,
        registers: &Registers,
        inputs: &[&[f32]],
        outputs: &[Shared<f32>],
        scratch: &mut [f32],
        range: std::ops::Range<usize>,
    ) {
        let len = range.len();
        let (results, rows) = scratch.split_at_mut(registers.count * BLOCK);
        let mut flat = Vec::with_capacity(inputs.len());
        for (row, input) in rows.chunks_exact_mut(BLOCK).zip(inputs) {
            flat.push(match input {
                [one] => Flat { p: one, repeated: true },
                whole if whole.len() >= range.end => Flat { p: whole[range.start..].as_ptr(), repeated: false },
                short => {
                    let start = range.start % short.len();
                    if start + len <= short.len() {
                        Flat { p: short[start..].as_ptr(), repeated: false }
                    } else {
                        let repeated = short.iter().cycle().skip(start);
                        row[..len].iter_mut().zip(repeated).for_each(|(to, &from)| *to = from);
                        Flat { p: row.as_ptr(), repeated: false }
                    }
                }
            });
        }
        // A wanted result is written to its output and read from there; the others have registers.
        let results = results.as_mut_ptr();
        let place = |at: usize| match fused.outputs.iter().position(|&(_, result)| result == at) {
            // SAFETY: the outputs have `n` elements, and the block is a range of them.
            Some(out) => unsafe { outputs[out].get().add(range.start) },
            // SAFETY: register numbers are below their count, so the block lies inside of `results`.
            None => unsafe { results.add(registers.of[at] * BLOCK) },
        };
        for (at, instruction) in fused.instructions.iter().enumerate() {
            let mut sources = [Flat::NONE; 3];
            for (to, source) in sources.iter_mut().zip(&instruction.operands) {
                *to = match *source {
                    Source::Input(i) => flat[i],
                    Source::Result(i) => Flat { p: place(i), repeated: false },
                };
            }
            let call = Call { sources, params: instruction.params, out: place(at), n: len, stream: false };
            // SAFETY: the step was checked: there are as many sources as the function takes, and they hold `len`
            // elements. The result goes to a register of this thread or to a range of an output that no other block
            // has; if a source is the same memory, the kernel reads each vector before it writes it.
            unsafe { call.dispatch(self.isa(), instruction.kind) };
        }
    }
}
