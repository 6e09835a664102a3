//! The memory that a session takes, as a table.

use std::fmt;
use std::ops::Range;

/// The memory that a session takes on each device, and how long a token is predicted to take; displays as a table.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// The maximum number of tokens of each sequence.
    pub context: usize,
    /// The parts in the order in which a step runs them; a single part if one device runs everything.
    pub parts: Vec<PlannedPart>,
    /// Predicted seconds of a step that computes one token, with resident weights.
    pub seconds: f64,
    /// A notice that several GPUs share the layers, or the reason why fewer layers are on a GPU than requested or possible.
    pub notice: Option<String>,
}

/// Layers that run on one device, with the memory that they need there.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PlannedPart {
    /// The name of the placement.
    pub place: String,
    /// The layers, from 0 on. The embedding goes with the first part and the head with the last.
    pub layers: Range<usize>,
    /// Bytes of weights, including those of adapters.
    pub weights: u64,
    /// Bytes of keys and values of all sequences with full contexts.
    pub cache: u64,
    /// Bytes of intermediate results and of scratch memory of kernels, for the graphs of all possible numbers of tokens.
    pub scratch: u64,
    /// Available bytes, if known.
    pub capacity: Option<u64>,
    /// Predicted seconds of its share of a step that computes one token.
    pub seconds: f64,
}

impl PlannedPart {
    /// The sum of all bytes.
    pub fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }

    /// Whether the part fits the available bytes; true if these are unknown.
    pub fn fits(&self) -> bool {
        self.capacity.is_none_or(|capacity| self.bytes() <= capacity)
    }
}

impl MemoryPlan {
    /// Whether layers are on several devices.
    pub fn is_split(&self) -> bool {
        self.parts.len() > 1
    }
}

/// A number of bytes that displays with a unit: `1.2 GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        f.pad(&match bytes {
            0..10_000 => format!("{bytes} B"),
            10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
            10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
            _ => format!("{:.1} GB", bytes as f64 / 1e9),
        })
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.parts.iter().map(|part| part.place.chars().count()).max().unwrap_or(0).max("place".len());
        write!(f, "{:width$}  {:>8}", "place", "layers")?;
        for head in ["weights", "cache", "scratch", "all", "there is", "a token"] {
            write!(f, "  {head:>9}")?;
        }
        writeln!(f)?;
        for part in &self.parts {
            let Range { start, end } = part.layers;
            let layers = if start == end { "none".to_owned() } else { format!("{start} to {}", end - 1) };
            write!(f, "{:width$}  {layers:>8}", part.place)?;
            for bytes in [part.weights, part.cache, part.scratch, part.bytes()] {
                write!(f, "  {:>9}", Bytes(bytes))?;
            }
            let capacity = part.capacity.map_or_else(|| "unknown".to_owned(), |capacity| Bytes(capacity).to_string());
            writeln!(f, "  {capacity:>9}  {:>6.2} ms", part.seconds * 1e3)?;
        }
        write!(f, "a context of {} tokens; a token is predicted to take {:.2} ms", self.context, self.seconds * 1e3)?;
        match &self.notice {
            Some(notice) => write!(f, "\n{notice}"),
            None => Ok(()),
        }
    }
}
