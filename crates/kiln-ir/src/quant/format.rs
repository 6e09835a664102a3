//! The properties of each format: its names, the lengths of its blocks, and the meaning of their integers and scales.

/// The properties of a format: a row of the table of formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The name that GGUF tools use.
    pub name: &'static str,
    /// The number of the type in GGUF files.
    pub gguf_id: u32,
    /// Elements of a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bits of the integer of an element.
    pub bits: u32,
    /// Neighbouring elements with a scale in common.
    pub group: usize,
    /// The number that an integer encodes.
    pub values: Values,
    /// The storage of the scales of groups.
    pub scales: Scales,
}

/// The number that an integer encodes, in units of the scale of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// A signed integer.
    Symmetric,
    /// An unsigned integer, from which the minimum of the group is subtracted.
    Affine,
    /// The entry of a code book at this index.
    Book(&'static [i8; 16]),
}

/// The storage of the scales of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// The block is one group. Its scale is the f16 at byte `unit`; the f16 at `minimum`, if present, is added.
    Whole {
        /// The byte of the scale.
        unit: usize,
        /// The byte of the f16 that is added.
        minimum: Option<usize>,
    },
    /// The block is one group. Its scale is the power of two whose exponent, plus 128, is the byte `unit`.
    Power {
        /// The byte of the scale.
        unit: usize,
    },
    /// Each group has a code in units of the f16 at byte `unit`, and, if there are minima, another one in units of the
    /// f16 at `minimum`.
    Codes {
        /// The byte of the unit of the scales.
        unit: usize,
        /// The byte of the unit of the minima.
        minimum: Option<usize>,
        /// The smallest and the largest code.
        range: [i32; 2],
    },
}

impl Layout {
    /// The byte of the f16 that is the scale or the unit of the scales, if one is.
    pub const fn unit(&self) -> Option<usize> {
        match self.scales {
            Scales::Whole { unit, .. } | Scales::Codes { unit, .. } => Some(unit),
            Scales::Power { .. } => None,
        }
    }

    /// The byte of the f16 that is the minimum or the unit of the minima.
    pub const fn minimum(&self) -> Option<usize> {
        match self.scales {
            Scales::Whole { minimum, .. } | Scales::Codes { minimum, .. } => minimum,
            Scales::Power { .. } => None,
        }
    }
}

/// The sixteen numbers of [IQ4_NL](super::iq4_nl): closer to one another around zero, as weights are.
pub const NORMAL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The sixteen numbers of [MXFP4](super::mxfp4), in halves: E2M1 has 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with either sign.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Calls `$callback!` with the formats: for each its variant, the module that decodes and encodes it, and its [`Layout`].
macro_rules! formats {
    ($callback:ident) => {
        $callback! {
            /// 32 elements in 34 bytes: one f16 scale, 8-bit integers.
            Q8_0 = q8_0 {
                name: "q8_0", id: 8, len: 32, bytes: 34, bits: 8, group: 32, values: Values::Symmetric,
                scales: Scales::Whole { unit: 0, minimum: None },
            }
            /// 32 elements in 18 bytes: one f16 scale, 4-bit integers.
            Q4_0 = q4_0 {
                name: "q4_0", id: 2, len: 32, bytes: 18, bits: 4, group: 32, values: Values::Symmetric,
                scales: Scales::Whole { unit: 0, minimum: None },
            }
            /// 32 elements in 20 bytes: one f16 scale, one f16 offset, 4-bit integers.
            Q4_1 = q4_1 {
                name: "q4_1", id: 3, len: 32, bytes: 20, bits: 4, group: 32, values: Values::Affine,
                scales: Scales::Whole { unit: 0, minimum: Some(2) },
            }
            /// 32 elements in 22 bytes: [`QuantFormat::Q4_0`] with a fifth bit plane.
            Q5_0 = q5_0 {
                name: "q5_0", id: 6, len: 32, bytes: 22, bits: 5, group: 32, values: Values::Symmetric,
                scales: Scales::Whole { unit: 0, minimum: None },
            }
            /// 32 elements in 24 bytes: [`QuantFormat::Q4_1`] with a fifth bit plane.
            Q5_1 = q5_1 {
                name: "q5_1", id: 7, len: 32, bytes: 24, bits: 5, group: 32, values: Values::Affine,
                scales: Scales::Whole { unit: 0, minimum: Some(2) },
            }
            /// 32 elements in 18 bytes: one f16 scale, indices into a table of 16 numbers.
            Iq4Nl = iq4_nl {
                name: "iq4_nl", id: 20, len: 32, bytes: 18, bits: 4, group: 32, values: Values::Book(&NORMAL),
                scales: Scales::Whole { unit: 0, minimum: None },
            }
            /// 32 elements in 17 bytes: a power of two, and 4-bit floats.
            Mxfp4 = mxfp4 {
                name: "mxfp4", id: 39, len: 32, bytes: 17, bits: 4, group: 32, values: Values::Book(&DOUBLED),
                scales: Scales::Power { unit: 0 },
            }
            /// 256 elements in 84 bytes: 16 sub-blocks with 4-bit scales and minima, 2-bit integers.
            Q2K = q2_k {
                name: "q2_K", id: 10, len: 256, bytes: 84, bits: 2, group: 16, values: Values::Affine,
                scales: Scales::Codes { unit: 80, minimum: Some(82), range: [0, 15] },
            }
            /// 256 elements in 110 bytes: 16 sub-blocks with 6-bit scales, 3-bit integers.
            Q3K = q3_k {
                name: "q3_K", id: 11, len: 256, bytes: 110, bits: 3, group: 16, values: Values::Symmetric,
                scales: Scales::Codes { unit: 108, minimum: None, range: [-32, 31] },
            }
            /// 256 elements in 144 bytes: 8 sub-blocks with 6-bit scales and minima, 4-bit integers.
            Q4K = q4_k {
                name: "q4_K", id: 12, len: 256, bytes: 144, bits: 4, group: 32, values: Values::Affine,
                scales: Scales::Codes { unit: 0, minimum: Some(2), range: [0, 63] },
            }
            /// 256 elements in 176 bytes: [`QuantFormat::Q4K`] with a fifth bit plane.
            Q5K = q5_k {
                name: "q5_K", id: 13, len: 256, bytes: 176, bits: 5, group: 32, values: Values::Affine,
                scales: Scales::Codes { unit: 0, minimum: Some(2), range: [0, 63] },
            }
            /// 256 elements in 210 bytes: 16 sub-blocks with 8-bit scales, 6-bit integers.
            Q6K = q6_k {
                name: "q6_K", id: 14, len: 256, bytes: 210, bits: 6, group: 16, values: Values::Symmetric,
                scales: Scales::Codes { unit: 208, minimum: None, range: [-128, 127] },
            }
            /// 256 elements in 136 bytes: 8 sub-blocks with 6-bit scales, indices into the table of [`QuantFormat::Iq4Nl`].
            Iq4Xs = iq4_xs {
                name: "iq4_xs", id: 23, len: 256, bytes: 136, bits: 4, group: 32, values: Values::Book(&NORMAL),
                scales: Scales::Codes { unit: 0, minimum: None, range: [-32, 31] },
            }
        }
    };
}
pub(super) use formats;

macro_rules! variants {
    ($($(#[doc = $doc:literal])+ $variant:ident = $module:ident {
        name: $name:literal, id: $id:literal, len: $len:literal, bytes: $bytes:literal, bits: $bits:literal,
        group: $group:literal, values: $values:expr, scales: $scales:expr $(,)?
    })+) => {
        /// A quantised format: blocks of a fixed number of elements along the last dimension.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum QuantFormat {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl QuantFormat {
            /// Every format.
            pub const ALL: [Self; [$($id),+].len()] = [$(Self::$variant),+];

            /// The properties of the format.
            pub const fn layout(self) -> &'static Layout {
                match self {
                    $(Self::$variant => &Layout {
                        name: $name,
                        gguf_id: $id,
                        block_len: $len,
                        block_bytes: $bytes,
                        bits: $bits,
                        group: $group,
                        values: $values,
                        scales: $scales,
                    },)+
                }
            }
        }
    };
}
formats!(variants);

impl QuantFormat {
    /// The name that GGUF tools use.
    pub const fn name(self) -> &'static str {
        self.layout().name
    }

    /// Elements in a block.
    pub const fn block_len(self) -> usize {
        self.layout().block_len
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.layout().block_bytes
    }

    /// Groups of a block, each with a scale.
    pub const fn groups(self) -> usize {
        self.block_len() / self.layout().group
    }

    /// The format of this number in GGUF files, if it is one of these.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.layout().gguf_id == id)
    }

    /// The least number that an element may have in units of its scale.
    pub const fn least(self) -> i8 {
        let layout = self.layout();
        match layout.values {
            Values::Affine => 0,
            Values::Symmetric => (-1 << (layout.bits - 1)) as i8,
            Values::Book(book) => {
                let (mut least, mut i) = (0, 0);
                while i < book.len() {
                    if book[i] < least {
                        least = book[i];
                    }
                    i += 1;
                }
                least
            }
        }
    }
}
