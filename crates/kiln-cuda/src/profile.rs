//! How long each kernel of an execution took, by the clock of the device.

use std::fmt;

/// One kernel of an execution.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// What it is called.
    pub name: String,
    /// Blocks that ran, in each dimension.
    pub grid: [u32; 3],
    /// Blocks of it that a multiprocessor holds at once: its occupancy.
    pub resident_blocks: u32,
    /// How long it ran, in nanoseconds; the clock counts half microseconds.
    pub nanoseconds: f64,
}

/// The kernels of an execution in the order in which they ran, and how long each took. Displays as a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CudaProfile {
    /// The kernels.
    pub kernels: Vec<KernelTime>,
}

impl CudaProfile {
    /// The time of all kernels, in nanoseconds.
    pub fn nanoseconds(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.nanoseconds).sum()
    }
}

impl fmt::Display for CudaProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.nanoseconds();
        let width = self.kernels.iter().map(|kernel| kernel.name.len()).chain(["kernel".len()]).max().unwrap_or(0);
        writeln!(f, "{:width$}  {:>16}  {:>8}  {:>12}  {:>6}", "kernel", "blocks", "resident", "us", "share")?;
        for KernelTime { name, grid: [x, y, z], resident_blocks, nanoseconds } in &self.kernels {
            let share = if total > 0.0 { 100.0 * nanoseconds / total } else { 0.0 };
            let blocks = format!("{x} x {y} x {z}");
            writeln!(
                f,
                "{name:width$}  {blocks:>16}  {resident_blocks:>8}  {:>12.3}  {share:>5.1}%",
                nanoseconds / 1e3
            )?;
        }
        write!(f, "{:width$}  {:>16}  {:>8}  {:>12.3}", "total", "", "", total / 1e3)
    }
}
