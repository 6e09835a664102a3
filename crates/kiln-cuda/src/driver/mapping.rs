//! Device memory at addresses that several devices use.
//!
//! It comes from the virtual-memory functions of the driver. `cuCtxEnablePeerAccess` would map every allocation of a device for the
//! others, and each later allocation would wait for all of them.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1 as Flags, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use kiln_ir::{Error, Result};

use super::Context;

/// The location of a device's memory, for the driver.
fn location(context: &Context) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device() as c_int }
}

/// The properties of an allocation on a device; it is not exported to other processes.
fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: Flags { compressionType: 0, gpuDirectRDMACapable: 0, usage: 0, reserved: [0; 4] },
    }
}

/// Sizes of allocations of a device are multiples of this.
///
/// # Errors
/// [`Error::DeviceLost`], [`Error::Driver`].
pub(super) fn granularity(context: &Context) -> Result<usize> {
    let mut granularity = 0;
    let (properties, minimum) =
        (properties(context), CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    // SAFETY: it reads valid properties and writes one number, to a valid place.
    context.run("querying the granularity of memory", |call| unsafe {
        (call.cuMemGetAllocationGranularity)(&mut granularity, &properties, minimum)
    })?;
    Ok(granularity.max(1))
}

/// An allocation of a device at an address for several.
#[derive(Debug)]
pub(super) struct Mapping {
    context: Arc<Context>,
    /// The contexts of all devices that may access it.
    users: Vec<Arc<Context>>,
    handle: CUmemGenericAllocationHandle,
    /// 0 until it is reserved.
    address: CUdeviceptr,
    is_mapped: bool,
    bytes: usize,
}

impl Mapping {
    /// Memory of the device of `context`, in a multiple of the granularity of all users.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
    pub(super) fn new(context: &Arc<Context>, users: &[Arc<Context>], bytes: usize) -> Result<Self> {
        const WHAT: &str = "allocating memory for a group";
        let properties = properties(context);
        let mut handle = 0;
        // SAFETY: it reads valid properties and writes one handle, to a valid place; no flags are defined.
        let taken = context.run_waiting(WHAT, |call| unsafe { (call.cuMemCreate)(&mut handle, bytes, &properties, 0) });
        let out = |error| if let Error::OutOfMemory { .. } = error { Error::OutOfMemory { bytes } } else { error };
        taken.map_err(out)?;
        let (context, users) = (context.clone(), users.to_vec());
        // From here on dropping it releases what was reserved.
        let mut mapping = Self { context, users, handle, address: 0, is_mapped: false, bytes };
        let mut address = 0;
        let reserving = "reserving addresses";
        mapping.context.run_waiting(reserving, |call| {
            // SAFETY: it writes one address, to a valid place. Zeros leave the alignment and the address to the driver.
            unsafe { (call.cuMemAddressReserve)(&mut address, bytes, 0, 0, 0) }
        })?;
        mapping.address = address;
        mapping.context.run_waiting("mapping memory", |call| {
            // SAFETY: the driver has just reserved this many bytes at the address, and nothing is mapped there; the allocation has as
            // many.
            unsafe { (call.cuMemMap)(address, bytes, 0, handle, 0) }
        })?;
        mapping.is_mapped = true;
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access: Vec<CUmemAccessDesc> =
            mapping.users.iter().map(|user| CUmemAccessDesc { location: location(user), flags }).collect();
        // SAFETY: the range is mapped; there are as many descriptions as stated, which are only read.
        mapping.context.run_waiting("mapping memory for other devices", |call| unsafe {
            (call.cuMemSetAccess)(address, bytes, access.as_ptr(), access.len())
        })?;
        Ok(mapping)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn users(&self) -> &[Arc<Context>] {
        &self.users
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let context = &self.context;
        if self.is_mapped {
            for user in &self.users {
                // A device may still access it.
                user.drain();
            }
            // SAFETY: it was mapped as a whole and is unmapped once; no device accesses it, as was waited for.
            context.give_back("unmapping memory", |call| unsafe { (call.cuMemUnmap)(self.address, self.bytes) });
        }
        if self.address != 0 {
            // SAFETY: the range was reserved as a whole and is freed once; nothing is mapped there any more.
            context.give_back("freeing addresses", |call| unsafe { (call.cuMemAddressFree)(self.address, self.bytes) });
        }
        // SAFETY: the handle came from the driver and is released once.
        context.give_back("freeing memory of a group", |call| unsafe { (call.cuMemRelease)(self.handle) });
    }
}
