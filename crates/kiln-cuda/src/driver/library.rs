//! The library of the driver, which is loaded once.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUjit_option, CUjitInputType, CUlaunchConfig, CUlinkState, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmodule, CUstream,
    CUstreamCaptureMode, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use kiln_ir::Error;

/// A version of CUDA, as drivers count theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// The number before the dot.
    pub major: u32,
    /// The number behind it.
    pub minor: u32,
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest driver that kiln works with: the first whose graphs are made as kiln makes them.
pub const OLDEST_DRIVER: CudaVersion = CudaVersion { major: 11, minor: 4 };

/// The reason why nothing can run on an NVIDIA GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverProblem {
    /// The driver's library is not installed.
    Absent,
    /// The library lacks a function: it belongs to a driver before [`OLDEST_DRIVER`], or to none.
    Lacking {
        /// The function.
        function: &'static str,
    },
    /// The driver is older than [`OLDEST_DRIVER`].
    TooOld {
        /// Its CUDA version.
        found: CudaVersion,
    },
    /// The driver fails to initialise.
    Refused {
        /// The driver's message.
        reason: String,
    },
    /// The driver reports no device.
    NoDevice,
}

impl fmt::Display for DriverProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => {
                f.write_str("the NVIDIA driver is not installed (its library, libcuda or nvcuda, was not found)")
            }
            Self::Lacking { function } => {
                write!(f, "the driver lacks {function}: install a driver for CUDA {OLDEST_DRIVER} or later")
            }
            Self::TooOld { found } => {
                write!(f, "the driver is for CUDA {found}: install a driver for CUDA {OLDEST_DRIVER} or later")
            }
            Self::Refused { reason } => write!(f, "the driver fails to initialise: {reason}"),
            Self::NoDevice => {
                f.write_str("the driver reports no device (CUDA_VISIBLE_DEVICES hides devices that it does not list)")
            }
        }
    }
}

impl std::error::Error for DriverProblem {}

impl DriverProblem {
    /// As an error of kiln: [`Error::Unavailable`]. It is not a `From`, with which the type of the error of a closure in a
    /// program could no longer be inferred.
    pub fn into_error(self) -> Error {
        Error::Unavailable { what: "CUDA".into(), reason: self.to_string() }
    }
}

/// The result code of a driver function. A number, not an enumeration: newer drivers have codes that no binding knows.
pub(super) type Code = c_uint;

/// Success.
pub(super) const SUCCESS: Code = 0;

macro_rules! functions {
    ($($name:ident($($x:ident: $ty:ty),*);)*) => {
        /// The driver functions that kiln calls; all exist.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) -> Code,)*
        }

        impl Functions {
            /// # Safety
            /// The library is that of a driver, whose functions have these types.
            unsafe fn load() -> Result<Self, DriverProblem> {
                // SAFETY: the caller has checked that the library exists; otherwise this would panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($ty),*) -> Code;
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the type is that of `cuda.h`, except that the result is the number of the
                        // enumeration. The library is never unloaded.
                        *unsafe { library.get::<Function>(name) }
                            .map_err(|_| DriverProblem::Lacking { function: stringify!($name) })?
                    },)*
                })
            }
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName(code: Code, name: *mut *const c_char);
    cuGetErrorString(code: Code, text: *mut *const c_char);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceCanAccessPeer(reaches: *mut c_int, device: CUdevice, other: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxSetCurrent(context: CUcontext);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(pointer: CUdeviceptr);
    cuMemGetAllocationGranularity(
        granularity: *mut usize, properties: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags
    );
    cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong
    );
    cuMemRelease(handle: CUmemGenericAllocationHandle);
    cuMemAddressReserve(
        pointer: *mut CUdeviceptr, bytes: usize, alignment: usize, wanted: CUdeviceptr, flags: c_ulonglong
    );
    cuMemAddressFree(pointer: CUdeviceptr, bytes: usize);
    cuMemMap(
        pointer: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong
    );
    cuMemUnmap(pointer: CUdeviceptr, bytes: usize);
    cuMemSetAccess(pointer: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostGetDevicePointer_v2(pointer: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemsetD8Async(to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(executable: CUgraphExec);
    cuGraphDestroy(graph: CUgraph);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuEventQuery(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuEventDestroy_v2(event: CUevent);
    cuLinkCreate_v2(count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void, state: *mut CUlinkState);
    cuLinkAddData_v2(
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, bytes: usize, name: *const c_char,
        count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void
    );
    cuLinkComplete(state: CUlinkState, cubin: *mut *mut c_void, bytes: *mut usize);
    cuLinkDestroy(state: CUlinkState);
    cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void
    );
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CUfunction, threads: c_int, shared: usize);
    cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, arguments: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// `cuTensorMapEncodeTiled`, which drivers have from CUDA 12.0 on.
pub(super) type EncodeTiled = unsafe extern "C" fn(
    map: *mut CUtensorMap,
    element: CUtensorMapDataType,
    rank: c_uint,
    address: *mut c_void,
    extents: *const u64,
    strides: *const u64,
    tile: *const c_uint,
    steps: *const c_uint,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    promotion: CUtensorMapL2promotion,
    outside: CUtensorMapFloatOOBfill,
) -> Code;

/// `cuLaunchKernelEx`: a launch with attributes.
pub(super) type LaunchKernelEx = unsafe extern "C" fn(
    config: *const CUlaunchConfig,
    function: CUfunction,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code;

/// `cuOccupancyMaxActiveClusters`, which drivers have from CUDA 11.8 on.
pub(super) type MaxActiveClusters =
    unsafe extern "C" fn(clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) -> Code;

/// The first driver whose graphs support launches that begin before the preceding ones have ended.
const OVERLAPPING_LAUNCHES: CudaVersion = CudaVersion { major: 12, minor: 3 };

/// An initialised driver with at least one device.
pub(crate) struct Driver {
    pub(super) call: Functions,
    pub(super) encode_tiled: Option<EncodeTiled>,
    /// For drivers from [`OVERLAPPING_LAUNCHES`] on.
    pub(super) launch_kernel_ex: Option<LaunchKernelEx>,
    pub(super) max_active_clusters: Option<MaxActiveClusters>,
    pub(crate) version: CudaVersion,
    pub(crate) devices: u32,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).field("devices", &self.devices).finish()
    }
}

impl Driver {
    /// The driver of this machine, initialised at the first call.
    ///
    /// # Errors
    /// Why the library could not be opened; the same at each call.
    pub(crate) fn get() -> Result<&'static Self, DriverProblem> {
        static DRIVER: OnceLock<Result<Driver, DriverProblem>> = OnceLock::new();
        DRIVER.get_or_init(Self::start).as_ref().map_err(Clone::clone)
    }

    fn start() -> Result<Self, DriverProblem> {
        // SAFETY: it loads and unloads the library, which runs only the initialisers of the driver's own library.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverProblem::Absent);
        }
        // SAFETY: the library exists under the names of a driver's.
        let call = unsafe { Functions::load() }?;
        // SAFETY: as above; the type is that of `cuda.h`, except that the result is the number of the enumeration.
        let encode_tiled = unsafe { sys::culib().get::<EncodeTiled>(b"cuTensorMapEncodeTiled\0") };
        let encode_tiled = encode_tiled.ok().map(|function| *function);
        // SAFETY: no flags are defined.
        let started = unsafe { (call.cuInit)(0) };
        if started != SUCCESS {
            /// The result of `cuInit` if there is a driver without devices.
            const NO_DEVICE: Code = 100;
            return Err(match started {
                NO_DEVICE => DriverProblem::NoDevice,
                code => DriverProblem::Refused { reason: message(&call, code) },
            });
        }
        let (mut version, mut devices) = (0, 0);
        let refused = |code| match code {
            SUCCESS => Ok(()),
            code => Err(DriverProblem::Refused { reason: message(&call, code) }),
        };
        // SAFETY: both write one number, to valid places.
        refused(unsafe { (call.cuDriverGetVersion)(&mut version) })?;
        // SAFETY: as above.
        refused(unsafe { (call.cuDeviceGetCount)(&mut devices) })?;
        let version = u32::try_from(version).unwrap_or(0);
        let version = CudaVersion { major: version / 1000, minor: version % 1000 / 10 };
        if version < OLDEST_DRIVER {
            return Err(DriverProblem::TooOld { found: version });
        }
        // SAFETY: as for `cuTensorMapEncodeTiled`.
        let launch_kernel_ex = unsafe { sys::culib().get::<LaunchKernelEx>(b"cuLaunchKernelEx\0") };
        let launch_kernel_ex =
            launch_kernel_ex.ok().filter(|_| version >= OVERLAPPING_LAUNCHES).map(|function| *function);
        // SAFETY: as for `cuTensorMapEncodeTiled`.
        let max_active_clusters = unsafe { sys::culib().get::<MaxActiveClusters>(b"cuOccupancyMaxActiveClusters\0") };
        let max_active_clusters = max_active_clusters.ok().map(|function| *function);
        match u32::try_from(devices) {
            Ok(devices) if devices > 0 => {
                Ok(Self { call, encode_tiled, launch_kernel_ex, max_active_clusters, version, devices })
            }
            _ => Err(DriverProblem::NoDevice),
        }
    }

    /// Whether it supports tensor maps, which describe tensors for asynchronous copies.
    pub(crate) fn has_tensor_maps(&self) -> bool {
        self.encode_tiled.is_some()
    }

    /// The driver's message for a code.
    pub(super) fn message(&self, code: Code) -> String {
        message(&self.call, code)
    }
}

fn message(call: &Functions, code: Code) -> String {
    let text = |function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
        let mut text = std::ptr::null();
        // SAFETY: it writes one pointer, to a valid place; for unknown codes a null pointer.
        let known = unsafe { function(code, &mut text) } == SUCCESS && !text.is_null();
        // SAFETY: the texts are constants of the driver and end with a zero.
        known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    match (text(call.cuGetErrorName), text(call.cuGetErrorString)) {
        (Some(name), Some(words)) => format!("{name} ({code}): {words}"),
        (Some(name), None) => format!("{name} ({code})"),
        _ => format!("code {code}"),
    }
}
