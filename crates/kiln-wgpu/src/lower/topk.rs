//! The first k elements of rows in an order: the k greatest, or all of a sorted row.
//!
//! Short rows are sorted in the memory of a workgroup. Of long rows workgroups select the k greatest of parts, then of what
//! these leave, until one part is left. Where k is too large for that, sorted runs are merged.

use kiln_ir::op::TopK;
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{Kernel, number};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice};
use kiln_device::Location;

/// Candidates in the memory of a workgroup, as in the sources.
const SORTED: usize = 2048;
/// Maximum k that a workgroup selects: it reads as many candidates at once.
const SELECTED: usize = 1024;
/// Minimum length of a part of a row, and the number of parts that keeps a large device busy.
const SHORTEST: usize = 4096;
const BUSY: usize = 512;

/// Candidates: encoded, or as values and positions.
#[derive(Debug, Clone, Copy)]
struct Found {
    values: Slice,
    indices: Slice,
}

/// The rows of one dispatch.
#[derive(Debug, Clone, Copy)]
struct Rows {
    x: Slice,
    rows: usize,
    n: usize,
    k: usize,
    order: Order,
}

/// The order of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The greatest number, NaN before all.
    Greatest,
    /// The least or the greatest element of a type of words, NaN last.
    Sorted { ascending: bool, dtype: DType },
}

impl Order {
    /// Constants of the kernel that computes keys.
    fn constants(self) -> [(&'static str, u32); 3] {
        let (sorted, ascending, dtype) = match self {
            Self::Greatest => (false, false, DType::F32),
            Self::Sorted { ascending, dtype } => (true, ascending, dtype),
        };
        [("SORTED", sorted.into()), ("ASCENDING", ascending.into()), ("STORED", number(dtype))]
    }
}

impl Lower<GpuDevice> for TopK {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        of_rows(plan, inputs[0], self.k, Order::Greatest, [outputs[0], outputs[1]])
    }
}

/// The first k elements of every row, and their positions.
pub(super) fn of_rows(plan: &mut Lowering<'_>, x: Value, k: usize, order: Order, outputs: [Value; 2]) -> Result<()> {
    let n = x.ty.shape.columns();
    let merges = n > SORTED && (k > SELECTED || order != Order::Greatest);
    // What is selected takes less than the rows.
    let candidates = if merges { levels(n, k).map(|level| level.runs * level.kept).max().unwrap_or(0) } else { 0 };
    let pieces = pieces(&plan.target.limits, x.ty.shape.rows(), &[4 * n, 4 * k, 4 * candidates]);
    // All pieces share the scratch memory of the first, which is the longest.
    let mut scratch = Scratch { sets: [None; 2], words: 0 };
    for piece in pieces {
        let rows = Rows { x: piece.of(x, 4 * n), rows: piece.len, n, k, order };
        let [values, indices] = outputs.map(|output| piece.of(output, 4 * k));
        let out = Found { values, indices };
        match n {
            0..=SORTED => rows.sort(plan, n.next_power_of_two().max(2), k, true, out),
            _ if merges => rows.merge(plan, &mut scratch, out)?,
            _ => rows.select(plan, &mut scratch, out)?,
        }
    }
    Ok(())
}

/// Sorted runs of rows that are merged in pairs: their length, their number in a row, and how many elements of each are kept.
#[derive(Debug, Clone, Copy)]
struct Level {
    size: usize,
    runs: usize,
    kept: usize,
}

/// The levels of runs of rows of `n` elements if the first `k` are wanted: each has half as many runs of twice the
/// length, with one more if the number is odd. The runs of the last are merged to the result.
fn levels(n: usize, k: usize) -> impl Iterator<Item = Level> {
    let level = move |size: usize| Level { size, runs: n.div_ceil(size), kept: k.min(size) };
    std::iter::successors(Some(SORTED), |size| size.checked_mul(2)).map(level).take_while(|level| level.runs > 1)
}

/// Two sets of candidates: one is read while the other is written.
struct Scratch {
    sets: [Option<[Location; 2]>; 2],
    words: usize,
}

impl Scratch {
    fn get(&mut self, plan: &mut Lowering<'_>, number: usize, words: usize) -> Result<Found> {
        let set = &mut self.sets[number % 2];
        if set.is_none() || self.words < words {
            self.words = self.words.max(words);
            let ty = TensorType::u32(Shape::new(&[self.words])?);
            *set = Some([plan.scratch(ty).at, plan.scratch(ty).at]);
        }
        let [values, indices] = set.unwrap_or([Location::Scratch(0); 2]).map(|at| Slice::new(at, 4 * words));
        Ok(Found { values, indices })
    }
}

impl Rows {
    fn dispatch(
        &self,
        plan: &mut Lowering<'_>,
        kernel: Kernel,
        constants: Vec<(&'static str, u32)>,
        (read, write): (Option<Found>, Found),
        params: &[usize],
        groups: usize,
    ) {
        // A kernel that reads no candidates ignores their buffers.
        let read = read.unwrap_or(Found { values: self.x, indices: self.x });
        let buffers = match kernel {
            kiln_shaders::TOP_K_SORT => vec![self.x, write.values, write.indices],
            _ => vec![self.x, read.values, read.indices, write.values, write.indices],
        };
        let params: Vec<_> = params.iter().map(|&param| param.into()).collect();
        plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, Grid::groups_of(groups));
    }

    /// Sorts runs of `size` and keeps this many elements of each.
    fn sort(&self, plan: &mut Lowering<'_>, size: usize, kept: usize, last: bool, out: Found) {
        let runs = self.n.div_ceil(size);
        let total = self.rows * runs;
        let params = [self.n, runs, size, kept, total];
        let mut constants = vec![("LAST", last.into())];
        constants.extend(self.order.constants());
        let groups = total.div_ceil(SORTED / size);
        self.dispatch(plan, kiln_shaders::TOP_K_SORT, constants, (None, out), &params, groups);
    }

    fn select(&self, plan: &mut Lowering<'_>, scratch: &mut Scratch, out: Found) -> Result<()> {
        let Self { rows, n, k, .. } = *self;
        let mut candidates = None;
        let mut count = n;
        for level in 0.. {
            // The result of a part must be far smaller than the part.
            let shortest = SHORTEST.max(4 * k);
            let parts = (BUSY / rows).clamp(1, count.div_ceil(shortest));
            let span = count.div_ceil(parts);
            let parts = count.div_ceil(span);
            let last = parts == 1;
            let found = if last { out } else { scratch.get(plan, level, rows * parts * k)? };
            let constants = vec![("FROM", candidates.is_some().into()), ("LAST", last.into())];
            let params = [n, count, parts, span, k, rows * parts];
            let buffers = (candidates, found);
            self.dispatch(plan, kiln_shaders::TOP_K_SELECT, constants, buffers, &params, rows * parts);
            if last {
                break;
            }
            candidates = Some(found);
            count = parts * k;
        }
        Ok(())
    }

    fn merge(&self, plan: &mut Lowering<'_>, scratch: &mut Scratch, out: Found) -> Result<()> {
        let Self { rows, n, k, .. } = *self;
        // The last run of the last row ends with it.
        let written = |Level { size, runs, kept }| (rows * runs - 1) * kept + kept.min(n - (runs - 1) * size);
        let words = levels(n, k).map(written).max().unwrap_or(0);
        let mut candidates = scratch.get(plan, 0, words)?;
        self.sort(plan, SORTED, k.min(SORTED), false, candidates);
        for (number, Level { size, runs, kept }) in (1..).zip(levels(n, k)) {
            let (last, merged) = (runs == 2, k.min(2 * size));
            let found = if last { out } else { scratch.get(plan, number, words)? };
            let total = rows * runs * kept;
            let params = [n, size, runs, kept, merged, runs.div_ceil(2) * merged, total];
            let groups = total.div_ceil(kiln_shaders::WORKGROUP as usize);
            let constants = vec![("LAST", last.into())];
            self.dispatch(plan, kiln_shaders::TOP_K_MERGE, constants, (Some(candidates), found), &params, groups);
            candidates = found;
        }
        Ok(())
    }
}
