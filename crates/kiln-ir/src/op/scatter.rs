use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Kind, Result, TensorType};

/// A table with some rows replaced: row i of the source is row `indexᵢ` of the result. Of equal indices the last one counts.
///
/// Operands: the table `[rows, n]`, indices `[k]`, the source `[k, n]` of the type of the table, which is any but blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scatter;

/// A table with rows added to some of its own: row i of the source to row `indexᵢ`, in the order of the i.
///
/// Operands: the table `[rows, n]`, indices `[k]`, the source `[k, n]`. The result is f32 of floats, and of their type of tables and
/// sources of i32 or of u32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexAdd;

/// Checks that every index is inside a table of `rows` rows.
///
/// # Errors
/// [`Error::Index`] for the first that is not.
pub(super) fn check_indices(op: &'static str, indices: &[u32], rows: usize) -> Result<()> {
    match indices.iter().position(|&i| i as usize >= rows) {
        None => Ok(()),
        Some(position) => Err(Error::Index { op, position, index: indices[position] as usize, bound: rows }),
    }
}

/// The shape rule of both. `dtype` returns the element type of the result for a table and a source.
fn infer(op: &'static str, inputs: &[TensorType], dtype: impl Fn(DType, DType) -> Result<DType>) -> Result<Outputs> {
    let [table, indices, source] = inputs else {
        return Err(Error::Arity { op, expected: 3, found: inputs.len() });
    };
    if indices.dtype != DType::U32 {
        return Err(Error::Type { op, index: 1, expected: DType::U32, found: indices.dtype });
    }
    let dtype = dtype(table.dtype, source.dtype)?;
    let &[_, columns] = table.shape.dims() else {
        return Err(Error::Shape { op, reason: format!("the table {} is not a matrix", table.shape) });
    };
    let &[count] = indices.shape.dims() else {
        return Err(Error::Shape { op, reason: format!("the indices {} are not a vector", indices.shape) });
    };
    if source.shape.dims() != [count, columns] {
        let reason =
            format!("the source {} is not [{count}, {columns}], a row of the table for each index", source.shape);
        return Err(Error::Shape { op, reason });
    }
    Ok(TensorType { dtype, shape: table.shape }.into())
}

impl Scatter {
    /// Checks that every index points into a table of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Index`] for the first that does not.
    #[doc(hidden)] // for the crates that execute operations
    pub fn check(&self, indices: &[u32], rows: usize) -> Result<()> {
        check_indices(self.name(), indices, rows)
    }
}

impl IndexAdd {
    /// Checks that every index points into a table of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Index`] for the first that does not.
    #[doc(hidden)] // for the crates that execute operations
    pub fn check(&self, indices: &[u32], rows: usize) -> Result<()> {
        check_indices(self.name(), indices, rows)
    }
}

impl Operation for Scatter {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "scatter"
    }

    fn formula(&self) -> &'static str {
        "yₖ = sourceᵢ for the last i with indexᵢ = k, else tableₖ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        infer(op, inputs, |table, source| {
            if table.kind() == Kind::Blocks {
                return Err(Error::Type { op, index: 0, expected: DType::F32, found: table });
            }
            if source == table { Ok(table) } else { Err(Error::Type { op, index: 2, expected: table, found: source }) }
        })
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "bits are copied; of equal indices the last one counts; an index outside of the table is an error",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let ty = inputs[0].ty();
        let row = ty.bytes() / ty.shape.rows().max(1);
        let mut found = crate::Buffer::zeros(&ty).expect("a case fits memory");
        let mut out = found.as_mut();
        out.as_bytes().copy_from_slice(inputs[0].data().as_bytes());
        for (i, &index) in inputs[1].data().u32().iter().enumerate() {
            let (to, from) = (index as usize * row, i * row);
            out.as_bytes()[to..to + row].copy_from_slice(&inputs[2].data().as_bytes()[from..from + row]);
        }
        vec![super::reference::Expected::Exact(found)]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(101);
        let mut cases = Vec::new();
        for (rows, columns, count) in SHAPES {
            for &dtype in DType::ALL {
                let indices = indices(rows, count, &mut random);
                let [table, source] = [rows, count].map(|n| Input::any(dtype, &[n, columns], &mut random));
                cases.push(Case::new(Self, vec![table, indices, source]));
            }
        }
        cases
    }
}

/// Rows and columns of a table, and rows of a source.
#[cfg(feature = "reference")]
const SHAPES: [(usize, usize, usize); 9] =
    [(1, 1, 1), (3, 5, 0), (0, 3, 0), (4, 0, 3), (5, 3, 40), (70, 17, 30), (9, 64, 9), (40, 16, 100), (300, 129, 700)];

/// Indices into a table, some of them equal.
#[cfg(feature = "reference")]
fn indices(rows: usize, count: usize, random: &mut super::reference::Random) -> super::reference::Input {
    let indices = (0..count).map(|_| random.below(rows) as u32).collect();
    super::reference::Input::new(crate::Buffer::U32(indices), &[count])
}

impl Operation for IndexAdd {
    fn name(&self) -> &'static str {
        "index_add"
    }

    fn formula(&self) -> &'static str {
        "yₖ = tableₖ + Σ sourceᵢ, indexᵢ = k"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        infer(op, inputs, |table, source| match table {
            DType::I32 | DType::U32 if source == table => Ok(table),
            DType::I32 | DType::U32 => Err(Error::Type { op, index: 2, expected: table, found: source }),
            float if float.is_float() && source.is_float() => Ok(DType::F32),
            float if float.is_float() => Err(Error::Type { op, index: 2, expected: DType::F32, found: source }),
            found => Err(Error::Type { op, index: 0, expected: DType::F32, found }),
        })
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[2].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Magnitude(64.0),
            special: "IEEE 754: rows are added one after another, in the order of the source; the bound is that of 64 indices, one \
                      for each; integers wrap around; an index outside of the table is an error",
        }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        // All rows may be added to the same row.
        Bound::Magnitude(inputs[1].shape.numel().max(1) as f64)
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        use crate::{Buffer, Data};
        let columns = inputs[0].shape().columns();
        let indices = inputs[1].data().u32();
        let pairs = || {
            indices.iter().enumerate().flat_map(|(i, &index)| {
                (0..columns).map(move |column| (index as usize * columns + column, i * columns + column))
            })
        };
        vec![match (inputs[0].data(), inputs[2].data()) {
            (Data::I32(table), Data::I32(source)) => {
                let mut y = table.to_vec();
                pairs().for_each(|(to, from)| y[to] = y[to].wrapping_add(source[from]));
                Expected::Exact(Buffer::I32(y))
            }
            (Data::U32(table), Data::U32(source)) => {
                let mut y = table.to_vec();
                pairs().for_each(|(to, from)| y[to] = y[to].wrapping_add(source[from]));
                Expected::Exact(Buffer::U32(y))
            }
            (table, source) => {
                let mut values: Vec<f64> = table.f32().iter().map(|&x| x.into()).collect();
                let mut magnitudes: Vec<f64> = values.iter().map(|x| x.abs()).collect();
                for (to, from) in pairs() {
                    let added = f64::from(source.f32()[from]);
                    (values[to], magnitudes[to]) = (values[to] + added, magnitudes[to] + added.abs());
                }
                Expected::F32 { values, magnitudes }
            }
        }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(103);
        let mut cases = Vec::new();
        for (rows, columns, count) in SHAPES {
            let indices = indices(rows, count, &mut random);
            let [table, source] =
                [rows, count].map(|n| Input::f32(random.uniforms(n * columns, -1.0, 1.0), &[n, columns]));
            cases.push(Case::new(Self, vec![table, indices.clone(), source]));
            for dtype in [DType::I32, DType::U32] {
                let [table, source] = [rows, count].map(|n| Input::any(dtype, &[n, columns], &mut random));
                cases.push(Case::new(Self, vec![table, indices.clone(), source]));
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn types_and_shapes_that_do_not_fit_are_refused() {
        let ty = |dtype: DType, dims: &[usize]| TensorType { dtype, shape: Shape::new(dims).unwrap() };
        let (f, h, i, u) = (DType::F32, DType::F16, DType::I32, DType::U32);
        let (table, indices, source) = (ty(f, &[5, 3]), ty(u, &[2]), ty(f, &[2, 3]));
        assert_eq!(Scatter.infer(&[table, indices, source]).unwrap()[0], table);
        assert_eq!(IndexAdd.infer(&[ty(h, &[5, 3]), indices, source]).unwrap()[0], table);
        for refused in [[table, ty(i, &[2]), source], [table, table, source]] {
            assert!(matches!(Scatter.infer(&refused), Err(Error::Type { index: 1, .. })));
            assert!(matches!(IndexAdd.infer(&refused), Err(Error::Type { index: 1, .. })));
        }
        for refused in [
            [ty(f, &[15]), indices, source],
            [table, ty(u, &[2, 1]), source],
            [table, indices, ty(f, &[3, 3])],
            [table, indices, ty(f, &[2, 4])],
        ] {
            assert!(matches!(Scatter.infer(&refused), Err(Error::Shape { .. })));
            assert!(matches!(IndexAdd.infer(&refused), Err(Error::Shape { .. })));
        }
        assert!(matches!(Scatter.infer(&[table, indices, ty(h, &[2, 3])]), Err(Error::Type { index: 2, .. })));
        assert!(matches!(IndexAdd.infer(&[table, indices, ty(i, &[2, 3])]), Err(Error::Type { index: 2, .. })));
        assert!(matches!(
            IndexAdd.infer(&[ty(DType::I8, &[5, 3]), indices, source]),
            Err(Error::Type { index: 0, .. })
        ));
        assert!(matches!(Scatter.infer(&[table, indices]), Err(Error::Arity { .. })));
        assert_eq!(Scatter.check(&[4, 0], 5), Ok(()));
        let outside = Error::Index { op: "index_add", position: 1, index: 5, bound: 5 };
        assert_eq!(IndexAdd.check(&[4, 5, 9], 5), Err(outside));
    }
}
