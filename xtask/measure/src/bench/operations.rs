//! The operations that are measured: each with its sizes and its limit.

use kiln_benches::Array;
use kiln_ir::op::{
    Attention, Convolve2d, Dot, ElementwiseKind, LayerNorm, Matmul, Matvec, Op, Padding, QuantMatmul, Reduce,
    Reduction, RmsNorm, Softmax, Transpose,
};
use kiln_ir::{Buffer, DType, Data, Operand, QuantFormat, Result, Shape, TensorType};
use kiln_simd::ceilings::Pass;

/// The limit of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ceiling {
    /// Arithmetic: rates are in GFLOP/s.
    Arithmetic,
    /// The memory, as this pass uses it; rates are in GB/s.
    Memory(Pass),
}

/// An operation to be measured over sizes.
pub(super) struct Measured {
    pub(super) name: &'static str,
    /// The meaning of the size.
    pub(super) shape: &'static str,
    pub(super) ceiling: Ceiling,
    /// Sizes of a thorough run; a quick one takes every second, the last among them.
    pub(super) sizes: &'static [usize],
    /// The operation and the types of its inputs at a size.
    pub(super) problem: fn(usize) -> Result<(Op, Vec<TensorType>)>,
    /// The interval of random inputs.
    pub(super) range: (f32, f32),
}

impl Measured {
    /// The sizes to measure.
    pub(super) fn sizes(&self, quick: bool) -> Vec<usize> {
        let step = if quick { 2 } else { 1 };
        let mut sizes: Vec<usize> = self.sizes.iter().copied().rev().step_by(step).collect();
        sizes.reverse();
        sizes
    }
}

fn f32s(dims: &[usize]) -> Result<TensorType> {
    Ok(TensorType::f32(Shape::new(dims)?))
}

/// Lengths from the nearest cache to beyond the last.
const FLAT: &[usize] = &[
    1 << 8,
    1 << 10,
    1 << 12,
    1 << 13,
    1 << 14,
    1 << 16,
    1 << 17,
    1 << 18,
    1 << 20,
    1 << 21,
    1 << 22,
    1 << 23,
    1 << 24,
];

fn elementwise(kind: ElementwiseKind, n: usize) -> Result<(Op, Vec<TensorType>)> {
    Ok((kind.with_params([0.75, 1.5]).into(), vec![f32s(&[n])?; kind.arity()]))
}

fn reduction(reduction: Reduction, n: usize) -> Result<(Op, Vec<TensorType>)> {
    Ok((Reduce::all(reduction).into(), vec![f32s(&[n])?]))
}

fn quantised(format: QuantFormat, n: usize) -> Result<(Op, Vec<TensorType>)> {
    let weights = TensorType::blocks(format, Shape::new(&[n, n])?)?;
    Ok((QuantMatmul { format }.into(), vec![f32s(&[1, n])?, weights]))
}

macro_rules! flat {
    ($name:literal, $shape:literal, $pass:ident, $range:expr, $problem:expr) => {
        Measured {
            name: $name,
            shape: $shape,
            ceiling: Ceiling::Memory(Pass::$pass),
            sizes: FLAT,
            problem: $problem,
            range: $range,
        }
    };
}

/// The operations, in the order of the report.
pub(super) const ALL: &[Measured] = &[
    Measured {
        name: "matmul",
        shape: "n × n times n × n",
        ceiling: Ceiling::Arithmetic,
        sizes: &[8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024],
        problem: |n| Ok((Matmul::default().into(), vec![f32s(&[n, n])?; 2])),
        range: (-1.0, 1.0),
    },
    Measured {
        name: "matmul, 8 rows",
        shape: "8 × n times n × n",
        ceiling: Ceiling::Arithmetic,
        sizes: &[64, 128, 256, 512, 1024, 2048, 4096],
        problem: |n| Ok((Matmul::default().into(), vec![f32s(&[8, n])?, f32s(&[n, n])?])),
        range: (-1.0, 1.0),
    },
    Measured {
        name: "matvec",
        shape: "n × n times n",
        ceiling: Ceiling::Memory(Pass::Read),
        sizes: &[32, 64, 128, 256, 512, 1024, 2048, 4096],
        problem: |n| Ok((Matvec::default().into(), vec![f32s(&[n, n])?, f32s(&[n])?])),
        range: (-1.0, 1.0),
    },
    flat!("add", "n elements", Add, (-4.0, 4.0), |n| elementwise(ElementwiseKind::Add, n)),
    flat!("exp", "n elements", Copy, (-4.0, 4.0), |n| elementwise(ElementwiseKind::Exp, n)),
    flat!("gelu", "n elements", Copy, (-4.0, 4.0), |n| elementwise(ElementwiseKind::Gelu, n)),
    flat!("sum", "n elements", Read, (-4.0, 4.0), |n| reduction(Reduction::Sum, n)),
    flat!("argmax", "n elements", Read, (-4.0, 4.0), |n| reduction(Reduction::ArgMax, n)),
    flat!("dot", "n elements", Read, (-4.0, 4.0), |n| Ok((Dot.into(), vec![f32s(&[n])?; 2]))),
    flat!("softmax", "n elements in rows of 256", Copy, (-4.0, 4.0), |n| Ok((
        Softmax.into(),
        vec![f32s(&[n / 256, 256])?]
    ))),
    flat!("layer_norm", "n elements in rows of 256", Copy, (-4.0, 4.0), |n| {
        Ok((LayerNorm::new(1e-5).into(), vec![f32s(&[n / 256, 256])?, f32s(&[256])?, f32s(&[256])?]))
    }),
    flat!("rms_norm", "n elements in rows of 256", Copy, (-4.0, 4.0), |n| {
        Ok((RmsNorm::new(1e-5).into(), vec![f32s(&[n / 256, 256])?, f32s(&[256])?]))
    }),
    Measured {
        name: "transpose",
        shape: "n × n",
        ceiling: Ceiling::Memory(Pass::Copy),
        sizes: &[16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
        problem: |n| Ok((Transpose.into(), vec![f32s(&[n, n])?])),
        range: (-1.0, 1.0),
    },
    Measured {
        name: "convolve2d",
        shape: "one channel, n × n, kernel 5 × 5",
        ceiling: Ceiling::Arithmetic,
        sizes: &[16, 32, 64, 128, 256, 512, 1024],
        problem: |n| Ok((Convolve2d::default().into(), vec![f32s(&[n, n])?, f32s(&[5, 5])?])),
        range: (-1.0, 1.0),
    },
    Measured {
        name: "convolve2d, 64 channels",
        shape: "64 to 64 channels, n × n, kernel 3 × 3",
        ceiling: Ceiling::Arithmetic,
        sizes: &[7, 14, 28, 56, 112],
        problem: |n| {
            let op = Convolve2d { padding: Padding::Same, ..Convolve2d::default() };
            Ok((op.into(), vec![f32s(&[64, n, n])?, f32s(&[64, 64, 3, 3])?]))
        },
        range: (-1.0, 1.0),
    },
    Measured {
        name: "attention",
        shape: "causal, 8 heads of 64, n positions",
        ceiling: Ceiling::Arithmetic,
        sizes: &[16, 32, 64, 128, 256, 512, 1024],
        problem: |n| {
            let op = Attention::causal();
            Ok((op.into(), vec![f32s(&[8, n, 64])?; 3]))
        },
        range: (-1.0, 1.0),
    },
    Measured {
        name: "Q4_K matvec",
        shape: "n × n weights times n",
        ceiling: Ceiling::Memory(Pass::Read),
        sizes: &[256, 512, 1024, 2048, 4096],
        problem: |n| quantised(QuantFormat::Q4K, n),
        range: (-1.0, 1.0),
    },
    Measured {
        name: "Q6_K matvec",
        shape: "n × n weights times n",
        ceiling: Ceiling::Memory(Pass::Read),
        sizes: &[256, 512, 1024, 2048, 4096],
        problem: |n| quantised(QuantFormat::Q6K, n),
        range: (-1.0, 1.0),
    },
];

/// An input of a measured operation: random elements, the same on every run.
pub(super) enum Input {
    /// f32, staggered against the other inputs.
    F32(Array),
    /// Anything else.
    Other(Buffer),
}

impl Input {
    /// The input at a position.
    pub(super) fn new(ty: &TensorType, measured: &Measured, position: usize) -> Result<Self> {
        let (lo, hi) = measured.range;
        Ok(match ty.dtype {
            DType::F32 => Self::F32(Array::random(ty.shape.numel(), lo, hi, position)),
            DType::Blocks(format) => Self::Other(weights(ty, format)),
            _ => Self::Other(Buffer::zeros(ty)?),
        })
    }

    /// The input as an operand.
    pub(super) fn operand(&self, ty: &TensorType) -> Result<Operand<'_>> {
        match self {
            Self::F32(array) => Operand::new(Data::F32(array), ty.shape),
            Self::Other(buffer) => Operand::new(buffer.as_data(), ty.shape),
        }
    }
}

/// Quantised random weights. A few blocks are fitted and repeated: the time of a product does not depend on them.
fn weights(ty: &TensorType, format: QuantFormat) -> Buffer {
    let values = kiln_benches::random(64 * format.block_len(), -1.0, 1.0, 9);
    let mut blocks = vec![0; 64 * format.block_bytes()];
    // As many values as the blocks hold: this cannot fail, and zeros would do too.
    let _ = format.encode(&values, &mut blocks);
    Buffer::Blocks(format, blocks.into_iter().cycle().take(ty.bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_sound_at_every_size() {
        for measured in ALL {
            for &n in measured.sizes {
                let (op, types) = (measured.problem)(n).unwrap();
                assert!(op.cost(&types).unwrap().bytes() > 0, "{} {n}", measured.name);
            }
            assert!(measured.sizes(true).len() < measured.sizes(false).len());
            assert_eq!(measured.sizes(true).last(), measured.sizes.last());
        }
    }
}
