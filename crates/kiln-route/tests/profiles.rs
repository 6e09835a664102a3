//! Profiles on disk: round trips, and everything that can be wrong with one.

use kiln_ir::Precision;
use kiln_route::{
    Backend, Calibrated, Cpus, Link, Machine, Memory, PROFILE_VERSION, Place, Profile, ProfileProblem, Roofline,
};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn machine() -> Machine {
    Machine { name: "test".into(), threads: 2, instruction_set: "avx2".into(), cpus: None }
}

fn profile() -> Profile {
    let places = vec![Place::cpu("scalar x1", Backend::Scalar, 1, 1), Place::cpu("avx2 x2", Backend::Simd, 8, 2)];
    let class = |op: &str, shape: &str| Calibrated {
        precision: Precision::Contract,
        op: op.into(),
        shape: shape.into(),
        work: vec![10.0, 100.0],
        seconds: vec![vec![1e-7, 2e-7], vec![1e-6, 5e-7]],
    };
    let classes = vec![class("sum", ""), class("add", ""), class("matmul", "one row")];
    Profile::new(machine(), places).unwrap().with_classes(classes).unwrap()
}

#[test]
#[cfg(not(target_arch = "wasm32"))] // a page has no files
fn what_is_written_is_read() {
    let directory = std::env::temp_dir().join(format!("kiln-route-{}", std::process::id()));
    let path = directory.join("deep").join("profile.json");
    let missing = Profile::load(&path, &machine()).unwrap_err();
    assert_eq!(missing, ProfileProblem::Missing(path.clone()));
    profile().save(&path).unwrap();
    assert_eq!(Profile::load(&path, &machine()).unwrap(), profile());
    profile().save(&path).unwrap();
    let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file stays: {left:?}");

    let unreadable = Profile::load(path.parent().unwrap(), &machine()).unwrap_err();
    assert!(matches!(unreadable, ProfileProblem::Unreadable { .. }), "{unreadable}");
    std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert!(matches!(Profile::load(&path, &machine()), Err(ProfileProblem::Corrupt(_))));
    std::fs::write(&path, vec![b' '; (16 << 20) + 1]).unwrap();
    assert!(matches!(Profile::load(&path, &machine()), Err(ProfileProblem::Corrupt(_))));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_no_file_is_neither_read_nor_replaced() {
    let directory = std::env::temp_dir().join(format!("kiln-route-fifo-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let fifo = directory.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [fifo.as_path(), &directory, std::path::Path::new("/dev/null"), std::path::Path::new("/dev/zero")] {
        let unreadable = Profile::load(path, &machine()).unwrap_err();
        assert!(matches!(unreadable, ProfileProblem::Unreadable { .. }), "{unreadable}");
        assert!(unreadable.to_string().contains("not a file"), "{unreadable}");
        assert_eq!(profile().save(path).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        assert!(!path.metadata().unwrap().is_file());
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
#[cfg(not(target_arch = "wasm32"))] // a page has no files
fn a_process_that_was_killed_leaves_nothing_for_ever() {
    let directory = std::env::temp_dir().join(format!("kiln-route-killed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let old = |name: &str| {
        let file = std::fs::File::create(directory.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7200)).unwrap();
    };
    // No process has the number of the first; process 1 always runs.
    let running = ".profile.json.1-9";
    [".profile.json.4194305-3", ".other.json.4194305-3", running].into_iter().for_each(old);
    profile().save(&directory.join("profile.json")).unwrap();
    let mut left: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        // On other systems processes cannot be listed.
        .filter(|name| cfg!(target_os = "linux") || name != running)
        .collect();
    left.sort();
    let mut expected = vec![".other.json.4194305-3", "profile.json"];
    if cfg!(target_os = "linux") {
        expected.insert(1, running);
    }
    assert_eq!(left, expected);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_profile_passes_through_programs_whose_numbers_are_all_f64() {
    fn rounded(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Number(number) => {
                let float = number.as_f64().unwrap();
                // In JavaScript's format.
                if float.fract() == 0.0 && float.abs() < 1e21 {
                    *number = format!("{float}").parse().unwrap();
                }
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(rounded),
            serde_json::Value::Object(fields) => fields.values_mut().for_each(rounded),
            _ => {}
        }
    }
    let mut place = Place::cpu("avx2 x2", Backend::Simd, 8, 2);
    place.roofline.levels.push((u64::MAX, 1e9));
    let profile = Profile::new(machine(), vec![place]).unwrap();
    let mut value = serde_json::from_str(&profile.to_json()).unwrap();
    rounded(&mut value);
    assert_eq!(Profile::from_json(&value.to_string(), &machine()), Ok(profile));
}

#[test]
fn every_truncation_is_corrupt() {
    let text = profile().to_json();
    for end in 0..text.len() {
        let result = Profile::from_json(&text[..end], &machine());
        assert!(matches!(result, Err(ProfileProblem::Corrupt(_))), "{end}: {result:?}");
    }
    assert_eq!(Profile::from_json(&text, &machine()).unwrap(), profile());
    let padded = |bytes: usize| format!("{text}{}", " ".repeat(bytes));
    assert_eq!(Profile::from_json(&padded(1 << 20), &machine()).unwrap(), profile());
    let large = Profile::from_json(&padded(4 << 20), &machine());
    assert!(matches!(&large, Err(ProfileProblem::Corrupt(why)) if why.starts_with("larger")), "{large:?}");
}

#[test]
fn another_machine_is_foreign_and_another_version_is_told() {
    let text = profile().to_json();
    let other = Machine { threads: 64, ..machine() };
    assert!(matches!(Profile::from_json(&text, &other), Err(ProfileProblem::Foreign { .. })));
    let other = Machine { instruction_set: "avx512".into(), ..machine() };
    assert!(matches!(Profile::from_json(&text, &other), Err(ProfileProblem::Foreign { .. })));
    let version = format!("\"version\":{PROFILE_VERSION}");
    for bad in ["\"version\":-1", "\"version\":1e9", "\"version\":99999999999", "\"version\":\"3\"", "\"version\":null"]
    {
        let result = Profile::from_json(&text.replace(&version, bad), &machine());
        assert!(matches!(result, Err(ProfileProblem::Corrupt(_))), "{bad}: {result:?}");
    }
    let newer = text.replace(&version, "\"version\":99");
    assert_eq!(Profile::from_json(&newer, &machine()), Err(ProfileProblem::WrongVersion { found: 99 }));
    // A version with unknown fields is still reported as a wrong version.
    let unknown = newer.replace("\"classes\"", "\"curves\"");
    assert_eq!(Profile::from_json(&unknown, &machine()), Err(ProfileProblem::WrongVersion { found: 99 }));
    let unknown = text.replace("\"classes\"", "\"curves\"");
    assert!(matches!(Profile::from_json(&unknown, &machine()), Err(ProfileProblem::Corrupt(_))));
}

#[test]
fn a_process_that_is_pinned_differently_is_another_machine() {
    let cpus = Cpus { online: 8, pinned: Some("0-1".into()), logical: 2, cores: Some(2) };
    let pinned = |cpus: Cpus| Machine { cpus: Some(cpus), ..machine() };
    let measured = Profile::new(pinned(cpus.clone()), profile().places().to_vec()).unwrap();
    let text = measured.to_json();
    assert_eq!(Profile::from_json(&text, &pinned(cpus.clone())).unwrap(), measured);
    for other in [
        machine(),
        pinned(Cpus { pinned: Some("0,4".into()), cores: Some(1), ..cpus.clone() }),
        pinned(Cpus { pinned: Some("2-3".into()), ..cpus.clone() }),
        pinned(Cpus { online: 2, pinned: None, ..cpus.clone() }),
        pinned(Cpus { cores: None, ..cpus.clone() }),
    ] {
        let problem = Profile::from_json(&text, &other).unwrap_err();
        assert_eq!(problem, ProfileProblem::Foreign { expected: other.into(), found: pinned(cpus.clone()).into() });
        assert!(problem.to_string().contains("2 cores without SMT, pinned to 0-1 of 8 online"), "{problem}");
    }
    let shown = |cpus: Option<Cpus>| Machine { cpus, ..machine() }.to_string();
    assert!(shown(None).ends_with(", affinity and cores unknown"));
    let smt = Cpus { online: 8, pinned: None, logical: 8, cores: Some(4) };
    assert!(shown(Some(smt.clone())).ends_with("8 logical processors of 4 cores (SMT), not pinned"));
    assert!(shown(Some(Cpus { cores: None, ..smt })).contains("of an unknown number of cores"));
}

#[cfg(not(target_arch = "wasm32"))] // a page does not keep observations
mod observations {
    use kiln_ir::op::Elementwise;
    use kiln_ir::{Shape, TensorType};
    use kiln_route::{Observed, Problem, Residency, Router};

    use super::*;

    #[test]
    fn they_are_kept_and_absurd_ones_are_refused() {
        let entry = Observed {
            op: "add".into(),
            shape: String::new(),
            octave: 10,
            place: "avx2 x2".into(),
            mean: 2.0,
            samples: 10,
            idle: 3,
            remembered: 0.0,
            restored: 0,
        };
        let slow = profile().with_observed(vec![entry.clone()]).unwrap();
        let text = slow.to_json();
        let read = Profile::from_json(&text, &machine()).unwrap();
        assert_eq!((read.observed(), &read), (&[entry.clone()][..], &slow));
        assert!(!profile().to_json().contains("observed"), "nothing is written where nothing is kept");
        let good = r#"["add","",10,"avx2 x2",2.0,10,3,0.0,0]"#;
        assert!(text.contains(good), "{good} is not in {text}");
        for bad in [
            // Ratios.
            r#"["add","",10,"avx2 x2",0.0,10,3,0.0,0]"#,
            r#"["add","",10,"avx2 x2",-2.0,10,3,0.0,0]"#,
            r#"["add","",10,"avx2 x2",1e300,10,3,0.0,0]"#,
            r#"["add","",10,"avx2 x2",null,10,3,0.0,0]"#,
            r#"["add","",10,"avx2 x2",2.0,10,3,1e-300,0]"#,
            r#"["add","",10,"avx2 x2",2.0,10,3,-1.0,0]"#,
            // Numbers of observations.
            r#"["add","",10,"avx2 x2",2.0,0,3,0.0,0]"#,
            r#"["add","",10,"avx2 x2",2.0,-1,3,0.0,0]"#,
            r#"["add","",10,"avx2 x2",2.0,99999999999,3,0.0,0]"#,
            // Octaves and places.
            r#"["add","",65,"avx2 x2",2.0,10,3,0.0,0]"#,
            r#"["add","",-1,"avx2 x2",2.0,10,3,0.0,0]"#,
            r#"["add","",10,"abacus",2.0,10,3,0.0,0]"#,
            // Lengths.
            r#"["add","",10,"avx2 x2",2.0,10,3,0.0]"#,
            r#"["add","",10,"avx2 x2",2.0,10,3,0.0,0,0]"#,
            r#"{"op":"add"}"#,
        ] {
            let result = Profile::from_json(&text.replacen(good, bad, 1), &machine());
            assert!(matches!(result, Err(ProfileProblem::Corrupt(_))), "{bad}: {result:?}");
        }
        assert!(profile().with_observed(vec![entry.clone(), entry.clone()]).is_err(), "twice the same");
        let other = slow.restricted(|place| place.threads == 1).unwrap();
        assert!(other.observed().is_empty(), "observations go with their place");

        // A router uses them, and other methods ignore them.
        let (router, add) = (Router::new(profile().with_observed(vec![entry.clone()]).unwrap()), Elementwise::add());
        let ty = TensorType::f32(Shape::new(&[100]).unwrap());
        let problem = Problem::new(&add.into(), &[ty, ty]).unwrap();
        let seconds = |router: &Router| {
            router.decide(&problem, &Residency::host()).predictions().map(|p| p.seconds).collect::<Vec<_>>()
        };
        let before = seconds(&router);
        let kept = router.with_kept_history();
        assert_eq!(seconds(&kept), [before[0], 2.0 * before[1]]);
        assert_eq!(kept.observed(), [entry]);
        assert!(Router::new(profile()).observed().is_empty());
    }
}

#[test]
fn numbers_that_make_no_sense_are_corrupt() {
    let text = profile().to_json();
    for (good, bad) in [
        ("[10.0,100.0]", "[100.0,10.0]"),
        ("[10.0,100.0]", "[10.0,10.0]"),
        ("[10.0,100.0]", "[-1.0,100.0]"),
        ("[10.0,100.0]", "[10.0]"),
        ("[10.0,100.0]", "[]"),
        ("[10.0,100.0]", "[10.0,1e999]"),
        ("[10.0,100.0]", "[null,100.0]"),
        ("[1e-7,2e-7]", "[0.0,2e-7]"),
        ("[1e-7,2e-7]", "[1e-300,2e-7]"),
        ("[1e-7,2e-7]", "[1e-7,1e300]"),
        ("\"launch\":0.0", "\"launch\":1e300"),
        ("[1e-7,2e-7]", "[1e-7]"),
        ("[1e-7,2e-7]", "[1e-7,2e-7,3e-7]"),
        ("[1e-7,2e-7]", "[1e-7,-2e-7]"),
        ("\"launch\":0.0", "\"launch\":-1.0"),
        ("\"memory\":0", "\"memory\":200"),
        ("\"memory\":0", "\"memory\":-1"),
        ("\"links\":[]", "\"links\":[{}]"),
        ("\"name\":\"avx2 x2\"", "\"name\":\"scalar x1\""),
        // It would be part of explanations, which a terminal shows.
        ("\"name\":\"avx2 x2\"", "\"name\":\"avx2\\u0000 x2\""),
        ("\"name\":\"avx2 x2\"", "\"name\":\"\\u001b[2J x2\""),
        ("\"threads\":1", "\"threads\":1e300"),
        ("\"threads\":1", "\"threads\":18446744073709551616"),
        ("\"op\":\"sum\"", "\"op\":\"add\""),
        ("\"threads\":1", "\"threads\":-1"),
    ] {
        assert!(text.contains(good), "{good} is not in {text}");
        let result = Profile::from_json(&text.replacen(good, bad, 1), &machine());
        assert!(matches!(result, Err(ProfileProblem::Corrupt(_))), "{good} -> {bad}: {result:?}");
    }
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(Profile::from_json(&nested, &machine()), Err(ProfileProblem::Corrupt(_))));
}

#[test]
fn places_are_checked_where_a_profile_is_made() {
    assert!(Profile::new(machine(), Vec::new()).is_err());
    let many = (0..17).map(|i| Place::cpu(format!("{i}"), Backend::Simd, 8, 1)).collect();
    assert!(Profile::new(machine(), many).is_err());
    for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let mut place = Place::cpu("bad", Backend::Simd, 8, 1);
        place.roofline.peak = bad;
        assert!(Profile::new(machine(), vec![place]).is_err(), "{bad}");
        let mut place = Place::cpu("bad", Backend::Simd, 8, 1);
        place.roofline = Roofline { levels: vec![(1, bad)], ..place.roofline };
        assert!(Profile::new(machine(), vec![place]).is_err(), "{bad}");
        let link = Link::linear((0.0, bad), (0.0, 1.0));
        assert!(profile().with_link(Memory::new(1), link).is_err(), "{bad}");
    }
    let link = Link::linear((0.0, 1.0), (0.0, 1.0));
    assert!(profile().with_link(Memory::new(1), link.clone()).is_ok());
    assert!(profile().with_link(Memory::HOST, link.clone()).is_err());
    assert!(profile().with_link(Memory::new(255), link).is_err());
}

#[test]
fn a_product_has_times_for_each_precision() {
    let class = |precision: Precision| Calibrated {
        precision,
        op: "matmul".into(),
        shape: String::new(),
        work: vec![10.0],
        seconds: vec![vec![1e-7, 2e-7]],
    };
    let [contract, rounded] = [Precision::Contract, Precision::Int8].map(class);
    let both = profile().with_classes(vec![rounded.clone(), contract.clone()]).unwrap();
    let text = both.to_json();
    assert_eq!(Profile::from_json(&text, &machine()).unwrap(), both);
    // The contract is not written, so that profiles without lower precisions stay as they are.
    assert!(text.contains(r#""precision":"int8""#) && !text.contains("contract"), "{text}");
    let unknown = text.replace("int8", "int3");
    assert!(matches!(Profile::from_json(&unknown, &machine()), Err(ProfileProblem::Corrupt(_))));
    assert!(profile().with_classes(vec![rounded.clone(), rounded]).is_err(), "twice the same");
}

#[test]
fn restricting_keeps_the_times_of_what_stays() {
    let one = profile().restricted(|place| place.threads == 2).unwrap();
    assert_eq!(one.places().len(), 1);
    assert_eq!(one.classes()[0].seconds, [[2e-7], [5e-7]]);
    assert!(profile().restricted(|_| false).is_err());
}

#[test]
fn devices_that_stay_are_numbered_anew_with_their_links() {
    let links = [1e9, 2e9].map(|rate| Link::linear((1e-6, rate), (1e-6, rate)));
    let of = |gpus: &[(&str, u8, usize)]| {
        let mut places = vec![Place::cpu("scalar x1", Backend::Scalar, 1, 1)];
        for &(name, number, _) in gpus {
            places.push(Place { memory: Memory::new(number), ..Place::cpu(name, Backend::Gpu, 1, 1) });
        }
        let linked = |profile: Profile, &(_, number, link): &(&str, u8, usize)| {
            profile.with_link(Memory::new(number), links[link].clone()).unwrap()
        };
        gpus.iter().fold(Profile::new(machine(), places).unwrap(), linked)
    };
    let both = of(&[("a", 1, 0), ("b", 2, 1)]);
    assert_eq!(both.clone().restricted(|place| place.name != "a"), Ok(of(&[("b", 1, 1)])));
    assert_eq!(both.clone().restricted(|place| place.name != "b"), Ok(of(&[("a", 1, 0)])));
    assert_eq!(both.clone().restricted(|place| place.backend == Backend::Scalar), Ok(of(&[])));
    assert_eq!(both.clone().restricted(|_| true), Ok(both));
}

#[test]
#[cfg(not(target_arch = "wasm32"))] // a page has no files
fn threads_that_write_at_once_leave_a_whole_profile() {
    let directory = std::env::temp_dir().join(format!("kiln-route-at-once-{}", std::process::id()));
    let path = directory.join("profile.json");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| profile().save(&path).unwrap()));
        }
    });
    assert_eq!(Profile::load(&path, &machine()).unwrap(), profile());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_number_of_threads_between_two_that_were_measured_has_times_between_theirs() {
    let place = |threads: usize| Place::cpu(format!("avx2 x{threads}"), Backend::Simd, 8, threads);
    let class = Calibrated {
        precision: Precision::Contract,
        op: "sum".into(),
        shape: String::new(),
        work: vec![10.0, 100.0],
        seconds: vec![vec![1e-6, 8e-6], vec![8e-6, 2e-6]],
    };
    let measured = Profile::new(machine(), vec![place(2), place(8)]).unwrap().with_classes(vec![class]).unwrap();
    let profile = measured.clone().with_place_between(place(4), "avx2 x2", "avx2 x8").unwrap();
    let names: Vec<&str> = profile.places().iter().map(|place| place.name.as_str()).collect();
    assert_eq!(names, ["avx2 x2", "avx2 x4", "avx2 x8"]);
    // Four is the geometric mean of two and eight.
    for (seconds, expected) in profile.classes()[0].seconds.iter().zip([(8f64.sqrt() * 1e-6), 4e-6]) {
        assert!((seconds[1] / expected - 1.0).abs() < 1e-12, "{seconds:?}, {expected}");
    }
    let [a, b, c] = [0, 1, 2].map(|i| profile.places()[i].roofline.peak);
    assert!(a < b && b < c);
    for (threads, fewer, more) in [(2, "avx2 x2", "avx2 x8"), (9, "avx2 x2", "avx2 x8"), (4, "avx2 x1", "avx2 x8")] {
        let refused = measured.clone().with_place_between(place(threads), fewer, more);
        assert!(matches!(refused, Err(ProfileProblem::Incomplete { .. })), "{threads} {refused:?}");
    }
}
