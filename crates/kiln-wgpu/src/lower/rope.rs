//! Rotary position embedding.

use kiln_ir::op::{Rope, RopeOperands, RopeStyle};
use kiln_ir::{Result, TensorType};
use kiln_shaders::ROPE;

use super::pieces::{Piece, pieces};
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

/// Bits of the index of a pair within a dispatch, as in the source.
const LEVELS: usize = 9;

/// Invocations that fill a large device.
const PLENTY: usize = 1 << 18;

impl Lower<GpuDevice> for Rope {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let shape = inputs[0].ty.shape;
        let &[.., positions, d] = shape.dims() else { return Ok(()) };
        let bytes = 4 * positions * d;
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let operands = Self::operands(&types);
        for piece in pieces(&plan.target.limits, shape.numel() / (positions * d), &[bytes]) {
            let x = piece.of(inputs[0].at, bytes);
            // Missing operands are not read.
            let [at, factors] =
                [operands.positions, operands.factors].map(|index| index.map_or(x, |index| inputs[index].at.into()));
            rotate(self, plan, &piece, [positions, d], operands, vec![x, at, factors, piece.of(outputs[0].at, bytes)]);
        }
        Ok(())
    }
}

fn rotate(
    op: &Rope,
    plan: &mut Lowering<'_>,
    heads: &Piece,
    [positions, d]: [usize; 2],
    operands: RopeOperands,
    buffers: Vec<Slice>,
) {
    let (half, rotated, heads, fours) = (d / 2, op.pairs(d), heads.len, positions.div_ceil(4));
    // Fractions cannot express angles that grow from pair to pair: then every pair has its own dispatch.
    let at_once = if op.theta.get() < 1.0 { 1 } else { 1 << LEVELS };
    let constants = vec![
        ("INTERLEAVED", u32::from(op.style == RopeStyle::Interleaved)),
        ("POSITIONS", operands.positions.is_some().into()),
        ("FACTORS", u32::from(operands.factors.is_some() && rotated > 0)),
    ];
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
        plan.dispatch(code.clone(), buffers.clone(), &params, Grid::invocations(n));
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
    use super::*;

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
