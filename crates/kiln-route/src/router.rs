//! The router: predicts times and decides.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use kiln_ir::{Error, Precision, Result};

use crate::class::Class;
use crate::curves::{Curves, NO_PLACE, Times};
use crate::history::{History, Observed};
use crate::link::{ElementwisePath, Lines, Link, of_elementwise, of_round_trip};
use crate::model::{Basis, Edges};
use crate::place::{MAX_PLACES, Memory, Place};
use crate::problem::{Problem, Residency, Task};
use crate::profile::{Machine, Profile};
use crate::selector::Backend;
use crate::units::{Seconds, ThreeDigits};

/// Placements whose predicted times differ by less than this are equal. The one with the fewest threads is chosen:
/// kernels run short work on one thread whatever is allowed, and other work can use the cores. If the numbers of
/// threads are equal too, the better instruction set is chosen.
pub(crate) const TIE: f64 = 0.03;

/// Seconds above which work is shared: fewer threads are chosen only if they are predicted to be faster by more than
/// [`FEWER`]. On many cores the same measurement varies between runs by as much as the last doubling of threads gains,
/// because one late core delays all; so the profile's order of the two says little. Both constants were chosen by
/// replaying recorded profiles (`tests/replay.rs` of kiln).
const LONG: f64 = 30e-6;

/// See [`LONG`].
const FEWER: f64 = 0.20;

/// A lesser instruction set is chosen only if it is predicted to be faster by more than this. Smaller differences come
/// from how a length fits the vectors and from the alignment of data, which the amount of work does not determine; they
/// change sign from shape to shape, and on average the better instruction set wins.
const CLEAR: f64 = 0.10;

/// A device beside the host is chosen instead of the host only if it is predicted to be faster by more than this: launches and
/// transfers vary more from call to call than work on the host.
const BESIDE: f64 = 0.15;

/// A GPU through wgpu is chosen instead of a CUDA device only if it is predicted to be faster by more than this: a wait through Vulkan
/// takes up to 100 µs more in one call than in another, and graphs use their predicted times on one device to place all steps.
pub(crate) const STEADIER: f64 = 0.15;

/// A decision is unsure if another placement is predicted to take at most this much longer.
const UNSURE: f64 = 0.10;

/// Predicts the time of a problem on every place and takes the least.
///
/// ```text
/// time  = launch + Σ operation + transfers of operands that are not resident and of a result that is wanted
///         on the host + compile if cold
/// operation = c0 + max(bytes / bandwidth(level), flops / peak(place, class))
/// ```
///
/// The operation term is interpolated between measurements of its class where there are some, and computed from the
/// constants of the place elsewhere. Better instruction sets follow lesser ones in the profile, and a lesser one
/// (with as many threads, in the same memory) is taken only when it is predicted to be ahead by more than 10 %; a device
/// instead of the host, and a GPU through wgpu instead of a CUDA device, only by more than 15 %. Of work
/// shorter than 30 µs the fewest threads are taken that are predicted to take at most 3 % longer than the best; of longer
/// work the most that take at most 20 % longer. So the choice does not flip between places that differ by noise.
#[derive(Debug)]
pub struct Router {
    profile: Profile,
    ranks: Ranks,
    curves: Curves,
    /// The precision with which products read their operands.
    precision: Precision,
    /// Seconds to start work on each placement on the host; zero on others.
    launch: Times,
    devices: Vec<Device>,
    forced: Option<usize>,
    history: Option<Mutex<History>>,
}

/// The weights and orders by which placements are compared, independent of the problem.
#[derive(Debug)]
struct Ranks {
    /// The factors of the predicted times of placements in comparisons: above 1 for devices beside the host and for placements with a
    /// counterpart that has a better instruction set, and infinite beyond the last placement.
    weights: Times,
    /// The order of the placements by number of threads, and by position among equals.
    by_threads: [u8; MAX_PLACES],
    /// The same for descending numbers of threads.
    by_fewer: [u8; MAX_PLACES],
    /// The placements on the host, a bit each.
    on_host: u32,
    /// CUDA devices.
    cuda: u32,
    /// GPUs through wgpu.
    wgpu: u32,
}

impl Ranks {
    fn new(places: &[Place]) -> Self {
        let mut ranks = Self {
            weights: [f64::INFINITY; MAX_PLACES],
            by_threads: [0; MAX_PLACES],
            by_fewer: [0; MAX_PLACES],
            on_host: 0,
            cuda: 0,
            wgpu: 0,
        };
        for (i, place) in places.iter().enumerate().take(MAX_PLACES) {
            let better = |other: &Place| other.threads == place.threads && other.memory == place.memory;
            ranks.weights[i] = match place.memory == Memory::HOST {
                true if places[i + 1..].iter().any(better) => 1.0 + CLEAR,
                true => 1.0,
                false => 1.0 + BESIDE,
            };
            let count = |before: &dyn Fn(usize) -> bool| {
                let ahead = places
                    .iter()
                    .enumerate()
                    .filter(|&(j, other)| before(other.threads) || other.threads == place.threads && j < i);
                ahead.count() as u8
            };
            ranks.by_threads[i] = count(&|threads| threads < place.threads);
            ranks.by_fewer[i] = count(&|threads| threads > place.threads);
            ranks.on_host |= u32::from(place.memory == Memory::HOST) << i;
            ranks.cuda |= u32::from(place.backend == Backend::Cuda) << i;
            ranks.wgpu |= u32::from(place.backend == Backend::Gpu) << i;
        }
        ranks
    }

    /// See [`Router::least`]. Without branches where the order of the places decides, because that differs from problem to problem.
    fn least(&self, seconds: &Times) -> usize {
        const LANES: usize = 4;
        let weighed: Times = std::array::from_fn(|i| seconds[i] * self.weights[i]);
        let mut lanes = [f64::INFINITY; LANES];
        let (chunks, _) = weighed.as_chunks::<LANES>();
        for chunk in chunks {
            lanes = std::array::from_fn(|lane| if chunk[lane] < lanes[lane] { chunk[lane] } else { lanes[lane] });
        }
        let least = lanes.iter().copied().fold(f64::INFINITY, f64::min);
        let within = |limit: f64| {
            let bits = weighed.iter().enumerate().map(|(i, &seconds)| u32::from(seconds <= limit) << i);
            bits.fold(0, |set, bit| set | bit)
        };
        let near = within(least * (1.0 + FEWER));
        let bits = |mut set: u32| {
            std::iter::from_fn(move || {
                let i = (set != 0).then(|| set.trailing_zeros() as usize)?;
                set &= set - 1;
                Some(i)
            })
        };
        let fastest = bits(near).find(|&i| weighed[i] <= least).unwrap_or(0);
        // Long work on the CPU takes the most threads of those that are nearly as fast, other work the fewest.
        let is_shared = least > LONG && self.on_host >> fastest & 1 == 1;
        let most_of = |set: u32, ranks: &[u8; MAX_PLACES]| {
            bits(set).fold(fastest, |chosen, i| if ranks[i] > ranks[chosen] { i } else { chosen })
        };
        let chosen = match is_shared {
            true => most_of(near & self.on_host, &self.by_threads),
            false => {
                let limit = least * (1.0 + TIE);
                // Devices take no threads of the host, but have to be ahead of it by their margin.
                let near = if self.on_host >> fastest & 1 == 1 { near & self.on_host } else { near };
                bits(near)
                    .filter(|&i| weighed[i] <= limit)
                    .fold(fastest, |chosen, i| if self.by_fewer[i] > self.by_fewer[chosen] { i } else { chosen })
            }
        };
        if self.wgpu >> chosen & 1 == 0 {
            return chosen;
        }
        let within = bits(self.cuda).filter(|&i| weighed[i] <= least * (1.0 + STEADIER));
        within.reduce(|best, i| if weighed[i] < weighed[best] { i } else { best }).unwrap_or(chosen)
    }
}

/// A placement beside the host, as calls on host memory use it.
#[derive(Debug)]
struct Device {
    place: usize,
    launch: f64,
    /// Upload and download of calls; `None` if the profile has no link, or one of too many sizes.
    call: Option<[Lines; 2]>,
    /// [`Link::round_trip`], likewise; `None` if it was not measured.
    round_trip: Option<Option<Lines>>,
    /// The parts of [`ElementwisePath`], likewise; `None` if the link has no such path.
    elementwise: Option<Option<[Lines; 2]>>,
}

impl Device {
    fn new(profile: &Profile, place: usize) -> Option<Self> {
        let Place { memory, launch, .. } = profile.places()[place];
        let link = || profile.links().get(memory.index()).and_then(Option::as_ref);
        let call = |link: &Link| Some([Lines::of(&link.call.upload)?, Lines::of(&link.call.download)?]);
        let of_functions = |path: &ElementwisePath| Some([Lines::of(&path.first)?, Lines::of(&path.further)?]);
        let elementwise = || link()?.elementwise.as_ref().map(of_functions);
        (memory != Memory::HOST).then(|| Self {
            place,
            launch,
            call: link().and_then(call),
            round_trip: link().and_then(|link| link.round_trip.as_ref().map(Lines::of)),
            elementwise: elementwise(),
        })
    }

    /// Seconds of launch and transfers of a call; `None` if they are not lines.
    #[inline]
    fn seconds(&self, elementwise: bool, bytes: [u64; 2]) -> Option<f64> {
        let seconds = |lines: &Lines, bytes: u64| lines.seconds(bytes as f64);
        let [upload, download] = self.call.as_ref()?;
        let transfers = match (&self.elementwise, &self.round_trip) {
            (Some(path), _) if elementwise => of_elementwise(bytes, path.as_ref()?.each_ref(), seconds),
            (_, Some(round_trip)) => of_round_trip(bytes, [round_trip.as_ref()?, upload, download], seconds),
            _ => seconds(upload, bytes[0]) + seconds(download, bytes[1]),
        };
        Some(self.launch + transfers)
    }
}

impl Router {
    /// Decides by this profile.
    pub fn new(profile: Profile) -> Self {
        let places = profile.places();
        let mut launch = [0.0; MAX_PLACES];
        let on_host = places.iter().map(|place| if place.memory == Memory::HOST { place.launch } else { 0.0 });
        launch.iter_mut().zip(on_host).for_each(|(launch, seconds)| *launch = seconds);
        let devices = (0..places.len()).filter_map(|place| Device::new(&profile, place)).collect();
        let (ranks, curves) = (Ranks::new(places), Curves::new(profile.classes()));
        let precision = Precision::Contract;
        Self { profile, ranks, curves, precision, launch, devices, forced: None, history: None }
    }

    /// Predicts products as devices compute them with this precision.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Sends everything to the place at this position.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the profile has no placement at this position.
    pub fn with_force(mut self, place: usize) -> Result<Self> {
        if place >= self.places().len() {
            return Err(Error::Unavailable {
                what: format!("place {place}"),
                reason: format!("the profile has {}, counted from 0", self.places().len()),
            });
        }
        self.forced = Some(place);
        Ok(self)
    }

    /// Lets observed times refine the predictions; see [`History`]. Without this, equal problems get equal decisions for
    /// as long as the router lives.
    #[must_use]
    pub fn with_history(self) -> Self {
        Self { history: Some(Mutex::default()), ..self }
    }

    /// [`Router::with_history`], starting from the observations that the profile holds.
    #[must_use]
    pub fn with_kept_history(self) -> Self {
        let history = History::from_observed(self.profile.observed(), self.places());
        Self { history: Some(Mutex::new(history)), ..self }
    }

    /// The observations, to be kept in a profile; empty unless the router refines.
    pub fn observed(&self) -> Vec<Observed> {
        let history = self.history.as_ref().map(|history| history.lock().unwrap_or_else(PoisonError::into_inner));
        history.map_or_else(Vec::new, |history| history.observed(self.places()))
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The places that it chooses from.
    pub fn places(&self) -> &[Place] {
        self.profile.places()
    }

    /// The place that everything is sent to, if one is forced.
    pub fn forced(&self) -> Option<usize> {
        self.forced
    }

    /// Whether observed times refine the predictions.
    pub fn refines(&self) -> bool {
        self.history.is_some()
    }

    /// Chooses a place. A pure function of the problem, the residency, the profile and what has been observed.
    pub fn decide(&self, problem: &Problem, residency: &Residency) -> Decision<'_> {
        let history = self.history.as_ref().map(|history| history.lock().unwrap_or_else(PoisonError::into_inner));
        let history = history.as_deref().filter(|history| !history.is_empty());
        let (class, work) = (problem.class(), problem.work());
        let (seconds, basis) = ([NO_PLACE; MAX_PLACES], Basis::Sum);
        let mut decision = Decision { router: self, seconds, chosen: 0, class, work, basis };
        let seconds = &mut decision.seconds;
        decision.basis = self.predict(problem, residency, history, seconds);
        if let (Some(history), Some(task)) = (history, problem.call()) {
            self.correct(history, task, residency.is_on_host(), seconds);
        }
        decision.chosen = self.forced.unwrap_or_else(|| self.least(seconds));
        decision
    }

    /// The placement with the least time, where a lesser instruction set, and for long work fewer threads, must be
    /// clearly faster; of equals the last.
    pub(crate) fn least(&self, seconds: &Times) -> usize {
        self.ranks.least(seconds)
    }

    /// Sets the seconds that a problem takes on each placement, with observed corrections for graphs and without them for calls.
    fn predict(
        &self,
        problem: &Problem,
        residency: &Residency,
        history: Option<&History>,
        seconds: &mut Times,
    ) -> Basis {
        let basis = self.compute(problem, history, seconds);
        let edges = Edges::new(self.profile.links(), problem, residency);
        let places = self.places();
        if problem.is_call() && residency.is_plain() {
            seconds.iter_mut().zip(&self.launch).for_each(|(seconds, launch)| *seconds += launch);
            let bytes = [problem.operand_bytes(), problem.result_bytes()];
            for device in &self.devices {
                let transfers = device.seconds(problem.is_elementwise(), bytes);
                seconds[device.place] += transfers.unwrap_or_else(|| edges.of(device.place, &places[device.place]));
            }
        } else {
            for (i, (seconds, place)) in seconds.iter_mut().zip(places).enumerate() {
                *seconds += edges.of(i, place);
            }
        }
        basis
    }

    /// Sets the seconds that the operations of a problem take on each placement, without launch and transfers.
    fn compute(&self, problem: &Problem, history: Option<&History>, seconds: &mut Times) -> Basis {
        if let Some(task) = problem.call() {
            return self.operation(task, None, seconds);
        }
        let places = self.places();
        seconds[..places.len()].fill(0.0);
        let (mut own, mut basis) = ([NO_PLACE; MAX_PLACES], Basis::Sum);
        for task in problem.tasks() {
            basis = self.operation(task, history, &mut own);
            for ((sum, own), place) in seconds.iter_mut().zip(&own).zip(places) {
                *sum += own + place.queued;
            }
        }
        if problem.len() == 1 { basis } else { Basis::Sum }
    }

    /// Sets the seconds of an operation on each placement.
    fn operation(&self, task: &Task, history: Option<&History>, seconds: &mut Times) -> Basis {
        let work = task.work();
        let basis = self.curves.find(&task.class, self.precision, work, seconds).unwrap_or_else(|| {
            let known = self.places().iter().map(|place| place.roofline.seconds(&task.cost));
            seconds.iter_mut().zip(known).for_each(|(seconds, known)| *seconds = known);
            Basis::Formula
        });
        if let Some(history) = history {
            self.correct(history, task, false, seconds);
        }
        basis
    }

    /// Applies what was observed. Observations of devices are of calls from host to host, with their transfers: they correct
    /// no others.
    fn correct(&self, history: &History, task: &Task, from_host_to_host: bool, seconds: &mut Times) {
        let work = task.work();
        for (i, (seconds, place)) in seconds.iter_mut().zip(self.places()).enumerate() {
            if from_host_to_host || place.memory == Memory::HOST {
                *seconds *= history.correction(task.class, work, i).unwrap_or(1.0);
            }
        }
    }

    /// Seconds that an operation of a graph takes on each placement after other operations.
    pub(crate) fn task_seconds(&self, task: &Task) -> Times {
        let history = self.history.as_ref().map(|history| history.lock().unwrap_or_else(PoisonError::into_inner));
        let mut seconds = [NO_PLACE; MAX_PLACES];
        self.operation(task, history.as_deref().filter(|history| !history.is_empty()), &mut seconds);
        for (seconds, place) in seconds.iter_mut().zip(self.places()) {
            *seconds += place.queued;
        }
        seconds
    }

    /// Predicted seconds of the transfers of a call from host to host on a place, as the profile has them: without corrections.
    pub fn transfers(&self, problem: &Problem, place: usize) -> f64 {
        let predicted = |residency: &Residency| {
            let mut seconds = [NO_PLACE; MAX_PLACES];
            self.predict(problem, residency, None, &mut seconds);
            seconds[place]
        };
        predicted(&Residency::host()) - predicted(&Residency::everywhere().keep_result())
    }

    /// Records the time of a call on a placement, with its operands where the residency says. Ignored unless the router refines, and
    /// for a device whose operands or results are not on the host.
    pub fn observe(&self, problem: &Problem, residency: &Residency, place: usize, observed: f64) {
        let (Some(history), Some(task)) = (&self.history, problem.call()) else { return };
        let Some(known) = self.places().get(place) else { return };
        if known.memory != Memory::HOST && !residency.is_on_host() {
            return;
        }
        // Relative to the prediction without corrections, so that corrections do not compound.
        let mut predicted = [NO_PLACE; MAX_PLACES];
        self.predict(problem, residency, None, &mut predicted);
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        history.observe(task.class, task.work(), place, predicted[place], observed);
    }
}

/// The prediction for one placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction<'a> {
    /// The place.
    pub place: &'a Place,
    /// Seconds.
    pub seconds: f64,
}

/// The placement of a problem, and the predictions for every placement.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a> {
    router: &'a Router,
    seconds: [f64; MAX_PLACES],
    chosen: usize,
    class: Option<Class>,
    work: f64,
    basis: Basis,
}

impl<'a> Decision<'a> {
    /// Position of the chosen place among [`Router::places`].
    pub fn index(&self) -> usize {
        self.chosen
    }

    /// Position of the placement that would be chosen if no placement were forced.
    pub fn unforced(&self) -> usize {
        self.router.least(&self.seconds)
    }

    /// The chosen place.
    pub fn place(&self) -> &'a Place {
        &self.router.places()[self.chosen]
    }

    /// Predicted seconds on the chosen place.
    pub fn seconds(&self) -> f64 {
        self.seconds[self.chosen]
    }

    /// The machine that the predictions are about.
    pub fn machine(&self) -> &'a Machine {
        self.router.profile.machine()
    }

    /// The predictions for each placement, in their order.
    pub fn predictions(&self) -> impl Iterator<Item = Prediction<'a>> + '_ {
        self.router.places().iter().zip(self.seconds).map(|(place, seconds)| Prediction { place, seconds })
    }

    /// The basis of the predictions.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Whether another place is predicted to take at most 10 % longer, so that a wrong choice costs little and the right
    /// one cannot be distinguished from it.
    pub fn is_unsure(&self) -> bool {
        self.runner_up().is_some_and(|(_, seconds)| seconds <= self.seconds() * (1.0 + UNSURE))
    }

    /// The best placement that could run the problem and was not chosen.
    fn runner_up(&self) -> Option<(&'a Place, f64)> {
        let others = self.predictions().enumerate().filter(|&(i, _)| i != self.chosen).map(|(_, p)| p);
        others
            .filter(|p| p.seconds < f64::INFINITY)
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
            .map(|p| (p.place, p.seconds))
    }

    /// The reason in a sentence, put into words when it is displayed.
    pub fn why(&self) -> Why<'a> {
        Why(*self)
    }
}

/// The reason for a decision; displays as a sentence.
#[derive(Debug, Clone, Copy)]
pub struct Why<'a>(Decision<'a>);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = &self.0;
        let (place, seconds) = (decision.place(), decision.seconds());
        if decision.router.forced.is_some() {
            write!(f, "{place} is forced")?;
        } else {
            match decision.runner_up() {
                None => write!(f, "{place} is the only place")?,
                Some((other, other_seconds)) if other_seconds < seconds && other.memory != Memory::HOST => write!(
                    f,
                    "{place} is predicted to take {} times as long as {other}, which would have to be clearly ahead",
                    ThreeDigits(seconds / other_seconds.max(f64::MIN_POSITIVE)),
                )?,
                Some((other, other_seconds)) if other_seconds < seconds && other.threads == place.threads => write!(
                    f,
                    "{place} is predicted to take {} times as long as {other}, whose lesser instruction set would \
                     have to be clearly ahead",
                    ThreeDigits(seconds / other_seconds.max(f64::MIN_POSITIVE)),
                )?,
                Some((other, other_seconds))
                    if other_seconds < seconds * (1.0 - TIE) && other.threads < place.threads =>
                {
                    write!(
                        f,
                        "{place} is predicted to take {} times as long as {other}, whose fewer threads would have to be \
                         clearly ahead",
                        ThreeDigits(seconds / other_seconds.max(f64::MIN_POSITIVE)),
                    )?;
                }
                Some((other, other_seconds)) if other_seconds < seconds && other.threads > place.threads => write!(
                    f,
                    "{place} is predicted to take {} times as long as {other} and leaves cores free",
                    ThreeDigits(seconds / other_seconds.max(f64::MIN_POSITIVE)),
                )?,
                Some((other, other_seconds)) if other_seconds < seconds => {
                    write!(f, "{place} is predicted to take as long as {other} and is preferred among equals")?;
                }
                Some((other, other_seconds)) if other_seconds <= seconds * (1.0 + TIE) => {
                    write!(f, "{place} is predicted to take as long as {other} and is preferred among equals")?;
                }
                Some((other, other_seconds)) => write!(
                    f,
                    "{place} is predicted to take {} where the next, {other}, takes {} times as long",
                    Seconds(seconds),
                    ThreeDigits(other_seconds / seconds.max(f64::MIN_POSITIVE)),
                )?,
            }
        }
        let class = decision.class.map_or(String::new(), |class| class.to_string());
        match decision.basis {
            Basis::Interpolated => write!(f, "; interpolated between measurements of {class}"),
            Basis::Below => write!(f, "; {class} was measured from larger sizes on, its least time is taken"),
            Basis::Beyond => write!(f, "; {class} was measured up to smaller sizes, its last rate is taken"),
            Basis::OtherPrecision => {
                write!(f, "; {class} was not measured with this precision, its times with another are taken")
            }
            Basis::Related => write!(f, "; {class} was not measured, another kind of shape of it was"),
            Basis::Formula => write!(f, "; {class} was not measured, bandwidth and peak of each place are taken"),
            Basis::Sum => write!(f, "; the sum over its operations"),
        }
    }
}

impl Decision<'_> {
    /// The work that the decision was about: the larger of flops and bytes.
    pub fn work(&self) -> f64 {
        self.work
    }
}
