//! The options of attention: positions, lengths, windows, masks, caps of scores, slopes and sinks.

use kiln_ir::op::{Attention, AttentionExtents, Sight};
use kiln_ir::{Bool, Data, Element};

/// The options and operands of the query heads that share a key head.
#[derive(Clone, Copy)]
pub(super) struct More<'a> {
    pub(super) op: Attention,
    /// Keys of the sequence.
    pub(super) length: usize,
    /// Positions of the queries of the sequence.
    pub(super) positions: Option<&'a [u32]>,
    pub(super) mask: Option<Mask<'a>>,
    /// A sink logit and a slope for each head.
    pub(super) sinks: Option<Data<'a>>,
    pub(super) slopes: Option<Data<'a>>,
}

/// A mask, beginning at the first of these heads.
#[derive(Clone, Copy)]
pub(super) struct Mask<'a> {
    pub(super) data: Data<'a>,
    /// The index of the entry for the first query of the first head and the first key.
    pub(super) first: usize,
    /// The distances between heads, queries and keys.
    pub(super) strides: [usize; 3],
}

impl Mask<'_> {
    /// The index of the entry for query `row` of the group and the first key.
    pub(super) fn row(&self, e: &AttentionExtents, row: usize) -> usize {
        self.first + row / e.s * self.strides[0] + row % e.s * self.strides[1]
    }
}

/// An entry of a mask as the number to add to a score: -∞ hides the key.
pub(super) trait Entry: Copy {
    fn bias(self) -> f32;
}

impl Entry for Bool {
    #[inline(always)]
    fn bias(self) -> f32 {
        if self.into() { 0.0 } else { f32::NEG_INFINITY }
    }
}

macro_rules! floats {
    ($($float:ty),*) => { $(
        impl Entry for $float {
            #[inline(always)]
            fn bias(self) -> f32 {
                self.load()
            }
        }
    )* };
}

floats!(f32, kiln_ir::f16, kiln_ir::bf16);

/// Calls a closure with the entries of a mask in their own type.
macro_rules! with_entries {
    ($data:expr, $entries:ident => $body:expr) => {
        match $data {
            Data::Bool($entries) => $body,
            Data::F32($entries) => $body,
            Data::F16($entries) => $body,
            Data::Bf16($entries) => $body,
            // The shape rule refuses masks of other types.
            _ => {}
        }
    };
}
pub(super) use with_entries;

impl More<'_> {
    /// The keys that query `row` of the group sees.
    pub(super) fn sight(&self, e: &AttentionExtents, row: usize) -> Sight {
        let i = row % e.s;
        self.op.sight(e, i, self.length, self.positions.map(|positions| positions[i]))
    }

    /// The sink logit of query `row` of the group.
    pub(super) fn sink(&self, e: &AttentionExtents, row: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks.load(row / e.s))
    }

    /// Whether query `row` of the group, with this sight, sees a key.
    pub(super) fn shows(&self, e: &AttentionExtents, row: usize, sight: &Sight, key: usize) -> bool {
        let mut shown = (sight.begin..sight.end).contains(&key);
        if let Some(mask) = self.mask {
            let at = mask.row(e, row) + key * mask.strides[2];
            with_entries!(mask.data, entries => shown &= entries[at].bias() != f32::NEG_INFINITY);
        }
        shown
    }
}
