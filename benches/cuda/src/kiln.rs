//! kiln, and the copy that it is compared with.

use kiln_cuda::device_copy::DeviceCopy;
use kiln_cuda::{BufferId, CudaBackend, CudaCommandBatch, CudaDevice, CudaDeviceOptions, CudaOperation};
use kiln_ir::op::{self, LayerNorm, Matmul, Op, QuantMatmul, Reduce, Reduction, RmsNorm, Softmax};
use kiln_ir::{Buffer, DType, Operand, Operations, Precision, Record, Shape};

use crate::Result;
use crate::case::{Case, Data, EPS, Numbers, Rows};
use crate::contender::{Contender, Ready};
use crate::random::random;

pub(crate) struct Kiln {
    /// The device that reads f32 unchanged.
    device: CudaDevice,
    /// Those that read f32 in two parts, and in TF32.
    parts: CudaDevice,
    tf32: CudaDevice,
    backend: CudaBackend,
}

impl Kiln {
    /// Opens the device with this number, once for each precision.
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        let open = |precision| CudaDevice::open(ordinal, &CudaDeviceOptions::new().precision(precision));
        let device = open(Precision::Contract)?;
        let (parts, tf32) = (open(Precision::Tf32x3)?, open(Precision::Tf32)?);
        Ok(Self { backend: CudaBackend::on(device.clone()), device, parts, tf32 })
    }

    /// Opens it once, as a program would, with kernels of earlier runs on disk.
    pub(crate) fn open_one(ordinal: u32) -> Result<Self> {
        let mut options = CudaDeviceOptions::new();
        if let Some(folder) = std::env::current_exe()?.parent() {
            options = options.kernel_folder(folder.join("kernels"));
        }
        let device = CudaDevice::open(ordinal, &options)?;
        let (parts, tf32) = (device.clone(), device.clone());
        Ok(Self { backend: CudaBackend::on(device.clone()), device, parts, tf32 })
    }

    pub(crate) fn describe(&self) -> String {
        self.device.info().to_string()
    }

    /// A copy within the memory of the device that touches this many bytes.
    pub(crate) fn copy(&self, bytes: usize) -> Result<Copying> {
        let half = self.device.upload(&Operand::vector(&random(bytes / 8, 5)))?;
        Ok(Copying { copy: DeviceCopy::of(&half)?, device: self.device.clone() })
    }

    /// Returns memory that a case has used to the driver.
    pub(crate) fn trim(&self) {
        [&self.device, &self.parts, &self.tf32].into_iter().for_each(CudaDevice::trim);
    }

    fn resident(device: &CudaDevice, op: impl Into<Op>, operands: &[Operand<'_>]) -> Result<Box<dyn Ready>> {
        let tensors = operands.iter().map(|x| device.upload(x)).collect::<kiln_ir::Result<Vec<_>>>()?;
        let operation = device.prepare(&op.into(), &tensors.iter().collect::<Vec<_>>())?;
        Ok(Box::new(Resident { device: device.clone(), operation }))
    }

    /// The same for operands of these types.
    fn resident_as(
        device: &CudaDevice,
        op: impl Into<Op>,
        numbers: Numbers,
        x: &[Vec<f32>],
        dims: &[&[usize]],
    ) -> Result<Box<dyn Ready>> {
        let dtype = match numbers {
            Numbers::F16 => DType::F16,
            Numbers::Bf16 => DType::Bf16,
            Numbers::F32 | Numbers::Tf32 | Numbers::Tf32x3 => DType::F32,
        };
        let mut stored = Vec::new();
        for x in x {
            let mut elements = Buffer::with_bytes(dtype, x.len() * dtype.size())?;
            kiln_ir::narrow(x, elements.as_mut());
            stored.push(elements);
        }
        let operands = stored.iter().zip(dims).map(|(x, dims)| Operand::new(x.as_data(), Shape::new(dims)?));
        Self::resident(device, op, &operands.collect::<kiln_ir::Result<Vec<_>>>()?)
    }
}

impl Contender for Kiln {
    fn name(&self) -> &'static str {
        "kiln"
    }

    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>> {
        let x = &data.floats;
        Ok(Some(match *case {
            Case::Product { numbers, m, k, n } => {
                let op = Matmul { transpose_a: false, transpose_b: true };
                let device = match numbers {
                    Numbers::F16 | Numbers::Bf16 | Numbers::F32 => &self.device,
                    Numbers::Tf32x3 => &self.parts,
                    Numbers::Tf32 => &self.tf32,
                };
                Self::resident_as(device, op, numbers, x, &[&[m, k], &[n, k]])?
            }
            Case::Rows { function, rows, columns } => {
                let mut operands = vec![Operand::f32(&x[0], &[rows, columns])?];
                for vector in &x[1..] {
                    operands.push(Operand::vector(vector));
                }
                let op: Op = match function {
                    Rows::Softmax => Softmax.into(),
                    Rows::LayerNorm => LayerNorm::new(EPS).into(),
                    Rows::RmsNorm => RmsNorm::new(EPS).into(),
                };
                Self::resident(&self.device, op, &operands)?
            }
            Case::Sum { n } => {
                Self::resident(&self.device, Reduce::all(Reduction::Sum), &[Operand::f32(&x[0], &[n])?])?
            }
            Case::Attention(attention) => {
                let op = if attention.causal { op::Attention::causal() } else { op::Attention::full() };
                let dims = [attention.queries(), attention.keys(), attention.keys()];
                Self::resident_as(&self.device, op, attention.numbers, x, &dims.each_ref().map(|dims| &dims[..]))?
            }
            Case::Quantized { format, rows, n, k } => {
                let vector = self.device.upload(&Operand::f32(&x[0], &[rows, k])?)?;
                let weights = Operand::blocks(&data.blocks, &[n, k], format)?;
                // Each product with its own copy, all in one call of the driver, as in a layer of a model.
                let mut batch = CudaCommandBatch::new(self.device.clone());
                let vector = batch.import(&vector)?;
                let mut results = Vec::new();
                for _ in 0..case.copies() {
                    let copy = batch.import(&self.device.upload(&weights)?)?;
                    results.push(batch.record(QuantMatmul { format }, &[vector, copy])?);
                }
                Box::new(Replay { batch, results })
            }
            Case::Requantized { format, n, k } => {
                let mut batch = CudaCommandBatch::new(self.device.clone());
                let matrix = batch.import(&self.device.upload(&Operand::f32(&x[0], &[n, k])?)?)?;
                let blocks = batch.quantize(matrix, format)?;
                let results = vec![batch.dequantize(blocks, format)?, blocks];
                Box::new(Replay { batch, results })
            }
            Case::AddHost { n } => Box::new(Host { backend: &self.backend, x, out: vec![0.0; n] }),
        }))
    }

    fn first(&self) -> Result<()> {
        self.backend.neg(&[1.0])?;
        Ok(())
    }
}

/// An operation on tensors of the device.
struct Resident {
    device: CudaDevice,
    operation: CudaOperation,
}

impl Ready for Resident {
    fn run(&mut self) -> Result<()> {
        Ok(self.operation.run()?)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(self.device.finish()?)
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.operation.results()[0].read()?.as_data().f32().to_vec())
    }
}

/// A batch that is executed again.
struct Replay {
    batch: CudaCommandBatch,
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

/// A sum from host to host.
struct Host<'a> {
    backend: &'a CudaBackend,
    x: &'a [Vec<f32>],
    out: Vec<f32>,
}

impl Ready for Host<'_> {
    fn run(&mut self) -> Result<()> {
        Ok(self.backend.add_into(&self.x[0], &self.x[1], &mut self.out)?)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.out.clone())
    }
}

/// A copy within the memory of the device.
pub(crate) struct Copying {
    copy: DeviceCopy,
    device: CudaDevice,
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
