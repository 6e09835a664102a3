//! Scratch memory that a thread keeps: nothing is allocated once it has grown to the size of the blocks.

use std::cell::Cell;

/// A cache line; makes a `Vec` of them aligned to one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f32; 16]);

thread_local! {
    static KEPT: Cell<Lines> = const { Cell::new(Lines(Vec::new())) };
}

/// Memory aligned to 64 bytes.
#[derive(Default)]
pub(crate) struct Lines(Vec<Line>);

impl Lines {
    /// Memory for `len` f32, zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        Self(vec![Line([0.0; 16]); len.div_ceil(16)])
    }

    /// The memory.
    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.0.as_ptr().cast()
    }

    /// The memory, for writing.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Scratch memory, aligned to 64 bytes, given back to the thread when dropped.
///
/// Taking it twice on a thread is allowed (a thread that waits may run another task meanwhile): the second gets memory
/// of its own.
pub(crate) struct Workspace(Lines);

impl Workspace {
    /// Memory for at least `len` f32 of undefined value.
    pub(crate) fn take(len: usize) -> Self {
        let mut lines = KEPT.take();
        if lines.0.len() < len.div_ceil(16) {
            // The old contents are of no use: free them before allocating.
            drop(std::mem::take(&mut lines));
            lines = Lines::zeros(len);
        }
        Self(lines)
    }

    /// The memory.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr()
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let kept = KEPT.take();
        KEPT.set(if kept.0.len() > self.0.0.len() { kept } else { std::mem::take(&mut self.0) });
    }
}
