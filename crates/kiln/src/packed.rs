//! Right-hand matrices packed once for many products, and kernels for many convolutions.

use kiln_ir::op::{Convolve2d, Matmul};
use kiln_ir::{Error, Result, Shape, TensorType};
use kiln_route::Problem;
use kiln_simd::{Isa, PackedB, Simd};

use crate::Engine;

/// A right-hand matrix, such as the weights of a layer, in the order in which matrix products read it. Made by
/// [`Engine::pack_b`]; holds a copy of the elements.
///
/// The order is that of one instruction set, the best one of the engine that made it. Products with it run on the placements
/// with the same instruction set, of this engine or of others; the router chooses among those.
#[derive(Debug)]
pub struct PackedMatrix(PackedB);

impl PackedMatrix {
    /// The number of rows, which is the number of products in each element of the result.
    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.0.columns()
    }

    /// The instruction set whose order it has.
    pub fn isa(&self) -> Isa {
        self.0.isa()
    }
}

/// Kernels of a convolution of many channels, such as the weights of a layer, in the order in which convolutions read them.
/// Made by [`Engine::pack_kernels`]; holds a copy of the elements.
///
/// As with [`PackedMatrix`], the order is that of one instruction set.
#[derive(Debug)]
pub struct PackedKernels(kiln_simd::PackedKernels);

impl PackedKernels {
    /// Their shape, `[c_out, c_in, kh, kw]`.
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    /// The instruction set whose order they have.
    pub fn isa(&self) -> Isa {
        self.0.isa()
    }
}

impl Engine {
    /// The forced CPU placement, or else the one with the best instruction set.
    fn packing_place(&self) -> Result<Simd> {
        // Instruction sets are in ascending order.
        let forced = self.router.forced().and_then(|place| self.cpu.get(place));
        forced.or(self.cpu.last()).map_or_else(Simd::new, |simd| Ok(*simd))
    }

    /// Whether products may take packed matrices: true unless a GPU is forced.
    pub(crate) fn takes_packed(&self) -> bool {
        self.router.forced().is_none_or(|place| place < self.cpu.len())
    }

    /// Returns the placement with this instruction set on which an operation is predicted to run fastest. Its time is not
    /// observed: it would distort the predictions of operations that still have to pack.
    fn place_with(&self, isa: Isa, problem: impl FnOnce() -> Result<Problem>) -> Result<&Simd> {
        if let Some(forced) = self.router.forced().filter(|_| !self.takes_packed()) {
            let reason = format!("{} is forced, which cannot read data packed for {isa}", self.places()[forced]);
            return Err(Error::Parameter { op: "packed", reason });
        }
        match &self.cpu[..] {
            [only] => Ok(only),
            all => {
                let other = all.iter().enumerate().filter(|(_, simd)| simd.isa() != isa);
                let residency = other.fold(self.on_cpu(), |residency, (place, _)| residency.barred(place));
                self.simd(&self.router.decide(&problem()?, &residency))
            }
        }
    }

    /// Packs a row-major `k * n` matrix, or one stored transposed (`n * k`), for products with many left-hand matrices:
    /// in the layout of the forced placement, or else of the best instruction set.
    ///
    /// Without it every product packs the matrix again, unless it has so few rows that it reads the matrix only once. Packing
    /// costs about as much as copying the matrix.
    ///
    /// ```
    /// # fn main() -> kiln::Result<()> {
    /// let engine = kiln::Engine::new()?;
    /// let weights = engine.pack_b(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3, false)?;
    /// assert_eq!(engine.matmul_packed(&[1.0, 10.0], &weights, 1)?, [41.0, 52.0, 63.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) when the slice does not have these extents,
    /// [`Error::Overflow`](crate::Error::Overflow) when they overflow,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn pack_b(&self, b: &[f32], k: usize, n: usize, transpose: bool) -> Result<PackedMatrix> {
        self.packing_place()?.pack_b(b, k, n, transpose).map(PackedMatrix)
    }

    /// Writes the product of a row-major `m * k` matrix and a packed one into `out`, row-major `m * n`. It runs on the fastest
    /// predicted placement with the instruction set of the packed matrix.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) when the slices do not have these extents,
    /// [`Error::Overflow`](crate::Error::Overflow) when they overflow, [`Error::Parameter`](crate::Error::Parameter) when
    /// the matrix was packed for an instruction set that this engine, or the forced placement, does not use.
    pub fn matmul_packed_into(&self, a: &[f32], b: &PackedMatrix, m: usize, out: &mut [f32]) -> Result<()> {
        let simd = self.place_with(b.isa(), || {
            let types = [[m, b.rows()], [b.rows(), b.columns()]].map(|dims| Shape::new(&dims).map(TensorType::f32));
            let [a, packed] = types;
            Problem::new(&Matmul::default().into(), &[a?, packed?])
        })?;
        simd.matmul_packed_into(a, &b.0, m, out)
    }

    /// Returns the result of [`Engine::matmul_packed_into`] in a new `Vec`.
    ///
    /// # Errors
    /// The errors of [`Engine::matmul_packed_into`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn matmul_packed(&self, a: &[f32], b: &PackedMatrix, m: usize) -> Result<Vec<f32>> {
        let mut out = kiln_ir::zeros(Shape::new(&[m, b.columns()])?.numel())?;
        self.matmul_packed_into(a, b, m, &mut out)?;
        Ok(out)
    }
    fn convolution_place(&self, op: Convolve2d, dims: &[usize], kernels: &PackedKernels) -> Result<&Simd> {
        self.place_with(kernels.isa(), || {
            Problem::new(&op.into(), &[Shape::new(dims)?, kernels.shape()].map(TensorType::f32))
        })
    }

    /// Packs kernels of the shape `[c_out, c_in, kh, kw]` for convolutions of many images: in the layout of the forced placement, or
    /// else of the best instruction set.
    ///
    /// Without it each convolution of many channels packs the kernels again. That matters most for small images: on an AVX-512 EPYC a
    /// convolution with packed kernels takes 0.75 to 0.85 of the time for 7 x 7 results, 0.9 to 0.95 for 14 x 14, and as long for
    /// large images. Kernels of few channels, and those of one pixel, are kept as they are.
    ///
    /// ```
    /// # fn main() -> kiln::Result<()> {
    /// use kiln::op::Convolve2d;
    ///
    /// let engine = kiln::Engine::new()?;
    /// let kernels = engine.pack_kernels(&[0.25; 8 * 3 * 2 * 2], [8, 3, 2, 2])?;
    /// let y = engine.convolve2d_packed(&[1.0; 3 * 5 * 5], &[3, 5, 5], &kernels, Convolve2d::default())?;
    /// assert_eq!(y, [3.0; 8 * 4 * 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) when the slice does not have these extents,
    /// [`Error::Overflow`](crate::Error::Overflow) when they overflow,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn pack_kernels(&self, kernels: &[f32], dims: [usize; 4]) -> Result<PackedKernels> {
        self.packing_place()?.pack_kernels(kernels, dims).map(PackedKernels)
    }

    /// Writes the convolution of images of the shape `[c_in, h, w]` or `[n, c_in, h, w]` with packed kernels into `out`, with
    /// `c_out` channels. It runs on the fastest predicted placement with the instruction set of the kernels. Sums may be added in
    /// another order than with unpacked kernels, so bits may differ, within the same error bound.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) when a slice does not have its extents, [`Error::Shape`](crate::Error::Shape)
    /// when the channels differ or the kernels are empty or larger than a padded image,
    /// [`Error::Parameter`](crate::Error::Parameter) for a stride or a dilation of zero, for groups of channels, when most of the
    /// kernels never meets the image, and when they were packed for an instruction set that this engine, or the forced placement, does
    /// not use.
    pub fn convolve2d_packed_into(
        &self,
        x: &[f32],
        dims: &[usize],
        kernels: &PackedKernels,
        op: Convolve2d,
        out: &mut [f32],
    ) -> Result<()> {
        self.convolution_place(op, dims, kernels)?.convolve2d_packed_into(x, dims, &kernels.0, op, out)
    }

    /// Returns the result of [`Engine::convolve2d_packed_into`] in a new `Vec`.
    ///
    /// # Errors
    /// The errors of [`Engine::convolve2d_packed_into`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn convolve2d_packed(
        &self,
        x: &[f32],
        dims: &[usize],
        kernels: &PackedKernels,
        op: Convolve2d,
    ) -> Result<Vec<f32>> {
        self.convolution_place(op, dims, kernels)?.convolve2d_packed(x, dims, &kernels.0, op)
    }
}
