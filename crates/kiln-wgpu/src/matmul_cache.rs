//! Products with weights that stay on a device.

use std::collections::HashMap;

use kiln_ir::graph::TensorId;
use kiln_ir::op::{Matmul, Op, QuantMatmul};
use kiln_ir::{DType, Error, Operand, QuantFormat, Result, Shape, TensorType, f16};

use crate::execute::{Executable, write};
use crate::memory::Region;
use crate::plan::Plan;
#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::wait::Waiting;
use crate::{GpuDevice, GpuTensor};

/// Numbers of rows for which a product with a weight is kept ready.
const MOST_READY: usize = 64;

/// Named weights on a device, and their products with what the host has: `y = x Wᵀ`.
///
/// A weight is `n * k`, row-major, for any number of rows of `x`: a row of it is what one output is made of, as in the
/// files that weights come in. It is sent once. A product with as many rows as an earlier one finds everything ready.
#[derive(Debug)]
pub struct GpuMatmulCache {
    device: GpuDevice,
    weights: HashMap<String, GpuTensor>,
    /// The last used last.
    ready: Vec<Ready>,
}

/// The product of some rows with a weight.
#[derive(Debug)]
struct Ready {
    name: String,
    rows: usize,
    x: TensorId,
    executable: Executable,
}

impl GpuMatmulCache {
    /// A cache without weights.
    pub fn new(device: GpuDevice) -> Self {
        Self { device, weights: HashMap::new(), ready: Vec::new() }
    }

    /// The device.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// Sends a weight of `n * k` elements, row-major. One of the same name is replaced.
    ///
    /// # Errors
    /// [`Error::Length`] when the slice does not have these extents, [`Error::Overflow`] when they overflow;
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn upload_weight_async(&mut self, name: &str, weight: &[f32], n: usize, k: usize) -> Result<()> {
        self.keep(name, Operand::f32(weight, &[n, k])?).await
    }

    /// Sends a weight of `n * k` elements of f16, row-major, and keeps it so: products with it are those of the f32 that its
    /// elements stand for.
    ///
    /// # Errors
    /// As [`GpuMatmulCache::upload_weight_async`].
    pub async fn upload_f16_async(&mut self, name: &str, weight: &[f16], n: usize, k: usize) -> Result<()> {
        self.keep(name, Operand::f16(weight, &[n, k])?).await
    }

    /// Sends a quantised weight of `n * k` elements.
    ///
    /// # Errors
    /// As [`GpuMatmulCache::upload_weight_async`], and [`Error::Format`] when a row is not whole blocks.
    pub async fn upload_blocks_async(
        &mut self,
        name: &str,
        format: QuantFormat,
        blocks: &[u8],
        n: usize,
        k: usize,
    ) -> Result<()> {
        self.keep(name, Operand::blocks(format, blocks, &[n, k])?).await
    }

    async fn keep(&mut self, name: &str, operand: Operand<'_>) -> Result<()> {
        self.remove(name);
        let tensor = self.device.upload_async(&operand).await?;
        self.weights.insert(name.to_owned(), tensor);
        Ok(())
    }

    /// Type and extents of a weight; `None` where there is none of this name.
    pub fn weight(&self, name: &str) -> Option<TensorType> {
        self.weights.get(name).map(GpuTensor::ty)
    }

    /// The names of all weights, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.weights.keys().map(String::as_str)
    }

    /// Forgets a weight, and says whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        self.ready.retain(|ready| ready.name != name);
        self.weights.remove(name).is_some()
    }

    /// The product of `x`, rows of `k` elements, with a weight, into `out`, rows of `n`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where no weight has this name; [`Error::Shape`] when `x` is not whole rows, [`Error::Length`]
    /// when `out` has another length; [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn matmul_into_async(&mut self, name: &str, x: &[f32], out: &mut [f32]) -> Result<()> {
        self.matmul_with(name, x, out, Waiting::Elsewhere).await
    }

    /// As [`GpuMatmulCache::matmul_into_async`], into a new `Vec`.
    ///
    /// # Errors
    /// As there.
    pub async fn matmul_async(&mut self, name: &str, x: &[f32]) -> Result<Vec<f32>> {
        self.product_with(name, x, Waiting::Elsewhere).await
    }

    async fn product_with(&mut self, name: &str, x: &[f32], waiting: Waiting) -> Result<Vec<f32>> {
        let extents = self.weight(name).map(|ty| (ty.shape.rows(), ty.shape.columns()));
        let (n, k) = extents.unwrap_or((0, 0));
        let rows = x.len().checked_div(k).unwrap_or(0);
        let mut out = kiln_ir::zeros(Shape::new(&[rows, n])?.numel())?;
        self.matmul_with(name, x, &mut out, waiting).await?;
        Ok(out)
    }

    async fn matmul_with(&mut self, name: &str, x: &[f32], out: &mut [f32], waiting: Waiting) -> Result<()> {
        let (rows, n) = self.check(name, x, out)?;
        if rows * n == 0 {
            return Ok(());
        }
        let mut ready = self.ready(name, rows).await?;
        let device = self.device.clone();
        let sent = device.scoped("an upload", size_of_val(x) as u64, || {
            if let Some(region) = ready.executable.input(ready.x) {
                write(&device, region, bytemuck::cast_slice(x));
            }
            Ok(())
        });
        sent.await?;
        let see = |_: usize, stored: &[u8]| bytemuck::cast_slice_mut(out).copy_from_slice(stored);
        ready.executable.run(&[0], waiting, see).await?;
        self.ready.push(ready);
        if self.ready.len() > MOST_READY {
            self.ready.remove(0);
        }
        Ok(())
    }

    /// Rows of `x` and of the weight.
    fn check(&self, name: &str, x: &[f32], out: &[f32]) -> Result<(usize, usize)> {
        let weight = self.weights.get(name).ok_or_else(|| {
            let mut names: Vec<&str> = self.names().collect();
            names.sort_unstable();
            Error::Unavailable { what: format!("weight {name:?}"), reason: format!("there are {names:?}") }
        })?;
        let &[n, k] = weight.shape().dims() else { return Ok((0, 0)) };
        let rows = kiln_ir::op::rows_of("matmul", x, k)?.rows();
        let expected = Shape::new(&[rows, n])?.numel();
        if out.len() != expected {
            return Err(Error::Length { op: "matmul", operand: "output", expected, found: out.len() });
        }
        Ok((rows, n))
    }

    /// The product of so many rows with a weight, taken out for as long as it is in use.
    async fn ready(&mut self, name: &str, rows: usize) -> Result<Ready> {
        self.device.check_alive()?;
        if let Some(at) = self.ready.iter().position(|ready| ready.rows == rows && ready.name == name) {
            return Ok(self.ready.remove(at));
        }
        let Some(weight) = self.weights.get(name) else {
            return Err(Error::Unavailable { what: format!("weight {name:?}"), reason: "it was removed".into() });
        };
        let columns = weight.shape().columns();
        let x = TensorType::f32(Shape::new(&[rows, columns])?);
        let op = match weight.ty.dtype {
            DType::Blocks(format) => Op::from(QuantMatmul { format }),
            _ => Op::from(Matmul { transpose_b: true, ..Matmul::default() }),
        };
        let (ids, plan) = Plan::of_operation(&op, &[x, weight.ty], self.device.inner.target())?;
        let given: HashMap<TensorId, Region> = [(ids[1], weight.region.clone())].into();
        let executable = Executable::new(&self.device, &plan, &given).await?;
        Ok(Ready { name: name.to_owned(), rows, x: ids[0], executable })
    }
}

/// The same for those who wait.
#[cfg(not(target_arch = "wasm32"))]
impl GpuMatmulCache {
    /// As [`GpuMatmulCache::upload_weight_async`].
    ///
    /// # Errors
    /// As there.
    pub fn upload_weight(&mut self, name: &str, weight: &[f32], n: usize, k: usize) -> Result<()> {
        block_on(self.upload_weight_async(name, weight, n, k))
    }

    /// As [`GpuMatmulCache::upload_f16_async`].
    ///
    /// # Errors
    /// As there.
    pub fn upload_f16(&mut self, name: &str, weight: &[f16], n: usize, k: usize) -> Result<()> {
        block_on(self.upload_f16_async(name, weight, n, k))
    }

    /// As [`GpuMatmulCache::upload_blocks_async`].
    ///
    /// # Errors
    /// As there.
    pub fn upload_blocks(&mut self, name: &str, format: QuantFormat, blocks: &[u8], n: usize, k: usize) -> Result<()> {
        block_on(self.upload_blocks_async(name, format, blocks, n, k))
    }

    /// As [`GpuMatmulCache::matmul_into_async`].
    ///
    /// # Errors
    /// As there.
    pub fn matmul_into(&mut self, name: &str, x: &[f32], out: &mut [f32]) -> Result<()> {
        block_on(self.matmul_with(name, x, out, Waiting::Here))
    }

    /// As [`GpuMatmulCache::matmul_async`].
    ///
    /// # Errors
    /// As there.
    pub fn matmul(&mut self, name: &str, x: &[f32]) -> Result<Vec<f32>> {
        block_on(self.product_with(name, x, Waiting::Here))
    }
}
