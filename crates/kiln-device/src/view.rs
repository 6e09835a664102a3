//! Parts of a tensor: views where a kernel can begin to read, copies on the device elsewhere.

use std::ops::Range;

use kiln_ir::op::Slice;
use kiln_ir::{DType, Error, Result, Shape, TensorType};

use crate::blocking_and_async;
use crate::device::bodies;
use crate::driver::Driver;
use crate::tensor::{Tensor, take};
use crate::waiting::Waiting;

impl<D: Driver> Tensor<D> {
    /// The elements of another type that begin at a byte of this tensor: a view where a kernel can begin to read there, else a
    /// copy on the device.
    ///
    /// # Errors
    /// [`Error::View`] where they are not within the tensor; [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn view(&self, offset: u64, ty: TensorType, waiting: Waiting) -> Result<Self> {
        let (device, whole, bytes) = (self.device(), self.ty().bytes(), ty.bytes() as u64);
        if offset.checked_add(bytes).is_none_or(|end| end > whole as u64) {
            let reason = format!("{bytes} bytes from byte {offset} on are not within {whole} bytes");
            return Err(Error::View { what: "view", reason });
        }
        if let Some(region) = self.region().part(offset, bytes, device.view_alignment()) {
            return Ok(Self::from_region(device.clone(), region, ty));
        }
        if bytes > 0 && !offset.is_multiple_of(D::COPY_ALIGNMENT) {
            return self.copied(offset, ty, waiting).await;
        }
        let copy = || {
            let region = take(device, bytes)?;
            if bytes > 0 {
                device.copy(self.region(), offset, &region, bytes)?;
            }
            Ok(region)
        };
        let region = device.scoped("a slice", bytes, copy).await?;
        Ok(Self::from_region(device.clone(), region, ty))
    }

    /// A copy of elements that begin within a word of a device that copies words: a kernel copies bytes.
    async fn copied(&self, offset: u64, ty: TensorType, waiting: Waiting) -> Result<Self> {
        let bytes = |bytes: usize| TensorType::of(DType::U8, Shape::new(&[bytes])?);
        let whole = Self::from_region(self.device().clone(), self.region().clone(), bytes(self.ty().bytes())?);
        // Within the tensor, so the offset fits usize.
        let range = offset as usize..offset as usize + ty.bytes();
        let copies = bodies::run(self.device(), &Slice::along(0, range, 1)?.into(), &[&whole], waiting).await?;
        let [copy] = <[Self; 1]>::try_from(copies).map_err(|copies| Error::Arity {
            op: "view",
            expected: 1,
            found: copies.len(),
        })?;
        Ok(Self::from_region(copy.device().clone(), copy.region().clone(), ty))
    }

    blocking_and_async! {
        /// The entries `range` along the first axis: rows of a matrix, elements of a vector. It is a view where a kernel can
        /// begin to read there, which most devices ask to be a multiple of 16 to 256 bytes; else it is copied on the device.
        ///
        /// # Errors
        /// [`Error::View`] when the range is not within the first extent, or the tensor has no extent; [`Error::Format`] when blocks
        /// would be cut; [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
        pub fn slice, slice_async(&self, waiting, range: Range<usize>) -> Result<Self> {
            let (offset, ty) = self.ty().entries(range)?;
            self.view(offset, ty, waiting).await
        }
    }
}
