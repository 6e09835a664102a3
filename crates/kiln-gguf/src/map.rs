//! The memory map: the one place of this crate with unsafe code.

use std::fs::File;

/// A file mapped into memory, read-only.
#[derive(Debug)]
pub(crate) struct Map(memmap2::Mmap);

impl Map {
    /// Maps a whole file that is not empty.
    pub(crate) fn new(file: &File) -> std::io::Result<Self> {
        #[allow(unsafe_code)]
        // SAFETY: `map` asks that the file does not change while it is mapped, which no program can enforce, so this is what
        // happens where it does change:
        // - Another process writes to it: later reads may give other bytes. Nothing in this crate depends on bytes staying what
        //   they were: keys and names are copied when the file is opened, extents and offsets are kept as numbers that were
        //   checked then, every later slice is bounds-checked, values are decoded with checks each time, and no `str` is made
        //   from a map without a check of its UTF-8 in the same call. Elements of tensors are plain old data: every pattern
        //   of bits is a value. A write during a read of a `&str` of metadata may still give a string that is not UTF-8,
        //   which the language does not define; programs that write to models while others read them must use `Gguf::read`.
        //   `Bytes` hands out the same as bytes alone; who makes a `str` of them has the same duty.
        // - The file is cut: reading a page that is behind the new end raises SIGBUS (on Windows an in-page error), which ends
        //   the process. The documentation of `Gguf::open` says so and names `Gguf::read`, which copies the file.
        // - The file is removed or replaced by a rename: the map keeps the old file, nothing changes.
        // The map is private to this struct and read-only, so this process does not write through it.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Self(map))
    }

    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
