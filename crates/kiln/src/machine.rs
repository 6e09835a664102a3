//! What this machine is, and the places it offers.

use kiln_route::{Backend, Machine, Place};
use kiln_simd::{Isa, Simd};

use crate::Result;

/// A place and what runs there.
pub(crate) struct CpuPlace {
    pub(crate) place: Place,
    pub(crate) simd: Simd,
}

/// What the profile of this machine is valid for.
pub(crate) fn identify(isa: Isa, threads: usize) -> Machine {
    let model = processor_model().unwrap_or_else(|| "unknown processor".to_owned());
    let name = format!("{} {} {model}", std::env::consts::ARCH, std::env::consts::OS);
    Machine { name, threads, instruction_set: isa.name().to_owned() }
}

/// The name that the processor gives itself, where the system tells.
fn processor_model() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    use std::io::Read;
    // The first processor is described in the first kilobytes; the file has as many of them as the machine has threads.
    let mut start = [0; 4096];
    let read = std::fs::File::open("/proc/cpuinfo").and_then(|mut file| file.read(&mut start)).ok()?;
    let text = String::from_utf8_lossy(&start[..read]);
    let line = text.lines().find(|line| line.starts_with("model name") || line.starts_with("CPU part"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The instruction sets of engines without limits whose best one this is: all that the machine has, or only this one
/// where a better one was ruled out.
pub(crate) fn instruction_sets(best: Isa) -> Vec<Isa> {
    if best == Isa::best() { Isa::available().collect() } else { vec![best] }
}

/// What a place of the CPU is called.
pub(crate) fn name(isa: Isa, threads: usize) -> String {
    format!("{isa} x{threads}")
}

/// Every instruction set with one thread, and the best of them with two, four, ... and all threads.
pub(crate) fn places(isas: &[Isa], threads: usize) -> Result<Vec<CpuPlace>> {
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
        let mut count = 2;
        while count < threads {
            add(best, count)?;
            count *= 2;
        }
        if threads > 1 {
            add(best, threads)?;
        }
    }
    Ok(places)
}
