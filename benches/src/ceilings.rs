//! The ceilings of the machine in the units of the tables: arithmetic, and the memory at each of its levels.

use std::collections::HashMap;

use kiln_simd::Simd;
use kiln_simd::ceilings::{Pass, multiply_add, touch};

use crate::{Array, Effort, Sampler};

/// Limits of one instruction set and number of threads, each measured when first asked for.
#[derive(Debug)]
pub struct Limits {
    simd: Simd,
    effort: Effort,
    peak: Option<f64>,
    rates: HashMap<(Pass, usize), f64>,
}

impl Limits {
    /// Limits for an instruction set and a number of threads.
    pub fn new(simd: Simd, effort: Effort) -> Self {
        Self { simd, effort, peak: None, rates: HashMap::new() }
    }

    /// The instruction set and threads of these limits.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// Floating-point operations a second.
    pub fn peak(&mut self, sampler: &mut Sampler) -> f64 {
        let simd = self.simd;
        *self.peak.get_or_insert_with(|| {
            // Long enough that starting threads takes a negligible part.
            let steps = 40_000 * if simd.threads() == 1 { 1 } else { 25 };
            let flops = multiply_add(&simd, steps) as f64;
            flops / sampler.time(|| _ = multiply_add(&simd, steps), self.effort).seconds
        })
    }

    /// Bytes a second of a pass over arrays of `n` elements.
    ///
    /// Shorter arrays have the rate of the nearest cache, which a call of its own would not show: there the limit is
    /// that of arrays just long enough to hide the call. Where waking threads takes longer than the pass, one of them is
    /// the limit.
    pub fn bandwidth(&mut self, sampler: &mut Sampler, pass: Pass, n: usize) -> f64 {
        let (simd, effort, n) = (self.simd, self.effort, n.max(2048));
        *self.rates.entry((pass, n)).or_insert_with(|| {
            let (a, b, mut out) = (Array::new(n, 0.75, 0), Array::new(n, 0.75, 1), Array::new(n, 0.75, 2));
            let mut rate = |threads| {
                let simd = simd.with_threads(threads);
                let timing = sampler.time(|| touch(&simd, pass, &a, &b, &mut out).unwrap_or(()), effort);
                (pass.bytes() * n) as f64 / timing.seconds
            };
            let (one, all) = (rate(1), simd.threads());
            if all == 1 { one } else { one.max(rate(all)) }
        })
    }
}
