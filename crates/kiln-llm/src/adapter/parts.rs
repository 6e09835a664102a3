//! The matrices of an adapter, while they are read and afterwards.

use std::collections::BTreeMap;

use kiln::{DType, Tensor, bf16, f16};

use crate::{Error, Result};

/// The contents of an adapter.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) name: String,
    /// The value of `general.architecture` of the model, if the adapter states it.
    pub(super) architecture: Option<String>,
    pub(super) order: RowOrder,
    /// Modules by layer and by an element of [`MODULES`](crate::architecture::MODULES).
    pub(super) modules: BTreeMap<(usize, &'static str), Module>,
}

/// The order of the rows of B for queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The order of transformers, which rotates halves.
    Halves,
    /// The order of GGUF files of the architecture.
    Gguf,
    /// The order of the model.
    Model,
}

/// The low-rank update of one projection.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    /// The factor f.
    pub(crate) factor: f32,
}

/// A matrix, and the narrowest type that represents its elements.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The elements, row by row.
    pub(crate) values: Vec<f32>,
    /// F32, F16 or Bf16.
    pub(crate) dtype: DType,
}

impl Matrix {
    /// A matrix from the bytes of a file.
    pub(super) fn from_bytes(bytes: &[u8], dtype: DType, [rows, columns]: [usize; 2]) -> kiln::Result<Self> {
        let (of_four, of_two) = (bytes.as_chunks::<4>().0.iter(), bytes.as_chunks::<2>().0.iter());
        let (values, dtype) = match dtype {
            DType::F16 => (of_two.map(|&two| f16::from_le_bytes(two).to_f32()).collect(), dtype),
            DType::Bf16 => (of_two.map(|&two| bf16::from_le_bytes(two).to_f32()).collect(), dtype),
            DType::Blocks(format) => {
                let mut values = vec![0.0; rows * columns];
                format.decode(bytes, &mut values)?;
                (values, DType::F32)
            }
            _ => (of_four.map(|&four| f32::from_le_bytes(four)).collect(), DType::F32),
        };
        Ok(Self { rows, columns, values, dtype })
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// The tensor `[rows, columns]`.
    pub(crate) fn into_tensor(self) -> kiln::Result<Tensor> {
        let dims = [self.rows, self.columns];
        match self.dtype {
            DType::F16 => Tensor::from_elements(&self.values.into_iter().map(f16::from_f32).collect::<Vec<_>>(), &dims),
            DType::Bf16 => {
                Tensor::from_elements(&self.values.into_iter().map(bf16::from_f32).collect::<Vec<_>>(), &dims)
            }
            _ => Tensor::from_vec(self.values, &dims),
        }
    }
}

/// The side of a tensor in its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// The matrices of an adapter while they are read.
pub(super) struct Modules<'n> {
    name: &'n str,
    found: BTreeMap<(usize, &'static str), [Option<Matrix>; 2]>,
}

impl<'n> Modules<'n> {
    pub(super) fn new(name: &'n str) -> Self {
        Self { name, found: BTreeMap::new() }
    }

    /// Adds a matrix, whose name in the file is `tensor`.
    pub(super) fn add(&mut self, key: (usize, &'static str), side: Side, tensor: &str, matrix: Matrix) -> Result<()> {
        let wrong = |reason: String| Err(Error::adapter(self.name, format!("tensor {tensor:?} {reason}")));
        if let Some(at) = matrix.values.iter().position(|x| !x.is_finite()) {
            return wrong(format!("has element {at} = {}: it is damaged, or its training diverged", matrix.values[at]));
        }
        if matrix.values.is_empty() {
            return wrong(format!("is {} x {}, which is empty", matrix.rows, matrix.columns));
        }
        let place = &mut self.found.entry(key).or_default()[side as usize];
        if place.is_some() {
            return wrong("occurs twice".to_owned());
        }
        *place = Some(matrix);
        Ok(())
    }

    /// Builds the parts of the adapter. `factor` receives a module's key and its rank.
    pub(super) fn into_parts(
        self,
        architecture: Option<String>,
        order: RowOrder,
        factor: impl Fn((usize, &'static str), usize) -> Result<f32>,
    ) -> Result<Parts> {
        let wrong = |reason: String| Error::adapter(self.name, reason);
        let mut modules = BTreeMap::new();
        for (key @ (layer, stem), matrices) in self.found {
            let [Some(a), Some(b)] = matrices else {
                return Err(wrong(format!("layer {layer} has one of the matrices A and B of {stem} alone")));
            };
            if a.rows != b.columns {
                let (shape_a, shape_b) = ([a.rows, a.columns], [b.rows, b.columns]);
                let reason = format!("A {shape_a:?} and B {shape_b:?} of layer {layer}, {stem} have different ranks");
                return Err(wrong(format!("{reason}: A is [rank, inputs] and B is [outputs, rank]")));
            }
            let factor = factor(key, a.rows)?;
            if !factor.is_finite() {
                return Err(wrong(format!("the factor of layer {layer}, {stem} is {factor}")));
            }
            modules.insert(key, Module { a, b, factor });
        }
        if modules.is_empty() {
            return Err(wrong("it changes nothing: at least one pair of matrices A and B is expected".to_owned()));
        }
        Ok(Parts { name: self.name.to_owned(), architecture, order, modules })
    }
}

#[cfg(test)]
mod tests {
    use kiln::QuantFormat;

    use super::*;

    #[test]
    fn matrices_of_every_type_are_their_elements_and_keep_the_narrow_types() {
        let values: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
        let mut blocks = vec![0; 2 * 34];
        QuantFormat::Q8_0.encode(&values, &mut blocks).unwrap();
        let of = |encode: fn(f32) -> Vec<u8>| values.iter().flat_map(|&x| encode(x)).collect::<Vec<u8>>();
        for (bytes, dtype, kept) in [
            (of(|x| x.to_le_bytes().to_vec()), DType::F32, DType::F32),
            (of(|x| f16::from_f32(x).to_le_bytes().to_vec()), DType::F16, DType::F16),
            (of(|x| bf16::from_f32(x).to_le_bytes().to_vec()), DType::Bf16, DType::Bf16),
            (blocks, DType::Blocks(QuantFormat::Q8_0), DType::F32),
        ] {
            let matrix = Matrix::from_bytes(&bytes, dtype, [2, 32]).unwrap();
            assert_eq!((matrix.dtype, matrix.values.len(), matrix.row(1).len()), (kept, 64, 32));
            // A block of 8 bits has steps of 31.5 / 127.
            assert!(matrix.values.iter().zip(&values).all(|(a, b)| (a - b).abs() < 0.13), "{dtype}");
            if kept != DType::F32 {
                // Written again, it has the original bytes.
                assert_eq!(matrix.into_tensor().unwrap().to_buffer().unwrap().as_data().as_bytes(), bytes);
            }
        }
    }
}
