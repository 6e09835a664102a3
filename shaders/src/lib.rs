//! The WGSL of kiln.
//!
//! Design choices:
//!
//! - A family of kernels is a file in `wgsl/`. Its head describes it: buffers, parameters and constants. Nothing else says
//!   so again: [`Kernel::head`] reads it, and the declarations of the text are made from it.
//! - Variants come from one source: `#if SUBGROUP` takes the lines for devices with subgroups, `${TILE}` is replaced by a
//!   constant that is baked in. Tests compile every source with every set of capabilities and every value that its head
//!   names, and translate each to SPIR-V, MSL and HLSL.
//! - Element-wise chains are kernels made on demand ([`elementwise`]): the functions are WGSL, the chain calls them.
//! - A workgroup is [`WORKGROUP`] invocations in one dimension. Grids of more than 65 535 workgroups are folded into two
//!   dimensions, which the sources undo with `group_number(..)` of `wgsl/common.wgsl`.
//! - All functions take NaN, infinities and signed zeros into account by their bits: compilers of shaders may assume that
//!   there are none where a comparison would ask.
#![forbid(unsafe_code)]

pub mod elementwise;
mod template;

use std::collections::BTreeMap;

pub use template::{Access, Binding, Capabilities, Head};

/// Invocations of a workgroup.
pub const WORKGROUP: u32 = 256;

/// A kernel: a source in WGSL with a head that describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// What it is called in profiles and errors.
    pub name: &'static str,
    source: &'static str,
}

impl Kernel {
    /// Buffers, parameters and constants.
    pub fn head(&self) -> Head {
        template::head(self.source)
    }

    /// The WGSL with these constants for a device of these capabilities. The entry point is `main`.
    pub fn text(&self, constants: &[(&str, u32)], capabilities: Capabilities) -> String {
        let head = self.head();
        let mut text = template::declarations(&head, capabilities);
        template::expand(self.source, &all_constants(constants, capabilities), &find, &mut text);
        text
    }
}

/// The constants that every source may use, and these.
fn all_constants(constants: &[(&str, u32)], capabilities: Capabilities) -> BTreeMap<String, u32> {
    let given = constants.iter().map(|&(name, value)| (name.to_owned(), value));
    let common = [("WORKGROUP", WORKGROUP), ("SUBGROUP", u32::from(capabilities.subgroup))];
    given.chain(common.map(|(name, value)| (name.to_owned(), value))).collect()
}

/// What sources include.
fn find(name: &str) -> Option<&'static str> {
    Some(match name {
        "common" => include_str!("../wgsl/common.wgsl"),
        "math" => include_str!("../wgsl/math.wgsl"),
        "attention_load" => include_str!("../wgsl/attention_load.wgsl"),
        "attention_score" => include_str!("../wgsl/attention_score.wgsl"),
        "attention_step" => include_str!("../wgsl/attention_step.wgsl"),
        "functions" => include_str!("../wgsl/functions.wgsl"),
        "exponentials" => include_str!("../wgsl/exponentials.wgsl"),
        "fold" => include_str!("../wgsl/fold.wgsl"),
        "norm_moments" => include_str!("../wgsl/norm_moments.wgsl"),
        "norm_scale" => include_str!("../wgsl/norm_scale.wgsl"),
        "norm_row" => include_str!("../wgsl/norm_row.wgsl"),
        "norm_apply" => include_str!("../wgsl/norm_apply.wgsl"),
        "precise" => include_str!("../wgsl/precise.wgsl"),
        "reduce_row" => include_str!("../wgsl/reduce_row.wgsl"),
        "reduction" => include_str!("../wgsl/reduction.wgsl"),
        "rows" => include_str!("../wgsl/rows.wgsl"),
        "rows_main" => include_str!("../wgsl/rows_main.wgsl"),
        "top_k_order" => include_str!("../wgsl/top_k_order.wgsl"),
        "top_k_sort_in_groups" => include_str!("../wgsl/top_k_sort_in_groups.wgsl"),
        "team" => include_str!("../wgsl/team.wgsl"),
        "team_main" => include_str!("../wgsl/team_main.wgsl"),
        "halves" => include_str!("../wgsl/halves.wgsl"),
        "cooperative_slice" => include_str!("../wgsl/cooperative_slice.wgsl"),
        "cooperative_step" => include_str!("../wgsl/cooperative_step.wgsl"),
        "gemm" => include_str!("../wgsl/gemm.wgsl"),
        "gemm_finish" => include_str!("../wgsl/gemm_finish.wgsl"),
        "convolve_load" => include_str!("../wgsl/convolve_load.wgsl"),
        "matmul_load" => include_str!("../wgsl/matmul_load.wgsl"),
        "gemm_block" => include_str!("../wgsl/gemm_block.wgsl"),
        "gemm_four" => include_str!("../wgsl/gemm_four.wgsl"),
        "gemm_multiply" => include_str!("../wgsl/gemm_multiply.wgsl"),
        "gemm_step" => include_str!("../wgsl/gemm_step.wgsl"),
        "gemm_sums" => include_str!("../wgsl/gemm_sums.wgsl"),
        "pooling" => include_str!("../wgsl/pooling.wgsl"),
        "weight" => include_str!("../wgsl/weight.wgsl"),
        "exact" => include_str!("../wgsl/exact.wgsl"),
        "fit" => include_str!("../wgsl/fit.wgsl"),
        "q4_k" => include_str!("../wgsl/q4_k.wgsl"),
        "q5_k" => include_str!("../wgsl/q5_k.wgsl"),
        "q6_k" => include_str!("../wgsl/q6_k.wgsl"),
        "q8_0" => include_str!("../wgsl/q8_0.wgsl"),
        "q_affine" => include_str!("../wgsl/q_affine.wgsl"),
        "quantized" => include_str!("../wgsl/quantized.wgsl"),
        _ => return None,
    })
}

macro_rules! kernels {
    ($($(#[doc = $doc:literal])* $name:ident = $file:literal;)*) => {
        $(
            $(#[doc = $doc])*
            pub const $name: Kernel =
                Kernel { name: $file, source: include_str!(concat!("../wgsl/", $file, ".wgsl")) };
        )*

        /// Every kernel.
        pub const KERNELS: &[Kernel] = &[$($name),*];
    };
}

kernels! {
    /// A copy: the limit of whatever reads and writes as much.
    COPY = "copy";
    /// The inner product of two vectors, or parts of it.
    DOT = "dot";
    /// Reductions along an axis that others lie inside of.
    REDUCE_COLUMNS = "reduce_columns";
    /// Reductions along rows, and of everything.
    REDUCE_ROWS = "reduce_rows";
    /// Attention of blocks of queries.
    ATTENTION = "attention";
    /// Attention of a few queries.
    ATTENTION_FEW = "attention_few";
    /// The parts of an attention over split keys, put together.
    ATTENTION_MERGE = "attention_merge";
    /// Numbers as another type.
    CONVERT = "convert";
    /// Convolutions as products in tiles.
    CONVOLVE = "convolve";
    /// Convolutions with few results.
    CONVOLVE_DIRECT = "convolve_direct";
    /// Rows of a table chosen by index.
    GATHER = "gather";
    /// The index that belongs to the first fault of a gather.
    GATHER_FAULT = "gather_fault";
    /// Products of large matrices.
    MATMUL = "matmul";
    /// Products of large matrices of f16 through cooperative matrices.
    MATMUL_COOPERATIVE = "matmul_cooperative";
    /// Products of the columns of a matrix with a few vectors.
    MATVEC_COLUMNS = "matvec_columns";
    /// Products of the rows of a matrix with a few vectors.
    MATVEC_ROWS = "matvec_rows";
    /// Pooling of small windows.
    POOL = "pool";
    /// Pooling of large windows.
    POOL_WIDE = "pool_wide";
    /// Rotary position embedding.
    ROPE = "rope";
    /// The sum of the parts that an operation was split into.
    SPLIT_SUM = "split_sum";
    /// The elements of quantised blocks.
    DEQUANTIZE = "dequantize";
    /// Products of many rows with quantised weights.
    QUANT_MATMUL = "quant_matmul";
    /// Products of a few rows with quantised weights.
    QUANT_MATVEC = "quant_matvec";
    /// Blocks of Q4_K and Q5_K.
    QUANTIZE_AFFINE = "quantize_affine";
    /// Blocks of Q8_0.
    QUANTIZE_ROUNDED = "quantize_rounded";
    /// Blocks of Q6_K.
    QUANTIZE_SYMMETRIC = "quantize_symmetric";
    /// Layer normalisation.
    LAYER_NORM = "layer_norm";
    /// Layer normalisation of long rows, from what is known of them.
    LAYER_NORM_APPLY = "layer_norm_apply";
    /// What is known of parts of rows, joined.
    NORM_JOIN = "norm_join";
    /// What a normalisation has to know of parts of rows.
    NORM_PARTS = "norm_parts";
    /// RMS normalisation.
    RMS_NORM = "rms_norm";
    /// RMS normalisation of long rows, from what is known of them.
    RMS_NORM_APPLY = "rms_norm_apply";
    /// Softmax and its logarithm.
    SOFTMAX = "softmax";
    /// Softmax of long rows, from what their parts have in common.
    SOFTMAX_APPLY = "softmax_apply";
    /// What the parts of long rows have in common, for softmax.
    SOFTMAX_JOIN = "softmax_join";
    /// The greatest elements and the sums of exponentials of parts of rows.
    SOFTMAX_PARTS = "softmax_parts";
    /// Tiles of a matrix reduced, each to one value.
    TILED = "tiled";
    /// The values of tiles reduced to one.
    TILED_FOLD = "tiled_fold";
    /// Sorted runs merged in pairs, as far as they may be among the greatest.
    TOP_K_MERGE = "top_k_merge";
    /// The greatest of parts of long rows.
    TOP_K_SELECT = "top_k_select";
    /// The greatest of short rows, or sorted runs of long ones.
    TOP_K_SORT = "top_k_sort";
    /// The transpose of a stack of matrices.
    TRANSPOSE = "transpose";
}
