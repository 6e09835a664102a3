use super::{Bound, Contract, Operation, Outputs};
#[cfg(feature = "reference")]
use crate::Buffer;
use crate::{DType, Error, Kind, Result, Shape, TensorType};

/// Rows of a tensor replaced by others, chosen by position: the update of the keys and values that a language model keeps.
///
/// Operands: `x` `[.., n, d]`, `rows` `[.., s, d]` of the same outer extents, and the positions of these rows among the `n`, u32:
/// `[s]` for all, or `[b, s]` where `b` is the first of three or more extents of `x`. The result is like `x`. Rows are of the
/// type of `x`; or both are floats, and elements are rounded to that type; or `x` is quantised blocks, and floats are quantised.
///
/// Of equal positions the last one counts, and a row at position [`WriteRows::SKIPPED`] is not written, so that a graph for
/// several rows also runs with fewer.
///
/// Recorded on a state of a graph it writes into the state, and costs the rows alone. Elsewhere `x` is copied first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriteRows;

/// The extents of rows that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteExtents {
    /// Matrices of rows, one after another.
    pub outer: usize,
    /// Neighbouring matrices that share their positions.
    pub sharing: usize,
    /// Rows of each matrix of `x`.
    pub n: usize,
    /// Rows that are written to each.
    pub s: usize,
    /// Elements of a row.
    pub d: usize,
}

impl WriteRows {
    /// The position of a row that is not written.
    pub const SKIPPED: u32 = u32::MAX;

    /// The extents for `x`, rows and positions.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit one another.
    pub fn extents(&self, x: &Shape, rows: &Shape, positions: &Shape) -> Result<WriteExtents> {
        let op = self.name();
        let ([outer @ .., n, d], [outer_rows @ .., s, d_rows]) = (x.dims(), rows.dims()) else {
            return Err(Error::Shape {
                op,
                reason: format!("{x} and {rows} are not both matrices, or stacks of them"),
            });
        };
        if outer != outer_rows || d != d_rows {
            let allowed = "only the numbers of rows, the second extents from the end, may differ";
            return Err(Error::mismatch(op, "the tensor and its new rows", x, rows, allowed));
        }
        let matrices = outer.iter().product();
        let sharing = match (positions.dims(), outer) {
            (&[given], _) if given == *s => matrices,
            (&[sets, given], &[first, ref rest @ ..]) if given == *s && sets == first => rest.iter().product(),
            _ => {
                let sets = outer.first().map_or(String::new(), |first| format!(" or [{first}, {s}]"));
                let reason = format!("positions {positions} are not [{s}]{sets}, one for each row of {rows}");
                return Err(Error::Shape { op, reason });
            }
        };
        Ok(WriteExtents { outer: matrices, sharing, n: *n, s: *s, d: *d })
    }

    /// Checks that every position is one of `n` rows, or is skipped.
    ///
    /// # Errors
    /// [`Error::Index`] for the first that is not.
    #[doc(hidden)] // for the crates that execute operations
    pub fn check(&self, positions: &[u32], n: usize) -> Result<()> {
        match positions.iter().position(|&p| p != Self::SKIPPED && p as usize >= n) {
            None => Ok(()),
            Some(at) => Err(Error::Index { op: self.name(), position: at, index: positions[at] as usize, bound: n }),
        }
    }

    /// Rows of floats as elements or blocks of the type of `x`, for tests.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Format`] for rows that are not whole blocks, which the shape rule refuses.
    #[cfg(feature = "reference")]
    pub fn stored(rows: crate::Data<'_>, to: DType) -> Result<Buffer> {
        let n = rows.bytes() / rows.dtype().size().max(1);
        let mut wide = crate::data::zeros::<f32>(n)?;
        crate::widen(rows, &mut wide);
        match to {
            DType::Blocks(format) => {
                let mut stored = Buffer::with_bytes(to, format.bytes(n)?)?;
                format.encode(&wide, stored.as_mut().blocks())?;
                Ok(stored)
            }
            _ => {
                let mut stored = Buffer::with_bytes(to, n * to.size())?;
                crate::narrow(&wide, stored.as_mut());
                Ok(stored)
            }
        }
    }
}

impl Operation for WriteRows {
    const AS_STORED: bool = true;
    const UPDATES: bool = true;

    fn name(&self) -> &'static str {
        "write_rows"
    }

    fn formula(&self) -> &'static str {
        "yₚ = rowsᵢ where p = positionᵢ, else xₚ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [x, rows, positions] = inputs else {
            return Err(Error::Arity { op, expected: 3, found: inputs.len() });
        };
        if positions.dtype != DType::U32 {
            return Err(Error::Type { op, index: 2, expected: DType::U32, found: positions.dtype });
        }
        let stores_floats = matches!(x.dtype.kind(), Kind::Float | Kind::Blocks);
        if rows.dtype != x.dtype && !(stores_floats && rows.dtype.is_float()) {
            return Err(Error::Type { op, index: 1, expected: x.dtype, found: rows.dtype });
        }
        self.extents(&x.shape, &rows.shape, &positions.shape)?;
        Ok((*x).into())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn bytes_read(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::total_bytes(inputs[1..].iter().map(|input| input.bytes() as u64))
    }

    fn bytes_written(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        let row = inputs[0].bytes().checked_div(inputs[0].shape.rows()).unwrap_or(0);
        (inputs[1].shape.rows() as u64).saturating_mul(row as u64)
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "rows of another type are rounded as `cast` and `quantize` do; of equal positions the last counts; position 2³² - 1 \
                      is skipped; any other position beyond the rows of x is an error, and then no row is written",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        let [x, rows, positions] = [0, 1, 2].map(|i| inputs[i]);
        let e = self.extents(&x.shape(), &rows.shape(), &positions.shape()).expect("a case fits its rule");
        let stored = match rows.data() {
            same if same.dtype() == x.data().dtype() => same.to_buffer(),
            other => Self::stored(other, x.data().dtype()),
        };
        let (stored, mut result) = (stored.expect("a case fits memory"), x.data().to_buffer().expect("so does this"));
        let row = x.ty().bytes().checked_div(e.outer * e.n).unwrap_or(0);
        for at in 0..e.outer * e.s {
            let (matrix, i) = (at / e.s, at % e.s);
            let position = positions.data().u32()[matrix / e.sharing * e.s + i];
            if position != Self::SKIPPED {
                let to = (matrix * e.n + position as usize) * row;
                let from = &stored.as_data().as_bytes()[at * row..(at + 1) * row];
                result.as_mut().as_bytes()[to..to + row].copy_from_slice(from);
            }
        }
        match result {
            Buffer::F32(values) => {
                let values: Vec<f64> = values.into_iter().map(f64::from).collect();
                vec![Expected::F32 { magnitudes: vec![0.0; values.len()], values }]
            }
            other => vec![Expected::Exact(other)],
        }
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(47);
        let mut tensor = |dtype: DType, dims: &[usize]| {
            let ty = TensorType::of(dtype, Shape::new(dims).expect("a shape")).expect("whole blocks");
            let mut buffer = Buffer::zeros(&ty).expect("a case fits memory");
            let x = random.uniforms(ty.shape.numel(), -9.0, 9.0);
            match dtype.kind() {
                Kind::Float => crate::narrow(&x, buffer.as_mut()),
                Kind::Blocks => buffer = Self::stored(crate::Data::F32(&x), dtype).expect("whole blocks"),
                _ => buffer.as_mut().as_bytes().fill_with(|| random.bits() as u8),
            }
            Input::new(buffer, dims)
        };
        let at = |positions: &[u32], dims: &[usize]| Input::new(Buffer::U32(positions.to_vec()), dims);
        let (skip, mut cases) = (Self::SKIPPED, Vec::new());
        // One row, several out of order, equal ones, skipped ones, none, all; no columns, no matrices, no rows to
        // replace.
        for (x, rows, positions, dims) in [
            (&[1, 1][..], &[1, 1][..], &[0][..], &[1][..]),
            (&[5, 7], &[1, 7], &[3], &[1]),
            (&[9, 33], &[4, 33], &[8, 0, 5, 2], &[4]),
            (&[9, 6], &[5, 6], &[4, 1, 4, skip, 1], &[5]),
            (&[3, 10, 32], &[3, 2, 32], &[9, 7], &[2]),
            (&[2, 3, 6, 64], &[2, 3, 2, 64], &[5, 0, 1, skip], &[2, 2]),
            (&[2, 4, 5], &[2, 1, 5], &[3, 0], &[2, 1]),
            (&[4, 3], &[2, 3], &[skip, skip], &[2]),
            (&[4, 3], &[0, 3], &[], &[0]),
            (&[4, 0], &[2, 0], &[1, 3], &[2]),
            (&[0, 4, 3], &[0, 2, 3], &[1, 3], &[2]),
            (&[0, 3], &[1, 3], &[skip], &[1]),
        ] {
            for dtype in [DType::F32, DType::F16, DType::U8] {
                cases.push(Case::new(Self, vec![tensor(dtype, x), tensor(dtype, rows), at(positions, dims)]));
            }
        }
        // More positions than a workgroup has threads.
        let many: Vec<u32> = (0..700).map(|i| (i * 7 + 3) % 900).collect();
        cases.push(Case::new(
            Self,
            vec![tensor(DType::F32, &[900, 5]), tensor(DType::F32, &[700, 5]), at(&many, &[700])],
        ));
        // Every type, including floats that are rounded or quantised by the write.
        let formats = crate::QuantFormat::ALL.map(DType::Blocks);
        for &dtype in DType::ALL.iter().chain(&formats) {
            let d = if let DType::Blocks(format) = dtype { format.block_len() } else { 6 };
            let (x, rows) = ([2, 7, d], [2, 2, d]);
            cases.push(Case::new(Self, vec![tensor(dtype, &x), tensor(dtype, &rows), at(&[6, 1], &[2])]));
            if matches!(dtype.kind(), Kind::Float | Kind::Blocks) {
                for from in [DType::F32, DType::F16, DType::Bf16] {
                    cases.push(Case::new(Self, vec![tensor(dtype, &x), tensor(from, &rows), at(&[0, 5], &[2])]));
                }
            }
        }
        let n = SPECIAL.len();
        let special = Input::f32(SPECIAL.to_vec(), &[1, n]);
        cases.push(Case::new(Self, vec![tensor(DType::F32, &[3, n]), special, at(&[1], &[1])]));
        cases
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn ty(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType::of(dtype, Shape::new(dims).unwrap()).unwrap()
    }

    #[test]
    fn extents_say_which_matrices_share_positions() {
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        let extents =
            |x: &[usize], rows: &[usize], at: &[usize]| WriteRows.extents(&shape(x), &shape(rows), &shape(at));
        let e = |outer, sharing, n, s, d| Ok(WriteExtents { outer, sharing, n, s, d });
        assert_eq!(extents(&[9, 4], &[2, 4], &[2]), e(1, 1, 9, 2, 4));
        assert_eq!(extents(&[2, 3, 9, 4], &[2, 3, 5, 4], &[5]), e(6, 6, 9, 5, 4));
        assert_eq!(extents(&[2, 3, 9, 4], &[2, 3, 5, 4], &[2, 5]), e(6, 3, 9, 5, 4));
        for (x, rows, at) in [
            (&[9, 4][..], &[2, 3][..], &[2][..]),
            (&[9, 4], &[2, 4], &[3]),
            (&[9, 4], &[2, 4], &[1, 2]),
            (&[3, 9, 4], &[2, 2, 4], &[2]),
            (&[2, 3, 9, 4], &[2, 3, 5, 4], &[3, 5]),
            (&[4], &[4], &[1]),
        ] {
            assert!(matches!(extents(x, rows, at), Err(Error::Shape { .. })), "{x:?} {rows:?} {at:?}");
        }
    }

    #[test]
    fn rows_are_of_the_type_of_the_tensor_or_floats_that_are_stored() {
        let positions = ty(DType::U32, &[2]);
        let infer = |x: DType, rows: DType| WriteRows.infer(&[ty(x, &[5, 32]), ty(rows, &[2, 32]), positions]);
        let q8 = DType::Blocks(crate::QuantFormat::Q8_0);
        for (x, rows) in
            [(DType::F16, DType::F32), (DType::F32, DType::Bf16), (q8, DType::F16), (q8, q8), (DType::I8, DType::I8)]
        {
            assert_eq!(infer(x, rows).unwrap()[0].dtype, x);
        }
        for (x, rows) in
            [(DType::I32, DType::F32), (DType::F32, DType::I32), (DType::F32, q8), (DType::U32, DType::I32)]
        {
            assert!(matches!(infer(x, rows), Err(Error::Type { index: 1, .. })), "{rows} into {x}");
        }
        let signed = WriteRows.infer(&[ty(DType::F32, &[5, 3]), ty(DType::F32, &[2, 3]), ty(DType::I32, &[2])]);
        assert!(matches!(signed, Err(Error::Type { index: 2, .. })));
    }

    #[test]
    fn the_first_position_out_of_range_is_reported_and_costs_are_those_of_the_rows() {
        assert_eq!(WriteRows.check(&[4, WriteRows::SKIPPED, 0], 5), Ok(()));
        let error = Error::Index { op: "write_rows", position: 1, index: 5, bound: 5 };
        assert_eq!(WriteRows.check(&[4, 5, 6], 5), Err(error));
        let types = [ty(DType::F16, &[2, 1000, 8]), ty(DType::F32, &[2, 3, 8]), ty(DType::U32, &[3])];
        let cost = crate::op::Op::from(WriteRows).cost(&types).unwrap();
        assert_eq!((cost.flops, cost.bytes_read, cost.bytes_written), (0, 6 * 8 * 4 + 12, 6 * 8 * 2));
    }
}
