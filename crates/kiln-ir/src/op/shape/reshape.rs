use super::super::{Contract, Operation, Outputs};
use super::{CONTRACT, Movement, StridedCopy, no_axis, one};
use crate::{Error, MAX_RANK, Result, Shape, TensorType};

/// The same elements in the same order under other extents. In a recorded graph the result is the memory of the operand; as
/// an operation on slices it is a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reshape {
    /// With these extents, whose product is the same.
    To(Shape),
    /// Without this dimension, whose extent is 1.
    Squeeze(usize),
    /// With a new dimension of extent 1 at this position.
    Unsqueeze(usize),
}

impl Reshape {
    /// # Errors
    /// The errors of [`Shape::new`].
    pub fn to(dims: &[usize]) -> Result<Self> {
        Ok(Self::To(Shape::new(dims)?))
    }

    /// The method that records it, for errors.
    fn method(&self) -> &'static str {
        match self {
            Self::To(_) => "reshape",
            Self::Squeeze(_) => "squeeze",
            Self::Unsqueeze(_) => "unsqueeze",
        }
    }

    /// The extents of the result.
    fn shape(&self, x: &TensorType) -> Result<Shape> {
        let op = self.method();
        let mut dims = x.shape.dims().to_vec();
        match *self {
            Self::To(shape) => return Ok(shape),
            Self::Squeeze(axis) => match dims.get(axis) {
                Some(1) => drop(dims.remove(axis)),
                Some(n) => {
                    let reason = format!("dimension {axis} of {} has extent {n}; only 1 can be left out", x.shape);
                    return Err(Error::Shape { op, reason });
                }
                None => return Err(no_axis(op, x, axis)),
            },
            Self::Unsqueeze(axis) if axis <= dims.len() && dims.len() < MAX_RANK => dims.insert(axis, 1),
            Self::Unsqueeze(axis) => {
                let most = dims.len().min(MAX_RANK - 1);
                let reason = format!(
                    "{} takes no new dimension {axis}: there are 0..={most}, and at most {MAX_RANK} dimensions",
                    x.shape
                );
                return Err(Error::View { what: op, reason });
            }
        }
        Shape::new(&dims)
    }
}

impl Movement for Reshape {
    fn copy(&self, inputs: &[TensorType], _: usize) -> Result<StridedCopy> {
        self.infer(inputs)?;
        Ok(StridedCopy::whole(&inputs[0]))
    }
}

impl Operation for Reshape {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "reshape"
    }

    fn formula(&self) -> &'static str {
        "y = x under other extents"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.method();
        let x = one(op, inputs)?;
        let shape = self.shape(&x)?;
        if shape.numel() != x.shape.numel() {
            let reason = format!(
                "{} holds {} elements, {shape} would hold {}; they must be equal",
                x.shape,
                x.shape.numel(),
                shape.numel()
            );
            return Err(Error::Shape { op, reason });
        }
        Ok(TensorType::of(x.dtype, shape)?.into())
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
        use super::super::reference::Expected;
        use crate::Data;
        vec![match inputs[0].data() {
            Data::F32(x) => {
                Expected::F32 { values: x.iter().copied().map(f64::from).collect(), magnitudes: vec![0.0; x.len()] }
            }
            x => Expected::Exact(x.to_buffer().expect("a case fits memory")),
        }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::super::reference::Case> {
        use super::super::reference::Case;
        let mut samples = super::Samples::new(56);
        let mut cases = Vec::new();
        let shapes: [(&[usize], &[usize]); 9] = [
            (&[], &[1, 1]),
            (&[1], &[]),
            (&[12], &[3, 4]),
            (&[0, 5], &[7, 0, 2]),
            (&[2, 3, 4], &[4, 6]),
            (&[2, 3, 2, 3, 2, 1], &[72]),
            (&[77], &[7, 1, 11]),
            (&[90], &[1, 2, 3, 5, 3, 1]),
            (&[600, 601], &[601, 600]),
        ];
        for (dims, to) in shapes {
            let Ok(op) = Self::to(to) else { continue };
            cases.push(Case::new(op, vec![samples.floats(dims)]));
            if dims.iter().product::<usize>() < 10_000 {
                cases.push(Case::new(op, vec![samples.words(dims)]));
                cases.push(Case::new(op, vec![samples.halves(dims)]));
                cases.push(Case::new(op, vec![samples.bytes(dims)]));
            }
        }
        cases.push(Case::new(Self::Squeeze(1), vec![samples.floats(&[3, 1, 5])]));
        cases.push(Case::new(Self::Squeeze(0), vec![samples.floats(&[1])]));
        cases.push(Case::new(Self::Unsqueeze(0), vec![samples.floats(&[])]));
        cases.push(Case::new(Self::Unsqueeze(2), vec![samples.floats(&[3, 5])]));
        cases.push(Case::new(Self::Unsqueeze(5), vec![samples.floats(&[2, 1, 3, 1, 2])]));
        for format in crate::QuantFormat::ALL {
            if let Ok(op) = Self::to(&[3, 2 * format.block_len()]) {
                cases.push(Case::new(op, vec![samples.blocks(format, &[2, 3], 1)]));
            }
        }
        cases
    }
}
