//! Engines with a GPU: where work goes, and what happens when the GPU fails.
#![cfg(not(target_arch = "wasm32"))]
#![cfg(feature = "gpu")]

#[path = "../examples/custom_operation/prelu.rs"]
mod prelu;
#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;

use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};
use kiln::op::{AllReduce, Convolve2d, Matmul, Padding};
use kiln::{
    Backend, Engine, EngineBuilder, Error, Link, Memory, Operations, Place, Profile, Record, Roofline, Shape, Tensor,
    TensorType,
};
use skip::skip;

/// The adapter to test on: that of the environment, or any. Without one the test is left out, and says so; with `wgpu` in
/// `KILN_REQUIRE` it fails instead.
fn adapter() -> Option<AdapterChoice> {
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
    match GpuDevice::find(&choice) {
        Ok(found) => Some(AdapterChoice::Name(found.label)),
        Err(why) => {
            skip("wgpu", why);
            None
        }
    }
}

fn builder(adapter: AdapterChoice) -> EngineBuilder {
    Engine::builder().adapter(adapter).without_profile()
}

fn gpu_place(engine: &Engine) -> String {
    let place = engine.places().iter().find(|place| place.backend == Backend::Gpu).expect("a GPU was asked for");
    place.name.clone()
}

fn square(n: usize) -> [TensorType; 2] {
    [TensorType::f32(Shape::new(&[n, n]).unwrap()); 2]
}

#[test]
fn a_gpu_is_a_place_and_can_be_forced() {
    let Some(adapter) = adapter() else { return };
    let engine = builder(adapter.clone()).build().unwrap();
    let name = gpu_place(&engine);
    let explained = engine.explain(Matmul::default(), &square(16)).unwrap();
    assert!(explained.predictions.iter().any(|(place, _)| *place == name), "{explained}");
    assert_ne!(explained.chosen, name, "not worth the way there");

    let forced = builder(adapter).force(&name).build().unwrap();
    assert_eq!(forced.add(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]).unwrap(), [11.0, 22.0, 33.0]);
    assert_eq!(forced.gpu_devices().unwrap().len(), 1);
    // Packed matrices are packed for the CPU.
    let packed = forced.pack_b(&[1.0, 2.0], 1, 2, false).unwrap();
    let refused = forced.matmul_packed(&[1.0], &packed, 1);
    assert!(matches!(refused, Err(Error::Parameter { .. })), "{refused:?}");
    let mut batch = forced.batch();
    let x = batch.upload(&[1.0, -2.0, 3.0, -4.0], &[2, 2]).unwrap();
    let bias = batch.upload(&[0.5, 1.5], &[2]).unwrap();
    let sum = batch.add(x, bias).unwrap();
    let y = batch.relu(sum).unwrap();
    batch.execute(&[y, x]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [1.5, 0.0, 3.5, 0.0]);
    assert_eq!(batch.read(x).unwrap(), [1.0, -2.0, 3.0, -4.0]);
    batch.set(bias, &[10.0, 20.0]).unwrap();
    batch.execute(&[y, x]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [11.0, 18.0, 13.0, 16.0]);
    batch.execute(&[sum]).unwrap();
    assert_eq!(batch.read(sum).unwrap(), [11.0, 18.0, 13.0, 16.0]);
}

/// An engine of one thread and a GPU of this name that computes this many times in a second, with this many bytes a second to
/// and from it.
fn with_gpu(name: &str, peak: f64, bandwidth: f64) -> EngineBuilder {
    let engine = Engine::builder().threads(1).without_profile().build().unwrap();
    let mut places = engine.places().to_vec();
    let memory = Memory::new(1);
    places.push(Place {
        name: name.into(),
        backend: Backend::Gpu,
        threads: 0,
        memory,
        launch: 0.0,
        queued: 0.0,
        compile: 0.0,
        roofline: Roofline { overhead: 1e-12, levels: vec![(u64::MAX, 1e18)], peak },
    });
    let link = Link::linear((0.0, bandwidth), (0.0, bandwidth));
    let profile = Profile::new(engine.machine().clone(), places).unwrap().with_link(memory, link).unwrap();
    Engine::builder().threads(1).profile(profile)
}

/// Nothing is opened for an explanation, so that the GPU need not be there.
#[test]
fn a_convolution_goes_to_the_gpu_by_the_size_of_its_kernel_and_not_of_its_picture_alone() {
    let engine = with_gpu("a GPU", 1e13, 1e9).build().unwrap();
    let chosen = |kernel: usize| {
        let types = [&[512, 512], &[kernel, kernel]].map(|dims| TensorType::f32(Shape::new(dims).unwrap()));
        let op = Convolve2d { padding: Padding::Same, ..Convolve2d::default() };
        engine.explain(op, &types).unwrap().chosen
    };
    for kernel in [1, 3] {
        assert_ne!(chosen(kernel), "a GPU", "the way there takes longer than all of {kernel} x {kernel}");
    }
    for kernel in [63, 127] {
        assert_eq!(chosen(kernel), "a GPU", "{kernel} x {kernel}");
    }
}

#[test]
fn every_product_of_an_engine_runs_on_one_device() {
    let Some(adapter) = adapter() else { return };
    let name = gpu_place(&builder(adapter.clone()).build().unwrap());
    let engine = builder(adapter).force(name).build().unwrap();
    let product = || assert_eq!(engine.matmul(&[1.0; 64 * 64], &[2.0; 64 * 64], 64, 64, 64).unwrap(), [128.0; 64 * 64]);
    product();
    let device = &engine.gpu_devices().unwrap()[0];
    let before = device.statistics();
    product();
    let one = device.statistics() - before;
    assert!(one.dispatches > 0, "it runs on the device that the first one opened");
    (0..8).for_each(|_| product());
    let all = device.statistics() - before;
    assert_eq!((all.dispatches, all.submissions), (9 * one.dispatches, 9 * one.submissions));
    assert_eq!(engine.gpu_devices().unwrap()[0].statistics(), device.statistics(), "it is the same device");
}

#[test]
fn an_operation_on_a_gpu_that_is_lost_runs_on_the_cpu() {
    let Some(AdapterChoice::Name(name)) = adapter() else { return };
    let engine = with_gpu(&name, 1e20, 1e18).build().unwrap();
    let chosen = || engine.explain(Matmul::default(), &square(16)).unwrap().chosen;
    assert_eq!(chosen(), name);
    assert_eq!(engine.scale(&[1.0, 2.0], 2.0).unwrap(), [2.0, 4.0]);
    let device = &engine.gpu_devices().unwrap()[0];
    assert!(device.statistics().dispatches > 0, "it ran there");
    device.destroy();
    assert_eq!(engine.scale(&[1.0, 2.0], 3.0).unwrap(), [3.0, 6.0]);
    assert_ne!(chosen(), name, "it is gone");
    let absent = engine.absent();
    let lost = absent.iter().find(|one| one.place.as_ref() == Some(&name)).expect("it was lost");
    assert!(matches!(lost.reason, Error::DeviceLost { .. }), "{lost}");
}

/// A profile names a GPU that has gone; another one whose label contains that name is not taken for it.
#[test]
fn a_gpu_of_a_longer_name_is_another_one() {
    let Some(AdapterChoice::Name(name)) = adapter() else { return };
    let (part, _) = name.split_at(name.len() - 1);
    let engine = with_gpu(part, 1e20, 1e18).build().unwrap();
    assert_eq!(engine.scale(&[1.0, 2.0], 2.0).unwrap(), [2.0, 4.0]);
    assert!(matches!(engine.gpu_devices(), Err(Error::Unavailable { .. })));
    assert_ne!(engine.explain(Matmul::default(), &square(16)).unwrap().chosen, part);
}

#[test]
fn an_adapter_is_meant_by_its_index_even_where_others_have_its_name() {
    for adapter in GpuDevice::list_adapters() {
        let engine = builder(AdapterChoice::Index(adapter.index)).build().unwrap();
        assert_eq!(gpu_place(&engine), adapter.label);
        let engine = builder(AdapterChoice::Index(adapter.index)).force(&adapter.label).build().unwrap();
        assert_eq!(engine.relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0]);
        assert_eq!(*engine.gpu_devices().unwrap()[0].adapter(), adapter);
    }
}

#[test]
fn pipelines_are_kept_beside_the_profile() {
    let Some(adapter) = adapter() else { return };
    let folder = std::env::temp_dir().join(format!("kiln-engine-pipelines-{}", std::process::id()));
    let asked = || Engine::builder().adapter(adapter.clone()).profile_file(folder.join("profile.json"));
    let name = gpu_place(&asked().build().unwrap());
    let engine = asked().force(&name).build().unwrap();
    assert_eq!(engine.relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0]);
    let kept = engine.gpu_devices().unwrap()[0].adapter().api == "vulkan";
    drop(engine);
    let files = std::fs::read_dir(&folder).map_or(0, Iterator::count);
    let _ = std::fs::remove_dir_all(&folder);
    assert_eq!(files, usize::from(kept), "Vulkan alone has a cache of pipelines");
}

#[test]
fn a_gpu_that_is_lost_hands_its_work_to_the_cpu() {
    let Some(adapter) = adapter() else { return };
    let engine = builder(adapter.clone()).build().unwrap();
    // With the built-in constants the GPU is predicted to be faster here.
    let n = 2048;
    let name = gpu_place(&engine);
    let scalar = Engine::builder().adapter(adapter).without_profile().instruction_set(kiln::Isa::Scalar).threads(1);
    let scalar = scalar.build().unwrap();
    assert_eq!(scalar.explain(Matmul::default(), &square(n)).unwrap().chosen, name);
    let mut batch = scalar.batch();
    let a = batch.upload(&vec![1.0; n * 64], &[n, 64]).unwrap();
    let mut y = batch.transpose(a).unwrap();
    y = batch.matmul(a, y).unwrap();
    for _ in 0..20 {
        y = batch.tanh(y).unwrap();
    }
    let y = batch.max_axis(y, 1).unwrap();
    scalar.gpu_devices().unwrap()[0].destroy();
    batch.execute(&[y]).unwrap();
    assert!(batch.read(y).unwrap().iter().all(|y| (0.0..1.0).contains(y)));
    assert_ne!(scalar.explain(Matmul::default(), &square(n)).unwrap().chosen, name, "it is gone");
    assert_eq!(scalar.scale(&[1.0], 2.0).unwrap(), [2.0]);
}

#[test]
fn a_forced_gpu_answers_for_itself() {
    let Some(adapter) = adapter() else { return };
    let name = gpu_place(&builder(adapter.clone()).build().unwrap());
    let forced = builder(adapter).force(name).build().unwrap();
    forced.gpu_devices().unwrap()[0].destroy();
    assert!(matches!(forced.relu(&[1.0]), Err(Error::DeviceLost { .. })));
    let mut batch = forced.batch();
    let x = batch.upload(&[1.0], &[1]).unwrap();
    let y = batch.relu(x).unwrap();
    assert!(matches!(batch.execute(&[y]), Err(Error::DeviceLost { .. })));
    assert_eq!(batch.read(x).unwrap(), [1.0], "what was uploaded is intact");
}

#[test]
fn adapters_that_are_not_there_and_engines_without_a_cpu_are_refused() {
    let missing = AdapterChoice::Name("no such adapter".into());
    assert!(matches!(Engine::builder().adapter(missing).build(), Err(Error::Unavailable { .. })));
    assert!(matches!(Engine::builder().backends(&[Backend::Gpu]).build(), Err(Error::Unavailable { .. })));
    if let Some(adapter) = adapter() {
        let engine = builder(adapter).backends(&[Backend::Scalar, Backend::Simd]).build().unwrap();
        assert!(engine.places().iter().all(|place| place.backend != Backend::Gpu), "GPUs are ruled out");
    }
}

/// Bounds as tests of devices take them: subnormal numbers may be zero.
#[test]
fn a_custom_operation_keeps_its_contract_and_goes_where_it_has_a_kernel() {
    use kiln::op::reference::{Case, Input, Random, conform_within};
    let Some(adapter) = adapter() else { return };
    let engine = builder(adapter.clone()).build().unwrap();
    let forced = builder(adapter).force(gpu_place(&engine)).build().unwrap();
    let prelu = kiln::op::Custom::new(&prelu::Prelu, &[]).unwrap();
    let mut random = Random::new(3);
    // The last shape needs more workgroups than one dimension of a grid can have.
    for dims in [&[1, 1][..], &[3, 7], &[2, 3, 33], &[0, 4], &[70_000, 256]] {
        let channels = dims[dims.len() - 1];
        let x = Input::f32(random.uniforms(dims.iter().product(), -2.0, 2.0), dims);
        let slope = Input::f32(random.uniforms(channels, -1.0, 1.0), &[channels]);
        let case = Case::new(prelu, vec![x, slope]);
        conform_within(&case, kiln::op::Op::bound, true, |op, inputs| forced.run(op, inputs)).unwrap();
    }
    let mut batch = forced.batch();
    let x = batch.upload(&[-1.0, 2.0], &[2]).unwrap();
    let slope = batch.upload_operand(&kiln::Operand::elements(&[kiln::f16::from_f32(0.5); 2], &[2]).unwrap()).unwrap();
    let y = batch.record(prelu, &[x, slope]).unwrap();
    let y = batch.neg(y).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [0.5, -2.0]);
}

#[test]
fn a_group_is_a_place_that_alone_reads_tensors_of_parts() {
    let Some(adapter) = adapter() else { return };
    let engine =
        Engine::builder().adapter_group(&[adapter.clone(), adapter.clone()]).without_profile().build().unwrap();
    let name = gpu_place(&engine);
    assert_eq!((engine.devices_of(&name), engine.devices_of("host")), (Ok(2), Ok(1)));
    assert!(matches!(engine.devices_of("nowhere"), Err(Error::Unavailable { .. })));
    let part = |data: &[f32]| Tensor::from_slice(data, &[2, 2]).unwrap();
    let x = Tensor::from_parts(vec![part(&[1.0, 2.0, 3.0, 4.0]), part(&[10.0, 20.0, 30.0, 40.0])]).unwrap();
    let whole = part(&[1.0, 0.0, 0.0, 1.0]);
    // Too small to be worth a GPU, but no other place has the parts.
    let mut batch = engine.batch();
    let (parts, whole) = (batch.import(&x), batch.import(&whole));
    let y = batch.matmul(parts, whole).unwrap();
    let y = batch.record(AllReduce, &[y]).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [11.0, 22.0, 33.0, 44.0]);
    let cut = engine.tensors().scale(&x.slice(1..2).unwrap(), 2.0).unwrap();
    assert_eq!(cut.to_vec().unwrap(), [6.0, 8.0], "that of the first device");
    // Whether they are on the host still or on the group.
    let unused = Tensor::from_parts(vec![part(&[0.0; 4]), part(&[0.0; 4])]).unwrap();
    for x in [&x, &unused] {
        assert!(matches!(x.to_vec(), Err(Error::Unavailable { what, .. }) if what == "a tensor of 2 parts"));
        assert!(matches!(x.keep_on_host(), Err(Error::Unavailable { .. })));
        assert!(matches!(engine.move_to(x, "host"), Err(Error::Unavailable { .. })));
    }
    let alone = builder(adapter).build().unwrap();
    assert!(matches!(alone.tensors().relu(&x), Err(Error::Unsupported { .. })), "no place has all parts");
    assert!(matches!(Tensor::from_parts(Vec::new()), Err(Error::Arity { .. })));
    let other = Tensor::from_slice(&[1.0], &[1]).unwrap();
    assert!(matches!(Tensor::from_parts(vec![other, part(&[0.0; 4])]), Err(Error::Shape { .. })));
}
