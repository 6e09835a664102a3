//! Repeats timed work until a coarse clock measures it well, and computes its time.

/// Repeats runs until they exceed a sample, and keeps the lesser of two samples: a disturbance affects one of them,
/// seldom both. The very first run is not counted: it may compile, which takes up to a thousand times as long.
#[derive(Debug)]
pub(crate) struct Repeats {
    sample: f64,
    most: f64,
    count: f64,
    warm: bool,
    first: Option<f64>,
}

impl Repeats {
    /// Starts samples of this many seconds, or of `most` runs.
    pub(crate) fn new(sample: f64, most: u32) -> Self {
        Self { sample, most: most.into(), count: 1.0, warm: false, first: None }
    }

    /// The number of runs to do next.
    pub(crate) fn count(&self) -> u32 {
        self.count as u32
    }

    /// Takes the seconds of [`Repeats::count`] runs. Returns the seconds of one run once they are known.
    pub(crate) fn took(&mut self, seconds: f64) -> Option<f64> {
        if !self.warm {
            self.warm = true;
        } else if seconds >= self.sample || self.count >= self.most {
            let one = seconds / self.count;
            return self.first.replace(one).map(|first| first.min(one));
        } else {
            let growth = (1.5 * self.sample / seconds.max(f64::MIN_POSITIVE)).clamp(2.0, 16.0);
            self.count = (self.count * growth).ceil().min(self.most);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// The measured result for runs of this many seconds, with delays in some samples.
    fn found(run: f64, delays: &[(usize, f64)]) -> (f64, f64) {
        let (mut repeats, mut all) = (Repeats::new(1e-3, 1000), 0.0);
        for number in 0.. {
            let delay = delays.iter().find(|delay| delay.0 == number).map_or(0.0, |delay| delay.1);
            let seconds = run * f64::from(repeats.count()) + delay;
            all += seconds;
            if let Some(one) = repeats.took(seconds) {
                return (one, all);
            }
        }
        unreachable!("samples come to an end")
    }

    #[test]
    fn a_delay_of_one_sample_is_not_counted() {
        for run in [1e-8, 3e-6, 2e-4, 0.7] {
            for delayed in 0..4 {
                let (one, all) = found(run, &[(delayed, 20.0)]);
                assert!((one / run - 1.0).abs() < 1e-6, "{run}, sample {delayed}: {one}");
                assert!(all < 20.0 + 5.0 * f64::max(run, 1e-3), "{run}: {all} seconds");
            }
        }
    }

    #[test]
    fn what_the_clock_does_not_show_ends() {
        assert_eq!(found(0.0, &[]), (0.0, 0.0));
    }
}
