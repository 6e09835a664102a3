//! Dispatches: kernels with their parameters, on memory that is named and not allocated yet.

use kiln_device::Location;
use kiln_ir::Precision;
use kiln_shaders::elementwise::Chain;
use kiln_shaders::{Capabilities, Head, Kernel};

/// The properties of a device that plans depend on.
#[derive(Debug, Clone)]
pub struct Target {
    pub(crate) limits: wgpu::Limits,
    /// Whether kernels may multiply cooperative matrices.
    pub(crate) cooperative: bool,
    /// With what precision products may read their operands.
    pub(crate) precision: Precision,
}

impl Target {
    /// Whether kernels may multiply cooperative matrices. Browsers do not offer them, so modules for browsers leave these kernels out.
    pub(crate) fn is_cooperative(&self) -> bool {
        cfg!(not(target_arch = "wasm32")) && self.cooperative
    }

    /// Whether products with quantised weights may round their operands to f16.
    pub(crate) fn rounds(&self) -> bool {
        self.is_cooperative() && matches!(self.precision, Precision::Tf32 | Precision::Bf16 | Precision::Int8)
    }
}

/// Bytes between the word pairs that report faults: the binding alignment of every device.
pub(crate) const FAULT_STRIDE: u64 = 256;

/// One 32-bit parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u32);

impl From<u32> for Word {
    fn from(value: u32) -> Self {
        Self(value)
    }
}

impl From<usize> for Word {
    /// Extents fit 32 bits: a binding, and so the elements that a kernel indexes, is smaller.
    fn from(value: usize) -> Self {
        Self(u32::try_from(value).unwrap_or(u32::MAX))
    }
}

impl From<f32> for Word {
    fn from(value: f32) -> Self {
        Self(value.to_bits())
    }
}

/// Part of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) at: Location,
    /// First byte; a multiple of the alignment that the device requires.
    pub(crate) offset: u64,
    /// Number of bytes; `None` for all that follow.
    pub(crate) bytes: Option<u64>,
}

impl From<Location> for Slice {
    fn from(at: Location) -> Self {
        Self { at, offset: 0, bytes: None }
    }
}

/// The number of workgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid(u64);

impl Grid {
    /// This many workgroups.
    pub(crate) fn groups_of(groups: usize) -> Self {
        Self(groups as u64)
    }

    /// The workgroups for this many invocations.
    pub(crate) fn invocations(invocations: usize) -> Self {
        Self((invocations as u64).div_ceil(u64::from(kiln_shaders::WORKGROUP)))
    }

    /// The grid, folded into two dimensions if one would be too long. The last row may exceed the end.
    pub(crate) fn folded(self, most: u32) -> [u32; 3] {
        let rows = self.0.div_ceil(u64::from(most)).max(1);
        let columns = self.0.div_ceil(rows);
        [columns, rows, 1].map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    }
}

/// The code of a dispatch without its parameters, from which a pipeline is compiled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    /// A kernel with constants.
    Kernel(Kernel, Vec<(&'static str, u32)>),
    /// A chain of element-wise functions.
    Chain(Chain),
}

impl Code {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kernel(kernel, _) => kernel.name,
            Self::Chain(_) => "elementwise",
        }
    }

    pub(crate) fn head(&self) -> Head {
        match self {
            Self::Kernel(kernel, _) => kernel.head(),
            Self::Chain(chain) => chain.head(),
        }
    }

    pub(crate) fn text(&self, capabilities: Capabilities) -> String {
        match self {
            Self::Kernel(kernel, constants) => kernel.text(constants, capabilities),
            Self::Chain(chain) => chain.text(capabilities),
        }
    }
}

/// One run of a kernel.
#[derive(Debug, Clone)]
pub struct Dispatch {
    pub(crate) code: Code,
    pub(crate) buffers: Vec<Slice>,
    pub(crate) params: Vec<u32>,
    pub(crate) groups: [u32; 3],
}

#[cfg(test)]
mod tests {
    use super::Grid;

    #[test]
    fn a_grid_that_is_too_long_is_folded_and_has_every_group() {
        let most = 65_535;
        assert_eq!(Grid::groups_of(0).folded(most), [0, 1, 1]);
        assert_eq!(Grid::groups_of(1).folded(most), [1, 1, 1]);
        assert_eq!(Grid::groups_of(65_535).folded(most), [65_535, 1, 1]);
        assert_eq!(Grid::groups_of(65_536).folded(most), [32_768, 2, 1]);
        for groups in [65_537, 131_070, 131_071, 1_000_003, 65_535 * 65_535 - 7, 65_535 * 65_535] {
            let [x, y, z] = Grid::groups_of(groups).folded(most);
            assert!(x <= most && y <= most && z == 1, "{groups}: {x} {y} {z}");
            let all = x as usize * y as usize;
            // Only the last row may exceed the end.
            assert!(all >= groups && all - groups < x as usize, "{groups}: {x} {y}");
        }
        let workgroup = kiln_shaders::WORKGROUP as usize;
        assert_eq!(Grid::invocations(workgroup * 65_535).folded(most), [65_535, 1, 1]);
        assert_eq!(Grid::invocations(workgroup * 65_535 + 1).folded(most), [32_768, 2, 1]);
    }
}
