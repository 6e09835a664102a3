//! kiln, and the copy that it is compared with.

use std::cell::RefCell;

use kiln_ir::op::{Matmul, Op, QuantMatmul, Reduce, Reduction, Softmax};
use kiln_ir::{DataMut, Operand, Operations, QuantFormat, Record, f16};
use kiln_wgpu::device_copy::DeviceCopy;
use kiln_wgpu::{
    AdapterChoice, BufferId, GpuBackend, GpuCommandBatch, GpuDevice, GpuDeviceOptions, GpuOperation, GpuTensor,
};

use crate::Result;
use crate::case::{Case, Data, FACTOR, OPERATIONS};
use crate::contender::{Contender, Ready};
use crate::host::Host;
use crate::random::random;

pub(crate) struct Kiln {
    device: GpuDevice,
    backend: GpuBackend,
}

impl Kiln {
    /// Opens an adapter: by a part of its name or its index, else the best one.
    pub(crate) fn open(adapter: Option<&str>) -> Result<Self> {
        let choice = match adapter.map(|text| (text, text.parse())) {
            None => AdapterChoice::Best,
            Some((_, Ok(index))) => AdapterChoice::Index(index),
            Some((name, Err(_))) => AdapterChoice::Name(name.to_owned()),
        };
        let mut options = GpuDeviceOptions::new();
        // Pipelines of earlier runs, as a program would keep them.
        if let Some(folder) = std::env::current_exe()?.parent() {
            options = options.pipeline_folder(folder.join("pipelines"));
        }
        let device = GpuDevice::open_with(&choice, &options)?;
        Ok(Self { backend: GpuBackend::on(device.clone()), device })
    }

    /// The name of the adapter.
    pub(crate) fn name(&self) -> String {
        self.device.adapter().label.clone()
    }

    pub(crate) fn describe(&self) -> String {
        self.device.adapter().to_string()
    }

    /// A copy within the memory of the device that touches this many bytes.
    pub(crate) fn copy(&self, bytes: usize) -> Result<Copying> {
        let half = self.device.upload(&Operand::vector(&random(bytes / 8, 5)))?;
        Ok(Copying { copy: DeviceCopy::of(&half)?, device: self.device.clone() })
    }

    /// Returns memory that a case has used to the driver.
    pub(crate) fn trim(&self) {
        self.device.trim();
    }

    fn resident(&self, op: impl Into<Op>, operands: &[Operand<'_>]) -> Result<Box<dyn Ready>> {
        let tensors = operands.iter().map(|x| self.device.upload(x)).collect::<kiln_ir::Result<Vec<_>>>()?;
        let operation = self.device.prepare(&op.into(), &tensors.iter().collect::<Vec<_>>())?;
        Ok(Box::new(Resident { device: self.device.clone(), operations: vec![operation], next: 0 }))
    }
}

impl Contender for Kiln {
    fn name(&self) -> &'static str {
        "kiln"
    }

    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>> {
        let x = &data.floats;
        Ok(Some(match *case {
            Case::Matmul { n } => {
                let operands = [Operand::f32(&x[0], &[n, n])?, Operand::f32(&x[1], &[n, n])?];
                self.resident(Matmul::default(), &operands)?
            }
            Case::MatmulF16 { n } => {
                let halves = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
                let [a, b] = [halves(&x[0]), halves(&x[1])];
                self.resident(Matmul::default(), &[Operand::elements(&a, &[n, n])?, Operand::elements(&b, &[n, n])?])?
            }
            Case::Sum { n } => self.resident(Reduce::all(Reduction::Sum), &[Operand::f32(&x[0], &[n])?])?,
            Case::Softmax { rows, columns } => self.resident(Softmax, &[Operand::f32(&x[0], &[rows, columns])?])?,
            Case::Q4KRows { m, n, k } => {
                let format = QuantFormat::Q4K;
                let operands = [Operand::f32(&x[0], &[m, k])?, Operand::blocks(&data.blocks, &[n, k], format)?];
                self.resident(QuantMatmul { format }, &operands)?
            }
            Case::Q4K { n, k } => {
                let format = QuantFormat::Q4K;
                let vector = self.device.upload(&Operand::f32(&x[0], &[1, k])?)?;
                let weights = Operand::blocks(&data.blocks, &[n, k], format)?;
                // Each product with its own copy, all in one submission, as in a layer of a model.
                let mut batch = GpuCommandBatch::new(self.device.clone());
                let vector = batch.import(&vector)?;
                let mut results = Vec::new();
                for _ in 0..case.copies() {
                    let copy = batch.import(&self.device.upload(&weights)?)?;
                    results.push(batch.record(QuantMatmul { format }, &[vector, copy])?);
                }
                Box::new(Replay { batch, results })
            }
            Case::Replay { n } => {
                let mut batch = GpuCommandBatch::new(self.device.clone());
                let [mut y, b] = [batch.upload(&x[0], &[n])?, batch.upload(&x[1], &[n])?];
                for i in 0..OPERATIONS {
                    y = match i % 3 {
                        0 => batch.scale(y, FACTOR)?,
                        1 => batch.add(y, b)?,
                        _ => batch.relu(y)?,
                    };
                }
                Box::new(Replay { batch, results: vec![y] })
            }
            Case::MatmulHost { n } => {
                let run = move |out: &mut Vec<f32>| self.backend.matmul_into(&x[0], &x[1], n, n, n, out);
                Box::new(Host::new(run, n * n))
            }
            Case::AddHost { n } => {
                let run = |out: &mut Vec<f32>| self.backend.add_into(&x[0], &x[1], out);
                Box::new(Host::new(run, n))
            }
            Case::ChainHost { n } => {
                let mut batch = GpuCommandBatch::new(self.device.clone());
                let inputs = [batch.upload(&x[0], &[n])?, batch.upload(&x[1], &[n])?];
                let sum = batch.add(inputs[0], inputs[1])?;
                let half = batch.scale(sum, 0.5)?;
                let y = batch.relu(half)?;
                let batch = RefCell::new(batch);
                let run = move |out: &mut Vec<f32>| {
                    let mut batch = batch.borrow_mut();
                    batch.set(inputs[0], &x[0])?;
                    batch.set(inputs[1], &x[1])?;
                    batch.run_into(&[y], &mut [DataMut::F32(out)])
                };
                Box::new(Host::new(run, n))
            }
        }))
    }

    fn first(&self) -> Result<()> {
        let (x, mut out) = (vec![1.0; 1000], vec![0.0; 1000]);
        let operands = [Operand::vector(&x), Operand::vector(&x)];
        Ok(self.backend.run_into(&kiln_ir::op::Elementwise::add().into(), &operands, &mut [DataMut::F32(&mut out)])?)
    }
}

/// Operations on tensors of the device, run in turn.
struct Resident {
    device: GpuDevice,
    operations: Vec<GpuOperation>,
    next: usize,
}

impl Ready for Resident {
    fn run(&mut self) -> Result<()> {
        self.next = (self.next + 1) % self.operations.len();
        Ok(self.operations[self.next].run()?)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(self.device.finish()?)
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(read(&self.operations[self.next].results()[0])?)
    }
}

fn read(tensor: &GpuTensor) -> kiln_ir::Result<Vec<f32>> {
    Ok(tensor.read()?.as_data().f32().to_vec())
}

/// A batch that is executed again.
struct Replay {
    batch: GpuCommandBatch,
    /// The results; the first one is compared.
    results: Vec<BufferId>,
}

impl Ready for Replay {
    fn run(&mut self) -> Result<()> {
        Ok(self.batch.execute(&self.results)?)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(self.batch.device().finish()?)
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.batch.read(self.results[0])?)
    }
}

/// A copy within the memory of the device.
pub(crate) struct Copying {
    copy: DeviceCopy,
    device: GpuDevice,
}

impl Ready for Copying {
    fn run(&mut self) -> Result<()> {
        Ok(self.copy.run()?)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(self.device.finish()?)
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }
}
