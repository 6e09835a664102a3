//! Finds GPUs: wgpu adapters by their labels, CUDA devices by their ordinals and names.
// A build without GPU backends finds no device.
#![cfg_attr(not(any(feature = "gpu", feature = "cuda")), allow(unused))]

use std::sync::{Mutex, PoisonError};

use kiln_ir::{Error, Result};
use kiln_route::{Backend, Place};

use super::device::On;
use super::{Asked, Gpu, Opening};

#[cfg(native_gpu)]
mod adapters {
    use kiln_device::Group;
    use kiln_wgpu::{AdapterChoice, AdapterKind, GpuDevice, GpuDeviceOptions};

    use super::*;

    /// Between the labels of the adapters of a group.
    const AND: &str = " + ";

    fn label_of_group(group: &Group<GpuDevice>) -> String {
        group.devices().iter().map(label).collect::<Vec<_>>().join(AND)
    }

    fn label(device: &GpuDevice) -> String {
        device.adapter().label.clone()
    }

    /// The adapter with this label, or the group of adapters with these.
    pub(super) fn named(name: &str, opening: &Opening) -> Gpu {
        let options = GpuDeviceOptions::new().precision(opening.precision);
        let options = if opening.times_kernels { options.profile() } else { options };
        let options = match &opening.code_folder {
            Some(folder) => options.pipeline_folder(folder),
            None => options,
        };
        let owned = name.to_owned();
        if name.contains(AND) {
            let choices = name.split(AND).map(|name| AdapterChoice::Name(name.to_owned())).collect();
            let on = On::<Group<GpuDevice>>::new(owned.clone(), label_of_group, choices, options);
            return Gpu::new(owned, Backend::Gpu, on);
        }
        let choice = AdapterChoice::Name(owned.clone());
        Gpu::new(owned.clone(), Backend::Gpu, On::<GpuDevice>::new(owned, label, choice, options))
    }

    /// The group of the adapters of these choices.
    pub(super) fn chosen_group(choices: &[AdapterChoice], opening: &Opening) -> Result<Gpu> {
        let labels = choices.iter().map(|choice| Ok(GpuDevice::find(choice)?.label)).collect::<Result<Vec<_>>>()?;
        match labels.len() {
            0 => Err(Error::Unavailable { what: "a group of adapters".into(), reason: "0 adapters; add one".into() }),
            _ => Ok(named(&labels.join(AND), opening)),
        }
    }

    /// The adapter of this choice.
    pub(super) fn chosen(choice: &AdapterChoice, opening: &Opening) -> Result<Gpu> {
        Ok(named(&GpuDevice::find(choice)?.label, opening))
    }

    /// Every hardware GPU, once; or the reason why none is found.
    pub(super) fn hardware(opening: &Opening) -> Result<Vec<Gpu>> {
        let adapters = GpuDevice::list_adapters().into_iter().filter(|adapter| adapter.kind != AdapterKind::Software);
        let gpus: Vec<Gpu> = adapters.map(|adapter| named(&adapter.label, opening)).collect();
        if gpus.is_empty() {
            // If there is no adapter at all, this error says why.
            let software = GpuDevice::find(&AdapterChoice::Any)?;
            let reason = format!("{} is software, which is used only if it is requested explicitly", software.label);
            return Err(Error::Unavailable { what: "a GPU".into(), reason });
        }
        Ok(gpus)
    }
}

#[cfg(native_cuda)]
mod cuda {
    use kiln_cuda::{CudaDevice, CudaDeviceOptions, DeviceInfo, DriverProblem};
    use kiln_device::Group;

    use super::*;

    /// The placement name of a device: `cuda 0: NVIDIA H200`.
    fn place(info: &DeviceInfo) -> String {
        format!("cuda {}: {}", info.ordinal, info.name)
    }

    fn label(device: &CudaDevice) -> String {
        place(device.info())
    }

    /// The placement name of a group, whose devices are alike: `cuda 0 + 1: NVIDIA H200`.
    fn place_of_group<'d>(devices: impl Iterator<Item = &'d DeviceInfo>) -> String {
        let (ordinals, names): (Vec<_>, Vec<_>) = devices.map(|info| (info.ordinal.to_string(), &*info.name)).unzip();
        format!("cuda {}: {}", ordinals.join(" + "), names.first().unwrap_or(&""))
    }

    fn label_of_group(group: &Group<CudaDevice>) -> String {
        place_of_group(group.devices().iter().map(CudaDevice::info))
    }

    /// The device, or the group of devices, whose placement has this name. A name in another form gives a device that is
    /// missing.
    pub(super) fn named(name: &str, opening: &Opening) -> Gpu {
        let parts = name.strip_prefix("cuda ").and_then(|rest| rest.split_once(": "));
        let ordinals =
            parts.and_then(|(ordinals, _)| ordinals.split(" + ").map(|ordinal| ordinal.parse().ok()).collect());
        let ordinals: Vec<u32> = ordinals.unwrap_or_else(|| vec![u32::MAX]);
        let options = CudaDeviceOptions::new().precision(opening.precision);
        let options = if opening.times_kernels { options.profile() } else { options };
        let options = match &opening.code_folder {
            Some(folder) => options.kernel_folder(folder),
            None => options,
        };
        let owned = name.to_owned();
        match ordinals[..] {
            [ordinal] => Gpu::new(owned.clone(), Backend::Cuda, On::<CudaDevice>::new(owned, label, ordinal, options)),
            _ => {
                let on = On::<Group<CudaDevice>>::new(owned.clone(), label_of_group, ordinals, options);
                Gpu::new(owned, Backend::Cuda, on)
            }
        }
    }

    /// The device with this number, or the group of devices with these numbers.
    pub(super) fn chosen(ordinals: &[u32], opening: &Opening) -> Result<Gpu> {
        let devices = CudaDevice::list().map_err(DriverProblem::into_error)?;
        let find = |&ordinal: &u32| {
            devices.iter().find(|info| info.ordinal == ordinal).ok_or_else(|| Error::Unavailable {
                what: format!("CUDA device {ordinal}"),
                reason: match &devices[..] {
                    [] => "no device was found".into(),
                    _ => format!("found {}", devices.iter().map(place).collect::<Vec<_>>().join(", ")),
                },
            })
        };
        let found = ordinals.iter().map(find).collect::<Result<Vec<_>>>()?;
        let differs = found.iter().find(|info| info.name != found[0].name);
        match (&found[..], differs) {
            (&[only], _) => Ok(named(&place(only), opening)),
            (_, None) if found.len() > 1 => Ok(named(&place_of_group(found.into_iter()), opening)),
            (_, other) => {
                let reason = match other {
                    Some(other) => format!("{} is of another kind; use equal devices in a group", place(other)),
                    None => "0 devices; add one".into(),
                };
                Err(Error::Unavailable { what: "a group of CUDA devices".into(), reason })
            }
        }
    }

    /// Every device, or the reason why none is found.
    pub(super) fn hardware(opening: &Opening) -> Result<Vec<Gpu>> {
        let devices = CudaDevice::list().map_err(DriverProblem::into_error)?;
        if devices.is_empty() {
            let reason = "the driver reports no usable device".into();
            return Err(Error::Unavailable { what: "CUDA".into(), reason });
        }
        Ok(devices.iter().map(|info| named(&place(info), opening)).collect())
    }
}

impl Gpu {
    /// The GPU of a profile's placement, whether or not it is present; `None` if this build lacks its backend.
    /// `opening` says where compiled code is kept.
    pub(crate) fn of_place(place: &Place, opening: &Opening) -> Option<Self> {
        match place.backend {
            #[cfg(native_gpu)]
            Backend::Gpu => Some(adapters::named(&place.name, opening)),
            #[cfg(native_cuda)]
            Backend::Cuda => Some(cuda::named(&place.name, opening)),
            _ => None,
        }
    }

    /// The GPU that was requested.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is missing; the message lists the devices found.
    pub(crate) fn chosen(asked: &Asked, opening: &Opening) -> Result<Self> {
        match *asked {
            #[cfg(native_gpu)]
            Asked::Adapter(ref choice) => adapters::chosen(choice, opening),
            #[cfg(native_gpu)]
            Asked::Adapters(ref choices) => adapters::chosen_group(choices, opening),
            #[cfg(browser_gpu)]
            Asked::Adapter(ref choice) => Err(Error::Unavailable {
                what: format!("{choice:?}"),
                reason: "call `build_async`, which opens the adapter of a browser".into(),
            }),
            #[cfg(native_cuda)]
            Asked::Cuda(ref ordinals) => cuda::chosen(ordinals, opening),
        }
    }

    /// Opens the adapter of a browser.
    ///
    /// # Errors
    /// The errors of [`kiln_wgpu::GpuDevice::open_async`].
    #[cfg(browser_gpu)]
    pub(crate) async fn opened(choice: &kiln_wgpu::AdapterChoice) -> Result<Self> {
        use kiln_wgpu::{AdapterChoice, GpuDevice};

        let label = |device: &GpuDevice| device.adapter().label.clone();
        let device = GpuDevice::open_async(choice).await?;
        let name = label(&device);
        let choice = AdapterChoice::Name(name.clone());
        let on = On::<GpuDevice>::opened(name.clone(), label, choice, device);
        Ok(Self::new(name, Backend::Gpu, on))
    }

    /// Every hardware GPU of this backend.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the reason if no GPU is found. The reason is logged once per process.
    pub(crate) fn hardware(kind: Backend, opening: &Opening) -> Result<Vec<Self>> {
        static LOGGED: Mutex<Vec<Backend>> = Mutex::new(Vec::new());
        let found = hardware(kind, opening);
        if let Err(why) = &found {
            let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
            if !logged.contains(&kind) {
                logged.push(kind);
                tracing::info!("no GPU of the backend {kind} was found: {why}");
            }
        }
        found
    }
}

/// Every hardware GPU of this backend.
///
/// # Errors
/// [`Error::Unavailable`] with the reason if no device is found.
fn hardware(kind: Backend, opening: &Opening) -> Result<Vec<Gpu>> {
    match kind {
        #[cfg(native_gpu)]
        Backend::Gpu => adapters::hardware(opening),
        #[cfg(native_cuda)]
        Backend::Cuda => cuda::hardware(opening),
        _ => {
            let reason = "this build does not include it".into();
            Err(Error::Unavailable { what: kind.to_string(), reason })
        }
    }
}
