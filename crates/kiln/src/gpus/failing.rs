//! Engines with GPUs that fail: where the work goes on, and what is logged.

#[path = "../../tests/support/told.rs"]
mod told;

use kiln_ir::op::{Elementwise, Matmul, Op};
use kiln_ir::{Error, Operations, Record, Shape, TensorType};
use kiln_route::{Backend, Link, Memory, Place, Profile, Roofline};
use kiln_simd::Isa;
use tracing::Level;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::scripted::Scripted;
use crate::{DType, Effort, Engine, EngineBuilder, Probe, State, Tensor};
use told::messages;

/// The GPU that is predicted to be fastest at everything, and the next one.
const FIRST: &str = "first GPU";
const SECOND: &str = "second GPU";

/// Two GPUs that are predicted to be faster than the CPU; the first has the lower latency.
struct Rig {
    first: Scripted,
    second: Scripted,
}

impl Rig {
    fn new() -> Self {
        Self { first: Scripted::default(), second: Scripted::default() }
    }

    fn builder() -> EngineBuilder {
        let limited = || Engine::builder().instruction_set(Isa::best()).threads(1);
        let engine = limited().without_profile().build().unwrap();
        let mut places = engine.places().to_vec();
        // Slow enough that every GPU is faster, transfers included.
        places.iter_mut().for_each(|place| place.launch = 1.0);
        for (number, name) in [(1, FIRST), (2, SECOND)] {
            places.push(Place {
                name: name.into(),
                backend: Backend::Gpu,
                threads: 0,
                memory: Memory::new(number),
                launch: 1e-6,
                queued: 0.0,
                compile: 0.0,
                roofline: Roofline { overhead: 1e-12, levels: vec![(u64::MAX, 1e18)], peak: 1e20 },
            });
        }
        let link = |bandwidth| Link::linear((0.0, bandwidth), (0.0, 1e18));
        let profile = Profile::new(engine.machine().clone(), places).unwrap();
        let profile = profile.with_link(Memory::new(1), link(1e6)).unwrap();
        limited().profile(profile.with_link(Memory::new(2), link(1e5)).unwrap())
    }

    fn build(&self, builder: EngineBuilder) -> Engine {
        builder.with_gpus(vec![self.first.gpu(FIRST), self.second.gpu(SECOND)]).unwrap()
    }

    fn engine(&self) -> Engine {
        self.build(Self::builder())
    }

    fn calls(&self) -> (usize, usize) {
        (self.first.calls(), self.second.calls())
    }
}

fn chosen(engine: &Engine) -> String {
    let vector = TensorType::f32(Shape::new(&[4]).unwrap());
    engine.explain(Elementwise::relu(), &[vector]).unwrap().chosen
}

fn refusals() -> [Error; 4] {
    [
        Error::OutOfMemory { bytes: 1 << 30 },
        Error::Limit { what: "bytes of a buffer", device: FIRST.into(), asked: 1 << 40, limit: 1 << 30 },
        Error::Driver { what: "compiling".into(), device: FIRST.into(), message: "no".into() },
        Error::Unsupported { op: "relu", backend: "the first GPU" },
    ]
}

fn lost() -> Error {
    Error::DeviceLost { device: FIRST.into(), reason: "unplugged".into() }
}

#[test]
fn an_operation_that_a_gpu_refuses_runs_at_the_next_best_place_and_the_gpu_is_asked_again() {
    for refusal in refusals() {
        let rig = Rig::new();
        let engine = rig.engine();
        rig.first.fail(refusal.clone());
        assert_eq!(engine.relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0], "{refusal}");
        assert_eq!(rig.calls(), (1, 1), "{refusal}: the next best place is the second GPU");
        assert_eq!(chosen(&engine), FIRST, "{refusal} concerns one operation");
        assert_eq!(engine.relu(&[-3.0, 4.0]).unwrap(), [0.0, 4.0]);
        assert_eq!(rig.calls(), (2, 1), "{refusal}");
        // If every GPU refuses, the CPU runs it.
        rig.first.fail(refusal.clone());
        rig.second.fail(refusal.clone());
        assert_eq!(engine.relu(&[-5.0, 6.0]).unwrap(), [0.0, 6.0], "{refusal}");
        assert_eq!(rig.calls(), (3, 2), "{refusal}");
    }
}

#[test]
fn a_batch_that_a_gpu_refuses_runs_at_the_next_best_place_with_its_inputs_intact() {
    for refusal in refusals() {
        let rig = Rig::new();
        let engine = rig.engine();
        let mut batch = engine.batch();
        let x = batch.upload(&[-1.0, 2.0], &[2]).unwrap();
        let y = batch.relu(x).unwrap();
        rig.first.fail(refusal.clone());
        rig.second.fail(refusal.clone());
        batch.execute(&[y]).unwrap();
        assert_eq!((batch.read(y).unwrap(), batch.read(x).unwrap()), (vec![0.0, 2.0], vec![-1.0, 2.0]));
        assert_eq!(rig.calls(), (1, 1), "{refusal}");
        batch.execute(&[y]).unwrap();
        assert_eq!(rig.calls(), (1, 2), "{refusal}: a GPU is asked again; both have the inputs now");
        assert_eq!(batch.read(y).unwrap(), [0.0, 2.0]);
    }
}

#[test]
fn a_lost_gpu_that_alone_held_an_input_is_not_taken_for_the_next_one() {
    let rig = Rig::new();
    let engine = rig.engine();
    let mut batch = engine.batch();
    batch.keep_on_host(false);
    let x = batch.upload(&[-1.0, 2.0], &[2]).unwrap();
    let y = batch.relu(x).unwrap();
    batch.execute(&[y]).unwrap();
    rig.first.fail(lost());
    let found = batch.execute(&[y]).unwrap_err();
    assert!(matches!(&found, Error::DeviceLost { reason, .. } if reason.contains("keep_on_host")), "{found}");
    assert_eq!((rig.calls(), chosen(&engine)), ((2, 0), SECOND.to_owned()));
    batch.set(x, &[-3.0, 4.0]).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!((batch.read(y).unwrap(), rig.calls()), (vec![0.0, 4.0], (2, 1)));
}

#[test]
fn an_operation_on_a_gpu_that_is_lost_runs_elsewhere_and_nothing_more_is_sent_there() {
    let rig = Rig::new();
    let engine = rig.engine();
    rig.first.fail(lost());
    assert_eq!(engine.relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0]);
    assert_eq!((rig.calls(), chosen(&engine)), ((1, 1), SECOND.to_owned()));
    assert_eq!(engine.relu(&[-3.0, 4.0]).unwrap(), [0.0, 4.0]);
    assert_eq!(rig.calls(), (1, 2), "the first GPU stays excluded");
    rig.second.fail(lost());
    assert_eq!(engine.relu(&[-5.0, 6.0]).unwrap(), [0.0, 6.0]);
    assert_eq!(engine.relu(&[-7.0, 8.0]).unwrap(), [0.0, 8.0]);
    assert_eq!(rig.calls(), (1, 3));
    let absent = engine.absent();
    let of_gpus: Vec<_> = absent.iter().filter(|one| one.backend == Backend::Gpu).collect();
    assert!(of_gpus.iter().all(|one| one.reason == lost()), "{of_gpus:?}");
    assert_eq!(of_gpus.iter().map(|one| one.place.as_deref()).collect::<Vec<_>>(), [Some(FIRST), Some(SECOND)]);
}

#[test]
fn a_forced_gpu_answers_for_itself() {
    for error in refusals().into_iter().chain([lost()]) {
        let rig = Rig::new();
        let engine = rig.build(Rig::builder().force(FIRST));
        rig.first.fail(error.clone());
        assert_eq!(engine.relu(&[1.0]), Err(error));
        assert_eq!(rig.calls(), (1, 0));
    }
}

#[test]
fn errors_of_the_caller_are_not_run_elsewhere() {
    let rig = Rig::new();
    let engine = rig.engine();
    assert!(matches!(engine.gather(&[1.0, 2.0], 1, &[7]), Err(Error::Index { .. })));
    assert_eq!(rig.calls(), (1, 0));
}

#[test]
fn what_a_gpu_refuses_is_told_once_with_its_reason() {
    let rig = Rig::new();
    let engine = rig.engine();
    let run = || assert_eq!(engine.relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0]);
    let [no_memory, limit, ..] = refusals();
    for error in [&no_memory, &limit, &no_memory] {
        rig.first.fail(error.clone());
    }
    let (told, ()) = messages(Level::WARN, || (0..5).for_each(|_| run()));
    let [told] = &told[..] else { panic!("{told:?}") };
    assert!(told.contains(FIRST) && told.contains(&no_memory.to_string()), "{told}");
    // The loss is logged once; afterwards nothing more is.
    rig.first.fail(lost());
    let (told, ()) = messages(Level::WARN, || (0..5).for_each(|_| run()));
    let [told] = &told[..] else { panic!("{told:?}") };
    assert!(told.contains(&lost().to_string()) && told.contains("nothing more is sent there"), "{told}");
}

/// The first GPU refuses once, so the inputs are resident on the second. Then the second is predicted to be faster,
/// although work with inputs on the host goes to the first.
#[test]
fn a_batch_goes_where_its_inputs_lie_and_says_so() {
    let rig = Rig::new();
    let engine = rig.engine();
    let mut batch = engine.batch();
    let x = batch.upload(&[-1.0, 2.0, -3.0, 4.0], &[4]).unwrap();
    let y = batch.relu(x).unwrap();
    let says = |batch: &crate::Batch<'_>, wanted| batch.explain(&[wanted]).unwrap().chosen;
    assert_eq!(says(&batch, y), FIRST);
    rig.first.fail(Error::OutOfMemory { bytes: 16 });
    batch.execute(&[y]).unwrap();
    assert_eq!(rig.calls(), (1, 1));

    assert_eq!(says(&batch, y), SECOND, "what it reads is there");
    batch.execute(&[y]).unwrap();
    assert_eq!(rig.calls(), (1, 2));
    assert_eq!(batch.read(y).unwrap(), [0.0, 2.0, 0.0, 4.0]);

    // Other results read the same inputs; the replaced input is on the host again.
    let z = batch.neg(x).unwrap();
    assert_eq!(says(&batch, z), SECOND);
    batch.set(x, &[5.0, -6.0, 7.0, -8.0]).unwrap();
    assert_eq!(says(&batch, y), FIRST);
    batch.execute(&[y]).unwrap();
    assert_eq!(rig.calls(), (2, 2));
    assert_eq!(batch.read(y).unwrap(), [5.0, 0.0, 7.0, 0.0]);
    assert_eq!(says(&batch, y), FIRST);
}

#[test]
fn a_gpu_that_fails_is_left_out_of_a_calibration() {
    let op = Op::from(Elementwise::relu());
    let vector = TensorType::f32(Shape::new(&[4]).unwrap());
    for error in [refusals()[2].clone(), lost(), Error::OutOfMemory { bytes: 1 << 24 }] {
        let rig = Rig::new();
        let mut engine = rig.engine();
        rig.first.fail(error.clone());
        // A few short problems, including those that the constants of placements are fitted to.
        let short = |n: usize| vec![TensorType::f32(Shape::new(&[n, n]).unwrap()); 2];
        let scale = |n: usize| Probe::new(Elementwise::scale(2.0), short(n)[..1].to_vec());
        let probes =
            [scale(8), scale(16), Probe::new(Matmul::default(), short(8)), Probe::new(op, short(8)[..1].to_vec())];
        let probes = probes.into_iter().collect::<Result<Vec<_>, Error>>().unwrap();
        let measure = || engine.calibrate_by(probes, Effort::Quick, &mut |_| {});
        let (told, report) = messages(Level::WARN, measure);
        let report = report.unwrap();
        let told: Vec<_> = told.iter().filter(|line| line.contains(FIRST)).collect();
        assert!(matches!(&told[..], [told] if told.contains(&error.to_string())), "{told:?}");
        let [left_out] = &report.left_out[..] else { panic!("{report:?}") };
        assert_eq!((left_out.place.as_deref(), &left_out.reason), (Some(FIRST), &error));
        assert!(report.to_string().contains(&left_out.to_string()), "{report}");
        assert!(engine.absent().contains(left_out));
        let names: Vec<&str> = engine.places().iter().map(|place| place.name.as_str()).collect();
        assert!(!names.contains(&FIRST) && names.last() == Some(&SECOND), "{names:?}");
        assert_eq!(engine.explain(op, &[vector]).unwrap().predictions.len(), names.len());
        assert_eq!(engine.relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0]);
    }
}

#[test]
fn a_budget_keeps_large_work_off_gpus_and_names_slow_work_once() {
    let rig = Rig::new();
    let bounded = |seconds, device_bytes| rig.build(Rig::builder().budget(crate::Budget { seconds, device_bytes }));
    let engine = bounded(f64::INFINITY, 100);
    assert_eq!(engine.relu(&[-1.0; 10]).unwrap(), [0.0; 10]);
    assert_eq!(rig.calls(), (1, 0), "80 bytes");
    assert_eq!(chosen(&engine), FIRST);
    let large = TensorType::f32(Shape::new(&[20]).unwrap());
    assert!(![FIRST, SECOND].contains(&&*engine.explain(Elementwise::relu(), &[large]).unwrap().chosen));
    assert_eq!(engine.relu(&[-1.0; 20]).unwrap(), [0.0; 20]);
    let mut batch = engine.batch();
    let x = batch.upload(&[-1.0; 20], &[20]).unwrap();
    let y = batch.relu(x).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!((batch.read(y).unwrap(), rig.calls()), (vec![0.0; 20], (1, 0)), "160 bytes");

    let x = Tensor::from_slice(&[-1.0; 20], &[20]).unwrap();
    assert_eq!(engine.tensors().relu(&x).unwrap().to_vec().unwrap(), [0.0; 20]);
    let mut batch = engine.batch();
    let x = batch.upload(&[-1.0; 20], &[1, 20]).unwrap();
    let held = batch.state(&State::zeros(DType::F32, &[3, 20]).unwrap());
    let at = batch.upload_indices(&[1], &[1]).unwrap();
    let y = batch.write_rows(held, x, at).and_then(|held| batch.sum_axis(held, 0)).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!((batch.read(y).unwrap(), rig.calls()), (vec![-1.0; 20], (1, 0)), "a tensor and a state");

    let engine = bounded(1e-9, u64::MAX);
    let (told, ()) = messages(Level::WARN, || {
        (0..3).for_each(|_| drop(engine.relu(&[-1.0; 4]).unwrap()));
        let mut batch = engine.batch();
        let x = batch.upload(&[-1.0; 4], &[4]).unwrap();
        let y = batch.relu(x).unwrap();
        (0..3).for_each(|_| batch.execute(&[y]).unwrap());
        let x = batch.upload(&[-1.0; 6], &[6]).unwrap();
        let y = batch.relu(x).unwrap();
        batch.execute(&[y]).unwrap();
        let x = Tensor::from_slice(&[-1.0; 8], &[8]).unwrap();
        engine.tensors().relu(&x).unwrap();
    });
    let [operation, batch, other, tensor] = &told[..] else { panic!("{told:?}") };
    assert!(other.contains("a batch of 1 steps for f32 [6]") && tensor.contains("relu [8]"), "{other} {tensor}");
    assert!(operation.contains("relu [4]") && operation.contains(FIRST) && operation.contains("budget"), "{operation}");
    assert!(batch.contains("a batch of 1 steps for f32 [4]: 1 steps on first GPU"), "{batch}");
    // Where a place is forced and where there is one alone.
    let forced = Rig::builder().force(SECOND).budget(crate::Budget { seconds: 1e-9, device_bytes: u64::MAX });
    let alone = Engine::builder().without_profile().budget(crate::Budget { seconds: 1e-15, device_bytes: u64::MAX });
    for engine in [rig.build(forced), alone.instruction_set(Isa::best()).threads(1).build().unwrap()] {
        let (told, ()) = messages(Level::WARN, || {
            let mut batch = engine.batch();
            let x = batch.upload(&[-1.0; 4], &[4]).unwrap();
            let y = batch.relu(x).unwrap();
            (0..3).for_each(|_| batch.execute(&[y]).unwrap());
        });
        let [batch] = &told[..] else { panic!("{told:?}") };
        assert!(batch.contains("a batch of 1 steps") && batch.contains("budget"), "{batch}");
    }
}
