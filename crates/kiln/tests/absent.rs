//! The devices that an engine cannot use are listed, and logged once. This test has its own process, because the log is once per process.
#![cfg(not(target_arch = "wasm32"))]

#[path = "support/told.rs"]
mod told;

use kiln::{Absent, Backend, Engine, Isa, Operations};
use tracing::Level;

use told::messages;

/// Why there is no GPU of this kind to be found, where the build looks for some.
fn none_of(backend: Backend) -> Option<String> {
    match backend {
        #[cfg(feature = "gpu")]
        Backend::Gpu => {
            use kiln::gpu::{AdapterChoice, AdapterKind, GpuDevice};
            let hardware = GpuDevice::list_adapters().into_iter().any(|one| one.kind != AdapterKind::Software);
            let why = || GpuDevice::find(&AdapterChoice::Any).map_or_else(|e| e.to_string(), |found| found.label);
            (!hardware).then(why)
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda => kiln::cuda::CudaDevice::list().err().map(|problem| problem.to_string()),
        _ => None,
    }
}

fn of(absent: &[Absent], backend: Backend) -> Option<String> {
    absent.iter().find(|one| one.backend == backend).map(ToString::to_string)
}

#[test]
fn every_kind_of_execution_that_is_absent_has_a_reason_that_is_told_once() {
    let engine = || Engine::builder().without_profile().build().unwrap();
    let (nothing, result) = messages(Level::INFO, || engine().relu(&[-1.0, 2.0]));
    assert_eq!(result.unwrap(), [0.0, 2.0]);
    assert!(nothing.is_empty(), "nothing is looked for before it is asked for: {nothing:?}");

    let (told, (first, second)) = messages(Level::INFO, || (engine().absent(), engine().absent()));
    assert_eq!(first, second);
    let present: Vec<Backend> = engine().places().iter().map(|place| place.backend).collect();
    for backend in [Backend::Scalar, Backend::Simd, Backend::Gpu, Backend::Cuda] {
        let reason = of(&first, backend);
        assert_eq!(reason.is_none(), present.contains(&backend), "{backend}: {first:?}");
        let lines: Vec<&String> =
            told.iter().filter(|line| line.contains(&format!("backend {backend} was found"))).collect();
        match none_of(backend) {
            Some(why) => {
                assert!(reason.is_some_and(|reason| reason.contains(&why)), "{backend}: {why}");
                assert!(matches!(&lines[..], [line] if line.contains(&why)), "{backend}: {told:?}");
            }
            None => assert!(lines.is_empty(), "{backend}: {told:?}"),
        }
    }

    // A backend that the program itself excluded is not logged, but has a reason too.
    let scalar = Engine::builder().without_profile().instruction_set(Isa::Scalar).backends(&[Backend::Scalar]);
    let absent = scalar.build().unwrap().absent();
    assert!(of(&absent, Backend::Simd).is_some_and(|reason| reason.contains("scalar")), "{absent:?}");
    for (backend, feature, built) in
        [(Backend::Gpu, "`gpu`", cfg!(feature = "gpu")), (Backend::Cuda, "`cuda`", cfg!(feature = "cuda"))]
    {
        let expected = if built { "other backends" } else { feature };
        assert!(of(&absent, backend).is_some_and(|reason| reason.contains(expected)), "{absent:?}");
    }
}
