//! Element-wise work from host to host without copies in device memory: kernels read operands from pinned memory and write
//! results there, part by part. So the bus is used in both directions at once, and threads of the host fill some parts and
//! empty others while the device works on the rest: `add` from host to host in benches/cuda.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use kiln_device::host_copy;
use kiln_ir::graph::Fetch;
use kiln_ir::op::{Elementwise, Op};
use kiln_ir::{DType, Error, Result, TensorType};
use kiln_ptx::kernels::elementwise::Chain;

use super::staging::{BLOCK, Block, THREADS};
use crate::CudaDevice;
use crate::driver::{Begins, Function};

/// Bytes of a part, which is a block.
const PART: usize = BLOCK;
/// Number of parts that are filled before the first one is emptied.
const AHEAD: usize = THREADS;
/// Number of parts with blocks of their own.
const SLOTS: usize = 2 * AHEAD;

/// An element-wise function that runs so, compiled.
#[derive(Debug)]
pub struct Direct {
    function: Elementwise,
    chain: Chain,
    kernel: Arc<Function>,
    operands: usize,
}

impl Direct {
    /// Whether an operation takes this path: an element-wise function of f32 operands with as many elements as the
    /// result.
    pub(super) fn takes(op: &Op, inputs: &[TensorType]) -> bool {
        let Op::Elementwise(_) = op else { return false };
        let Ok(outputs) = op.infer(inputs) else { return false };
        let elements = outputs.iter().map(|output| output.shape.numel()).next().unwrap_or(0);
        let whole = |input: &TensorType| input.dtype == DType::F32 && input.shape.numel() == elements;
        elements > 0 && outputs.iter().all(|output| output.dtype == DType::F32) && inputs.iter().all(whole)
    }

    /// Compiles a function that [`Direct::takes`] has accepted.
    ///
    /// # Errors
    /// [`Error::Driver`], [`Error::DeviceLost`].
    pub(super) fn new(device: &CudaDevice, op: &Op, operands: usize) -> Result<Self> {
        let Op::Elementwise(function) = *op else {
            return Err(Error::Unsupported { op: op.name(), backend: "the direct path of CUDA" });
        };
        let chain = Chain::of(&function, &vec![Fetch::Whole; operands], device.inner.hardware.target)?;
        let kernel = device.inner.kernels.get(&chain.clone().into())?;
        Ok(Self { function, chain, kernel, operands })
    }

    /// Computes the function of f32 operands with as many elements as the result.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
    pub(super) fn run(&self, device: &CudaDevice, inputs: &[&[u8]], out: &mut [u8]) -> Result<()> {
        let call = Call { direct: self, inputs };
        let blocks_each = self.operands + 1;
        let bytes = out.len() * blocks_each;
        let parts = out.len().div_ceil(PART);
        let count = blocks_each * parts.min(SLOTS);
        let mut blocks = device.inner.staging.take(count, count)?.into_iter();
        let slot = |_| Slot::new(blocks.by_ref().take(blocks_each).collect());
        let slots: Vec<Slot> = (0..parts.min(SLOTS)).map(slot).collect();
        let mut emptied = out.chunks_mut(PART).enumerate();
        let mut steps = Vec::with_capacity(2 * parts);
        for part in 0..parts + AHEAD {
            steps.extend((part < parts).then_some((part, None)));
            if part >= AHEAD {
                steps.extend(emptied.next().map(|(part, out)| (part, Some(out))));
            }
        }
        // A thread that waits for its turn waits for work that was claimed earlier, so this cannot deadlock.
        host_copy::share(bytes, steps, THREADS, |(part, out)| {
            let (slot, turn) = (&slots[part % SLOTS], 2 * (part / SLOTS));
            match out {
                None => slot.work(turn, |blocks| call.begin(part, blocks)),
                Some(out) => slot.work(turn + 1, |blocks| end(blocks, out)),
            }
        });
        // After an error the blocks are dropped, which waits for the device.
        let blocks = slots.into_iter().map(Slot::blocks).collect::<Result<Vec<_>>>()?;
        device.inner.staging.put_back(blocks.into_iter().flatten());
        Ok(())
    }
}

/// One call: a function and its operands.
struct Call<'a> {
    direct: &'a Direct,
    inputs: &'a [&'a [u8]],
}

impl Call<'_> {
    /// Fills a part, a block for each operand, and launches the kernel on it.
    fn begin(&self, part: usize, blocks: &mut [Block]) -> Result<()> {
        let mut elements = 0;
        for (block, all) in blocks.iter_mut().zip(self.inputs) {
            let own = &all[part * PART..all.len().min((part + 1) * PART)];
            elements = own.len() / size_of::<f32>();
            block.memory.write(own, own.len());
        }
        let lengths = vec![elements; self.inputs.len()];
        let launch = self.direct.chain.launch(elements, &lengths, &[self.direct.function.params()])?;
        let spans: Vec<_> = blocks.iter().map(|block| block.memory.span()).collect();
        self.direct.kernel.launch(&launch, &spans, Begins::Behind)?;
        blocks.last().map_or(Ok(()), |block| block.done.record())
    }
}

/// Waits for a part, and copies its results out of the last block.
fn end(blocks: &mut [Block], out: &mut [u8]) -> Result<()> {
    let Some(block) = blocks.last() else { return Ok(()) };
    block.done.wait()?;
    block.memory.read(out);
    Ok(())
}

/// The blocks of every n-th part: each part is begun, then ended.
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

    /// Waits for this turn and runs its work, unless an earlier turn has failed.
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
