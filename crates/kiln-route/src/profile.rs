//! Profiles: the measurements of a machine, and the files that hold them.

use std::path::{Path, PathBuf};

use kiln_ir::Precision;

use crate::history::Observed;
use crate::json::{Json, Value, list, object};
use crate::link::{Link, Transfer};
use crate::place::{MAX_MEMORIES, MAX_PLACES, Memory, Place, Roofline};

/// The version of the format that this crate reads and writes. Raised whenever the meaning of a field or of a class
/// changes.
pub const PROFILE_VERSION: u32 = 7;

/// Maximum size of the text of a profile: many times that of the largest. The values that are read take up to ninety times the memory of
/// their text.
const MAX_BYTES: usize = 4 << 20;
/// Maximum capacity in bytes: the largest integer that is exact in f64, which every JSON parser preserves (RFC 8259,
/// section 6).
const MOST_BYTES: u64 = (1 << 53) - 1;

/// Maximum of all constants of a machine; their minimum is its reciprocal.
const GREATEST: f64 = 1e30;

/// The machine that a profile is valid for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    /// Architecture, system and processor.
    pub name: String,
    /// Threads that the process may use.
    pub threads: usize,
    /// The best instruction set in use.
    pub instruction_set: String,
    /// The logical processors that the process may run on; `None` where the system does not say.
    pub cpus: Option<Cpus>,
}

object!(Machine { name, threads, instruction_set, cpus });

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} threads, {}, ", printable(&self.name), self.threads, printable(&self.instruction_set))?;
        match &self.cpus {
            Some(cpus) => cpus.fmt(f),
            None => f.write_str("affinity and cores unknown"),
        }
    }
}

/// The logical processors that a process may run on. Times hold for these: two threads of one core share its units, and cores
/// may differ from one another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cpus {
    /// Logical processors that are online.
    pub online: usize,
    /// The processors that the process may run on, if it is pinned to less than all: a list such as `0-3,8`.
    pub pinned: Option<String>,
    /// The number that it may run on.
    pub logical: usize,
    /// The physical cores that these belong to; `None` where the system does not say. It is less than
    /// [`Cpus::logical`] with hyper-threading (SMT).
    pub cores: Option<usize>,
}

list!(Cpus { online, pinned, logical, cores });

impl std::fmt::Display for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { online, pinned, logical, cores } = self;
        match cores {
            Some(cores) if cores < logical => write!(f, "{logical} logical processors of {cores} cores (SMT)")?,
            Some(_) => write!(f, "{logical} cores without SMT")?,
            None => write!(f, "{logical} logical processors of an unknown number of cores")?,
        }
        match pinned {
            Some(list) => write!(f, ", pinned to {list} of {online} online"),
            None => f.write_str(", not pinned"),
        }
    }
}

/// The measured times of a class.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The operation.
    pub op: String,
    /// The kind of shape.
    pub shape: String,
    /// The precision of a product; that of the contract for other operations.
    pub precision: Precision,
    /// Amounts of work, ascending: the larger of flops and bytes.
    pub work: Vec<f64>,
    /// Seconds for each amount of work, on each place in the order of the places.
    pub seconds: Vec<Vec<f64>>,
}

object!(Calibrated { op, shape, precision = Precision::Contract, work, seconds });

impl Calibrated {
    /// The key of the class. It has the position of the precision, because precisions have no order.
    fn key(&self) -> (&str, &str, Option<usize>) {
        (&self.op, &self.shape, Precision::ALL.iter().position(|&precision| precision == self.precision))
    }
}

/// The costs of graphs on the host in addition to their operations. The curves of classes are measured by operations that are repeated:
/// their operands are in the caches of the cores that read them, and their result is in memory that was touched before.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphsOnHost {
    /// Seconds of any execution.
    pub graph: f64,
    /// Seconds of reading what the step before wrote, in the caches of other cores.
    pub handover: Transfer,
    /// The same if one of the two steps ran on several threads: each of them reads what all others wrote, or one thread reads what they wrote.
    /// `None` if it was not measured: then [`GraphsOnHost::handover`] counts.
    pub spread: Option<Transfer>,
    /// Seconds of reading an input of a graph from memory, if the data of the graph exceed the caches: measured with
    /// [`GraphsOnHost::BEYOND_CACHES`] bytes.
    pub cold: Transfer,
    /// Seconds of copying a result into new memory.
    pub read: Transfer,
}

object!(GraphsOnHost { graph, handover, spread, cold, read });

impl GraphsOnHost {
    /// Bytes of all tensors of the graph that [`GraphsOnHost::cold`] is measured with.
    pub const BEYOND_CACHES: u64 = 64 << 20;
}

/// Placements, their constants, and the measurements on them.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    version: u32,
    machine: Machine,
    places: Vec<Place>,
    /// The link to each memory by its number; `None` for the host.
    links: Vec<Option<Link>>,
    /// The costs of graphs on the host in addition to their operations.
    graphs: Option<GraphsOnHost>,
    classes: Vec<Calibrated>,
    /// Observations after the calibration, if the program keeps them.
    observed: Vec<Observed>,
}

object!(Profile { version, machine, places, links, graphs, classes, observed = Vec::new() });

/// The reason why a profile cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileProblem {
    /// The profile does not exist: the machine was not calibrated.
    #[error("no profile at {}", .0.display())]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("the profile at {} cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// The profile has invalid content.
    #[error("the profile is corrupt: {0}")]
    Corrupt(String),
    /// The profile was measured on another machine.
    #[error("the profile belongs to another machine ({found}), this is {expected}")]
    Foreign {
        /// This machine.
        expected: Box<Machine>,
        /// The machine that the profile names.
        found: Box<Machine>,
    },
    /// The profile was measured with fewer placements.
    #[error("the profile has no times of {place}")]
    Incomplete {
        /// A placement of this machine that it lacks.
        place: String,
    },
    /// The profile has the format of another version.
    #[error("the profile has version {found}, this is version {PROFILE_VERSION}")]
    WrongVersion {
        /// The version it names.
        found: u32,
    },
}

/// The error for keeping a profile in something other than a file.
fn no_file() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is a directory, a FIFO or a device, not a file")
}

/// Reads JSON as a value of any type.
pub(crate) fn parsed(text: &str) -> Result<Value, ProfileProblem> {
    serde_json::from_str(text).map_err(|error| ProfileProblem::Corrupt(error.to_string()))
}

/// The problem of a value that holds this version of a profile: the version, or else the error of reading it.
pub(crate) fn corrupt(version: Value, error: &str) -> ProfileProblem {
    match u32::from_value(version) {
        Ok(found) if found != PROFILE_VERSION => ProfileProblem::WrongVersion { found },
        _ => ProfileProblem::Corrupt(printable(error)),
    }
}

/// A text without control characters, which would direct the terminal that a message is printed on: names in files may have some.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Rejects a text that is too large.
fn check_size(bytes: usize) -> Result<(), ProfileProblem> {
    if bytes > MAX_BYTES {
        return Err(ProfileProblem::Corrupt(format!("larger than {MAX_BYTES} bytes")));
    }
    Ok(())
}

impl Profile {
    /// A profile of these places without a measurement.
    ///
    /// # Errors
    /// [`ProfileProblem::Corrupt`] for no placements or more than [`MAX_PLACES`], for two with the same name, for a bandwidth or a peak
    /// that is not from 1e-30 to 1e30, and for seconds that are not from 0 to 1e30.
    pub fn new(machine: Machine, places: Vec<Place>) -> Result<Self, ProfileProblem> {
        Self {
            version: PROFILE_VERSION,
            machine,
            places,
            links: Vec::new(),
            graphs: None,
            classes: Vec::new(),
            observed: Vec::new(),
        }
        .checked()
    }

    /// Adds the link to the memory of a device.
    ///
    /// # Errors
    /// [`ProfileProblem::Corrupt`] when the memory is the host or has too high a number, or a constant makes no sense.
    pub fn with_link(mut self, memory: Memory, link: Link) -> Result<Self, ProfileProblem> {
        let index = memory.index();
        if index >= MAX_MEMORIES {
            return Err(ProfileProblem::Corrupt(format!("memory {index} is beyond the {MAX_MEMORIES} possible")));
        }
        if self.links.len() <= index {
            self.links.resize(index + 1, None);
        }
        self.links[index] = Some(link);
        self.checked()
    }

    /// Sets the costs of graphs on the CPU in addition to their operations, and the seconds of each step, see [`Place::queued`].
    ///
    /// # Errors
    /// [`ProfileProblem::Corrupt`] when a constant makes no sense.
    pub fn with_graphs_on_host(mut self, queued: f64, graphs: GraphsOnHost) -> Result<Self, ProfileProblem> {
        for place in self.places.iter_mut().filter(|place| place.memory == Memory::HOST) {
            place.queued = queued;
        }
        self.graphs = Some(graphs);
        self.checked()
    }

    /// Adds or replaces the measurements of classes.
    ///
    /// # Errors
    /// [`ProfileProblem::Corrupt`] when amounts of work do not ascend, amounts or times are not from 1e-30 to 1e30, or the
    /// number of times is not that of the places.
    pub fn with_classes(mut self, classes: Vec<Calibrated>) -> Result<Self, ProfileProblem> {
        self.classes.retain(|old| !classes.iter().any(|new| new.key() == old.key()));
        self.classes.extend(classes);
        self.checked()
    }

    /// Replaces the observations after the calibration.
    ///
    /// # Errors
    /// [`ProfileProblem::Corrupt`] when an entry names a place that does not exist, occurs twice or has a value that no
    /// observation gives.
    pub fn with_observed(mut self, observed: Vec<Observed>) -> Result<Self, ProfileProblem> {
        self.observed = observed;
        self.observed.sort_by(|a, b| a.key().cmp(&b.key()));
        self.checked()
    }

    /// Keeps the places that `keep` accepts. The memories of their devices are numbered again, in the order of the places.
    ///
    /// # Errors
    /// [`ProfileProblem::Corrupt`] when no placement is left.
    pub fn restricted(mut self, keep: impl Fn(&Place) -> bool) -> Result<Self, ProfileProblem> {
        let kept: Vec<bool> = self.places.iter().map(keep).collect();
        fn filter<T>(values: &mut Vec<T>, kept: &[bool]) {
            let mut keep = kept.iter();
            values.retain(|_| keep.next().copied().unwrap_or(false));
        }
        filter(&mut self.places, &kept);
        self.classes.iter_mut().flat_map(|class| &mut class.seconds).for_each(|seconds| filter(seconds, &kept));
        let mut memories = vec![Memory::HOST];
        for place in &mut self.places {
            let known = memories.iter().position(|&memory| memory == place.memory).unwrap_or(memories.len());
            if known == memories.len() {
                memories.push(place.memory);
            }
            place.memory = Memory::new(u8::try_from(known).unwrap_or(u8::MAX));
        }
        let links = memories.iter().map(|memory| self.links.get(memory.index()).cloned().flatten());
        self.links = links.collect();
        let used = self.links.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.links.truncate(used);
        let places = &self.places;
        self.observed.retain(|entry| places.iter().any(|place| place.name == entry.place));
        self.checked()
    }

    /// Adds a place that was not measured, on more threads than the place called `fewer` and less than that called `more`, which
    /// were: between them, times follow a power of the number of threads. The field comes before `more`.
    ///
    /// # Errors
    /// [`ProfileProblem::Incomplete`] when the profile lacks these placements, or their numbers of threads are not below and above;
    /// [`ProfileProblem::Corrupt`] when the profile has as many placements as possible.
    pub fn with_place_between(mut self, place: Place, fewer: &str, more: &str) -> Result<Self, ProfileProblem> {
        let position = |name: &str| self.places.iter().position(|place| place.name == name);
        let between = position(fewer).zip(position(more)).filter(|&(fewer, more)| {
            fewer < more
                && (self.places[fewer].threads.saturating_add(1)..self.places[more].threads).contains(&place.threads)
        });
        let Some((fewer, more)) = between else { return Err(ProfileProblem::Incomplete { place: place.name }) };
        let ln = |threads: usize| (threads as f64).ln();
        let from = ln(self.places[fewer].threads);
        let weight = (ln(place.threads) - from) / (ln(self.places[more].threads) - from);
        let power = |a: f64, b: f64| a * (b / a).powf(weight);
        let (a, b) = (&self.places[fewer], &self.places[more]);
        let roofline = Roofline {
            overhead: a.roofline.overhead + weight * (b.roofline.overhead - a.roofline.overhead),
            levels: b
                .roofline
                .levels
                .iter()
                .map(|&(bytes, bandwidth)| (bytes, power(a.roofline.bandwidth(bytes), bandwidth)))
                .collect(),
            peak: power(a.roofline.peak, b.roofline.peak),
        };
        let launch = a.launch + weight * (b.launch - a.launch);
        let queued = b.queued;
        self.places.insert(more, Place { roofline, launch, queued, ..place });
        for seconds in self.classes.iter_mut().flat_map(|class| &mut class.seconds) {
            if let (Some(&a), Some(&b)) = (seconds.get(fewer), seconds.get(more)) {
                seconds.insert(more, power(a, b));
            }
        }
        self.checked()
    }

    /// The machine that it was measured on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The places.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The measurements, ordered by operation and kind of shape.
    pub fn classes(&self) -> &[Calibrated] {
        &self.classes
    }

    /// The observations after the calibration, if they were kept, ordered by names and octave.
    pub fn observed(&self) -> &[Observed] {
        &self.observed
    }

    pub(crate) fn graphs_on_host(&self) -> Option<&GraphsOnHost> {
        self.graphs.as_ref()
    }

    pub(crate) fn links(&self) -> &[Option<Link>] {
        &self.links
    }

    /// The profile as JSON.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    /// Reads a profile of this machine.
    ///
    /// # Errors
    /// [`ProfileProblem::WrongVersion`], [`ProfileProblem::Foreign`], and [`ProfileProblem::Corrupt`] for everything that
    /// kiln would not have written.
    pub fn from_json(text: &str, machine: &Machine) -> Result<Self, ProfileProblem> {
        check_size(text.len())?;
        let value = parsed(text)?;
        let version = value["version"].clone();
        let profile = Self::from_value(value).map_err(|error| corrupt(version, &error))?;
        profile.of_this_version(Some(machine))
    }

    /// Checks a profile that was read; if no machine is given, the profile may be of any.
    pub(crate) fn of_this_version(self, machine: Option<&Machine>) -> Result<Self, ProfileProblem> {
        if self.version != PROFILE_VERSION {
            return Err(ProfileProblem::WrongVersion { found: self.version });
        }
        match machine {
            Some(machine) if *machine != self.machine => {
                Err(ProfileProblem::Foreign { expected: machine.clone().into(), found: self.machine.into() })
            }
            _ => self.with_printable_names()?.checked(),
        }
    }

    /// Rejects names with control characters, which a terminal would execute: explanations quote them.
    fn with_printable_names(self) -> Result<Self, ProfileProblem> {
        match self.places.iter().find(|place| place.name.contains(char::is_control)) {
            Some(Place { name, .. }) => {
                let name = printable(name);
                Err(ProfileProblem::Corrupt(format!("the name of a place, {name}, has control characters")))
            }
            None => Ok(self),
        }
    }

    /// Reads a profile of this machine from a file.
    ///
    /// # Errors
    /// The errors of [`Profile::from_json`]; [`ProfileProblem::Missing`] and [`ProfileProblem::Unreadable`].
    pub fn load(path: &Path, machine: &Machine) -> Result<Self, ProfileProblem> {
        use std::io::Read;
        let unreadable = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::NotFound => ProfileProblem::Missing(path.to_owned()),
            _ => ProfileProblem::Unreadable { path: path.to_owned(), reason: e.to_string() },
        };
        let mut bytes = Vec::new();
        // Opening a FIFO would wait for a writer, and a device may never end.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(unreadable(no_file()));
        }
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        check_size(bytes.len())?;
        let text = std::str::from_utf8(&bytes).map_err(|e| ProfileProblem::Corrupt(e.to_string()))?;
        Self::from_json(text, machine)
    }

    /// Writes the profile to a file, with its directory, in one piece; see [`kiln_files::replace`].
    ///
    /// # Errors
    /// The errors of [`kiln_files::replace`] and of making the directory: [`InvalidInput`](std::io::ErrorKind::InvalidInput) where a
    /// directory, a FIFO or a device has this name. [`Unsupported`](std::io::ErrorKind::Unsupported) in a browser, which has no files.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        use std::io::Write;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        kiln_files::replace(path, |file| file.write_all(self.to_json().as_bytes()))
    }

    /// Fails: a browser has no files.
    ///
    /// # Errors
    /// [`Unsupported`](std::io::ErrorKind::Unsupported).
    #[cfg(target_arch = "wasm32")]
    pub fn save(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn checked(mut self) -> Result<Self, ProfileProblem> {
        self.classes.sort_by(|a, b| a.key().cmp(&b.key()));
        let levels = self.places.iter_mut().flat_map(|place| &mut place.roofline.levels);
        levels.for_each(|(capacity, _)| *capacity = (*capacity).min(MOST_BYTES));
        self.check().map_err(ProfileProblem::Corrupt)?;
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        let places = self.places.len();
        if !(1..=MAX_PLACES).contains(&places) {
            return Err(format!("{places} places, 1 to {MAX_PLACES} are possible"));
        }
        // Positive constants keep the times of any work finite, so that only excluded placements have infinite times.
        let positive = |what: &str, value: f64| {
            let sound = (1.0 / GREATEST..=GREATEST).contains(&value);
            let least = 1.0 / GREATEST;
            sound
                .then_some(())
                .ok_or_else(|| format!("{what} is {value:e}, expected a number from {least:e} to {GREATEST:e}"))
        };
        let not_negative = |what: &str, value: f64| {
            let sound = (0.0..=GREATEST).contains(&value);
            sound.then_some(()).ok_or_else(|| format!("{what} is {value:e}, expected seconds from 0 to {GREATEST:e}"))
        };
        for place in &self.places {
            not_negative("launch", place.launch)?;
            not_negative("queued", place.queued)?;
            not_negative("compile", place.compile)?;
            not_negative("overhead", place.roofline.overhead)?;
            positive("peak", place.roofline.peak)?;
            if place.roofline.levels.is_empty() {
                return Err(format!("{place} has no bandwidth"));
            }
            place.roofline.levels.iter().try_for_each(|&(_, bandwidth)| positive("bandwidth", bandwidth))?;
            if self.places.iter().filter(|other| other.name == place.name).count() > 1 {
                return Err(format!("{place} is listed twice"));
            }
            if place.memory.index() >= MAX_MEMORIES {
                return Err(format!("{place} is in memory {}, beyond {MAX_MEMORIES}", place.memory.index()));
            }
        }
        if self.links.len() > MAX_MEMORIES || matches!(self.links.first(), Some(Some(_))) {
            return Err("links beyond the possible memories, or to the host itself".to_owned());
        }
        for link in self.links.iter().flatten() {
            let time = |seconds| not_negative("a transfer", seconds);
            link.transfers().try_for_each(|transfer| transfer.sound(time))?;
        }
        if let Some(graphs) = &self.graphs {
            not_negative("a graph", graphs.graph)?;
            for transfer in [&graphs.handover, &graphs.cold, &graphs.read].into_iter().chain(&graphs.spread) {
                transfer.sound(|seconds| not_negative("a graph's data", seconds))?;
            }
        }
        for class in &self.classes {
            let name = format!("{} {}", class.op, class.shape);
            if class.work.is_empty() || class.work.len() != class.seconds.len() {
                return Err(format!("{name}: {} amounts, {} times", class.work.len(), class.seconds.len()));
            }
            class.work.iter().try_for_each(|&work| positive(&name, work))?;
            if class.work.windows(2).any(|w| w[0] >= w[1]) {
                return Err(format!("{name}: amounts of work do not ascend"));
            }
            for seconds in &class.seconds {
                if seconds.len() != places {
                    return Err(format!("{name}: times of {} places where there are {places}", seconds.len()));
                }
                seconds.iter().try_for_each(|&s| positive(&name, s))?;
            }
        }
        if self.classes.windows(2).any(|w| w[0].key() == w[1].key()) {
            return Err("a class is listed twice".to_owned());
        }
        for entry in &self.observed {
            entry.check()?;
            if !self.places.iter().any(|place| place.name == entry.place) {
                return Err(format!("observations of {:?}, which the profile does not list", entry.place));
            }
        }
        if self.observed.windows(2).any(|pair| pair[0].key() >= pair[1].key()) {
            return Err("observations are listed twice, or not in the order of their names".to_owned());
        }
        Ok(())
    }
}
