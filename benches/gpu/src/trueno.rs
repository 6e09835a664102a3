//! trueno: its device functions from host to host, its batches on buffers that stay.

use std::cell::RefCell;
use std::sync::Arc;

use trueno::backends::gpu::runtime::block_on;
use trueno::backends::gpu::{BufferId, GpuCommandBatch, GpuDevice, PipelineCache, wgpu};

use crate::Result;
use crate::case::{Case, Data, FACTOR, OPERATIONS};
use crate::contender::{Contender, Ready};
use crate::host::Host;

pub(crate) struct Trueno {
    device: GpuDevice,
    /// trueno's cache of kernels, so that batches need not compile them each time.
    kernels: RefCell<PipelineCache>,
}

impl Trueno {
    /// Opens the adapter of this name, or the one that trueno opens by default.
    pub(crate) fn open(adapter: Option<&str>) -> Result<Self> {
        let device = match adapter {
            None => GpuDevice::new()?,
            Some(name) => {
                let adapters = GpuDevice::list_adapters();
                let found = adapters.iter().find(|adapter| adapter.1 == name);
                GpuDevice::new_with_adapter_index(found.ok_or_else(|| format!("it does not list {name}"))?.0)?
            }
        };
        Ok(Self { device, kernels: RefCell::new(PipelineCache::new()) })
    }

    /// A buffer of the device with these elements, under a name of the batch.
    fn resident(&self, batch: &mut GpuCommandBatch, data: &[f32]) -> BufferId {
        let buffer = self.device.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 4 * data.len() as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.device.queue.write_buffer(&buffer, 0, &bytes);
        batch.import_buffer(Arc::new(buffer), data.len())
    }

    fn replay(&self, batch: GpuCommandBatch, result: BufferId) -> Box<dyn Ready + '_> {
        Box::new(Replay { trueno: self, batch, result })
    }
}

impl Contender for Trueno {
    fn name(&self) -> &'static str {
        "trueno"
    }

    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>> {
        let x = &data.floats;
        let mut batch = GpuCommandBatch::new(self.device.clone());
        Ok(Some(match *case {
            Case::Matmul { n } => {
                let (a, b) = (self.resident(&mut batch, &x[0]), self.resident(&mut batch, &x[1]));
                let n = u32::try_from(n)?;
                let c = batch.matmul(a, b, n, n, n);
                self.replay(batch, c)
            }
            Case::Replay { .. } => {
                let (mut y, b) = (self.resident(&mut batch, &x[0]), self.resident(&mut batch, &x[1]));
                for i in 0..OPERATIONS {
                    y = match i % 3 {
                        0 => batch.scale(y, FACTOR),
                        1 => batch.add(y, b),
                        _ => batch.relu(y),
                    };
                }
                self.replay(batch, y)
            }
            Case::MatmulHost { n } => {
                let run = move |out: &mut Vec<f32>| self.device.matmul(&x[0], &x[1], out, n, n, n);
                Box::new(Host::new(run, n * n))
            }
            Case::AddHost { n } => {
                let run = |out: &mut Vec<f32>| self.device.vec_add(&x[0], &x[1], out);
                Box::new(Host::new(run, n))
            }
            Case::ChainHost { n } => {
                let run = |out: &mut Vec<f32>| {
                    // Uploads of a batch cannot be replaced, so each batch is recorded again.
                    let mut batch = GpuCommandBatch::new(self.device.clone());
                    let (a, b) = (batch.upload(&x[0]), batch.upload(&x[1]));
                    let sum = batch.add(a, b);
                    let half = batch.scale(sum, 0.5);
                    let y = batch.relu(half);
                    block_on(batch.execute_with_cache(&mut self.kernels.borrow_mut()))?;
                    *out = block_on(batch.read(y))?;
                    Ok::<_, String>(())
                };
                Box::new(Host::new(run, n))
            }
            // trueno has no sum or softmax of resident tensors, and no quantised product by itself.
            Case::MatmulF16 { .. }
            | Case::Sum { .. }
            | Case::Softmax { .. }
            | Case::Q4K { .. }
            | Case::Q4KRows { .. } => {
                return Ok(None);
            }
        }))
    }

    fn first(&self) -> Result<()> {
        Ok(self.device.vec_add(&[1.0; 1000], &[1.0; 1000], &mut [0.0; 1000])?)
    }
}

/// A batch that is executed again.
struct Replay<'a> {
    trueno: &'a Trueno,
    batch: GpuCommandBatch,
    result: BufferId,
}

impl Ready for Replay<'_> {
    fn run(&mut self) -> Result<()> {
        Ok(block_on(self.batch.execute_with_cache(&mut self.trueno.kernels.borrow_mut()))?)
    }

    fn wait(&mut self) -> Result<()> {
        self.trueno.device.device.poll(wgpu::PollType::Wait { submission_index: None, timeout: None })?;
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(block_on(self.batch.read(self.result))?)
    }
}
