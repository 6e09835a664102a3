//! A calibration with a GPU.
#![cfg(not(target_arch = "wasm32"))]

use std::collections::BTreeSet;

use kiln_ir::op::Elementwise;
use kiln_ir::{Shape, TensorType};
use kiln_route::{Backend, Problem};

use crate::calibrate::grid;
use crate::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};
use crate::{Effort, Engine, Probe, ProfileStatus};

/// The problems of a calibration, and the number of their classes. With `KILN_SAMPLE=n` they are those of every n-th class, of every
/// fourth at most, and of exponentials: the one with the least work, and every n-th of the others. A driver in software takes minutes for all of them.
fn probes() -> (Vec<Probe>, usize) {
    let mut probes = grid::calibration().unwrap();
    let n = std::env::var("KILN_SAMPLE").map_or(1, |n| n.parse::<usize>().unwrap().max(1));
    let class_and_work = |probe: &Probe| {
        let problem = Problem::new(&probe.op, &probe.inputs).unwrap();
        (problem.class(), problem.work())
    };
    probes.sort_by(|a, b| {
        let [(a, less), (b, more)] = [a, b].map(class_and_work);
        a.cmp(&b).then(less.total_cmp(&more))
    });
    let exponentials = Problem::new(&Elementwise::exp().into(), &[many()]).unwrap().class();
    let (mut seen, mut classes, mut number) = (BTreeSet::new(), BTreeSet::new(), 0);
    probes.retain(|probe| {
        number += 1;
        let (class, _) = class_and_work(probe);
        let is_first = seen.insert(class);
        if is_first && (class == exponentials || seen.len().is_multiple_of(n.min(4))) {
            classes.insert(class);
        }
        classes.contains(&class) && (is_first || number % n == 0)
    });
    (probes, classes.len())
}

fn many() -> TensorType {
    TensorType::f32(Shape::new(&[1 << 16]).unwrap())
}

#[test]
#[ignore = "the step `gpu` runs it: an engine that chooses an instruction set needs it no more than once"]
fn a_calibration_measures_the_gpu_and_is_found_again() {
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
    let adapter = match GpuDevice::find(&choice) {
        Ok(found) => AdapterChoice::Name(found.label),
        Err(why) => {
            let required = std::env::var("KILN_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name.trim() == "wgpu"), "{why}");
            eprintln!("skipped: {why}");
            return;
        }
    };
    let gpu_place = |engine: &Engine| {
        let place = engine.places().iter().find(|place| place.backend == Backend::Gpu).expect("a GPU was asked for");
        place.name.clone()
    };
    let folder = std::env::temp_dir().join(format!("kiln-gpu-{}", std::process::id()));
    let file = folder.join("profile.json");
    let with_gpu = || Engine::builder().adapter(adapter.clone()).profile_file(&file);
    let mut engine = with_gpu().build().unwrap();
    assert!(matches!(engine.profile_status(), ProfileStatus::Ignored(_)));
    let (probes, classes) = probes();
    assert!(classes > 25, "{classes}");
    let report = engine.calibrate_by(probes, Effort::Quick, &mut |_| {}).unwrap();
    assert!(report.left_out.is_empty() && report.classes == classes, "{report}, of {classes}");
    let name = gpu_place(&engine);
    let predicted = engine.explain(Elementwise::exp(), &[many()]).unwrap();
    let of_gpu = predicted.predictions.iter().find(|(place, _)| *place == name).unwrap().1;
    assert!(of_gpu > 0.0 && of_gpu < 10.0, "{predicted}");

    let again = with_gpu().build().unwrap();
    assert!(matches!(again.profile_status(), ProfileStatus::Loaded(_)), "{}", again.profile_status());
    let read = again.explain(Elementwise::exp(), &[many()]).unwrap();
    assert_eq!(read.chosen, predicted.chosen);
    assert_eq!(read.predictions, predicted.predictions);
    // Without a request the measured GPU is a placement nevertheless.
    let found = Engine::builder().profile_file(&file).build().unwrap();
    assert_eq!(gpu_place(&found), name);
    let without = Engine::builder().profile_file(&file).backends(&[Backend::Scalar, Backend::Simd]).build().unwrap();
    assert!(without.places().iter().all(|place| place.backend != Backend::Gpu));
    assert!(matches!(without.profile_status(), ProfileStatus::Loaded(_)));
    std::fs::remove_dir_all(folder).unwrap();
}
