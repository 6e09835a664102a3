//! Right-hand matrices packed once for many products.

use kiln_core::op::Matmul;
use kiln_core::{Result, Shape, TensorType};
use kiln_route::Problem;
use kiln_simd::{Isa, PackedB, Simd};

use crate::Engine;

/// A right-hand matrix, such as the weights of a layer, in the order in which matrix products read it. Made by
/// [`Engine::pack_b`]; holds a copy of the elements.
///
/// The order is that of one instruction set, the best one of the engine that made it. Products with it run at the places
/// of this engine, and of others, that have the same instruction set; the router chooses among those.
#[derive(Debug)]
pub struct PackedMatrix(PackedB);

impl PackedMatrix {
    /// Rows: the number of products in each element of the result.
    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.0.columns()
    }

    /// The instruction set in whose order it lies.
    pub fn isa(&self) -> Isa {
        self.0.isa()
    }
}

impl Engine {
    /// Packs a row-major `k * n` matrix, or one stored transposed (`n * k`), for products with many left-hand matrices:
    /// in the order of the place that is forced, or else of the best instruction set.
    ///
    /// Every product otherwise does this anew, unless it has so few rows that reading the matrix once is all there is to
    /// do. Packing costs about as much as copying the matrix.
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
        // Better instruction sets stand after lesser ones.
        let forced = self.router.forced().and_then(|place| self.cpu.get(place));
        let simd = match forced.or(self.cpu.last()) {
            Some(simd) => *simd,
            None => Simd::new()?,
        };
        simd.pack_b(b, k, n, transpose).map(PackedMatrix)
    }

    /// The product of a row-major `m * k` matrix and a packed one, into `out`, row-major `m * n`, where it is predicted to
    /// run fastest of the places with the instruction set of the packed matrix.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) when the slices do not have these extents,
    /// [`Error::Overflow`](crate::Error::Overflow) when they overflow, [`Error::Parameter`](crate::Error::Parameter) when
    /// the matrix was packed for an instruction set that this engine does not use, or that the forced place has not.
    pub fn matmul_packed_into(&self, a: &[f32], b: &PackedMatrix, out: &mut [f32], m: usize) -> Result<()> {
        let simd = match &self.cpu[..] {
            [only] => only,
            all => {
                let types = [[m, b.rows()], [b.rows(), b.columns()]].map(|dims| Shape::new(&dims).map(TensorType::f32));
                let [a, packed] = types;
                let problem = Problem::new(&Matmul::default().into(), &[a?, packed?])?;
                let other = all.iter().enumerate().filter(|(_, simd)| simd.isa() != b.isa());
                let residency = other.fold(self.on_cpu(), |residency, (place, _)| residency.barred(place));
                // Its time is not observed: it would correct the predictions of products that have yet to pack.
                self.simd(&self.router.decide(&problem, &residency))?
            }
        };
        simd.matmul_packed_into(a, &b.0, out, m)
    }

    /// As [`Engine::matmul_packed_into`], into a new `Vec`.
    ///
    /// # Errors
    /// As [`Engine::matmul_packed_into`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn matmul_packed(&self, a: &[f32], b: &PackedMatrix, m: usize) -> Result<Vec<f32>> {
        let mut out = kiln_core::zeros(Shape::new(&[m, b.columns()])?.numel())?;
        self.matmul_packed_into(a, b, &mut out, m)?;
        Ok(out)
    }
}
