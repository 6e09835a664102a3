//! The GPUs of NVIDIA as they work: `cargo run --release --features cuda --example cuda_monitor -- [seconds]`.
//!
//! A line for each device and second, three seconds where none are given: memory by the driver; clocks, temperature, power and
//! utilisation by NVML, the library that comes with the driver for that, where it is found. Without a driver it says so.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use kiln::Result;
use kiln::cuda::{CudaDevice, CudaDeviceOptions, Readings};

fn main() -> ExitCode {
    let seconds = match std::env::args_os().nth(1).map_or(Ok(3), |argument| argument.to_string_lossy().parse::<u32>()) {
        Ok(seconds) => seconds,
        Err(_) => {
            eprintln!("cuda_monitor: the argument is a number of seconds");
            return ExitCode::FAILURE;
        }
    };
    match CudaDevice::driver_version() {
        Err(problem) => {
            println!("cuda_monitor: nothing to watch: {problem}");
            ExitCode::SUCCESS
        }
        Ok(version) => match watch(seconds) {
            Ok(()) => {
                println!("watched for {seconds} s; the driver is for CUDA {version}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("cuda_monitor: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

fn watch(seconds: u32) -> Result<()> {
    let infos = CudaDevice::list().map_err(|problem| problem.into_error())?;
    infos.iter().for_each(|info| println!("{info}"));
    let open = |ordinal| CudaDevice::open(ordinal, &CudaDeviceOptions::new());
    let devices = infos.iter().map(|info| open(info.ordinal)).collect::<Result<Vec<_>>>()?;
    println!(
        "{:>6} {:>12} {:>12} {:>9} {:>9} {:>6} {:>8} {:>6} {:>8}",
        "device", "used MiB", "free MiB", "SM MHz", "mem MHz", "C", "W", "GPU %", "memory %"
    );
    for second in 0..seconds {
        if second > 0 {
            sleep(Duration::from_secs(1));
        }
        for device in &devices {
            let info = device.info();
            let free = device.free_memory()?;
            let memory = [info.memory.saturating_sub(free), free].map(|bytes| bytes >> 20);
            let [clock, memory_clock, degrees, watts, busy, memory_busy] =
                shown(device.readings()?.unwrap_or_default());
            println!(
                "{:>6} {:>12} {:>12} {clock:>9} {memory_clock:>9} {degrees:>6} {watts:>8} {busy:>6} {memory_busy:>8}",
                info.ordinal, memory[0], memory[1]
            );
        }
    }
    Ok(())
}

/// Clocks, temperature, power and utilisation; a dash for what the device does not tell.
fn shown(readings: Readings) -> [String; 6] {
    let watts = readings.power.map(|milliwatts| milliwatts / 1000);
    let Readings { clock, memory_clock, temperature, utilization, memory_utilization, .. } = readings;
    [clock, memory_clock, temperature, watts, utilization, memory_utilization]
        .map(|value| value.map_or("-".to_owned(), |value| value.to_string()))
}
