//! The curves of a profile as decisions read them: in flat lists, and found by a hash of their names.

use kiln_ir::Precision;

use crate::class::Class;
use crate::model::Basis;
use crate::place::MAX_PLACES;
use crate::profile::Calibrated;

/// Seconds on each place; [`NO_PLACE`] beyond the last place.
pub(crate) type Times = [f64; MAX_PLACES];

/// Seconds on a place that does not exist: more than on any place, and finite, so that sums and differences are numbers.
pub(crate) const NO_PLACE: f64 = 1e300;

/// The curves of all classes. The amounts of work are in one list and the times in another, which has a row of fixed length for each
/// amount: a decision reads a few adjacent cache lines and follows no pointers.
#[derive(Debug)]
pub(crate) struct Curves {
    /// Positions in `curves` by the hash of their keys, with linear probing.
    slots: Vec<u16>,
    curves: Vec<Curve>,
    work: Vec<f64>,
    seconds: Vec<Times>,
}

#[derive(Debug)]
struct Curve {
    key: Key,
    op: String,
    shape: String,
    /// The range of its amounts of work.
    first: usize,
    end: usize,
}

/// The key by which curves are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Key {
    op: Name,
    shape: Name,
    precision: Precision,
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

    fn word(self) -> u64 {
        self.first ^ self.last.rotate_left(32) ^ self.len as u64
    }
}

impl Key {
    fn new(op: &str, shape: &str, precision: Precision) -> Self {
        Self { op: Name::new(op), shape: Name::new(shape), precision }
    }

    fn hash(self) -> usize {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let [op, shape] = [self.op, self.shape].map(|name| name.word().wrapping_mul(FACTOR));
        let both = op.rotate_left(32) ^ shape ^ self.precision as u64;
        (both.wrapping_mul(FACTOR) >> 32) as usize
    }
}

impl Curves {
    const EMPTY: u16 = u16::MAX;

    /// The curves of a profile, sorted by operation.
    pub(crate) fn new(classes: &[Calibrated]) -> Self {
        let size = (2 * classes.len() + 1).next_power_of_two();
        let mut all =
            Self { slots: vec![Self::EMPTY; size], curves: Vec::new(), work: Vec::new(), seconds: Vec::new() };
        for class in classes.iter().take(usize::from(Self::EMPTY)) {
            let key = Key::new(&class.op, &class.shape, class.precision);
            let mut slot = key.hash() & (size - 1);
            while all.slots[slot] != Self::EMPTY {
                slot = (slot + 1) & (size - 1);
            }
            all.slots[slot] = all.curves.len() as u16;
            let first = all.work.len();
            all.work.extend(&class.work);
            all.seconds.extend(class.seconds.iter().map(|known| {
                let mut row = [NO_PLACE; MAX_PLACES];
                row.iter_mut().zip(known).for_each(|(row, &known)| *row = known);
                row
            }));
            let (op, shape) = (class.op.clone(), class.shape.clone());
            all.curves.push(Curve { key, op, shape, first, end: all.work.len() });
        }
        all
    }

    /// The curve of exactly this class and precision.
    fn exact(&self, class: &Class, precision: Precision) -> Option<&Curve> {
        let key = Key::new(class.op, class.shape, precision);
        let is_whole = class.op.len().max(class.shape.len()) <= Name::WHOLE;
        let mut slot = key.hash() & (self.slots.len() - 1);
        loop {
            let curve = self.curves.get(usize::from(self.slots[slot]))?;
            if curve.key == key && (is_whole || curve.op == class.op && curve.shape == class.shape) {
                return Some(curve);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Sets the seconds of an operation on each placement. Returns their basis; `None` if the operation was never measured. If the class
    /// was not measured with this precision, its times with another one count, the contract's first; then those of another kind of
    /// shape.
    pub(crate) fn find(&self, class: &Class, precision: Precision, work: f64, seconds: &mut Times) -> Option<Basis> {
        let rounds = precision != Precision::Contract && class.is_rounded();
        let precision = if rounds { precision } else { Precision::Contract };
        if let Some(curve) = self.exact(class, precision) {
            return Some(self.interpolate(curve, work, seconds));
        }
        let (curve, basis) = match Precision::ALL.iter().find_map(|&other| self.exact(class, other)) {
            Some(curve) => (curve, Basis::OtherPrecision),
            None => (self.curves.iter().find(|curve| curve.op == class.op)?, Basis::Related),
        };
        self.interpolate(curve, work, seconds);
        Some(basis)
    }

    /// Between two measured amounts of work, time is interpolated linearly. That is exact for work within one level of the memory, where
    /// time is `c0 + work / rate`. Below the first measurement its time is used, because the remaining time is `c0`; beyond the last
    /// measurement time grows in proportion to the work, at the last rate.
    fn interpolate(&self, curve: &Curve, at: f64, result: &mut Times) -> Basis {
        let (work, seconds) = (&self.work[curve.first..curve.end], &self.seconds[curve.first..curve.end]);
        // Counting all of the few amounts takes less time than a branch that is predicted wrongly.
        let above = work.iter().fold(0, |above, &work| above + usize::from(work <= at));
        let (lower, upper, fraction, factor, basis) = match above {
            0 => (&seconds[0], &seconds[0], 0.0, 1.0, Basis::Below),
            i if i < work.len() => {
                let fraction = (at - work[i - 1]) / (work[i] - work[i - 1]);
                (&seconds[i - 1], &seconds[i], fraction, 1.0, Basis::Interpolated)
            }
            i => {
                let end = work[i - 1].max(f64::MIN_POSITIVE);
                let basis = if at > end { Basis::Beyond } else { Basis::Interpolated };
                (&seconds[i - 1], &seconds[i - 1], 0.0, at.max(end) / end, basis)
            }
        };
        for (result, (&lower, &upper)) in result.iter_mut().zip(lower.iter().zip(upper)) {
            *result = (lower + fraction * (upper - lower)) * factor;
        }
        basis
    }
}
