//! Waiting for another thread.

/// Waits for a condition that a running thread is about to establish: spins first, because that takes less time than
/// sleeping and waking up.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let mut turns = 0;
    while !is_so() {
        turns += 1;
        if turns < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}
