use super::super::{Contract, Operation, Outputs};
use super::{CONTRACT, Dim, Layout, Movement, StridedCopy, one, whole_rows};
use crate::{Error, MAX_RANK, Result, Shape, TensorType};

/// The dimensions in another order: dimension `d` of the result is dimension `axes[d]` of the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permute {
    rank: u8,
    axes: [u8; MAX_RANK],
}

impl Permute {
    /// # Errors
    /// [`Error::Parameter`] when the axes are not each of `0..axes.len()` once.
    pub fn new(axes: &[usize]) -> Result<Self> {
        let once = |axis: usize| axes.iter().filter(|&&a| a == axis).count() == 1;
        if axes.len() > MAX_RANK || !(0..axes.len()).all(once) {
            let reason =
                format!("{axes:?} is not a permutation; each of 0..{} must occur once", axes.len().min(MAX_RANK));
            return Err(Error::Parameter { op: "permute", reason });
        }
        let mut permute = Self { rank: axes.len() as u8, axes: [0; MAX_RANK] };
        permute.axes.iter_mut().zip(axes).for_each(|(to, &axis)| *to = axis as u8);
        Ok(permute)
    }

    /// The permutation of `rank` dimensions that makes `axis` the last one, and its inverse.
    ///
    /// # Errors
    /// The errors of [`Permute::new`], when there is no such dimension.
    pub fn to_last(rank: usize, axis: usize) -> Result<[Self; 2]> {
        let mut there: Vec<usize> = (0..rank).filter(|&d| d != axis).collect();
        there.push(axis);
        let mut back: Vec<usize> = (0..rank.saturating_sub(1)).collect();
        back.insert(axis.min(back.len()), rank.saturating_sub(1));
        Ok([Self::new(&there)?, Self::new(&back)?])
    }

    /// For each dimension of the result, that of the operand.
    pub fn axes(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.axes[..self.rank.into()].iter().map(|&axis| axis.into())
    }
}

impl Movement for Permute {
    fn copy(&self, inputs: &[TensorType], _: usize) -> Result<StridedCopy> {
        let out = self.infer(inputs)?[0];
        let (x, y) = (Layout::of(&inputs[0]), Layout::of(&out));
        let dims = self.axes().zip(y.strides());
        let dims = dims.map(|(axis, &to)| Dim { extent: x.extents()[axis], from: x.strides()[axis], to });
        Ok(StridedCopy::new(x.unit, dims, [0; 2]))
    }
}

impl Operation for Permute {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "permute"
    }

    fn formula(&self) -> &'static str {
        "y = x with its dimensions in another order"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let x = one(op, inputs)?;
        if x.shape.rank() != self.axes().len() {
            let axes: Vec<usize> = self.axes().collect();
            let reason = format!("{axes:?} names {} dimensions, {} has {}", axes.len(), x.shape, x.shape.rank());
            return Err(Error::Shape { op, reason });
        }
        whole_rows(op, &x, self.axes().last().is_none_or(|last| last + 1 == x.shape.rank()))?;
        let dims: Vec<usize> = self.axes().map(|axis| x.shape.dims()[axis]).collect();
        Ok(TensorType { dtype: x.dtype, shape: Shape::new(&dims)? }.into())
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
        let Ok(out) = self.infer(&[inputs[0].ty()]) else { return Vec::new() };
        super::moved(inputs, &out[0], 0.0, |index| {
            let mut at = vec![0; index.len()];
            self.axes().zip(index).for_each(|(axis, &i)| at[axis] = i);
            Some((0, at))
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::super::reference::Case> {
        use super::super::reference::Case;
        let mut samples = super::Samples::new(51);
        let mut cases = Vec::new();
        let shapes: [(&[usize], &[usize]); 19] = [
            (&[], &[]),
            (&[0], &[5]),
            (&[1, 0], &[3, 7]),
            (&[1, 0], &[0, 7]),
            (&[1, 0], &[64, 65]),
            (&[2, 0, 1], &[3, 21, 77]),
            (&[0, 2, 1], &[3, 17, 9]),
            (&[1, 0, 2], &[5, 6, 8]),
            (&[2, 1, 0], &[7, 3, 11]),
            (&[2, 0, 1], &[2, 33, 34]),
            (&[0, 2, 1, 3], &[2, 5, 3, 8]),
            (&[0, 2, 3, 1], &[2, 16, 3, 16]),
            (&[3, 1, 0, 2], &[4, 0, 3, 5]),
            (&[4, 0, 3, 1, 2], &[3, 2, 1, 4, 5]),
            (&[5, 4, 3, 2, 1, 0], &[2, 3, 2, 3, 2, 5]),
            (&[1, 0, 3, 2, 5, 4], &[2, 3, 4, 3, 2, 6]),
            (&[2, 0, 1, 5, 4, 3], &[3, 1, 2, 4, 1, 5]),
            (&[2, 1, 0], &[40, 1, 100]),
            (&[0, 2, 1], &[2, 300, 520]),
        ];
        for (axes, dims) in shapes {
            let Ok(op) = Self::new(axes) else { continue };
            cases.push(Case::new(op, vec![samples.floats(dims)]));
            if dims.iter().product::<usize>() < 10_000 {
                cases.push(Case::new(op, vec![samples.words(dims)]));
                cases.push(Case::new(op, vec![samples.halves(dims)]));
                cases.push(Case::new(op, vec![samples.bytes(dims)]));
            }
        }
        if let Ok(op) = Self::new(&[1, 0, 2]) {
            cases.extend(crate::QuantFormat::ALL.map(|format| Case::new(op, vec![samples.blocks(format, &[3, 4], 2)])));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_is_not_a_permutation_is_refused() {
        for axes in [&[0, 0][..], &[1], &[0, 2], &[0, 1, usize::MAX], &[0, 1, 2, 3, 4, 5, 6]] {
            assert!(matches!(Permute::new(axes), Err(Error::Parameter { .. })), "{axes:?}");
        }
        let x = TensorType::f32(Shape::new(&[2, 3]).unwrap());
        for axes in [&[0][..], &[2, 1, 0]] {
            assert!(Permute::new(axes).unwrap().infer(&[x]).is_err(), "{axes:?} of two dimensions");
        }
    }
}
