//! The least and the median time of a few runs.

use kiln_ir::Result;
use web_time::Instant;

/// The number of runs of timed work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runs {
    /// Runs before the first timed one: they compile and allocate.
    pub(crate) untimed: usize,
    /// Maximum number of timed runs.
    pub(crate) most: usize,
    /// Seconds after which three runs suffice.
    pub(crate) enough: f64,
    /// Seconds after which one run suffices.
    pub(crate) long: f64,
}

impl Runs {
    /// The minimum seconds of a run.
    ///
    /// # Errors
    /// The first error of a run.
    pub(crate) fn least(self, run: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut least = f64::INFINITY;
        self.time(run, |seconds| least = least.min(seconds))?;
        Ok(least)
    }

    /// The median seconds of a run.
    ///
    /// # Errors
    /// The first error of a run.
    pub(crate) fn median(self, run: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut all = Vec::with_capacity(self.most);
        self.time(run, |seconds| all.push(seconds))?;
        Ok(median(&mut all))
    }

    /// Calls `see` with the seconds of each run.
    fn time(self, mut run: impl FnMut() -> Result<()>, mut see: impl FnMut(f64)) -> Result<()> {
        for _ in 0..self.untimed {
            run()?;
        }
        let start = Instant::now();
        for number in 0..self.most {
            let sample = Instant::now();
            run()?;
            see(sample.elapsed().as_secs_f64());
            let spent = start.elapsed().as_secs_f64();
            if number >= 2 && spent > self.enough || spent > self.long {
                break;
            }
        }
        Ok(())
    }
}

/// The median of at least one value.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn as_many_runs_as_the_time_allows() {
        let count = |runs: Runs| {
            let mut count = 0;
            let least = runs.least(|| {
                count += 1;
                Ok(())
            });
            (count, least.unwrap())
        };
        let all = Runs { untimed: 2, most: 10, enough: f64::INFINITY, long: f64::INFINITY };
        let (runs, least) = count(all);
        assert!(runs == 12 && least < 1.0, "{runs} {least}");
        assert_eq!(count(Runs { enough: -1.0, ..all }).0, 2 + 3);
        assert_eq!(count(Runs { long: -1.0, untimed: 1, ..all }).0, 1 + 1);
        let mut runs = 0;
        let median = all.median(|| {
            runs += 1;
            Ok(())
        });
        assert!(runs == 12 && median.is_ok(), "{runs}");
    }

    #[test]
    fn a_median_is_between_the_others() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
