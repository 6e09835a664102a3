//! Device memory, and pinned host memory, which the device reads and writes directly.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use kiln_ir::{Error, Result};

use super::Context;
use super::mapping::Mapping;

/// Memory of a device. Its initial contents are undefined.
///
/// All work that reads or writes it runs on the one stream of its context, in the order of submission. So it can be
/// reused while earlier work that uses it is still pending. Memory that is mapped for several devices is used by the
/// streams of all of them.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    pointer: CUdeviceptr,
    bytes: u64,
    origin: Origin,
}

/// The origin of device memory, which decides how it is freed.
#[derive(Debug)]
enum Origin {
    /// An allocation for the device alone.
    Allocated,
    /// A mapping for several devices, which unmaps itself.
    Mapped(Mapping),
}

/// A range of bytes in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span<'a> {
    context: &'a Arc<Context>,
    /// The contexts of all devices for which it is mapped, if it is mapped for several.
    users: &'a [Arc<Context>],
    address: CUdeviceptr,
    bytes: u64,
}

impl DeviceMemory {
    /// Allocates this many bytes, at least one.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let out = || Error::OutOfMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) };
        let size = usize::try_from(bytes).map_err(|_| out())?;
        let mut pointer = 0;
        // SAFETY: it writes one address, to a valid place.
        let taken =
            context.run_waiting("allocating memory", |call| unsafe { (call.cuMemAlloc_v2)(&mut pointer, size) });
        taken.map_err(|error| if let Error::OutOfMemory { .. } = error { out() } else { error })?;
        Ok(Self { context: context.clone(), pointer, bytes, origin: Origin::Allocated })
    }

    /// The first bytes of a mapping, which has at least as many.
    pub(super) fn mapped(mapping: Mapping, bytes: u64) -> Self {
        let (context, pointer) = (mapping.context().clone(), mapping.address());
        Self { context, pointer, bytes, origin: Origin::Mapped(mapping) }
    }

    /// A part of it; `None` if it is not inside.
    pub(crate) fn span(&self, offset: u64, bytes: u64) -> Option<Span<'_>> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let users = match &self.origin {
            Origin::Allocated => &[],
            Origin::Mapped(mapping) => mapping.users(),
        };
        fits.then_some(Span { context: &self.context, users, address: self.pointer + offset, bytes })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        match self.origin {
            Origin::Allocated => {
                // SAFETY: the address came from the driver and is freed once; the driver waits for work that uses it.
                self.context.give_back("freeing memory", |call| unsafe { (call.cuMemFree_v2)(self.pointer) });
            }
            Origin::Mapped(_) => {}
        }
    }
}

impl Span<'_> {
    /// Its address.
    pub(super) fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is memory of this context.
    pub(super) fn is_of(&self, context: &Context) -> bool {
        std::ptr::eq(&**self.context, context)
    }

    /// Whether kernels of this context may access it: it is of this context, or mapped for it.
    pub(super) fn is_open_to(&self, context: &Context) -> bool {
        self.is_of(context) || self.users.iter().any(|user| std::ptr::eq(&**user, context))
    }

    /// Sets every byte to a value.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) fn fill(&self, value: u8) -> Result<()> {
        let context = self.context;
        // SAFETY: this many bytes from the address on are memory of this context.
        context.run("filling memory", |call| unsafe {
            (call.cuMemsetD8Async)(self.address(), value, self.bytes as usize, context.stream())
        })
    }

    /// Copies the first bytes of another range here.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`]; also if the lengths or the devices differ.
    pub(crate) fn copy_from(&self, from: &Span<'_>) -> Result<()> {
        let context = self.context;
        if self.bytes != from.bytes || !from.is_of(context) {
            return Err(misfit(context, "a copy on the device", self.bytes, from.bytes));
        }
        // SAFETY: this many bytes from both addresses on are memory of this context.
        context.run("a copy on the device", |call| unsafe {
            (call.cuMemcpyDtoDAsync_v2)(self.address(), from.address(), self.bytes as usize, context.stream())
        })
    }
}

/// Pinned host memory, which the device reads and writes asynchronously.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    pointer: NonNull<u8>,
    /// Its address for kernels.
    seen_at: CUdeviceptr,
    bytes: usize,
}

// SAFETY: it is memory like that of a vector, owned only by this value.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        const SEEN_BY_DEVICES: u32 = 2;
        let mut pointer: *mut c_void = std::ptr::null_mut();
        // SAFETY: it writes one address, to a valid place.
        let taken = context.run_waiting("allocating pinned memory", |call| unsafe {
            (call.cuMemHostAlloc)(&mut pointer, bytes, SEEN_BY_DEVICES)
        });
        let out = Error::OutOfMemory { bytes };
        taken.map_err(|error| if let Error::OutOfMemory { .. } = error { out.clone() } else { error })?;
        let pointer = NonNull::new(pointer.cast()).ok_or(out)?;
        let mut memory = Self { context: context.clone(), pointer, seen_at: 0, bytes };
        // SAFETY: it writes one address, to a valid place; the memory was just allocated as visible to devices.
        context.run("mapping pinned memory", |call| unsafe {
            (call.cuMemHostGetDevicePointer_v2)(&mut memory.seen_at, pointer.as_ptr().cast(), 0)
        })?;
        Ok(memory)
    }

    /// All of it, for kernels to access.
    pub(crate) fn span(&self) -> Span<'_> {
        Span { context: &self.context, users: &[], address: self.seen_at, bytes: self.bytes as u64 }
    }

    /// Copies bytes in, padded with zeros to `all`. The device must not read them at the same time: earlier reads have
    /// been waited for.
    pub(crate) fn write(&mut self, bytes: &[u8], all: usize) {
        let n = bytes.len().min(self.bytes);
        let zeros = all.min(self.bytes).saturating_sub(n);
        // SAFETY: both sides have `n` bytes, followed by `zeros` here; a caller's slice does not overlap this memory.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer.as_ptr(), n);
            self.pointer.add(n).write_bytes(0, zeros);
        }
    }

    /// Copies the first bytes out, after waiting for the device.
    pub(crate) fn read(&self, bytes: &mut [u8]) {
        let n = bytes.len().min(self.bytes);
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer.as_ptr(), bytes.as_mut_ptr(), n) }
    }

    /// Starts a copy of the first bytes to device memory.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`]; also if the range is longer or on another device.
    pub(crate) fn send(&self, to: &Span<'_>) -> Result<()> {
        self.fits(to)?;
        // SAFETY: both sides have this many bytes. They stay valid until the device has read them: this is dropped and
        // written only after a wait.
        self.context.run("an upload", |call| unsafe {
            let from = self.pointer.as_ptr().cast::<c_void>();
            (call.cuMemcpyHtoDAsync_v2)(to.address(), from, to.bytes as usize, self.context.stream())
        })
    }

    /// Starts a copy from device memory to the first bytes.
    ///
    /// # Errors
    /// The errors of [`PinnedMemory::send`].
    pub(crate) fn fetch(&self, from: &Span<'_>) -> Result<()> {
        self.fits(from)?;
        // SAFETY: as in `send`.
        self.context.run("a download", |call| unsafe {
            let to = self.pointer.as_ptr().cast::<c_void>();
            (call.cuMemcpyDtoHAsync_v2)(to, from.address(), from.bytes as usize, self.context.stream())
        })
    }

    fn fits(&self, span: &Span<'_>) -> Result<()> {
        let fits = span.bytes <= self.bytes as u64 && span.is_of(&self.context);
        if fits { Ok(()) } else { Err(misfit(&self.context, "a copy", self.bytes as u64, span.bytes)) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // The device may still access it.
        self.context.drain();
        // SAFETY: the address came from the driver and is freed once.
        self.context
            .give_back("freeing pinned memory", |call| unsafe { (call.cuMemFreeHost)(self.pointer.as_ptr().cast()) });
    }
}

fn misfit(context: &Context, what: &str, here: u64, there: u64) -> Error {
    Error::Driver {
        what: what.into(),
        device: context.name().to_owned(),
        message: format!("the sides have {here} and {there} bytes, or one side is memory of another device"),
    }
}
