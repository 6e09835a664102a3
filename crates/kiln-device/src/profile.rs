//! The time of each kernel of an execution, by the clock of the device.

use std::fmt;

/// One kernel of an execution.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Its name.
    pub name: String,
    /// Workgroups (blocks) that ran, in each dimension.
    pub grid: [u32; 3],
    /// Blocks of it that a multiprocessor holds at once, its occupancy, where the driver reports it.
    pub resident_blocks: Option<u32>,
    /// Its duration in nanoseconds.
    pub nanoseconds: f64,
}

/// The kernels of an execution in the order in which they ran, and how long each took. Displays as a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// The kernels.
    pub kernels: Vec<KernelTime>,
}

impl Profile {
    /// The time of all kernels, in nanoseconds, without the gaps between them.
    pub fn nanoseconds(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.nanoseconds).sum()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.nanoseconds();
        let width = self.kernels.iter().map(|kernel| kernel.name.len()).chain(["kernel".len()]).max().unwrap_or(0);
        writeln!(f, "{:width$}  {:>16}  {:>8}  {:>12}  {:>6}", "kernel", "grid", "resident", "us", "share")?;
        for KernelTime { name, grid: [x, y, z], resident_blocks, nanoseconds } in &self.kernels {
            let share = if total > 0.0 { 100.0 * nanoseconds / total } else { 0.0 };
            let grid = format!("{x} x {y} x {z}");
            let resident = resident_blocks.map_or_else(|| "-".to_owned(), |blocks| blocks.to_string());
            let us = nanoseconds / 1e3;
            writeln!(f, "{name:width$}  {grid:>16}  {resident:>8}  {us:>12.3}  {share:>5.1}%")?;
        }
        write!(f, "{:width$}  {:>16}  {:>8}  {:>12.3}", "total", "", "", total / 1e3)
    }
}
