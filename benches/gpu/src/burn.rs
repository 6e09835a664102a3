//! burn: tensors on its wgpu backend through Vulkan, with fusion and autotune as its users have them.
//!
//! What it tunes it tunes when it runs first, which is when a case is made ready: no sample has it.

use burn::tensor::wgpu::WgpuBackend;
use burn::tensor::{Device, FloatDType, Tensor, TensorData, activation};

use crate::Result;
use crate::case::{Case, Data, FACTOR, OPERATIONS};
use crate::contender::{Contender, Ready};
use crate::host::Host;

pub(crate) struct Burn {
    device: Device,
}

impl Burn {
    /// Opens the adapter that burn opens by default; an error if it is not the one of this name.
    pub(crate) fn open(adapter: Option<&str>) -> Result<Self> {
        let (device, setup) = Device::wgpu_options().graphics_api(WgpuBackend::Vulkan).init_with_setup()?;
        let opened = setup.adapter.get_info().name;
        match adapter {
            Some(name) if name != opened => Err(format!("it opens {opened}, not {name}").into()),
            _ => Ok(Self { device }),
        }
    }

    fn tensor<const D: usize>(&self, data: &[f32], dims: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(data.to_vec(), dims), &self.device)
    }

    fn resident<'a, const D: usize>(&'a self, run: impl Fn() -> Tensor<D> + 'a) -> Box<dyn Ready + 'a> {
        Box::new(Resident { device: &self.device, run, last: None })
    }

    fn add(&self, a: &[f32], b: &[f32]) -> Result<Vec<f32>> {
        read(self.tensor(a, [a.len()]) + self.tensor(b, [b.len()]))
    }
}

fn read<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    Ok(tensor.try_into_data()?.try_into_vec_as::<f32>()?)
}

impl Contender for Burn {
    fn name(&self) -> &'static str {
        "burn"
    }

    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>> {
        let x = &data.floats;
        Ok(Some(match *case {
            Case::Matmul { n } => {
                let [a, b] = [0, 1].map(|i| self.tensor(&x[i], [n, n]));
                self.resident(move || a.clone().matmul(b.clone()))
            }
            Case::MatmulF16 { n } => {
                if !self.device.supports_dtype(FloatDType::F16) {
                    return Ok(None);
                }
                let [a, b] = [0, 1].map(|i| self.tensor(&x[i], [n, n]).cast(FloatDType::F16));
                self.resident(move || a.clone().matmul(b.clone()))
            }
            Case::Sum { n } => {
                let x = self.tensor(&x[0], [n]);
                self.resident(move || x.clone().sum())
            }
            Case::Softmax { rows, columns } => {
                let x = self.tensor(&x[0], [rows, columns]);
                self.resident(move || activation::softmax(x.clone(), 1))
            }
            Case::Replay { n } => {
                let [a, b] = [0, 1].map(|i| self.tensor(&x[i], [n]));
                self.resident(move || {
                    (0..OPERATIONS).fold(a.clone(), |y, i| match i % 3 {
                        0 => y * FACTOR,
                        1 => y + b.clone(),
                        _ => activation::relu(y),
                    })
                })
            }
            Case::MatmulHost { n } => {
                let run = move |out: &mut Vec<f32>| {
                    let [a, b] = [0, 1].map(|i| self.tensor(&x[i], [n, n]));
                    *out = read(a.matmul(b))?;
                    Result::Ok(())
                };
                Box::new(Host::new(run, n * n))
            }
            Case::AddHost { n } => {
                let run = |out: &mut Vec<f32>| {
                    *out = self.add(&x[0], &x[1])?;
                    Result::Ok(())
                };
                Box::new(Host::new(run, n))
            }
            Case::ChainHost { n } => {
                let run = move |out: &mut Vec<f32>| {
                    let [a, b] = [0, 1].map(|i| self.tensor(&x[i], [n]));
                    *out = read(activation::relu((a + b) * 0.5))?;
                    Result::Ok(())
                };
                Box::new(Host::new(run, n))
            }
            // burn has no blocks of this format.
            Case::Q4K { .. } | Case::Q4KRows { .. } => return Ok(None),
        }))
    }

    fn first(&self) -> Result<()> {
        self.add(&[1.0; 1000], &[1.0; 1000]).map(drop)
    }
}

/// A computation on tensors that stay on the device.
struct Resident<'a, F, const D: usize> {
    device: &'a Device,
    run: F,
    last: Option<Tensor<D>>,
}

impl<F: Fn() -> Tensor<D>, const D: usize> Ready for Resident<'_, F, D> {
    fn run(&mut self) -> Result<()> {
        self.last = Some((self.run)());
        // burn gathers operations until a result is read: each run is submitted by itself, as one whose result is used.
        Ok(self.device.flush()?)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(self.device.sync()?)
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        self.last.clone().map_or_else(|| Ok(Vec::new()), read)
    }
}
