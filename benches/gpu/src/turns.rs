//! Samples of all contenders in turns.

use std::time::{Duration, Instant};

use crate::Result;
use crate::contender::Ready;

/// The time for one case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Samples of each contender.
    pub(crate) samples: usize,
    /// Time after which no further round is begun, once there are three.
    pub(crate) budget: Duration,
}

impl Effort {
    pub(crate) const FULL: Self = Self { samples: 51, budget: Duration::from_secs(10) };
    pub(crate) const QUICK: Self = Self { samples: 11, budget: Duration::from_secs(1) };
}

/// The duration of a sample: waiting is a small part of it, and so is the effect of the contender before (a device that
/// has just worked for another context of the process takes longer to begin).
const SAMPLE: f64 = 25e-3;

/// Seconds of a call of each contender: the median of its samples.
pub(crate) fn compare(contenders: &mut [&mut dyn Ready], effort: Effort) -> Result<Vec<f64>> {
    let mut calls = Vec::new();
    for contender in contenders.iter_mut() {
        sample(*contender, 1)?;
        let once = sample(*contender, 1)?;
        calls.push(((SAMPLE / once) as usize).clamp(1, 1000));
    }
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    let start = Instant::now();
    for round in 0..effort.samples {
        if round >= 3 && start.elapsed() > effort.budget {
            break;
        }
        for (i, contender) in contenders.iter_mut().enumerate() {
            // The effect of the contender before on the caches of the CPU and of the device is not measured.
            sample(*contender, 1)?;
            samples[i].push(sample(*contender, calls[i])?);
        }
    }
    Ok(samples.into_iter().map(median).collect())
}

/// Seconds of a call, from several that are waited for once.
fn sample(contender: &mut dyn Ready, calls: usize) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        contender.run()?;
    }
    contender.wait()?;
    Ok(start.elapsed().as_secs_f64() / calls as f64)
}

pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(usize, usize);

    impl Ready for Counted {
        fn run(&mut self) -> Result<()> {
            self.0 += 1;
            Ok(())
        }

        fn wait(&mut self) -> Result<()> {
            self.1 += 1;
            Ok(())
        }

        fn result(&mut self) -> Result<Vec<f32>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_sample_is_many_calls_and_one_wait() {
        let mut many = Counted(0, 0);
        compare(&mut [&mut many], Effort::QUICK).unwrap();
        assert_eq!((many.0, many.1), (2 + 11 + 11 * 1000, 2 + 22));
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
