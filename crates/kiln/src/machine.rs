//! The identity of this machine, and its CPU placements.

use std::collections::HashSet;
use std::sync::OnceLock;

use kiln_route::{Backend, Cpus, Machine, Place};
use kiln_simd::{Isa, Simd};

use crate::Result;

/// A CPU placement and its handle.
pub(crate) struct CpuPlace {
    pub(crate) place: Place,
    pub(crate) simd: Simd,
}

/// The machine that the profile is valid for.
pub(crate) fn identify(isa: Isa, threads: usize) -> Machine {
    let model = processor_model().unwrap_or_else(|| "unknown processor".to_owned());
    let name = format!("{} {} {model}", std::env::consts::ARCH, std::env::consts::OS);
    Machine { name, threads, instruction_set: isa.name().to_owned(), cpus: cpus().clone() }
}

/// The logical processors that this process may use, if the system reports them. Read once, like their number
/// ([`Simd::threads`]).
fn cpus() -> &'static Option<Cpus> {
    static CPUS: OnceLock<Option<Cpus>> = OnceLock::new();
    CPUS.get_or_init(|| {
        if !cfg!(target_os = "linux") {
            return None;
        }
        const FOLDER: &str = "/sys/devices/system/cpu";
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let online = std::fs::read_to_string(format!("{FOLDER}/online")).ok();
        cpus_of(&status, online.as_deref(), |cpu| {
            std::fs::read_to_string(format!("{FOLDER}/cpu{cpu}/topology/thread_siblings_list")).ok()
        })
    })
}

/// [`cpus`] from Linux's files: the status of the process, the online processors, and the siblings on the core of each.
fn cpus_of(status: &str, online: Option<&str>, siblings: impl Fn(usize) -> Option<String>) -> Option<Cpus> {
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut allowed = numbers(allowed)?;
    // The list may name processors that are not online.
    let online = match online {
        Some(online) => numbers(online)?,
        None => allowed.clone(),
    };
    allowed.retain(|cpu| online.contains(cpu));
    if allowed.is_empty() {
        return None;
    }
    let cores: Option<HashSet<String>> =
        allowed.iter().map(|&cpu| siblings(cpu).map(|list| list.trim().to_owned())).collect();
    let pinned = (allowed.len() < online.len()).then(|| list(&allowed));
    let (logical, cores) = (allowed.len(), cores.map(|cores| cores.len()));
    Some(Cpus { online: online.len(), pinned, logical, cores })
}

/// The numbers of a list such as `0-3,8`, ascending.
fn numbers(list: &str) -> Option<Vec<usize>> {
    /// The maximum number of processors that Linux supports.
    const MOST: usize = 1 << 13;
    let mut all = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= MOST || all.last().is_some_and(|&before| before >= first) {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Formats ascending numbers as a list such as `0-3,8`.
fn list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(usize::to_string).collect(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// The model name of the processor, if the system reports it.
fn processor_model() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    use std::io::Read;
    // The first processor is described in the first kilobytes; the file repeats the description for each thread.
    let mut start = [0; 4096];
    let read = std::fs::File::open("/proc/cpuinfo").and_then(|mut file| file.read(&mut start)).ok()?;
    let text = String::from_utf8_lossy(&start[..read]);
    let line = text.lines().find(|line| line.starts_with("model name") || line.starts_with("CPU part"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The instruction sets of an engine without limits whose best one is `best`: all that the machine supports, or only
/// `best` if a better one was excluded.
pub(crate) fn instruction_sets(best: Isa) -> Vec<Isa> {
    if best == Isa::best() { Isa::available().collect() } else { vec![best] }
}

/// The name of a CPU placement.
pub(crate) fn name(isa: Isa, threads: usize) -> String {
    format!("{isa} x{threads}")
}

/// Every instruction set with one thread, and the best of them with two, four, ... and all threads, and with a thread for each
/// physical core.
pub(crate) fn places(isas: &[Isa], threads: usize) -> Result<Vec<CpuPlace>> {
    places_with(isas, threads, cpus().as_ref().and_then(|cpus| cpus.cores))
}

/// [`places`] on `cores` cores.
fn places_with(isas: &[Isa], threads: usize, cores: Option<usize>) -> Result<Vec<CpuPlace>> {
    let mut places = Vec::new();
    let mut add = |isa: Isa, threads: usize| -> Result<()> {
        let backend = if isa == Isa::Scalar { Backend::Scalar } else { Backend::Simd };
        let place = Place::cpu(name(isa, threads), backend, isa.lanes(), threads);
        places.push(CpuPlace { place, simd: Simd::with_isa(isa)?.with_threads(threads) });
        Ok(())
    };
    for &isa in isas {
        add(isa, 1)?;
    }
    if let Some(&best) = isas.last() {
        let mut last = 1;
        while last < threads {
            let power = (last + 1).next_power_of_two();
            let next = cores.filter(|&cores| cores > last).map_or(power, |cores| cores.min(power));
            last = next.min(threads);
            add(best, last)?;
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// A machine of this many cores with two threads each; the second thread's number is the first's plus the number of
    /// cores.
    fn smt(allowed: &str, cores: usize) -> Option<Cpus> {
        let status = format!("Name:\tkiln\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed:\t1\n");
        let online = format!("0-{}\n", 2 * cores - 1);
        cpus_of(&status, Some(&online), |cpu| Some(format!("{},{}\n", cpu % cores, cpu % cores + cores)))
    }

    #[test]
    fn affinity_and_cores_are_read_from_what_linux_says() {
        let whole = Cpus { online: 8, pinned: None, logical: 8, cores: Some(4) };
        assert_eq!(smt("0-7", 4), Some(whole.clone()));
        assert_eq!(smt("0-255", 4), Some(whole), "it may name processors that the machine lacks");
        let two = |list: &str, cores| Cpus { online: 8, pinned: Some(list.into()), logical: 2, cores: Some(cores) };
        assert_eq!(smt("0-1", 4), Some(two("0-1", 2)));
        assert_eq!(smt("0,4", 4), Some(two("0,4", 1)), "two threads of one core");
        let some = Cpus { online: 16, pinned: Some("1-3,7,9-10".into()), logical: 6, cores: Some(4) };
        assert_eq!(smt("1-3,7,9-10", 8), Some(some));
        for bad in ["", "x", "3-1", "0-", "-1", "1,0", "0,0", "0-99999999999", "0-9999999", "9-12"] {
            assert_eq!(smt(bad, 4), None, "{bad}");
        }
        let status = "Cpus_allowed_list:\t0-1\n";
        let unknown = Cpus { online: 2, pinned: None, logical: 2, cores: None };
        assert_eq!(cpus_of(status, None, |_| None), Some(unknown));
        assert_eq!(cpus_of("Name:\tkiln\n", Some("0-1"), |_| None), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_no_more_cores_than_logical_processors() {
        let Cpus { online, logical, cores, .. } = *cpus().as_ref().expect("Linux lists the processors of a process");
        assert!((1..=online).contains(&logical), "{logical} of {online}");
        assert!(cores.is_none_or(|cores| (1..=logical).contains(&cores)), "{cores:?}");
    }

    #[test]
    fn numbers_of_threads_are_powers_of_two_all_and_that_of_the_cores() {
        let counts = |threads: usize, cores: Option<usize>| {
            let places = places_with(&[Isa::best()], threads, cores).unwrap();
            places.iter().map(|cpu| cpu.place.threads).collect::<Vec<_>>()
        };
        if Simd::new().unwrap().with_threads(2).threads() < 2 {
            return;
        }
        assert_eq!(counts(12, Some(6)), [1, 2, 4, 6, 8, 12]);
        assert_eq!(counts(12, Some(12)), [1, 2, 4, 8, 12]);
        assert_eq!(counts(16, Some(8)), [1, 2, 4, 8, 16]);
        assert_eq!(counts(6, Some(3)), [1, 2, 3, 4, 6]);
        assert_eq!(counts(5, Some(6)), [1, 2, 4, 5], "an engine that is limited to fewer threads than cores");
        assert_eq!(counts(2, Some(1)), [1, 2]);
        assert_eq!(counts(1, Some(1)), [1]);
        assert_eq!(counts(3, None), [1, 2, 3]);
    }
}
