//! Placements of graphs on synthetic machines.

mod common;

use std::collections::HashMap;

use common::*;
use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::{Elementwise, Matmul, Op, Softmax, WriteRows};
use kiln_ir::{DType, Record, Shape, TensorType};
use kiln_route::{
    Backend, Flow, GraphsOnHost, Link, Memory, Place, Placement, Problem, Profile, Residency, Roofline, Router,
    Transfer,
};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A router for a CPU with one thread and for GPUs, given their operations a second and the bandwidth of the links.
fn machine_of(cpu: f64, gpus: &[f64], bandwidth: f64) -> Router {
    let roofline = |peak| Roofline { overhead: 1e-9, levels: vec![(u64::MAX, 1e15)], peak };
    let mut places = vec![Place { roofline: roofline(cpu), ..Place::cpu("cpu", Backend::Simd, 16, 1) }];
    for (i, &peak) in gpus.iter().enumerate() {
        places.push(Place {
            name: format!("gpu {i}"),
            memory: Memory::new(i as u8 + 1),
            threads: 0,
            roofline: roofline(peak),
            ..gpu_place()
        });
    }
    let mut profile = Profile::new(machine(), places).unwrap();
    for i in 0..gpus.len() {
        let link = Link::linear((1e-6, bandwidth), (1e-6, bandwidth));
        profile = profile.with_link(Memory::new(i as u8 + 1), link).unwrap();
    }
    Router::new(profile)
}

fn products(graph: &mut Graph, mut x: TensorId, w: TensorId, count: usize) -> TensorId {
    for _ in 0..count {
        x = graph.record(Matmul::default(), &[x, w]).unwrap();
    }
    x
}

fn names(router: &Router, placement: &Placement) -> Vec<(String, usize)> {
    let name = |place: usize| router.places()[place].name.clone();
    placement.segments.iter().map(|segment| (name(segment.place), segment.steps.len())).collect()
}

fn placed(router: &Router, graph: &Graph, wanted: &[TensorId]) -> Placement {
    let (flow, _) = Flow::new(graph, wanted).unwrap();
    router.place(&flow, &Residency::host())
}

/// Where a chain of 100 products of 1024 x 1024 runs.
fn placed_products(router: &Router) -> Vec<(String, usize)> {
    let mut graph = Graph::new();
    let (x, w) = (graph.input(ty(&[1024, 1024])), graph.input(ty(&[1024, 1024])));
    let y = products(&mut graph, x, w, 100);
    names(router, &placed(router, &graph, &[y]))
}

#[test]
fn a_graph_runs_through_wgpu_only_if_that_is_clearly_ahead_of_cuda() {
    let placed_with = |wgpu: f64| {
        let profile = machine_of(1e10, &[1e13, wgpu], 1e10).profile().clone();
        let mut places = profile.places().to_vec();
        places[1].backend = Backend::Cuda;
        let link = Link::linear((1e-6, 1e10), (1e-6, 1e10));
        let links = [1, 2].map(Memory::new);
        let with_link = |profile: Profile, memory| profile.with_link(memory, link.clone()).unwrap();
        let profile = links.into_iter().fold(Profile::new(machine(), places).unwrap(), with_link);
        placed_products(&Router::new(profile))
    };
    assert_eq!(placed_with(1.1e13), [("gpu 0".to_owned(), 100)]);
    assert_eq!(placed_with(1.4e13), [("gpu 1".to_owned(), 100)]);
}

#[test]
fn a_graph_leaves_the_host_only_for_a_faster_device() {
    let placed_with = |gpu: f64| placed_products(&machine_of(1e12, &[gpu], 1e15));
    assert_eq!(placed_with(0.99e12), [("cpu".to_owned(), 100)]);
    assert_eq!(placed_with(1.02e12), [("gpu 0".to_owned(), 100)]);
}

#[test]
fn steps_of_several_threads_read_what_is_spread_over_cores() {
    let graphs = |spread: Option<Transfer>| {
        let least = Transfer::linear(1e-9, 1e15);
        GraphsOnHost { graph: 0.0, handover: least.clone(), spread, cold: least.clone(), read: least }
    };
    let seconds = |n: usize, graphs: GraphsOnHost| {
        let profile = cpu_only().profile().clone().with_graphs_on_host(0.0, graphs).unwrap();
        let ty = ty(&[n, n]);
        let mut graph = Graph::new();
        let (x, w) = (graph.input(ty), graph.input(ty));
        let y = products(&mut graph, x, w, 2);
        placed(&Router::new(profile), &graph, &[y]).seconds
    };
    let spread = || Some(Transfer::linear(3e-6, 1e10));
    // Two threads multiply matrices of 1024 rows, one those of 16.
    let several = seconds(1024, graphs(spread())) - seconds(1024, graphs(None));
    let expected = 3e-6 + 4.0 * 1024.0 * 1024.0 / 1e10;
    assert!((several / expected - 1.0).abs() < 1e-3, "{several} instead of {expected}");
    assert_eq!(seconds(16, graphs(spread())), seconds(16, graphs(None)));
}

#[test]
fn a_small_graph_stays_in_one_piece() {
    let router = machine_of(1e11, &[1e13], 1e10);
    let mut graph = Graph::new();
    let (x, w) = (graph.input(ty(&[16, 16])), graph.input(ty(&[16, 16])));
    let y = products(&mut graph, x, w, 10);
    let placement = placed(&router, &graph, &[y]);
    assert_eq!(names(&router, &placement), [("cpu".to_owned(), 10)]);
    assert_eq!(placement.seconds, placement.alone.1);
}

#[test]
fn equal_branches_run_on_two_devices_at_once() {
    for devices in [machine_of(1e12, &[1e12], 1e13), machine_of(1e9, &[1e12, 1e12], 1e13)] {
        let mut graph = Graph::new();
        let w = graph.input(ty(&[512, 512]));
        let inputs = [graph.input(ty(&[512, 512])), graph.input(ty(&[512, 512]))];
        let [a, b] = inputs.map(|x| products(&mut graph, x, w, 20));
        let sum = graph.add(a, b).unwrap();
        let placement = placed(&devices, &graph, &[sum]);
        assert!(placement.segments.len() > 1, "{:?}", names(&devices, &placement));
        let gain = placement.alone.1 / placement.seconds;
        assert!(gain > 1.8, "{gain} {:?}", names(&devices, &placement));
        let [first, second] = [&placement.segments[0], &placement.segments[1]];
        assert!(second.start < first.finish, "they overlap: {first:?} {second:?}");
    }
}

/// One GPU is often two places: through Vulkan and through CUDA.
#[test]
fn gpus_of_two_kinds_never_share_a_graph() {
    let both = machine_of(1e9, &[1e12, 1e12], 1e13);
    let mut places = both.places().to_vec();
    places[2].backend = Backend::Cuda;
    let mut profile = Profile::new(machine(), places).unwrap();
    for number in [1, 2] {
        profile = profile.with_link(Memory::new(number), Link::linear((1e-6, 1e13), (1e-6, 1e13))).unwrap();
    }
    let router = Router::new(profile);
    let mut graph = Graph::new();
    let w = graph.input(ty(&[512, 512]));
    let inputs = [graph.input(ty(&[512, 512])), graph.input(ty(&[512, 512]))];
    let [a, b] = inputs.map(|x| products(&mut graph, x, w, 20));
    let sum = graph.add(a, b).unwrap();
    assert_eq!(names(&router, &placed(&router, &graph, &[sum])), [("gpu 1".to_owned(), 41)]);
}

#[test]
fn a_step_without_a_kernel_runs_elsewhere_and_the_others_stay() {
    let router = machine_of(1e10, &[1e13], 1e10);
    let mut graph = Graph::new();
    let (x, w) = (graph.input(ty(&[512, 512])), graph.input(ty(&[512, 512])));
    let before = products(&mut graph, x, w, 10);
    let between = graph.softmax(before).unwrap();
    let y = products(&mut graph, between, w, 10);
    let (mut flow, schedule) = Flow::new(&graph, &[y]).unwrap();
    flow.bar(&schedule, router.places().len(), |op, place| matches!(op, Op::Softmax(_)) && place == 1);
    let placement = router.place(&flow, &Residency::host());
    assert_eq!(names(&router, &placement), [("gpu 0".into(), 10), ("cpu".into(), 1), ("gpu 0".into(), 10)]);
    assert_eq!(placement.segments[1].steps, [10]);
    // No other device has the kernel, so no device is forced to run it.
    flow.bar(&schedule, router.places().len(), |op, _| matches!(op, Op::Softmax(_)));
    assert_eq!(router.place(&flow, &Residency::host()).seconds, f64::INFINITY);
}

#[test]
fn steps_stay_together_where_moving_costs_more_than_it_gains() {
    // The GPU is faster at everything, the CPU nearly as fast at the functions: the difference does not justify two
    // transfers of 4 MiB.
    let router = machine_of(1e11, &[1e13], 1e9);
    let mut graph = Graph::new();
    let (x, w) = (graph.input(ty(&[1024, 1024])), graph.input(ty(&[1024, 1024])));
    let mut y = x;
    for _ in 0..8 {
        y = products(&mut graph, y, w, 2);
        y = graph.record(Elementwise::relu(), &[y]).unwrap();
    }
    assert_eq!(names(&router, &placed(&router, &graph, &[y])), [("gpu 0".into(), 24)]);
}

#[test]
fn resident_weights_draw_their_steps() {
    let router = machine_of(1e12, &[1e12], 1e8);
    let mut graph = Graph::new();
    let (x, w) = (graph.input(ty(&[1, 4096])), graph.input(ty(&[4096, 4096])));
    let y = graph.record(Matmul::default(), &[x, w]).unwrap();
    let z = graph.record(Softmax, &[y]).unwrap();
    let (flow, _) = Flow::new(&graph, &[z]).unwrap();
    let at = |residency| names(&router, &router.place(&flow, &residency))[0].0.clone();
    assert_eq!(at(Residency::host()), "cpu");
    assert_eq!(at(Residency::host().moved(1, Memory::new(1))), "gpu 0");
}

#[test]
fn barred_devices_take_nothing() {
    let router = machine_of(1e9, &[1e13], 1e12);
    let mut graph = Graph::new();
    let (x, w) = (graph.input(ty(&[512, 512])), graph.input(ty(&[512, 512])));
    let y = products(&mut graph, x, w, 4);
    let (flow, _) = Flow::new(&graph, &[y]).unwrap();
    assert_eq!(names(&router, &router.place(&flow, &Residency::host()))[0].0, "gpu 0");
    assert_eq!(names(&router, &router.place(&flow, &Residency::host().barred(1)))[0].0, "cpu");
}

/// Both are predicted alike, since both move what they compute.
#[test]
fn one_of_two_steps_that_are_predicted_alike_may_be_barred() {
    let router = machine_of(1e9, &[1e13], 1e13);
    let mut graph = Graph::new();
    let (x, w) = (graph.input(ty(&[512, 512])), graph.input(ty(&[512, 512])));
    let mut y = products(&mut graph, x, w, 10);
    for op in [Elementwise::relu(), Elementwise::neg(), Elementwise::relu()] {
        y = graph.record(op, &[y]).unwrap();
    }
    let y = products(&mut graph, y, w, 10);
    let (mut flow, schedule) = Flow::new(&graph, &[y]).unwrap();
    let neg = Op::from(Elementwise::neg());
    flow.bar(&schedule, router.places().len(), |op, place| *op == neg && place == 1);
    let placement = router.place(&flow, &Residency::host());
    assert_eq!(names(&router, &placement), [("gpu 0".into(), 11), ("cpu".into(), 1), ("gpu 0".into(), 11)]);
}

/// The steps of transformer layers without attention, ten a layer.
#[cfg(not(target_arch = "wasm32"))]
fn layers(count: usize, rows: usize, width: usize) -> (Graph, TensorId) {
    let mut graph = Graph::new();
    let mut x = graph.input(ty(&[rows, width]));
    let gamma = graph.input(ty(&[width]));
    let shapes = [[width, width], [width, width], [width, 4 * width], [4 * width, width]];
    for _ in 0..count {
        let [first, second, up, down] = shapes.map(|shape| graph.input(ty(&shape)));
        for (a, b) in [(first, second), (up, down)] {
            let normed = graph.rms_norm(x, gamma, 1e-5).unwrap();
            let y = graph.record(Matmul::default(), &[normed, a]).unwrap();
            let y = graph.record(Elementwise::swish(), &[y]).unwrap();
            let y = graph.record(Matmul::default(), &[y, b]).unwrap();
            x = graph.add(x, y).unwrap();
        }
    }
    (graph, x)
}

/// Prints medians: cargo test --release -p kiln-route --test placement -- --ignored --nocapture
#[cfg(not(target_arch = "wasm32"))]
#[test]
#[ignore = "measures; a build for tests is many times slower"]
fn what_a_placement_takes() {
    use std::hint::black_box;
    use std::time::Instant;
    let median = |run: &mut dyn FnMut()| {
        let mut seconds: Vec<f64> = (0..1001)
            .map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        1e6 * seconds[seconds.len() / 2]
    };
    let machines = [
        ("a CPU", machine_of(1e11, &[], 1e10)),
        ("a CPU and a GPU", machine_of(1e11, &[1e12], 1e10)),
        ("a CPU and a GPU as fast", machine_of(1e12, &[1e12], 1e12)),
        ("a CPU and two GPUs", machine_of(1e11, &[1e12, 1e12], 1e10)),
    ];
    for (count, rows, width) in [(1, 1, 16), (10, 1, 512), (10, 64, 1024)] {
        let (graph, wanted) = layers(count, rows, width);
        let (flow, _) = Flow::new(&graph, &[wanted]).unwrap();
        let recorded = median(&mut || drop(black_box(Flow::new(&graph, &[wanted]))));
        println!("{} steps, rows {rows} x {width}: {recorded:.1} µs to prepare", flow.len());
        for (name, router) in &machines {
            let segments = router.place(&flow, &Residency::host()).segments.len();
            let seconds = median(&mut || drop(black_box(router.place(black_box(&flow), &Residency::host()))));
            println!("    {name}: {seconds:.1} µs, {segments} segments");
        }
    }
}

#[cfg(not(target_arch = "wasm32"))] // proptest is unavailable on this target
mod properties {
    use kiln_ir::TensorType;
    use proptest::prelude::*;

    use super::*;

    /// A graph of products and functions of squares, as choices say.
    fn random_graph(choices: &[(bool, usize, usize)]) -> (Graph, Vec<TensorId>) {
        let mut graph = Graph::new();
        let square: TensorType = ty(&[256, 256]);
        let mut there = vec![graph.input(square), graph.input(square)];
        for &(product, a, b) in choices {
            let inputs = [there[a % there.len()], there[b % there.len()]];
            let op: Op = if product { Matmul::default().into() } else { Elementwise::add().into() };
            there.push(graph.record(op, &inputs).unwrap());
        }
        let leaves = graph.leaves();
        (graph, leaves)
    }

    proptest! {
        #[test]
        fn every_step_runs_once_after_what_it_reads(
            choices in prop::collection::vec((any::<bool>(), 0usize..100, 0usize..100), 1..40),
            speeds in (8.0..13.0f64, 8.0..13.0f64, 8.0..13.0f64, 7.0..12.0f64),
        ) {
            let (graph, wanted) = random_graph(&choices);
            let [a, b, c, link] = [speeds.0, speeds.1, speeds.2, speeds.3].map(|power| 10f64.powf(power));
            let router = machine_of(a, &[b, c], link);
            let (flow, schedule) = Flow::new(&graph, &wanted).unwrap();
            let placement = router.place(&flow, &Residency::host());
            prop_assert!(placement.seconds <= placement.alone.1 && placement.seconds.is_finite());
            let mut there: Vec<TensorId> = schedule.inputs(&graph).unwrap();
            let mut count = 0;
            for segment in &placement.segments {
                prop_assert!(segment.start <= segment.finish && segment.finish <= placement.seconds * (1.0 + 1e-9));
                for &step in &segment.steps {
                    let step = &schedule.steps[step];
                    prop_assert!(step.inputs().iter().all(|&id| there.contains(&schedule.root(id))));
                    there.extend(step.outputs());
                    count += 1;
                }
            }
            prop_assert_eq!(count, schedule.steps.len());
        }
    }
}

/// Two chains with a state each, recorded in turns: on two devices they are two segments, and reads and writes of a state stay in order.
#[test]
fn steps_that_are_assigned_run_in_as_few_segments_as_their_order_allows() {
    let router = machine_of(1e11, &[1e13], 1e10);
    let mut graph = Graph::new();
    let at = graph.input(TensorType::of(DType::U32, Shape::new(&[16]).unwrap()).unwrap());
    let mut chains: Vec<(TensorId, TensorId)> =
        (0..2).map(|_| (graph.input(ty(&[16, 16])), graph.state(ty(&[16, 16])))).collect();
    let mut memories = HashMap::new();
    for _ in 0..3 {
        for (chain, (x, state)) in chains.iter_mut().enumerate() {
            let read = graph.record(Matmul::default(), &[*x, *state]).unwrap();
            *state = graph.record(WriteRows, &[*state, read, at]).unwrap();
            *x = read;
            memories.extend([(read, chain), (*state, chain)]);
        }
    }
    let sum = graph.add(chains[0].0, chains[1].0).unwrap();
    memories.insert(sum, 1);
    let (flow, schedule) = Flow::new(&graph, &[sum]).unwrap();
    let of_step: Vec<usize> = schedule.steps.iter().map(|step| memories[&step.outputs().next().unwrap()]).collect();
    let assigned: Vec<Memory> = of_step.iter().map(|&chain| Memory::new(chain as u8)).collect();
    let placement = router.assigned(&flow, &assigned, &Residency::everywhere());
    assert_eq!(names(&router, &placement), [("cpu".to_owned(), 6), ("gpu 0".to_owned(), 7)]);
    for segment in &placement.segments {
        // Each product reads the version that the preceding write made, and each write follows the product that reads
        // the version before it: in order of recording.
        assert!(segment.steps.is_sorted(), "{segment:?}");
        assert!(segment.steps.iter().all(|&step| assigned[step] == segment.memory));
    }
    let [first, second] = &placement.segments[..] else { panic!("{:?}", placement.segments) };
    assert!(placement.seconds >= second.finish && second.finish > first.finish, "{placement:?}");
    // With everything on one device there are no transfers.
    let alone = router.assigned(&flow, &vec![Memory::HOST; flow.len()], &Residency::everywhere());
    assert_eq!((alone.segments.len(), alone.seconds), (1, alone.alone.1));
}

/// The write waits for nothing else, and the product that reads the version before it for twenty others.
#[test]
fn a_state_is_written_after_its_readers_where_branches_run_on_two_devices() {
    let router = machine_of(1e12, &[1e12], 1e13);
    let mut graph = Graph::new();
    let [w, x, y, new] = std::array::from_fn(|_| graph.input(ty(&[512, 512])));
    let at = graph.input(TensorType::of(DType::U32, Shape::new(&[512]).unwrap()).unwrap());
    let state = graph.state(ty(&[512, 512]));
    let [x, y] = [x, y].map(|x| products(&mut graph, x, w, 20));
    let read = graph.record(Matmul::default(), &[x, state]).unwrap();
    let written = graph.record(WriteRows, &[state, new, at]).unwrap();
    let sum = graph.add(read, y).unwrap();
    let (flow, schedule) = Flow::new(&graph, &[sum]).unwrap();
    let placement = router.place(&flow, &Residency::host());
    assert!(placement.segments.len() > 1, "{:?}", names(&router, &placement));
    let order: Vec<usize> = placement.segments.iter().flat_map(|segment| segment.steps.iter().copied()).collect();
    let of = |id: TensorId| order.iter().position(|&step| schedule.steps[step].outputs().any(|out| out == id)).unwrap();
    assert_eq!(order.len(), schedule.steps.len());
    assert!(of(read) < of(written), "{order:?}");
}

#[test]
fn an_operand_that_is_read_twice_is_brought_once() {
    let router = machine_of(1e11, &[1e13], 1e6);
    let seconds = |twice: bool| {
        let mut graph = Graph::new();
        let (x, y) = (graph.input(ty(&[64, 64])), graph.input(ty(&[64, 64])));
        let product = graph.mul(x, if twice { x } else { y }).unwrap();
        let (flow, _) = Flow::new(&graph, &[product]).unwrap();
        router.assigned(&flow, &[Memory::new(1)], &Residency::host()).seconds
    };
    // Beside the result, which is brought back.
    let ratio = seconds(false) / seconds(true);
    assert!((ratio - 1.5).abs() < 0.01, "{ratio}");
}

#[test]
fn operands_are_priced_where_they_are_however_many_there_are() {
    let router = machine_of(1e11, &[1e13], 1e3);
    let mut graph = Graph::new();
    let mut x = graph.input(ty(&[64, 64]));
    for _ in 0..100 {
        let w = graph.input(ty(&[64, 64]));
        x = graph.record(Matmul::default(), &[x, w]).unwrap();
    }
    let problem = Problem::graph(&graph).unwrap();
    let chosen = |residency: Residency| router.decide(&problem, &residency.keep_result()).place().name.clone();
    assert_eq!(chosen(Residency::everywhere()), "gpu 0");
    let on_gpu = |operands: std::ops::RangeInclusive<usize>| {
        operands.fold(Residency::host(), |all, operand| all.copied(operand, Memory::new(1)))
    };
    assert_eq!(chosen(on_gpu(0..=100)), "gpu 0");
    assert_eq!(chosen(on_gpu(0..=63)), "cpu", "those behind are on the host");
    let back = (64..=100).fold(Residency::everywhere(), |all, operand| all.moved(operand, Memory::HOST));
    assert_eq!(chosen(back), "cpu");
    assert_eq!(chosen(Residency::everywhere().moved(usize::MAX, Memory::HOST)), "gpu 0", "there is no such operand");
}
