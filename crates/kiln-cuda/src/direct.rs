//! Element-wise work from host to host without copies on the device: kernels read operands and write results where the host
//! sees them, part by part. So the bus carries both ways at once, and threads of the host fill some parts and empty others
//! while the device is at the rest: `add` from host to host in benches/cuda.

use std::sync::{Condvar, Mutex, PoisonError};

use kiln_ir::graph::Fetch;
use kiln_ir::op::{Elementwise, Op};
use kiln_ir::{DType, Data, DataMut, Operand, Result, host_copy};
use kiln_ptx::kernels::elementwise::Chain;

use crate::CudaDevice;
use crate::driver::{Begins, Function};
use crate::staging::{BLOCK, Block, THREADS};

/// Elements of a part, as many as a block holds.
const PART: usize = BLOCK / size_of::<f32>();
/// Parts that are filled before the first one is emptied.
const AHEAD: usize = THREADS;
/// Parts that have blocks of their own.
const SLOTS: usize = 2 * AHEAD;

/// The function, if it is one that runs so: of f32 operands with as many elements as the result.
pub(crate) fn takes<'a>(op: &'a Op, inputs: &[Operand<'_>], outputs: &[DataMut<'_>]) -> Option<&'a Elementwise> {
    let Op::Elementwise(function) = op else { return None };
    let [DataMut::F32(out)] = outputs else { return None };
    let whole = |input: &Operand<'_>| input.ty().dtype == DType::F32 && input.data().f32().len() == out.len();
    (!out.is_empty() && inputs.iter().all(whole)).then_some(function)
}

/// Computes a function of operands that [`takes`] has accepted.
///
/// # Errors
/// [`kiln_ir::Error::OutOfMemory`], [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
pub(crate) fn run(device: &CudaDevice, function: &Elementwise, inputs: &[Operand<'_>], out: &mut [f32]) -> Result<()> {
    let chain = Chain::of(function, &vec![Fetch::Whole; inputs.len()], device.inner.hardware.target)?;
    let kernel = device.inner.kernels.get(&chain.clone().into())?;
    let call = Call { chain, kernel: &kernel, params: function.params(), inputs };
    let bytes = size_of_val(out) * (inputs.len() + 1);
    let parts = out.len().div_ceil(PART);
    let mut blocks = device.inner.staging.take((inputs.len() + 1) * parts.min(SLOTS))?.into_iter();
    let slot = |_| Slot::new(blocks.by_ref().take(inputs.len() + 1).collect());
    let slots: Vec<Slot> = (0..parts.min(SLOTS)).map(slot).collect();
    let mut emptied = out.chunks_mut(PART).enumerate();
    let mut steps = Vec::with_capacity(2 * parts);
    for part in 0..parts + AHEAD {
        steps.extend((part < parts).then_some((part, None)));
        if part >= AHEAD {
            steps.extend(emptied.next().map(|(part, out)| (part, Some(out))));
        }
    }
    // Whoever waits for its turn waits for one whose work was given out before.
    host_copy::share(bytes, steps, THREADS, |(part, out)| {
        let (slot, turn) = (&slots[part % SLOTS], 2 * (part / SLOTS));
        match out {
            None => slot.work(turn, |blocks| call.begin(part, blocks)),
            Some(out) => slot.work(turn + 1, |blocks| end(blocks, out)),
        }
    });
    // After an error blocks are given up, which waits for the device.
    let blocks = slots.into_iter().map(Slot::blocks).collect::<Result<Vec<_>>>()?;
    device.inner.staging.put_back(blocks.into_iter().flatten());
    Ok(())
}

/// A function and what it is of.
struct Call<'a> {
    chain: Chain,
    kernel: &'a Function,
    params: [f32; 2],
    inputs: &'a [Operand<'a>],
}

impl Call<'_> {
    /// Fills a part, a block for each operand, and asks for the work on it.
    fn begin(&self, part: usize, blocks: &mut [Block]) -> Result<()> {
        let mut elements = 0;
        for (block, input) in blocks.iter_mut().zip(self.inputs) {
            let all = input.data().f32();
            let own = &all[part * PART..all.len().min((part + 1) * PART)];
            elements = own.len();
            let bytes = Data::F32(own).as_bytes();
            block.memory.write(bytes, bytes.len());
        }
        let lengths = vec![elements; self.inputs.len()];
        let launch = self.chain.launch(elements, &lengths, &[self.params])?;
        let spans: Vec<_> = blocks.iter().map(|block| block.memory.span()).collect();
        self.kernel.launch(&launch, &spans, Begins::Behind)?;
        blocks.last().map_or(Ok(()), |block| block.done.record())
    }
}

/// Waits for a part, and takes its results out of the last block.
fn end(blocks: &mut [Block], out: &mut [f32]) -> Result<()> {
    let Some(block) = blocks.last() else { return Ok(()) };
    block.done.wait()?;
    block.memory.read(DataMut::F32(out).as_bytes());
    Ok(())
}

/// Blocks for a part after another, in turns: each is begun, then ended.
struct Slot {
    turn: Mutex<Turn>,
    next: Condvar,
}

struct Turn {
    number: usize,
    blocks: Vec<Block>,
    result: Result<()>,
}

impl Slot {
    fn new(blocks: Vec<Block>) -> Self {
        Self { turn: Mutex::new(Turn { number: 0, blocks, result: Ok(()) }), next: Condvar::new() }
    }

    /// Waits for this turn and does the work of it, unless one before has failed.
    fn work(&self, number: usize, work: impl FnOnce(&mut [Block]) -> Result<()>) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.next.wait_while(turn, |turn| turn.number != number);
        let mut turn = turn.unwrap_or_else(PoisonError::into_inner);
        if turn.result.is_ok() {
            turn.result = work(&mut turn.blocks);
        }
        turn.number += 1;
        self.next.notify_all();
    }

    /// The blocks, after the last turn.
    fn blocks(self) -> Result<Vec<Block>> {
        let turn = self.turn.into_inner().unwrap_or_else(PoisonError::into_inner);
        turn.result.map(|()| turn.blocks)
    }
}
