//! A copy within device memory: the bandwidth that measured figures are compared with.

use std::collections::HashMap;

use kiln_ir::Result;
use kiln_ir::graph::Graph;
use kiln_shaders::COPY;

use crate::plan::{Code, Dispatch, Grid, Slice, Word};
use crate::{GpuDevice, GpuTensor};
use kiln_device::{Executable, Location, Plan, blocking_and_async};

/// A copy within the memory of a device: every byte of a tensor is read once and written once. Nothing that reads and
/// writes as much is faster. It is a kernel: what drivers make of a command that copies may be several times slower.
#[derive(Debug)]
pub struct DeviceCopy {
    executable: Executable<GpuDevice>,
    bytes: u64,
}

impl DeviceCopy {
    blocking_and_async! {
        /// Takes memory for a copy of a tensor.
        ///
        /// # Errors
        /// [`kiln_ir::Error::Limit`] for a tensor that one kernel cannot see whole, [`kiln_ir::Error::OutOfMemory`],
        /// [`kiln_ir::Error::DeviceLost`].
        pub fn of, of_async(_waiting, tensor: &GpuTensor) -> Result<Self> {
            let device = tensor.device();
            let bytes = tensor.ty().bytes() as u64;
            let vectors = bytes.div_ceil(16) as usize;
            let mut graph = Graph::new();
            let [from, to] = [graph.input(tensor.ty()), graph.input(tensor.ty())];
            let copy = Dispatch {
                code: Code::Kernel(COPY, Vec::new()),
                buffers: [from, to].map(|id| Slice::new(Location::Input(id), tensor.ty().bytes())).to_vec(),
                params: vec![Word::from(vectors).0],
                groups: Grid::invocations(vectors).folded(device.inner.target.limits.max_compute_workgroups_per_dimension),
            };
            let plan = Plan {
                steps: vec![copy],
                slots: Vec::new(),
                scratch: Vec::new(),
                kept: Vec::new(),
                faults: Vec::new(),
                inputs: vec![(from, bytes), (to, bytes)],
                results: vec![(Location::Input(to), bytes)],
            };
            let given = HashMap::from([(from, tensor.region().clone())]);
            Ok(Self { executable: Executable::new(device, plan, &given).await?, bytes })
        }

        /// Copies once more. It does not wait for the device: [`crate::GpuDevice::finish_async`] does.
        ///
        /// # Errors
        /// [`kiln_ir::Error::DeviceLost`].
        pub fn run, run_async(&mut self, waiting) -> Result<()> {
            self.executable.run(Vec::new(), waiting).await
        }
    }

    /// Bytes that one copy reads, and as many that it writes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
mod tests {
    use kiln_ir::{Operand, Shape, TensorType};

    use super::*;
    use crate::AdapterChoice;

    #[test]
    fn a_copy_is_the_same() {
        let Ok(device) = GpuDevice::open(&AdapterChoice::Any) else {
            eprintln!("skipped: no device");
            return;
        };
        for n in [1, 5, 1000, 70_001] {
            let x: Vec<f32> = (1..=n).map(|i| i as f32).collect();
            let mut copy = DeviceCopy::of(&device.upload(&Operand::vector(&x)).unwrap()).unwrap();
            copy.run().unwrap();
            let region = copy.executable.results()[0].clone();
            assert_eq!(copy.bytes(), 4 * n as u64);
            let ty = TensorType::f32(Shape::new(&[n]).unwrap());
            let copied = GpuTensor::from_region(device.clone(), region, ty);
            assert_eq!(copied.read().unwrap().as_data().f32(), x);
        }
    }
}
