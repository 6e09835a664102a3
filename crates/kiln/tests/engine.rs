//! The engine: results, settings, profiles that cannot be used.

#[cfg(not(target_arch = "wasm32"))]
#[path = "support/told.rs"]
mod told;

use kiln::op::{Convolve2d, Matmul, Matvec, Op, Padding};
use kiln::{Backend, Engine, Error, Isa, Operations, Shape, TensorType};

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

#[test]
fn operations_give_what_they_should() {
    let engine = engine();
    assert_eq!(engine.add(&[1.0, 2.0], &[3.0, 4.0]).unwrap(), [4.0, 6.0]);
    assert_eq!(engine.clip(&[-2.0, 0.5, 7.0], -1.0, 1.0).unwrap(), [-1.0, 0.5, 1.0]);
    assert_eq!(engine.sum(&[1.0, 2.0, 3.0]).unwrap(), 6.0);
    assert_eq!(engine.sum(&[]).unwrap(), 0.0);
    assert_eq!(engine.dot(&[1.0, 2.0], &[3.0, 4.0]).unwrap(), 11.0);
    let mut out = [0.0; 2];
    engine.mul_into(&[2.0, 3.0], &[5.0, 7.0], &mut out).unwrap();
    assert_eq!(out, [10.0, 21.0]);
    assert_eq!(engine.matmul(&[1.0, 2.0, 3.0, 4.0], &[1.0, 0.0, 0.0, 1.0], 2, 2, 2).unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

/// Alone among these tests: it is logged once in a process.
#[test]
#[cfg(not(target_arch = "wasm32"))]
fn elements_beyond_a_quantised_format_are_logged_once() {
    use kiln::QuantFormat;
    let engine = engine();
    let mut x = [1.0; 64];
    let quantize =
        |x: &[f32], format| told::messages(tracing::Level::WARN, || engine.quantize(x, 32, format).unwrap()).0;
    assert!(quantize(&x, QuantFormat::Q8_0).is_empty());
    x[40] = 1e30;
    assert!(quantize(&x, QuantFormat::Mxfp4).is_empty(), "whose scales are powers of two");
    let said = quantize(&x, QuantFormat::Q8_0);
    assert!(said.len() == 1 && said[0].contains("1 blocks of q8_0"), "{said:?}");
    assert!(quantize(&x, QuantFormat::Q4_0).is_empty());
}

#[test]
fn every_family_is_there() {
    use kiln::op::{Attention, Padding, Rope};
    let engine = engine();
    let x = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(engine.argmax(&x).unwrap(), 3);
    assert_eq!(engine.sum_axis(&x, &[2, 2], 0).unwrap(), [4.0, 6.0]);
    assert_eq!(engine.matvec(&x, &[1.0, 1.0], 2, 2).unwrap(), [3.0, 7.0]);
    assert_eq!(engine.matvec_with(&x, &[1.0, 1.0], 2, 2, Matvec { transpose: true }).unwrap(), [4.0, 6.0]);
    let turned = Matmul { transpose_a: false, transpose_b: true };
    assert_eq!(
        engine.matmul_with(&x, &[1.0, 0.0, 1.0, 1.0, 2.0, 0.0], 2, 2, 3, turned).unwrap(),
        [1.0, 3.0, 2.0, 3.0, 7.0, 6.0]
    );
    assert!(matches!(engine.matmul_with(&x, &x, 2, 2, 3, turned), Err(Error::Length { .. })));
    assert_eq!(engine.transpose(&x, 2, 2).unwrap(), [1.0, 3.0, 2.0, 4.0]);
    let halves = engine.cast::<f32, kiln::f16>(&[1.0, 1.0 + 2f32.powi(-11), -65520.0]).unwrap();
    assert_eq!(halves, [1.0, 1.0, f32::NEG_INFINITY].map(kiln::f16::from_f32));
    assert_eq!(engine.cast::<_, f32>(&halves).unwrap(), [1.0, 1.0, f32::NEG_INFINITY]);
    assert!(matches!(engine.cast_into(&halves, &mut [0f32; 2]), Err(Error::Length { .. })));
    assert_eq!(engine.softmax(&[0.0, 0.0], 2).unwrap(), [0.5, 0.5]);
    assert_eq!(engine.rms_norm(&[2.0, 2.0], &[1.0, 3.0], 0.0).unwrap(), [1.0, 3.0]);
    assert_eq!(engine.layer_norm(&[1.0, 3.0], &[1.0; 2], &[0.0; 2], 0.0).unwrap(), [-1.0, 1.0]);
    assert_eq!(engine.gather(&x, 2, &[1, 0]).unwrap(), [3.0, 4.0, 1.0, 2.0]);
    assert!(matches!(engine.gather(&x, 2, &[2]), Err(Error::Index { .. })));
    assert_eq!(engine.top_k(&x, 4, 2).unwrap(), (vec![4.0, 3.0], vec![3, 2]));
    assert_eq!(engine.convolve2d(&x, (2, 2), &[1.0; 4], (2, 2), Padding::Valid).unwrap(), [10.0]);
    assert_eq!(engine.max_pool2d(&x, &[2, 2], (2, 2), (2, 2)).unwrap(), [4.0]);
    assert_eq!(engine.avg_pool2d(&x, &[2, 2], (2, 2), (2, 2)).unwrap(), [2.5]);
    let attended = engine.attention(&[0.0, 0.0], &[1, 1, 2], &x, &[7.0; 4], &[1, 2, 2], Attention::full()).unwrap();
    assert_eq!(attended, [7.0, 7.0]);
    assert_eq!(engine.rope(&[1.0, 2.0], &[1, 2], Rope::default()).unwrap(), [1.0, 2.0]);
    for format in kiln::QuantFormat::ALL {
        let ones = vec![1.0; 256];
        let blocks = engine.quantize(&ones, 256, format).unwrap();
        let back = engine.dequantize(&blocks, format).unwrap();
        assert!(back.iter().all(|v| (v - 1.0).abs() < 0.02), "{format:?}: {:?}", &back[..4]);
        let dot = engine.quant_matvec(&blocks, &ones, 1, 256, format).unwrap()[0];
        assert!((dot - 256.0).abs() < 5.0, "{format:?}: {dot}");
        assert!(engine.quant_matvec(&blocks[1..], &ones, 1, 256, format).is_err());
    }
}

#[test]
fn every_place_gives_the_same_sum() {
    let x: Vec<f32> = (0..300_000u64).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5).collect();
    let sums: Vec<u32> = engine()
        .places()
        .iter()
        .map(|place| {
            let engine = Engine::builder().without_profile().force(place.name.clone()).build().unwrap();
            engine.sum(&x).unwrap().to_bits()
        })
        .collect();
    assert!(sums.windows(2).all(|w| w[0] == w[1]), "{sums:?}");
}

#[test]
fn a_packed_matrix_gives_what_the_matrix_gives_at_every_place() {
    let (k, n) = (70, 45);
    let value = |i: usize| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5;
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..90 * k).map(value).collect(), (0..k * n).map(value).collect());
    let turned = engine().transpose(&b, k, n).unwrap();
    let free = engine();
    for place in free.places() {
        let forced = Engine::builder().without_profile().force(place.name.clone()).build().unwrap();
        for (matrix, transpose) in [(&b, false), (&turned, true)] {
            let packed = forced.pack_b(matrix, k, n, transpose).unwrap();
            assert!(place.name.starts_with(packed.isa().name()), "{} {packed:?}", place.name);
            assert_eq!((packed.rows(), packed.columns()), (k, n));
            for m in [0, 1, 2, 17, 90] {
                let want = forced.matmul(&a[..m * k], &b, m, k, n).unwrap();
                assert_eq!(forced.matmul_packed(&a[..m * k], &packed, m).unwrap(), want, "{m} rows, {}", place.name);
                // Another engine runs the product with the instruction set that packed the matrix.
                assert_eq!(free.matmul_packed(&a[..m * k], &packed, m).unwrap(), want, "{m} rows, {}", place.name);
            }
        }
    }
    let best = free.pack_b(&b, k, n, false).unwrap();
    assert!(free.places().last().unwrap().name.starts_with(best.isa().name()));
}

#[test]
fn packed_kernels_give_what_the_kernels_give_at_every_place() {
    let op = Convolve2d { padding: Padding::Same, stride: (2, 1), ..Convolve2d::default() };
    // Kernels that are packed by pixels, and kernels that are kept as given.
    for dims in [[96, 16, 3, 3], [5, 3, 3, 3]] {
        let shape = [2, dims[1], 7, 9];
        let small = |n: usize| (0..n).map(|i| ((i * 7919) % 17) as f32 - 8.0).collect::<Vec<f32>>();
        // Small integers, so that every order of summation gives the same result.
        let (x, kernels) = (small(shape.iter().product()), small(dims.iter().product()));
        let free = engine();
        let want = free.convolve2d_with(&x, &shape, &kernels, &dims, op).unwrap();
        for place in free.places() {
            let forced = Engine::builder().without_profile().force(place.name.clone()).build().unwrap();
            let packed = forced.pack_kernels(&kernels, dims).unwrap();
            assert!(place.name.starts_with(packed.isa().name()), "{} {packed:?}", place.name);
            assert_eq!(packed.shape(), Shape::new(&dims).unwrap());
            assert_eq!(forced.convolve2d_packed(&x, &shape, &packed, op).unwrap(), want, "{}", place.name);
            assert_eq!(free.convolve2d_packed(&x, &shape, &packed, op).unwrap(), want, "{}", place.name);
        }
        let packed = free.pack_kernels(&kernels, dims).unwrap();
        assert!(matches!(free.pack_kernels(&kernels[1..], dims), Err(Error::Length { .. })));
        assert!(matches!(free.convolve2d_packed(&x[1..], &shape, &packed, op), Err(Error::Length { .. })));
        assert!(matches!(free.convolve2d_packed(&x, &shape[1..], &packed, op), Err(Error::Length { .. })));
        assert!(matches!(free.convolve2d_packed(&x, &[7, 9], &packed, op), Err(Error::Shape { .. })));
    }
}

#[test]
fn a_packed_matrix_of_other_extents_or_of_another_instruction_set_is_an_error() {
    let engine = engine();
    assert!(matches!(engine.pack_b(&[0.0; 5], 2, 3, false), Err(Error::Length { .. })));
    assert!(matches!(engine.pack_b(&[], usize::MAX, 2, true), Err(Error::Overflow { .. })));
    let packed = engine.pack_b(&[1.0; 6], 2, 3, false).unwrap();
    assert!(matches!(engine.matmul_packed(&[0.0; 3], &packed, 2), Err(Error::Length { .. })));
    assert!(matches!(engine.matmul_packed(&[], &packed, usize::MAX), Err(Error::Overflow { .. })));
    assert!(matches!(engine.matmul_packed_into(&[0.0; 4], &packed, 2, &mut [0.0; 5]), Err(Error::Length { .. })));
    let empty = engine.pack_b(&[], 0, 2, false).unwrap();
    assert_eq!(engine.matmul_packed(&[], &empty, 2).unwrap(), [0.0; 4]);
    let lesser = &engine.places()[0];
    if !lesser.name.starts_with(packed.isa().name()) {
        // An engine with only one other placement, and an engine whose work is forced to another placement.
        let only = Engine::builder().without_profile().backends(&[Backend::Scalar]).build().unwrap();
        let forced = Engine::builder().without_profile().force(lesser.name.clone()).build().unwrap();
        for engine in [only, forced] {
            let error = engine.matmul_packed(&[0.0; 4], &packed, 2).unwrap_err();
            assert!(matches!(error, Error::Parameter { .. }), "{error}");
            assert!(error.to_string().contains("packed for"), "{error}");
        }
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let engine = engine();
    assert!(matches!(engine.add(&[1.0], &[1.0, 2.0]), Err(Error::Shape { .. })));
    assert!(matches!(engine.dot(&[1.0], &[1.0, 2.0]), Err(Error::Shape { .. })));
    assert!(matches!(engine.add_into(&[1.0], &[1.0], &mut []), Err(Error::Length { .. })));
    assert!(matches!(engine.matmul(&[], &[], usize::MAX, 2, usize::MAX), Err(Error::Overflow { .. })));
    assert!(matches!(engine.matmul(&[1.0], &[1.0], 2, 2, 2), Err(Error::Length { .. })));
    assert_eq!(engine.matmul(&[], &[], 0, 5, 0).unwrap(), [0.0; 0]);
    let ty = TensorType::f32(Shape::new(&[2, 2]).unwrap());
    assert!(matches!(engine.run(&Op::from(Matmul::default()), &[]), Err(Error::Arity { .. })));
    assert!(matches!(engine.explain(Matmul::default(), &[ty; 7]), Err(Error::Arity { .. })));
}

#[test]
fn settings_are_obeyed_or_refused() {
    let scalar = Engine::builder().without_profile().backends(&[Backend::Scalar]).build();
    if engine().places().iter().any(|place| place.backend == Backend::Scalar) {
        let scalar = scalar.unwrap();
        assert!(scalar.places().iter().all(|place| place.backend == Backend::Scalar));
        assert_eq!(scalar.add(&[1.0], &[2.0]).unwrap(), [3.0]);
    } else {
        // KILN_ISA sets another instruction set for the whole process.
        assert!(matches!(scalar, Err(Error::Unavailable { .. })));
    }
    let error = Engine::builder().backends(&[Backend::Gpu]).build().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(Engine::builder().backends(&[]).build().is_err());
    assert!(matches!(Engine::builder().threads(0).build(), Err(Error::Parameter { .. })));
    let one = Engine::builder().without_profile().threads(1).build().unwrap();
    assert!(one.places().iter().all(|place| place.threads == 1));
    let error = Engine::builder().without_profile().force("abacus x1").build().unwrap_err();
    assert!(error.to_string().contains(&engine().places()[0].name), "the error names the places: {error}");
    let slowest = Isa::available().next().unwrap();
    let only = Engine::builder().without_profile().instruction_set(slowest).build().unwrap();
    assert!(only.places().iter().all(|place| place.name.starts_with(slowest.name())));
    for isa in Isa::ALL.iter().copied().filter(|isa| !isa.is_available()) {
        let error = Engine::builder().instruction_set(isa).build().unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    }
}

#[test]
fn an_explanation_names_every_place() {
    let engine = engine();
    let ty = TensorType::f32(Shape::new(&[512, 512]).unwrap());
    let text = engine.explain(Matmul::default(), &[ty, ty]).unwrap().to_string();
    for place in engine.places() {
        assert!(text.contains(&place.name), "{text}");
    }
    assert!(text.contains(&engine.machine().to_string()), "{text}");
    assert_eq!(engine.machine().cpus.is_some(), cfg!(target_os = "linux"), "{text}");
    assert!(text.contains("matmul [512, 512] [512, 512]"), "{text}");
    let forced = Engine::builder().without_profile().force(&engine.places()[0].name).build().unwrap();
    assert!(forced.explain(Matmul::default(), &[ty, ty]).unwrap().why.contains("forced"));
}

#[test]
#[cfg(not(target_arch = "wasm32"))]
fn a_profile_that_cannot_be_used_is_reported_ignored_and_rewritten() {
    use kiln::{ProfileProblem, ProfileStatus};
    use kiln_route::PROFILE_VERSION;
    let path = std::env::temp_dir().join(format!("kiln-unusable-{}.json", std::process::id()));
    let build = || Engine::builder().profile_file(&path).build().unwrap();
    assert_eq!(build().profile_status(), &ProfileStatus::Ignored(ProfileProblem::Missing(path.clone())));
    assert!(build().profile_status().to_string().ends_with(&format!("no profile at {}", path.display())));
    assert_eq!(build().profile_file(), Some(&*path));
    let alone = format!("{{\"version\":{PROFILE_VERSION}}}");
    for text in ["", "{", "[]", &alone, "\u{0}\u{0}"] {
        std::fs::write(&path, text).unwrap();
        let engine = build();
        let status = engine.profile_status();
        assert!(matches!(status, ProfileStatus::Ignored(ProfileProblem::Corrupt(_))), "{text:?}: {status:?}");
        assert_eq!(engine.add(&[1.0], &[2.0]).unwrap(), [3.0], "built-in constants decide");
    }
    // The place of the CPU with the most threads as one with another number.
    let profile = build().router().profile().clone();
    let last = build().places().last().unwrap().clone();
    let places = profile.places().iter().cloned().map(|place| match place.name == last.name {
        true => kiln_route::Place { threads: last.threads + 1, ..place },
        false => place,
    });
    let other = kiln_route::Profile::new(profile.machine().clone(), places.collect()).unwrap();
    let status = Engine::builder().profile(other).build().unwrap().profile_status().clone();
    assert!(
        matches!(&status, ProfileStatus::Ignored(ProfileProblem::Corrupt(why)) if why.contains("threads")),
        "{status}"
    );
    let found = PROFILE_VERSION + 1;
    std::fs::write(&path, format!("{{\"version\":{found}}}")).unwrap();
    let problem = ProfileProblem::WrongVersion { found };
    assert_eq!(build().profile_status(), &ProfileStatus::Ignored(problem));

    let engine = build();
    engine.router().profile().save(&path).unwrap();
    let loaded = build();
    assert_eq!(loaded.profile_status(), &ProfileStatus::Loaded(path.clone()));
    assert_eq!(loaded.router().profile(), engine.router().profile());

    // The profile of a limited engine does not cover the whole machine.
    let one = engine.places().len() - 1;
    let last = engine.places()[one].name.clone();
    if one > 0 {
        let less = engine.router().profile().clone().restricted(|place| place.name != last).unwrap();
        less.save(&path).unwrap();
        let problem = ProfileProblem::Incomplete { place: last.clone() };
        assert_eq!(build().profile_status(), &ProfileStatus::Ignored(problem));
        assert_eq!(build().places().len(), engine.places().len());
        engine.router().profile().save(&path).unwrap();
        let limited = Engine::builder().profile_file(&path).force(last).build().unwrap();
        assert_eq!(limited.profile_status(), &ProfileStatus::Loaded(path.clone()));
    }

    let text = std::fs::read_to_string(&path).unwrap();
    let name = &engine.machine().name;
    std::fs::write(&path, text.replace(name, "another machine")).unwrap();
    assert!(matches!(build().profile_status(), ProfileStatus::Ignored(ProfileProblem::Foreign { .. })));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_limited_engine_does_not_write_the_profile_of_the_machine() {
    if Engine::new().unwrap().places().iter().any(|place| place.threads > 1) {
        assert_eq!(Engine::builder().threads(1).build().unwrap().profile_file(), None);
        let path = std::path::Path::new("named.json");
        let named = Engine::builder().threads(1).profile_file(path).build().unwrap();
        assert_eq!(named.profile_file(), Some(path), "a file that is named is written");
    }
    // Without GPUs it would measure less than other engines.
    #[cfg(any(feature = "gpu", feature = "cuda"))]
    {
        let without_gpus = Engine::builder().backends(&[Backend::Scalar, Backend::Simd]).build().unwrap();
        assert_eq!(without_gpus.profile_file(), None);
    }
}

#[test]
fn a_given_profile_without_a_place_of_this_machine_is_told() {
    use kiln::{Place, Profile, ProfileProblem, ProfileStatus};
    let machine = engine().machine().clone();
    let profile = Profile::new(machine, vec![Place::cpu("abacus x1", Backend::Scalar, 1, 1)]).unwrap();
    let engine = Engine::builder().profile(profile).build().unwrap();
    let status = engine.profile_status();
    assert!(matches!(status, ProfileStatus::Ignored(ProfileProblem::Incomplete { .. })), "{status:?}");
    assert_eq!(engine.add(&[1.0], &[2.0]).unwrap(), [3.0]);
}

#[test]
fn a_refining_engine_gives_the_same_results() {
    let engine = Engine::builder().without_profile().refine(true).build().unwrap();
    for _ in 0..50 {
        assert_eq!(engine.add(&[1.0, 2.0], &[3.0, 4.0]).unwrap(), [4.0, 6.0]);
    }
    assert!(engine.router().refines());
}

#[test]
#[cfg(not(target_arch = "wasm32"))]
fn what_was_observed_is_kept_with_the_profile_where_that_is_asked_for() {
    use kiln::{Observed, Profile, ProfileStatus};
    let path = std::env::temp_dir().join(format!("kiln-observed-{}.json", std::process::id()));
    let build = |keep: bool| Engine::builder().profile_file(&path).refine_across_runs(keep).build().unwrap();
    let engine = build(true);
    assert!(engine.router().refines());
    assert_eq!(engine.save_observed().unwrap(), None, "built-in constants are no profile");
    let places = engine.places().to_vec();
    let profile = Profile::new(engine.machine().clone(), places.clone()).unwrap();
    profile.save(&path).unwrap();

    let engine = build(true);
    assert_eq!(engine.profile_status(), &ProfileStatus::Loaded(path.clone()));
    for _ in 0..20 {
        assert_eq!(engine.add(&[1.0, 2.0], &[3.0, 4.0]).unwrap(), [4.0, 6.0]);
    }
    let observed = engine.router().observed();
    assert!(places.len() == 1 || !observed.is_empty(), "{observed:?}");
    assert_eq!(engine.save_observed().unwrap(), Some(&*path));
    let kept = Profile::load(&path, engine.machine()).unwrap();
    assert_eq!(kept.observed().len(), observed.len());
    assert_eq!(build(true).router().observed(), kept.observed());
    assert_eq!(build(true).observed_profile(), kept);

    // Without the option nothing is observed, exported or written.
    let plain = build(false);
    assert!(!plain.router().refines() && plain.router().observed().is_empty());
    assert_eq!(plain.save_observed().unwrap(), None);
    assert_eq!(Profile::load(&path, engine.machine()).unwrap(), kept);

    // The next engine also knows that a placement is slow, and observations of placements that an engine lacks are
    // kept.
    let slow = |place: &str| Observed {
        op: "softmax".into(),
        shape: "one row".into(),
        octave: 12,
        place: place.into(),
        mean: 1e3,
        samples: 10,
        idle: 0,
        remembered: 0.0,
        restored: 0,
    };
    let all: Vec<Observed> = places.iter().map(|place| slow(&place.name)).collect();
    profile.clone().with_observed(all.clone()).unwrap().save(&path).unwrap();
    let one = Engine::builder().profile_file(&path).threads(1).refine_across_runs(true).build().unwrap();
    assert_eq!(one.router().observed().len(), one.places().len());
    assert_eq!(one.save_observed().unwrap(), Some(&*path));
    let mut kept = Profile::load(&path, engine.machine()).unwrap().observed().to_vec();
    kept.sort_by_key(|entry| places.iter().position(|place| place.name == entry.place));
    assert_eq!(kept, all);

    // Meanwhile the file was replaced by a new measurement, or is no longer a profile.
    let mut others = places.clone();
    others[0].roofline.overhead *= 2.0;
    Profile::new(engine.machine().clone(), others).unwrap().save(&path).unwrap();
    assert_eq!(engine.save_observed().unwrap(), None);
    std::fs::write(&path, "{").unwrap();
    assert_eq!(engine.save_observed().unwrap(), None);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_grid_has_at_least_a_third_of_its_shapes_held_out() {
    let evaluation = kiln::grid::evaluation().unwrap();
    let held_out = evaluation.iter().filter(|(_, held_out)| *held_out).count();
    assert!(held_out * 3 >= evaluation.len(), "{held_out} of {}", evaluation.len());
    assert!(evaluation.len() >= 100, "{}", evaluation.len());
}

#[cfg(feature = "ndarray")]
mod arrays {
    use super::*;
    use kiln::op::Reduction;
    use ndarray::{Array2, array};

    #[test]
    fn layouts_do_not_change_results() {
        let engine = engine();
        let nd = engine.arrays();
        let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let b = array![[1.0f32, 0.5], [2.0, 0.25], [3.0, 0.125]];
        let expected = a.dot(&b);
        assert_eq!(nd.matmul(a.view(), b.view()).unwrap(), expected);
        let (at, bt) = (a.t().to_owned(), b.t().to_owned());
        assert_eq!(nd.matmul(at.t(), b.view()).unwrap(), expected);
        assert_eq!(nd.matmul(a.view(), bt.t()).unwrap(), expected);
        assert_eq!(nd.matmul(at.t(), bt.t()).unwrap(), expected);
        let wide = Array2::from_shape_fn((2, 6), |(i, j)| if j % 2 == 0 { a[(i, j / 2)] } else { -1.0 });
        let strided = wide.slice(ndarray::s![.., ..;2]);
        assert_eq!(nd.matmul(strided, b.view()).unwrap(), expected);
        let reversed = a.slice(ndarray::s![..;-1, ..;-1]);
        assert_eq!(nd.matmul(reversed, b.view()).unwrap(), reversed.dot(&b));
        assert_eq!(nd.add(a.view().into_dyn(), reversed.into_dyn()).unwrap(), (&a + &reversed).into_dyn());
        assert_eq!(nd.sum(a.t().into_dyn()).unwrap(), 21.0);
        let row = array![10.0f32, 20.0, 30.0];
        assert_eq!(nd.add(a.view().into_dyn(), row.view().into_dyn()).unwrap(), (&a + &row).into_dyn());
        assert!(nd.add(a.view().into_dyn(), b.view().into_dyn()).is_err());
        assert!(nd.matmul(a.view(), a.view()).is_err());
        assert!(nd.reduce(a.view().into_dyn(), Reduction::Sum, 2).is_err());
        assert!(matches!(nd.reduce(a.view().into_dyn(), Reduction::ArgMax, 0), Err(Error::Type { .. })));
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_view_that_repeats_its_elements_without_end_is_an_error() {
        let engine = engine();
        let nd = engine.arrays();
        let one = array![1.0f32];
        let many = one.broadcast(1usize << 46).unwrap();
        assert!(matches!(nd.sum(many.into_dyn()), Err(Error::OutOfMemory { .. })));
        assert!(matches!(nd.exp(many.into_dyn()), Err(Error::OutOfMemory { .. })));
        let square = one.broadcast((1usize << 23, 1usize << 23)).unwrap();
        assert!(matches!(nd.matmul(square, square), Err(Error::OutOfMemory { .. })));
    }
}
