//! Scratch memory of kernels, which each thread keeps: once it has grown to the size of the blocks, calls allocate no memory.

use std::cell::RefCell;

use kiln_ir::Result;

/// A cache line; a `Vec` of them is aligned to one.
#[derive(Clone, Copy)]
#[repr(align(64))]
#[allow(dead_code)] // its elements are reached through pointers
struct Line([f32; 16]);

thread_local! {
    static KEPT: RefCell<Vec<Lines>> = const { RefCell::new(Vec::new()) };
}

/// Memory aligned to 64 bytes.
#[derive(Default)]
pub(crate) struct Lines(Vec<Line>);

impl Lines {
    /// Zeros for `len` f32.
    pub(crate) fn zeros(len: usize) -> Self {
        Self(vec![Line([0.0; 16]); len.div_ceil(16)])
    }

    /// [`Lines::zeros`] for a size that a caller determines: returns an error if the memory is exhausted.
    pub(crate) fn try_zeros(len: usize) -> Result<Self> {
        kiln_ir::reserve(&mut Vec::<Line>::new(), len.div_ceil(16))?;
        Ok(Self::zeros(len))
    }

    /// The memory.
    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.0.as_ptr().cast()
    }

    /// The memory, for writing.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }

    /// All of it, whole cache lines.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: a line is sixteen floats, and nothing else has these while they are borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), 16 * self.0.len()) }
    }
}

/// Scratch memory, aligned to 64 bytes, returned to the thread's cache when dropped.
///
/// A thread may take it twice (while it waits it may run another task): the second call gets separate memory.
pub(crate) struct Workspace(Lines);

impl Workspace {
    /// Memory for at least `len` f32 with undefined values.
    pub(crate) fn take(len: usize) -> Self {
        let mut lines = KEPT.with_borrow_mut(Vec::pop).unwrap_or_default();
        if lines.0.len() < len.div_ceil(16) {
            // The old contents are not needed, so they are freed before allocating.
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
        // The most recently returned is taken first, so that calls nested in the same way find memory of the right
        // size.
        KEPT.with_borrow_mut(|kept| kept.push(std::mem::take(&mut self.0)));
    }
}

/// Calls `f` with `n` floats of unspecified value. A nested call gets separate memory.
pub(crate) fn with<R>(n: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    slices([n], |[slice]| f(&mut slice[..n]))
}

/// Scratch memory of a thread, in elements, below which [`room`] does not check.
const MODEST: usize = 1 << 24;

/// Checks that threads can allocate this many floats in [`slices`] each. Sizes that follow from a caller's extents
/// without being part of its data are reserved first, because running out of memory later would abort the process.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub(crate) fn room(lengths: &[usize], threads: usize) -> Result<()> {
    let each = lengths.iter().fold(0usize, |sum, &n| sum.saturating_add(n).saturating_add(32));
    if each <= MODEST {
        return Ok(());
    }
    let lines = each.div_ceil(16).saturating_mul(threads);
    kiln_ir::reserve(&mut Vec::<Line>::new(), lines)
}

/// Calls `f` with a slice for each length. Each begins at a cache line and has at least sixteen additional floats, so
/// that a vector may reach beyond its end. The values are unspecified.
pub(crate) fn slices<const N: usize, R>(lengths: [usize; N], f: impl FnOnce([&mut [f32]; N]) -> R) -> R {
    let lengths = lengths.map(|n| (n.div_ceil(16) + 1) * 16);
    let mut memory = Workspace::take(lengths.iter().sum());
    let mut at = memory.as_mut_ptr();
    f(lengths.map(|n| {
        // SAFETY: the sum of the lengths was taken, which is initialised and borrowed until `f` returns.
        let slice = unsafe { std::slice::from_raw_parts_mut(at, n) };
        at = at.wrapping_add(n);
        slice
    }))
}
