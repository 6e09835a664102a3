//! Fits the constants of the prediction formula to measurements.

use kiln_route::{Calibrated, Place, Roofline};

/// Fits the constants of the formula to the measurements: overhead and bandwidths from a function that only moves its
/// data, the peak from the matrix product.
pub(super) fn fitted(places: &[Place], calibrated: &[Calibrated]) -> Vec<Place> {
    let find = |op: &str| calibrated.iter().find(|c| c.op == op && c.shape.is_empty());
    let (Some(moving), Some(computing)) = (find("scale"), find("matmul")) else { return places.to_vec() };
    let fit = |(i, place): (usize, &Place)| {
        let at = |curve: &Calibrated, point: usize| curve.seconds[point][i];
        let overhead = at(moving, 0);
        let level = |point: usize| {
            // At least a tenth of the time counts as data movement, whatever the noise of the overhead.
            let seconds = (at(moving, point) - overhead).max(at(moving, point) * 0.1);
            (moving.work[point] as u64, moving.work[point] / seconds)
        };
        let mut levels: Vec<(u64, f64)> = (1..moving.work.len()).map(level).collect();
        if let Some(last) = levels.last_mut() {
            last.0 = u64::MAX;
        } else {
            levels = place.roofline.levels.clone();
        }
        let rate = |point: usize| computing.work[point] / at(computing, point);
        let peak = (0..computing.work.len()).map(rate).fold(1.0, f64::max);
        Place { roofline: Roofline { overhead, levels, peak }, ..place.clone() }
    };
    places.iter().enumerate().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use kiln_ir::Precision;

    use super::*;
    use crate::calibrate::tests::places;

    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn constants_are_fitted_to_what_moves_and_what_computes() {
        let curve = |op: &str, points: &[(f64, f64)]| Calibrated {
            op: op.to_owned(),
            shape: String::new(),
            precision: Precision::Contract,
            work: points.iter().map(|p| p.0).collect(),
            seconds: points.iter().map(|p| vec![p.1; 3]).collect(),
        };
        let moving = curve("scale", &[(1e2, 1e-7), (1e5, 1e-7 + 1e5 / 50e9), (1e8, 1e-7 + 1e8 / 10e9)]);
        let computing = curve("matmul", &[(1e4, 1e-6), (1e8, 1e-3)]);
        let roofline = &fitted(&places(), &[moving, computing])[0].roofline;
        assert!((roofline.bandwidth(1000) / 50e9 - 1.0).abs() < 1e-6);
        assert!((roofline.bandwidth(u64::MAX) / 10e9 - 1.0).abs() < 1e-6);
        assert!((roofline.peak / 100e9 - 1.0).abs() < 1e-6);
    }
}
