//! Futures, for those who have no runtime of their own.

/// Whether functions that wait exist on this target: everywhere but in a browser, whose only thread must not wait.
pub const fn sync_available() -> bool {
    cfg!(not(target_arch = "wasm32"))
}

/// Waits for a future on this thread.
#[cfg(not(target_arch = "wasm32"))]
pub fn block_on<F: Future>(future: F) -> F::Output {
    pollster::block_on(future)
}
