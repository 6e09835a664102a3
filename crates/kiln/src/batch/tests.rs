//! Batches that run on several devices, with GPUs that tests script.

use kiln_device::waiting::poll_once;
use kiln_ir::graph::TensorId;
use kiln_ir::{DType, Error, Operations, Precision, Record};
use kiln_route::{Backend, Calibrated, Link, Memory, Place, Profile, Roofline};
use kiln_simd::Simd;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::gpus::scripted::Scripted;
use crate::{Batch, Engine, EngineBuilder, State};

const N: usize = 64;

/// An engine of one CPU and two GPUs. GPUs are faster at products, the first of them slightly more so; the CPU is
/// faster at softmax.
struct Rig {
    gpus: [Scripted; 2],
    engine: Engine,
}

impl Rig {
    fn new() -> Self {
        Self::forced(None)
    }

    /// A rig whose engine forces a place.
    fn forced(place: Option<&str>) -> Self {
        let limited = || Engine::builder().instruction_set(Simd::new().unwrap().isa()).threads(1);
        let plain = limited().without_profile().build().unwrap();
        let mut places = plain.places().to_vec();
        let cpus = places.len();
        for number in [1, 2] {
            places.push(Place {
                name: format!("gpu {number}"),
                backend: Backend::Gpu,
                threads: 0,
                memory: Memory::new(number),
                launch: 1e-6,
                queued: 0.0,
                compile: 0.0,
                roofline: Roofline { overhead: 1e-12, levels: vec![(u64::MAX, 1e18)], peak: 1e20 },
            });
        }
        let class = |op: &str, cpu: f64, gpus: [f64; 2]| Calibrated {
            precision: Precision::Contract,
            op: op.into(),
            shape: String::new(),
            work: vec![1.0],
            seconds: vec![vec![cpu; cpus].into_iter().chain(gpus).collect()],
        };
        let classes = vec![class("matmul", 1.0, [1e-3, 1.1e-3]), class("softmax", 1e-5, [1.0, 1.0])];
        let link = Link::linear((1e-6, 1e9), (1e-6, 1e9));
        let mut profile = Profile::new(plain.machine().clone(), places).unwrap().with_classes(classes).unwrap();
        for number in [1, 2] {
            profile = profile.with_link(Memory::new(number), link.clone()).unwrap();
        }
        let gpus = [Scripted::default(), Scripted::default()];
        let handles = vec![gpus[0].gpu("gpu 1"), gpus[1].gpu("gpu 2")];
        let builder = limited().profile(profile);
        let builder = place.into_iter().fold(builder, EngineBuilder::force);
        let engine = builder.with_gpus(handles).unwrap();
        Self { gpus, engine }
    }

    fn calls(&self) -> [usize; 2] {
        self.gpus.each_ref().map(Scripted::calls)
    }
}

fn numbers(seed: usize) -> Vec<f32> {
    (0..N * N).map(|i| ((i * 37 + seed * 101) % 97) as f32 / 500.0).collect()
}

/// A product, its softmax, and the product of that: the GPU is faster at the first and the last, the CPU at the
/// softmax.
fn sandwich(batch: &mut Batch<'_>) -> [TensorId; 4] {
    let (x, w) = (batch.upload(&numbers(1), &[N, N]).unwrap(), batch.upload(&numbers(2), &[N, N]).unwrap());
    let first = batch.matmul(x, w).unwrap();
    let flat = batch.reshape(first, &[N * N / 128, 128]).unwrap();
    let soft = batch.softmax(flat).unwrap();
    let square = batch.reshape(soft, &[N, N]).unwrap();
    let last = batch.matmul(square, w).unwrap();
    [x, w, soft, last]
}

/// What the CPU alone computes.
fn expected(set: Option<&[f32]>) -> [Vec<f32>; 2] {
    let engine =
        Engine::builder().without_profile().instruction_set(Simd::new().unwrap().isa()).threads(1).build().unwrap();
    let mut batch = engine.batch();
    let [x, _, soft, last] = sandwich(&mut batch);
    if let Some(data) = set {
        batch.set(x, data).unwrap();
    }
    batch.execute(&[soft, last]).unwrap();
    [batch.read(soft).unwrap(), batch.read(last).unwrap()]
}

#[test]
fn each_step_runs_on_its_device_and_results_are_those_of_the_cpu() {
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let [x, _, soft, last] = sandwich(&mut batch);
    let explained = batch.explain(&[soft, last]).unwrap();
    let places: Vec<(&str, usize)> = explained.segments.iter().map(|s| (s.place.as_str(), s.steps)).collect();
    let cpu = rig.engine.places()[rig.engine.cpu.len() - 1].name.as_str();
    assert_eq!(places, [("gpu 1", 1), (cpu, 1), ("gpu 1", 1)], "{explained}");
    assert!(explained.to_string().contains("1 steps from") && explained.why.contains("several devices"), "{explained}");
    let same = |batch: &Batch<'_>, expected: [Vec<f32>; 2]| {
        assert_eq!(batch.read(soft).unwrap(), expected[0]);
        assert_eq!(batch.read(last).unwrap(), expected[1]);
    };
    batch.execute(&[soft, last]).unwrap();
    same(&batch, expected(None));
    assert_eq!(rig.calls(), [2, 0]);
    // Again, with other data, while the caller holds a result of the first run.
    batch.execute(&[soft, last]).unwrap();
    let held = [batch.tensor(soft).unwrap(), batch.tensor(last).unwrap()];
    batch.set(x, &numbers(7)).unwrap();
    assert!(matches!(batch.read(last), Err(Error::Parameter { .. })));
    batch.execute(&[soft, last]).unwrap();
    same(&batch, expected(Some(&numbers(7))));
    assert_eq!(held.map(|tensor| tensor.to_vec().unwrap()), expected(None));
    assert_eq!(batch.run(&[last]).unwrap()[0].as_data().f32(), expected(Some(&numbers(7)))[1]);
}

#[test]
fn a_gpu_that_fails_between_steps_is_left_out_and_inputs_are_intact() {
    for skipped in [0, 1] {
        let rig = Rig::new();
        let mut batch = rig.engine.batch();
        let [_, _, soft, last] = sandwich(&mut batch);
        if skipped == 1 {
            batch.execute(&[soft, last]).unwrap();
        }
        rig.gpus[0].fail(Error::OutOfMemory { bytes: 1 << 30 });
        batch.execute(&[soft, last]).unwrap();
        assert_eq!([batch.read(soft).unwrap(), batch.read(last).unwrap()], expected(None));
        assert_eq!(rig.calls()[1], 2, "the second GPU took both products");
        // The device is asked again, and given up when it is lost.
        batch.execute(&[soft, last]).unwrap();
        assert_eq!(rig.calls()[1], 2);
        rig.gpus[0].fail(Error::DeviceLost { device: "gpu 1".into(), reason: "unplugged".into() });
        batch.keep_on_host(true);
        batch.execute(&[soft, last]).unwrap();
        assert_eq!([batch.read(soft).unwrap(), batch.read(last).unwrap()], expected(None));
        assert!(rig.calls()[1] > 2);
        assert!(!batch.explain(&[last]).unwrap().segments.iter().any(|segment| segment.place == "gpu 1"));
    }
}

#[test]
fn kernels_are_timed_where_one_gpu_ran_them() {
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let [x, w, soft, _] = sandwich(&mut batch);
    let first = batch.matmul(w, x).unwrap();
    assert!(matches!(batch.profile(), Err(Error::Parameter { .. })), "nothing was executed");
    batch.execute(&[first]).unwrap();
    assert_eq!(batch.profile().unwrap().nanoseconds(), 1e3);
    // The CPU is faster at the softmax.
    batch.execute(&[soft]).unwrap();
    assert!(matches!(batch.profile(), Err(Error::Unavailable { .. })));
}

#[test]
fn branches_run_on_two_gpus() {
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let w = batch.upload(&numbers(3), &[N, N]).unwrap();
    let mut ends = Vec::new();
    for seed in [4, 5] {
        let mut x = batch.upload(&numbers(seed), &[N, N]).unwrap();
        for _ in 0..8 {
            x = batch.matmul(x, w).unwrap();
        }
        ends.push(x);
    }
    let sum = batch.add(ends[0], ends[1]).unwrap();
    let explained = batch.explain(&[sum]).unwrap();
    let used = |name: &str| explained.segments.iter().any(|segment| segment.place == name);
    assert!(used("gpu 1") && used("gpu 2"), "{explained}");
    batch.execute(&[sum, ends[0]]).unwrap();
    let two = batch.read_many(&[sum, ends[0]]).unwrap();
    let alone =
        Engine::builder().without_profile().instruction_set(Simd::new().unwrap().isa()).threads(1).build().unwrap();
    let mut other = alone.batch();
    let w = other.upload(&numbers(3), &[N, N]).unwrap();
    let mut x = [4, 5].map(|seed| other.upload(&numbers(seed), &[N, N]).unwrap());
    for x in &mut x {
        for _ in 0..8 {
            *x = other.matmul(*x, w).unwrap();
        }
    }
    let sum = other.add(x[0], x[1]).unwrap();
    assert_eq!(two, other.run(&[sum, x[0]]).unwrap());
    assert!(rig.calls().iter().all(|&calls| calls > 0), "{:?}", rig.calls());
}

/// A batch keeps what its parts hold on GPUs for four sets of wanted tensors, and frees the oldest when a fifth
/// arrives.
#[test]
fn parts_of_plans_that_are_no_more_hold_nothing() {
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let [.., soft, last] = sandwich(&mut batch);
    let others: Vec<TensorId> =
        (0..8).map(|_| batch.matmul(last, last).and_then(|y| batch.softmax(y)).unwrap()).collect();
    batch.execute(&[soft, last]).unwrap();
    let mut held = Vec::new();
    for &wanted in &others {
        batch.execute(&[wanted, last]).unwrap();
        held.push(rig.gpus[0].held());
    }
    assert_eq!(held[5..], [held[4]; 3], "{held:?}");
    batch.execute(&[soft, last]).unwrap();
    assert_eq!([batch.read(soft).unwrap(), batch.read(last).unwrap()], expected(None));
}

/// A product whose first row is written to a state. Returns the wanted product and the position.
fn keeping(batch: &mut Batch<'_>, state: &State) -> (TensorId, TensorId) {
    let (x, w) = (batch.upload(&numbers(1), &[N, N]).unwrap(), batch.upload(&numbers(2), &[N, N]).unwrap());
    let held = batch.state(state);
    let product = batch.matmul(x, w).unwrap();
    let row = batch.slice(product, 0, 0..1, 1).unwrap();
    let at = batch.upload_indices(&[1], &[1]).unwrap();
    batch.write_rows(held, row, at).unwrap();
    (product, at)
}

#[test]
fn a_state_is_where_its_batch_runs_and_moves_when_a_device_fails() {
    let rig = Rig::new();
    let state = State::zeros(DType::F32, &[3, N]).unwrap();
    let mut batch = rig.engine.batch();
    let (product, at) = keeping(&mut batch, &state);
    batch.execute(&[product]).unwrap();
    assert_eq!((rig.calls(), state.residency()), ([1, 0], "gpu 1".into()));
    let row = batch.read(product).unwrap()[..N].to_vec();
    let rows = |kept: [bool; 3]| {
        let rows = kept.into_iter().flat_map(|kept| if kept { row.clone() } else { vec![0.0; N] });
        kiln_ir::Buffer::F32(rows.collect())
    };
    assert_eq!(state.to_buffer().unwrap(), rows([false, true, false]));
    // The first GPU is out of memory: the second continues with the elements of the state.
    rig.gpus[0].fail(Error::OutOfMemory { bytes: 1 });
    batch.set_data(at, kiln_ir::Data::U32(&[2])).unwrap();
    batch.execute(&[product]).unwrap();
    assert_eq!((rig.calls(), state.residency()), ([2, 1], "gpu 2".into()));
    assert_eq!(state.to_buffer().unwrap(), rows([false, true, true]));
    // A batch on the CPU downloads the state to the host.
    batch.on_device(Some(None));
    batch.set_data(at, kiln_ir::Data::U32(&[0])).unwrap();
    batch.execute(&[product]).unwrap();
    assert_eq!((state.to_buffer().unwrap(), state.residency()), (rows([true; 3]), "host".into()));
    assert!(batch.explain(&[product]).is_ok());
}

#[test]
fn a_state_is_of_one_execution_at_a_time() {
    let state = State::zeros(DType::F32, &[3, N]).unwrap();
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let (product, _) = keeping(&mut batch, &state);
    let taken = state.take().unwrap();
    assert_eq!(state.residency(), "an execution");
    assert!(matches!(batch.execute(&[product]), Err(Error::Unavailable { .. })));
    assert!(matches!(state.to_buffer(), Err(Error::Unavailable { .. })));
    drop(taken);
    batch.execute(&[product]).unwrap();
    assert_eq!((state.residency(), rig.calls()), ("gpu 1".into(), [1, 0]), "no GPU was blamed");
}

#[test]
fn a_product_that_is_pinned_to_the_cpu_reads_a_matrix_that_is_to_be_packed_though_a_gpu_is_forced() {
    let rig = Rig::forced(Some("gpu 1"));
    let mut batch = rig.engine.batch();
    let (x, w) = (batch.upload(&numbers(1), &[N, N]).unwrap(), batch.upload(&numbers(2), &[N, N]).unwrap());
    batch.pack(w).unwrap();
    batch.pin(Some("host")).unwrap();
    let y = batch.matmul(x, w).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), rig.engine.cpu[0].matmul(&numbers(1), &numbers(2), N, N, N).unwrap());
    assert_eq!(rig.calls(), [0, 0]);
}

#[test]
fn a_batch_goes_on_after_the_future_of_an_execution_was_dropped() {
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let [x, _, soft, last] = sandwich(&mut batch);
    let product = batch.matmul(x, x).unwrap();
    // On one GPU, and in parts.
    for wanted in [vec![product], vec![soft, last]] {
        batch.execute(&wanted).unwrap();
        let (before, plans) = (batch.read_many(&wanted).unwrap(), batch.plans.len());
        rig.gpus[0].hang();
        assert!(poll_once(std::pin::pin!(batch.execute_async(&wanted))).is_none());
        assert!(matches!(batch.read(wanted[0]), Err(Error::Parameter { .. })));
        assert_eq!(batch.read(x).unwrap(), numbers(1));
        assert_eq!(batch.plans.len(), plans);
        batch.execute(&wanted).unwrap();
        assert_eq!(batch.read_many(&wanted).unwrap(), before);
    }
}

#[test]
fn a_pinned_operation_runs_where_it_is_pinned_though_it_is_fused_with_others() {
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let x = batch.upload(&[-1.0, 2.0], &[2]).unwrap();
    batch.pin(Some("gpu 2")).unwrap();
    let y = batch.relu(x).unwrap();
    batch.pin(None).unwrap();
    let y = batch.scale(y, 2.0).unwrap();
    assert_eq!(batch.schedule(&[y]).unwrap().steps.len(), 1);
    batch.execute(&[y]).unwrap();
    assert_eq!((batch.read(y).unwrap(), rig.calls()), (vec![0.0, 4.0], [0, 1]));
    assert!(batch.explain(&[y]).unwrap().why.contains("pinned"));
}

/// Layers of a recurrence, each with a state: `x = x w`, whose row at the position is written to the state, plus the
/// sum of the state.
fn layers(batch: &mut Batch<'_>, states: &[State], pins: &[Option<&str>]) -> (TensorId, TensorId, TensorId) {
    let (mut x, w) = (batch.upload(&numbers(1), &[N, N]).unwrap(), batch.upload(&numbers(2), &[N, N]).unwrap());
    let (given, at) = (x, batch.upload_indices(&[1], &[1]).unwrap());
    for (state, pin) in states.iter().zip(pins) {
        batch.pin(*pin).unwrap();
        let product = batch.matmul(x, w).unwrap();
        let row = batch.slice(product, 0, 0..1, 1).unwrap();
        let held = batch.state(state);
        let held = batch.write_rows(held, row, at).unwrap();
        let flat = batch.reshape(held, &[1, 3 * N]).unwrap();
        let sum = batch.sum_axis(flat, 1).unwrap();
        let sum = batch.reshape(sum, &[]).unwrap();
        x = batch.add(product, sum).unwrap();
    }
    batch.pin(None).unwrap();
    (given, at, x)
}

#[test]
fn pinned_layers_run_where_they_are_pinned_and_their_states_are_there() {
    let rig = Rig::new();
    let cpu = rig.engine.places()[rig.engine.cpu.len() - 1].name.clone();
    let states = || -> Vec<State> { (0..4).map(|_| State::zeros(DType::F32, &[3, N]).unwrap()).collect() };
    let (pinned, plain) = (states(), states());
    let mut batch = rig.engine.batch();
    let pins = [Some(cpu.as_str()), Some("host"), Some("gpu 1"), Some("gpu 2")];
    let (given, at, out) = layers(&mut batch, &pinned, &pins);
    // Not pinned, so it runs where the step before runs.
    let soft = batch.softmax(out).unwrap();
    assert!(matches!(batch.pin(Some("gpu 3")), Err(Error::Unavailable { .. })));
    let mut other = rig.engine.batch();
    other.on_device(Some(None));
    let (other_given, other_at, other_out) = layers(&mut other, &plain, &[None; 4]);
    let other_soft = other.softmax(other_out).unwrap();

    let explained = batch.explain(&[soft]).unwrap();
    let segments: Vec<(&str, usize)> = explained.segments.iter().map(|s| (s.place.as_str(), s.steps)).collect();
    assert_eq!(segments, [(cpu.as_str(), 10), ("gpu 1", 5), ("gpu 2", 6)], "{explained}");
    assert!(explained.why.contains("pinned"), "{explained}");
    assert!(explained.segments.windows(2).all(|pair| pair[0].finish <= pair[1].start), "{explained}");

    for (turn, position) in [1, 0, 2].into_iter().enumerate() {
        for (batch, at, given) in [(&mut batch, at, given), (&mut other, other_at, other_given)] {
            batch.set_data(at, kiln_ir::Data::U32(&[position])).unwrap();
            batch.set(given, &numbers(turn)).unwrap();
        }
        // Without results, with results that are read at once, and with other results.
        match turn {
            0 => [&mut batch, &mut other].into_iter().for_each(|batch| batch.execute(&[]).unwrap()),
            1 => assert_eq!(batch.run(&[soft, out]).unwrap(), other.run(&[other_soft, other_out]).unwrap()),
            _ => {
                batch.execute(&[out]).unwrap();
                other.execute(&[other_out]).unwrap();
                assert_eq!(batch.read(out).unwrap(), other.read(other_out).unwrap());
            }
        }
        assert_eq!(rig.calls(), [turn + 1; 2]);
        let places: Vec<String> = pinned.iter().map(State::residency).collect();
        assert_eq!(places, ["host", "host", "gpu 1", "gpu 2"]);
        for (pinned, plain) in pinned.iter().zip(&plain) {
            assert_eq!(pinned.to_buffer().unwrap(), plain.to_buffer().unwrap());
        }
    }
    // The CPU runs what a device refuses, and everything that a lost device would run.
    let refused = [
        (Error::OutOfMemory { bytes: 1 }, ["host", "host", "gpu 1", "host"], "gpu 2"),
        (
            Error::DeviceLost { device: "gpu 2".into(), reason: "unplugged".into() },
            ["host", "host", "gpu 1", "host"],
            "host",
        ),
    ];
    for (error, places, next) in refused {
        rig.gpus[1].fail(error);
        batch.execute(&[out]).unwrap();
        assert_eq!(batch.read(out).unwrap(), other.read(other_out).unwrap());
        assert_eq!(pinned.iter().map(State::residency).collect::<Vec<_>>(), places);
        batch.execute(&[out]).unwrap();
        assert_eq!(batch.read(out).unwrap(), other.read(other_out).unwrap());
        assert_eq!(pinned[3].residency(), next);
    }
}

#[test]
fn a_state_that_segments_share_moves_with_its_latest_version() {
    let rig = Rig::new();
    let state = State::zeros(DType::F32, &[2, 2]).unwrap();
    let mut batch = rig.engine.batch();
    let row = batch.upload(&[1.0, 2.0], &[1, 2]).unwrap();
    let [first, second] = [0, 1].map(|at| batch.upload_indices(&[at], &[1]).unwrap());
    let held = batch.state(&state);
    batch.pin(Some("gpu 1")).unwrap();
    // Read before the write.
    let before = batch.scale(held, 1.0).unwrap();
    let held = batch.write_rows(held, row, first).unwrap();
    let between = batch.scale(held, 3.0).unwrap();
    batch.pin(Some("host")).unwrap();
    let held = batch.write_rows(held, row, second).unwrap();
    let after = batch.scale(held, 2.0).unwrap();
    batch.execute(&[before, between, after]).unwrap();
    assert_eq!(batch.read(before).unwrap(), [0.0; 4]);
    assert_eq!(batch.read(between).unwrap(), [3.0, 6.0, 0.0, 0.0]);
    assert_eq!(batch.read(after).unwrap(), [2.0, 4.0, 2.0, 4.0]);
    assert_eq!(state.residency(), "host");
    assert!(batch.planned_bytes(&[before, after], "host").unwrap() >= 32);
    assert_eq!(batch.planned_bytes(&[before, after], "gpu 1").unwrap(), 32);
}

/// Each token of a language model executes the same graph: the work that the router asks about is computed while the
/// inputs still move, and not again.
#[test]
fn the_work_of_an_unchanged_graph_with_states_is_summed_up_once() {
    let rig = Rig::new();
    let state = State::zeros(DType::F32, &[3, N]).unwrap();
    let mut batch = rig.engine.batch();
    let (product, at) = keeping(&mut batch, &state);
    let summed = || super::batch_plan::PROBLEMS.with(std::cell::Cell::get);
    let before = summed();
    for position in 0..3 {
        batch.set_data(at, kiln_ir::Data::U32(&[position])).unwrap();
        batch.execute(&[product]).unwrap();
        assert_eq!(summed() - before, 1);
    }
    // Another set of wanted tensors has another plan.
    batch.execute(&[]).unwrap();
    assert_eq!(summed() - before, 2);
}

/// A GPU schedules its part of a graph by itself.
#[test]
fn only_what_runs_on_the_cpu_is_scheduled_for_it() {
    let rig = Rig::new();
    let mut batch = rig.engine.batch();
    let [.., soft, last] = sandwich(&mut batch);
    let scheduled = || super::host_plan::SCHEDULES.with(std::cell::Cell::get);
    let before = scheduled();
    for _ in 0..2 {
        batch.execute(&[soft, last]).unwrap();
        // The whole graph, and the softmax between two products on a GPU.
        assert_eq!(scheduled() - before, 2);
    }
    assert_eq!(rig.calls(), [4, 0]);
}
