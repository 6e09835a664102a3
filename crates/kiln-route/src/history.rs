//! What was observed after the calibration.

use std::collections::HashMap;

use crate::class::Class;

/// Observations before they count: fewer are luck.
const MINIMUM: u32 = 10;

/// An observation further than this from the mean of the earlier ones is an outlier: the machine was busy.
const OUTLIER: f64 = 0.5;

/// Observed times relative to predicted ones, for each class, octave of work and place.
///
/// The mean of the ratios corrects the prediction once ten observations agree. An observation that differs from the mean
/// by more than 50 % is rejected; once as many were rejected as had been accepted, the machine has changed and the entry
/// starts anew.
#[derive(Debug, Clone, Default)]
pub struct History {
    entries: HashMap<(Class, i32, usize), Entry>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    mean: f64,
    samples: u32,
    rejected: u32,
}

/// The power of two below the work: within an octave one correction serves.
fn octave(work: f64) -> i32 {
    work.max(1.0).log2() as i32
}

impl History {
    /// Records that work which was predicted to take `predicted` seconds took `observed`. Values that are no times are
    /// ignored.
    pub fn observe(&mut self, class: Class, work: f64, place: usize, predicted: f64, observed: f64) {
        let ratio = observed / predicted;
        if !(ratio.is_finite() && ratio > 0.0) {
            return;
        }
        let entry = self.entries.entry((class, octave(work), place)).or_default();
        if entry.samples > 0 && (ratio / entry.mean - 1.0).abs() > OUTLIER {
            entry.rejected += 1;
            if entry.rejected >= entry.samples {
                *entry = Entry { mean: ratio, samples: 1, rejected: 0 };
            }
            return;
        }
        entry.samples = entry.samples.saturating_add(1);
        // Weights of at least 1/64 let the mean follow a machine that changes slowly.
        entry.mean += (ratio - entry.mean) / f64::from(entry.samples.min(64));
    }

    /// The factor on the predicted time of this work, once enough was observed.
    pub fn correction(&self, class: Class, work: f64, place: usize) -> Option<f64> {
        let entry = self.entries.get(&(class, octave(work), place))?;
        (entry.samples >= MINIMUM).then_some(entry.mean)
    }

    /// Whether nothing was observed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const CLASS: Class = Class { op: "add", shape: "" };

    #[test]
    fn ten_observations_correct_a_prediction() {
        let mut history = History::default();
        for i in 0..10 {
            assert_eq!(history.correction(CLASS, 1000.0, 1), None, "{i}");
            history.observe(CLASS, 1000.0, 1, 1.0, 2.0);
        }
        assert_eq!(history.correction(CLASS, 1000.0, 1), Some(2.0));
        assert_eq!(history.correction(CLASS, 1000.0, 0), None, "another place");
        assert_eq!(history.correction(CLASS, 100_000.0, 1), None, "another size");
        assert_eq!(history.correction(CLASS, 1023.0, 1), Some(2.0), "the same octave");
    }

    #[test]
    fn outliers_are_rejected_until_they_are_the_majority() {
        let mut history = History::default();
        for _ in 0..10 {
            history.observe(CLASS, 1000.0, 0, 1.0, 1.0);
        }
        for _ in 0..9 {
            history.observe(CLASS, 1000.0, 0, 1.0, 5.0);
            assert_eq!(history.correction(CLASS, 1000.0, 0), Some(1.0));
        }
        history.observe(CLASS, 1000.0, 0, 1.0, 5.0);
        assert_eq!(history.correction(CLASS, 1000.0, 0), None, "flushed: observed anew");
        for _ in 0..9 {
            history.observe(CLASS, 1000.0, 0, 1.0, 5.0);
        }
        assert_eq!(history.correction(CLASS, 1000.0, 0), Some(5.0));
    }

    #[test]
    fn what_is_no_time_is_ignored() {
        let mut history = History::default();
        for (predicted, observed) in
            [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::NAN), (1.0, f64::INFINITY), (-1.0, 1.0), (0.0, 0.0)]
        {
            history.observe(CLASS, 1000.0, 0, predicted, observed);
        }
        history.observe(CLASS, f64::NAN, 0, 1.0, 1.0);
        assert_eq!(history.correction(CLASS, 1000.0, 0), None);
    }
}
