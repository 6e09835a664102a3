//! Tensor maps, which describe tensors to the asynchronous copies between global and shared memory.

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use kiln_ir::{Error, Result};
use kiln_ptx::{PtxType, TensorMap};

use super::Context;
use super::memory::Span;

/// The driver's encoding of a tensor map for a tensor in a buffer.
///
/// # Errors
/// [`Error::Driver`] if the driver refuses it or is too old, or if the tensor is not inside the buffer.
pub(super) fn encode(context: &Context, map: &TensorMap, buffer: &Span<'_>) -> Result<CUtensorMap> {
    const WHAT: &str = "describing a tensor";
    let refused = |message: String| Error::Driver { what: WHAT.to_owned(), device: context.name().to_owned(), message };
    let encode = context.encode_tiled().ok_or_else(|| {
        refused("the driver lacks cuTensorMapEncodeTiled: install a driver for CUDA 12.0 or later".into())
    })?;
    let element = match map.element {
        PtxType::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        PtxType::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        PtxType::F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        other => return Err(refused(format!("elements must be F16, Bf16 or F32, not {other:?}"))),
    };
    let (needed, there) = (bytes(map), buffer.bytes());
    if needed.is_none_or(|needed| needed > there) {
        return Err(refused(format!("{map:?} is empty or exceeds its buffer of {there} bytes")));
    }
    let swizzle = match map.swizzles {
        true => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        false => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
    };
    let mut encoded = CUtensorMap { opaque: [0; 16] };
    let address = std::ptr::without_provenance_mut::<c_void>(buffer.address() as usize);
    // SAFETY: it reads three extents, two strides, three extents of a box and three steps, all valid, and writes one
    // map, to a valid place. The described tensor is inside the buffer.
    context.run(WHAT, |_| unsafe {
        encode(
            &mut encoded,
            element,
            3,
            address,
            map.extents.as_ptr(),
            map.strides.as_ptr(),
            map.tile.as_ptr(),
            [1; 3].as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    })?;
    Ok(encoded)
}

/// Bytes from the first element of a tensor to the end of its last one; `None` if that overflows.
fn bytes(map: &TensorMap) -> Option<u64> {
    let [columns, rows, matrices] = map.extents;
    let row = columns.checked_mul(map.element.bytes().into())?;
    let last = |extent: u64, stride: u64| extent.checked_sub(1)?.checked_mul(stride);
    last(rows, map.strides[0])?.checked_add(last(matrices, map.strides[1])?)?.checked_add(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_ends_behind_its_last_element() {
        let map = |extents, strides| {
            let tile = [64, 8, 1];
            TensorMap { buffer: 0, element: PtxType::F16, extents, strides, tile, swizzles: true }
        };
        assert_eq!(bytes(&map([8, 3, 2], [16, 48])), Some(96));
        assert_eq!(bytes(&map([8, 3, 2], [32, 112])), Some(112 + 64 + 16), "rows with room behind them");
        assert_eq!(bytes(&map([1, 1, 1], [16, 16])), Some(2));
        assert_eq!(bytes(&map([8, 0, 1], [16, 16])), None);
        assert_eq!(bytes(&map([u64::MAX, 1, 1], [16, 16])), None);
        assert_eq!(bytes(&map([8, u64::MAX, u64::MAX], [16, 16])), None);
    }
}
