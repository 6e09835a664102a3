//! Memory that kernels need for a moment: one buffer a thread, grown when it must and kept.

use std::cell::Cell;

thread_local! {
    static BUFFER: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with `n` floats of unspecified value. A call inside of `f` gets memory of its own.
pub(crate) fn with<R>(n: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = BUFFER.take();
    if buffer.len() < n {
        buffer.resize(n, 0.0);
    }
    let result = f(&mut buffer[..n]);
    BUFFER.set(buffer);
    result
}
