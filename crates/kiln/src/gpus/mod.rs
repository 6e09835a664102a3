//! GPUs as places of an engine. Whatever backend runs them, they are looked for, measured, used and given up in one way.
// A build without a backend of GPUs has none.
#![cfg_attr(
    not(any(
        all(feature = "gpu", not(target_arch = "wasm32")),
        all(feature = "cuda", not(target_arch = "wasm32")),
        all(feature = "gpu-wasm", target_arch = "wasm32")
    )),
    allow(unused)
)]

#[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
mod asynchronous;
mod recorded;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
mod synchronous;

#[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
pub(crate) use asynchronous::{Gpu, OnGpu, pause};
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
pub(crate) use synchronous::{Gpu, OnGpu};

use kiln_route::{Backend, Link, Memory, Place, Profile, ProfileProblem, Roofline};

/// The kinds of GPU that this build has a backend for. Of places that are predicted to take as long the later kind is
/// taken.
pub(crate) const KINDS: &[Backend] = &[
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    Backend::Gpu,
    #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
    Backend::Cuda,
];

/// A GPU that an engine is asked to have.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    #[cfg(any(all(feature = "gpu", not(target_arch = "wasm32")), all(feature = "gpu-wasm", target_arch = "wasm32")))]
    Adapter(kiln_wgpu::AdapterChoice),
    /// The number of a device of CUDA.
    #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
    Cuda(u32),
}

#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
impl Asked {
    /// What kind of GPU it is.
    pub(crate) fn kind(&self) -> Backend {
        match *self {
            #[cfg(any(
                all(feature = "gpu", not(target_arch = "wasm32")),
                all(feature = "gpu-wasm", target_arch = "wasm32")
            ))]
            Self::Adapter(_) => Backend::Gpu,
            #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
            Self::Cuda(_) => Backend::Cuda,
        }
    }
}

/// The memory of a GPU by its position among those of an engine.
pub(crate) fn memory(position: usize) -> Memory {
    // More than a profile has room for are refused there.
    Memory::new(u8::try_from(position + 1).unwrap_or(u8::MAX))
}

/// Which GPUs of these kinds are kept where there is room for so many: the first of each kind before the second of any.
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
pub(crate) fn fitting(kinds: &[Backend], room: usize) -> Vec<bool> {
    let number = |i: usize| kinds[..i].iter().filter(|&&kind| kind == kinds[i]).count();
    let before = |i: usize| (0..kinds.len()).filter(|&j| (number(j), j) < (number(i), i)).count();
    (0..kinds.len()).map(|i| before(i) < room).collect()
}

/// A GPU of which nothing has been measured: cautious constants.
pub(crate) fn assumed(gpu: &Gpu, position: usize) -> (Place, Link) {
    let place = Place {
        name: gpu.name().to_owned(),
        backend: gpu.kind(),
        // It keeps no thread of the CPU busy.
        threads: 0,
        memory: memory(position),
        launch: 0.0,
        compile: 0.0,
        roofline: Roofline { overhead: 100e-6, levels: vec![(u64::MAX, 100e9)], peak: 1e12 },
    };
    let link = Link { upload_latency: 50e-6, upload_bandwidth: 5e9, download_latency: 100e-6, download_bandwidth: 3e9 };
    (place, link)
}

/// The profile with these ways to the memories of devices.
pub(crate) fn linked(
    profile: Profile,
    links: impl IntoIterator<Item = (Memory, Link)>,
) -> Result<Profile, ProfileProblem> {
    links.into_iter().try_fold(profile, |profile, (memory, link)| profile.with_link(memory, link))
}

#[cfg(all(test, not(all(feature = "gpu-wasm", target_arch = "wasm32"))))]
mod tests {
    use super::*;

    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn no_kind_of_gpu_takes_the_room_of_another() {
        let (gpu, cuda) = (Backend::Gpu, Backend::Cuda);
        let all = [gpu, gpu, gpu, gpu, cuda, cuda];
        assert_eq!(fitting(&all, 6), [true; 6]);
        assert_eq!(fitting(&all, 3), [true, true, false, false, true, false]);
        assert_eq!(fitting(&all, 5), [true, true, true, false, true, true]);
        assert_eq!(fitting(&all, 0), [false; 6]);
    }
}
