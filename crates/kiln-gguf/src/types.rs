//! The types of tensors in GGUF files: one row each.

use std::fmt;

use kiln_ir::{DType, QuantFormat};

/// Defines [`TensorKind`] from the table of types.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident { id: $id:literal, name: $name:literal, block: $block:literal, bytes: $bytes:literal })+) => {
        /// The type of the elements of a tensor in a GGUF file.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum TensorKind {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl TensorKind {
            /// Every type, by number.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The number of the type in files.
            pub const fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)+ }
            }

            /// The name that tools for GGUF files print.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Elements of a block; 1 for types without blocks.
            pub const fn block_len(self) -> usize {
                match self { $(Self::$variant => $block,)+ }
            }

            /// Bytes of a block, or of an element for types without blocks.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)+ }
            }

            /// The type with this number.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

kinds! {
    /// IEEE 754 binary32.
    F32 { id: 0, name: "F32", block: 1, bytes: 4 }
    /// IEEE 754 binary16.
    F16 { id: 1, name: "F16", block: 1, bytes: 2 }
    /// 4-bit integers and an f16 scale.
    Q4_0 { id: 2, name: "Q4_0", block: 32, bytes: 18 }
    /// 4-bit integers, an f16 scale and an f16 minimum.
    Q4_1 { id: 3, name: "Q4_1", block: 32, bytes: 20 }
    /// 5-bit integers and an f16 scale.
    Q5_0 { id: 6, name: "Q5_0", block: 32, bytes: 22 }
    /// 5-bit integers, an f16 scale and an f16 minimum.
    Q5_1 { id: 7, name: "Q5_1", block: 32, bytes: 24 }
    /// 8-bit integers and an f16 scale.
    Q8_0 { id: 8, name: "Q8_0", block: 32, bytes: 34 }
    /// 8-bit integers, an f16 scale and an f16 sum: activations, not weights.
    Q8_1 { id: 9, name: "Q8_1", block: 32, bytes: 36 }
    /// 2-bit integers with 4-bit scales and minima.
    Q2K { id: 10, name: "Q2_K", block: 256, bytes: 84 }
    /// 3-bit integers with 6-bit scales.
    Q3K { id: 11, name: "Q3_K", block: 256, bytes: 110 }
    /// 4-bit integers with 6-bit scales and minima.
    Q4K { id: 12, name: "Q4_K", block: 256, bytes: 144 }
    /// 5-bit integers with 6-bit scales and minima.
    Q5K { id: 13, name: "Q5_K", block: 256, bytes: 176 }
    /// 6-bit integers with 8-bit scales.
    Q6K { id: 14, name: "Q6_K", block: 256, bytes: 210 }
    /// 8-bit integers, an f32 scale and sums: activations, not weights.
    Q8K { id: 15, name: "Q8_K", block: 256, bytes: 292 }
    /// Indices into a code book of 256 points of 8.
    Iq2Xxs { id: 16, name: "IQ2_XXS", block: 256, bytes: 66 }
    /// Indices into a code book of 512 points of 8.
    Iq2Xs { id: 17, name: "IQ2_XS", block: 256, bytes: 74 }
    /// Indices into a code book of 256 points of 4.
    Iq3Xxs { id: 18, name: "IQ3_XXS", block: 256, bytes: 98 }
    /// Indices into a code book of 2048 points of 8.
    Iq1S { id: 19, name: "IQ1_S", block: 256, bytes: 50 }
    /// Indices into a table of 16 numbers, an f16 scale.
    Iq4Nl { id: 20, name: "IQ4_NL", block: 32, bytes: 18 }
    /// Indices into a code book of 512 points of 4.
    Iq3S { id: 21, name: "IQ3_S", block: 256, bytes: 110 }
    /// Indices into a code book of 1024 points of 8.
    Iq2S { id: 22, name: "IQ2_S", block: 256, bytes: 82 }
    /// Indices into the table of IQ4_NL, 6-bit scales.
    Iq4Xs { id: 23, name: "IQ4_XS", block: 256, bytes: 136 }
    /// Signed integers of 8 bits.
    I8 { id: 24, name: "I8", block: 1, bytes: 1 }
    /// Signed integers of 16 bits.
    I16 { id: 25, name: "I16", block: 1, bytes: 2 }
    /// Signed integers of 32 bits.
    I32 { id: 26, name: "I32", block: 1, bytes: 4 }
    /// Signed integers of 64 bits.
    I64 { id: 27, name: "I64", block: 1, bytes: 8 }
    /// IEEE 754 binary64.
    F64 { id: 28, name: "F64", block: 1, bytes: 8 }
    /// Indices into the code book of IQ1_S, scales split over the block.
    Iq1M { id: 29, name: "IQ1_M", block: 256, bytes: 56 }
    /// The upper half of an f32.
    Bf16 { id: 30, name: "BF16", block: 1, bytes: 2 }
    /// Ternary weights, five to a byte.
    Tq1_0 { id: 34, name: "TQ1_0", block: 256, bytes: 54 }
    /// Ternary weights, four to a byte.
    Tq2_0 { id: 35, name: "TQ2_0", block: 256, bytes: 66 }
    /// 4-bit floats with a power of two.
    Mxfp4 { id: 39, name: "MXFP4", block: 32, bytes: 17 }
    /// 4-bit floats with four 8-bit float scales.
    Nvfp4 { id: 40, name: "NVFP4", block: 64, bytes: 36 }
    /// One-bit weights.
    Q1_0 { id: 41, name: "Q1_0", block: 128, bytes: 18 }
    /// Two-bit weights.
    Q2_0 { id: 42, name: "Q2_0", block: 64, bytes: 18 }
}

impl TensorKind {
    /// The type that kiln computes with, or `None` where it has no kernels for this one.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::Bf16,
            Self::I32 => DType::I32,
            Self::I8 => DType::I8,
            _ => DType::Blocks(QuantFormat::from_gguf_id(self.id())?),
        })
    }

    /// The type that stores elements of a kiln type, or `None` where GGUF has no such type.
    pub fn of(dtype: DType) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.dtype() == Some(dtype))
    }

    /// Bytes of `elements` elements.
    ///
    /// Returns `None` where they are not whole blocks, or where the bytes overflow 64 bits.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        elements.is_multiple_of(block).then_some(elements / block)?.checked_mul(self.block_bytes() as u64)
    }

    /// The former name of the type with this number, if it was removed from the format.
    pub const fn removed(id: u32) -> Option<&'static str> {
        Some(match id {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => return None,
        })
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn formats_of_kiln_have_the_sizes_of_the_table() {
        for format in QuantFormat::ALL {
            let kind = TensorKind::of(DType::Blocks(format)).expect("every format of kiln is a type of GGUF");
            let layout = format.layout();
            assert_eq!(
                (kind.id(), kind.block_len(), kind.block_bytes()),
                (layout.gguf_id, layout.block_len, layout.block_bytes)
            );
            assert!(kind.name().eq_ignore_ascii_case(format.name()), "{kind} {}", format.name());
        }
        for kind in TensorKind::ALL {
            if let Some(dtype) = kind.dtype()
                && !matches!(dtype, DType::Blocks(_))
            {
                assert_eq!((dtype.size(), 1), (kind.block_bytes(), kind.block_len()), "{kind}");
            }
        }
    }

    #[test]
    fn numbers_are_those_of_the_format() {
        for id in 0..100 {
            let kind = TensorKind::from_id(id);
            assert_eq!(kind.map(TensorKind::id).unwrap_or(id), id);
            // Each of the 43 numbers is a type or a removed one.
            assert_eq!(kind.is_some() || TensorKind::removed(id).is_some(), id < 43, "{id}");
            assert!(kind.is_none() || TensorKind::removed(id).is_none(), "{id}");
        }
    }

    #[test]
    fn bytes_are_those_of_whole_blocks() {
        assert_eq!(TensorKind::Q4K.bytes(512), Some(288));
        assert_eq!(TensorKind::Q4K.bytes(500), None);
        assert_eq!(TensorKind::F32.bytes(u64::MAX / 2), None);
        assert_eq!(TensorKind::Mxfp4.bytes(0), Some(0));
    }
}
