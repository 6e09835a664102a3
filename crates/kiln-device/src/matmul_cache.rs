//! Products with weights that stay on a device.

use std::collections::HashMap;

use kiln_ir::graph::TensorId;
use kiln_ir::op::{Matmul, Op, QuantMatmul};
use kiln_ir::{DType, Data, DataMut, Error, Operand, Result, Shape, TensorType};

use crate::blocking_and_async;
use crate::driver::{Driver, RegionOf};
use crate::executable::Executable;
use crate::plan::Plan;
use crate::tensor::{Tensor, write};
use crate::waiting::Waiting;

/// Maximum number of compiled products, each for one weight and one number of rows.
const MOST_READY: usize = 64;

/// Named weights on a device, and their products with rows of the host: `y = x Wᵀ`.
///
/// A weight is `n * k`, row-major, for any number of rows of `x`: each of its rows gives one output, as in the files of
/// models. It is uploaded once. A product with as many rows as an earlier one finds its kernels compiled and its memory allocated.
#[derive(Debug)]
pub struct MatmulCache<D: Driver> {
    device: D,
    weights: HashMap<String, Tensor<D>>,
    /// Most recently used last.
    ready: Vec<Ready<D>>,
}

/// The product of some rows with a weight.
#[derive(Debug)]
struct Ready<D: Driver> {
    name: String,
    rows: usize,
    x: TensorId,
    executable: Executable<D>,
}

impl<D: Driver> MatmulCache<D> {
    /// A cache without weights.
    pub fn new(device: D) -> Self {
        Self { device, weights: HashMap::new(), ready: Vec::new() }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    blocking_and_async! {
        /// Uploads a weight of `n * k` elements, row-major. One of the same name is replaced.
        ///
        /// # Errors
        /// [`Error::Length`] when the slice does not have these extents, [`Error::Overflow`] when they overflow;
        /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
        pub fn upload_weight, upload_weight_async(
            &mut self, _waiting, name: &str, weight: &[f32], n: usize, k: usize,
        ) -> Result<()> {
            self.keep(name, Operand::f32(weight, &[n, k])?).await
        }

        /// Uploads a weight `[n, k]` of any element type that products take: floats, which stay as they are stored, or quantised
        /// blocks.
        ///
        /// # Errors
        /// The errors of [`MatmulCache::upload_weight_async`]; [`Error::Shape`] when it is not a matrix, [`Error::Type`] for integers.
        pub fn upload_operand, upload_operand_async(
            &mut self, _waiting, name: &str, weight: &Operand<'_>,
        ) -> Result<()> {
            self.keep(name, *weight).await
        }

        /// The product of `x`, rows of `k` elements, with a weight, into `out`, rows of `n`.
        ///
        /// # Errors
        /// [`Error::Unavailable`] where no weight has this name; [`Error::Shape`] when `x` is not whole rows,
        /// [`Error::Length`] when `out` has another length; [`Error::Limit`], [`Error::OutOfMemory`],
        /// [`Error::DeviceLost`].
        pub fn matmul_into, matmul_into_async(&mut self, waiting, name: &str, x: &[f32], out: &mut [f32]) -> Result<()> {
            self.product_into(name, x, out, waiting).await
        }

        /// The product of `x`, rows of `k` elements, with a weight, as a new `Vec`.
        ///
        /// # Errors
        /// The errors of [`MatmulCache::matmul_into_async`].
        pub fn matmul, matmul_async(&mut self, waiting, name: &str, x: &[f32]) -> Result<Vec<f32>> {
            let extents = self.weight(name).map(|ty| (ty.shape.rows(), ty.shape.columns()));
            let (n, k) = extents.unwrap_or((0, 0));
            let rows = x.len().checked_div(k).unwrap_or(0);
            let mut out = kiln_ir::zeros(Shape::new(&[rows, n])?.numel())?;
            self.product_into(name, x, &mut out, waiting).await?;
            Ok(out)
        }
    }

    async fn keep(&mut self, name: &str, operand: Operand<'_>) -> Result<()> {
        let (dtype, shape) = (operand.ty().dtype, operand.shape());
        if !dtype.is_float() && !matches!(dtype, DType::Blocks(_)) {
            return Err(Error::Type { op: "weight", index: 0, expected: DType::F32, found: dtype });
        }
        if shape.rank() != 2 {
            return Err(Error::Shape { op: "weight", reason: format!("{shape} is not a matrix [n, k]") });
        }
        let tensor = Tensor::upload(&self.device, &operand).await?;
        self.remove(name);
        self.weights.insert(name.to_owned(), tensor);
        Ok(())
    }

    /// Type and extents of a weight; `None` where no weight has this name.
    pub fn weight(&self, name: &str) -> Option<TensorType> {
        self.weights.get(name).map(Tensor::ty)
    }

    /// The names of all weights, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.weights.keys().map(String::as_str)
    }

    /// Removes a weight. Returns whether it existed.
    pub fn remove(&mut self, name: &str) -> bool {
        self.ready.retain(|ready| ready.name != name);
        self.weights.remove(name).is_some()
    }

    async fn product_into(&mut self, name: &str, x: &[f32], out: &mut [f32], waiting: Waiting) -> Result<()> {
        let (rows, n) = self.check(name, x, out)?;
        if rows * n == 0 {
            return Ok(());
        }
        let mut ready = self.ready(name, rows).await?;
        let device = &self.device;
        let upload = || match ready.executable.input(ready.x) {
            Some(region) => write(device, region, Data::F32(x).as_bytes()),
            None => Ok(()),
        };
        device.scoped("an upload", size_of_val(x) as u64, upload).await?;
        ready.executable.run(vec![(0, DataMut::F32(out).as_bytes())], waiting).await?;
        self.ready.push(ready);
        if self.ready.len() > MOST_READY {
            self.ready.remove(0);
        }
        Ok(())
    }

    /// Returns the rows of `x` and of the weight.
    fn check(&self, name: &str, x: &[f32], out: &[f32]) -> Result<(usize, usize)> {
        let weight = self.weights.get(name).ok_or_else(|| {
            let mut names: Vec<&str> = self.names().collect();
            names.sort_unstable();
            Error::Unavailable { what: format!("weight {name:?}"), reason: format!("the weights are {names:?}") }
        })?;
        let &[n, k] = weight.shape().dims() else { return Ok((0, 0)) };
        let rows = kiln_ir::op::rows_of("matmul", x, k)?.rows();
        let expected = Shape::new(&[rows, n])?.numel();
        if out.len() != expected {
            return Err(Error::Length { op: "matmul", operand: "output", expected, found: out.len() });
        }
        Ok((rows, n))
    }

    /// Takes the product of this many rows with a weight out of the cache while it is in use, and compiles it if it is
    /// missing.
    async fn ready(&mut self, name: &str, rows: usize) -> Result<Ready<D>> {
        self.device.check_alive()?;
        if let Some(at) = self.ready.iter().position(|ready| ready.rows == rows && ready.name == name) {
            return Ok(self.ready.remove(at));
        }
        match self.make_ready(name, rows).await {
            // Clears the cache to make room.
            Err(Error::OutOfMemory { .. }) if !self.ready.is_empty() => {
                self.ready.clear();
                crate::bodies::trim(&self.device);
                self.make_ready(name, rows).await
            }
            made => made,
        }
    }

    async fn make_ready(&self, name: &str, rows: usize) -> Result<Ready<D>> {
        let Some(weight) = self.weights.get(name) else {
            return Err(Error::Unavailable { what: format!("weight {name:?}"), reason: "it was removed".into() });
        };
        let columns = weight.shape().columns();
        let x = TensorType::f32(Shape::new(&[rows, columns])?);
        let op = match weight.ty().dtype {
            DType::Blocks(format) => Op::from(QuantMatmul { format }),
            _ => Op::from(Matmul { transpose_b: true, ..Matmul::default() }),
        };
        let (ids, plan) = Plan::of_operation(&op, &[x, weight.ty()], self.device.target())?;
        let given: HashMap<TensorId, RegionOf<D>> = [(ids[1], weight.region().clone())].into();
        let executable = Executable::new(&self.device, plan, &given).await?;
        Ok(Ready { name: name.to_owned(), rows, x: ids[0], executable })
    }
}
