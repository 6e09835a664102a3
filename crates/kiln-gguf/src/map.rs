//! The memory map: the one place of this crate with unsafe code.

use std::fs::File;

/// A file mapped into memory, read-only.
#[derive(Debug)]
pub(crate) struct Map(memmap2::Mmap);

impl Map {
    /// Maps a whole file that is not empty.
    pub(crate) fn new(file: &File) -> std::io::Result<Self> {
        #[allow(unsafe_code)]
        // SAFETY: `map` requires that the file does not change while it is mapped, which no program can enforce. If it
        // does change:
        // - Another process writes to it: later reads may return other bytes. This crate never relies on unchanged
        //   bytes: keys and names are copied when the file is opened, extents and offsets are kept as the numbers that
        //   were checked then, every later slice is bounds-checked, values are decoded with checks each time, and no
        //   `str` is made from a map without a UTF-8 check in the same call. Elements of tensors are plain old data:
        //   every bit pattern is valid. A write during a read of a `&str` of metadata may still produce a string that
        //   is not UTF-8, which is undefined behaviour; programs that write to models while others read them must use
        //   `Gguf::read`. `Bytes` returns the same memory as bytes only; a caller who makes a `str` of them has the
        //   same duty.
        // - The file is truncated: reading a page beyond the new end raises SIGBUS (on Windows an in-page error), which
        //   ends the process. The documentation of `Gguf::open` says so and names `Gguf::read`, which copies the file.
        // - The file is removed or replaced by a rename: the map keeps the old file unchanged. The map is private to
        //   this struct and read-only, so this process does not write through it.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Self(map))
    }

    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
