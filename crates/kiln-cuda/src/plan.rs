//! Launches: kernels with their arguments, on memory that is named and not allocated yet.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kiln_device::Location;
use kiln_ir::Result;
use kiln_ptx::kernels::all_reduce::AllReduce;
use kiln_ptx::kernels::attention::{
    Attention, CausalSight, FlashAttention, FlashCombine, ScanAttention, ScanCombine, TiledAttention,
    WarpGroupAttention,
};
use kiln_ptx::kernels::cast::Cast;
use kiln_ptx::kernels::channels::Channels;
use kiln_ptx::kernels::compare::{Arithmetic, Compare, Select};
use kiln_ptx::kernels::conv::{Convolve, ConvolveTranspose, Unfold};
use kiln_ptx::kernels::cumsum::Cumsum;
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::experts::{ExpertGemm, GroupByExpert};
use kiln_ptx::kernels::gather::Gather;
use kiln_ptx::kernels::matmul::{FewRowsGemm, Gemm, MultistageGemm, SplitSum, Tf32Planes, WarpGemm, WarpGroupGemm};
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::pooling::Pool;
use kiln_ptx::kernels::quant::{
    Dequantize, HalfRows, JoinParts, QuantMatmul, Quantize, RepairRows, RoundRows, SplitBlocks, SplitRows,
    TiledQuantMatmul, WarpGroupQuantMatmul, WarpQuantMatmul,
};
use kiln_ptx::kernels::reduce::ReduceLevel;
use kiln_ptx::kernels::resize::Resize;
use kiln_ptx::kernels::rope::Rope;
use kiln_ptx::kernels::scatter::{IndexAdd, LastSource, Scatter};
use kiln_ptx::kernels::shape::{Fill, StridedCopy};
use kiln_ptx::kernels::softmax::Softmax;
use kiln_ptx::kernels::sort::{MergeRuns, SortRuns};
use kiln_ptx::kernels::topk::TopK;
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::kernels::write_rows::WriteRows;
use kiln_ptx::{Kernel, Launch, PtxKernel, Target, Together};

use crate::driver::Begins;
use kiln_ir::Precision;

/// The properties of a device that plans depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// The target that kernels are written for.
    pub(crate) target: Target,
    pub(crate) multiprocessors: u32,
    pub(crate) precision: Precision,
}

impl Hardware {
    /// Whether it has asynchronous copies to shared memory.
    pub(crate) fn has_copies(&self) -> bool {
        self.target >= Target::Sm80
    }

    /// Whether products may round their operands to bf16.
    pub(crate) fn rounds(&self) -> bool {
        matches!(self.precision, Precision::Bf16 | Precision::Int8)
    }

    /// Whether it has the tensor core instructions for warps that kernels use.
    pub(crate) fn has_tensor_cores(&self) -> bool {
        self.target >= Target::Sm80
    }

    /// Whether warp groups multiply on tensor cores.
    pub(crate) fn has_warp_groups(&self) -> bool {
        self.target == Target::Sm90a
    }
}

/// A kernel from a program, whose compiled code is cached by its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CustomCode(pub(crate) Arc<PtxKernel>);

impl Hash for CustomCode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text().hash(state);
    }
}

impl Kernel for CustomCode {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    /// Unknown for a program's kernel.
    fn reads_early(&self, _: Target) -> Option<Vec<usize>> {
        None
    }

    fn build(&self) -> PtxKernel {
        (*self.0).clone()
    }
}

macro_rules! codes {
    ($($kernel:ident),*) => {
        /// A configured kernel: the key of compiled code.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub(crate) enum Code {
            $($kernel($kernel),)*
        }

        $(impl From<$kernel> for Code {
            fn from(kernel: $kernel) -> Self {
                Self::$kernel(kernel)
            }
        })*

        impl Code {
            pub(crate) fn kernel(&self) -> &dyn Kernel {
                match self {
                    $(Self::$kernel(kernel) => kernel,)*
                }
            }
        }
    };
}

/// Several launches of a kernel as one.
type Joined = Together<Box<Code>>;

impl Kernel for Code {
    fn name(&self) -> String {
        self.kernel().name()
    }

    fn build(&self) -> PtxKernel {
        self.kernel().build()
    }

    fn reads_early(&self, target: Target) -> Option<Vec<usize>> {
        self.kernel().reads_early(target)
    }

    fn blocks_at_once(&self, multiprocessors: u32) -> Option<u32> {
        self.kernel().blocks_at_once(multiprocessors)
    }
}
codes!(
    AllReduce,
    Arithmetic,
    Attention,
    Cast,
    CausalSight,
    Chain,
    Channels,
    Compare,
    Convolve,
    ConvolveTranspose,
    Cumsum,
    CustomCode,
    Dequantize,
    ExpertGemm,
    FewRowsGemm,
    Fill,
    FlashAttention,
    FlashCombine,
    Gather,
    Gemm,
    GroupByExpert,
    HalfRows,
    IndexAdd,
    JoinParts,
    Joined,
    LastSource,
    MergeRuns,
    MultistageGemm,
    Norm,
    Pool,
    QuantMatmul,
    Quantize,
    ReduceLevel,
    RepairRows,
    Resize,
    Rope,
    RoundRows,
    ScanAttention,
    ScanCombine,
    Scatter,
    Select,
    Softmax,
    SortRuns,
    SplitBlocks,
    SplitRows,
    SplitSum,
    StridedCopy,
    Tf32Planes,
    TiledAttention,
    TiledQuantMatmul,
    TopK,
    Transpose,
    Unfold,
    WarpGemm,
    WarpGroupAttention,
    WarpGroupGemm,
    WarpGroupQuantMatmul,
    WarpQuantMatmul,
    WriteRows
);

/// One run of a kernel.
#[derive(Debug, Clone)]
pub struct Dispatch {
    pub(crate) code: Code,
    pub(crate) launch: Launch,
    /// The buffers, in the order of the numbers that the launch names them by.
    pub(crate) buffers: Vec<Location>,
}

impl Dispatch {
    /// Whether the launch has any blocks.
    fn has_blocks(&self) -> bool {
        !self.launch.grid.contains(&0)
    }

    /// Whether everything that its kernel reads before it waits for preceding launches existed before the plan began.
    /// No launch of a plan writes an input of it.
    fn reads_only_inputs_early(&self, target: Target) -> bool {
        let is_input = |&buffer: &usize| matches!(self.buffers.get(buffer), Some(Location::Input(_)));
        self.code.kernel().reads_early(target).is_some_and(|early| early.iter().all(is_input))
    }
}

/// Maximum blocks of joined launches, for kernels whose blocks do not take work in turns. A device runs about this many
/// at once; with more, launching is a small share of the time. Chosen, not measured.
const FEW_BLOCKS: u32 = 512;

/// Removes redundant preparation of products of a round: each begins with the same launch, which reads x and writes
/// scratch memory that the other launches only read.
fn prepare_once(steps: &mut Vec<Dispatch>, begins: &[usize]) {
    let Some((&first, others)) = begins.split_first() else { return };
    let code = |at: usize| steps.get(at).map(|step| &step.code);
    let prepares = matches!(
        (code(first), code(first + 1)),
        (Some(Code::HalfRows(_) | Code::RoundRows(_) | Code::SplitRows(_)), _)
            | (Some(Code::Cast(_)), Some(Code::SplitBlocks(_)))
    );
    let is_same = |&at: &usize| {
        let (a, b) = (&steps[first], &steps[at]);
        a.code == b.code && a.launch == b.launch && a.buffers == b.buffers
    };
    let ends = others.iter().copied().chain([steps.len()]);
    let has_more = begins.iter().zip(ends).all(|(&begin, end)| end > begin + 1);
    if prepares && has_more && others.iter().all(is_same) {
        for &at in others.iter().rev() {
            steps.remove(at);
        }
    }
}

/// Replaces the launches of a round by one, if each operation has one launch, all run the same kernel, and none uses
/// scratch memory, which the operations of a round share. Sums over devices share the slots of the exchange regions.
pub(crate) fn join(hardware: &Hardware, steps: &mut Vec<Dispatch>, begins: &[usize]) -> Result<()> {
    prepare_once(steps, begins);
    let Some(&begin) = begins.first() else { return Ok(()) };
    let round = &steps[begin..];
    let Some(first) = round.first() else { return Ok(()) };
    let is_own = |step: &Dispatch| !step.buffers.iter().any(|buffer| matches!(buffer, Location::Scratch(_)));
    let blocks =
        |step: &Dispatch| step.launch.grid.iter().fold(1, |blocks: u32, extent| blocks.saturating_mul(*extent));
    let total = round.iter().map(blocks).fold(0, u32::saturating_add);
    let kernel = first.code.kernel();
    let joins = begins.iter().copied().eq(begin..steps.len())
        && round.iter().all(is_own)
        && !matches!(first.code, Code::AllReduce(_))
        && (total <= FEW_BLOCKS || kernel.blocks_at_once(hardware.multiprocessors).is_some());
    if !joins {
        return Ok(());
    }
    if let Some(joined) = together(hardware, round)? {
        steps.truncate(begin);
        steps.push(joined);
    }
    Ok(())
}

/// Launches that have nothing to wait for in one another as one, if they run one kernel that can.
pub(crate) fn together(hardware: &Hardware, steps: &[Dispatch]) -> Result<Option<Dispatch>> {
    let Some(first) = steps.first().filter(|first| steps.iter().all(|step| step.code == first.code)) else {
        return Ok(None);
    };
    let launches: Vec<&Launch> = steps.iter().map(|step| &step.launch).collect();
    let joined = Together::new(Box::new(first.code.clone()), &launches, hardware.multiprocessors)?;
    Ok(joined.map(|(code, launch)| {
        let buffers = steps.iter().flat_map(|step| step.buffers.iter().copied()).collect();
        Dispatch { code: code.into(), launch, buffers }
    }))
}

/// For each launch of a plan, whether it may begin while preceding ones still run.
///
/// The first launch is ordered after all earlier work of the device, so later launches may assume that the inputs of the plan
/// are ready, and may read them before they wait.
pub(crate) fn beginnings(steps: &[Dispatch], target: Target) -> Vec<Begins> {
    let begins = |(number, dispatch): (usize, &Dispatch)| {
        let is_first = !steps[..number].iter().any(Dispatch::has_blocks);
        if !is_first && dispatch.reads_only_inputs_early(target) { Begins::Beside } else { Begins::Behind }
    };
    steps.iter().enumerate().map(begins).collect()
}

#[cfg(test)]
mod tests {
    use kiln_ir::graph::Graph;
    use kiln_ir::op::{QuantMatmul, Softmax as SoftmaxOp, Transpose as TransposeOp};
    use kiln_ir::{DType, QuantFormat, Record, Shape, TensorType};

    use super::*;

    /// Two products, the second of the first one's result, each with its own weights.
    fn plan(target: Target) -> Vec<Dispatch> {
        let format = QuantFormat::Q4K;
        let mut graph = Graph::new();
        let mut x = graph.input(TensorType::f32(Shape::new(&[1, 256]).unwrap()));
        for _ in 0..2 {
            let weights = TensorType { dtype: DType::Blocks(format), shape: Shape::new(&[256, 256]).unwrap() };
            let weights = graph.input(weights);
            x = graph.record(QuantMatmul { format }, &[x, weights]).unwrap();
        }
        let hardware = Hardware { target, multiprocessors: 132, precision: Precision::Contract };
        kiln_device::Plan::<crate::CudaDevice>::new(&graph, &[x], &hardware).unwrap().steps
    }

    #[test]
    fn launches_begin_beside_others_where_what_they_read_early_is_there() {
        use Begins::{Behind, Beside};
        let begin = |plan: &[Dispatch]| beginnings(plan, Target::Sm90a);
        assert_eq!(begin(&plan(Target::Sm90a)), [Behind, Beside]);
        assert_eq!(beginnings(&plan(Target::Sm80), Target::Sm80), [Behind, Behind], "kernels that wait for nothing");
        for unsettled in [Location::Scratch(0), Location::Slot(0)] {
            let mut plan = plan(Target::Sm90a);
            plan[1].buffers[1] = unsettled;
            assert_eq!(begin(&plan), [Behind, Behind], "weights that a launch may write: {unsettled:?}");
        }
        let mut plan = plan(Target::Sm90a);
        plan[0].launch.grid = [0, 1, 1];
        assert_eq!(begin(&plan), [Behind, Behind], "the second is the first that runs");
    }

    #[test]
    fn products_of_one_tensor_are_one_launch() {
        let formats = [QuantFormat::Q4K, QuantFormat::Q4K, QuantFormat::Q6K, QuantFormat::Q4K];
        let mut graph = Graph::new();
        let x = graph.input(TensorType::f32(Shape::new(&[1, 256]).unwrap()));
        let wanted = formats.map(|format| {
            let weights = TensorType { dtype: DType::Blocks(format), shape: Shape::new(&[256, 256]).unwrap() };
            let weights = graph.input(weights);
            let y = graph.record(QuantMatmul { format }, &[x, weights]).unwrap();
            graph.record(SoftmaxOp, &[y]).unwrap()
        });
        let hardware = Hardware { target: Target::Sm90a, multiprocessors: 132, precision: Precision::Contract };
        let steps = kiln_device::Plan::<crate::CudaDevice>::new(&graph, &wanted, &hardware).unwrap().steps;
        let names: Vec<String> = steps.iter().map(|step| step.code.kernel().name()).collect();
        assert_eq!(names[0], "warp_quant_matmul_q4_K_1_overlapping_together_3");
        assert!(names[1].starts_with("softmax") && names[1].ends_with("_together_3"), "{names:?}");
        assert_eq!(names[2], "warp_quant_matmul_q6_K_1_overlapping");
        assert_eq!((names.len(), steps[0].buffers.len()), (4, 9));
        assert_eq!(steps[0].code.kernel().reads_early(Target::Sm90a), Some(vec![1, 4, 7]));
        // All weights are inputs, so it may begin while preceding launches run.
        assert!(steps[0].reads_only_inputs_early(Target::Sm90a));
    }

    #[test]
    fn launches_with_scratch_memory_or_many_blocks_stay_apart() {
        let of = |blocks: u32, at: Location| {
            let launch = Launch { grid: [blocks, 1, 1], ..plan(Target::Sm80)[0].launch.clone() };
            Dispatch { code: Transpose.into(), launch, buffers: vec![at, Location::Slot(1)] }
        };
        let hardware = Hardware { target: Target::Sm80, multiprocessors: 132, precision: Precision::Contract };
        for (blocks, at) in [(FEW_BLOCKS, Location::Slot(0)), (1, Location::Scratch(0))] {
            let mut steps = vec![of(blocks, at), of(blocks, Location::Slot(2))];
            join(&hardware, &mut steps, &[0, 1]).unwrap();
            assert_eq!(steps.len(), 2, "{blocks} {at:?}");
        }
        let sum = AllReduce::new(2, 64).unwrap();
        let of = |x: usize| {
            let buffers = [x, x + 1].into_iter().chain(4..7).map(Location::Slot);
            Dispatch { code: sum.into(), launch: sum.launch(64, 132).unwrap(), buffers: buffers.collect() }
        };
        let mut steps = vec![of(0), of(2)];
        join(&hardware, &mut steps, &[0, 1]).unwrap();
        assert_eq!(steps.len(), 2, "sums over devices");
    }

    #[test]
    fn from_hopper_on_every_kernel_but_those_of_programs_waits() {
        let mut graph = Graph::new();
        let x = graph.input(TensorType::f32(Shape::new(&[4, 64]).unwrap()));
        let y = graph.record(SoftmaxOp, &[x]).unwrap();
        let y = graph.record(TransposeOp, &[y]).unwrap();
        for (target, second) in [(Target::Sm90a, Begins::Beside), (Target::Sm80, Begins::Behind)] {
            let hardware = Hardware { target, multiprocessors: 132, precision: Precision::Contract };
            let steps = kiln_device::Plan::<crate::CudaDevice>::new(&graph, &[y], &hardware).unwrap().steps;
            assert_eq!(beginnings(&steps, target), [Begins::Behind, second]);
            let waits = |step: &Dispatch| step.code.kernel().build_for(target).text().contains("griddepcontrol.wait");
            assert!(steps.iter().all(|step| waits(step) == (target == Target::Sm90a)), "{target}");
        }
    }
}
