use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Kind, Result, Shape, TensorType};

/// Rows of a table chosen by index: the lookup of embeddings.
///
/// Operands: the table `[rows, n]`, indices `[..]` of one dimension less than [`crate::MAX_RANK`] at most. The result is
/// `[.., n]`: f32 of a table of floats or of quantised blocks, which are read as they are stored, and of the type of any other
/// table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gather;

impl Gather {
    /// Checks that every index points into a table of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Index`] for the first that does not.
    #[doc(hidden)] // for the crates that execute operations
    pub fn check(&self, indices: &[u32], rows: usize) -> Result<()> {
        super::scatter::check_indices(self.name(), indices, rows)
    }
}

impl Operation for Gather {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "gather"
    }

    fn formula(&self) -> &'static str {
        "yᵢ = tableₖ, k = indexᵢ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [table, indices] = inputs else { return Err(Error::Arity { op, expected: 2, found: inputs.len() }) };
        if indices.dtype != DType::U32 {
            return Err(Error::Type { op, index: 1, expected: DType::U32, found: indices.dtype });
        }
        let dtype = match table.dtype.kind() {
            Kind::Float | Kind::Blocks => DType::F32,
            Kind::Integer | Kind::Truth => table.dtype,
        };
        let (table, indices) = (table.shape, indices.shape);
        let &[_, columns] = table.dims() else {
            return Err(Error::Shape { op, reason: format!("the table {table} is not a matrix") });
        };
        let dims: Vec<usize> = indices.dims().iter().copied().chain([columns]).collect();
        Ok(TensorType { dtype, shape: Shape::new(&dims)? }.into())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn bytes_read(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        let row = inputs[0].bytes().checked_div(inputs[0].shape.rows()).unwrap_or(0);
        inputs[1].bytes() as u64 + (inputs[1].shape.numel() as u64).saturating_mul(row as u64)
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "bits are copied, or decoded to f32; an index outside of the table is an error",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        let (table, columns) = (inputs[0].data(), inputs[0].shape().columns());
        let rows = inputs[1].data().u32().iter().map(|&i| i as usize);
        let mut numbers = vec![0.0; inputs[0].shape().numel()];
        match table {
            crate::Data::Blocks(format, blocks) => format.decode(blocks, &mut numbers).expect("whole blocks"),
            _ if table.dtype().is_float() => crate::widen(table, &mut numbers),
            _ => {
                let row = columns * table.dtype().size();
                let bytes: Vec<u8> = rows.flat_map(|r| &table.as_bytes()[r * row..(r + 1) * row]).copied().collect();
                let mut elements = crate::Buffer::with_bytes(table.dtype(), bytes.len()).expect("a case fits memory");
                elements.as_mut().as_bytes().copy_from_slice(&bytes);
                return vec![Expected::Exact(elements)];
            }
        }
        let values: Vec<f64> =
            rows.flat_map(|r| &numbers[r * columns..(r + 1) * columns]).map(|&v| f64::from(v)).collect();
        vec![Expected::F32 { magnitudes: vec![0.0; values.len()], values }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(41);
        let mut cases = Vec::new();
        let shapes: [(usize, usize, &[usize]); 9] = [
            (1, 1, &[1]),
            (5, 3, &[]),
            (5, 3, &[0]),
            (0, 3, &[0]),
            (5, 0, &[4]),
            (7, 17, &[3, 5]),
            (100, 64, &[2, 3, 4]),
            (1000, 129, &[70]),
            (SPECIAL.len(), 1, &[90]),
        ];
        for (rows, columns, dims) in shapes {
            let mut table = random.uniforms(rows * columns, -1.0, 1.0);
            if table.len() == SPECIAL.len() {
                table.copy_from_slice(&SPECIAL);
            }
            let indices = (0..dims.iter().product()).map(|_| random.below(rows) as u32).collect();
            let indices = Input::new(crate::Buffer::U32(indices), dims);
            cases.push(Case::new(Self, vec![Input::f32(table, &[rows, columns]), indices]));
        }
        // Tables of every type, with rows that are whole words and rows that are not.
        let formats = crate::QuantFormat::ALL.map(DType::Blocks);
        for &dtype in DType::ALL.iter().chain(&formats) {
            let unit = if let DType::Blocks(format) = dtype { format.block_len() } else { 1 };
            for (rows, units, dims) in [(7, 1, &[5][..]), (5, 6, &[3, 3]), (40, 16, &[17])] {
                let columns = units * unit;
                let ty = TensorType::of(dtype, Shape::new(&[rows, columns]).expect("a shape")).expect("whole blocks");
                let mut table = crate::Buffer::zeros(&ty).expect("a case fits memory");
                if dtype.is_float() {
                    crate::narrow(&random.uniforms(rows * columns, -9.0, 9.0), table.as_mut());
                } else {
                    table.as_mut().as_bytes().fill_with(|| random.bits() as u8);
                }
                let indices = (0..dims.iter().product()).map(|_| random.below(rows) as u32).collect();
                let indices = Input::new(crate::Buffer::U32(indices), dims);
                cases.push(Case::new(Self, vec![Input::new(table, &[rows, columns]), indices]));
            }
        }
        cases
    }
}
