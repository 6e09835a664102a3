//! What a GPU does for a graph: launches on memory that is named but not yet there.

use kiln_core::graph::{Location as Tensor, TensorId};
use kiln_ptx::kernels::attention::{Attention, FlashAttention, FlashCombine, WarpGroupAttention};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::gather::Gather;
use kiln_ptx::kernels::gemm::{Gemm, MultistageGemm, SplitSum, Tf32Planes, WarpGemm, WarpGroupGemm};
use kiln_ptx::kernels::half::Convert;
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::quant::{Dequantize, QuantMatmul, WarpQuantMatmul};
use kiln_ptx::kernels::reduce::ReduceLevel;
use kiln_ptx::kernels::rope::Rope;
use kiln_ptx::kernels::softmax::Softmax;
use kiln_ptx::kernels::top_k::TopK;
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::kernels::window::{Convolve, Pool};
use kiln_ptx::{Kernel, Launch, Target};

use crate::options::InputPrecision;

/// What plans are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hardware {
    /// What kernels are written for.
    pub(crate) target: Target,
    pub(crate) multiprocessors: u32,
    pub(crate) input_precision: InputPrecision,
}

impl Hardware {
    /// Whether copies to shared memory run by themselves.
    pub(crate) fn has_copies(&self) -> bool {
        self.target >= Target::Sm80
    }

    /// Whether warps multiply on tensor cores in ways that kernels use.
    pub(crate) fn has_tensor_cores(&self) -> bool {
        self.target >= Target::Sm80
    }

    /// Whether warp groups multiply on tensor cores.
    pub(crate) fn has_warp_groups(&self) -> bool {
        self.target == Target::Sm90a
    }
}

/// Memory of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Location {
    /// That of a tensor of the graph.
    Tensor(Tensor),
    /// Memory of one operation. Operations run one after another, so they share it.
    Scratch(usize),
    /// The words that report one kind of fault.
    Fault(usize),
}

/// Something in the data that only a kernel sees: an index outside of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) op: &'static str,
    pub(crate) bound: usize,
}

macro_rules! codes {
    ($($kernel:ident),*) => {
        /// A kernel as it is configured: what compiled code is found by.
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
codes!(
    Attention,
    Chain,
    Convert,
    Convolve,
    Dequantize,
    FlashAttention,
    FlashCombine,
    Gather,
    Gemm,
    MultistageGemm,
    Norm,
    Pool,
    QuantMatmul,
    ReduceLevel,
    Rope,
    Softmax,
    SplitSum,
    Tf32Planes,
    TopK,
    Transpose,
    WarpGemm,
    WarpGroupAttention,
    WarpGroupGemm,
    WarpQuantMatmul
);

/// One run of a kernel.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) code: Code,
    pub(crate) launch: Launch,
    /// By the numbers that the launch calls them by.
    pub(crate) buffers: Vec<Location>,
}

/// Launches in the order in which they run, and the memory that they need.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) dispatches: Vec<Dispatch>,
    /// Bytes of each slot.
    pub(crate) slots: Vec<u64>,
    /// Bytes of each piece of scratch memory.
    pub(crate) scratch: Vec<u64>,
    pub(crate) faults: Vec<Fault>,
    /// Inputs that are read, with their bytes.
    pub(crate) inputs: Vec<(TensorId, u64)>,
    /// For each wanted tensor, where it lies afterwards.
    pub(crate) results: Vec<(Tensor, u64)>,
}
