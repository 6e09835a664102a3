//! Four bits of each of 32 elements in 16 bytes: byte `j` holds those of element `j` in its low and of element `j + 16` in its
//! high nibble. A fifth bit of each may lie elsewhere, bit `i` of a word for element `i`.

/// Unpacks the nibbles in the order of the elements.
#[inline(always)]
pub(super) fn unpack(packed: &[u8; 16]) -> [u8; 32] {
    let mut q = [0; 32];
    for j in 0..16 {
        q[j] = packed[j] & 15;
        q[j + 16] = packed[j] >> 4;
    }
    q
}

/// Packs the low four bits of each element.
#[inline(always)]
pub(super) fn pack(q: &[u8; 32], packed: &mut [u8]) {
    for j in 0..16 {
        packed[j] = q[j] & 15 | (q[j + 16] & 15) << 4;
    }
}

/// 16 for each element whose bit is set.
#[inline(always)]
pub(super) fn unpack_fifth(packed: [u8; 4]) -> [u8; 32] {
    let mut fifth = [0; 32];
    for i in 0..32 {
        fifth[i] = if packed[i / 8] & 1 << (i % 8) == 0 { 0 } else { 16 };
    }
    fifth
}

/// Packs the fifth bit of each element.
#[inline(always)]
pub(super) fn pack_fifth(q: &[u8; 32]) -> [u8; 4] {
    let mut packed = 0u32;
    for i in 0..32 {
        packed |= u32::from(q[i] >> 4 & 1) << i;
    }
    packed.to_le_bytes()
}

/// The 16 bytes from byte `at` on.
#[inline(always)]
pub(super) fn sixteen(block: &[u8], at: usize) -> &[u8; 16] {
    block[at..].first_chunk().unwrap_or(&[0; 16])
}
