//! Tensors larger than a kernel can see at once, in pieces that it can.

use crate::plan::Slice;

/// Consecutive units of a tensor (rows, elements) that fit a binding together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Piece {
    /// All units at once.
    pub(crate) const fn whole(units: usize) -> Self {
        Self { start: 0, len: units }
    }

    /// The piece's part of a tensor with units of this many bytes.
    pub(crate) fn of(&self, of: impl Into<Slice>, bytes: usize) -> Slice {
        of.into().part(self.start * bytes, self.len * bytes)
    }
}

/// Whether a binding can hold this many bytes.
pub(crate) fn fits(limits: &wgpu::Limits, bytes: usize) -> bool {
    bytes as u64 <= limits.max_storage_buffer_binding_size
}

/// Divides `units` of these bytes, in every one of several tensors, at offsets where a binding may begin. Units that
/// are too large by themselves form pieces. If no division is possible, there is one piece, which the device then
/// refuses.
pub(crate) fn pieces(limits: &wgpu::Limits, units: usize, bytes: &[usize]) -> Vec<Piece> {
    let largest = bytes.iter().copied().max().unwrap_or(0);
    let whole = Piece::whole(units);
    let most = usize::try_from(limits.max_storage_buffer_binding_size).unwrap_or(usize::MAX);
    if units.saturating_mul(largest) <= most {
        return vec![whole];
    }
    let alignment = limits.min_storage_buffer_offset_alignment.max(16) as usize;
    // The fewest units that end where a binding may begin, which is a power of two.
    let even = bytes.iter().map(|bytes| bytes.trailing_zeros()).min().unwrap_or(0);
    let step = alignment >> even.min(alignment.trailing_zeros());
    let len = (most / largest).max(1) / step * step;
    if len == 0 {
        return vec![whole];
    }
    (0..units).step_by(len).map(|start| Piece { start, len: len.min(units - start) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_a_binding_and_begin_where_one_can() {
        let limits = wgpu::Limits {
            max_storage_buffer_binding_size: 10_000,
            min_storage_buffer_offset_alignment: 256,
            ..wgpu::Limits::default()
        };
        for (units, bytes) in [(10_000, 4), (100, 256), (33, 992), (7, 1024), (2500, 4)] {
            let pieces = pieces(&limits, units, &[bytes]);
            let mut next = 0;
            for piece in &pieces {
                assert_eq!(piece.start, next);
                assert!(piece.len * bytes <= 10_000 && (piece.start * bytes).is_multiple_of(256), "{piece:?}");
                next += piece.len;
            }
            assert_eq!(next, units);
            assert_eq!(pieces.len() == 1, units * bytes <= 10_000);
        }
        // Too large, but another binding may begin after each.
        let starts: Vec<usize> = pieces(&limits, 3, &[10_240]).iter().map(|piece| piece.start).collect();
        assert_eq!(starts, [0, 1, 2]);
        // Rows of 1004 bytes begin at a multiple of 256 only every 64th time.
        assert_eq!(pieces(&limits, 100, &[1004]), [Piece::whole(100)]);
    }
}
