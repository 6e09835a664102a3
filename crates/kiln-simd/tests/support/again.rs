//! Runs a test again, in a process of its own under a limit: the tests of several crates have this file.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// If it is set, this process is the one under the limit.
const CHILD: &str = "KILN_TEST_CHILD";

/// Whether this is the process under the limit.
pub(crate) fn is_again() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The user that this process belongs to.
pub(crate) fn user() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// A user for each limit: they have no other process, so that the limit counts the threads of the test alone.
pub(crate) fn nobody(threads: usize) -> u32 {
    61_234 + threads as u32
}

/// Runs a test again, in a process whose user may have as many threads as this, and returns whether this is that process. No
/// such limit binds root: root starts a process of another user.
pub(crate) fn with_threads(threads: usize, test: &str) -> bool {
    let mut shell = Command::new("/bin/sh");
    if user() == 0 {
        shell.uid(nobody(threads)).gid(nobody(threads));
    }
    shell.current_dir("/");
    // bash and dash name the limit differently.
    again(shell, &format!("ulimit -u {threads} 2>/dev/null || ulimit -p {threads}"), test)
}

/// Runs a test again by a shell, after these commands, and returns whether this is that process.
pub(crate) fn again(mut shell: Command, setup: &str, test: &str) -> bool {
    if is_again() {
        return true;
    }
    shell.args(["-c", &format!("{{ {setup}; }} && exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    // One test thread is the main thread of the process.
    let output = shell.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1").output();
    let (code, success, said) = match output {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            (output.status.code(), output.status.success(), said)
        }
        Err(why) => (Some(1), false, why.to_string()),
    };
    // The system refused the limit, or the program: the user is missing, the privilege is missing, or an emulator does
    // not support it.
    if code.is_some() && !said.contains("running 1 test") {
        println!("skipped: {test}: it cannot be started again: {}", said.trim());
        return false;
    }
    let last: Vec<&str> = said.lines().rev().take(30).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    assert!(success && said.contains("1 passed"), "{code:?}:\n{}", last.join("\n"));
    false
}
