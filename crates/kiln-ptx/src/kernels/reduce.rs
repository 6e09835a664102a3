//! Reductions of rows and of columns, in as many launches as the tree has levels.
//!
//! A launch cuts what it reads into parts of a fixed length, whatever the device, and reduces each in a tree of fixed
//! shape: eight elements one after the other, then pairs, through the lanes of a warp and the warps of a block. The next
//! launch reads the results of the parts. So a result depends on the extents alone, and nothing needs atomics.
//!
//! What is passed on between threads and launches is a *state*: f32 for sums and extremes; f64 for the sum of squares,
//! which then neither overflows nor vanishes; for positions a u64, the element as an ordered integer above the complement
//! of its index, so that the greatest state is the first of the greatest elements.

use kiln_ir::op::Reduction;
use kiln_ir::{Error, Result};

use super::math::{F32, maximum, minimum};
use super::order;
use super::team::{self, Exchange, WARP};
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Scalar, Target, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Accumulators of a thread.
const LANES: u32 = 4;
/// Elements per accumulator.
const TURNS: u32 = 8;
/// Elements per thread.
const SHARE: u32 = LANES * TURNS;
/// Maximum extent of an axis, so that the end of the last thread's share fits 32 bits.
const MOST: u64 = u32::MAX as u64 - (BLOCK * SHARE) as u64;

/// A reduction: it maps elements to states, combines states, and maps the last one to a result.
trait Monoid {
    /// The type of the state.
    type State: Exchange;
    /// The type of the result.
    type Result: Scalar;
    /// Whether the result depends on the number of elements, which is then the last parameter of the last level.
    const COUNTS: bool = false;
    /// The state of no element.
    fn identity<'k>(&self, k: &'k Builder, reduction: Reduction) -> Value<'k, Self::State>;
    /// The state of an element at a position.
    fn lift<'k>(&self, x: F32<'k>, index: Value<'k, u32>) -> Value<'k, Self::State>;
    /// The state of both.
    fn combine<'k>(
        &self,
        target: Target,
        a: Value<'k, Self::State>,
        b: Value<'k, Self::State>,
    ) -> Value<'k, Self::State>;
    /// The result.
    fn finish<'k>(&self, k: &'k Builder, state: Value<'k, Self::State>) -> Value<'k, Self::Result>;
}

/// A state that is an element: the function of each element, and the combination of two.
struct Plain(for<'k> fn(F32<'k>) -> F32<'k>, for<'k> fn(Target, F32<'k>, F32<'k>) -> F32<'k>);

fn itself(x: F32<'_>) -> F32<'_> {
    x
}

fn magnitude(x: F32<'_>) -> F32<'_> {
    x.builder.abs(x)
}

fn sum<'k>(_: Target, a: F32<'k>, b: F32<'k>) -> F32<'k> {
    a + b
}

fn product<'k>(_: Target, a: F32<'k>, b: F32<'k>) -> F32<'k> {
    a * b
}

impl Monoid for Plain {
    type State = f32;
    type Result = f32;

    fn identity<'k>(&self, k: &'k Builder, reduction: Reduction) -> F32<'k> {
        k.constant(reduction.identity())
    }

    fn lift<'k>(&self, x: F32<'k>, _: Value<'k, u32>) -> F32<'k> {
        self.0(x)
    }

    fn combine<'k>(&self, target: Target, a: F32<'k>, b: F32<'k>) -> F32<'k> {
        self.1(target, a, b)
    }

    fn finish<'k>(&self, _: &'k Builder, state: F32<'k>) -> F32<'k> {
        state
    }
}

/// A sum, divided by the number of elements.
struct Divided(Plain);

impl Monoid for Divided {
    type State = f32;
    type Result = f32;
    const COUNTS: bool = true;

    fn identity<'k>(&self, k: &'k Builder, reduction: Reduction) -> F32<'k> {
        self.0.identity(k, reduction)
    }

    fn lift<'k>(&self, x: F32<'k>, index: Value<'k, u32>) -> F32<'k> {
        self.0.lift(x, index)
    }

    fn combine<'k>(&self, target: Target, a: F32<'k>, b: F32<'k>) -> F32<'k> {
        self.0.combine(target, a, b)
    }

    fn finish<'k>(&self, k: &'k Builder, state: F32<'k>) -> F32<'k> {
        state / k.cvt_rn_f32(k.parameter::<u32>("count"))
    }
}

/// The Euclidean norm.
struct Squares;

impl Monoid for Squares {
    type State = f64;
    type Result = f32;

    fn identity<'k>(&self, k: &'k Builder, _: Reduction) -> Value<'k, f64> {
        k.constant(0.0)
    }

    fn lift<'k>(&self, x: F32<'k>, _: Value<'k, u32>) -> Value<'k, f64> {
        let x = x.builder.cvt_f64(x);
        x * x
    }

    fn combine<'k>(&self, _: Target, a: Value<'k, f64>, b: Value<'k, f64>) -> Value<'k, f64> {
        a + b
    }

    fn finish<'k>(&self, k: &'k Builder, state: Value<'k, f64>) -> F32<'k> {
        k.cvt_rn_f32(k.sqrt(state))
    }
}

/// The position of an extreme.
struct Position {
    /// Whether it is the position of the minimum rather than of the maximum.
    least: bool,
}

impl Monoid for Position {
    type State = u64;
    type Result = u32;

    /// Below the state of every element.
    fn identity<'k>(&self, k: &'k Builder, _: Reduction) -> Value<'k, u64> {
        k.constant(0)
    }

    fn lift<'k>(&self, x: F32<'k>, index: Value<'k, u32>) -> Value<'k, u64> {
        x.builder.join(!index, order::key(if self.least { -x } else { x }))
    }

    fn combine<'k>(&self, _: Target, a: Value<'k, u64>, b: Value<'k, u64>) -> Value<'k, u64> {
        a.builder.max(a, b)
    }

    fn finish<'k>(&self, k: &'k Builder, state: Value<'k, u64>) -> Value<'k, u32> {
        !k.cvt_u32(state)
    }
}

/// The state and result types of every reduction. A row is a reduction and its [`Monoid`].
macro_rules! monoids {
    ($($reduction:ident = $monoid:expr;)*) => {
        impl ReduceLevel {
            fn write(&self, k: &Builder) {
                match self.reduction {
                    $(Reduction::$reduction => self.write_with(k, &$monoid),)*
                }
            }
        }

        /// Bytes of a state, and whether the last level takes the number of elements.
        fn state(reduction: Reduction) -> (usize, bool) {
            fn of<M: Monoid>(_: &M) -> (usize, bool) {
                (size_of::<M::State>(), M::COUNTS)
            }
            match reduction {
                $(Reduction::$reduction => of(&$monoid),)*
            }
        }
    };
}

monoids! {
    Sum = Plain(itself, sum);
    Mean = Divided(Plain(itself, sum));
    Max = Plain(itself, maximum);
    Min = Plain(itself, minimum);
    ArgMax = Position { least: false };
    ArgMin = Position { least: true };
    Prod = Plain(itself, product);
    NormL1 = Plain(magnitude, sum);
    NormL2 = Squares;
    NormLinf = Plain(magnitude, maximum);
}

/// The order in which a kernel reads elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Walk {
    /// A team of this many threads processes a part of a row, in `vectors` of four elements if rows begin at multiples
    /// of four.
    Rows { team: u32, vectors: bool },
    /// A thread processes a part of a column.
    Columns,
}

/// One level of a reduction, of any extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReduceLevel {
    reduction: Reduction,
    walk: Walk,
    /// It reads states.
    from_states: bool,
    /// It writes states.
    into_states: bool,
    target: Target,
}

/// The launches of a reduction, in order. Buffer 0 is the input, 1 the result, 2 and 3 are scratch.
#[derive(Debug, Clone, PartialEq)]
pub struct ReducePlan {
    /// Kernels and their launches.
    pub steps: Vec<(ReduceLevel, Launch)>,
    /// Bytes of the two scratch buffers.
    pub scratch: [usize; 2],
}

/// The launches that reduce `[outer, along, inner]` along the middle, for devices from `target` on.
///
/// The result has `outer * inner` elements, f32 or, for positions, u32. What is launched depends on nothing else.
///
/// # Errors
/// [`Error::Shape`] for a position in an empty dimension; [`Error::Limit`] if an extent or the number of parts exceeds 32 bits.
pub fn plan(reduction: Reduction, [outer, along, inner]: [usize; 3], target: Target) -> Result<ReducePlan> {
    if reduction.gives_index() && along == 0 {
        return Err(Error::Shape { op: reduction.name(), reason: "an empty dimension has no position".into() });
    }
    let (bytes, counts) = state(reduction);
    let mut plan = ReducePlan { steps: Vec::new(), scratch: [0; 2] };
    let mut length = along;
    loop {
        let level = plan.steps.len();
        let from_states = level > 0;
        let (walk, span) = match inner {
            1 => {
                let team = if length <= (WARP * SHARE) as usize { WARP } else { BLOCK };
                let vectors = !from_states && length.is_multiple_of(LANES as usize);
                (Walk::Rows { team, vectors }, team * SHARE)
            }
            _ => (Walk::Columns, SHARE),
        };
        let parts = length.div_ceil(span as usize).max(1);
        let into_states = parts > 1;
        let buffer = |level: usize| Argument::Buffer(2 + level % 2);
        let from = if from_states { buffer(level - 1) } else { Argument::Buffer(0) };
        let into = if into_states { buffer(level) } else { Argument::Buffer(1) };
        let written = outer.saturating_mul(parts).saturating_mul(inner);
        let count = |n: usize| extent("elements of a reduction", n, MOST).map(Argument::U32);
        let mut arguments = vec![from, into, count(written)?, count(length)?, count(parts)?];
        let teams = match walk {
            Walk::Rows { team, .. } => BLOCK / team,
            Walk::Columns => {
                arguments.push(count(inner)?);
                BLOCK
            }
        };
        if counts && !into_states {
            arguments.push(count(along)?);
        }
        let blocks = extent("blocks", written.div_ceil(teams as usize), MAX_GRID_X)?;
        let kernel = ReduceLevel { reduction, walk, from_states, into_states, target };
        plan.steps.push((kernel, Launch { grid: [blocks, 1, 1], arguments }));
        if !into_states {
            return Ok(plan);
        }
        let scratch = &mut plan.scratch[level % 2];
        *scratch = (*scratch).max(written.saturating_mul(bytes));
        length = parts;
    }
}

impl ReduceLevel {
    /// Every kernel of a reduction.
    pub fn all(reduction: Reduction, target: Target) -> Vec<Self> {
        let mut all = Vec::new();
        for from_states in [false, true] {
            for into_states in [false, true] {
                let rows = |team| [false, true].map(|vectors| Walk::Rows { team, vectors });
                // A row that a single warp can process is not divided.
                let warps = if into_states { Vec::new() } else { rows(WARP).to_vec() };
                let walks = warps.into_iter().chain(rows(BLOCK)).chain([Walk::Columns]);
                let known = walks.filter(|walk| !from_states || !matches!(walk, Walk::Rows { vectors: true, .. }));
                all.extend(known.map(|walk| Self { reduction, walk, from_states, into_states, target }));
            }
        }
        all
    }

    fn write_with<M: Monoid>(&self, k: &Builder, monoid: &M) {
        if self.from_states {
            let from = k.buffer::<M::State>("x");
            self.reduce(k, monoid, from, |value, _| value, monoid.identity(k, self.reduction));
        } else {
            let from = k.buffer::<f32>("x");
            self.reduce(k, monoid, from, |x, index| monoid.lift(x, index), k.constant(0.0));
        }
    }

    /// Loads elements; `lift` turns them into states, and `absent` replaces missing elements.
    fn reduce<'k, M: Monoid, T: Scalar>(
        &self,
        k: &'k Builder,
        monoid: &M,
        from: Pointer<'k, Global, T>,
        lift: impl Fn(Value<'k, T>, Value<'k, u32>) -> Value<'k, M::State>,
        absent: Value<'k, T>,
    ) {
        if self.into_states {
            let into = k.buffer::<M::State>("out");
            let (state, at, write) = self.state(k, monoid, from, lift, absent);
            k.st_if(write, into.index(at), state);
        } else {
            let into = k.buffer::<M::Result>("out");
            let (state, at, write) = self.state(k, monoid, from, lift, absent);
            k.st_if(write, into.index(at), monoid.finish(k, state));
        }
    }

    /// The state of the thread's part, the number of that part, and whether the thread writes it.
    fn state<'k, M: Monoid, T: Scalar>(
        &self,
        k: &'k Builder,
        monoid: &M,
        from: Pointer<'k, Global, T>,
        lift: impl Fn(Value<'k, T>, Value<'k, u32>) -> Value<'k, M::State>,
        absent: Value<'k, T>,
    ) -> (Value<'k, M::State>, Value<'k, u32>, Value<'k, bool>) {
        let written = k.parameter::<u32>("written");
        let n = k.parameter::<u32>("n");
        let parts = k.parameter::<u32>("parts");
        let combine = |a, b| monoid.combine(self.target, a, b);
        let identity = monoid.identity(k, self.reduction);
        let mut lanes = vec![identity; LANES as usize];
        let mut take = |lane: u32, x, index, there| {
            let state = k.selp(lift(x, index), identity, there);
            let lane = &mut lanes[lane as usize];
            *lane = combine(*lane, state);
        };
        match self.walk {
            Walk::Rows { team, vectors } => {
                let [part_of_row, thread] = team::place(k, BLOCK, team);
                let there = k.lt(part_of_row, written);
                let (row, part) = (part_of_row / parts, part_of_row % parts);
                // A team without a part loads nothing, but takes part in the rest.
                let begin = part * (team * SHARE);
                let end = k.selp(k.min(n, begin + team * SHARE), 0, there);
                let row = from.index_wide(k.mul_wide(row, n));
                if vectors {
                    let first = begin + thread * LANES;
                    let row = row.index(first);
                    for turn in 0..TURNS {
                        let index = first + turn * team * LANES;
                        let there = k.lt(index, end);
                        let vector: [_; 4] = k.ld_v_if(there, row.offset((turn * team * LANES) as i32), absent);
                        for (lane, x) in (0..).zip(vector) {
                            take(lane, x, index + lane, there);
                        }
                    }
                } else {
                    let first = begin + thread;
                    let row = row.index(first);
                    for turn in 0..SHARE {
                        let index = first + turn * team;
                        let there = k.lt(index, end);
                        take(turn % LANES, k.ld_if(there, row.offset((turn * team) as i32), absent), index, there);
                    }
                }
                let share = team::tree(lanes, combine).unwrap_or(identity);
                let state = team::combine(k, team, thread, share, combine);
                (state, part_of_row, k.and(there, k.eq(thread, 0)))
            }
            Walk::Columns => {
                let inner = k.parameter::<u32>("inner");
                let part_of_column = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
                let there = k.lt(part_of_column, written);
                let (column, rest) = (part_of_column % inner, part_of_column / inner);
                let (outer, part) = (rest / parts, rest % parts);
                let first = part * SHARE;
                let end = k.selp(n, 0, there);
                let row = k.mad_wide(outer, n, k.cvt_u64(first));
                let mut at = from.index_wide(k.mad(row, k.cvt_u64(inner), k.cvt_u64(column)));
                for turn in 0..SHARE {
                    let index = first + turn;
                    let there = k.lt(index, end);
                    take(turn % LANES, k.ld_if(there, at, absent), index, there);
                    at = at.index(inner);
                }
                (team::tree(lanes, combine).unwrap_or(identity), part_of_column, there)
            }
        }
    }
}

impl Kernel for ReduceLevel {
    fn name(&self) -> String {
        let walk = match self.walk {
            Walk::Rows { team, vectors } => format!("rows{team}{}", if vectors { "x4" } else { "" }),
            Walk::Columns => "columns".to_owned(),
        };
        let states = |states: bool, word: &'static str| if states { word } else { "" };
        let (from, into) = (states(self.from_states, "_from_states"), states(self.into_states, "_into_states"));
        format!("{}_{walk}{from}{into}", self.reduction.name())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
