#![doc = include_str!("../README.md")]
//!
//! Source map (modules without a link are private; the crate exports their public items at its root):
//!
//! | module | what it holds |
//! |---|---|
//! | `lib.rs` | [`Kernel`], and the table of all kernels ([`KERNELS`]), each a constant such as [`DOT`] |
//! | `wgsl/` | the sources, in a folder for each family; `build.rs` removes their comments and spaces |
//! | `template` | the [`Head`] of a kernel, the [`Capabilities`] of a device, and the text for both |
//! | `symbols` | names for the values of enumerations that kernels are compiled for ([`Symbolic`]) |
//! | `together` | [`Together`]: several kernels as one module and one dispatch |
//! | [`elementwise`] | kernels for chains of element-wise functions, made on demand |
//! | [`numerics`] | error bounds of shaders that differ from those of kiln-ir |
//!
//! Design choices:
//!
//! - A family of kernels is a folder in `wgsl/`, and one table names the files. The head of a kernel describes it: buffers,
//!   parameters and constants. Nothing else says so again: [`Kernel::head`] reads it, and the declarations of the text are
//!   made from it.
//! - Variants come from one source: `#if SUBGROUP` takes the lines for devices with subgroups, `${TILE}` is replaced by a
//!   constant that is baked in. Where a constant is an enumeration of kiln-ir, sources compare it with names that are
//!   generated from its table: `#if REDUCTION == REDUCE_MEAN`. `#for i TALL` repeats the lines up to `#endfor`, and `#set TALL 2` makes a
//!   constant. Tests compile every source with every set of capabilities and every value that its head names, and translate each to
//!   SPIR-V, MSL and HLSL.
//! - Element-wise chains are kernels made on demand ([`elementwise`]): the functions are WGSL, the chain calls them.
//! - A workgroup is [`WORKGROUP`] invocations in one dimension, or half as many in some kernels with cooperative matrices. Grids of more
//!   than 65 535 workgroups are folded into two dimensions, which the sources undo with `group_number(..)` of `wgsl/shared/common.wgsl`.
//! - All functions take NaN, infinities and signed zeros into account by their bits: compilers of shaders may assume that
//!   these do not occur where a comparison would ask.
#![forbid(unsafe_code)]

/// The text of a file in the folder of a family, as `build.rs` prepares it: without comments, indentation and most spaces.
macro_rules! source {
    ($family:ident, $file:ident) => {
        include_str!(concat!(env!("OUT_DIR"), "/", stringify!($family), "/", stringify!($file), ".wgsl"))
    };
}

/// The text of a file of kernels with cooperative matrices. Browsers do not offer these, so the text is empty in modules for them.
#[cfg(not(target_arch = "wasm32"))]
macro_rules! native_source {
    ($family:ident, $file:ident) => {
        source!($family, $file)
    };
}
#[cfg(target_arch = "wasm32")]
macro_rules! native_source {
    ($family:ident, $file:ident) => {
        ""
    };
}

pub mod elementwise;
pub mod numerics;
mod symbols;
mod template;
mod together;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use kiln_ir::op::Reduction;

pub use symbols::{Symbolic, constant, number};
pub use template::{Access, Binding, Capabilities, Head};
pub use together::{Configured, Together};

/// Invocations of a workgroup.
pub const WORKGROUP: u32 = 256;

/// A kernel: a source in WGSL with a head that describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Its name in profiles and errors.
    pub name: &'static str,
    source: &'static str,
    /// Whether it is a kernel of a program, in which marks of trust and of features have no effect.
    custom: bool,
}

impl Kernel {
    /// A kernel of a program. Marks that ask for trust or for features of a device are without effect in its head.
    pub const fn custom(name: &'static str, source: &'static str) -> Self {
        Self { name, source, custom: true }
    }

    /// Buffers, parameters and constants.
    pub fn head(&self) -> Head {
        let head = template::head(self.source);
        match self.custom {
            true => Head { trusted: false, cooperative: false, ..head },
            false => head,
        }
    }

    /// The WGSL with these constants for a device of these capabilities. The entry point is `main`.
    pub fn text(&self, constants: &[(&str, u32)], capabilities: Capabilities) -> String {
        let head = self.head();
        let mut text = template::declarations(&head, capabilities);
        symbols::declarations(constants, &mut text);
        template::expand(self.source, &mut all_constants(constants, capabilities), &find, &mut text);
        text
    }
}

/// The constants that every source may use, and these.
fn all_constants(constants: &[(&str, u32)], capabilities: Capabilities) -> BTreeMap<String, u32> {
    let given = constants.iter().map(|&(name, value)| (name.to_owned(), value));
    let common = [("WORKGROUP", WORKGROUP), ("SUBGROUP", u32::from(capabilities.subgroup))];
    given.chain(common.map(|(name, value)| (name.to_owned(), value))).collect()
}

/// Words of what a reduction knows of some elements, as its sources declare it.
pub fn state_words(reduction: Reduction) -> usize {
    static WORDS: LazyLock<Vec<(Reduction, usize)>> = LazyLock::new(|| {
        let words = |&reduction: &Reduction| {
            let text = REDUCE_ROWS.text(&[constant(reduction)], Capabilities::PLAIN);
            let words = text.lines().find_map(|line| line.strip_prefix("const STATE_WORDS: u32=")?.strip_suffix("u;"));
            (reduction, words.and_then(|words| words.parse().ok()).unwrap_or(0))
        };
        Reduction::ALL.iter().map(words).collect()
    });
    WORDS.iter().find(|(other, _)| *other == reduction).map_or(0, |(_, words)| *words)
}

/// The text of a file that others include.
fn find(name: &str) -> Option<&'static str> {
    INCLUDES.iter().find(|(_, file, _)| *file == name).map(|(_, _, text)| *text)
}

macro_rules! sources {
    ($($family:ident includes [$($part:ident),*] {
        $($(#[doc = $doc:literal])* $kernel:ident = $file:ident;)*
    } $(@natively includes [$($native_part:ident),*] {
        $($(#[doc = $native_doc:literal])* $native:ident = $native_file:ident;)*
    })?)*) => {
        $($(
            $(#[doc = $doc])*
            pub const $kernel: Kernel = Kernel { name: stringify!($file), source: source!($family, $file), custom: false };
        )*
        $($(
            $(#[doc = $native_doc])*
            pub const $native: Kernel =
                Kernel { name: stringify!($native_file), source: native_source!($family, $native_file), custom: false };
        )*)?)*

        /// Every kernel.
        pub const KERNELS: &[Kernel] = &[$($($kernel,)* $($($native,)*)?)*];

        /// The files that others include, with their families and texts.
        const INCLUDES: &[(&str, &str, &str)] = &[$(
            $((stringify!($family), stringify!($part), source!($family, $part)),)*
            $($((stringify!($family), stringify!($native_part), native_source!($family, $native_part)),)*)?
        )*];

        /// The families of [`KERNELS`].
        #[cfg(test)]
        const FAMILIES: &[&str] =
            &[$($({ let _ = $kernel; stringify!($family) },)* $($({ let _ = $native; stringify!($family) },)*)?)*];
    };
}

// The files in `wgsl/`. A family is a folder: the files that others include, then the kernels, each as its constant and its
// file, which names the kernel in profiles and errors. No two files have one name, so `#include` needs no family. Files of
// kernels with cooperative matrices come after `@natively`.
sources! {
    shared includes [common, math, precise, rows, rows_main, storage, team, team_main] {
        /// A copy: the limit for kernels that read and write as many bytes.
        COPY = copy;
        /// The sum of the parts that an operation was split into.
        SPLIT_SUM = split_sum;
    }
    elementwise includes [angle, elementwise, functions, power] {}
    reduce includes [fold, reduce_row, reduction, state_key, state_plain, state_position, state_product, state_squares, state_sum] {
        /// The inner product of two vectors, or parts of it.
        DOT = dot;
        /// Reductions along an axis that others lie inside of.
        REDUCE_COLUMNS = reduce_columns;
        /// Reductions along rows, and of everything.
        REDUCE_ROWS = reduce_rows;
        /// Tiles of a matrix reduced, each to one value.
        TILED = tiled;
        /// The values of tiles reduced to one.
        TILED_FOLD = tiled_fold;
    }
    softmax includes [exponentials] {
        /// Softmax and its logarithm.
        SOFTMAX = softmax;
        /// Softmax of long rows, from the joined maximum and sum of their parts.
        SOFTMAX_APPLY = softmax_apply;
        /// The joined maximum and sum of the parts of long rows, for softmax.
        SOFTMAX_JOIN = softmax_join;
        /// The greatest elements and the sums of exponentials of parts of rows.
        SOFTMAX_PARTS = softmax_parts;
    }
    norm includes [norm_apply, norm_factors, norm_moments, norm_row, norm_scale] {
        /// Channels scaled and shifted, by their own numbers alone or by means and variances, too.
        CHANNELS = channels;
        /// Layer normalisation.
        LAYER_NORM = layer_norm;
        /// Layer normalisation of long rows, from their joined statistics.
        LAYER_NORM_APPLY = layer_norm_apply;
        /// The joined statistics of parts of rows.
        NORM_JOIN = norm_join;
        /// The statistics of parts of rows for a normalisation.
        NORM_PARTS = norm_parts;
        /// RMS normalisation.
        RMS_NORM = rms_norm;
        /// RMS normalisation of long rows, from what is known of them.
        RMS_NORM_APPLY = rms_norm_apply;
    }
    matmul includes [gemm, gemm_block, gemm_finish, gemm_four, gemm_multiply, gemm_step, gemm_sums, matmul_load, rows_of_matrix] {
        /// Products of large matrices.
        MATMUL = matmul;
        /// Products of the columns of a matrix with a few vectors.
        MATVEC_COLUMNS = matvec_columns;
        /// Products of the rows of a matrix with a few vectors.
        MATVEC_ROWS = matvec_rows;
    } @natively includes [cooperative_slice, cooperative_step, tiles_in_bands] {
        /// Products of large matrices of f16 through cooperative matrices.
        MATMUL_COOPERATIVE = matmul_cooperative;
    }
    quant includes [book, book_normal, exact, few_rows, fit, grid, grid_book, grid_whole, iq4_nl, iq4_xs, line_range, line_sums, mxfp4, nibbles, q2_k, q3_k, q4_0, q4_0_words, q4_1,
        q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, q_affine, quant_rows, quantized, whole_blocks, words, write_iq4_xs, write_q2_k, write_q3_k,
        write_q4_k, write_q6_k] {
        /// The elements of quantised blocks.
        DEQUANTIZE = dequantize;
        /// Products of many rows with quantised weights.
        QUANT_MATMUL = quant_matmul;
        /// Products of a few rows with quantised weights.
        QUANT_MATVEC = quant_matvec;
        /// Gates of products of one row with quantised weights.
        QUANT_GATED = quant_gated;
        /// Blocks of 256 elements with scales and minima of sub-blocks.
        QUANTIZE_AFFINE = quantize_affine;
        /// Blocks of MXFP4.
        QUANTIZE_MXFP4 = quantize_mxfp4;
        /// Blocks of Q8_0.
        QUANTIZE_ROUNDED = quantize_rounded;
        /// Blocks of 32 elements with a scale.
        QUANTIZE_SCALED = quantize_scaled;
        /// Blocks of 32 elements with a scale and an offset.
        QUANTIZE_SHIFTED = quantize_shifted;
        /// Blocks of 256 elements with scales of sub-blocks.
        QUANTIZE_SYMMETRIC = quantize_symmetric;
    } @natively includes [quant_exact, quant_slice] {
        /// Products of many rows with quantised weights through cooperative matrices.
        QUANT_COOPERATIVE = quant_cooperative;
        /// The same for formats whose weights are integers times a step.
        QUANT_COOPERATIVE_INTEGERS = quant_cooperative_integers;
        /// Rows of x as numbers of f16 and what they leave, for products through cooperative matrices.
        QUANT_SPLIT = quant_split;
    }
    experts includes [chosen] {
        /// Products of rows with the quantised weights of their experts.
        EXPERT_BLOCKS = expert_blocks;
        /// Products of rows with the matrices of floats of their experts.
        EXPERT_ROWS = expert_rows;
        /// Products with the same expert, brought together.
        EXPERTS_GROUP = experts_group;
    }
    conv includes [convolve_load] {
        /// Convolutions as products in tiles.
        CONVOLVE = convolve;
        /// Convolutions with few results.
        CONVOLVE_DIRECT = convolve_direct;
        /// Transposed convolutions.
        CONVOLVE_TRANSPOSE = convolve_transpose;
    }
    pooling includes [pooling] {
        /// Pooling of small windows.
        POOL = pool;
        /// Pooling of large windows.
        POOL_WIDE = pool_wide;
    }
    resize includes [] {
        /// Images with another number of rows and columns.
        RESIZE = resize;
    }
    attention includes [attention_blocks, attention_load, attention_merged, attention_scan, attention_score, attention_score_of,
        attention_scores_of, attention_seen, attention_step, attention_stored, weight] {
        /// Attention of blocks of queries.
        ATTENTION = attention;
        /// Attention of a few queries.
        ATTENTION_FEW = attention_few;
        /// Attention of a few queries that see a part of the keys, over keys and values of several types.
        ATTENTION_FEW_MORE = attention_few_more;
        /// The parts of an attention over split keys, put together.
        ATTENTION_MERGE = attention_merge;
        /// The parts of an attention with sinks or of queries that may see nothing, put together.
        ATTENTION_MERGE_MORE = attention_merge_more;
        /// Attention of blocks of queries that see a part of the keys.
        ATTENTION_MORE = attention_more;
        /// The keys that queries see.
        ATTENTION_SIGHTS = attention_sights;
    }
    rope includes [] {
        /// Rotary position embedding.
        ROPE = rope;
    }
    gather includes [] {
        /// Rows of a table chosen by index.
        GATHER = gather;
        /// The index that belongs to the first fault of a gather.
        GATHER_FAULT = gather_fault;
    }
    scatter includes [] {
        /// Rows of a tensor replaced by others.
        WRITE_ROWS = write_rows;
        /// Rows added to those of a table.
        INDEX_ADD = index_add;
        /// The source of each row of a table that rows are written to.
        SCATTER_SOURCES = scatter_sources;
    }
    sort includes [sort_key] {}
    topk includes [float_order, top_k_key, top_k_order, top_k_sort_in_groups] {
        /// Sorted runs merged in pairs, as far as they may be among the greatest.
        TOP_K_MERGE = top_k_merge;
        /// The greatest of parts of long rows.
        TOP_K_SELECT = top_k_select;
        /// The greatest of short rows, or sorted runs of long ones.
        TOP_K_SORT = top_k_sort;
    }
    cast includes [halves] {
        /// Elements as those of another type.
        CAST = cast;
    }
    cumsum includes [scan] {
        /// Sums of all elements up to each, of parts of rows.
        CUMSUM = cumsum;
        /// The sums of parts of rows.
        CUMSUM_TOTALS = cumsum_totals;
    }
    compare includes [] {
        /// A function of each pair of integers.
        ARITHMETIC = arithmetic;
        /// Whether a comparison holds, for each pair of elements.
        COMPARE = compare;
        /// Elements of one tensor where a condition holds, and of another elsewhere.
        SELECT = select;
    }
    transpose includes [] {
        /// The transpose of a stack of matrices.
        TRANSPOSE = transpose;
    }
    shape includes [strided] {
        /// One value everywhere.
        FILL = fill;
        /// Words moved from one strided arrangement to another.
        STRIDED_COPY = strided_copy;
        /// Parts of words moved from one strided arrangement to another.
        STRIDED_COPY_PARTS = strided_copy_parts;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_table_has_every_file_and_no_two_of_one_name() {
        let includes = INCLUDES.iter().map(|&(family, file, _)| (family, file));
        let listed: Vec<_> =
            includes.chain(FAMILIES.iter().copied().zip(KERNELS.iter().map(|kernel| kernel.name))).collect();
        let names: BTreeSet<_> = listed.iter().map(|(_, file)| *file).collect();
        assert_eq!(names.len(), listed.len(), "{listed:?}");
        let mut found = BTreeSet::new();
        for family in Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl").read_dir().unwrap() {
            let family = family.unwrap();
            for file in family.path().read_dir().unwrap() {
                let file = file.unwrap().path();
                found.insert((
                    family.file_name().into_string().unwrap(),
                    file.file_stem().unwrap().to_str().unwrap().to_owned(),
                ));
            }
        }
        let listed: BTreeSet<_> =
            listed.into_iter().map(|(family, file)| (family.to_owned(), file.to_owned())).collect();
        assert_eq!(listed, found);
    }

    /// Every text, with the constants that it compares (`#if NAME == values`) or is tested with (`#constant NAME = values`).
    fn comparisons() -> Vec<(&'static str, &'static str)> {
        let texts = KERNELS.iter().map(|kernel| kernel.source).chain(INCLUDES.iter().map(|(_, _, text)| *text));
        let compared = |line: &'static str| line.trim_start().strip_prefix("#if ")?.split_once("==");
        let tested = |line: &'static str| line.strip_prefix("#constant ")?.split_once('=');
        let pairs = texts.flat_map(str::lines).filter_map(|line| compared(line).or_else(|| tested(line)));
        pairs.flat_map(|(name, values)| values.split(',').map(|value| (name.trim(), value.trim()))).collect()
    }

    #[test]
    fn enumerations_are_compared_by_name_and_nothing_else_is() {
        let mut seen = BTreeSet::new();
        for (constant, value) in comparisons() {
            let number = value.parse::<u32>().is_ok();
            match symbols::symbols(constant) {
                Some(symbols) => {
                    assert!(value == "all" || symbols.iter().any(|symbol| symbol == value), "{constant} == {value}");
                    seen.insert(constant);
                }
                None => assert!(number, "{constant} == {value}"),
            }
        }
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            [
                "COMPARISON",
                "FORMAT",
                "FROM_TYPE",
                "FUNCTION",
                "GATE",
                "REDUCTION",
                "STORED",
                "STORED_A",
                "STORED_B",
                "TO_TYPE"
            ]
        );
    }

    #[test]
    fn every_reduction_has_a_row_in_the_sources() {
        let rows: Vec<&str> =
            find("reduction").unwrap().lines().filter_map(|line| line.strip_prefix("#if REDUCTION == ")).collect();
        assert_eq!(rows, Reduction::ALL.iter().map(|reduction| reduction.symbol()).collect::<Vec<_>>());
    }

    #[test]
    fn kernels_of_programs_are_not_trusted() {
        let source = "#trusted it says so\n#cooperative it says so\n#input x: array<f32>\n#include common\n";
        let kernel = Kernel::custom("own", source);
        assert!(!kernel.head().trusted && !kernel.head().cooperative && kernel.head().bindings.len() == 1);
        let text = kernel.text(&[], Capabilities::PLAIN);
        assert!(text.contains("fn group_number") && !text.contains("enable"), "{text}");
    }

    #[test]
    fn every_file_that_is_listed_is_included() {
        let texts = KERNELS.iter().map(|kernel| kernel.source).chain(INCLUDES.iter().map(|(_, _, text)| *text));
        let included: BTreeSet<_> =
            texts.flat_map(str::lines).filter_map(|line| line.trim_start().strip_prefix("#include ")).collect();
        for (family, file, _) in INCLUDES {
            // Chains of element-wise functions begin with that file.
            assert!(included.contains(file) || *file == "elementwise", "{family}/{file}");
        }
        for name in included {
            assert!(find(name.trim()).is_some(), "{name}");
        }
    }
}
