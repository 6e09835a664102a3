//! Reductions and the inner product.
//!
//! One invocation adds at most 64 vectors (see the bound of sums in kiln-ir), a workgroup 16 384; what is longer is cut
//! into parts, whose results are reduced likewise until one is left.

use kiln_ir::op::{Dot, Reduce, Reduction};
use kiln_ir::{Result, Shape, TensorType};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice};

const WORKGROUP: usize = kiln_shaders::WORKGROUP as usize;
/// Vectors that an invocation reads at once.
const AT_ONCE: usize = 8;
/// Maximum vectors of an invocation.
const CHAIN: usize = 64;
/// Workgroups that keep a large device busy.
const BUSY: usize = 1024;
/// Invocations that keep a large device busy.
const INVOCATIONS: usize = 1 << 17;

/// The parameters of a reduction in its kernels.
#[derive(Debug, Clone, Copy)]
struct Kind {
    reduction: Reduction,
    /// Words of a partial result of one element.
    words: usize,
    /// Number of elements that are reduced to one, for their mean.
    count: usize,
}

impl Kind {
    fn new(reduction: Reduction, count: usize) -> Self {
        Self { reduction, words: kiln_shaders::state_words(reduction), count }
    }

    fn scratch(&self, plan: &mut Lowering<'_>, elements: usize) -> Result<Slice> {
        Ok(plan.scratch(TensorType::f32(Shape::new(&[elements * self.words])?)).into())
    }
}

/// The destination of results: the buffer, and the number of results before them.
#[derive(Debug, Clone, Copy)]
struct Target {
    at: Slice,
    first: usize,
}

impl Lower<GpuDevice> for Reduce {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (outer, along, inner) = self.extents(&inputs[0].ty.shape)?;
        let kind = Kind::new(self.reduction, along);
        match inner {
            1 => rows(plan, kind, &[inputs[0]], outer, along, outputs[0].into()),
            _ => columns(plan, kind, inputs[0], [outer, along, inner], outputs[0].into()),
        }
    }
}

impl Lower<GpuDevice> for Dot {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let n = inputs[0].ty.shape.numel();
        rows(plan, Kind::new(Reduction::Sum, n), &[inputs[0], inputs[1]], 1, n, outputs[0].into())
    }
}

/// Invocations that share a row of this many vectors: each reads a few, if that keeps the device busy.
fn team(vectors: usize, rows: usize) -> usize {
    let mut team = vectors.div_ceil(AT_ONCE).next_power_of_two().min(WORKGROUP);
    while team < WORKGROUP && team < vectors && rows.saturating_mul(team) < INVOCATIONS {
        team *= 2;
    }
    team
}

/// Vectors of a part of a row.
fn span(vectors: usize, rows: usize) -> usize {
    const LONGEST: usize = WORKGROUP * CHAIN;
    const SHORTEST: usize = WORKGROUP * AT_ONCE;
    if vectors <= LONGEST {
        return vectors.max(1);
    }
    let parts = (BUSY / rows).clamp(vectors.div_ceil(LONGEST), vectors.div_ceil(SHORTEST));
    vectors.div_ceil(parts).next_multiple_of(SHORTEST)
}

/// Reduces rows of `n` elements; if there are two sources of one row, their products.
fn rows(plan: &mut Lowering<'_>, kind: Kind, x: &[Value], rows: usize, n: usize, out: Slice) -> Result<()> {
    if rows > 1 {
        for piece in pieces(&plan.target.limits, rows, &[4 * n]) {
            let row = Rows { x: vec![piece.of(x[0], 4 * n)], rows: piece.len, n, base: 0, partial: false };
            row.reduce(plan, kind, Target { at: out, first: piece.start })?;
        }
        return Ok(());
    }
    let pieces = pieces(&plan.target.limits, n, &[4]);
    let row = |piece: &super::pieces::Piece| {
        let x = x.iter().map(|&x| piece.of(x, 4)).collect();
        Rows { x, rows: 1, n: piece.len, base: piece.start, partial: false }
    };
    if let [piece] = &pieces[..] {
        return row(piece).reduce(plan, kind, Target { at: out, first: 0 });
    }
    let parts = pieces.iter().map(|piece| row(piece).parts()).sum();
    let at = kind.scratch(plan, parts)?;
    let mut first = 0;
    for piece in &pieces {
        let row = row(piece);
        row.dispatch(plan, kind, Target { at, first }, true);
        first += row.parts();
    }
    let joined = Rows { x: vec![at], rows: 1, n: parts, base: 0, partial: true };
    joined.reduce(plan, kind, Target { at: out, first: 0 })
}

/// Rows that one dispatch reads.
struct Rows {
    /// The source; two for the products of two vectors.
    x: Vec<Slice>,
    rows: usize,
    n: usize,
    /// The position of the first element.
    base: usize,
    /// Whether they are partial results.
    partial: bool,
}

impl Rows {
    /// Elements that are read at once. The last vector of a single row may extend beyond it.
    fn width(&self) -> usize {
        if !self.partial && (self.n.is_multiple_of(4) || self.rows == 1) { 4 } else { 1 }
    }

    fn vectors(&self) -> usize {
        self.n.div_ceil(self.width())
    }

    fn parts(&self) -> usize {
        self.vectors().div_ceil(span(self.vectors(), self.rows)).max(1)
    }

    fn reduce(&self, plan: &mut Lowering<'_>, kind: Kind, target: Target) -> Result<()> {
        let parts = self.parts();
        if parts == 1 {
            self.dispatch(plan, kind, target, false);
            return Ok(());
        }
        let at = kind.scratch(plan, self.rows * parts)?;
        self.dispatch(plan, kind, Target { at, first: 0 }, true);
        Rows { x: vec![at], rows: self.rows, n: parts, base: 0, partial: true }.reduce(plan, kind, target)
    }

    fn dispatch(&self, plan: &mut Lowering<'_>, kind: Kind, target: Target, into: bool) {
        let (vectors, parts) = (self.vectors(), self.parts());
        let products = self.x.len() == 2;
        let team = if parts > 1 || products { WORKGROUP } else { team(vectors, self.rows) };
        let constants = vec![
            kiln_shaders::constant(kind.reduction),
            ("WIDTH", self.width() as u32),
            ("TEAM", team as u32),
            ("FROM", self.partial.into()),
            ("INTO", into.into()),
            ("DOT", products.into()),
        ];
        let kernel = if products { kiln_shaders::DOT } else { kiln_shaders::REDUCE_ROWS };
        let buffers = self.x.iter().copied().chain([target.at]).collect();
        let span = span(vectors, self.rows);
        let params = [self.rows, vectors, self.n, parts, span, self.base, target.first, kind.count].map(Into::into);
        let grid = Grid::groups_of((self.rows * parts).div_ceil(WORKGROUP / team));
        plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, grid);
    }
}

/// Reduces along an axis whose elements have `inner` elements each.
fn columns(plan: &mut Lowering<'_>, kind: Kind, x: Value, extents: [usize; 3], out: Slice) -> Result<()> {
    let [outer, along, inner] = extents;
    let width = if inner.is_multiple_of(4) { 4 } else { 1 };
    let all = Columns { x: x.into(), outer, along, columns: inner / width, width, base: 0, partial: false };
    if outer > 1 {
        for piece in pieces(&plan.target.limits, outer, &[4 * along * inner]) {
            let columns = Columns { x: piece.of(x, 4 * along * inner), outer: piece.len, ..all };
            columns.reduce(plan, kind, Target { at: out, first: piece.start })?;
        }
        return Ok(());
    }
    let pieces = pieces(&plan.target.limits, along, &[4 * inner]);
    if pieces.len() == 1 {
        return all.reduce(plan, kind, Target { at: out, first: 0 });
    }
    let piece_of = |piece: &super::pieces::Piece| Columns {
        x: piece.of(x, 4 * inner),
        along: piece.len,
        base: piece.start,
        ..all
    };
    let parts = pieces.iter().map(|piece| piece_of(piece).tiling().parts).sum();
    let at = kind.scratch(plan, parts * inner)?;
    let mut first = 0;
    for piece in &pieces {
        let columns = piece_of(piece);
        columns.dispatch(plan, kind, Target { at, first }, true);
        first += columns.tiling().parts;
    }
    let joined = Columns { x: at, along: parts, partial: true, ..all };
    joined.reduce(plan, kind, Target { at: out, first: 0 })
}

/// Columns that one dispatch reads.
#[derive(Clone, Copy)]
struct Columns {
    x: Slice,
    outer: usize,
    along: usize,
    /// Number of columns, each `width` elements.
    columns: usize,
    width: usize,
    /// The position of the first element along the axis.
    base: usize,
    /// Whether they are partial results.
    partial: bool,
}

/// The division of columns among workgroups.
struct Tiling {
    /// Columns of a workgroup.
    across: usize,
    /// Number of workgroups side by side.
    tiles: usize,
    /// Number of parts of the axis, and the elements of a part.
    parts: usize,
    span: usize,
}

impl Columns {
    fn tiling(&self) -> Tiling {
        let widest = self.columns.next_power_of_two().min(WORKGROUP);
        // On short axes, invocations one below another have little work; 32 columns keep reads contiguous.
        let down = self.along.div_ceil(2 * AT_ONCE).next_power_of_two().min(WORKGROUP / widest.min(32));
        let across = widest.min(WORKGROUP / down);
        let down = WORKGROUP / across;
        let tiles = self.columns.div_ceil(across);
        let (shortest, longest) = (down * AT_ONCE, down * CHAIN);
        let groups = self.outer * tiles;
        let span = if self.along <= longest && (groups >= BUSY / 4 || self.along <= 4 * shortest) {
            self.along.max(1)
        } else {
            let (fewest, most) = (self.along.div_ceil(longest), self.along.div_ceil(shortest));
            self.along.div_ceil((BUSY / groups).clamp(fewest, most)).next_multiple_of(shortest)
        };
        Tiling { across, tiles, parts: self.along.div_ceil(span).max(1), span }
    }

    fn reduce(&self, plan: &mut Lowering<'_>, kind: Kind, target: Target) -> Result<()> {
        let parts = self.tiling().parts;
        if parts == 1 {
            self.dispatch(plan, kind, target, false);
            return Ok(());
        }
        let at = kind.scratch(plan, self.outer * parts * self.columns * self.width)?;
        self.dispatch(plan, kind, Target { at, first: 0 }, true);
        let joined = Self { x: at, along: parts, base: 0, partial: true, ..*self };
        joined.reduce(plan, kind, target)
    }

    fn dispatch(&self, plan: &mut Lowering<'_>, kind: Kind, target: Target, into: bool) {
        let Tiling { across, tiles, parts, span } = self.tiling();
        let constants = vec![
            kiln_shaders::constant(kind.reduction),
            ("WIDTH", self.width as u32),
            ("FROM", self.partial.into()),
            ("INTO", into.into()),
        ];
        let Self { outer, along, columns, base, .. } = *self;
        let first = target.first;
        let params = [outer, along, columns, parts, span, across, tiles, base, first, parts, kind.count];
        let grid = Grid::groups_of(outer * parts * tiles);
        let code = Code::Kernel(kiln_shaders::REDUCE_COLUMNS, constants);
        plan.dispatch(code, vec![self.x, target.at], &params.map(Into::into), grid);
    }
}
