use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Kind, Result, Shape, TensorType};

/// Rows multiplied with the transpose of a matrix that an index chooses for each: the products of a mixture of experts.
///
/// Operands: x `[.., k]`, the weights `[experts, n, k]` of floats or of quantised blocks along `k`, and indices of experts.
/// Indices `[..]` choose an expert for each row of x; indices `[.., used]` choose several for each. The result is
/// `[.., n]` or `[.., used, n]`. The matrices of experts that no index chooses are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulByExpert;

/// The extents of a product by expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertExtents {
    /// Rows of x.
    pub rows: usize,
    /// Experts that are chosen for each row of x.
    pub used: usize,
    /// Number of experts.
    pub experts: usize,
    /// Columns of x and of the weights.
    pub k: usize,
    /// Rows of the weights of an expert, and columns of the result.
    pub n: usize,
}

impl ExpertExtents {
    /// Rows of the result.
    pub fn products(&self) -> usize {
        self.rows * self.used
    }

    /// The tiles of the products, which share reads of the weights of an expert.
    pub fn tiles(&self) -> ExpertTiles {
        // With fewer products than experts most experts have at most one.
        match self.products() <= self.experts.max(ExpertTiles::ALONE) {
            true => ExpertTiles { rows: 1, count: self.products() },
            false => ExpertTiles { rows: ExpertTiles::TALL, count: self.products() / ExpertTiles::TALL + self.experts },
        }
    }
}

/// The tiles of the products of `matmul_by_expert`: a tile has one product, or several of one expert, which are gathered first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertTiles {
    /// Maximum number of products of a tile: 1 or [`ExpertTiles::TALL`].
    pub rows: usize,
    /// Number of tiles. If tiles have several products, one tile of each expert may not be full.
    pub count: usize,
}

impl ExpertTiles {
    /// Number of products of a tile that has several.
    pub const TALL: usize = 8;

    /// Maximum number of products for which each product is a tile of its own, whatever the number of experts.
    const ALONE: usize = 4;

    /// Whether products are gathered by expert.
    pub fn are_grouped(&self) -> bool {
        self.rows > 1
    }
}

impl MatmulByExpert {
    /// The extents for x, the weights and the indices.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit one another.
    pub fn extents(&self, x: &Shape, weights: &Shape, indices: &Shape) -> Result<ExpertExtents> {
        let op = self.name();
        let &[experts, n, k] = weights.dims() else {
            return Err(Error::Shape { op, reason: format!("the weights {weights} are not [experts, n, k]") });
        };
        let Some((_, outer)) = x.dims().split_last().filter(|(columns, _)| **columns == k) else {
            return Err(Error::mismatch(op, "rows of x and of the weights", x, weights, "both need as many columns"));
        };
        let used = match indices.dims().strip_prefix(outer) {
            Some([]) => 1,
            Some(&[used]) => used,
            _ => {
                let reason =
                    format!("the indices {indices} are not one or several for each of the rows {outer:?} of x");
                return Err(Error::Shape { op, reason });
            }
        };
        Ok(ExpertExtents { rows: outer.iter().product(), used, experts, k, n })
    }

    /// Checks that every index is that of an expert.
    ///
    /// # Errors
    /// [`Error::Index`] for the first that is not.
    #[doc(hidden)] // for the crates that execute operations
    pub fn check(&self, indices: &[u32], experts: usize) -> Result<()> {
        super::scatter::check_indices(self.name(), indices, experts)
    }
}

impl Operation for MatmulByExpert {
    fn name(&self) -> &'static str {
        "matmul_by_expert"
    }

    fn formula(&self) -> &'static str {
        "yᵢⱼ = Σₖ xᵢₖ Wₑⱼₖ, e = indexᵢ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [x, weights, indices] = inputs else { return Err(Error::Arity { op, expected: 3, found: inputs.len() }) };
        let wrong =
            |index: usize, expected: DType| Err(Error::Type { op, index, expected, found: inputs[index].dtype });
        if !x.dtype.is_float() {
            return wrong(0, DType::F32);
        }
        if !matches!(weights.dtype.kind(), Kind::Float | Kind::Blocks) {
            return wrong(1, DType::F32);
        }
        if indices.dtype != DType::U32 {
            return wrong(2, DType::U32);
        }
        let e = self.extents(&x.shape, &weights.shape, &indices.shape)?;
        let dims: Vec<usize> = indices.shape.dims().iter().copied().chain([e.n]).collect();
        Ok(TensorType::f32(Shape::new(&dims)?).into())
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        super::product(&[2, outputs[0].shape.numel(), inputs[0].shape.columns()])
    }

    fn bytes_read(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        let [x, weights, indices] = inputs else { return 0 };
        let experts = weights.shape.dims().first().copied().unwrap_or(0);
        let of_expert = weights.bytes().checked_div(experts).unwrap_or(0) as u64;
        // An expert is read once, however many rows chose it.
        let read = of_expert.saturating_mul(experts.min(indices.shape.numel()) as u64);
        super::total_bytes([x.bytes() as u64, read, indices.bytes() as u64])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: super::matmul::product_bound(4096),
            special: "as matmul for floating-point weights; as quant_matmul, with its bound, for quantised weights; an index without \
                      an expert is an error",
        }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        let k = inputs[1].shape.columns();
        match inputs[1].dtype {
            DType::Blocks(format) => super::quant::product_bound(k / format.block_len()),
            _ => super::matmul::product_bound(k),
        }
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        let k = inputs[1].shape.columns();
        match inputs[1].dtype {
            DType::Blocks(format) => super::quant::product_worst(k / format.block_len()),
            _ => super::matmul::product_worst(k),
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        use super::{Matmul, QuantMatmul};
        use crate::Operand;
        let [x, weights, indices] = inputs else { return Vec::new() };
        let Ok(e) = self.extents(&x.shape(), &weights.shape(), &indices.shape()) else { return Vec::new() };
        let (row, matrix) = (4 * e.k, weights.ty().bytes().checked_div(e.experts).unwrap_or(0));
        /// Part `at` of the data, in parts of `bytes` bytes.
        fn part<'a>(of: &Operand<'a>, dims: &[usize], bytes: usize, at: usize) -> Operand<'a> {
            let shape = Shape::new(dims).expect("part of a case");
            Operand::new(of.data().part(at * bytes..(at + 1) * bytes), shape).expect("part of a case")
        }
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for (i, &expert) in indices.data().u32().iter().enumerate() {
            let x = part(x, &[1, e.k], row, i / e.used);
            let weights = part(weights, &[e.n, e.k], matrix, expert as usize);
            let products = match weights.ty().dtype {
                DType::Blocks(format) => QuantMatmul { format }.reference(&[x, weights]),
                _ => Matmul { transpose_a: false, transpose_b: true }.reference(&[x, weights]),
            };
            for product in products {
                if let Expected::F32 { values: of_row, magnitudes: of_terms } = product {
                    values.extend(of_row);
                    magnitudes.extend(of_terms);
                }
            }
        }
        vec![Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        use crate::{Buffer, QuantFormat};
        let mut random = Random::new(83);
        let mut cases = Vec::new();
        // The experts, rows and columns of the weights; the dimensions of x before k, and of the indices.
        type Extents<'a> = ([usize; 3], &'a [usize], &'a [usize]);
        let mut case = |dtype: DType, (weights, outer, indices): Extents<'_>, skewed: bool, special: Option<f32>| {
            let [experts, n, k] = weights;
            let mut w = random.uniforms(experts * n * k, -1.0, 1.0);
            let mut x = random.uniforms(outer.iter().product::<usize>() * k, -1.0, 1.0);
            if let (Some(special), false) = (special, x.is_empty()) {
                let at = x.len() / 2;
                x[at] = special;
                // In the last expert only.
                *w.last_mut().expect("a case with special values has weights") = special;
            }
            let chosen = (0..indices.iter().product::<usize>()).map(|_| {
                // With skewed indices most rows choose the same expert, and some experts have no rows.
                let most = if skewed && random.below(8) > 0 { 1 } else { experts };
                random.below(most) as u32
            });
            let chosen = Input::new(Buffer::U32(chosen.collect()), indices);
            let w = match dtype {
                DType::Blocks(format) => Buffer::Blocks(format, super::quant::encoded(format, &w)),
                _ => Input::f32(w, &weights).narrowed(dtype).buffer,
            };
            let dims: Vec<usize> = outer.iter().copied().chain([k]).collect();
            cases.push(Case::new(Self, vec![Input::f32(x, &dims), Input::new(w, &weights), chosen]));
        };
        let floats = [DType::F32, DType::F16, DType::Bf16];
        for dtype in floats {
            // One row and several, one expert per row and several, rows of x for each row of the result, and empty
            // extents.
            let extents: [Extents<'_>; 16] = [
                ([4, 7, 24], &[1], &[1]),
                ([4, 7, 24], &[1], &[1, 2]),
                ([3, 33, 20], &[5], &[5]),
                ([8, 12, 40], &[3], &[3, 4]),
                ([8, 12, 40], &[3, 4], &[3, 4]),
                ([2, 5, 9], &[2, 3], &[2, 3, 2]),
                ([4, 6, 33], &[], &[]),
                ([4, 6, 33], &[], &[3]),
                ([5, 70, 264], &[40], &[40, 2]),
                ([3, 9, 17], &[70], &[70, 3]),
                ([1, 4, 8], &[12], &[12]),
                ([4, 0, 8], &[2], &[2, 2]),
                ([4, 3, 0], &[2], &[2, 2]),
                ([4, 3, 8], &[2], &[2, 0]),
                ([0, 3, 8], &[0], &[0, 2]),
                ([300, 3, 16], &[50], &[50, 2]),
            ];
            for extents in extents {
                case(dtype, extents, false, None);
            }
            case(dtype, ([6, 21, 48], &[90], &[90, 2]), true, None);
            for special in [f32::NAN, f32::INFINITY, -0.0] {
                case(dtype, ([3, 9, 24], &[4], &[4, 2]), false, Some(special));
                case(dtype, ([3, 9, 24], &[40], &[40, 2]), false, Some(special));
            }
        }
        for format in QuantFormat::ALL {
            let (len, dtype) = (format.block_len(), DType::Blocks(format));
            case(dtype, ([4, 5, 2 * len], &[1], &[1, 2]), false, None);
            case(dtype, ([4, 33, len], &[20], &[20, 2]), false, None);
            case(dtype, ([3, 5, len], &[9], &[9, 2]), false, None);
            case(dtype, ([3, 9, 2 * len], &[4], &[4, 2]), false, Some(f32::INFINITY));
            // Formats with the same layout share kernels, so one of each kind is tested in full.
            if matches!(format, QuantFormat::Q8_0 | QuantFormat::Q4K | QuantFormat::Q6K | QuantFormat::Mxfp4) {
                let more: [Extents<'_>; 7] = [
                    ([8, 40, 3 * len], &[3, 4], &[3, 4]),
                    ([2, 65, len], &[50], &[50]),
                    ([4, 0, len], &[2], &[2, 2]),
                    ([4, 3, 0], &[2], &[2, 2]),
                    ([4, 3, len], &[2], &[2, 0]),
                    ([0, 3, len], &[0], &[0, 2]),
                    ([40, 3, len], &[33], &[33, 2]),
                ];
                for extents in more {
                    case(dtype, extents, false, None);
                }
                case(dtype, ([6, 21, 2 * len], &[90], &[90, 2]), true, None);
                for special in [f32::NAN, f32::NEG_INFINITY] {
                    case(dtype, ([3, 9, 2 * len], &[40], &[40, 2]), false, Some(special));
                }
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QuantFormat;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn ty(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType::of(dtype, Shape::new(dims).unwrap()).unwrap()
    }

    #[test]
    fn indices_choose_one_expert_or_several_for_each_row() {
        let of = |x: &[usize], weights: &[usize], indices: &[usize]| {
            MatmulByExpert.infer(&[ty(DType::F32, x), ty(DType::F16, weights), ty(DType::U32, indices)])
        };
        for (x, indices, out) in [
            (&[5, 3][..], &[5][..], &[5, 4][..]),
            (&[5, 3], &[5, 2], &[5, 2, 4]),
            (&[5, 2, 3], &[5, 2], &[5, 2, 4]),
            (&[3], &[], &[4]),
            (&[3], &[2], &[2, 4]),
        ] {
            assert_eq!(of(x, &[8, 4, 3], indices).unwrap()[0], ty(DType::F32, out), "{x:?} {indices:?}");
        }
        for (x, weights, indices) in [
            (&[5, 3][..], &[8, 4, 2][..], &[5][..]),
            (&[5, 3], &[4, 3], &[5]),
            (&[5, 3], &[8, 4, 3], &[4]),
            (&[5, 3], &[8, 4, 3], &[5, 2, 1]),
            (&[5, 2, 3], &[8, 4, 3], &[5]),
            (&[], &[8, 4, 3], &[]),
        ] {
            assert!(matches!(of(x, weights, indices), Err(Error::Shape { .. })), "{x:?} {weights:?} {indices:?}");
        }
    }

    #[test]
    fn types_that_are_no_weights_are_refused() {
        let weights = ty(DType::F32, &[8, 4, 3]);
        let (x, indices) = (ty(DType::F32, &[5, 3]), ty(DType::U32, &[5]));
        let wrong = |inputs: &[TensorType]| match MatmulByExpert.infer(inputs) {
            Err(Error::Type { index, .. }) => Some(index),
            _ => None,
        };
        assert_eq!(wrong(&[ty(DType::I32, &[5, 3]), weights, indices]), Some(0));
        assert_eq!(wrong(&[x, ty(DType::I8, &[8, 4, 3]), indices]), Some(1));
        assert_eq!(wrong(&[x, weights, ty(DType::I32, &[5])]), Some(2));
        assert!(matches!(MatmulByExpert.infer(&[x, weights]), Err(Error::Arity { .. })));
    }

    #[test]
    fn cost_counts_the_experts_that_may_be_read() {
        let op = super::super::Op::from(MatmulByExpert);
        let weights = ty(DType::Blocks(QuantFormat::Q8_0), &[8, 10, 32]);
        let of = |rows: usize| op.cost(&[ty(DType::F32, &[rows, 32]), weights, ty(DType::U32, &[rows, 2])]).unwrap();
        assert_eq!((of(1).flops, of(1).bytes_read), (2 * 2 * 10 * 32, 128 + 8 + 2 * 340));
        assert_eq!(of(100).bytes_read, 12_800 + 800 + 8 * 340);
    }

    #[test]
    fn the_first_index_of_no_expert_is_named() {
        assert_eq!(MatmulByExpert.check(&[0, 3], 4), Ok(()));
        let refused = Error::Index { op: "matmul_by_expert", position: 1, index: 4, bound: 4 };
        assert_eq!(MatmulByExpert.check(&[0, 4, 9], 4), Err(refused));
    }
}
