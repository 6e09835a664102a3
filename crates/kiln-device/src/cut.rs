//! Division of operations into parts that do not depend on one another, and the combination of the parts' results.

use kiln_ir::op::{Op, Reduce, Reduction};
use kiln_ir::{DataMut, Operand, Result, Shape, TensorType};

/// The division of an operation into parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Extent that is cut: the first one of the results, or all elements that are reduced.
    pub rows: usize,
    /// Whether each operand is cut; a part sees the others whole.
    pub operands: Vec<bool>,
    /// The combination of the results of the parts.
    pub join: Join,
}

/// The combination of the results of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// The parts are consecutive rows of the result.
    Rows,
    /// Each part is reduced to one value, and these values are reduced again.
    Reduced {
        /// The operation of each part.
        part: Op,
        /// The reduction of their results.
        again: Reduction,
        /// The divisor of the last value.
        divisor: Option<usize>,
    },
    /// Each part gives the index of an element, and one of these elements is the result.
    Place(Reduction),
}

/// The division of an operation on operands of these types, if it can be divided.
pub fn cut(op: &Op, types: &[TensorType]) -> Option<Cut> {
    let first = &types.first()?.shape;
    let (rank, rows) = (first.rank(), leading(first));
    let of = |rows, operands, join| (rows >= 2).then_some(Cut { rows, operands, join });
    let first_only = || of(rows, (0..types.len()).map(|operand| operand == 0).collect(), Join::Rows);
    match op {
        Op::Elementwise(_) => {
            // The largest operand has the shape of the result; operands of lower rank repeat along the first dimension.
            let shape = types.iter().map(|ty| ty.shape).max_by_key(|shape| (shape.rank(), shape.numel()))?;
            let operands = types.iter().map(|ty| ty.shape == shape).collect();
            of(leading(&shape), operands, Join::Rows)
        }
        Op::Softmax(_) | Op::LogSoftmax(_) | Op::LayerNorm(_) | Op::RmsNorm(_) | Op::TopK(_) if rank >= 2 => {
            first_only()
        }
        Op::Reduce(Reduce { axis: Some(axis), .. }) if *axis > 0 => first_only(),
        Op::Reduce(Reduce { axis: None, reduction }) => {
            of(first.numel(), vec![true], joined(*reduction, first.numel())?)
        }
        Op::Dot(_) => {
            of(first.numel(), vec![true; 2], Join::Reduced { part: *op, again: Reduction::Sum, divisor: None })
        }
        Op::Matvec(matvec) if !matvec.transpose => first_only(),
        Op::Matmul(matmul) if !matmul.transpose_a && rank == 2 && types[1].shape.rank() == 2 => first_only(),
        // A stack is divided into single products, each with its own B or with the common one. Stacks with broadcast
        // dimensions are not divided.
        Op::Matmul(_) if rank == 3 && [2, 3].contains(&types[1].shape.rank()) => {
            let own = types[1].shape.rank() == 3;
            if own && leading(&types[1].shape) != rows { None } else { of(rows, vec![true, own], Join::Rows) }
        }
        Op::QuantMatmul(_) if rank == 2 => first_only(),
        _ => None,
    }
}

/// The combination that gives the reduction of `n` elements from those of the parts. Excludes the Euclidean norm, whose bound leaves
/// no room for the rounding of each part's root.
fn joined(reduction: Reduction, n: usize) -> Option<Join> {
    let reduced = |part, again, divisor| Some(Join::Reduced { part: Reduce::all(part).into(), again, divisor });
    match reduction {
        Reduction::Mean => reduced(Reduction::Sum, Reduction::Sum, Some(n)),
        Reduction::NormL2 => None,
        Reduction::ArgMax | Reduction::ArgMin => Some(Join::Place(reduction)),
        other => reduced(other, other, None),
    }
}

/// The extent of the first dimension.
fn leading(shape: &Shape) -> usize {
    shape.dims().first().copied().unwrap_or(1)
}

impl Cut {
    /// The types of the operands of a part with `rows` rows, for a [`Cut`] that joins by rows.
    ///
    /// # Errors
    /// The errors of [`Shape::new`] and [`TensorType::of`]; types that the operation accepts give none.
    pub fn part_types(&self, types: &[TensorType], rows: usize) -> Result<Vec<TensorType>> {
        let part = |(ty, &cut): (&TensorType, &bool)| {
            let mut dims = ty.shape.dims().to_vec();
            match dims.first_mut() {
                Some(first) if cut => *first = rows,
                _ => return Ok(*ty),
            }
            TensorType::of(ty.dtype, Shape::new(&dims)?)
        };
        types.iter().zip(&self.operands).map(part).collect()
    }

    /// The operands of a part.
    ///
    /// # Errors
    /// The errors of [`Operand::new`]; operands that the operation accepts give none.
    pub fn part<'a>(&self, inputs: &[Operand<'a>], from: usize, to: usize) -> Result<Vec<Operand<'a>>> {
        let part = |(input, &cut): (&Operand<'a>, &bool)| match (cut, self.join) {
            (false, _) => Ok(*input),
            (true, Join::Rows) => rows_of(input, input.shape().dims(), from, to),
            (true, _) => rows_of(input, &[input.shape().numel()], from, to),
        };
        inputs.iter().zip(&self.operands).map(part).collect()
    }
}

/// Some rows of an operand that has these extents.
fn rows_of<'a>(operand: &Operand<'a>, dims: &[usize], from: usize, to: usize) -> Result<Operand<'a>> {
    let mut dims = dims.to_vec();
    let bytes = operand.ty().bytes().checked_div(dims[0]).unwrap_or(0);
    dims[0] = to - from;
    let data = operand.data().part(from * bytes..to * bytes);
    Operand::new(data, Shape::new(&dims)?)
}

/// The first `rows` of `all` rows, and the others.
pub fn split(data: DataMut<'_>, rows: usize, all: usize) -> (DataMut<'_>, DataMut<'_>) {
    let row = data.bytes().checked_div(all).unwrap_or(0);
    data.split_at(rows * row)
}

#[cfg(test)]
mod tests {
    use kiln_ir::op::{Dot, Elementwise, Matmul, Softmax};

    use super::*;

    fn of(op: impl Into<Op>, shapes: &[&[usize]]) -> Option<Cut> {
        let types: Vec<TensorType> = shapes.iter().map(|dims| TensorType::f32(Shape::new(dims).unwrap())).collect();
        cut(&op.into(), &types)
    }

    #[test]
    fn only_what_has_independent_parts_is_cut() {
        let rows = |rows, operands: &[bool]| Some(Cut { rows, operands: operands.to_vec(), join: Join::Rows });
        assert_eq!(of(Elementwise::add(), &[&[6, 4], &[6, 4]]), rows(6, &[true, true]));
        assert_eq!(of(Elementwise::add(), &[]), None, "an operation of its user may have no operands");
        assert_eq!(of(Elementwise::add(), &[&[4], &[6, 4]]), rows(6, &[false, true]), "a row that is added to all");
        assert_eq!(of(Elementwise::add(), &[&[6], &[]]), rows(6, &[true, false]));
        assert_eq!(of(Softmax, &[&[6, 4]]), rows(6, &[true]));
        assert_eq!(of(Softmax, &[&[6]]), None, "one row");
        assert_eq!(of(Matmul::default(), &[&[6, 4], &[4, 3]]), rows(6, &[true, false]));
        assert_eq!(of(Matmul { transpose_a: true, ..Matmul::default() }, &[&[4, 6], &[4, 3]]), None);
        let stacked = Matmul { transpose_a: true, transpose_b: true };
        assert_eq!(of(stacked, &[&[5, 4, 6], &[5, 3, 4]]), rows(5, &[true, true]));
        assert_eq!(of(stacked, &[&[5, 4, 6], &[3, 4]]), rows(5, &[true, false]));
        assert_eq!(of(Reduce::along(Reduction::Sum, 0), &[&[6, 4]]), None);
        assert_eq!(of(Reduce::all(Reduction::NormL2), &[&[6, 4]]), None);
        assert_eq!(of(Reduce::all(Reduction::Sum), &[&[6, 4]]).map(|cut| cut.rows), Some(24));
        assert_eq!(of(Reduce::all(Reduction::Sum), &[&[1]]), None);
        assert_eq!(of(Dot, &[&[6, 4], &[6, 4]]).map(|cut| cut.rows), Some(24));
    }
}
