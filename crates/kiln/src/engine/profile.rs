//! The profile of an engine: where its constants come from, and where they are stored.

use std::path::{Path, PathBuf};

use kiln_ir::{Error, Precision, Result};
use kiln_route::{Backend, Machine, Memory, Place, Profile, ProfileProblem};

use crate::gpus::{self, Gpu};
use crate::machine;

/// The source of an engine's profile.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileStatus {
    /// Measured on this machine earlier, read from this file.
    Loaded(PathBuf),
    /// Measured on this machine earlier, supplied by the program.
    Kept,
    /// Measured by a calibration of this engine.
    Calibrated,
    /// Built in: the engine was made without a profile, or the program supplied the profile.
    BuiltIn,
    /// Built in: the profile could not be used. The next calibration replaces it.
    Ignored(ProfileProblem),
}

impl std::fmt::Display for ProfileStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loaded(path) => write!(f, "measured on this machine earlier, {}", path.display()),
            Self::Kept => f.write_str("measured on this machine earlier, kept by the program"),
            Self::Calibrated => f.write_str("measured by this program"),
            Self::BuiltIn => f.write_str("built-in constants, or the profile that the program supplied"),
            Self::Ignored(problem) => write!(f, "built-in constants until this machine is calibrated: {problem}"),
        }
    }
}

/// The location of an engine's profile.
#[derive(Debug, Clone)]
pub(super) enum ProfileSource {
    UserCache,
    File(PathBuf),
    Given(Box<Profile>),
    Text(String),
    None,
}

impl ProfileSource {
    /// The folder of the profile and of other files about this machine.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::UserCache => cache_folder(),
            Self::File(path) => path.parent().map(Path::to_owned),
            Self::Given(_) | Self::Text(_) | Self::None => None,
        }
    }
}

/// Returns the profile, or why the built-in constants are used; and the file to write a new profile to. In the user's cache directory
/// each precision of products has its own file; until there is one, the times with the precision of the contract decide.
pub(super) fn load(
    source: ProfileSource,
    machine: &Machine,
    precision: Precision,
    limited: bool,
) -> (Option<PathBuf>, Result<(Profile, ProfileStatus), ProfileStatus>) {
    let mut contract = None;
    let (path, written) = match source {
        ProfileSource::None => return (None, Err(ProfileStatus::BuiltIn)),
        ProfileSource::Given(profile) => return (None, Ok((*profile, ProfileStatus::BuiltIn))),
        ProfileSource::Text(text) => {
            let profile = Profile::from_json(&text, machine).map(|profile| (profile, ProfileStatus::Kept));
            return (None, profile.map_err(ProfileStatus::Ignored));
        }
        ProfileSource::File(path) => (path, true),
        ProfileSource::UserCache => match user_cache(machine, precision) {
            Some(path) => {
                contract = user_cache(machine, Precision::Contract);
                (path, !limited)
            }
            None => return (None, Err(ProfileStatus::BuiltIn)),
        },
    };
    let read = contract.filter(|_| !path.exists()).unwrap_or_else(|| path.clone());
    let loaded = match Profile::load(&read, machine) {
        Ok(profile) => Ok((profile, ProfileStatus::Loaded(read))),
        Err(problem) => Err(ProfileStatus::Ignored(problem)),
    };
    (written.then_some(path), loaded)
}

/// The placements that an engine requires.
pub(super) struct Wanted<'a> {
    pub(super) cpu: &'a [machine::CpuPlace],
    /// GPUs that were requested.
    pub(super) gpus: &'a [Gpu],
    /// The GPU backends whose devices are added if the profile knows them.
    pub(super) other_gpus: &'a [Backend],
}

impl Wanted<'_> {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.cpu.iter().map(|c| c.place.name.as_str()).chain(self.gpus.iter().map(Gpu::name))
    }
}

/// Restricts a profile to these placements. A profile from a file must know all of them: an engine does not run without
/// half of its machine because another, limited engine measured less.
pub(super) fn fitting(profile: Profile, wanted: &Wanted<'_>, status: &ProfileStatus) -> Result<Profile, ProfileStatus> {
    let profile = with_fewer_threads(profile, wanted.cpu)?;
    let known = |name: &str| profile.places().iter().any(|place| place.name == name);
    let all = matches!(status, ProfileStatus::Loaded(_) | ProfileStatus::Kept) || !wanted.gpus.is_empty();
    let missing = wanted.names().find(|name| !known(name));
    match missing {
        Some(place) if all || !wanted.cpu.iter().any(|c| known(&c.place.name)) => {
            return Err(ProfileStatus::Ignored(ProfileProblem::Incomplete { place: place.to_owned() }));
        }
        _ => {}
    }
    let other = |place: &Place| wanted.other_gpus.contains(&place.backend);
    let kept = profile.restricted(|place| other(place) || wanted.names().any(|name| name == place.name));
    let kept = kept.map_err(ProfileStatus::Ignored)?;
    let is_other = |c: &machine::CpuPlace| {
        let of = |place: &Place| (place.backend, place.threads);
        kept.places().iter().any(|place| place.name == c.place.name && of(place) != of(&c.place))
    };
    if wanted.cpu.iter().any(is_other) {
        let reason = "a CPU placement has another backend or other threads than its name says";
        return Err(ProfileStatus::Ignored(ProfileProblem::Corrupt(reason.into())));
    }
    let gpus = kept.places().iter().skip_while(|place| !place.backend.is_gpu());
    let order = gpus.clone().map(|place| place.name.as_str());
    if gpus.clone().any(|place| !place.backend.is_gpu())
        || !order.clone().take(wanted.gpus.len()).eq(wanted.gpus.iter().map(Gpu::name))
    {
        let reason = "expected the CPU placements first, then the GPUs in the order of their requests";
        return Err(ProfileStatus::Ignored(ProfileProblem::Corrupt(reason.into())));
    }
    let memories = kept.places().iter().filter(|place| place.memory != Memory::HOST).map(|place| place.memory);
    if !memories.eq((0..gpus.count()).map(gpus::memory)) {
        let reason = "expected a separate memory for each GPU, and host memory for CPU placements";
        return Err(ProfileStatus::Ignored(ProfileProblem::Corrupt(reason.into())));
    }
    Ok(kept)
}

/// Adds CPU placements whose number of threads is between two that the profile knows for the same instruction set: an
/// engine may be limited to any number, and a calibration measures powers of two.
fn with_fewer_threads(mut profile: Profile, cpu: &[machine::CpuPlace]) -> Result<Profile, ProfileStatus> {
    for machine::CpuPlace { place, simd } in cpu {
        let among =
            |threads: usize| profile.places().iter().any(|known| known.name == machine::name(simd.isa(), threads));
        if among(place.threads) {
            continue;
        }
        let fewer = (1..place.threads).rev().find(|&threads| among(threads));
        let more = profile.places().iter().map(|known| known.threads).filter(|&n| n > place.threads && among(n)).min();
        if let Some((fewer, more)) = fewer.zip(more) {
            let [fewer, more] = [fewer, more].map(|threads| machine::name(simd.isa(), threads));
            profile = profile.with_place_between(place.clone(), &fewer, &more).map_err(ProfileStatus::Ignored)?;
        }
    }
    Ok(profile)
}

/// The file in the user's cache directory. Its name distinguishes machines that share a home directory.
#[cfg(not(target_arch = "wasm32"))]
fn user_cache(machine: &Machine, precision: Precision) -> Option<PathBuf> {
    // FNV-1a: stable between compiler versions, unlike the hasher of the standard library.
    let hash = machine
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let precision = match precision {
        Precision::Contract => String::new(),
        lower => format!("-{lower}"),
    };
    Some(cache_folder()?.join(format!("profile-{}-{hash:016x}{precision}.json", machine.instruction_set)))
}

/// kiln's folder in the user's cache directory.
#[cfg(not(target_arch = "wasm32"))]
fn cache_folder() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "kiln").map(|directories| directories.cache_dir().to_owned())
}

/// A page has no files; its profile is passed to the builder.
#[cfg(target_arch = "wasm32")]
fn user_cache(_: &Machine, _: Precision) -> Option<PathBuf> {
    cache_folder()
}

#[cfg(target_arch = "wasm32")]
fn cache_folder() -> Option<PathBuf> {
    None
}

pub(super) fn assumed(machine: &Machine, cpu: &[machine::CpuPlace], gpus: &[Gpu]) -> Result<Profile> {
    let mut places: Vec<Place> = cpu.iter().map(|c| c.place.clone()).collect();
    let mut links = Vec::new();
    for (position, gpu) in gpus.iter().enumerate() {
        let (place, link) = gpus::assumed(gpu, position);
        links.push((place.memory, link));
        places.push(place);
    }
    let profile = Profile::new(machine.clone(), places).and_then(|profile| gpus::linked(profile, links));
    profile.map_err(|problem| Error::Unavailable { what: "the built-in profile".into(), reason: problem.to_string() })
}

#[cfg(test)]
mod tests {
    use kiln_simd::Isa;

    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    #[cfg(not(target_arch = "wasm32"))] // a page has no files
    fn each_precision_has_a_file_of_its_own() {
        let machine = machine::identify(Isa::best(), 2);
        let names = Precision::ALL.map(|precision| user_cache(&machine, precision));
        // A system without a home directory has no cache.
        let Some(names) = names.into_iter().collect::<Option<Vec<PathBuf>>>() else { return };
        let names: Vec<&str> = names.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        let machine = names[0].strip_suffix(".json").unwrap();
        for (name, precision) in names[1..].iter().zip(&Precision::ALL[1..]) {
            assert_eq!(*name, format!("{machine}-{precision}.json"));
        }
    }

    #[test]
    fn a_number_of_threads_that_was_not_measured_lies_between_those_that_were() {
        let of_threads = |threads: usize| machine::places(&Isa::available().collect::<Vec<_>>(), threads).unwrap();
        let names = |places: Vec<Place>| places.into_iter().map(|place| place.name).collect::<Vec<_>>();
        let whole: Vec<Place> = of_threads(4).into_iter().map(|cpu| cpu.place).collect();
        let profile = Profile::new(machine::identify(Isa::best(), 4), whole.clone()).unwrap();
        let limited = with_fewer_threads(profile.clone(), &of_threads(3)).unwrap();
        let mut expected = names(whole);
        expected.insert(expected.len() - 1, machine::name(Isa::best(), 3));
        assert_eq!(names(limited.places().to_vec()), expected);
        // Measured placements are unchanged, and nothing is extrapolated beyond them.
        assert_eq!(with_fewer_threads(profile.clone(), &of_threads(2)).unwrap(), profile);
        assert_eq!(with_fewer_threads(profile.clone(), &of_threads(8)).unwrap(), profile);
    }
}
