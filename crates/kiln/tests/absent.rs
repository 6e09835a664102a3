//! What an engine does without, and that it is told once. Alone in its process, because it is told once in a process.
#![cfg(not(target_arch = "wasm32"))]

use std::sync::{Arc, Mutex};

use kiln::{Absent, Backend, Engine, Isa, Operations};

/// Everything that kiln tells at the level of information or above while `run` runs.
fn told(run: impl FnOnce()) -> Vec<String> {
    use tracing::field::{Field, Visit};
    use tracing::span;
    #[derive(Clone, Default)]
    struct Collect(Arc<Mutex<Vec<String>>>);
    struct Text(String);
    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }
    impl tracing::Subscriber for Collect {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target().starts_with("kiln") && *metadata.level() <= tracing::Level::INFO
        }
        fn event(&self, event: &tracing::Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    let seen = Collect::default();
    tracing::subscriber::with_default(seen.clone(), run);
    seen.0.lock().unwrap().clone()
}

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
    let nothing = told(|| assert_eq!(engine().relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0]));
    assert!(nothing.is_empty(), "nothing is looked for before it is asked for: {nothing:?}");

    let (mut first, mut second) = (Vec::new(), Vec::new());
    let told = told(|| {
        first = engine().absent();
        second = engine().absent();
    });
    assert_eq!(first, second);
    let present: Vec<Backend> = engine().places().iter().map(|place| place.backend).collect();
    for backend in [Backend::Scalar, Backend::Simd, Backend::Gpu, Backend::Cuda] {
        let reason = of(&first, backend);
        assert_eq!(reason.is_none(), present.contains(&backend), "{backend}: {first:?}");
        let lines: Vec<&String> = told.iter().filter(|line| line.contains(&format!("without {backend}"))).collect();
        match none_of(backend) {
            Some(why) => {
                assert!(reason.is_some_and(|reason| reason.contains(&why)), "{backend}: {why}");
                assert!(matches!(&lines[..], [line] if line.contains(&why)), "{backend}: {told:?}");
            }
            None => assert!(lines.is_empty(), "{backend}: {told:?}"),
        }
    }

    // What the program itself has ruled out is no news, and has a reason all the same.
    let scalar = Engine::builder().without_profile().instruction_set(Isa::Scalar).backends(&[Backend::Scalar]);
    let absent = scalar.build().unwrap().absent();
    assert!(of(&absent, Backend::Simd).is_some_and(|reason| reason.contains("scalar")), "{absent:?}");
    for (backend, feature, built) in
        [(Backend::Gpu, "`gpu`", cfg!(feature = "gpu")), (Backend::Cuda, "`cuda`", cfg!(feature = "cuda"))]
    {
        let expected = if built { "other kinds of execution" } else { feature };
        assert!(of(&absent, backend).is_some_and(|reason| reason.contains(expected)), "{absent:?}");
    }
}
