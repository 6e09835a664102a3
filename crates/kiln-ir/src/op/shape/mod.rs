//! Operations that move elements without changing them: shapes of tensors, and parts of them.
//!
//! Each of them is one [`StridedCopy`] an operand, so a backend has one kernel for all. A [`Reshape`] moves nothing, and neither does a
//! permutation of extents of 1 or a slice of everything: in a recorded graph the result is the operand ([`Operation::renames`]).

mod all_reduce;
mod broadcast;
mod concat;
mod pad;
mod permute;
mod reshape;
mod slice;
mod strided;

pub use all_reduce::AllReduce;
pub use broadcast::BroadcastTo;
pub use concat::Concat;
pub use pad::Pad;
pub use permute::Permute;
pub use reshape::Reshape;
pub use slice::Slice;
pub use strided::{Dim, StridedCopy};

use strided::Layout;

use super::{Bound, Contract, Operation};
use crate::{DType, Error, Result, TensorType};

/// An operation whose result is made of elements of its operands, and of one value elsewhere.
pub trait Movement: Operation {
    /// The copy of operand `index`, for inputs that [`Operation::infer`] accepts.
    ///
    /// # Errors
    /// The errors of [`Operation::infer`].
    fn copy(&self, inputs: &[TensorType], index: usize) -> Result<StridedCopy>;

    /// Whether the result has all elements of the only operand in their order: a permutation that moves only extents of
    /// 1, a slice of everything, a concatenation of one operand.
    fn is_whole(&self, inputs: &[TensorType]) -> bool {
        let ([x], Ok(out)) = (inputs, self.infer(inputs)) else { return false };
        x.bytes() == out[0].bytes() && self.copy(inputs, 0).is_ok_and(|copy| copy == StridedCopy::whole(x))
    }

    /// The value of elements that no operand covers, if there can be any.
    fn fill(&self) -> Option<f32> {
        None
    }
}

/// The contract of all of them.
const CONTRACT: Contract = Contract { bound: Bound::Exact, special: "every bit is kept" };

/// The only operand of an operation that takes any element type.
fn one(op: &'static str, inputs: &[TensorType]) -> Result<TensorType> {
    match inputs {
        [x] => Ok(*x),
        _ => Err(Error::Arity { op, expected: 1, found: inputs.len() }),
    }
}

/// Refuses to split or rearrange rows of quantised blocks.
fn whole_rows(op: &'static str, x: &TensorType, rows_move_whole: bool) -> Result<()> {
    match x.dtype {
        DType::Blocks(format) if !rows_move_whole => Err(Error::Format {
            format: format.name(),
            reason: format!("{op} of {} would take rows of blocks apart; dequantize it first", x.shape),
        }),
        _ => Ok(()),
    }
}

/// The error for an axis that a tensor does not have.
fn no_axis(op: &'static str, x: &TensorType, axis: usize) -> Error {
    let (shape, rank) = (x.shape, x.shape.rank());
    Error::View { what: op, reason: format!("{shape} has no dimension {axis}; its dimensions are 0..{rank}") }
}

/// Results of one type by the definition: for every index of the result, its operand and the index in that.
#[cfg(feature = "reference")]
fn moved(
    inputs: &[crate::Operand<'_>],
    out: &TensorType,
    fill: f32,
    source: impl Fn(&[usize]) -> Option<(usize, Vec<usize>)>,
) -> Vec<super::reference::Expected> {
    use super::reference::Expected;
    let dims = out.shape.dims();
    let blocks = matches!(out.dtype, DType::Blocks(_));
    // Blocks move in whole rows: the index along them is 0.
    let counted = if blocks { &dims[..dims.len() - 1] } else { dims };
    let total: usize = if out.shape.is_empty() { 0 } else { counted.iter().product() };
    let mut sources = Vec::with_capacity(total);
    let mut index = vec![0; dims.len()];
    for flat in 0..total {
        let mut rest = flat;
        for d in (0..counted.len()).rev() {
            index[d] = rest % counted[d];
            rest /= counted[d];
        }
        sources.push(source(&index).map(|(operand, at)| {
            let from = inputs[operand].shape();
            (operand, at.iter().zip(from.dims()).fold(0, |flat, (i, n)| flat * n + i))
        }));
    }
    let number = |data: &[f32], at: usize| f64::from(data[at]);
    vec![match out.dtype {
        DType::F32 => {
            let value = |s: &Option<(usize, usize)>| {
                s.map_or(f64::from(fill), |(operand, at)| number(inputs[operand].data().f32(), at))
            };
            let values: Vec<f64> = sources.iter().map(value).collect();
            Expected::F32 { magnitudes: vec![0.0; values.len()], values }
        }
        _ => {
            let mut found = crate::Buffer::zeros(out).expect("a case fits memory");
            found.as_mut().fill(fill);
            // Bytes of a moved unit: an element, or a row of blocks, whose position counts elements.
            let row = if blocks { out.shape.columns() } else { 1 };
            let unit =
                TensorType::of(out.dtype, crate::Shape::new(&[row]).expect("a row")).expect("whole blocks").bytes();
            let mut elements = found.as_mut();
            for (to, source) in sources.iter().enumerate() {
                if let Some((operand, at)) = source {
                    let from = at / row * unit;
                    let moved = &inputs[*operand].data().as_bytes()[from..from + unit];
                    elements.as_bytes()[to * unit..(to + 1) * unit].copy_from_slice(moved);
                }
            }
            Expected::Exact(found)
        }
    }]
}

/// Operands of the cases: of every element type, with special values.
#[cfg(feature = "reference")]
struct Samples(super::reference::Random);

#[cfg(feature = "reference")]
impl Samples {
    fn new(seed: u64) -> Self {
        Self(super::reference::Random::new(seed))
    }

    fn floats(&mut self, dims: &[usize]) -> super::reference::Input {
        use super::reference::{Input, SPECIAL};
        let n: usize = dims.iter().product();
        let mut x = self.0.uniforms(n, -1.0, 1.0);
        // Special values at the start; the rest makes every position distinct.
        x.iter_mut().zip(SPECIAL).take(n / 2).for_each(|(x, special)| *x = special);
        Input::f32(x, dims)
    }

    /// Arbitrary bits, as elements of 4 bytes.
    fn words(&mut self, dims: &[usize]) -> super::reference::Input {
        self.any(DType::U32, dims)
    }

    /// Arbitrary bits, as elements of 2 bytes.
    fn halves(&mut self, dims: &[usize]) -> super::reference::Input {
        self.any(DType::F16, dims)
    }

    /// Arbitrary bits, as elements of one byte.
    fn bytes(&mut self, dims: &[usize]) -> super::reference::Input {
        self.any(DType::I8, dims)
    }

    fn any(&mut self, dtype: DType, dims: &[usize]) -> super::reference::Input {
        super::reference::Input::any(dtype, dims, &mut self.0)
    }

    fn blocks(&mut self, format: crate::QuantFormat, outer: &[usize], blocks: usize) -> super::reference::Input {
        let dims: Vec<usize> = outer.iter().copied().chain([blocks * format.block_len()]).collect();
        let bytes = outer.iter().product::<usize>() * blocks * format.block_bytes();
        let data = (0..bytes).map(|_| self.0.bits() as u8).collect();
        super::reference::Input::new(crate::Buffer::Blocks(format, data), &dims)
    }
}
