use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, Shape, TensorType};

/// The k greatest elements of every row, greatest first, with their indices in the row.
///
/// Rows are along the last dimension. Results: values `[.., k]` (f32) and indices `[.., k]` (u32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopK {
    /// Number of elements to select, at most the length of a row.
    pub k: usize,
}

impl Operation for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn formula(&self) -> &'static str {
        "the k greatest xᵢ in descending order, and their i"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        super::expect_types(op, inputs, &[DType::F32])?;
        let x = inputs[0].shape;
        let Some((last, outer)) = x.dims().split_last() else {
            return Err(Error::Shape { op, reason: "a scalar has no rows".into() });
        };
        if self.k > *last {
            return Err(Error::Parameter { op, reason: format!("k = {} exceeds a row of {last} elements", self.k) });
        }
        if u32::try_from(*last).is_err() {
            return Err(Error::Shape { op, reason: format!("{last} positions are too many for indices of u32") });
        }
        let dims: Vec<usize> = outer.iter().copied().chain([self.k]).collect();
        let shape = Shape::new(&dims)?;
        Ok(Outputs::pair(TensorType::f32(shape), TensorType::u32(shape)))
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "NaN counts as greater than +∞; -0 equals +0; of equals the lower index comes first",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for row in inputs[0].data().f32().chunks_exact(inputs[0].shape().columns().max(1)) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            // Stable, so equals stay in the order of their indices.
            order.sort_by(|&a, &b| match (row[a].is_nan(), row[b].is_nan()) {
                (false, false) => row[b].partial_cmp(&row[a]).unwrap_or(std::cmp::Ordering::Equal),
                (a, b) => b.cmp(&a),
            });
            values.extend(order[..self.k].iter().map(|&i| f64::from(row[i])));
            indices.extend(order[..self.k].iter().map(|&i| i as u32));
        }
        vec![
            Expected::F32 { magnitudes: vec![0.0; values.len()], values },
            Expected::Exact(crate::Buffer::U32(indices)),
        ]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(42);
        let mut cases = Vec::new();
        let shapes: [(&[usize], &[usize]); 9] = [
            (&[1], &[0, 1]),
            (&[0], &[0]),
            (&[5], &[1, 3, 5]),
            (&[0, 7], &[2]),
            (&[3, 17], &[1, 4, 17]),
            (&[2, 3, 100], &[10]),
            (&[1000], &[1, 40, 999]),
            (&[2, 5003], &[1, 64, 700]),
            (&[70_001], &[5, 50]),
        ];
        for (dims, ks) in shapes {
            let n = dims.iter().product();
            // Many equal values, all different values, ascending values (each exceeds all before it).
            let coarse: Vec<f32> = (0..n).map(|_| random.below(9) as f32 - 4.0).collect();
            let ascending: Vec<f32> = (0..n).map(|i| i as f32).collect();
            for data in [coarse, random.uniforms(n, -1.0, 1.0), ascending] {
                for &k in ks {
                    cases.push(Case::new(Self { k }, vec![Input::f32(data.clone(), dims)]));
                }
            }
        }
        let specials: Vec<f32> = SPECIAL.into_iter().cycle().take(3 * SPECIAL.len() + 1).collect();
        for k in [1, 2, 3, 4, 60, specials.len()] {
            cases.push(Case::new(Self { k }, vec![Input::f32(specials.clone(), &[specials.len()])]));
        }
        for value in [f32::NEG_INFINITY, f32::NAN, -0.0] {
            cases.push(Case::new(Self { k: 9 }, vec![Input::f32(vec![value; 90], &[90])]));
        }
        cases
    }
}
