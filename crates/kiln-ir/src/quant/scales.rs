use super::half;

/// The eight 6-bit scales and the eight 6-bit minima that [`pack_scales`] packed into 12 bytes.
#[inline(always)]
pub fn unpack_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |i: usize| u32::from_le_bytes([packed[i], packed[i + 1], packed[i + 2], packed[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    // Four codes at a time, one per byte.
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let scales = join(a & 0x3f3f_3f3f, (c & 0x0f0f_0f0f) | ((a >> 2) & 0x3030_3030));
    let minima = join(b & 0x3f3f_3f3f, ((c >> 4) & 0x0f0f_0f0f) | ((b >> 2) & 0x3030_3030));
    (scales.to_le_bytes(), minima.to_le_bytes())
}

/// The scale and the minimum of each group of Q4_K and Q5_K, whose blocks have the same first 16 bytes.
#[inline(always)]
pub(super) fn coded(header: &[u8]) -> [[f32; 8]; 2] {
    let header: &[u8; 16] = header.first_chunk().unwrap_or(&[0; 16]);
    let (scales, minima) = unpack_scales(header[4..].first_chunk().unwrap_or(&[0; 12]));
    let (d, dmin) = (half([header[0], header[1]]), half([header[2], header[3]]));
    [scales.map(|code| d * f32::from(code)), minima.map(|code| dmin * f32::from(code))]
}

/// Packs eight 6-bit scales and eight 6-bit minima into 12 bytes.
///
/// Bytes 0..4 hold scales 0..4, bytes 4..8 minima 0..4, each with two upper bits of scale or minimum 4..8 on top; bytes
/// 8..12 hold the four lower bits of scales 4..8 (low nibble) and of minima 4..8 (high nibble).
#[inline(always)]
pub fn pack_scales(scales: &[u8; 8], minima: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        packed[j + 4] = minima[j] | (minima[j + 4] >> 4) << 6;
        packed[j + 8] = (scales[j + 4] & 15) | (minima[j + 4] & 15) << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_bits_stand_where_the_layout_says() {
        let one = |j: usize, v: u8| std::array::from_fn(|i| if i == j { v } else { 0 });
        assert_eq!(pack_scales(&one(0, 63), &[0; 8]), [63, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(pack_scales(&one(5, 0b10_0110), &[0; 8]), [0, 0x80, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0]);
        assert_eq!(pack_scales(&[0; 8], &one(3, 33)), [0, 0, 0, 0, 0, 0, 0, 33, 0, 0, 0, 0]);
        assert_eq!(pack_scales(&[0; 8], &one(7, 0b01_1001)), [0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0x90]);
    }

    #[cfg(not(target_arch = "wasm32"))] // proptest is unavailable on this target
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn packing_is_undone(scales in prop::array::uniform8(0u8..64), minima in prop::array::uniform8(0u8..64)) {
                prop_assert_eq!(unpack_scales(&pack_scales(&scales, &minima)), (scales, minima));
            }

            #[test]
            fn unpacking_follows_the_formula(q in prop::array::uniform12(any::<u8>())) {
                let (scales, minima) = unpack_scales(&q);
                for j in 0..4 {
                    prop_assert_eq!((scales[j], minima[j]), (q[j] & 63, q[j + 4] & 63));
                }
                for j in 4..8 {
                    prop_assert_eq!(scales[j], (q[j + 4] & 15) | (q[j - 4] >> 6) << 4);
                    prop_assert_eq!(minima[j], (q[j + 4] >> 4) | (q[j] >> 6) << 4);
                }
            }
        }
    }
}
