//! Engines with devices of CUDA: where work goes, and what happens without a driver, without an operation and without a
//! device that was there before.
#![cfg(not(target_arch = "wasm32"))]
#![cfg(feature = "cuda")]

#[path = "../examples/custom_operation/prelu.rs"]
mod prelu;
#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;

use kiln::cuda::{CudaDevice, DeviceInfo};
use kiln::op::{Matmul, Rope};
use kiln::{
    Backend, Effort, Engine, EngineBuilder, Error, Link, Memory, Operations, Place, Profile, ProfileStatus,
    QuantFormat, Record, Roofline, Shape, TensorType,
};
use skip::skip;

/// The first device. Without one the test is left out, and says so; with `cuda` in `KILN_REQUIRE` it fails instead.
fn device() -> Option<DeviceInfo> {
    match CudaDevice::list() {
        Ok(devices) => devices.into_iter().next(),
        Err(why) => {
            skip("cuda", why);
            None
        }
    }
}

fn place_of(device: &DeviceInfo) -> String {
    format!("cuda {}: {}", device.ordinal, device.name)
}

/// A device of this name that is predicted to do everything at once.
fn tempting(name: &str) -> EngineBuilder {
    let engine = Engine::builder().without_profile().build().unwrap();
    let mut places: Vec<Place> = engine.places().iter().filter(|place| !place.backend.is_gpu()).cloned().collect();
    let memory = Memory::new(1);
    places.push(Place {
        name: name.into(),
        backend: Backend::Cuda,
        threads: 0,
        memory,
        launch: 0.0,
        queued: 0.0,
        compile: 0.0,
        roofline: Roofline { overhead: 1e-12, levels: vec![(u64::MAX, 1e18)], peak: 1e20 },
    });
    let link = Link::linear((0.0, 1e18), (0.0, 1e18));
    let profile = Profile::new(engine.machine().clone(), places).unwrap().with_link(memory, link).unwrap();
    Engine::builder().profile(profile)
}

fn chosen(engine: &Engine) -> String {
    let square = [TensorType::f32(Shape::new(&[512, 512]).unwrap()); 2];
    engine.explain(Matmul::default(), &square).unwrap().chosen
}

#[test]
fn without_a_driver_there_is_a_reason_and_everything_runs() {
    let engine = Engine::builder().without_profile().build().unwrap();
    assert_eq!(engine.add(&[1.0, 2.0], &[10.0, 20.0]).unwrap(), [11.0, 22.0]);
    assert!(engine.cuda_devices().unwrap().is_empty(), "none was asked for");
    let Err(problem) = CudaDevice::driver_version() else { return };
    let error = Engine::builder().cuda_device(0).build().unwrap_err();
    assert_eq!(error, problem.clone().into_error());
    assert!(error.to_string().contains(&problem.to_string()), "{error}");
    // An excluded backend is not searched for devices.
    let cpu = Engine::builder().cuda_device(0).backends(&[Backend::Scalar, Backend::Simd]).without_profile();
    assert_eq!(cpu.build().unwrap().neg(&[1.0]).unwrap(), [-1.0]);
}

#[test]
fn a_device_that_is_not_there_any_more_hands_its_work_to_the_cpu() {
    for name in ["cuda 0: a device of another machine", "cuda 77: NVIDIA H200", "no name of a place of CUDA"] {
        let engine = tempting(name).build().unwrap();
        assert_eq!(chosen(&engine), name);
        let mut batch = engine.batch();
        let x = batch.upload(&[1.0, -2.0], &[2]).unwrap();
        let y = batch.relu(x).unwrap();
        batch.execute(&[y]).unwrap();
        assert_eq!(batch.read(y).unwrap(), [1.0, 0.0]);
        assert_ne!(chosen(&engine), name, "it is gone");

        let engine = tempting(name).build().unwrap();
        assert_eq!(engine.matmul(&[2.0; 4], &[3.0; 4], 2, 2, 2).unwrap(), [12.0; 4]);
        assert_ne!(chosen(&engine), name, "it is gone");
        assert!(matches!(engine.cuda_devices(), Err(Error::Unavailable { .. })));

        let forced = tempting(name).force(name).build().unwrap();
        assert!(matches!(forced.add(&[1.0], &[2.0]), Err(Error::Unavailable { .. })), "it answers for itself");
    }
}

#[test]
fn devices_that_are_ruled_out_are_no_places() {
    let name = "cuda 0: a device of another machine";
    let engine = tempting(name).backends(&[Backend::Scalar, Backend::Simd, Backend::Gpu]).build().unwrap();
    assert!(engine.places().iter().all(|place| place.backend != Backend::Cuda));
    assert_eq!(engine.add(&[1.0], &[2.0]).unwrap(), [3.0]);
}

#[test]
fn a_device_is_a_place_and_can_be_forced() {
    let Some(info) = device() else { return };
    let name = place_of(&info);
    let forced = Engine::builder().cuda_device(info.ordinal).without_profile().force(&name).build().unwrap();
    assert_eq!(forced.add(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]).unwrap(), [11.0, 22.0, 33.0]);
    assert_eq!(forced.cuda_devices().unwrap().len(), 1);
    let mut batch = forced.batch();
    let x = batch.upload(&[1.0, -2.0, 3.0, -4.0], &[2, 2]).unwrap();
    let bias = batch.upload(&[0.5, 1.5], &[2]).unwrap();
    let sum = batch.add(x, bias).unwrap();
    let y = batch.relu(sum).unwrap();
    batch.execute(&[y, x]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [1.5, 0.0, 3.5, 0.0]);
    assert_eq!(batch.read(x).unwrap(), [1.0, -2.0, 3.0, -4.0]);
    for _ in 0..3 {
        batch.set(bias, &[10.0, 20.0]).unwrap();
        batch.execute(&[y, x]).unwrap();
        assert_eq!(batch.read(y).unwrap(), [11.0, 18.0, 13.0, 16.0]);
    }
    batch.execute(&[sum]).unwrap();
    assert_eq!(batch.read(sum).unwrap(), [11.0, 18.0, 13.0, 16.0]);
    let missing = Engine::builder().cuda_device(1000).build();
    assert!(matches!(missing, Err(Error::Unavailable { .. })), "{missing:?}");
}

/// Angles that grow along a row are for the CPU alone; the rest of the work stays on the device.
#[test]
fn what_has_no_kernel_runs_elsewhere() {
    let Some(info) = device() else { return };
    let name = place_of(&info);
    let engine = tempting(&name).build().unwrap();
    let op = Rope { theta: 0.5.into(), ..Rope::default() };
    assert_eq!(engine.rope(&[1.0, 2.0, 3.0, 4.0], &[1, 4], op).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(chosen(&engine), name, "it is still there");
    let forced = tempting(&name).force(&name).build().unwrap();
    let error = forced.rope(&[1.0; 4], &[1, 4], op).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    // The CPU and the GPU quantise to the same blocks.
    let weights: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin()).collect();
    let [there, here] = [&forced, &Engine::builder().without_profile().build().unwrap()]
        .map(|engine| engine.quantize(&weights, 256, QuantFormat::Q4K).unwrap());
    assert_eq!(there, here);
}

#[test]
fn a_device_that_is_lost_hands_its_work_to_the_cpu() {
    let Some(info) = device() else { return };
    let name = place_of(&info);
    let engine = tempting(&name).build().unwrap();
    let mut batch = engine.batch();
    let x = batch.upload(&[1.0, -2.0], &[2]).unwrap();
    let y = batch.relu(x).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(chosen(&engine), name);
    engine.cuda_devices().unwrap()[0].destroy();
    batch.set(x, &[-3.0, 4.0]).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [0.0, 4.0]);
    assert_ne!(chosen(&engine), name, "it is gone");
    assert_eq!(engine.scale(&[1.0], 2.0).unwrap(), [2.0]);

    let forced = tempting(&name).force(&name).build().unwrap();
    forced.cuda_devices().unwrap()[0].destroy();
    assert!(matches!(forced.relu(&[1.0]), Err(Error::DeviceLost { .. })));
}

#[test]
fn a_calibration_measures_the_device_and_is_found_again() {
    let Some(info) = device() else { return };
    let name = place_of(&info);
    let folder = std::env::temp_dir().join(format!("kiln-cuda-engine-{}", std::process::id()));
    let file = folder.join("profile.json");
    // One thread keeps the calibration within seconds.
    let asked = || Engine::builder().threads(1).cuda_device(info.ordinal).profile_file(&file);
    let mut engine = asked().build().unwrap();
    engine.calibrate(Effort::Quick, &mut |_| {}).unwrap();
    assert_eq!(engine.places().last().unwrap().name, name);
    let large = [TensorType::f32(Shape::new(&[8192, 8192]).unwrap()); 2];
    let explained = engine.explain(Matmul::default(), &large).unwrap();
    assert_eq!(explained.chosen, name, "{explained}");
    let small = [TensorType::f32(Shape::new(&[4, 4]).unwrap()); 2];
    assert_ne!(engine.explain(Matmul::default(), &small).unwrap().chosen, name, "not worth the way there");

    let again = asked().build().unwrap();
    assert!(matches!(again.profile_status(), ProfileStatus::Loaded(_)), "{}", again.profile_status());
    // Without a request the measured device is a placement nevertheless.
    let found = Engine::builder().threads(1).profile_file(&file).build().unwrap();
    assert_eq!(found.places().last().unwrap().name, name);
    assert!(std::fs::read_dir(&folder).unwrap().count() > 1, "compiled code is kept beside the profile");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_custom_operation_keeps_its_contract() {
    use kiln::op::reference::{Case, Input, Random, conform};
    let Some(device) = device() else { return };
    let engine = Engine::builder().cuda_device(0).without_profile().force(place_of(&device)).build().unwrap();
    let mut random = Random::new(3);
    for dims in [&[1, 1][..], &[3, 7], &[2, 3, 33], &[0, 4], &[5000, 256]] {
        let channels = dims[dims.len() - 1];
        let x = Input::f32(random.uniforms(dims.iter().product(), -2.0, 2.0), dims);
        let slope = Input::f32(random.uniforms(channels, -1.0, 1.0), &[channels]);
        let case = Case::new(kiln::op::Custom::new(&prelu::Prelu, &[]).unwrap(), vec![x, slope]);
        conform(&case, |op, inputs| engine.run(op, inputs)).unwrap();
    }
}
