//! Downloads of results, several through one buffer.

use kiln_ir::Result;

use super::device::{Mapped, begin_map};
use crate::GpuDevice;
use kiln_device::waiting::Waiting;

/// Minimum size of a buffer: small downloads share them.
const LEAST_BYTES: u64 = 1 << 16;

/// A buffer to which results are copied for download.
#[derive(Debug)]
pub(crate) struct Readback {
    device: GpuDevice,
    buffer: wgpu::Buffer,
    bytes: u64,
}

impl Readback {
    /// A buffer for this many bytes, which are whole words and at most the maximum buffer size.
    pub(crate) fn new(device: &GpuDevice, bytes: u64) -> Self {
        let inner = &device.inner;
        let size = inner.shared.pool.size_class(bytes.max(LEAST_BYTES)).min(inner.target.limits.max_buffer_size);
        let buffer = inner.readbacks.take(size).unwrap_or_else(|| {
            inner.shared.counters.readback_buffers.add(1);
            inner.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("results"),
                size,
                usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
                mapped_at_creation: false,
            })
        });
        Self { device: device.clone(), buffer, bytes }
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Calls `see` with the bytes after all earlier submissions are done.
    ///
    /// A caller that drops this future loses the buffer: otherwise wgpu might take the completion of the awaited work
    /// for that of the buffer's next use.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) async fn see<T>(self, waiting: Waiting, see: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let mapped = begin_map(&self.buffer, self.bytes);
        self.see_mapped(mapped, None, waiting, see).await
    }

    /// Begins to map the buffer, which the last submission copies to. A browser completes it before it runs what is submitted later.
    pub(crate) fn begin(&self) -> Mapped {
        begin_map(&self.buffer, self.bytes)
    }

    /// [`Readback::see`] of a buffer whose mapping has begun, after a submission or all earlier ones.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) async fn see_mapped<T>(
        self,
        mapped: Mapped,
        after: Option<wgpu::SubmissionIndex>,
        waiting: Waiting,
        see: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let view = self.device.mapped(mapped, after, &self.buffer, self.bytes, waiting).await?;
        let seen = see(&view);
        drop(view);
        self.buffer.unmap();
        self.device.inner.readbacks.keep(self.buffer);
        Ok(seen)
    }
}

/// The downloads that share a buffer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// The bytes of all, whole words.
    pub(crate) bytes: u64,
    pub(crate) places: Vec<Place>,
}

/// One tensor in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its index among all reads.
    pub(crate) number: usize,
    /// The offset of its first byte in the buffer.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Place {
    /// Its bytes, padded to whole words.
    pub(crate) fn words(&self) -> u64 {
        self.bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT)
    }

    pub(crate) fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start as usize..(self.start + self.bytes) as usize]
    }
}

/// Distributes reads of these sizes over as few groups as buffers of at most `most` bytes allow. There is at least one
/// group.
pub(crate) fn groups(sizes: impl IntoIterator<Item = u64>, most: u64) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut last = Group::default();
    for (number, bytes) in sizes.into_iter().enumerate() {
        // Each begins at a whole vector.
        let mut start = last.bytes.next_multiple_of(16);
        if start > 0 && start + bytes > most {
            groups.push(std::mem::take(&mut last));
            start = 0;
        }
        let place = Place { number, start, bytes };
        last.bytes = start + place.words();
        last.places.push(place);
    }
    groups.push(last);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_together_fits_a_buffer_and_does_not_overlap() {
        let sizes = [100, 0, 7, 400, 512, 1, 256, 256];
        let all = groups(sizes, 512);
        let places = all.iter().flat_map(|group| &group.places);
        assert!(places.clone().map(|place| place.number).eq(0..sizes.len()), "{all:?}");
        assert!(places.map(|place| place.bytes).eq(sizes), "{all:?}");
        for group in &all {
            let mut end = 0;
            for place in &group.places {
                assert!(place.start >= end && place.start.is_multiple_of(16), "{all:?}");
                end = place.start + place.words();
            }
            assert_eq!(end, group.bytes);
            assert!(group.bytes <= 512, "{all:?}");
        }
        assert_eq!(groups([], 512), [Group::default()]);
        assert_eq!(groups([4, 4, 4], 512).len(), 1);
        assert_eq!(groups([512; 3], 512).len(), 3);
    }
}
