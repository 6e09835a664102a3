//! The properties of this machine, and the instruction sets and devices that kiln finds on it.

use std::path::Path;

use kiln_cuda::{CudaDevice, DeviceInfo};
use kiln_simd::Isa;
use kiln_wgpu::{ADAPTER_VARIABLE, AdapterChoice, AdapterInfo, AdapterKind, GpuDevice};
use serde::Serialize;

/// The machine.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) system: String,
    /// Threads that this process may use.
    pub(super) threads: usize,
    /// Threads that the system has.
    pub(super) processors: usize,
    pub(super) memory_gib: Option<f64>,
    pub(super) caches: Vec<Cache>,
}

/// A cache that holds data.
#[derive(Debug, Serialize)]
pub(super) struct Cache {
    pub(super) level: u32,
    pub(super) kib: u64,
    /// The number of threads of the system that share it.
    pub(super) shared_by: usize,
}

/// A backend: present, or the reason why it is not.
#[derive(Debug, Serialize)]
pub(super) struct Backend {
    pub(super) name: String,
    pub(super) present: bool,
    pub(super) detail: String,
}

impl Machine {
    /// The number of threads that may be used: `2 threads`, `2 of 16 threads`.
    pub(super) fn threads(&self) -> String {
        let of = if self.processors > self.threads { format!(" of {}", self.processors) } else { String::new() };
        format!("{}{of} thread{}", self.threads, if self.threads == 1 && of.is_empty() { "" } else { "s" })
    }

    /// The caches: `L1 32 KiB, L2 1 MiB, L3 32 MiB shared by 8`; empty where the system does not report them.
    pub(super) fn caches(&self) -> String {
        let cache = |c: &Cache| {
            let size = if c.kib >= 1024 && c.kib.is_multiple_of(1024) {
                format!("{} MiB", c.kib / 1024)
            } else {
                format!("{} KiB", c.kib)
            };
            let shared = if c.shared_by > 1 { format!(" shared by {}", c.shared_by) } else { String::new() };
            format!("L{} {size}{shared}", c.level)
        };
        self.caches.iter().map(cache).collect::<Vec<_>>().join(", ")
    }
}

/// Finds the processor, the caches and the backends.
pub(super) fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        text.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(':')).map(|(_, v)| v.trim().to_owned())
    };
    let cpus = read("/proc/cpuinfo");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let kib = field(&read("/proc/meminfo"), "MemTotal").and_then(|v| v.trim_end_matches(" kB").parse::<f64>().ok());
    Machine {
        processor: field(&cpus, "model name").unwrap_or_else(|| "unknown processor".into()),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        threads,
        processors: cpus.lines().filter(|l| l.starts_with("processor")).count().max(threads),
        memory_gib: kib.map(|kib| kib / (1024.0 * 1024.0)),
        caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
    }
}

fn caches(directory: &Path) -> Vec<Cache> {
    let cache = |index: usize| {
        let read = |file: &str| {
            let path = directory.join(format!("index{index}")).join(file);
            Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
        };
        if read("type")? == "Instruction" {
            return None;
        }
        let kib = read("size")?.strip_suffix('K')?.parse().ok()?;
        let shared_by = read("shared_cpu_list")?.split(',').map(range_length).sum();
        Some(Cache { level: read("level")?.parse().ok()?, kib, shared_by })
    };
    (0..8).filter_map(cache).collect()
}

/// The number of processors that `3` or `0-7` names.
fn range_length(text: &str) -> usize {
    match text.split_once('-') {
        Some((from, to)) => match (from.parse::<usize>(), to.parse::<usize>()) {
            (Ok(from), Ok(to)) if to >= from => to - from + 1,
            _ => 1,
        },
        None => 1,
    }
}

/// Every backend that kiln knows, present or not.
pub(super) fn backends() -> Vec<Backend> {
    let mut backends: Vec<Backend> = Isa::ALL
        .iter()
        .map(|isa| {
            let present = isa.is_available();
            let detail = match present {
                true if isa.lanes() == 1 => "1 lane".into(),
                true => format!("{} lanes of f32", isa.lanes()),
                false => format!("not on this {} processor", std::env::consts::ARCH),
            };
            Backend { name: isa.name().into(), present, detail }
        })
        .collect();
    backends.extend(gpus());
    backends.extend(devices());
    backends
}

/// Every device of CUDA, or why none is found.
fn devices() -> Vec<Backend> {
    match CudaDevice::list() {
        Err(problem) => vec![Backend { name: "cuda".into(), present: false, detail: problem.to_string() }],
        Ok(devices) => {
            let backend =
                |info: &DeviceInfo| Backend { name: cuda_name(info), present: true, detail: info.to_string() };
            devices.iter().map(backend).collect()
        }
    }
}

/// The name of a device of CUDA in tables.
pub(super) fn cuda_name(info: &DeviceInfo) -> String {
    format!("cuda {}", info.ordinal)
}

/// The devices of CUDA.
pub(super) fn cuda_devices() -> Vec<DeviceInfo> {
    CudaDevice::list().unwrap_or_default()
}

/// Every adapter, and why one that is not used is not.
fn gpus() -> Vec<Backend> {
    let used = adapters();
    let all = GpuDevice::list_adapters();
    if all.is_empty() {
        let detail = "no driver for Vulkan, Metal or DX12 was found".into();
        return vec![Backend { name: "gpu".into(), present: false, detail }];
    }
    let backend = |adapter: &AdapterInfo| {
        let present = used.iter().any(|used| used.index == adapter.index);
        let hint = if present { String::new() } else { format!("; not used unless {ADAPTER_VARIABLE} names it") };
        Backend { name: format!("gpu {}", adapter.index), present, detail: format!("{adapter}{hint}") }
    };
    all.iter().map(backend).collect()
}

/// The adapters to use: the one that the environment names, or else all that are not software.
pub(super) fn adapters() -> Vec<AdapterInfo> {
    if std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty()) {
        return GpuDevice::find(&AdapterChoice::Best).into_iter().collect();
    }
    GpuDevice::list_adapters().into_iter().filter(|adapter| adapter.kind != AdapterKind::Software).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(["0", "0-1", "4-7", "x-y"].map(range_length), [1, 2, 4, 1]);
    }

    #[test]
    fn machines_are_put_into_words() {
        let mut machine = machine();
        (machine.threads, machine.processors) = (2, 16);
        assert_eq!(machine.threads(), "2 of 16 threads");
        (machine.threads, machine.processors) = (1, 1);
        assert_eq!(machine.threads(), "1 thread");
        machine.caches = vec![Cache { level: 1, kib: 48, shared_by: 1 }, Cache { level: 2, kib: 2048, shared_by: 2 }];
        assert_eq!(machine.caches(), "L1 48 KiB, L2 2 MiB shared by 2");
    }

    #[test]
    fn every_backend_has_a_reason() {
        assert!(backends().iter().all(|b| !b.detail.is_empty()));
        assert!(backends().iter().any(|b| b.name == "scalar" && b.present));
    }
}
