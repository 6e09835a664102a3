//! Engines on hosts that refuse threads, and files that are no files.

#![cfg(not(target_arch = "wasm32"))] // no processes on this target
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

use again::{again, is_again, with_threads};
use kiln::{Effort, Engine, Isa, Operations, Profile, ProfileProblem, ProfileStatus};

#[path = "../../kiln-simd/tests/support/again.rs"]
#[allow(dead_code)] // items that other crates' tests use
mod again;

/// A new folder.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln-hostile-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn an_engine_computes_and_calibrates_where_no_thread_can_be_started() {
    if with_threads(0, "an_engine_computes_and_calibrates_where_no_thread_can_be_started") {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit does not bind");
        let x: Vec<f32> = (0..512 * 512).map(|i| (i % 1000) as f32 * 1e-3).collect();
        let product = |engine: &Engine| engine.matmul(&x, &x, 512, 512, 512).unwrap();
        // In a folder that belongs to no user, no profile is found or written.
        let mut engine =
            Engine::builder().instruction_set(Isa::best()).profile_file("/nowhere/profile.json").build().unwrap();
        let expected = product(&Engine::builder().threads(1).without_profile().build().unwrap());
        assert!(product(&engine) == expected);
        assert!(product(&engine) == expected);
        engine.calibrate(Effort::Quick, &mut |_| {}).unwrap();
        product(&engine);
    }
}

#[test]
fn an_empty_variable_is_as_none() {
    let mut shell = Command::new("/bin/sh");
    shell.env("KILN_ISA", "").env("KILN_ADAPTER", "");
    if again(shell, "true", "an_empty_variable_is_as_none") {
        let engine = Engine::builder().without_profile().build().unwrap();
        let known = |isa: Isa| engine.places().iter().any(|place| place.name.contains(isa.name()));
        assert!(Isa::available().all(known), "{:?}", engine.places());
    }
}

#[test]
fn a_profile_that_is_no_file_is_an_error_at_once() {
    let folder = folder("profile");
    let fifo = folder.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [fifo.as_path(), &folder, Path::new("/dev/zero"), Path::new("/dev/null")] {
        let engine = Engine::builder().profile_file(path).build().unwrap();
        let status = engine.profile_status();
        let expected = matches!(status, ProfileStatus::Ignored(ProfileProblem::Unreadable { .. }));
        assert!(expected && status.to_string().contains("not a file"), "{}: {status}", path.display());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_full_disk_leaves_the_old_profile_and_is_reported() {
    let folder = (!is_again()).then(|| folder("full"));
    // A small disk that only this process sees; the process enters the folder again to see it.
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "/bin/sh"]);
    let disk = folder.as_deref().unwrap_or(Path::new(".")).display().to_string();
    let setup = format!("mount -t tmpfs -o size=64k none '{disk}' && cd '{disk}'");
    if again(shell, &setup, "a_full_disk_leaves_the_old_profile_and_is_reported") {
        let engine = Engine::builder().without_profile().build().unwrap();
        let profile = Profile::new(engine.machine().clone(), engine.places().to_vec()).unwrap();
        let path = Path::new("profile.json");
        profile.save(path).unwrap();
        std::fs::write("rest", vec![1; 1 << 20]).unwrap_err();
        let error = profile.save(path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
        assert_eq!(Profile::load(path, engine.machine()).unwrap(), profile);
        assert_eq!(std::fs::read_dir(".").unwrap().count(), 2, "a temporary file stays");
    }
    if let Some(folder) = folder {
        std::fs::remove_dir_all(folder).unwrap();
    }
}
