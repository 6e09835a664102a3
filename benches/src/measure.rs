//! Clean samples on a shared machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use kiln_simd::Simd;
use kiln_simd::ceilings::{self, Pass};

/// The duration of a sample: long compared with the clock and the probe, short compared with a time slice and with the
/// changes of other processes.
const SAMPLE: f64 = 0.4e-3;
/// The duration of each half of a probe.
const PROBE: f64 = 15e-6;
/// Elements that a probe reads: more than the first-level cache holds, and little of the second.
const READ: usize = 32 * 1024;
/// The duration of a sample of several threads: waking them must be negligible.
const SAMPLE_OF_THREADS: f64 = 1.2e-3;
/// The pause before a sample of several threads. The pools of the peers spin for a while after their work, and a core
/// that spins for one contender is missing to the next.
const REST: Duration = Duration::from_millis(4);
/// Calls shorter than this run once before they are timed, so that their data are in the caches that hold them.
const WARM: f64 = 10e-3;
/// A probe that in either half is below this share of the usual rate shows that the core was shared: a program on the other hyper-thread
/// takes a quarter to a half of it. The clock of an idle server with 16 cores moved by 10 % to either side within seconds.
const GOOD: f64 = 0.85;
/// The longest wait for a core in a valid sample, in nanoseconds.
const WAITED: u64 = 5_000;
/// The same as a share of the sample, which counts for samples of more than a millisecond: the system takes every core now and then.
const WAITED_SHARE: f64 = 0.005;
/// Clean samples that make a figure certain.
pub const ENOUGH: usize = 8;
/// Clean samples that suffice where there was no time for more, if at least three of four samples are clean.
const FEW: usize = 3;

/// The samples and time spent on one comparison.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Clean samples wanted of each contender.
    pub samples: usize,
    /// Time after which no further round is begun.
    pub budget: Duration,
}

impl Effort {
    /// Figures to be quoted.
    pub const FULL: Self = Self { samples: 41, budget: Duration::from_millis(2500) };
    /// A first impression.
    pub const QUICK: Self = Self { samples: 11, budget: Duration::from_millis(400) };
}

/// The time of one call of a contender.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Median of the clean samples in seconds; the tenth percentile of all where too few were clean.
    pub seconds: f64,
    /// Clean samples.
    pub clean: usize,
    /// Samples taken.
    pub taken: usize,
}

impl Timing {
    /// The timing of samples, each its seconds and whether it is clean.
    pub fn of(samples: &[(f64, bool)]) -> Self {
        let mut clean: Vec<f64> = samples.iter().filter(|s| s.1).map(|s| s.0).collect();
        clean.sort_by(f64::total_cmp);
        let mut all: Vec<f64> = samples.iter().map(|s| s.0).collect();
        all.sort_by(f64::total_cmp);
        let mut timing = Self { seconds: 0.0, clean: clean.len(), taken: all.len() };
        timing.seconds = match timing.is_certain() {
            true => clean[clean.len() / 2],
            false => all.get(all.len() / 10).copied().unwrap_or(f64::NAN),
        };
        timing
    }

    /// Whether enough samples were clean.
    pub fn is_certain(&self) -> bool {
        self.clean >= ENOUGH || self.clean >= FEW && 4 * self.clean >= 3 * self.taken
    }
}

/// Something that can be timed on a state that all contenders share.
pub type Run<'a, S> = Box<dyn FnMut(&mut S) + 'a>;

/// The rates of a core in a probe: multiply-adds in registers, and bytes read from its L2 cache, in a second.
///
/// A process on the other hyper-thread of a core slows one or the other: a matrix product may run at two thirds of its
/// rate beside a process that does not slow multiply-adds, which the reads show.
#[derive(Debug, Clone, Copy)]
struct Rates {
    multiply_add: f64,
    read: f64,
}

impl Rates {
    fn map(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self { multiply_add: of(self.multiply_add, other.multiply_add), read: of(self.read, other.read) }
    }

    /// Whether a core with these usual rates was not disturbed.
    fn undisturbed(self, usual: Self) -> bool {
        self.multiply_add >= GOOD * usual.multiply_add && self.read >= GOOD * usual.read
    }
}

/// The number of times that each rate was seen, in steps of 1 %.
#[derive(Debug, Default)]
struct Seen {
    /// Counts by the logarithm of the rate in steps.
    counts: BTreeMap<i32, usize>,
    total: usize,
}

impl Seen {
    const STEP: f64 = 0.01;

    fn add(&mut self, rate: f64) {
        *self.counts.entry((rate.ln() / Self::STEP).floor() as i32).or_default() += 1;
        self.total += 1;
    }

    /// The upper quartile: the highest rates are those of moments at the highest clock, and much of the lower half may have been disturbed.
    fn usual(&self) -> f64 {
        let mut above = 0;
        let step = self.counts.iter().rev().find(|(_, count)| {
            above += *count;
            4 * above >= self.total
        });
        step.map_or(0.0, |(&step, _)| (f64::from(step) * Self::STEP).exp())
    }
}

/// Takes samples and judges them.
#[derive(Debug)]
pub struct Sampler {
    simd: Simd,
    threads: usize,
    /// Rounds of multiply-adds and of reads in a probe.
    rounds: [usize; 2],
    /// The rates of all probes: multiply-adds, and reads.
    seen: [Seen; 2],
    array: Vec<f32>,
    /// The scheduler's statistics of this thread, where the system keeps them.
    account: Option<File>,
}

impl Sampler {
    /// Learns what an undisturbed probe looks like; takes some ten milliseconds. What is measured runs on at most as
    /// many threads as `simd` has.
    pub fn new(simd: Simd) -> Self {
        let account = File::open("/proc/thread-self/schedstat").ok();
        let mut sampler = Self {
            simd: simd.with_threads(1),
            threads: simd.threads(),
            rounds: [1000, 8],
            seen: Default::default(),
            array: vec![1.0; READ],
            account,
        };
        sampler.learn();
        let flops_of_a_round = ceilings::multiply_add(&sampler.simd, 1) as f64;
        let Rates { multiply_add, read } = sampler.usual();
        sampler.rounds = [multiply_add / flops_of_a_round, read / (READ * size_of::<f32>()) as f64]
            .map(|rounds_a_second| (PROBE * rounds_a_second).max(1.0) as usize);
        sampler.learn();
        sampler
    }

    /// Probes for five milliseconds.
    fn learn(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            self.probe();
        }
    }

    fn probe(&mut self) -> Rates {
        let [multiply_adds, reads] = self.rounds;
        let start = Instant::now();
        let flops = ceilings::multiply_add(&self.simd, multiply_adds) as f64;
        let multiply_add = flops / start.elapsed().as_secs_f64();
        // One array is read, so that no lengths could differ.
        let read = || drop(ceilings::touch(&self.simd, Pass::Read, &self.array, &[], &mut []));
        // The contender before has evicted it from the cache: reading it from memory would look like a shared core.
        read();
        let start = Instant::now();
        (0..reads).for_each(|_| read());
        let bytes = (reads * READ * size_of::<f32>()) as f64;
        let rates = Rates { multiply_add, read: bytes / start.elapsed().as_secs_f64() };
        let [multiply_adds, reads] = &mut self.seen;
        multiply_adds.add(rates.multiply_add);
        reads.add(rates.read);
        rates
    }

    /// The rates of this core when no other program has it.
    fn usual(&self) -> Rates {
        let [multiply_add, read] = [&self.seen[0], &self.seen[1]].map(Seen::usual);
        Rates { multiply_add, read }
    }

    /// Nanoseconds that this thread has waited for a core while it could have run.
    fn waited(&self) -> u64 {
        let mut text = [0; 96];
        let read = self.account.as_ref().and_then(|f| f.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&text[..read]).unwrap_or("");
        text.split_ascii_whitespace().nth(1).and_then(|w| w.parse().ok()).unwrap_or(0)
    }

    /// Times `run` once and says whether the sample is clean.
    pub fn sample(&mut self, run: impl FnOnce()) -> (f64, bool) {
        let before = self.probe();
        let waited = self.waited();
        let start = Instant::now();
        run();
        let seconds = start.elapsed().as_secs_f64();
        let undisturbed = self.waited() - waited < longest_wait(seconds);
        let after = self.probe();
        (seconds, undisturbed && before.map(after, f64::min).undisturbed(self.usual()))
    }

    /// Times all contenders in turns, whose order changes, on one state until each has its samples or the budget is spent.
    ///
    /// Every contender has run at least once before it is timed.
    pub fn compare<S>(&mut self, state: &mut S, contenders: &mut [Run<'_, S>], effort: Effort) -> Vec<Timing> {
        let sample = if self.threads == 1 { SAMPLE } else { SAMPLE_OF_THREADS };
        let (repeats, quick): (Vec<usize>, Vec<bool>) = contenders
            .iter_mut()
            .map(|run| {
                run(state);
                let mut times = 1;
                loop {
                    let start = Instant::now();
                    (0..times).for_each(|_| run(state));
                    let seconds = start.elapsed().as_secs_f64();
                    if seconds > sample / 4.0 || times > 1 << 24 {
                        let repeats = ((times as f64 * sample / seconds) as usize).max(1);
                        return (repeats, seconds / (times as f64) < WARM);
                    }
                    times *= 4;
                }
            })
            .unzip();
        let mut samples: Vec<Vec<(f64, bool)>> = vec![Vec::new(); contenders.len()];
        let clean = |s: &Vec<(f64, bool)>| s.iter().filter(|s| s.1).count();
        let start = Instant::now();
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        let mut dice = 0x9e37_79b9_7f4a_7c15;
        for round in 0.. {
            if samples.iter().all(|s| clean(s) >= effort.samples) || (round >= 3 && start.elapsed() > effort.budget) {
                break;
            }
            // The contender before leaves caches and pages in a state that one call does not undo: after one that maps
            // new memory for its result, a call takes a third longer at a million elements. So no contender always
            // follows the same one.
            shuffle(&mut order, &mut dice);
            for &i in &order {
                let run = &mut contenders[i];
                // A slow contender with enough samples does not delay the others.
                if clean(&samples[i]) >= 2 * effort.samples {
                    continue;
                }
                // The effect of the contender before on the caches is not measured, nor is waking threads.
                if self.threads > 1 {
                    std::thread::sleep(REST);
                    (0..repeats[i].div_ceil(4)).for_each(|_| run(state));
                } else if quick[i] {
                    run(state);
                }
                let (seconds, clean) = self.sample(|| (0..repeats[i]).for_each(|_| run(state)));
                samples[i].push((seconds / repeats[i] as f64, clean));
            }
        }
        samples.iter().map(|s| Timing::of(s)).collect()
    }

    /// Times one thing alone.
    pub fn time(&mut self, mut run: impl FnMut(), effort: Effort) -> Timing {
        let alone: Run<'_, ()> = Box::new(move |_: &mut ()| run());
        self.compare(&mut (), &mut [alone], effort)[0]
    }
}

/// Nanoseconds of waiting for a core at which a sample is no longer valid.
fn longest_wait(seconds: f64) -> u64 {
    WAITED.max((seconds * 1e9 * WAITED_SHARE) as u64)
}

/// A random order (Fisher and Yates, with the generator xorshift64), the same in every run of the program.
fn shuffle(order: &mut [usize], state: &mut u64) {
    for last in (1..order.len()).rev() {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        order.swap(last, (*state % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_trusts_clean_samples_only_when_there_are_enough() {
        let mut samples = vec![(9.0, false); 20];
        samples.extend([(1.0, true), (2.0, true), (3.0, true)]);
        assert_eq!(Timing::of(&samples), Timing { seconds: 3.0, clean: 3, taken: 23 });
        assert!(!Timing::of(&samples).is_certain());
        samples.extend([(4.0, true); 8]);
        assert_eq!(Timing::of(&samples), Timing { seconds: 4.0, clean: 11, taken: 31 });
        // Long work has few samples.
        let few = [(1.0, true), (2.0, true), (0.5, false), (3.0, true)];
        assert_eq!(Timing::of(&few), Timing { seconds: 2.0, clean: 3, taken: 4 });
        assert!(Timing::of(&few).is_certain() && !Timing::of(&few[..3]).is_certain());
    }

    #[test]
    fn long_samples_may_wait_for_a_share_of_their_time() {
        assert_eq!([0.0, SAMPLE, 1e-3].map(longest_wait), [WAITED; 3]);
        assert_eq!(longest_wait(2.0), 10_000_000);
    }

    #[test]
    fn a_neighbour_that_takes_either_half_of_a_probe_is_seen() {
        let usual = Rates { multiply_add: 100.0, read: 50.0 };
        assert!(Rates { multiply_add: 90.0, read: 45.0 }.undisturbed(usual));
        assert!(!Rates { multiply_add: 80.0, read: 50.0 }.undisturbed(usual));
        assert!(!Rates { multiply_add: 100.0, read: 40.0 }.undisturbed(usual));
        let mut sampler = Sampler::new(Simd::new().unwrap());
        let rates = sampler.probe();
        assert!(rates.multiply_add > 0.0 && rates.read > 0.0, "{rates:?}");
        let usual = sampler.usual();
        assert!(usual.multiply_add > 0.0 && usual.read > 0.0, "{usual:?}");
    }

    #[test]
    fn the_usual_rate_is_neither_that_of_a_lucky_moment_nor_that_of_a_shared_core() {
        let mut seen = Seen::default();
        assert_eq!(seen.usual(), 0.0);
        // Three of a hundred at a higher clock, and half of all while another program has the other hyper-thread.
        (0..3).for_each(|_| seen.add(130.0));
        (0..47).for_each(|_| seen.add(100.0));
        (0..50).for_each(|_| seen.add(52.0));
        assert!((seen.usual() / 100.0 - 1.0).abs() <= Seen::STEP, "{}", seen.usual());
    }

    #[test]
    fn nobody_always_follows_the_same_contender() {
        let (mut order, mut dice) = (vec![0, 1, 2, 3], 1);
        let mut followed = [[0; 4]; 4];
        for _ in 0..400 {
            shuffle(&mut order, &mut dice);
            order.windows(2).for_each(|pair| followed[pair[0]][pair[1]] += 1);
        }
        // Of 400 rounds each follows each other one in 100.
        for (i, row) in followed.iter().enumerate() {
            assert!((0..4).all(|j| if i == j { row[j] == 0 } else { (60..140).contains(&row[j]) }), "{followed:?}");
        }
    }

    #[test]
    fn a_slower_contender_is_measured_as_slower() {
        let mut sampler = Sampler::new(Simd::new().unwrap());
        let work = |n: usize| -> Run<'static, f32> {
            Box::new(move |x| (0..n).for_each(|_| *x = std::hint::black_box(*x * 0.5 + 1.0)))
        };
        let timings = sampler.compare(&mut 1.0, &mut [work(1000), work(10_000)], Effort::QUICK);
        assert!(timings[1].seconds > 3.0 * timings[0].seconds, "{timings:?}");
    }
}
