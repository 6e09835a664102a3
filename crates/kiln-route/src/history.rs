//! Times that were observed after the calibration.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::class::Class;
use crate::json::list;
use crate::place::Place;

/// Number of observations from which they count: fewer may be chance.
const MINIMUM: u32 = 10;

/// An observation that differs from the mean of the earlier ones by more than this share is an outlier: the machine was
/// busy.
const OUTLIER: f64 = 0.5;

/// Number of observations of other placements with the same work after which a correction is halved on a logarithmic
/// scale, so that a placement that was slow once is tried again.
const FORGET: u32 = 50;

/// Corrections below this share are dropped.
const NOTHING: f64 = 0.05;

/// Maximum ratio between observed and predicted time; a ratio beyond it is not a real observation.
const MOST_RATIO: f64 = 1e9;

/// Observed times relative to predicted ones, for each class, octave of work and place.
///
/// The mean of the ratios corrects the prediction once ten observations agree. An observation that differs from the mean
/// by more than 50 % is rejected; ten of them in a row mean that the machine has changed, a GPU that others use or a processor
/// that is throttled, and their mean is the new correction. A place that is not chosen any more is not observed: its correction
/// fades while others of the same work are, until it is chosen again.
#[derive(Debug, Clone, Default)]
pub struct History {
    entries: HashMap<Key, Entry>,
}

/// The operation and shape kind of a class, the octave of the work, and the position of a placement. Names from a
/// profile are owned.
type Key = (Cow<'static, str>, Cow<'static, str>, i32, usize);

fn key(class: Class, octave: i32, place: usize) -> Key {
    (Cow::Borrowed(class.op), Cow::Borrowed(class.shape), octave, place)
}

/// The observations of an octave of a class on a placement, as a profile keeps them.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// The operation.
    pub op: String,
    /// The kind of shape.
    pub shape: String,
    /// The power of two below the work.
    pub octave: i32,
    /// The name of the place.
    pub place: String,
    /// Mean of observed over predicted times; it fades while the place is not chosen.
    pub mean: f64,
    /// Observations in the mean.
    pub samples: u32,
    /// Observations of other places since the last one.
    pub idle: u32,
    /// The mean before it faded; zero where it has not.
    pub remembered: f64,
    /// Number of times that a faded mean was restored.
    pub restored: u32,
}

// A list is smaller than an object, and there are many.
list!(Observed { op, shape, octave, place, mean, samples, idle, remembered, restored });

impl Observed {
    /// The class, octave and placement that it describes.
    pub(crate) fn key(&self) -> (&str, &str, i32, &str) {
        (&self.op, &self.shape, self.octave, &self.place)
    }

    /// Validates the values of a file.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { op, place, octave, mean, samples, remembered, .. } = self;
        let ratio = |ratio: f64| (1.0 / MOST_RATIO..=MOST_RATIO).contains(&ratio);
        if !ratio(*mean) || *remembered != 0.0 && !ratio(*remembered) {
            return Err(format!(
                "observations of {op} on {place} are {mean:e} times as predicted, {remembered:e} before"
            ));
        }
        // The work of an operation is a u64.
        match *samples == 0 || !(0..=64).contains(octave) {
            true => Err(format!("{samples} observations of {op} on {place} in octave {octave}")),
            false => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    mean: f64,
    samples: u32,
    /// Number of consecutive outliers, and their mean.
    rejected: u32,
    rejected_mean: f64,
    /// Observations of other placements since the last one.
    idle: u32,
    /// The mean before it faded; zero if it has not.
    remembered: f64,
    /// Number of times that a faded correction was restored.
    restored: u32,
}

/// The power of two below the work: one correction serves a whole octave.
fn octave(work: f64) -> i32 {
    work.max(1.0).log2() as i32
}

impl History {
    /// Records that work which was predicted to take `predicted` seconds took `observed`. Values that are not
    /// times are ignored.
    pub fn observe(&mut self, class: Class, work: f64, place: usize, predicted: f64, observed: f64) {
        let ratio = observed / predicted;
        if !(ratio.is_finite() && ratio > 0.0) {
            return;
        }
        let octave = octave(work);
        self.entries.retain(|(op, shape, at, elsewhere), entry| {
            *at != octave
                || *elsewhere == place
                || (op.as_ref(), shape.as_ref()) != (class.op, class.shape)
                || entry.is_kept_idle()
        });
        let entry = self.entries.entry(key(class, octave, place)).or_default();
        entry.idle = 0;
        let remembered = std::mem::take(&mut entry.remembered);
        // As slow as before, and not as fast as the faded mean.
        let is_as_before = || (ratio / remembered).ln().abs() < (ratio / entry.mean).ln().abs();
        if remembered > 0.0 && (ratio / remembered - 1.0).abs() <= OUTLIER && is_as_before() {
            (entry.mean, entry.restored) = (remembered, entry.restored.saturating_add(1));
            return;
        }
        if entry.samples > 0 && (ratio / entry.mean - 1.0).abs() > OUTLIER {
            entry.rejected += 1;
            entry.rejected_mean += (ratio - entry.rejected_mean) / f64::from(entry.rejected);
            if entry.rejected >= MINIMUM.min(entry.samples) {
                let (mean, samples) = (entry.rejected_mean, entry.rejected);
                *entry = Entry { mean, samples, ..Entry::default() };
            }
            return;
        }
        (entry.rejected, entry.rejected_mean) = (0, 0.0);
        entry.samples = entry.samples.saturating_add(1);
        // With weights of at least a tenth, 20 observations cover 88 % of a change that is too small to be an outlier.
        entry.mean += (ratio - entry.mean) / f64::from(entry.samples.min(MINIMUM));
    }

    /// The factor on the predicted time of this work, once enough was observed.
    pub fn correction(&self, class: Class, work: f64, place: usize) -> Option<f64> {
        let entry = self.entries.get(&key(class, octave(work), place))?;
        (entry.samples >= MINIMUM).then_some(entry.mean)
    }

    /// Restores the observations of a profile. Entries of placements that are not in `places` are ignored.
    pub fn from_observed(observed: &[Observed], places: &[Place]) -> Self {
        let entry = |kept: &Observed| {
            let place = places.iter().position(|place| place.name == kept.place)?;
            let key = (Cow::Owned(kept.op.clone()), Cow::Owned(kept.shape.clone()), kept.octave, place);
            let &Observed { mean, samples, idle, remembered, restored, .. } = kept;
            Some((key, Entry { mean, samples, idle, remembered, restored, ..Entry::default() }))
        };
        Self { entries: observed.iter().filter_map(entry).collect() }
    }

    /// The observations for a profile, ordered by name: all except the outliers after the last regular observation. Means beyond a
    /// billion are left out.
    pub fn observed(&self, places: &[Place]) -> Vec<Observed> {
        let kept = |((op, shape, octave, place), entry): (&Key, &Entry)| {
            let &Entry { mean, samples, idle, remembered, restored, .. } = entry;
            let (op, shape, place) = (op.to_string(), shape.to_string(), places.get(*place)?.name.clone());
            let kept = Observed { op, shape, octave: *octave, place, mean, samples, idle, remembered, restored };
            kept.check().is_ok().then_some(kept)
        };
        let mut observed: Vec<Observed> = self.entries.iter().filter_map(kept).collect();
        observed.sort_by(|a, b| a.key().cmp(&b.key()));
        observed
    }

    /// Whether nothing was observed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Entry {
    /// Counts an observation of another placement. Returns whether the entry is still useful.
    fn is_kept_idle(&mut self) -> bool {
        self.idle = self.idle.saturating_add(1);
        if self.idle < FORGET << self.restored.min(8) {
            return true;
        }
        self.idle = 0;
        if self.remembered == 0.0 {
            self.remembered = self.mean;
        }
        self.mean = self.mean.sqrt();
        // The remembered mean is useful while it is a correction.
        (self.remembered - 1.0).abs() > NOTHING
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
    fn outliers_are_rejected_and_ten_of_them_in_a_row_are_a_change() {
        let mut history = History::default();
        for _ in 0..1000 {
            history.observe(CLASS, 1000.0, 0, 1.0, 1.0);
        }
        for round in 0..3 {
            for _ in 0..9 {
                history.observe(CLASS, 1000.0, 0, 1.0, 5.0);
                assert_eq!(history.correction(CLASS, 1000.0, 0), Some(1.0), "{round}");
            }
            history.observe(CLASS, 1000.0, 0, 1.0, 1.0);
        }
        for _ in 0..10 {
            history.observe(CLASS, 1000.0, 0, 1.0, 5.0);
        }
        assert_eq!(history.correction(CLASS, 1000.0, 0), Some(5.0), "within 20 calls");
        for _ in 0..10 {
            history.observe(CLASS, 1000.0, 0, 1.0, 1.0);
        }
        assert_eq!(history.correction(CLASS, 1000.0, 0), Some(1.0), "and back");
    }

    #[test]
    fn a_change_within_the_band_of_outliers_is_learnt_within_twenty_calls() {
        for (before, after) in [(1.0, 1.45), (1.9, 1.0)] {
            let mut history = History::default();
            (0..1000).for_each(|_| history.observe(CLASS, 1000.0, 0, 1.0, before));
            (0..20).for_each(|_| history.observe(CLASS, 1000.0, 0, 1.0, after));
            let correction = history.correction(CLASS, 1000.0, 0).unwrap();
            assert!((correction - after).abs() < 0.15 * (before - after).abs(), "{before} to {after}: {correction}");
        }
    }

    #[test]
    fn what_is_not_chosen_any_more_is_forgotten() {
        let mut history = History::default();
        for _ in 0..10 {
            history.observe(CLASS, 1000.0, 1, 1.0, 16.0);
        }
        let correction = |history: &History| history.correction(CLASS, 1000.0, 1);
        let mut seen = vec![correction(&history)];
        for _ in 0..500 {
            history.observe(CLASS, 1000.0, 0, 1.0, 1.0);
            if correction(&history) != seen[seen.len() - 1] {
                seen.push(correction(&history));
            }
        }
        assert_eq!(seen[..3], [Some(16.0), Some(4.0), Some(2.0)]);
        assert!(seen[seen.len() - 1].is_some_and(|correction| correction < 1.05), "{seen:?}");
        // The placement is as slow as before, which the first new observation confirms.
        history.observe(CLASS, 1000.0, 1, 1.0, 15.0);
        assert_eq!(correction(&history), Some(16.0));
        history.observe(CLASS, 5000.0, 0, 1.0, 1.0);
        assert_eq!(history.correction(CLASS, 1000.0, 0), Some(1.0), "other work says nothing");
    }

    #[test]
    fn a_place_that_has_recovered_keeps_no_penalty() {
        let mut history = History::default();
        for _ in 0..10 {
            history.observe(CLASS, 1000.0, 1, 1.0, 1.9);
        }
        for _ in 0..FORGET {
            history.observe(CLASS, 1000.0, 0, 1.0, 1.0);
        }
        let faded = history.correction(CLASS, 1000.0, 1).unwrap();
        assert!(faded < 1.5, "{faded}");
        history.observe(CLASS, 1000.0, 1, 1.0, 1.0);
        assert!(history.correction(CLASS, 1000.0, 1).is_some_and(|correction| correction < faded));
    }

    #[test]
    fn what_is_kept_goes_on_as_if_nothing_had_happened() {
        let places: Vec<Place> =
            ["a", "b"].map(|name| Place::cpu(name, crate::Backend::Simd, 8, 1)).into_iter().collect();
        let mut history = History::default();
        for _ in 0..10 {
            history.observe(CLASS, 1000.0, 1, 1.0, 16.0);
        }
        // It has faded once, and is about to fade again.
        for _ in 0..99 {
            history.observe(CLASS, 1000.0, 0, 1.0, 1.0);
        }
        let kept = history.observed(&places);
        assert_eq!(kept.len(), 2);
        assert!(kept.iter().all(|entry| entry.check().is_ok()), "{kept:?}");
        let mut again = History::from_observed(&kept, &places);
        assert_eq!(again.observed(&places), kept);
        for (work, place, observed) in [(1000.0, 0, 1.0), (1000.0, 0, 1.0), (1000.0, 1, 15.0), (5000.0, 1, 3.0)] {
            for history in [&mut history, &mut again] {
                history.observe(CLASS, work, place, 1.0, observed);
            }
            assert_eq!(history.correction(CLASS, 1000.0, 1), again.correction(CLASS, 1000.0, 1));
            assert_eq!(history.observed(&places), again.observed(&places));
        }
        assert_eq!(again.correction(CLASS, 1000.0, 1), Some(16.0), "it is known at once");
        // Removing a placement removes its observations; the others keep theirs.
        let fewer = History::from_observed(&kept, &places[1..]);
        assert_eq!(fewer.observed(&places[1..]), kept[1..]);
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
