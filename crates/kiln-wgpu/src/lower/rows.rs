//! The dispatches of operations on rows: softmax and the normalisations.
//!
//! A team of invocations holds a row in registers: one dispatch, every element read once. Longer rows are measured in
//! parts, what is known of these is joined, and a last dispatch reads the rows again.

use kiln_ir::{Result, Shape, TensorType};
use kiln_shaders::Kernel;

use super::pieces::{Piece, pieces};
use super::{Dispatches, Lowering, Value};
use crate::plan::{Code, Grid, Slice, Word};

const WORKGROUP: usize = kiln_shaders::WORKGROUP as usize;
/// Maximum words of a row that an invocation holds.
const MOST_HELD: usize = 64;
/// Words that it holds if there is enough work for a large device.
const HELD: usize = 16;
/// Vectors of an invocation in the last dispatch for long rows, as in the sources.
const APPLIED: usize = 4;
/// Number of invocations, and of workgroups that hold much, that keep a large device busy.
const INVOCATIONS: usize = 1 << 17;
const BUSY: usize = 512;

/// The division of rows among invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sharing {
    rows: usize,
    columns: usize,
    /// Elements of a vector.
    width: usize,
    /// Vectors of a row.
    vectors: usize,
    /// Invocations that share a row, or a part of it.
    team: usize,
    /// Vectors that each of them holds.
    held: usize,
    /// Parts of a row.
    parts: usize,
}

impl Sharing {
    fn new(rows: usize, columns: usize) -> Self {
        let width = if columns.is_multiple_of(4) { 4 } else { 1 };
        let vectors = columns / width;
        let mut team = vectors.div_ceil(HELD / width).next_power_of_two().min(WORKGROUP);
        while team < WORKGROUP && team < vectors && rows.saturating_mul(team) < INVOCATIONS {
            team *= 2;
        }
        // Without whole vectors, holding as much would take twice the instructions: half of it is enough.
        let most = if width == 4 { MOST_HELD / 4 } else { MOST_HELD / 2 };
        let mut held = vectors.div_ceil(team).next_power_of_two();
        if held > most {
            held = most;
            while held > 2 && rows.saturating_mul(vectors.div_ceil(WORKGROUP * held)) < BUSY {
                held /= 2;
            }
        }
        Self { rows, columns, width, vectors, team, held, parts: vectors.div_ceil(team * held) }
    }

    /// Whether every invocation of every workgroup holds its maximum of vectors, so that it needs no check.
    fn is_full(&self) -> bool {
        self.vectors == self.team * self.held * self.parts && self.rows.is_multiple_of(WORKGROUP / self.team)
    }

    fn constants(&self, own: (&'static str, bool)) -> Vec<(&'static str, u32)> {
        let constants = [("WIDTH", self.width), ("TEAM", self.team), ("HELD", self.held)];
        let constants = constants.into_iter().map(|(name, value)| (name, value as u32));
        constants.chain([("FULL", self.is_full().into()), (own.0, own.1.into())]).collect()
    }
}

/// The kernels of an operation on rows.
pub(super) struct Kernels<'a> {
    /// For rows that a team holds.
    pub(super) whole: Kernel,
    /// For long rows: measuring parts, combining, writing.
    pub(super) parts: Kernel,
    pub(super) join: Kernel,
    pub(super) apply: Kernel,
    /// The constant that distinguishes two operations with the same sources.
    pub(super) constant: (&'static str, bool),
    /// Words of the statistics of a part.
    pub(super) words: usize,
    /// Operands as long as a row.
    pub(super) operands: &'a [Slice],
    /// Parameters after those of the shape.
    pub(super) params: &'a [Word],
    /// Whether the measuring and combining kernels take those parameters and the extents too.
    pub(super) measured: bool,
}

impl Kernels<'_> {
    pub(super) fn lower(&self, plan: &mut Lowering<'_>, x: &Value, out: &Value) -> Result<()> {
        let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.columns());
        let pieces = pieces(&plan.target.limits, rows, &[4 * columns]);
        let most = Sharing::new(pieces[0].len, columns);
        let scratch = if most.parts > 1 {
            let last = pieces.last().map_or(0, |piece| Sharing::new(piece.len, columns).parts * piece.len);
            let known = |count: usize| Ok(TensorType::f32(Shape::new(&[count, self.words])?));
            let parts = plan.scratch(known(last.max(most.parts * most.rows))?).into();
            Some((parts, plan.scratch(known(most.rows)?).into()))
        } else {
            None
        };
        for piece in &pieces {
            let sharing = Sharing::new(piece.len, columns);
            match scratch {
                Some(scratch) if sharing.parts > 1 => self.long(plan, sharing, piece, *x, *out, scratch),
                _ => self.short(plan, sharing, piece, *x, *out),
            }
        }
        Ok(())
    }

    fn buffers(&self, x: Slice, more: &[Slice], out: Slice) -> Vec<Slice> {
        let more = self.operands.iter().chain(more).copied();
        [x].into_iter().chain(more).chain([out]).collect()
    }

    fn short(&self, plan: &mut Lowering<'_>, sharing: Sharing, piece: &Piece, x: Value, out: Value) {
        let Sharing { rows, columns, vectors, team, .. } = sharing;
        let of = |value| piece.of(value, 4 * columns);
        let params: Vec<Word> = [rows.into(), vectors.into()].iter().chain(self.params).copied().collect();
        let code = Code::Kernel(self.whole, sharing.constants(self.constant));
        let grid = Grid::groups_of(rows.div_ceil(WORKGROUP / team));
        plan.dispatch(code, self.buffers(of(x), &[], of(out)), &params, grid);
    }

    fn long(
        &self,
        plan: &mut Lowering<'_>,
        sharing: Sharing,
        piece: &Piece,
        x: Value,
        out: Value,
        (known, joined): (Slice, Slice),
    ) {
        let Sharing { rows, columns, width, vectors, parts, held, .. } = sharing;
        let of = |value| piece.of(value, 4 * columns);
        let measured = if self.measured { self.params } else { &[] };
        let with = |params: &[usize], more: &[Word]| -> Vec<Word> {
            params.iter().map(|&param| param.into()).chain(more.iter().copied()).collect()
        };

        let constants = sharing.constants(self.constant);
        let params = with(&[vectors, parts, rows * parts], measured);
        let grid = Grid::groups_of(rows * parts);
        plan.dispatch(Code::Kernel(self.parts, constants), vec![of(x), known], &params, grid);

        let one = Sharing { width: 1, held: 1, ..sharing };
        let extents: &[usize] = if self.measured { &[columns, WORKGROUP * held * width] } else { &[] };
        let params = with(&[&[parts, rows], extents].concat(), measured);
        let code = Code::Kernel(self.join, one.constants(self.constant));
        plan.dispatch(code, vec![known, joined], &params, Grid::groups_of(rows));

        let applied = Sharing { held: APPLIED, parts: vectors.div_ceil(WORKGROUP * APPLIED), ..sharing };
        let params = with(&[vectors, applied.parts, rows * applied.parts], self.params);
        let code = Code::Kernel(self.apply, applied.constants(self.constant));
        let grid = Grid::groups_of(rows * applied.parts);
        plan.dispatch(code, self.buffers(of(x), &[joined], of(out)), &params, grid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_hold_rows_or_parts_of_them() {
        for rows in [1, 7, 1000, 1_000_000] {
            for columns in [1, 3, 4, 64, 100, 1000, 1023, 4096, 16_384, 16_388, 32_768, 70_001, 1 << 20] {
                let sharing = Sharing::new(rows, columns);
                let Sharing { width, vectors, team, held, parts, .. } = sharing;
                assert_eq!(width * vectors, columns);
                assert!(team.is_power_of_two() && team <= WORKGROUP && width * held <= MOST_HELD, "{sharing:?}");
                assert!(team * held * parts >= vectors && team * held * (parts - 1) < vectors, "{sharing:?}");
                assert!(parts == 1 || team == WORKGROUP, "{sharing:?}");
            }
        }
        let usual = Sharing::new(8192, 4096);
        assert_eq!((usual.team, usual.held, usual.parts, usual.is_full()), (256, 4, 1, true));
        // Rows that leave slots unused, rows that leave a workgroup half empty, parts that are all whole, and one that
        // is not.
        let full = |rows, columns| Sharing::new(rows, columns).is_full();
        assert_eq!([(8192, 4092), (100_001, 64), (100_032, 64)].map(|(r, c)| full(r, c)), [false, false, true]);
        assert_eq!([(2, 1 << 20), (2, (1 << 20) - 4)].map(|(r, c)| full(r, c)), [true, false]);
    }
}
