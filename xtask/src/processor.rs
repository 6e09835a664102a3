//! The time that processors spend on commands.

use std::cell::Cell;
use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;

thread_local! {
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Waits for a command to end, and counts its time for this thread.
pub(crate) fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    // Linux has the times of a process until its parent waits for it.
    let spent = loop {
        match std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok().and_then(|line| times(&line)) {
            Some((false, _)) => std::thread::sleep(Duration::from_millis(2)),
            Some((true, spent)) => break spent,
            None => break Duration::ZERO,
        }
    };
    SPENT.set(SPENT.get() + spent);
    child.wait()
}

/// The time of the commands that this thread has waited for with [`wait`] since the last call, with all that they started and waited
/// for. Zero where the system does not tell.
pub(crate) fn take() -> Duration {
    SPENT.take()
}

/// Whether a process has ended, and its time with that of processes that it waited for, from a line of `/proc/PID/stat`.
fn times(line: &str) -> Option<(bool, Duration)> {
    // The second field is a name in parentheses, which may contain anything.
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    // Linux shows times in hundredths of a second on all processors that kiln has.
    Some((fields[0] == "Z", Duration::from_millis(10 * ticks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process_and_its_children_are_added() {
        let line = |state| format!("7 (a b) c) {state} 1 2 3 0 -1 4194304 9 9 9 9 120 30 5 1 20 0");
        assert_eq!(times(&line("Z")), Some((true, Duration::from_millis(1560))));
        assert_eq!(times(&line("S")), Some((false, Duration::from_millis(1560))));
        assert_eq!(times("7 (a)"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_of_a_command_is_counted_once() {
        take();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
        assert!(wait(&mut shell.spawn().unwrap()).unwrap().success());
        assert!(take() > Duration::ZERO);
        assert_eq!(take(), Duration::ZERO);
    }
}
