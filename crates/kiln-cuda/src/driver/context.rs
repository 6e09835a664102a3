//! A device that is open: its context and its stream.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, PoisonError, RwLock};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUstream};
use kiln_ir::{Error, Result};

use super::library::{Code, Driver, EncodeTiled, Functions, LaunchKernelEx, MaxActiveClusters, SUCCESS};

/// The properties of a device that the driver reports without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) capability: (u32, u32),
    pub(crate) memory: u64,
    pub(crate) multiprocessors: u32,
    pub(crate) l2_bytes: u64,
}

/// The primary context of a device, retained while this lives, and a stream on which everything runs in order.
#[derive(Debug)]
pub(crate) struct Context {
    driver: &'static Driver,
    name: String,
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    /// The reason why the device is lost, once it is.
    lost: Mutex<Option<String>>,
}

// SAFETY: any thread may use the driver's handles; a context must be made current in the thread first, which every
// function that needs it does.
unsafe impl Send for Context {}
// SAFETY: as above; the driver synchronizes access to the state of a context.
unsafe impl Sync for Context {}

/// A stream that does not synchronize with the default stream.
const NON_BLOCKING: u32 = 1;

/// Errors after which nothing in a context works any more: faults of kernels, of the hardware and of the driver.
fn is_lasting(code: Code) -> bool {
    matches!(code, 4 | 46 | 201 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 | 999)
}

/// Locked for writing while a group submits to its devices.
static SUBMITTING: RwLock<()> = RwLock::new(());

/// Submits to several devices whose kernels wait for one another. Until the last has its kernels, no other thread begins a call that may
/// wait for all work of a device: such a call would wait for a kernel that waits for one not submitted yet, and would keep the driver
/// from submitting it.
pub(crate) fn submit_together<T>(submit: impl FnOnce() -> T) -> T {
    let _alone = SUBMITTING.write().unwrap_or_else(PoisonError::into_inner);
    submit()
}

impl Context {
    /// The properties that the driver reports for the device with this ordinal.
    ///
    /// # Errors
    /// [`Error::Driver`] for a device that does not respond.
    pub(crate) fn facts(driver: &'static Driver, ordinal: u32) -> Result<Facts> {
        let device = device(driver, ordinal)?;
        let call = &driver.call;
        let of = |what: &str, code| plain(driver, what, &format!("device {ordinal}"), code);
        let mut name = [0u8; 256];
        // SAFETY: it writes at most this many bytes, to a buffer of that size.
        let code = unsafe { (call.cuDeviceGetName)(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device) };
        of("querying the device name", code)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let attribute = |attribute: CUdevice_attribute| {
            let mut value = 0;
            // SAFETY: it writes one number, to a valid place.
            of("querying an attribute", unsafe { (call.cuDeviceGetAttribute)(&mut value, attribute, device) })?;
            Ok::<u32, Error>(u32::try_from(value).unwrap_or(0))
        };
        let mut memory = 0;
        // SAFETY: as above.
        of("querying the memory size", unsafe { (call.cuDeviceTotalMem_v2)(&mut memory, device) })?;
        use CUdevice_attribute as Attribute;
        Ok(Facts {
            name: String::from_utf8_lossy(name).into_owned(),
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory: memory as u64,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        })
    }

    /// Opens the device with this number.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver refuses, [`Error::OutOfMemory`].
    pub(crate) fn open(driver: &'static Driver, ordinal: u32, name: String) -> Result<Self> {
        let device = device(driver, ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one handle, to a valid place.
        let code = unsafe { (driver.call.cuDevicePrimaryCtxRetain)(&mut context, device) };
        plain(driver, "opening the device", &name, code)?;
        let stream = std::ptr::null_mut();
        let mut open = Self { driver, name, device, context, stream, lost: Mutex::new(None) };
        // From here on dropping it releases the context.
        let mut stream = std::ptr::null_mut();
        // SAFETY: as above.
        open.run("creating a stream", |call| unsafe { (call.cuStreamCreate)(&mut stream, NON_BLOCKING) })?;
        open.stream = stream;
        Ok(open)
    }

    /// The name of the device, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The device, whose number is its ordinal.
    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// The function that creates tensor maps, if the driver has it.
    pub(super) fn encode_tiled(&self) -> Option<EncodeTiled> {
        self.driver.encode_tiled
    }

    /// The function for launches with attributes, if the driver has it.
    pub(super) fn launch_kernel_ex(&self) -> Option<LaunchKernelEx> {
        self.driver.launch_kernel_ex
    }

    /// The function for the maximum number of active clusters, if the driver has it.
    pub(super) fn max_active_clusters(&self) -> Option<MaxActiveClusters> {
        self.driver.max_active_clusters
    }

    /// The stream that everything runs on.
    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    /// Calls the driver with this context current.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] once the device is lost, [`Error::OutOfMemory`], [`Error::Driver`].
    pub(super) fn run(&self, what: &str, call: impl FnOnce(&Functions) -> Code) -> Result<()> {
        self.check_alive()?;
        // SAFETY: the context is retained as long as `self` lives.
        let code = match unsafe { (self.driver.call.cuCtxSetCurrent)(self.context) } {
            SUCCESS => call(&self.driver.call),
            code => code,
        };
        self.check(what, code)
    }

    /// [`Context::run`] for calls that may wait for all work of the device, such as an allocation. They do not begin while a group submits
    /// ([`submit_together`]).
    ///
    /// # Errors
    /// The errors of [`Context::run`].
    pub(super) fn run_waiting(&self, what: &str, call: impl FnOnce(&Functions) -> Code) -> Result<()> {
        let _submitted = SUBMITTING.read().unwrap_or_else(PoisonError::into_inner);
        self.run(what, call)
    }

    /// [`Context::run_waiting`] for releasing resources: it also runs on a lost device, and logs a failure.
    pub(super) fn give_back(&self, what: &str, call: impl FnOnce(&Functions) -> Code) {
        let _submitted = SUBMITTING.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `run`.
        let code = match unsafe { (self.driver.call.cuCtxSetCurrent)(self.context) } {
            SUCCESS => call(&self.driver.call),
            code => code,
        };
        if code != SUCCESS && self.check_alive().is_ok() {
            tracing::warn!("{what} failed on {}: {}", self.name, self.driver.message(code));
        }
    }

    fn check(&self, what: &str, code: Code) -> Result<()> {
        if !is_lasting(code) {
            return plain(self.driver, what, &self.name, code);
        }
        let reason = format!("{what}: {}", self.driver.message(code));
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.check_alive()
    }

    /// # Errors
    /// [`Error::DeviceLost`] once the device is lost.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match &*self.lost.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(Error::DeviceLost { device: self.name.clone(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Declares the device lost for all its users in this process: from then on every call is [`Error::DeviceLost`].
    pub(crate) fn abandon(&self, reason: &str) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.to_owned());
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// The errors of [`Context::run`], and of all work since the last wait.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream exists as long as `self` lives.
        self.run("waiting for the device", |call| unsafe { (call.cuStreamSynchronize)(self.stream) })
    }

    /// Waits until the device uses no memory any more, also if it was declared lost ([`Context::abandon`]), because its work continues.
    pub(super) fn drain(&self) {
        // SAFETY: the stream exists as long as `self` lives.
        self.give_back("waiting for the device", |call| unsafe { (call.cuStreamSynchronize)(self.stream) });
    }

    /// The bus address of the device: `0000:1b:00.0`.
    ///
    /// # Errors
    /// The errors of [`Context::run`].
    pub(crate) fn bus(&self) -> Result<CString> {
        let mut name = [0u8; 32];
        // SAFETY: it writes at most this many bytes, to a buffer of that size.
        self.run("querying the bus address", |call| unsafe {
            (call.cuDeviceGetPCIBusId)(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, self.device)
        })?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(CString::new(&name[..end]).unwrap_or_default())
    }

    /// Bytes of memory that are free.
    ///
    /// # Errors
    /// The errors of [`Context::run`].
    pub(crate) fn free_memory(&self) -> Result<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two numbers, to valid places.
        self.run("querying free memory", |call| unsafe { (call.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok(free as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: nothing else uses the stream; work on it is finished first.
            self.give_back("destroying a stream", |call| unsafe { (call.cuStreamDestroy_v2)(self.stream) });
        }
        // SAFETY: the context was retained once, and everything that belongs to it has kept this alive.
        self.give_back("closing the device", |call| unsafe { (call.cuDevicePrimaryCtxRelease_v2)(self.device) });
    }
}

fn device(driver: &Driver, ordinal: u32) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: it writes one number, to a valid place.
    let code = unsafe { (driver.call.cuDeviceGet)(&mut device, ordinal as c_int) };
    plain(driver, "querying the device", &format!("device {ordinal}"), code)?;
    Ok(device)
}

/// The error of a code that does not affect the context.
fn plain(driver: &Driver, what: &str, device: &str, code: Code) -> Result<()> {
    const OUT_OF_MEMORY: Code = 2;
    match code {
        SUCCESS => Ok(()),
        // The allocating function knows the size and reports it.
        OUT_OF_MEMORY => Err(Error::OutOfMemory { bytes: 0 }),
        code => Err(Error::Driver { what: what.to_owned(), device: device.to_owned(), message: driver.message(code) }),
    }
}
