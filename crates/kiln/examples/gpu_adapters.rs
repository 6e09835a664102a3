//! What GPUs this machine has: `cargo run --release --features gpu --example gpu_adapters`.

use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};

fn main() {
    let adapters = GpuDevice::list_adapters();
    println!("{} adapters", adapters.len());
    for adapter in &adapters {
        println!("  {adapter}");
    }
    match GpuDevice::find(&AdapterChoice::Best) {
        Ok(best) => println!("kiln would open {}", best.label),
        Err(why) => println!("kiln would open none: {why}"),
    }
    println!("{ADAPTER_VARIABLE}=<part of a label, or an index> chooses another");
}
