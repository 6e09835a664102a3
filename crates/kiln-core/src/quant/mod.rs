//! Quantised block formats with the layouts of GGUF files.

/// A quantised format: blocks of a fixed number of elements along the last dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuantFormat {
    /// 32 elements in 34 bytes: one f16 scale, 8-bit integers.
    Q8_0,
    /// 256 elements in 144 bytes: 8 sub-blocks with 6-bit scales and minima, 4-bit integers.
    Q4K,
    /// 256 elements in 176 bytes: as [`QuantFormat::Q4K`] with a fifth bit plane.
    Q5K,
    /// 256 elements in 210 bytes: 16 sub-blocks with 8-bit scales, 6-bit integers.
    Q6K,
}

impl QuantFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K];

    /// The name used by GGUF tools.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_K",
            Self::Q5K => "q5_K",
            Self::Q6K => "q6_K",
        }
    }

    /// Elements in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }
}
