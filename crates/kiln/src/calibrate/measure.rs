//! Times operations on several placements, interleaved, for the calibration and for the evaluation of decisions.

use kiln_ir::{Buffer, DType, Data, DataMut, Operand, Operations, Result, TensorType, reserve};
use kiln_route::Place;
use kiln_simd::Simd;
use web_time::Instant;

use super::account::Account;
use super::grid::Probe;
use crate::Engine;
use crate::runs::median;

/// A placement that is this many times slower than the best is not measured if one run takes [`LONG`].
const HOPELESS: f64 = 4.0;

/// Seconds above which one run of a hopeless placement takes too long.
const LONG: f64 = 2e-3;

/// Everything is measured this often, seconds apart: a short disturbance has passed by the next time.
const PASSES: usize = 3;

/// Doubtful problems are measured at most this often again.
const OPINIONS: usize = 4;

/// Two halves of the passes confirm one another if they differ by at most this share.
const CONFIRMED: f64 = 0.05;

/// Placements that are this many times slower than the best need no confirmation: no decision depends on them.
pub(super) const RIVAL: f64 = 2.0;

/// A placement that is this many times slower than the best is measured only in the first rounds of a pass, and one of a single thread
/// only in the first pass: no decision depends on it. Several threads are measured in each pass, because another program can delay them
/// by as much.
const BEHIND: f64 = 3.0;

/// Rounds of a pass in which placements far behind are measured.
const FIRST_ROUNDS: usize = 3;

/// Times are compared over at least this many rounds.
const QUIET: usize = 4;

/// A sample is undisturbed if threads waited for a core for at most this share of it.
const WAITED: f64 = 0.05;

/// Work that takes one thread this many seconds can be shared.
pub(super) const SHARED: f64 = 10e-6;

/// Seconds that several threads run before they are timed: waking a sleeping thread takes up to 100 µs on a virtual
/// processor.
const AWAKE: f64 = 200e-6;

/// Consecutive samples of several threads, once they are awake, and of work that is not shared.
const IN_A_ROW: usize = 4;

/// More threads gain little if they take more than this share of the time of one.
const LITTLE: f64 = 0.7;

/// More threads are doubtful if they take this share longer than fewer.
const STALLED: f64 = 0.1;

/// The progress of measuring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress<'a> {
    /// Steps done.
    pub done: usize,
    /// The total number of steps; grows when something has to be measured again.
    pub total: usize,
    /// The name of the next measurement.
    pub what: &'a str,
}

/// The time of a problem on a placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Time {
    pub(crate) seconds: f64,
    /// Whether it was measured while no other program had the cores.
    pub(crate) undisturbed: bool,
}

/// The times of one problem on every placement, over several passes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observed {
    /// The minimum time of each placement; infinite if it was not measured.
    least: Vec<f64>,
    /// Whether each placement has an undisturbed sample.
    undisturbed: Vec<bool>,
    /// The rounds of all passes.
    rounds: Vec<Round>,
}

/// One sample of each placement, one after another.
#[derive(Debug, Clone, PartialEq)]
struct Round {
    /// Seconds of each placement, infinite if it was not measured.
    seconds: Vec<f64>,
    pass: usize,
    /// Whether no thread had to wait for a core in its pass.
    quiet: bool,
}

impl Observed {
    fn nothing(places: usize) -> Self {
        let never = vec![f64::INFINITY; places];
        Self { least: never, undisturbed: vec![false; places], rounds: Vec::new() }
    }

    fn add(&mut self, place: usize, time: Time) {
        self.least[place] = self.least[place].min(time.seconds);
        self.undisturbed[place] |= time.undisturbed;
    }

    /// Typical seconds on each placement: the median over all rounds of the time relative to the round, whose level is the geometric mean
    /// of the placements that compete, at the level of a quiet round. Rounds in which threads had to wait for a core count only if there
    /// are few others. Another program changes the level of rounds, but affects all placements of a round alike. The minimum times of
    /// several threads are luck: one late thread delays all of them, so the least of ten times can be half of their median. Without
    /// enough rounds, returns the minimum times.
    pub(crate) fn typical(&self) -> Typical {
        let best = self.least.iter().copied().fold(f64::INFINITY, f64::min);
        let competing: Vec<usize> = (0..self.least.len()).filter(|&i| self.least[i] < BEHIND * best).collect();
        let level = |round: &Round| {
            let logs = competing.iter().map(|&i| round.seconds[i].ln());
            logs.sum::<f64>() / competing.len() as f64
        };
        let mut rounds: Vec<(f64, &Round)> = self.rounds.iter().map(|round| (level(round), round)).collect();
        rounds.retain(|(level, _)| level.is_finite());
        let enough = |only_quiet: bool| {
            let of_half = |half| rounds.iter().filter(|(_, r)| r.pass % 2 == half && (r.quiet || !only_quiet)).count();
            of_half(0).min(of_half(1)) >= QUIET
        };
        if !enough(false) {
            return Typical { seconds: self.least.clone(), halves: [self.least.clone(), self.least.clone()] };
        }
        if enough(true) {
            rounds.retain(|(_, round)| round.quiet);
        }
        let mut levels: Vec<f64> = rounds.iter().map(|(level, _)| *level).collect();
        levels.sort_by(f64::total_cmp);
        let quiet = levels[levels.len() / 4];
        let of = |keep: &dyn Fn(usize) -> bool| {
            let seconds = |(place, &least): (usize, &f64)| {
                let kept = rounds.iter().filter(|(_, round)| keep(round.pass) && round.seconds[place].is_finite());
                let mut relative: Vec<f64> = kept.map(|(level, round)| round.seconds[place].ln() - level).collect();
                if relative.len() < QUIET { least } else { (median(&mut relative) + quiet).exp() }
            };
            self.least.iter().enumerate().map(seconds).collect()
        };
        Typical { seconds: of(&|_| true), halves: [of(&|pass| pass % 2 == 0), of(&|pass| pass % 2 == 1)] }
    }

    /// The times of placements so far behind that they are not measured again.
    fn behind(&self) -> impl Iterator<Item = Option<f64>> {
        let best = self.least.iter().copied().fold(f64::INFINITY, f64::min);
        self.least.iter().map(move |&least| (least.is_finite() && least > BEHIND * best).then_some(least))
    }

    /// Whether another program explains why a placement with several threads gained little: no sample of it was
    /// undisturbed. If threads did gain, no disturbance has hidden it.
    ///
    /// `seconds` are those that count, of each placement.
    pub(crate) fn is_disturbed(&self, places: &[Place], seconds: &[f64]) -> bool {
        let mut several = places.iter().zip(&self.undisturbed).filter(|(place, _)| place.threads > 1);
        gained_little(places, seconds) && several.any(|(_, &undisturbed)| !undisturbed)
    }

    /// Whether to measure again: a time that matters is not confirmed, or threads gained little.
    fn is_doubtful(&self, places: &[Place]) -> bool {
        self.typical().is_doubtful() || self.lost_threads(places)
    }

    /// Whether threads seem to gain nothing: all of them over one, or more over fewer. Either this is true, or another
    /// program had a core during every measurement.
    fn lost_threads(&self, places: &[Place]) -> bool {
        let several: Vec<f64> = (0..places.len()).filter(|&i| places[i].threads > 1).map(|i| self.least[i]).collect();
        let slower = |pair: &[f64]| pair[1].is_finite() && pair[0] > SHARED && pair[1] > (1.0 + STALLED) * pair[0];
        gained_little(places, &self.least) || several.windows(2).any(slower)
    }
}

/// The least time on one thread, and on several.
fn one_and_several(places: &[Place], seconds: &[f64]) -> (f64, f64) {
    let least = |several: bool| {
        let times = places.iter().zip(seconds).filter(|(place, _)| (place.threads > 1) == several);
        times.map(|(_, &seconds)| seconds).fold(f64::INFINITY, f64::min)
    };
    (least(false), least(true))
}

/// Whether all threads together gained little over one of them on work that is long enough to be shared: either the
/// work does not scale, or another program had one of the cores.
fn gained_little(places: &[Place], seconds: &[f64]) -> bool {
    let (one, several) = one_and_several(places, seconds);
    several.is_finite() && one.is_finite() && one > SHARED && several > LITTLE * one
}

/// Typical seconds on each placement, see [`Observed::typical`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Typical {
    /// Over all rounds.
    pub(crate) seconds: Vec<f64>,
    /// Over every second pass, and over the others: what disturbs several rounds of a pass is not in both.
    pub(crate) halves: [Vec<f64>; 2],
}

impl Typical {
    /// Whether the two halves differ in how placements compare with the best, where it matters.
    fn is_doubtful(&self) -> bool {
        let Self { seconds, halves: [a, b] } = self;
        let best = (0..seconds.len()).min_by(|&i, &j| seconds[i].total_cmp(&seconds[j])).unwrap_or(0);
        let differ = |i: usize| ((a[i] * b[best]) / (b[i] * a[best])).ln().abs() > CONFIRMED;
        (0..seconds.len()).any(|i| seconds[i] <= RIVAL * seconds[best] && differ(i))
    }
}

/// The time to spend on a list of problems.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// The time to spend on one problem.
    pub(crate) budget: Budget,
    /// Seconds after which nothing is measured again, because on a busy machine everything stays doubtful.
    pub(crate) seconds: f64,
}

/// Measures every problem on every placement of the engine, [`PASSES`] times, and then doubtful ones again. `expected`
/// gives the times that need not be measured, from the results of the problems before.
pub(crate) fn survey<'a>(
    engine: &Engine,
    probes: &[&'a Probe],
    plan: Plan,
    expected: impl Fn(usize, &[Observed]) -> Vec<Option<f64>>,
    progress: &mut dyn FnMut(Progress<'a>),
) -> Result<Vec<Observed>> {
    let start = Instant::now();
    let places = engine.cpu_places();
    if let Some(widest) = engine.cpu.iter().max_by_key(|simd| simd.threads()) {
        // Starts the threads, so that the account finds them.
        kiln_simd::ceilings::multiply_add(widest, 1);
    }
    let mut bench = Bench { account: Account::open(), ..Bench::default() };
    let mut observed = vec![Observed::nothing(places.len()); probes.len()];
    let (mut done, mut total) = (0, PASSES * probes.len());
    for pass in 0..PASSES + OPINIONS {
        let doubtful = |&i: &usize| pass < PASSES || observed[i].is_doubtful(places);
        let mut again: Vec<usize> = (0..probes.len()).filter(doubtful).collect();
        if pass >= PASSES {
            // Apparent losses of threads change decisions by more than a few percent, so they come first in the limited
            // time.
            again.sort_by_key(|&i| !observed[i].lost_threads(places));
            total += again.len();
        }
        for i in again {
            if pass >= PASSES && start.elapsed().as_secs_f64() > plan.seconds {
                return Ok(observed);
            }
            progress(Progress { done, total, what: probes[i].op.name() });
            done += 1;
            let mut expected = expected(i, &observed);
            expected.resize(places.len(), None);
            if pass > 0 {
                let known = observed[i].behind();
                let skipped = |place: &Place| pass >= PASSES || place.threads == 1;
                for ((expected, known), place) in expected.iter_mut().zip(known).zip(places) {
                    *expected = expected.or(known.filter(|_| skipped(place)));
                }
            }
            let measured = bench.times(probes[i], &engine.cpu, &expected, plan.budget)?;
            let quiet = measured.least.iter().zip(places).filter(|(_, place)| place.threads > 1);
            let quiet = quiet.filter_map(|(time, _)| time.as_ref()).all(|time| time.undisturbed);
            let rounds = measured.rounds.into_iter().map(|seconds| Round { seconds, pass, quiet });
            observed[i].rounds.extend(rounds);
            for (place, time) in measured.least.iter().enumerate() {
                let known = expected.get(place).copied().flatten().map(|seconds| Time { seconds, undisturbed: true });
                if let Some(time) = time.or(known) {
                    observed[i].add(place, time);
                }
            }
        }
    }
    Ok(observed)
}

/// Times that need not be measured, from the times of less work of the same class: single threads that are too slow at
/// any larger size. Work on many threads is always measured, because that is where it catches up.
pub(crate) fn hopeless(places: &[Place], seconds: &[f64], growth: f64) -> Vec<Option<f64>> {
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let hopeless = |(place, &seconds): (&Place, &f64)| {
        let next = seconds * growth;
        (place.threads == 1 && seconds > HOPELESS * best && next > LONG).then_some(next)
    };
    places.iter().zip(seconds).map(hopeless).collect()
}

/// The time to spend on one problem in a pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Samples of each placement.
    pub(crate) rounds: usize,
    /// Minimum seconds of a sample: a clock that ticks in tens of nanoseconds is then exact to a thousandth.
    pub(crate) sample: f64,
    /// Seconds after which four samples of each placement suffice; after three times as many two do, after ten times as many one.
    pub(crate) seconds: f64,
}

/// The result of one pass over a problem.
#[derive(Debug)]
struct Measured {
    /// The minimum time of each placement; `None` for those whose time is expected already.
    least: Vec<Option<Time>>,
    /// Seconds of each placement in each round; infinite without a sample.
    rounds: Vec<Vec<f64>>,
}

/// Buffers for measuring, kept between problems so that their memory is allocated and touched once.
#[derive(Debug, Default)]
struct Bench {
    account: Account,
    inputs: Inputs,
    output: Placed,
}

/// Operands to measure with, kept between problems.
#[derive(Debug, Default)]
pub(super) struct Inputs(Vec<Placed>);

/// Elements that always begin at the same offset from a cache line. Loads that cross lines decide up to half of the
/// time of data in near caches, and differ between instruction sets: a comparison may not depend on the address that
/// the allocator happened to return.
#[derive(Debug, Default)]
struct Placed(Vec<f32>);

impl Placed {
    /// Elements of a cache line.
    const LINE: usize = 16;

    /// Elements past the line: large blocks of common allocators begin behind a header of 16 bytes.
    const PAST: usize = 4;

    /// Grows to at least `n` elements.
    fn grow(&mut self, n: usize, fill: impl FnMut() -> f32) -> Result<()> {
        let len = n.saturating_add(Self::LINE);
        if self.0.len() < len {
            let more = len - self.0.len();
            reserve(&mut self.0, more)?;
            self.0.resize_with(len, fill);
        }
        Ok(())
    }

    /// The first `n` elements, which [`Placed::grow`] has provided.
    fn get(&self, n: usize) -> &[f32] {
        &self.0[self.range(n)]
    }

    /// The indices of the first `n` elements.
    fn range(&self, n: usize) -> std::ops::Range<usize> {
        let past = self.0.as_ptr().addr() / size_of::<f32>() % Self::LINE;
        let start = (Self::PAST + Self::LINE - past) % Self::LINE;
        start..start + n
    }
}

impl Bench {
    /// Takes several samples of each placement: disturbances only ever add to the minimum. The samples of all
    /// placements alternate, so that a change of the clock rate affects all of them.
    fn times(&mut self, probe: &Probe, places: &[Simd], expected: &[Option<f64>], budget: Budget) -> Result<Measured> {
        let types = probe.op.infer(&probe.inputs)?;
        let elements = types.iter().map(|t| t.shape.numel()).max().unwrap_or(0);
        self.output.grow(elements, || 0.0)?;
        let place = self.output.range(elements);
        let Self { account, inputs, output } = self;
        let output = &mut output.0[place];
        inputs.show(&probe.inputs, |inputs| sample(account, output, probe, inputs, &types, places, expected, budget))
    }
}

/// The samples of [`Bench::times`].
fn sample(
    account: &Account,
    output: &mut [f32],
    probe: &Probe,
    inputs: &[Operand<'_>],
    types: &[TensorType],
    places: &[Simd],
    expected: &[Option<f64>],
    budget: Budget,
) -> Result<Measured> {
    // The first f32 result uses the kept buffer; other results are rare and small.
    let mut others: Vec<Buffer> = types.iter().skip(1).map(Buffer::zeros).collect::<Result<_>>()?;
    let first_type = types[0];
    let mut first_other = (first_type.dtype != DType::F32).then(|| Buffer::zeros(&first_type)).transpose()?;
    let mut outputs: Vec<DataMut<'_>> = Vec::new();
    match &mut first_other {
        Some(buffer) => outputs.push(buffer.as_mut()),
        None => outputs.push(DataMut::F32(&mut output[..first_type.shape.numel()])),
    }
    outputs.extend(others.iter_mut().map(Buffer::as_mut));

    let mut least: Vec<Option<Time>> = vec![None; places.len()];
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    let mut repeats = vec![1u32; places.len()];
    let start = Instant::now();
    // The account of a waiting thread is updated when it gets its core, which may be after the disturbed sample. The
    // threads beside the calling one only ever run for work on several threads, so their total waiting time counts
    // against all of that work together.
    let (others, mut spread, mut waited_spread) = (account.others(), 0.0, 0.0);
    for round in 0..=budget.rounds {
        let mut samples = vec![f64::INFINITY; places.len()];
        for (i, simd) in places.iter().enumerate() {
            if expected.get(i).is_some_and(Option::is_some) {
                continue;
            }
            // One long sample of a placement that is far behind is enough.
            let best = least.iter().flatten().map(|time| time.seconds).fold(f64::INFINITY, f64::min);
            if least[i].is_some_and(|time| time.seconds > LONG && time.seconds > HOPELESS * best) {
                continue;
            }
            if round >= FIRST_ROUNDS && least[i].is_some_and(|time| time.seconds > BEHIND * best) {
                continue;
            }
            let (several, waited) = (simd.threads() > 1, account.caller());
            let warming = Instant::now();
            if least[i].is_none_or(|time| time.seconds < LONG) {
                // Untimed: loads the data back into the caches after the placement before, and wakes threads. Real
                // programs run operations one after another, so the times are those of a warm placement.
                simd.run_into(&probe.op, inputs, &mut outputs)?;
                while several && best > SHARED && warming.elapsed().as_secs_f64() < AWAKE {
                    simd.run_into(&probe.op, inputs, &mut outputs)?;
                }
            }
            let (warm, waited_warm) = (warming.elapsed().as_secs_f64(), account.caller());
            // Awake threads cost the most, and the best of a few samples needs all of them undisturbed at once. Work too short to be
            // shared takes as many on one thread, because the minimum of more samples is less.
            let in_a_row = if warm < LONG && (several || best <= SHARED) { IN_A_ROW } else { 1 };
            let (mut elapsed, mut shortest) = (0.0, f64::INFINITY);
            for _ in 0..in_a_row {
                let sample = Instant::now();
                for _ in 0..repeats[i] {
                    simd.run_into(&probe.op, inputs, &mut outputs)?;
                }
                let took = sample.elapsed().as_secs_f64();
                (elapsed, shortest) = (elapsed + took, shortest.min(took));
            }
            let waited_now = account.caller();
            if several {
                spread += warm + elapsed;
                waited_spread += waited_now - waited;
            }
            let undisturbed = !several && waited_now - waited_warm <= WAITED * elapsed;
            let seconds = shortest / f64::from(repeats[i]);
            // The first run of short work only determines the number of repeats, and only roughly: later runs are
            // faster.
            let wanted = ((budget.sample / seconds.max(1e-8)).ceil() as u32).clamp(1, 10_000);
            repeats[i] = repeats[i].max(wanted);
            if round == 0 && wanted > 1 {
                continue;
            }
            samples[i] = seconds;
            let earlier = least[i].unwrap_or(Time { seconds, undisturbed });
            least[i] =
                Some(Time { seconds: seconds.min(earlier.seconds), undisturbed: undisturbed || earlier.undisturbed });
        }
        rounds.push(samples);
        let enough = start.elapsed().as_secs_f64() / budget.seconds;
        let sampled = |i: usize| least[i].is_some() || expected.get(i).is_some_and(Option::is_some);
        let once = enough > 10.0 && (0..places.len()).all(sampled);
        if round >= QUIET && enough > 1.0 || round >= 1 && enough > 3.0 || once {
            break;
        }
    }
    if waited_spread + account.others() - others <= WAITED * spread {
        for (time, _) in least.iter_mut().zip(places).filter(|(_, simd)| simd.threads() > 1) {
            time.iter_mut().for_each(|time| time.undisturbed = true);
        }
    }
    Ok(Measured { least, rounds })
}

impl Inputs {
    /// Grows the kept buffers. Values are between one half and two: valid for roots and logarithms, and products of
    /// many stay in range.
    fn grow(&mut self, inputs: &[TensorType]) -> Result<()> {
        if self.0.len() < inputs.len() {
            self.0.resize_with(inputs.len(), Placed::default);
        }
        let mut state = 0x9e37_79b9_u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            0.5 + (state >> 8) as f32 * (1.5 / 16_777_216.0)
        };
        for (buffer, ty) in self.0.iter_mut().zip(inputs) {
            if ty.dtype == DType::F32 {
                buffer.grow(ty.shape.numel(), &mut random)?;
            }
        }
        Ok(())
    }

    /// Calls `see` with operands of these types.
    pub(super) fn show<T>(&mut self, types: &[TensorType], see: impl FnOnce(&[Operand<'_>]) -> Result<T>) -> Result<T> {
        self.grow(types)?;
        let rows = types.first().map_or(1, |table| table.shape.rows());
        let others = types.iter().map(|ty| other_than_f32(ty, rows)).collect::<Result<Vec<Option<Buffer>>>>()?;
        let operand = |(i, ty): (usize, &TensorType)| match &others[i] {
            Some(buffer) => Operand::new(buffer.as_data(), ty.shape),
            None => Operand::new(Data::F32(self.0[i].get(ty.shape.numel())), ty.shape),
        };
        see(&types.iter().enumerate().map(operand).collect::<Result<Vec<_>>>()?)
    }
}

/// Scattered indices into a table of this many rows; zeros of other types; blocks of zeros, which are valid in every
/// format.
fn other_than_f32(ty: &TensorType, rows: usize) -> Result<Option<Buffer>> {
    Ok(match ty.dtype {
        DType::F32 => None,
        DType::U32 => {
            let index = |i: usize| (i.wrapping_mul(0x9e37_79b1) % rows.max(1)) as u32;
            let mut indices = Vec::new();
            reserve(&mut indices, ty.shape.numel())?;
            indices.extend((0..ty.shape.numel()).map(index));
            Some(Buffer::U32(indices))
        }
        _ => Some(Buffer::zeros(ty)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_route::Backend;

    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn places() -> Vec<Place> {
        let place = |name: &str, threads| Place::cpu(name, Backend::Simd, 8, threads);
        vec![place("avx2 x1", 1), place("avx512 x1", 1), place("avx512 x2", 2)]
    }

    fn observed(passes: &[[f64; 3]], undisturbed: bool) -> Observed {
        let mut observed = Observed::nothing(3);
        for pass in passes {
            for (place, &seconds) in pass.iter().enumerate() {
                observed.add(place, Time { seconds, undisturbed });
            }
        }
        observed
    }

    #[test]
    fn little_gain_of_long_work_is_doubtful() {
        let twice = |pass: [f64; 3]| observed(&[pass; 2], true);
        assert!(twice([100e-6, 90e-6, 88e-6]).is_doubtful(&places()));
        assert!(!twice([100e-6, 90e-6, 50e-6]).is_doubtful(&places()));
        assert!(!twice([1e-6, 0.9e-6, 5e-6]).is_doubtful(&places()), "too short to be shared");
        assert!(!twice([100e-6, 90e-6, 95e-6]).is_doubtful(&places()[..2]), "no place has several threads");
    }

    #[test]
    fn little_gain_is_believed_when_nobody_disturbed() {
        let disturbed = |pass, undisturbed| observed(&[pass], undisturbed).is_disturbed(&places(), &pass);
        assert!(disturbed([100e-6, 90e-6, 88e-6], false));
        assert!(!disturbed([100e-6, 90e-6, 88e-6], true));
        assert!(!disturbed([100e-6, 90e-6, 50e-6], false), "threads gained nevertheless");
    }

    #[test]
    fn typical_times_compare_within_rounds_and_are_no_luck() {
        let mut observed = observed(&[[4e-6, 2e-6, 1e-6]], true);
        // All rounds but four are slowed down alike; once several threads were lucky.
        let round = |i: usize| {
            let level = if i.is_multiple_of(4) { 1.0 } else { 1.7 };
            [4e-6 * level, 2e-6 * level, if i == 5 { 1e-6 } else { 2.5e-6 * level }]
        };
        observed.rounds = (0..32).map(|i| Round { seconds: round(i).to_vec(), pass: i / 8, quiet: false }).collect();
        observed.least = vec![4e-6, 2e-6, 1e-6];
        let typical = observed.typical();
        for seconds in [&typical.seconds, &typical.halves[0], &typical.halves[1]] {
            let ratio = seconds[2] / seconds[1];
            assert!((ratio / 1.25 - 1.0).abs() < 1e-9, "{seconds:?}");
        }
        assert!(!typical.is_doubtful(), "{typical:?}");
        // Threads that another program slowed down for most of some passes have to be measured again.
        let slow = |i: usize| i / 8 % 2 == 1 && i % 8 < 5;
        observed.rounds.iter_mut().enumerate().filter(|(i, _)| slow(*i)).for_each(|(_, round)| round.seconds[2] *= 1.2);
        assert!(observed.typical().is_doubtful());
        // Rounds in which threads waited for a core do not count if each half has enough others.
        observed.rounds.iter_mut().enumerate().for_each(|(i, round)| round.quiet = !slow(i));
        assert!(!observed.typical().is_doubtful());
        observed.rounds.truncate(7);
        assert_eq!(observed.typical().seconds, observed.least, "too few rounds");
    }

    #[test]
    fn places_far_behind_are_measured_once() {
        let far = observed(&[[31e-6, 20e-6, 10e-6]], true);
        assert_eq!(far.behind().collect::<Vec<_>>(), [Some(31e-6), None, None]);
        assert!(Observed::nothing(3).behind().all(|known| known.is_none()));
    }

    #[test]
    fn operands_begin_as_far_past_a_cache_line() {
        let mut kept = Placed::default();
        for n in [1, 7, 1000, 100_000] {
            kept.grow(n, || 1.0).unwrap();
            assert_eq!(kept.get(n).as_ptr().addr() % 64, 16);
            assert!(kept.get(n).iter().all(|&x| x == 1.0) && kept.get(n).len() == n);
        }
    }

    #[test]
    fn only_single_threads_far_behind_are_not_waited_for() {
        assert_eq!(hopeless(&places(), &[10e-3, 1e-3, 9e-3], 2.0), [Some(20e-3), None, None]);
        assert_eq!(hopeless(&places(), &[10e-3, 1e-3, 9e-3], 0.1), [None; 3], "short enough to be measured");
    }
}
