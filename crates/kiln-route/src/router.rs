//! The decision.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use kiln_ir::{Error, Result};

use crate::class::Class;
use crate::history::{History, Observed};
use crate::model::{Basis, Edges, Segment};
use crate::place::{MAX_PLACES, Memory, Place};
use crate::problem::{Problem, Residency, Task};
use crate::profile::{Calibrated, Machine, Profile};
use crate::units::{Seconds, ThreeDigits};

/// Placements whose predicted times differ by less than this are equal. The one with the fewest threads is chosen:
/// kernels run short work on one thread whatever is allowed, and other work can use the cores. If the numbers of
/// threads are equal too, the better instruction set is chosen.
pub(crate) const TIE: f64 = 0.03;

/// Seconds above which work is shared: fewer threads are chosen only if they are predicted to be faster by more than
/// [`FEWER`]. On many cores the same measurement varies between runs by as much as the last doubling of threads gains,
/// because one late core delays all; so the profile's order of the two says little. Both constants were chosen by
/// replaying recorded profiles (`tests/replay.rs` of kiln).
const LONG: f64 = 20e-6;

/// See [`LONG`].
const FEWER: f64 = 0.20;

/// A lesser instruction set is chosen only if it is predicted to be faster by more than this. Smaller differences come
/// from how a length fits the vectors and from the alignment of data, which the amount of work does not determine; they
/// change sign from shape to shape, and on average the better instruction set wins.
const CLEAR: f64 = 0.10;

/// A decision is unsure if another placement is predicted to take at most this much longer.
const UNSURE: f64 = 0.10;

/// Predicts the time of a problem on every place and takes the least.
///
/// ```text
/// time  = launch + Σ operation + Σ upload of operands that are not resident + download of a result that is wanted
///         on the host + compile if cold
/// operation = c0 + max(bytes / bandwidth(level), flops / peak(place, class))
/// ```
///
/// The operation term is interpolated between measurements of its class where there are some, and computed from the
/// constants of the place elsewhere. Better instruction sets follow lesser ones in the profile, and a lesser one
/// (with as many threads, in the same memory) is taken only when it is predicted to be ahead by more than 10 %. Of work
/// shorter than 20 µs the fewest threads are taken that are predicted to take at most 3 % longer than the best; of longer
/// work the most that take at most 20 % longer. So the choice does not flip between places that differ by noise.
#[derive(Debug)]
pub struct Router {
    profile: Profile,
    /// What the predicted time of each placement is multiplied by before they are compared: above 1 if there is a counterpart with a
    /// better instruction set.
    weights: [f64; MAX_PLACES],
    classes: ClassTable,
    forced: Option<usize>,
    history: Option<Mutex<History>>,
}

impl Router {
    /// Decides by this profile.
    pub fn new(profile: Profile) -> Self {
        let mut weights = [1.0; MAX_PLACES];
        let places = profile.places();
        for (i, place) in places.iter().enumerate() {
            let better = |other: &Place| other.threads == place.threads && other.memory == place.memory;
            if places[i + 1..].iter().any(better) {
                weights[i] = 1.0 + CLEAR;
            }
        }
        let classes = ClassTable::new(profile.classes());
        Self { profile, weights, classes, forced: None, history: None }
    }

    /// Sends everything to the place at this position.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is no such place.
    pub fn with_force(mut self, place: usize) -> Result<Self> {
        if place >= self.places().len() {
            return Err(Error::Unavailable {
                what: format!("place {place}"),
                reason: format!("there are {}", self.places().len()),
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

    /// What has been observed, to be kept in a profile; nothing unless the router refines.
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

    /// Whether observed times are taken in.
    pub fn refines(&self) -> bool {
        self.history.is_some()
    }

    /// Chooses a place. A pure function of the problem, the residency, the profile and what has been observed.
    pub fn decide(&self, problem: &Problem, residency: &Residency) -> Decision<'_> {
        let history = self.history.as_ref().map(|history| history.lock().unwrap_or_else(PoisonError::into_inner));
        let history = history.as_deref().filter(|history| !history.is_empty());
        let (mut seconds, basis) = self.predict(problem, residency, history);
        // Observations of a call include its transfers.
        if let (Some(history), Some(task)) = (history, problem.call()) {
            for (i, seconds) in seconds.iter_mut().enumerate().take(self.places().len()) {
                *seconds *= history.correction(task.class, task.work(), i).unwrap_or(1.0);
            }
        }
        let chosen = self.forced.unwrap_or_else(|| self.least(&seconds));
        Decision { router: self, seconds, chosen, class: problem.class(), work: problem.work(), basis }
    }

    /// The placement with the least time, where a lesser instruction set, and for long work fewer threads, must be
    /// clearly faster; of equals the last.
    pub(crate) fn least(&self, seconds: &[f64; MAX_PLACES]) -> usize {
        let places = self.places();
        let mut weighed = [f64::INFINITY; MAX_PLACES];
        let (mut best, mut least) = (0, f64::INFINITY);
        for (i, weighed) in weighed.iter_mut().enumerate().take(places.len()) {
            *weighed = seconds[i] * self.weights[i];
            if *weighed < least {
                (best, least) = (i, *weighed);
            }
        }
        // Long work on the CPU takes the most threads of those that are nearly as fast, other work the fewest.
        let shared = least > LONG && places[best].memory == Memory::HOST;
        let limit = least * (1.0 + if shared { FEWER } else { TIE });
        let mut chosen = best;
        for (i, place) in places.iter().enumerate() {
            let (threads, of_chosen) = (place.threads, places[chosen].threads);
            let preferred = if shared { threads >= of_chosen } else { threads <= of_chosen };
            if weighed[i] <= limit && preferred && (!shared || place.memory == Memory::HOST) {
                chosen = i;
            }
        }
        chosen
    }

    /// Seconds that a problem takes on each placement, with observed corrections for graphs and without them for calls.
    fn predict(
        &self,
        problem: &Problem,
        residency: &Residency,
        history: Option<&History>,
    ) -> ([f64; MAX_PLACES], Basis) {
        let (mut seconds, basis) = self.compute(problem, history);
        let edges = Edges::new(self.profile.links(), problem, residency);
        for (i, (seconds, place)) in seconds.iter_mut().zip(self.places()).enumerate() {
            *seconds += edges.of(i, place);
        }
        (seconds, basis)
    }

    /// Seconds that the operations of a problem take on each placement, without launch and transfers.
    fn compute(&self, problem: &Problem, history: Option<&History>) -> ([f64; MAX_PLACES], Basis) {
        let mut sum = [0.0; MAX_PLACES];
        if let Some(task) = problem.call() {
            let basis = self.add(task, None, &mut sum);
            return (sum, basis);
        }
        let mut basis = Basis::Sum;
        for task in problem.tasks() {
            let mut own = [0.0; MAX_PLACES];
            basis = self.add(task, history, &mut own);
            for ((sum, own), place) in sum.iter_mut().zip(own).zip(self.places()) {
                *sum += own + place.queued;
            }
        }
        (sum, if problem.len() == 1 { basis } else { Basis::Sum })
    }

    /// Adds the seconds of an operation on each placement.
    fn add(&self, task: &Task, history: Option<&History>, sum: &mut [f64; MAX_PLACES]) -> Basis {
        let work = task.work();
        let found = self.classes.find(self.profile.classes(), &task.class).map(|class| (class, true));
        let measured = found.or_else(|| self.profile.find(task.class.op, task.class.shape));
        let segment = measured.and_then(|(class, _)| Segment::find(&class.work, &class.seconds, work));
        for (i, (sum, place)) in sum.iter_mut().zip(self.places()).enumerate() {
            let own = segment.as_ref().map_or_else(|| place.roofline.seconds(&task.cost), |segment| segment.seconds(i));
            let correction = history.and_then(|history| history.correction(task.class, work, i));
            *sum += own * correction.unwrap_or(1.0);
        }
        match (&segment, measured) {
            (None, _) => Basis::Formula,
            (Some(_), Some((_, false))) => Basis::Related,
            (Some(segment), _) => segment.basis,
        }
    }

    /// Seconds that an operation of a graph takes on each placement after other operations.
    pub(crate) fn task_seconds(&self, task: &Task) -> [f64; MAX_PLACES] {
        let history = self.history.as_ref().map(|history| history.lock().unwrap_or_else(PoisonError::into_inner));
        let history = history.as_deref().filter(|history| !history.is_empty());
        let mut seconds = [0.0; MAX_PLACES];
        self.add(task, history, &mut seconds);
        for (seconds, place) in seconds.iter_mut().zip(self.places()) {
            *seconds += place.queued;
        }
        seconds
    }

    /// Takes in how long a call took on a place, with its operands where the residency says. Ignored unless the router refines.
    pub fn observe(&self, problem: &Problem, residency: &Residency, place: usize, observed: f64) {
        let (Some(history), Some(task)) = (&self.history, problem.call()) else { return };
        if place >= self.places().len() {
            return;
        }
        // Relative to the prediction without corrections, so that corrections do not compound.
        let (predicted, _) = self.predict(problem, residency, None);
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        history.observe(task.class, task.work(), place, predicted[place], observed);
    }
}

/// Positions of the classes of a profile by a hash of their names: a decision finds its class with one comparison.
#[derive(Debug)]
struct ClassTable {
    slots: Vec<u16>,
    /// The names of each class.
    names: Vec<[Name; 2]>,
}

/// The first eight bytes of a name, the last eight, and its length: all of a name of up to 16 bytes. Comparing these takes a fifth of
/// the time of comparing strings.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Name {
    first: u64,
    last: u64,
    len: usize,
}

impl Name {
    const WHOLE: usize = 16;

    fn new(name: &str) -> Self {
        let name = name.as_bytes();
        let (first, last) = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
            _ => (name.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)), 0),
        };
        Self { first, last, len: name.len() }
    }

    fn hash(names: [Self; 2]) -> usize {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let [op, shape] =
            names.map(|name| (name.first ^ name.last.rotate_left(32) ^ name.len as u64).wrapping_mul(FACTOR));
        ((op.rotate_left(32) ^ shape).wrapping_mul(FACTOR) >> 32) as usize
    }
}

impl ClassTable {
    const EMPTY: u16 = u16::MAX;

    fn new(classes: &[Calibrated]) -> Self {
        let size = (2 * classes.len() + 1).next_power_of_two();
        let names = classes.iter().map(|class| [&class.op, &class.shape].map(|name| Name::new(name))).collect();
        let mut table = Self { slots: vec![Self::EMPTY; size], names };
        for (position, &names) in table.names.iter().enumerate().take(usize::from(Self::EMPTY)) {
            let mut slot = Name::hash(names) & (size - 1);
            while table.slots[slot] != Self::EMPTY {
                slot = (slot + 1) & (size - 1);
            }
            table.slots[slot] = position as u16;
        }
        table
    }

    fn find<'a>(&self, classes: &'a [Calibrated], class: &Class) -> Option<&'a Calibrated> {
        let names = [class.op, class.shape].map(Name::new);
        let mut slot = Name::hash(names) & (self.slots.len() - 1);
        loop {
            let position = usize::from(self.slots[slot]);
            let (candidate, known) = (classes.get(position)?, self.names.get(position)?);
            let whole = class.op.len().max(class.shape.len()) <= Name::WHOLE;
            if *known == names && (whole || candidate.op == class.op && candidate.shape == class.shape) {
                return Some(candidate);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }
}

/// What is predicted of one place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction<'a> {
    /// The place.
    pub place: &'a Place,
    /// Seconds.
    pub seconds: f64,
}

/// Where a problem goes, and what was predicted of every place.
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

    /// Position of the place that would be chosen if none were forced.
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

    /// What is predicted of each place, in their order.
    pub fn predictions(&self) -> impl Iterator<Item = Prediction<'a>> + '_ {
        self.router.places().iter().zip(self.seconds).map(|(place, seconds)| Prediction { place, seconds })
    }

    /// What the predictions rest on.
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
