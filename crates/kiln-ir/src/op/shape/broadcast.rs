use super::super::{Contract, Operation, Outputs};
use super::{CONTRACT, Dim, Layout, Movement, StridedCopy, one, whole_rows};
use crate::{Error, Result, Shape, TensorType};

/// A tensor repeated to fill a shape, by the rule of NumPy: from the last dimension on, extents are equal or 1, and missing
/// leading dimensions count as 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BroadcastTo {
    /// The shape of the result.
    pub shape: Shape,
}

impl BroadcastTo {
    /// # Errors
    /// The errors of [`Shape::new`].
    pub fn new(dims: &[usize]) -> Result<Self> {
        Ok(Self { shape: Shape::new(dims)? })
    }
}

impl Movement for BroadcastTo {
    fn copy(&self, inputs: &[TensorType], _: usize) -> Result<StridedCopy> {
        let out = self.infer(inputs)?[0];
        let (x, y) = (Layout::of(&inputs[0]), Layout::of(&out));
        let added = y.extents().len() - x.extents().len();
        let dims = y.extents().iter().zip(y.strides()).enumerate().map(|(d, (&extent, &to))| {
            let from = match d.checked_sub(added) {
                Some(d) if x.extents()[d] == extent => x.strides()[d],
                _ => 0,
            };
            Dim { extent, from, to }
        });
        Ok(StridedCopy::new(x.unit, dims, [0; 2]))
    }
}

impl Operation for BroadcastTo {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "broadcast_to"
    }

    fn formula(&self) -> &'static str {
        "y = x, repeated along dimensions of extent 1"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let x = one(op, inputs)?;
        let (from, to) = (x.shape.dims(), self.shape.dims());
        if from.len() > to.len() || from.iter().rev().zip(to.iter().rev()).any(|(&from, &to)| from != to && from != 1) {
            let reason = format!(
                "{} does not broadcast to {}: from the last dimension on, an extent must be equal or 1",
                x.shape, self.shape
            );
            return Err(Error::Shape { op, reason });
        }
        whole_rows(op, &x, x.shape.columns() == self.shape.columns())?;
        Ok(TensorType { dtype: x.dtype, shape: self.shape }.into())
    }

    fn renames(&self, inputs: &[TensorType]) -> bool {
        self.is_whole(inputs)
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        CONTRACT
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::super::reference::Expected> {
        let x = inputs[0].ty();
        let Ok(out) = self.infer(&[x]) else { return Vec::new() };
        super::moved(inputs, &out[0], 0.0, |index| {
            let index = &index[index.len() - x.shape.rank()..];
            Some((0, index.iter().zip(x.shape.dims()).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect()))
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::super::reference::Case> {
        use super::super::reference::Case;
        let mut samples = super::Samples::new(53);
        let mut cases = Vec::new();
        let shapes: [(&[usize], &[usize]); 16] = [
            (&[], &[]),
            (&[], &[7]),
            (&[], &[2, 3, 4, 5, 2, 3]),
            (&[5], &[5]),
            (&[5], &[3, 5]),
            (&[1], &[0]),
            (&[1, 5], &[0, 5]),
            (&[0, 1], &[2, 0, 3]),
            (&[3, 1], &[3, 70]),
            (&[3, 1, 4], &[3, 9, 4]),
            (&[1, 7, 1], &[6, 7, 5]),
            (&[2, 1, 3, 1], &[2, 4, 3, 6]),
            (&[2, 1, 2, 1, 3], &[2, 2, 5, 2, 4, 3]),
            (&[1, 2, 1, 3, 1, 4], &[3, 2, 4, 3, 2, 4]),
            (&[64], &[129, 64]),
            (&[520, 1], &[520, 601]),
        ];
        for (dims, to) in shapes {
            let Ok(op) = Self::new(to) else { continue };
            cases.push(Case::new(op, vec![samples.floats(dims)]));
            if to.iter().product::<usize>() < 10_000 {
                cases.push(Case::new(op, vec![samples.words(dims)]));
                cases.push(Case::new(op, vec![samples.halves(dims)]));
                cases.push(Case::new(op, vec![samples.bytes(dims)]));
            }
        }
        for format in crate::QuantFormat::ALL {
            if let Ok(op) = Self::new(&[2, 3, 2 * format.block_len()]) {
                cases.push(Case::new(op, vec![samples.blocks(format, &[3], 2)]));
            }
        }
        cases
    }
}
