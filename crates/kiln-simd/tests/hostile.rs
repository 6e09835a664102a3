//! Hosts that refuse threads, as a limit of a container on processes does: what runs computes the same with fewer.
//!
//! Such a limit binds no user who may do everything, and lasts as long as the process: each test runs again in a process of its own,
//! of another user where this one is root.

#![cfg(not(target_arch = "wasm32"))] // no processes there
#![cfg(target_os = "linux")]
#![cfg(feature = "parallel")]
#![cfg(not(miri))] // no processes there

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use kiln_simd::{Operations, Simd};

/// Where it is set, this process has the limit.
const CHILD: &str = "KILN_TEST_CHILD";

/// A user for each limit: they have no other process, so that the limit counts the threads of the test.
const NOBODY: u32 = 61_234;

/// Runs a test again, in a process that may have as many threads as this, and returns whether this is that process.
fn limited_to(threads: usize, test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut shell = Command::new("/bin/sh");
    // bash and dash name the limit differently.
    shell
        .args(["-c", "ulimit -u \"$0\" 2>/dev/null || ulimit -p \"$0\" || exit 77; exec \"$@\""])
        .arg(threads.to_string())
        .arg(&program);
    // One thread of tests is that of the process.
    shell.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1").current_dir("/");
    if user() == 0 {
        let nobody = NOBODY + threads as u32;
        shell.uid(nobody).gid(nobody);
    }
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if matches!(output.status.code(), Some(77 | 126)) {
        println!("skipped: no process with a limit on threads can be started here: {said}");
        return false;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    false
}

/// The user that this process belongs to.
fn user() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// What is cut among threads: a sum and a product, on as many as this.
fn results(threads: usize) -> Vec<u32> {
    let simd = Simd::new().unwrap().with_threads(threads);
    let x: Vec<f32> = (0..1 << 20).map(|i| (i % 1000) as f32 * 1e-3).collect();
    let mut all = simd.matmul(&x[..512 * 512], &x[512 * 512..2 * 512 * 512], 512, 512, 512).unwrap();
    all.push(simd.sum(&x).unwrap());
    all.extend(simd.exp(&x).unwrap());
    all.iter().map(|x| x.to_bits()).collect()
}

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn the_caller_computes_alone_where_no_thread_can_be_started() {
    if limited_to(0, "the_caller_computes_alone_where_no_thread_can_be_started") {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit does not bind");
        let alone = results(1);
        // The second time no thread is asked for.
        assert!(results(4) == alone);
        assert!(results(4) == alone);
        assert_eq!(threads(), 1);
    }
}

#[test]
fn threads_that_can_be_started_help() {
    if limited_to(3, "threads_that_can_be_started_help") {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("RAYON_NUM_THREADS", "8") };
        let alone = results(1);
        assert!(results(8) == alone);
        // Another user may have processes already.
        assert!(threads() == 3 || threads() < 3 && user() != NOBODY + 3, "{} threads", threads());
    }
}
