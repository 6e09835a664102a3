//! Rotary position embedding.

use kiln_device::Location;
use kiln_ir::op::{Rope, RopeOperands, RopeStyle};
use kiln_ir::{Result, TensorType};
use kiln_shaders::ROPE;

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

/// Bits of the index of a pair within a dispatch, as in the source.
const LEVELS: usize = 9;

/// Maximum rows whose rotations are shared. Chosen, not measured: with many rows the kernel computes an angle once for several heads.
const FEW: usize = 1024;

/// Invocations that fill a large device.
const PLENTY: usize = 1 << 18;

impl Lower<GpuDevice> for Rope {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let shape = inputs[0].ty.shape;
        let &[.., positions, d] = shape.dims() else { return Ok(()) };
        let bytes = 4 * positions * d;
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let RopeOperands { positions: at, factors } = Self::operands(&types);
        let given = |index: Option<usize>| index.map(|index| inputs[index]);
        let angles = Angles { at: given(at), factors: given(factors.filter(|_| self.pairs(d) > 0)) };
        let table = table(self, plan, [positions, d], angles);
        for piece in pieces(&plan.target.limits, shape.numel() / (positions * d), &[bytes]) {
            let x = piece.of(inputs[0], bytes);
            // Missing operands are not read.
            let or_x = |value: Option<Value>| value.map_or(x, Slice::from);
            let (angles, kind, factors) = match table {
                Some(table) => (Angles { at: None, factors: None }, 2, table),
                None => (angles, 0, or_x(angles.factors)),
            };
            let buffers = [x, or_x(angles.at), factors, piece.of(outputs[0], bytes)];
            rotate(self, plan, piece.len, [positions, d], constants(self.style, angles, kind), &buffers);
        }
        Ok(())
    }
}

/// The operands that angles are computed from.
#[derive(Debug, Clone, Copy)]
struct Angles {
    /// The positions of rows.
    at: Option<Value>,
    /// The divisors of the angles.
    factors: Option<Value>,
}

/// Memory with the rotations, if the layers of a model may share them and their angles take longer than reading them: those of few rows, whose
/// positions are an operand. Measured with one row on an H200 (`kiln-llm bench --device gpu --profile`): 40 heads take 7.9 instead of 11.8 us.
fn table(op: &Rope, plan: &mut Lowering<'_>, [positions, d]: [usize; 2], angles: Angles) -> Option<Slice> {
    let at = angles.at.filter(|_| positions <= FEW)?;
    let operands: Vec<Location> = [at].into_iter().chain(angles.factors).map(|value| value.at).collect();
    if !operands.iter().all(|operand| matches!(operand, Location::Input(_))) {
        return None;
    }
    let extents = [positions, d, op.pairs(d), op.position].map(Word::from);
    let key = extents.into_iter().chain([op.theta.get().into(), op.magnitude.get().into()]).map(|word| word.0);
    let bytes = 4 * positions * d;
    let (table, is_new) = plan.kept_bytes("rotations", &key.collect::<Vec<_>>(), &operands, bytes);
    let table = Slice::new(table, bytes);
    if is_new {
        let constants = constants(op.style, angles, 1);
        let [at, factors] = [at, angles.factors.unwrap_or(at)].map(Slice::from);
        let buffers = [at, at, factors, table];
        rotate(op, plan, 1, [positions, d], constants, &buffers);
    }
    Some(table)
}

/// The constants of the kernel, `table` as in the source.
fn constants(style: RopeStyle, angles: Angles, table: u32) -> Vec<(&'static str, u32)> {
    vec![
        ("INTERLEAVED", u32::from(style == RopeStyle::Interleaved)),
        ("POSITIONS", angles.at.is_some().into()),
        ("FACTORS", angles.factors.is_some().into()),
        ("TABLE", table),
    ]
}

/// Runs the kernel for this many heads.
fn rotate(
    op: &Rope,
    plan: &mut Lowering<'_>,
    heads: usize,
    [positions, d]: [usize; 2],
    constants: Vec<(&'static str, u32)>,
    buffers: &[Slice],
) {
    let (half, rotated, fours) = (d / 2, op.pairs(d), positions.div_ceil(4));
    // Fractions cannot express angles that grow from pair to pair: then every pair has its own dispatch.
    let at_once = if op.theta.get() < 1.0 { 1 } else { 1 << LEVELS };
    let code = Code::Kernel(ROPE, constants);
    for first in (0..half).step_by(at_once) {
        let pairs = at_once.min(half - first);
        let share = (heads * fours * pairs).div_ceil(PLENTY).min(heads);
        let n = pairs * fours * heads.div_ceil(share);
        let mut params: Vec<Word> = words(turn(op.frequency(first, d))).to_vec();
        params.extend((0..LEVELS).flat_map(|level| words(fraction(op.frequency(1 << level, d)))));
        params.extend([first, pairs, rotated, d].map(Word::from));
        params.push(op.magnitude.get().into());
        params.extend([positions, op.position, heads, share, fours, n].map(Word::from));
        plan.dispatch(code.clone(), buffers.to_vec(), &params, Grid::invocations(n));
    }
}

/// Upper word, lower word.
fn words(x: u64) -> [Word; 2] {
    [((x >> 32) as u32).into(), (x as u32).into()]
}

/// A number below 1 in units of 2^-64; 1 becomes the largest below it.
fn fraction(x: f64) -> u64 {
    (x * 2f64.powi(64)) as u64
}

/// An angle in radians as a fraction of a turn, in units of 2^-64, without whole turns.
fn turn(angle: f64) -> u64 {
    /// 1 / 2π in units of 2^-128.
    const TURNS: u128 = 0x28be_60db_9391_054a_7f09_d5f4_7d4d_3770;
    let bits = angle.to_bits();
    let (exponent, significand) = ((bits >> 52) as i32 - 1075, u128::from(bits & ((1 << 52) - 1) | 1 << 52));
    let product = significand * (TURNS >> 64) + ((significand * (TURNS & u128::from(u64::MAX))) >> 64);
    let shift = exponent.unsigned_abs();
    let shifted = if exponent < 0 { product.checked_shr(shift) } else { product.checked_shl(shift) };
    shifted.unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use kiln_device::Plan;
    use kiln_ir::graph::Graph;
    use kiln_ir::{Precision, Record, Shape};

    use super::*;
    use crate::plan::Target;

    #[test]
    fn rotations_at_the_same_positions_are_computed_once() {
        let target = Target { limits: wgpu::Limits::default(), cooperative: false, precision: Precision::default() };
        // Number of dispatches, and bytes of each table.
        let of = |rows: usize, operands: usize, magnitudes: [f32; 3]| {
            let mut graph = Graph::new();
            let positions = graph.input(TensorType::u32(Shape::new(&[rows]).unwrap()));
            let factors = graph.input(TensorType::f32(Shape::new(&[32]).unwrap()));
            let wanted = [8, 2, 2].into_iter().zip(magnitudes).map(|(heads, magnitude)| {
                let x = graph.input(TensorType::f32(Shape::new(&[heads, rows, 64]).unwrap()));
                let op = Rope { magnitude: magnitude.into(), ..Rope::default() };
                graph.record(op, &[x, positions, factors][..operands]).unwrap()
            });
            let wanted: Vec<_> = wanted.collect();
            let plan = Plan::<GpuDevice>::one_by_one(&graph, &wanted, &target).unwrap();
            (plan.steps.len(), plan.kept.clone())
        };
        let bytes = 4 * 5 * 64;
        assert_eq!(of(5, 3, [1.0; 3]), (4, vec![bytes]));
        assert_eq!(of(5, 2, [1.0; 3]), (4, vec![bytes]));
        assert_eq!(of(5, 2, [1.0, 1.0, 2.0]), (5, vec![bytes; 2]));
        assert_eq!(of(5, 1, [1.0; 3]), (3, vec![]));
        assert_eq!(of(FEW + 1, 3, [1.0; 3]), (3, vec![]));
    }

    #[test]
    fn angles_are_fractions_of_a_turn() {
        let close = |x: u64, turns: f64| {
            let difference = x as f64 / 2f64.powi(64) - (turns - turns.floor());
            assert!(difference.abs() < 1e-13, "{turns}: off by {difference}");
        };
        for angle in [1.0, 0.5, 1e-4, 3.0, 6.0, 7.0, 100.0, 1e-30] {
            close(turn(angle), angle / std::f64::consts::TAU);
        }
        close(fraction(0.25), 0.25);
        assert_eq!(fraction(1.0), u64::MAX);
    }
}
