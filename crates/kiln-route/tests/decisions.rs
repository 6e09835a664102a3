//! Decisions on synthetic profiles: no hardware is involved.

mod common;

use common::*;
use kiln_ir::graph::Graph;
use kiln_ir::op::{Dot, Elementwise, Matmul, Op, Reduce, Reduction, Softmax, Transpose};
use kiln_ir::{Precision, Record, TensorType};
use kiln_route::{
    Backend, Basis, Calibrated, ElementwisePath, Explanation, Link, LinkPath, Memory, Place, Problem, Profile,
    Residency, Router, Transfer,
};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn without_measurements_small_work_stays_on_one_thread_and_large_work_spreads() {
    let router = cpu_only();
    let host = Residency::host();
    for n in [0, 1, 16, 64] {
        assert_eq!(chosen(&router, &square(n), &host), "avx512 x1", "{n}");
    }
    assert_eq!(chosen(&router, &square(1024), &host), "avx512 x2");
    assert_eq!(chosen(&router, &addition(100), &host), "avx512 x1");
    assert_eq!(chosen(&router, &addition(1 << 24), &host), "avx512 x2");
}

#[test]
fn residency_decides_between_cpu_and_gpu() {
    let router = with_gpu();
    // A large product runs on the GPU wherever its operands are, an addition only if they are resident.
    assert_eq!(chosen(&router, &square(4096), &Residency::host()), "gpu");
    let large = addition(1 << 24);
    assert_eq!(chosen(&router, &large, &Residency::host()), "avx512 x2");
    let resident = Residency::host().moved(0, GPU).moved(1, GPU).keep_result();
    assert_eq!(chosen(&router, &large, &resident), "gpu");
    // One operand on the host, the result wanted there: two transfers cost too much.
    let half = Residency::host().moved(0, GPU);
    assert_ne!(chosen(&router, &addition(1000), &half), "gpu");
    // Copies in both memories: neither device needs a transfer.
    let both = Residency::host().copied(0, GPU).copied(1, GPU).keep_result();
    assert_eq!(chosen(&router, &large, &both), "gpu");
    assert_eq!(chosen(&router, &addition(100), &both), "avx512 x1");
}

#[test]
fn a_device_beside_the_host_has_to_be_clearly_ahead() {
    let mut places = cpu_places();
    places.push(Place { threads: 0, launch: 0.0, ..gpu_place() });
    // Everything is resident, so a place takes these seconds.
    let of_gpu = |host: f64, ahead: f64| {
        let seconds = vec![vec![4.0 * host, 3.0 * host, 2.0 * host, host, host / ahead]];
        let precision = Precision::Contract;
        let add = Calibrated { op: "add".into(), shape: String::new(), precision, work: vec![12e6], seconds };
        let profile = Profile::new(machine(), places.clone()).unwrap().with_classes(vec![add]).unwrap();
        chosen(&Router::new(profile), &addition(1_000_000), &Residency::everywhere().keep_result())
    };
    // Of short work the fewest threads are taken, but a device, which takes none, has no other margin.
    for host in [1e-3, 1e-5] {
        assert_eq!(of_gpu(host, 1.1), "avx512 x2", "{host}");
        assert_eq!(of_gpu(host, 1.14), "avx512 x2", "{host}");
        assert_eq!(of_gpu(host, 1.2), "gpu", "{host}");
    }
}

#[test]
fn a_gpu_through_wgpu_has_to_be_clearly_ahead_of_a_cuda_device() {
    let mut places = cpu_places();
    places.extend([
        Place { name: "cuda".into(), backend: Backend::Cuda, memory: Memory::new(2), ..gpu_place() },
        gpu_place(),
    ]);
    let of_wgpu = |ahead: f64| {
        let seconds = vec![vec![4e-3, 3e-3, 2e-3, 1e-3, 1e-4, 1e-4 / ahead]];
        let precision = Precision::Contract;
        let add = Calibrated { op: "add".into(), shape: String::new(), precision, work: vec![12e6], seconds };
        let profile = Profile::new(machine(), places.clone()).unwrap().with_classes(vec![add]).unwrap();
        chosen(&Router::new(profile), &addition(1_000_000), &Residency::everywhere().keep_result())
    };
    for ahead in [0.9, 0.99, 1.01, 1.1] {
        assert_eq!(of_wgpu(ahead), "cuda", "{ahead}");
    }
    assert_eq!(of_wgpu(1.3), "gpu");
}

#[test]
fn a_cold_pipeline_counts() {
    let router = with_gpu();
    let problem = square(1024);
    assert_eq!(chosen(&router, &problem, &Residency::host()), "gpu");
    assert_eq!(chosen(&router, &problem, &Residency::host().cold(4)), "avx512 x2");
}

#[test]
fn a_barred_place_is_not_taken_unless_it_is_forced() {
    let router = cpu_only();
    // Only AVX2 can read the packed operand, so its only placement is chosen, whatever the times of the others.
    let avx2 = [0, 2, 3].iter().fold(Residency::host(), |residency, &place| residency.barred(place));
    assert_eq!(chosen(&router, &square(1024), &avx2), "avx2 x1");
    let problem = square(1024);
    let decision = router.decide(&problem, &avx2);
    assert!(!decision.is_unsure());
    assert!(decision.why().to_string().contains("the only place"), "{}", decision.why());
    let vectors = Residency::host().barred(0).barred(1);
    assert_eq!(chosen(&router, &square(1024), &vectors), "avx512 x2");
    assert_eq!(chosen(&router, &square(16), &vectors), "avx512 x1");
    let forced = cpu_only().with_force(0).unwrap();
    assert_eq!(chosen(&forced, &square(16), &vectors), "scalar x1");
}

#[test]
fn predictions_are_the_formula() {
    let router = with_gpu();
    let problem = square(1024);
    let decision = router.decide(&problem, &Residency::host());
    assert_eq!(decision.basis(), Basis::Formula);
    let gpu = decision.predictions().last().unwrap();
    let bytes = 4.0 * 1024.0 * 1024.0;
    let computing = 10e-6 + 2e-6 + 2.0 * 1024f64.powi(3) / 50e12;
    // One submission uploads all operands of a call.
    let expected = computing + 2.0 * 5e-6 + 3.0 * bytes / 25e9;
    assert!((gpu.seconds / expected - 1.0).abs() < 1e-12, "{} {expected}", gpu.seconds);
    // One tensor is resident: the other is uploaded by itself.
    let copied = router.decide(&problem, &Residency::host().copied(0, GPU));
    let expected = computing + 2.0 * (5e-6 + bytes / 25e9);
    let gpu = copied.predictions().last().unwrap();
    assert!((gpu.seconds / expected - 1.0).abs() < 1e-12, "{} {expected}", gpu.seconds);
}

#[test]
fn calls_and_tensors_are_priced_by_their_own_way() {
    let mut places = cpu_places();
    places.push(gpu_place());
    let fast = Link::linear((0.0, 1e12), (0.0, 1e12));
    let slow = Link::linear((0.0, 1e8), (0.0, 1e8));
    let priced = |call: &Link, tensor: &Link, residency: Residency| {
        let link = Link { call: call.call.clone(), ..tensor.clone() };
        let profile = Profile::new(machine(), places.clone()).unwrap().with_link(GPU, link).unwrap();
        chosen(&Router::new(profile), &square(1024), &residency)
    };
    assert_eq!(priced(&fast, &slow, Residency::host()), "gpu");
    assert_ne!(priced(&slow, &fast, Residency::host()), "gpu");
    assert_eq!(priced(&slow, &fast, Residency::host().keep_result()), "gpu");
    assert_ne!(priced(&fast, &slow, Residency::host().keep_result()), "gpu");
}

#[test]
fn calls_of_element_wise_functions_are_priced_by_their_own_way() {
    let mut places = cpu_places();
    places.push(gpu_place());
    let fast = Link::linear((0.0, 1e12), (0.0, 1e12)).call;
    let slow = Link::linear((0.0, 1e8), (0.0, 1e8)).call;
    let of_functions = |path: &LinkPath| ElementwisePath { first: path.upload.clone(), further: path.download.clone() };
    let on_gpu = |call: &LinkPath, elementwise: Option<&LinkPath>, problem: &Problem, residency: Residency| {
        let elementwise = elementwise.map(of_functions);
        let link = Link { call: call.clone(), round_trip: None, elementwise, tensor: fast.clone() };
        let profile = Profile::new(machine(), places.clone()).unwrap().with_link(GPU, link).unwrap();
        chosen(&Router::new(profile), problem, &residency) == "gpu"
    };
    let (add, product) = (addition(1 << 24), square(1024));
    let host = Residency::host;
    assert!(on_gpu(&slow, Some(&fast), &add, host()) && !on_gpu(&slow, Some(&fast), &product, host()));
    assert!(!on_gpu(&fast, Some(&slow), &add, host()) && on_gpu(&fast, Some(&slow), &product, host()));
    assert!(on_gpu(&fast, None, &add, host()) && !on_gpu(&slow, None, &add, host()), "the way of other calls");
    // With a placement excluded, the same way is priced without the fast path.
    let with_two_excluded = |residency: Residency| (0..2).fold(residency, |residency, place| residency.barred(place));
    assert!(on_gpu(&slow, Some(&fast), &add, with_two_excluded(host())));
    assert!(!on_gpu(&fast, Some(&slow), &add, with_two_excluded(host())));
}

#[test]
fn a_round_trip_of_the_smaller_direction_is_priced_by_itself() {
    let router = |round_trip: Option<Transfer>| {
        let mut places = cpu_places();
        places.push(gpu_place());
        let link = Link { round_trip, ..Link::linear((2e-6, 10e9), (3e-6, 20e9)) };
        Router::new(Profile::new(machine(), places).unwrap().with_link(GPU, link).unwrap())
    };
    let on_gpu = |round_trip: Option<Transfer>, problem: &Problem, residency: Residency| {
        router(round_trip).decide(problem, &residency).predictions().last().unwrap().seconds
    };
    // 6e-11 s for a byte in both directions together, where its upload alone takes 10e-11 s and its download 5e-11 s.
    let measured = || Some(Transfer::linear(1e-6, 1e11 / 6.0));
    let bytes = 4.0 * 1024.0 * 1024.0;
    let (product, column) = (square(1024), problem(Matmul::default(), &[&[1024, 4], &[4, 1024]]));
    // With placements excluded, prices do not come from the fast path of calls.
    for residency in [Residency::host(), Residency::host().barred(0).barred(1)] {
        for (problem, up, down) in [(&product, 2.0 * bytes, bytes), (&column, 32.0 * 1024.0, bytes)] {
            let added = on_gpu(None, problem, residency.clone());
            let expected = added - (5e-6 + up / 10e9 + down / 20e9);
            let both = f64::min(up, down);
            let transfers = 1e-6 + 6e-11 * both + (up - both) / 10e9 + (down - both) / 20e9;
            let found = on_gpu(measured(), problem, residency.clone()) - expected;
            assert!((found / transfers - 1.0).abs() < 1e-9, "{up} up, {down} down: {found} instead of {transfers}");
        }
    }
}

fn with_additions() -> Router {
    // 12 bytes per element; two threads become faster between the second and the third measurement.
    let add = calibrated(
        "add",
        "",
        &[
            (12e3, [1e-6, 0.2e-6, 0.1e-6, 5.0e-6]),
            (12e4, [10e-6, 2e-6, 1e-6, 5.5e-6]),
            (12e6, [1000e-6, 400e-6, 400e-6, 205e-6]),
        ],
    );
    Router::new(Profile::new(machine(), cpu_places()).unwrap().with_classes(vec![add]).unwrap())
}

#[test]
fn measured_times_are_interpolated_on_lines_and_continued_at_the_last_rate() {
    let router = with_additions();
    let seconds = |n: usize, place: usize| {
        let decision = router.decide(&addition(n), &Residency::host());
        (decision.predictions().nth(place).unwrap().seconds, decision.basis())
    };
    assert_eq!(seconds(1000, 2), (0.1e-6, Basis::Interpolated));
    assert_eq!(seconds(10, 2), (0.1e-6, Basis::Below));
    let (middle, basis) = seconds(5500, 2);
    assert!((middle / 0.55e-6 - 1.0).abs() < 1e-12 && basis == Basis::Interpolated, "{middle}");
    let (beyond, basis) = seconds(10_000_000, 3);
    assert!((beyond / 2050e-6 - 1.0).abs() < 1e-12 && basis == Basis::Beyond, "{beyond}");
    assert_eq!(chosen(&router, &addition(10_000), &Residency::host()), "avx512 x1");
    assert_eq!(chosen(&router, &addition(1_000_000), &Residency::host()), "avx512 x2");
}

#[test]
fn products_are_predicted_with_the_precision_of_the_engine() {
    let curve = |op: &str, precision: Precision, seconds: f64| Calibrated {
        precision,
        ..calibrated(op, "", &[(2e6, [seconds; 4]), (2e9, [1000.0 * seconds; 4])])
    };
    let product = problem(Matmul::default(), &[&[100, 100], &[100, 100]]);
    let router = |curves: Vec<Calibrated>, precision: Precision| {
        let profile = Profile::new(machine(), cpu_places()).unwrap().with_classes(curves).unwrap();
        Router::new(profile).with_precision(precision)
    };
    let predicted = |router: &Router, problem: &Problem| {
        let decision = router.decide(problem, &Residency::host());
        (decision.seconds(), decision.basis())
    };
    let both = || vec![curve("matmul", Precision::Contract, 4e-6), curve("matmul", Precision::Int8, 1e-6)];
    assert_eq!(predicted(&router(both(), Precision::Contract), &product), (4e-6, Basis::Interpolated));
    assert_eq!(predicted(&router(both(), Precision::Int8), &product), (1e-6, Basis::Interpolated));
    // What was not measured with one precision has the times of another, and says so.
    assert_eq!(predicted(&router(both(), Precision::Bf16), &product), (4e-6, Basis::OtherPrecision));
    let rounded = router(vec![curve("matmul", Precision::Int8, 1e-6)], Precision::Contract);
    assert_eq!(predicted(&rounded, &product), (1e-6, Basis::OtherPrecision));
    let why = rounded.decide(&product, &Residency::host()).why().to_string();
    assert!(why.contains("matmul was not measured with this precision"), "{why}");
    // Other operations are never rounded.
    let softmax = vec![curve("softmax", Precision::Contract, 2e-6)];
    let rows = problem(Softmax, &[&[500, 500]]);
    let (_, basis) = predicted(&router(softmax, Precision::Int8), &rows);
    assert_eq!(basis, Basis::Interpolated);
}

#[test]
fn classes_are_found_by_all_of_their_names() {
    // Some names are longer than 16 bytes and have equal ends.
    let curve = |shape: &str, seconds: f64| calibrated("softmax", shape, &[(1e3, [seconds; 4]), (1e9, [seconds; 4])]);
    let names = ["", "one row", "short rows", "a long name 1 that ends", "a long name 2 that ends"];
    let curves = names.iter().enumerate().map(|(i, name)| curve(name, 1e-6 * (i + 1) as f64)).collect();
    let router = Router::new(Profile::new(machine(), cpu_places()).unwrap().with_classes(curves).unwrap());
    for (rows, columns, seconds) in [(100, 100, 1e-6), (1, 10_000, 2e-6), (1000, 20, 3e-6)] {
        let decision = router.decide(&problem(Softmax, &[&[rows, columns]]), &Residency::host());
        assert_eq!((decision.seconds(), decision.basis()), (seconds, Basis::Interpolated), "{rows} x {columns}");
    }
}

#[test]
fn another_kind_of_shape_stands_in_for_one_that_was_not_measured() {
    let router = with_additions();
    let rows = Problem::new(&Elementwise::add().into(), &[ty(&[100, 100]), ty(&[100])]).unwrap();
    assert_eq!(router.decide(&rows, &Residency::host()).basis(), Basis::Related);
    let dot = Problem::new(&Dot.into(), &[ty(&[100]), ty(&[100])]).unwrap();
    assert_eq!(router.decide(&dot, &Residency::host()).basis(), Basis::Formula);
}

/// The place and the reason for an addition that takes so long on each place, and whether that is unsure.
fn decided(seconds: [f64; 4]) -> (String, String, bool) {
    let measured = calibrated("add", "", &[(12_000.0, seconds)]);
    let router = Router::new(Profile::new(machine(), cpu_places()).unwrap().with_classes(vec![measured]).unwrap());
    let decision = router.decide(&addition(1000), &Residency::host());
    (decision.place().name.clone(), decision.why().to_string(), decision.is_unsure())
}

#[test]
fn ties_leave_cores_to_others() {
    // All four are within 3 %: one thread, and the best instruction set with one thread.
    let (place, why, unsure) = decided([1e-6, 1.01e-6, 1.02e-6, 0.999e-6]);
    assert_eq!(place, "avx512 x1");
    assert!(unsure);
    assert!(why.contains("1.02 times as long as avx512 x2 and leaves cores free"), "{why}");
}

#[test]
fn more_threads_have_to_be_clearly_ahead() {
    assert_eq!(decided([9e-6, 9e-6, 1.02e-6, 1e-6]).0, "avx512 x1");
    assert_eq!(decided([9e-6, 9e-6, 1.05e-6, 1e-6]).0, "avx512 x2");
    // One thread is enough: the best placement with one thread, not the last within the margin.
    assert_eq!(decided([9e-6, 0.9e-6, 1.09e-6, 1e-6]).0, "avx2 x1");
    // Impossibly large times still choose a valid placement.
    assert_eq!(decided([1e30, 1e30, 1e30, 1e30]).0, "avx512 x2");
}

#[test]
fn fewer_threads_have_to_be_clearly_ahead_of_long_work() {
    let (place, why, _) = decided([9e-3, 9e-3, 0.9e-3, 1e-3]);
    assert_eq!(place, "avx512 x2");
    assert!(
        why.contains("1.11 times as long as avx512 x1, whose fewer threads would have to be clearly ahead"),
        "{why}"
    );
    assert_eq!(decided([9e-3, 9e-3, 0.8e-3, 1e-3]).0, "avx512 x1");
    assert_eq!(decided([9e-6, 9e-6, 0.9e-6, 1e-6]).0, "avx512 x1", "short work");
}

#[test]
fn a_lesser_instruction_set_has_to_be_clearly_ahead() {
    assert_eq!(decided([9e-6, 0.8e-6, 1e-6, 1e-6]).0, "avx2 x1");
    let (place, why, _) = decided([9e-6, 0.92e-6, 1e-6, 1e-6]);
    assert_eq!(place, "avx512 x1");
    assert!(why.contains("1.09 times as long as avx2 x1"), "{why}");
}

#[test]
fn force_is_obeyed_and_told() {
    let router = cpu_only().with_force(0).unwrap();
    let decision = router.decide(&square(2048), &Residency::host());
    assert_eq!(decision.place().name, "scalar x1");
    assert!(decision.why().to_string().starts_with("scalar x1 is forced"));
    assert!(cpu_only().with_force(4).is_err());
}

#[test]
fn a_graph_is_the_sum_of_its_operations_with_transfers_at_its_edges() {
    let router = with_gpu();
    let mut graph = Graph::new();
    let n = 1 << 20;
    let (a, b) = (graph.input(ty(&[n])), graph.input(ty(&[n])));
    let mut x = graph.record(Elementwise::add(), &[a, b]).unwrap();
    let single = addition(n);
    for _ in 0..99 {
        x = graph.record(Elementwise::add(), &[x, b]).unwrap();
    }
    let problem = Problem::graph(&graph).unwrap();
    assert_eq!(problem.len(), 100);
    assert_eq!(problem.cost().flops, 100 * n as u64);
    // A single addition does not justify the transfers, a hundred of them do.
    assert_ne!(chosen(&router, &single, &Residency::host()), "gpu");
    let decision = router.decide(&problem, &Residency::host());
    assert_eq!(decision.place().name, "gpu");
    assert_eq!(decision.basis(), Basis::Sum);
    let bytes = 4.0 * n as f64;
    // Each step starts after the one before it.
    let expected = 10e-6 + 100.0 * (2e-6 + 2e-6 + 3.0 * bytes / 2e12) + 3.0 * (5e-6 + bytes / 25e9);
    assert!((decision.seconds() / expected - 1.0).abs() < 1e-9, "{} {expected}", decision.seconds());
    assert!(decision.why().to_string().contains("sum over its operations"));

    // More bytes than a 64-bit number can count, on targets with 64-bit sizes: described, never allocated.
    let mut huge = Graph::new();
    let most = isize::MAX as usize / 8;
    let wide = huge.input(ty(&[most]));
    let results: Vec<_> = (0..5).map(|_| huge.record(Elementwise::add(), &[wide, wide]).unwrap()).collect();
    let problem = Problem::graph(&huge).unwrap();
    assert_eq!(problem.cost().bytes_written, (most as u64 * 4).saturating_mul(5));
    assert!(router.decide(&problem, &Residency::host()).seconds() < f64::INFINITY);
    let schedule = huge.schedule(&results, kiln_ir::graph::FusionLimits::default()).unwrap();
    assert!(Problem::schedule(&schedule, &huge).is_ok());

    let empty = Problem::graph(&Graph::new()).unwrap();
    assert!(empty.is_empty());
    assert_eq!(router.decide(&empty, &Residency::host()).seconds(), 0.0);
}

#[test]
fn a_gpu_that_others_use_is_left_within_twenty_calls_and_tried_again() {
    let router = with_gpu().with_history();
    let (problem, host) = (square(1024), Residency::host());
    let alone: Vec<f64> = router.decide(&problem, &host).predictions().map(|p| p.seconds).collect();
    let mut busy = true;
    let mut chosen = Vec::new();
    for call in 0..1000 {
        busy &= call < 200;
        let place = router.decide(&problem, &host).index();
        let slower = if busy && place == 4 { 20.0 } else { 1.0 };
        router.observe(&problem, &host, place, alone[place] * slower);
        chosen.push(place);
    }
    assert_eq!(chosen[0], 4, "the GPU is the best place");
    assert!(chosen[20..200].iter().filter(|&&place| place == 4).count() <= 2, "{:?}", &chosen[..200]);
    assert_eq!(chosen[999], 4, "{:?}", &chosen[200..]);
}

#[test]
fn what_calls_with_transfers_take_says_nothing_of_work_on_the_device() {
    let router = with_gpu().with_history();
    let (problem, host) = (square(1024), Residency::host());
    let there = Residency::everywhere().keep_result();
    let mut graph = Graph::new();
    let (a, b) = (graph.input(ty(&[1024, 1024])), graph.input(ty(&[1024, 1024])));
    graph.record(Matmul::default(), &[a, b]).unwrap();
    let step = Problem::graph(&graph).unwrap();
    let on_gpu = |problem: &Problem, residency: &Residency| {
        let decision = router.decide(problem, residency);
        decision.predictions().nth(4).unwrap().seconds
    };
    let seen = || (on_gpu(&problem, &there), on_gpu(&step, &host));
    let (call, before) = (on_gpu(&problem, &host), seen());
    let transfers = router.transfers(&problem, 4);
    assert!((transfers / (2.0 * 5e-6 + 3.0 * 4.0 * 1024.0 * 1024.0 / 25e9) - 1.0).abs() < 1e-9, "{transfers}");
    for _ in 0..10 {
        router.observe(&problem, &host, 4, 20.0 * call);
    }
    assert!((on_gpu(&problem, &host) / call - 20.0).abs() < 1e-6, "calls from the host are corrected");
    assert_eq!(seen(), before, "operands on the device, and steps of graphs, are not");
    assert_eq!(router.transfers(&problem, 4), transfers, "nor is what copies alone take");
    // Nor is a call from the host corrected by what a call with operands on the device took.
    let router = with_gpu().with_history();
    (0..10).for_each(|_| router.observe(&problem, &there, 4, 1.0));
    assert_eq!(router.decide(&problem, &host).predictions().nth(4).unwrap().seconds, call);
}

#[test]
fn observed_times_refine_the_predictions() {
    let router = with_additions().with_history();
    let problem = addition(10_000);
    assert_eq!(chosen(&router, &problem, &Residency::host()), "avx512 x1");
    for _ in 0..10 {
        router.observe(&problem, &Residency::host(), 2, 8e-6);
        router.observe(&problem, &Residency::host(), 1, 8e-6);
        router.observe(&problem, &Residency::host(), 0, 80e-6);
    }
    // One thread turned out eight times slower than predicted: now two are better.
    let decision = router.decide(&problem, &Residency::host());
    assert_eq!(decision.place().name, "avx512 x2");
    assert_eq!(chosen(&router, &addition(1000), &Residency::host()), "avx512 x1", "another size is untouched");
    router.observe(&problem, &Residency::host(), 99, 1.0);

    let fixed = with_additions();
    (0..20).for_each(|_| fixed.observe(&problem, &Residency::host(), 2, 1.0));
    assert_eq!(chosen(&fixed, &problem, &Residency::host()), "avx512 x1", "without history nothing changes");
}

#[test]
fn kinds_of_shape_are_told_apart() {
    let shape = |op: Op, inputs: &[TensorType]| Problem::new(&op, inputs).unwrap().class().unwrap().to_string();
    let product = |a: &[usize], b: &[usize]| shape(Matmul::default().into(), &[ty(a), ty(b)]);
    assert_eq!(product(&[64, 64], &[64, 64]), "matmul");
    assert_eq!(product(&[1, 64], &[64, 64]), "matmul (one row)");
    assert_eq!(product(&[16, 64], &[64, 64]), "matmul (few rows)");
    assert_eq!(product(&[17, 64], &[64, 16]), "matmul (few columns)");
    assert_eq!(product(&[17, 64], &[64, 1]), "matmul (one column)");
    assert_eq!(product(&[1, 64], &[64, 1]), "matmul (one row)");
    assert_eq!(product(&[20, 4, 64], &[64, 64]), "matmul");
    assert_eq!(product(&[2, 64, 64], &[2, 64, 64]), "matmul (stack)");
    assert_eq!(shape(Elementwise::add().into(), &[ty(&[4, 4]), ty(&[4])]), "add (repeated operand)");
    assert_eq!(shape(Elementwise::add().into(), &[ty(&[4, 4]), ty(&[])]), "add");
    let sum = |axis| shape(Reduce::along(Reduction::Sum, axis).into(), &[ty(&[8, 9])]);
    assert_eq!((sum(0), sum(1)), ("sum (columns)".into(), "sum (rows)".into()));
    let whole = |reduction| shape(Reduce::all(reduction).into(), &[ty(&[8, 9])]);
    assert_eq!((whole(Reduction::Sum), whole(Reduction::Mean)), ("sum".into(), "sum".into()));
    assert_eq!((whole(Reduction::Max), whole(Reduction::ArgMin)), ("reduce_max".into(), "argmax".into()));
    assert_eq!(shape(Elementwise::max().into(), &[ty(&[9]), ty(&[9])]), "add", "the greater of two is another thing");
    let transpose = |rows, columns| shape(Transpose.into(), &[ty(&[rows, columns])]);
    assert_eq!(
        (transpose(4, 90), transpose(5, 3)),
        ("transpose (up to 4 rows)".into(), "transpose (up to 4 columns)".into())
    );
    assert_eq!(
        (transpose(5, 90), transpose(90, 8)),
        ("transpose (up to 8 rows)".into(), "transpose (up to 8 columns)".into())
    );
    assert_eq!((transpose(16, 90), transpose(90, 90)), ("transpose (few rows)".into(), "transpose".into()));
}

#[test]
fn an_explanation_is_a_table() {
    let router = with_additions();
    let (op, inputs) = (Op::from(Elementwise::add()), [ty(&[1_000_000]), ty(&[1_000_000])]);
    let problem = Problem::new(&op, &inputs).unwrap();
    let decision = router.decide(&problem, &Residency::host());
    let explanation = Explanation::operation(&op, &inputs, &problem, &decision);
    let text = explanation.to_string();
    let expected = "\
add [1000000] [1000000]: 1.0 MFLOP, 12.0 MB
    place      predicted  relative
 -> avx512 x2     205 µs     1.00x
    avx2 x1       400 µs     1.95x
    avx512 x1     400 µs     1.95x
    scalar x1    1.00 ms     4.88x
 avx512 x2 is predicted to take 205 µs where the next, avx2 x1, takes 1.95 times as long; interpolated between \
                    measurements of add
 on test, 2 threads, avx512, affinity and cores unknown";
    assert_eq!(text, expected, "\n{text}");
    assert!(!explanation.unsure);
}
