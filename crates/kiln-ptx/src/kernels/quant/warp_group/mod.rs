//! The product of many f32 rows with weights in blocks on the tensor cores of Hopper: `yᵢⱼ = Σₖ xᵢₖ Wⱼₖ`.
//!
//! [`HalfRows`] rounds x to f16, in two parts under the contract and in one with a lower precision. [`WarpGroupQuantMatmul`] has
//! weights as the first operand of `wgmma`: a lane decodes those of its rows in registers, to integers that f16 holds exactly. A
//! block of threads has 64 rows of weights for each of its multiplying warp groups, and up to 128 rows of x. Loads and decoding of
//! a warp wait for one another, so four groups multiply where registers suffice for their sums, else two. One further thread copies
//! weights to a ring of stages in shared memory, another x. Blocks of a cluster have other weights and share the copies of x.
//!
//! Products of elements with a common scale are added in a chain by the tensor cores, which round every sum towards zero, and
//! then in f32 to those before it, rounded to nearest.
//!
//! Where there are fewer tiles than multiprocessors, k is cut in parts, and [`JoinParts`] adds them up. Blocks of a cluster could add
//! them up through shared memory, but clusters of four leave multiprocessors idle, and were slower on an H100. Sums that are not
//! finite are computed again product by product; rows of x that f16 cannot hold make them NaN.

mod body;
mod f16_weights;
mod rows;

use kiln_ir::op::RmsNorm;
use kiln_ir::{QuantFormat, Result};

use self::body::Body;
use self::f16_weights::{CHUNK, GROUP, GROUPS, Packing};
pub use self::rows::HalfRows;
use super::Word;
use super::parts::{JoinParts, parts};
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Kernel, Launch, Panels, PtxKernel, PtxType, Target, TensorMap};

/// Threads of a warp group that multiplies, and its rows of weights.
const THREADS_OF_GROUP: u32 = 128;
const TALL: u32 = 64;
/// Maximum rows of x of a block for which registers suffice for four multiplying warp groups.
const FEW_COLUMNS: u32 = 32;
/// Elements of a stage of x along k: a row of a panel.
const DEPTH: u32 = 64;
/// Shared memory of a block, less what barriers and alignment take.
const SHARED: u32 = (227 << 10) - 2048;
/// Maximum extents, because coordinates of copies are signed.
const MOST: u64 = (1 << 31) - 1;

/// The tiles of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarpGroupTiling {
    shape: Shape,
    m: usize,
    depth: usize,
    n: usize,
    /// Number of parts of k.
    parts: u32,
    multiprocessors: u32,
}

impl WarpGroupTiling {
    /// The formats of weights, and numbers of elements of a row: these kernels multiply rows that are multiples of them.
    pub const MULTIPLES: &'static [(QuantFormat, usize)] = &[
        (QuantFormat::Q4_0, 256),
        (QuantFormat::Q4_1, 256),
        (QuantFormat::Q5_0, 256),
        (QuantFormat::Q5_1, 256),
        (QuantFormat::Q8_0, 256),
        (QuantFormat::Iq4Nl, 256),
        (QuantFormat::Mxfp4, 512),
        (QuantFormat::Q4K, 256),
        (QuantFormat::Q5K, 256),
        (QuantFormat::Q6K, 2048),
    ];

    /// Tiles for `m` rows of x of `depth` elements and `n` rows of weights, on a device of this many multiprocessors; `rounds`: elements
    /// of x may be rounded to f16. `None` for targets, formats and extents without such kernels.
    pub fn new(
        format: QuantFormat,
        [m, depth, n]: [usize; 3],
        rounds: bool,
        target: Target,
        multiprocessors: u32,
    ) -> Option<Self> {
        Self::of_round(format, [m, depth], &[n], rounds, target, multiprocessors)?.pop()
    }

    /// The same of each of several matrices of `n` rows of weights, whose products with the same rows of x run at once.
    pub fn of_round(
        format: QuantFormat,
        [m, depth]: [usize; 2],
        n: &[usize],
        rounds: bool,
        target: Target,
        multiprocessors: u32,
    ) -> Option<Vec<Self>> {
        let packing = Packing::of(format).filter(|_| target == Target::Sm90a)?;
        // Copies take rows of weights that are multiples of 16 bytes.
        let chunks = depth / CHUNK as usize;
        let fits = depth > 0 && depth.is_multiple_of(CHUNK as usize) && m > 0 && !n.contains(&0);
        if !fits || !(chunks * packing.bytes() as usize).is_multiple_of(16) {
            return None;
        }
        let columns = m.clamp(16, 128).next_power_of_two() as u32;
        let of = |&n: &usize| {
            let shape = Shape { format, packing, columns, sharing: 1, rounds, is_part: false, adds: false };
            let sharing = if columns == 128 && n > shape.weights() as usize { 2 } else { 1 };
            let shape = Shape { sharing, ..shape };
            Self { shape, m, depth, n, parts: 1, multiprocessors }
        };
        let tilings: Vec<Self> = n.iter().map(of).collect();
        let blocks = |tiling: &Self| tiling.tiles().saturating_mul(tiling.shape.sharing as usize);
        let parts = parts(tilings.iter().map(blocks), multiprocessors as usize, chunks);
        Some(tilings.into_iter().map(|tiling| Self { parts, ..tiling }).collect())
    }

    fn shape(&self, adds: bool) -> Shape {
        let is_part = self.parts > 1;
        Shape { is_part, adds: adds && !is_part, ..self.shape }
    }

    /// Tiles along the rows of x, and along those of weights.
    fn extents(&self) -> [usize; 2] {
        let Shape { columns, sharing, .. } = self.shape;
        [self.m.div_ceil(columns as usize), self.n.div_ceil((self.shape.weights() * sharing) as usize)]
    }

    fn tiles(&self) -> usize {
        let [down, along] = self.extents();
        down.saturating_mul(along)
    }

    /// Bytes of rounded x, of its units, and of the sums of its groups; `None` where they are beyond a `usize`.
    pub fn rounded_bytes(&self) -> Option<[usize; 3]> {
        self.rows(false).bytes(self.m, self.depth)
    }

    /// Bytes of the parts of the result, where there are several; `None` where they are beyond a `usize`.
    pub fn parts_bytes(&self) -> Option<usize> {
        let parts = if self.parts > 1 { self.parts as usize } else { 0 };
        self.m.checked_mul(self.n)?.checked_mul(4 * parts)
    }

    fn rows(&self, is_normed: bool) -> HalfRows {
        HalfRows::new(self.shape.packing, !self.shape.rounds, is_normed)
    }

    /// Whether sums of groups are an operand of the kernels.
    pub fn has_sums(&self) -> bool {
        self.shape.packing.has_minima()
    }

    /// The kernel that rounds x, normalised by `norm` if given, and its launch. Buffers: x; gamma and normalised x if it is normalised;
    /// rounded x, units, and the sums of groups if [`WarpGroupTiling::has_sums`]. The products read normalised x for x.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 rows or elements of a row.
    pub fn rounding(&self, norm: Option<RmsNorm>) -> Result<(HalfRows, Launch)> {
        let rows = self.rows(norm.is_some());
        Ok((rows, rows.launch(self.m, self.depth, norm)?))
    }

    /// The product, and its launch. Buffers: rounded x, units, weights; the parts of the result if there are several, or else the
    /// result, x, and what is added to the result if anything is; and last the sums of groups if [`WarpGroupTiling::has_sums`].
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 for an extent, or 2²⁷ tiles.
    pub fn product(&self, adds: bool) -> Result<(WarpGroupQuantMatmul, Launch)> {
        let shape = self.shape(adds);
        let kernel = WarpGroupQuantMatmul { shape };
        let [rows, depth, weights] = [("rows", self.m), ("elements of a row", self.depth), ("rows of weights", self.n)]
            .map(|(what, asked)| extent(what, asked, MOST));
        let (rows, depth, weights) = (rows?, depth?, weights?);
        let [down, along] = self.extents().map(|tiles| tiles as u32);
        let tiles = extent("tiles", self.tiles().saturating_mul(self.parts as usize), MAX_GRID_X / 16)?;
        let chunks = depth / CHUNK;
        let per = chunks.div_ceil(self.parts);
        let panel = shape.panel().clipped(rows);
        let [wide, tall, deep] = [depth, rows, chunks].map(u64::from);
        let x = panel.tensor_map(0, [wide, tall, u64::from(shape.planes())], [wide, wide * tall]);
        let row_bytes = u64::from(chunks * shape.packing.bytes());
        let of_weights = TensorMap {
            buffer: 2,
            // Two bytes, whatever they are.
            element: PtxType::F16,
            extents: [row_bytes / 2, weights.into(), 1],
            strides: [row_bytes, row_bytes * u64::from(weights)],
            tile: [shape.packing.pitch() / 2, shape.weights(), 1],
            swizzles: false,
        };
        let [units, out, exact, blocks] = [1, 3, 4, 2].map(Argument::Buffer);
        let mut arguments = vec![Argument::Tensor(x), units, Argument::Tensor(of_weights), out];
        if !shape.is_part {
            // Products that are not finite are computed again.
            arguments.extend([exact, blocks]);
        }
        arguments.extend(shape.adds.then_some(Argument::Buffer(5)));
        if self.has_sums() {
            let columns = 2 * u64::from(GROUPS) * deep;
            let buffer = if shape.is_part { 4 } else { 5 + usize::from(shape.adds) };
            arguments.push(Argument::Tensor(panel.tensor_map(buffer, [columns, tall, 1], [columns, columns * tall])));
        }
        let words = [rows, weights, depth, down, along, tiles, per, panel.bytes()];
        arguments.extend(words.map(Argument::U32));
        let clusters = tiles.min((self.multiprocessors / shape.sharing).max(1));
        Ok((kernel, Launch { grid: [clusters * shape.sharing, 1, 1], arguments }))
    }

    /// The kernel that adds up several parts of the result, and its launch. Buffers: parts, result, x, weights, and what is
    /// added to the result if anything is.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 elements of the result or of a row.
    pub fn joining(&self, adds: bool) -> Result<Option<(JoinParts, Launch)>> {
        if self.parts == 1 {
            return Ok(None);
        }
        JoinParts::new(self.shape.format, self.parts, adds).launched([self.m, self.depth, self.n]).map(Some)
    }
}

/// The configuration of a kernel, and derived values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    format: QuantFormat,
    packing: Packing,
    /// Rows of x per block: 16, 32, 64 or 128.
    columns: u32,
    /// Blocks of a cluster, which share x.
    sharing: u32,
    /// Elements of x have one part.
    rounds: bool,
    /// Writes a part of the result.
    is_part: bool,
    adds: bool,
}

impl Shape {
    /// Warp groups that multiply.
    fn groups(self) -> u32 {
        if self.columns <= FEW_COLUMNS { 4 } else { 2 }
    }

    /// Rows of weights per block.
    fn weights(self) -> u32 {
        self.groups() * TALL
    }

    /// Threads of a block: those that multiply, then those that copy.
    fn threads(self) -> u32 {
        (self.groups() + 1) * THREADS_OF_GROUP
    }

    /// Parts of an element of x.
    fn planes(self) -> u32 {
        if self.rounds { 1 } else { 2 }
    }

    /// The panel that a block copies of a part of a stage of x, and of the sums of groups.
    fn panel(self) -> Panels {
        Panels::new(PtxType::F16, self.columns / self.sharing, DEPTH)
    }

    /// The whole part, as a block reads it.
    fn whole_panel(self) -> Panels {
        Panels::new(PtxType::F16, self.columns, DEPTH)
    }

    /// Bytes of a stage of weights, of one of the sums of groups, and of one of x.
    fn stage_bytes(self) -> [u32; 3] {
        let panel = self.whole_panel().bytes();
        let sums = if self.packing.has_minima() { panel } else { 0 };
        [self.weights() * self.packing.pitch(), sums, self.planes() * panel]
    }

    /// Number of stages of weights and of sums, and of stages of x.
    fn stages(self) -> [u32; 2] {
        let [weights, sums, x] = self.stage_bytes();
        let chunks = match self.columns {
            128 => 2,
            64 => 3,
            // A quarter of the memory is for x.
            _ => SHARED / 4 * 3 / (weights + sums),
        };
        let rest = SHARED - chunks * (weights + sums);
        [chunks, (rest / x).min(chunks * (CHUNK / DEPTH))]
    }

    /// Groups of 32 elements that are multiplied at once: more where registers suffice. Weights of Q6_K take twice as many, and where
    /// every group has a unit of its own, its sums take others.
    fn batch(self) -> u32 {
        let takes_more = self.packing == Packing::Q6K || self.columns == FEW_COLUMNS && self.packing.chain() == GROUP;
        if self.columns == 128 || takes_more && self.groups() == 4 && !self.rounds { 1 } else { 2 }
    }

    /// Whether one instruction multiplies both parts of x, which are adjacent in shared memory, each with sums of its own.
    fn is_wide(self) -> bool {
        !self.rounds && self.columns == 16
    }

    /// Whether weights are divided for the second part of x, so that its products have no sums of their own: registers hold them only
    /// for fewer rows of x.
    fn divides(self) -> bool {
        !self.rounds && self.columns == 128
    }

    /// Registers of a thread of the copying warp group, and of the multiplying ones: together at most those that a block gets.
    fn registers(self) -> [u32; 2] {
        if self.groups() == 4 { [32, 112] } else { [40, 232] }
    }
}

/// The product of rounded rows of x with the transpose of weights in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGroupQuantMatmul {
    shape: Shape,
}

impl WarpGroupQuantMatmul {
    /// Every number of rows of one format, the most of the others, whole products and parts, with one part of x and with two, and one
    /// that adds.
    pub fn some() -> Vec<Self> {
        let of = |(format, rows, rounds, multiprocessors): (QuantFormat, usize, bool, u32)| {
            let extents = [rows, 8 * CHUNK as usize, 256];
            // With zero multiprocessors there are no parts.
            let tiling = WarpGroupTiling::new(format, extents, rounds, Target::Sm90a, multiprocessors)?;
            Some(Self { shape: tiling.shape(rows == 64) })
        };
        use QuantFormat::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let whole = [16, 32, 64, 128].map(|rows| (Q4K, rows, false, 0));
        let others = [Q5K, Q6K, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Iq4Nl, Mxfp4].map(|format| (format, 128, false, 0));
        let rounding = [Q4K, Q6K, Q8_0].map(|format| (format, 128, true, 0));
        let parts = [(Q4K, 128, 8), (Q6K, 16, 16), (Q8_0, 32, 4), (Q5_1, 64, 8)]
            .map(|(format, rows, few)| (format, rows, false, few));
        whole.into_iter().chain(others).chain(rounding).chain(parts).filter_map(of).collect()
    }
}

impl Kernel for WarpGroupQuantMatmul {
    fn name(&self) -> String {
        let Shape { format, columns, sharing, rounds, is_part, adds, .. } = self.shape;
        let words = [(sharing > 1, "_pairs"), (rounds, "_rounding"), (is_part, "_part"), (adds, "_adding")];
        let words: String = words.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
        format!("warp_group_quant_matmul_{}_{columns}{words}", format.name())
    }

    fn reads_early(&self, _: Target) -> Option<Vec<usize>> {
        const WEIGHTS: usize = 2;
        Some(vec![WEIGHTS])
    }

    fn blocks_at_once(&self, multiprocessors: u32) -> Option<u32> {
        Some(multiprocessors)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.shape.threads(), 1, 1], |k| Body::new(k, self.shape).write())
    }
}
