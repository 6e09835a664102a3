//! NVML, the monitoring library that comes with the driver; it is loaded once.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// The result code of NVML functions: 0 for success.
type Code = c_uint;

/// A device of NVML.
type Handle = *mut c_void;

type Init = unsafe extern "C" fn() -> Code;
type ByBus = unsafe extern "C" fn(*const c_char, *mut Handle) -> Code;
type Read = unsafe extern "C" fn(Handle, *mut c_uint) -> Code;
type ReadKind = unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> Code;
type ReadTwo = unsafe extern "C" fn(Handle, *mut [c_uint; 2]) -> Code;

/// The NVML functions that are used; all exist.
struct Functions {
    by_bus: ByBus,
    clock: ReadKind,
    temperature: ReadKind,
    power: Read,
    utilization: ReadTwo,
}

/// The present clocks, temperature, power and utilisation of a device; `None` for a value that it does not report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readings {
    /// The clock of the multiprocessors, in MHz.
    pub clock: Option<u32>,
    /// The clock of the memory, in MHz.
    pub memory_clock: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
    /// Percent of the last period in which a kernel ran.
    pub utilization: Option<u32>,
    /// Percent of the last period in which memory was read or written.
    pub memory_utilization: Option<u32>,
}

/// The names of the library.
const NAMES: &[&str] = if cfg!(windows) { &["nvml.dll"] } else { &["libnvidia-ml.so.1", "libnvidia-ml.so"] };

fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<(Functions, Library)>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).as_ref().map(|(functions, _)| functions)
}

fn load() -> Option<(Functions, Library)> {
    // SAFETY: loading it runs only the initialisers of the driver's own library.
    let library = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok())?;
    // SAFETY: the types are those of `nvml.h`, with enumerations as their numbers. The library is kept as long as the
    // functions.
    let functions = unsafe {
        let init = library.get::<Init>(b"nvmlInit_v2\0").ok()?;
        if init() != 0 {
            return None;
        }
        Functions {
            by_bus: *library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?,
            clock: *library.get(b"nvmlDeviceGetClockInfo\0").ok()?,
            temperature: *library.get(b"nvmlDeviceGetTemperature\0").ok()?,
            power: *library.get(b"nvmlDeviceGetPowerUsage\0").ok()?,
            utilization: *library.get(b"nvmlDeviceGetUtilizationRates\0").ok()?,
        }
    };
    Some((functions, library))
}

/// The readings of the device at this bus address; `None` without NVML, or if it does not know the device.
pub(crate) fn readings(bus: &CStr) -> Option<Readings> {
    /// The kinds of clock and of sensor.
    const MULTIPROCESSORS: c_int = 1;
    const MEMORY: c_int = 2;
    const DIE: c_int = 0;
    let call = functions()?;
    let mut device = std::ptr::null_mut();
    // SAFETY: the name ends with a zero; it writes one handle, to a valid place.
    if unsafe { (call.by_bus)(bus.as_ptr(), &mut device) } != 0 {
        return None;
    }
    let kind = |function: ReadKind, kind| {
        let mut value = 0;
        // SAFETY: the handle came from NVML, which never invalidates one; it writes one number, to a valid place.
        (unsafe { function(device, kind, &mut value) } == 0).then_some(value)
    };
    let (mut power, mut busy) = (0, [0; 2]);
    // SAFETY: as above.
    let power = (unsafe { (call.power)(device, &mut power) } == 0).then_some(power);
    // SAFETY: as above; it writes two numbers.
    let busy = (unsafe { (call.utilization)(device, &mut busy) } == 0).then_some(busy);
    Some(Readings {
        clock: kind(call.clock, MULTIPROCESSORS),
        memory_clock: kind(call.clock, MEMORY),
        temperature: kind(call.temperature, DIE),
        power,
        utilization: busy.map(|busy| busy[0]),
        memory_utilization: busy.map(|busy| busy[1]),
    })
}
