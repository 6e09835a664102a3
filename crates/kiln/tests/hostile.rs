//! Engines on hosts that refuse threads, and files that are no files.

#![cfg(not(target_arch = "wasm32"))] // no processes there
#![cfg(target_os = "linux")]

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kiln::{Effort, Engine, Isa, Operations, Profile, ProfileProblem, ProfileStatus};

/// Where it is set, this process is the one under a limit.
const CHILD: &str = "KILN_TEST_CHILD";

/// A user without other processes.
const NOBODY: u32 = 61_240;

/// A new folder that every user may write to.
fn folder(name: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("kiln-hostile-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Runs a test again by a shell, after these commands, and returns whether this is that process. It belongs to another user where
/// this one is root, whom no limit binds.
fn again_after(setup: &str, folder: &Path, test: &str) -> bool {
    let mut shell = Command::new("/bin/sh");
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        shell.uid(NOBODY).gid(NOBODY);
    }
    again_by(shell, setup, folder, test)
}

/// Runs a test again by a shell, after these commands, and returns whether this is that process.
fn again_by(mut shell: Command, setup: &str, folder: &Path, test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    shell.args(["-c", &format!("{{ {setup}; }} || exit 77; exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    shell.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1").current_dir(folder);
    let output = shell.env("HOME", folder).env("XDG_CACHE_HOME", folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    std::fs::remove_dir_all(folder).unwrap();
    if matches!(output.status.code(), Some(77 | 126)) {
        println!("skipped: no process with a limit can be started here: {said}");
        return false;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    false
}

#[test]
fn an_engine_computes_and_calibrates_where_no_thread_can_be_started() {
    let folder = if std::env::var_os(CHILD).is_some() { PathBuf::from(".") } else { folder("threads") };
    let name = "an_engine_computes_and_calibrates_where_no_thread_can_be_started";
    // bash and dash name the limit differently.
    if again_after("ulimit -u 0 2>/dev/null || ulimit -p 0", &folder, name) {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit does not bind");
        let x: Vec<f32> = (0..512 * 512).map(|i| (i % 1000) as f32 * 1e-3).collect();
        let product = |engine: &Engine| engine.matmul(&x, &x, 512, 512, 512).unwrap();
        let mut engine = Engine::new().unwrap();
        let expected = product(&Engine::builder().threads(1).without_profile().build().unwrap());
        assert!(product(&engine) == expected);
        assert!(product(&engine) == expected);
        engine.calibrate(Effort::Quick, &mut |_| {}).unwrap();
        product(&engine);
    }
}

#[test]
fn an_empty_variable_is_as_none() {
    let folder = if std::env::var_os(CHILD).is_some() { PathBuf::from(".") } else { folder("variables") };
    if again_after("export KILN_ISA= KILN_ADAPTER=", &folder, "an_empty_variable_is_as_none") {
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
    let folder = if std::env::var_os(CHILD).is_some() { PathBuf::from(".") } else { folder("full") };
    let mut shell = Command::new("unshare");
    // A small disk that only this process sees; its folder is entered anew to see it.
    shell.args(["--mount", "/bin/sh"]);
    let setup = format!("mount -t tmpfs -o size=64k none '{0}' && cd '{0}'", folder.display());
    if again_by(shell, &setup, &folder, "a_full_disk_leaves_the_old_profile_and_is_reported") {
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
}
