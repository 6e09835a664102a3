use super::rows::per_element;
#[cfg(feature = "reference")]
use super::rows::{by_rows, row_inputs};
use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Result, TensorType};

/// The exponential function of every row, divided by its sum. Rows are along the last dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Softmax;

/// The logarithm of [`Softmax`], without the detour through numbers that vanish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogSoftmax;

#[cfg(feature = "reference")]
fn greatest(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::NEG_INFINITY, super::maximum)
}

/// The error bound of the sum of a row's exponentials, in u relative to the sum, including the error of each
/// exponential. An exponential has an error of (1.3 + 1.25 (m - x)) u, which weighted by the exponentials is at most
/// 1.25 ln n. Then come 15 roundings of a running sum, one for adding two of them, 5 for their sum, and 4 across the
/// lanes; the rest is f64, rounded once.
fn exponentials_worst(inputs: &[TensorType]) -> f64 {
    let n = inputs.first().map_or(1, |input| input.shape.columns().max(1));
    1.3 + 1.3 + 26.0 + 1.25 * (n as f64).ln()
}

/// Rows with equal exponentials, or with exponentials that each make the running sum round.
#[cfg(feature = "reference")]
fn worst_rows() -> Vec<super::reference::Input> {
    use super::reference::Input;
    let mut rows = Vec::new();
    for (n, x) in [(1024, -0.109), (2048, -0.22), (2049, -0.3), (100_000, -2.0)] {
        let mut row = vec![x; n];
        row[0] = 0.0;
        rows.push(Input::f32(row, &[n]));
    }
    // A little more than half a unit in the last place of 1, at every step of a lane that holds the 1.
    for lanes in [1, 4, 8, 16] {
        let mut row = vec![f32::NEG_INFINITY; 2 * lanes * 64];
        row.iter_mut().step_by(2 * lanes).for_each(|x| *x = -16.635_54);
        row[0] = 0.0;
        rows.push(Input::f32(row.clone(), &[row.len()]));
    }
    rows
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn formula(&self) -> &'static str {
        "exp(xᵢ - m) / Σ exp(xⱼ - m), m = max x"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(self.name(), inputs, &[DType::F32])?;
        Ok(TensorType::f32(inputs[0].shape).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        per_element(inputs, 14)
    }

    fn contract(&self) -> Contract {
        Contract {
            // Relative: m - x rounds by (m - x) u, which exp carries over; exp itself 2 u; the sum of exponentials
            // 2 u of theirs and, where its roundings are independent, 1.6 u of its tree; reciprocal and product 1 u each.
            bound: Bound::Magnitude(8.0),
            special: "the bound is relative to yᵢ (1 + m - xᵢ), and more than twice the error of independent roundings; if all have \
                      one direction, the error may reach 33 + 1.25 ln n on the CPU; a row with NaN or +∞, or with only -∞, gives \
                      NaN; -∞ in another row gives 0; an empty row stays empty",
        }
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        Bound::Magnitude(4.0 + exponentials_worst(inputs))
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        worst_rows().into_iter().map(|x| super::reference::Case::new(Self, vec![x])).collect()
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        by_rows(inputs, |row, values, magnitudes| {
            let m = greatest(row);
            let sum: f64 = row.iter().map(|x| (x - m).exp()).sum();
            for x in row {
                let y = (x - m).exp() / sum;
                values.push(y);
                magnitudes.push(if y == 0.0 { 0.0 } else { y * (1.0 + (m - x)) });
            }
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let mut cases: Vec<Case> = row_inputs(31).into_iter().map(|x| Case::new(Self, vec![x])).collect();
        cases.push(Case::new(Self, vec![Input::f32(vec![3.0], &[])]));
        cases
    }
}

impl Operation for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
    }

    fn formula(&self) -> &'static str {
        "xᵢ - m - ln Σ exp(xⱼ - m), m = max x"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(self.name(), inputs, &[DType::F32])?;
        Ok(TensorType::f32(inputs[0].shape).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        per_element(inputs, 14)
    }

    fn contract(&self) -> Contract {
        Contract {
            // A relative error of the sum, 3.6 u as for softmax, becomes an absolute error of its logarithm; the two
            // subtractions round by u of their results.
            bound: Bound::Magnitude(6.0),
            special: "the bound is relative to 1 + (m - xᵢ) + ln Σ, and more than twice the error of independent roundings; if all have \
                      one direction, the error may reach 32 + 1.25 ln n on the CPU; a row with NaN or +∞, or with only -∞, gives \
                      NaN; -∞ in another row gives -∞; an empty row stays empty",
        }
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        Bound::Magnitude(3.0 + exponentials_worst(inputs))
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        worst_rows().into_iter().map(|x| super::reference::Case::new(Self, vec![x])).collect()
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        by_rows(inputs, |row, values, magnitudes| {
            let m = greatest(row);
            let log = row.iter().map(|x| (x - m).exp()).sum::<f64>().ln();
            for x in row {
                values.push(x - m - log);
                magnitudes.push(1.0 + (m - x) + log);
            }
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::Case;
        row_inputs(32).into_iter().map(|x| Case::new(Self, vec![x])).collect()
    }
}
