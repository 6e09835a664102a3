//! Engines on hosts that refuse threads, and files that are no files.

#![cfg(target_os = "linux")]

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kiln::{Effort, Engine, Operations};

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

/// Runs a test again, in a process after these commands of a shell, and returns whether this is that process. Of another user
/// where this one is root, whom no limit binds.
fn again_after(setup: &str, folder: &Path, test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("{{ {setup}; }} || exit 77; exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    shell.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1").current_dir(folder);
    shell.env("HOME", folder).env("XDG_CACHE_HOME", folder);
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        shell.uid(NOBODY).gid(NOBODY);
    }
    let output = shell.output().unwrap();
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
