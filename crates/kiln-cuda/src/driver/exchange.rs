//! Memory that several devices of the process read and write: each allocation is on one device and mapped for all.

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute;
use kiln_ir::{Error, Result};

use super::mapping::{Mapping, granularity};
use super::{Context, DeviceMemory};

/// Allocates this many bytes of each device, at least one, that kernels of all of them may access, filled with zeros. No work on any of
/// the devices may use the memory of one after it is dropped; dropping it waits for all of them.
///
/// # Errors
/// [`Error::Unavailable`] where two of the devices cannot reach each other's memory, or a driver has no virtual memory;
/// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
pub(crate) fn exchange(contexts: &[Arc<Context>], bytes: u64) -> Result<Vec<DeviceMemory>> {
    check_reach(contexts)?;
    let mut size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { bytes: usize::MAX })?.max(1);
    let mut step = 1;
    for context in contexts {
        // The granularities are powers of two, so the largest is a multiple of the others.
        step = granularity(context)?.max(step);
    }
    size = size.checked_next_multiple_of(step).ok_or(Error::OutOfMemory { bytes: size })?;
    let memory = |context| Ok(DeviceMemory::mapped(Mapping::new(context, contexts, size)?, bytes));
    let memory: Vec<DeviceMemory> = contexts.iter().map(memory).collect::<Result<_>>()?;
    for memory in &memory {
        memory.span(0, bytes).map_or(Ok(()), |all| all.fill(0))?;
    }
    // Work of other devices is not ordered after the fill.
    contexts.iter().try_for_each(|context| context.synchronize())?;
    Ok(memory)
}

/// # Errors
/// [`Error::Unavailable`] unless each device has virtual memory and reaches the memory of each other.
fn check_reach(contexts: &[Arc<Context>]) -> Result<()> {
    let unavailable = |reason| Error::Unavailable { what: "memory for a group of devices".into(), reason };
    let named = |context: &Context| format!("{} (device {})", context.name(), context.device());
    for context in contexts {
        let virtual_memory = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        let mut has = 0;
        // SAFETY: it writes one number, to a valid place.
        context.run("querying support of virtual memory", |call| unsafe {
            (call.cuDeviceGetAttribute)(&mut has, virtual_memory, context.device())
        })?;
        if has == 0 {
            return Err(unavailable(format!("the driver does not support virtual memory for {}", named(context))));
        }
    }
    for (i, context) in contexts.iter().enumerate() {
        for (j, other) in contexts.iter().enumerate().filter(|&(j, _)| j != i) {
            if context.device() == other.device() {
                return Err(unavailable(format!("{} is in the group twice", named(context))));
            }
            let mut reaches = 0;
            // SAFETY: it writes one number, to a valid place.
            context.run("querying access between devices", |call| unsafe {
                (call.cuDeviceCanAccessPeer)(&mut reaches, context.device(), other.device())
            })?;
            if reaches == 0 {
                let (first, second) = if i < j { (context, other) } else { (other, context) };
                return Err(unavailable(format!(
                    "{} and {} cannot access each other's memory; devices with NVLink between them, or below one PCIe switch, can",
                    named(first),
                    named(second)
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kiln_ptx::kernels::all_reduce::AllReduce;

    use super::*;
    use crate::driver::{Begins, CapturedGraph, Function, PinnedMemory};
    use crate::plan::Code;
    use crate::{CudaDevice, CudaDeviceOptions};

    /// Devices of the group that tests run on.
    const MOST: u32 = 4;

    /// Several devices that reach one another. Without them a test is skipped, and says so.
    fn devices() -> Option<Vec<CudaDevice>> {
        let open = |ordinal| match CudaDevice::open(ordinal, &CudaDeviceOptions::new()) {
            Err(Error::Unavailable { .. }) => None,
            opened => Some(opened.unwrap()),
        };
        let devices: Vec<CudaDevice> = (0..MOST).map_while(open).collect();
        let required = std::env::var("KILN_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|name| name.trim() == "cuda-group");
        if devices.len() < 2 {
            assert!(!required, "{} devices", devices.len());
            eprintln!("skipped: a group takes two devices, and there are {}", devices.len());
            return None;
        }
        if let Err(why) = check_reach(&contexts(&devices)) {
            assert!(!required && matches!(why, Error::Unavailable { .. }), "{why}");
            eprintln!("skipped: {why}");
            return None;
        }
        Some(devices)
    }

    fn contexts(devices: &[CudaDevice]) -> Vec<Arc<Context>> {
        devices.iter().map(|device| device.inner.context.clone()).collect()
    }

    fn uploaded(context: &Arc<Context>, x: &[f32]) -> DeviceMemory {
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let size = bytes.len().next_multiple_of(16);
        let memory = DeviceMemory::new(context, size as u64).unwrap();
        let mut pinned = PinnedMemory::new(context, size).unwrap();
        pinned.write(&bytes, size);
        pinned.send(&memory.span(0, size as u64).unwrap()).unwrap();
        context.synchronize().unwrap();
        memory
    }

    fn downloaded(context: &Arc<Context>, memory: &DeviceMemory, n: usize) -> Vec<u32> {
        let size = 4 * n;
        let pinned = PinnedMemory::new(context, size).unwrap();
        pinned.fetch(&memory.span(0, size as u64).unwrap()).unwrap();
        context.synchronize().unwrap();
        let mut bytes = vec![0; size];
        pinned.read(&mut bytes);
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    #[test]
    fn devices_sum_through_the_memory_of_one_another() {
        const LAUNCHES: usize = 50;
        let Some(devices) = devices() else { return };
        let contexts = contexts(&devices);
        let region = AllReduce::exchange_bytes(devices.len()) as u64;
        let regions = exchange(&contexts, region).unwrap();
        let multiprocessors = devices.iter().map(|device| device.info().multiprocessors).min().unwrap();
        // Whatever sums leave in the regions, later ones of any form and length give the right results.
        for n in [1, 4096, 5, 65_536, 65_537, 3_000_001, 4099] {
            let value =
                |device: usize, i: usize| ((i * 37 + device * 101) % 1009) as f32 * [1e-3, 1.0, 7e2][(i + device) % 3];
            let x: Vec<Vec<f32>> =
                (0..devices.len()).map(|device| (0..n).map(|i| value(device, i)).collect()).collect();
            let wanted: Vec<u32> = (0..n).map(|i| x[1..].iter().fold(x[0][i], |sum, x| sum + x[i]).to_bits()).collect();
            let sum = AllReduce::new(devices.len(), n).unwrap();
            let launch = sum.launch(n, multiprocessors).unwrap();
            let functions: Vec<Arc<Function>> =
                devices.iter().map(|device| device.inner.kernels.get(&Code::from(sum)).unwrap()).collect();
            let inputs: Vec<DeviceMemory> = contexts.iter().zip(&x).map(|(c, x)| uploaded(c, x)).collect();
            let outputs: Vec<DeviceMemory> = contexts.iter().map(|c| uploaded(c, &vec![0.0; n])).collect();
            let size = 4 * n.next_multiple_of(4) as u64;
            let spans = |device: usize| {
                let (own, all) = (&regions[device], &regions);
                let data = [&inputs[device], &outputs[device]].map(|memory| memory.span(0, size).unwrap());
                let regions = std::iter::once(own).chain(all).map(|memory| memory.span(0, region).unwrap());
                data.into_iter().chain(regions).collect::<Vec<_>>()
            };
            let begins = |number| if number == 0 { Begins::Behind } else { Begins::Beside };
            for number in 0..LAUNCHES {
                for (device, function) in functions.iter().enumerate() {
                    function.launch(&launch, &spans(device), begins(number)).unwrap();
                }
            }
            let check = || {
                for (device, context) in contexts.iter().enumerate() {
                    assert_eq!(downloaded(context, &outputs[device], n), wanted, "device {device}, {n} elements");
                }
            };
            check();
            for (context, output) in contexts.iter().zip(&outputs) {
                output.span(0, size).unwrap().fill(0).unwrap();
                context.synchronize().unwrap();
            }
            let mut graphs: Vec<CapturedGraph> = (0..devices.len())
                .map(|device| {
                    CapturedGraph::new(&contexts[device], |capture| {
                        (0..LAUNCHES).try_for_each(|number| {
                            capture.launch(&functions[device], &launch, &spans(device), begins(number))
                        })
                    })
                    .unwrap()
                })
                .collect();
            for _ in 0..3 {
                graphs.iter_mut().for_each(|graph| graph.launch().unwrap());
            }
            check();
        }
    }

    #[test]
    fn only_kernels_use_memory_of_other_devices_and_only_what_is_mapped() {
        let Some(devices) = devices() else { return };
        let contexts = contexts(&devices);
        let regions = exchange(&contexts, 16).unwrap();
        let [mine, theirs] = [0, 1].map(|i: usize| regions[i].span(0, 16).unwrap());
        assert_eq!(downloaded(&contexts[1], &regions[1], 4), [0; 4]);
        assert!(mine.copy_from(&theirs).unwrap_err().to_string().contains("memory of another device"));
        let sum = AllReduce::new(2, 4).unwrap();
        let (function, launch) = (devices[0].inner.kernels.get(&Code::from(sum)).unwrap(), sum.launch(4, 1).unwrap());
        let other = DeviceMemory::new(&contexts[1], 16).unwrap();
        let spans = [mine, other.span(0, 16).unwrap(), mine, mine, theirs];
        let refused = function.launch(&launch, &spans, Begins::Behind).unwrap_err().to_string();
        assert!(refused.contains("buffer 1 is of another device"), "{refused}");
        let twice = exchange(&[contexts[0].clone(), contexts[0].clone()], 16).unwrap_err();
        assert!(twice.to_string().contains("twice"), "{twice}");
    }

    /// A device whose partner never comes is lost after a minute, for all that use it in the process.
    #[test]
    #[ignore = "takes a minute, after which the process has lost a device: run it alone"]
    fn a_device_gives_up_where_another_never_comes() {
        let Some(devices) = devices() else { return };
        let contexts = contexts(&devices[..2]);
        let region = AllReduce::exchange_bytes(2) as u64;
        let regions = exchange(&contexts, region).unwrap();
        let x = uploaded(&contexts[0], &[1.0; 4]);
        let x = x.span(0, 16).unwrap();
        let [mine, theirs] = [0, 1].map(|i: usize| regions[i].span(0, region).unwrap());
        let sum = AllReduce::new(2, 4).unwrap();
        let (function, launch) = (devices[0].inner.kernels.get(&Code::from(sum)).unwrap(), sum.launch(4, 1).unwrap());
        function.launch(&launch, &[x, x, mine, mine, theirs], Begins::Behind).unwrap();
        let lost = contexts[0].synchronize().unwrap_err();
        eprintln!("{lost}");
        assert!(matches!(lost, Error::DeviceLost { .. }), "{lost}");
        contexts[1].synchronize().unwrap();
    }
}
