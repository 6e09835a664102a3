//! Changes to the scores of a block: caps, slopes and masks.

use kiln_ir::Data;
use kiln_ir::op::Sight;

use super::block::{Block, Seen};
use super::more::{Entry, with_entries};
use crate::math;
use crate::vector::Vector;

impl Block<'_> {
    /// Applies caps, slopes and masks to the scores of a block of keys. `at(query, key)` is the index of a score; all
    /// scores are within the first `n`.
    ///
    /// # Safety
    /// The instruction set of `V` is available; there are `n` scores, followed by at least a vector.
    #[inline(always)]
    pub(super) unsafe fn adjust<V: Vector>(
        &mut self,
        start: usize,
        sights: &[Sight],
        n: usize,
        seen: &mut Seen,
        sees: &mut [bool],
        at: impl Fn(usize, usize) -> usize,
    ) {
        let (e, more) = (self.e, self.more);
        if let Some(cap) = more.op.soft_cap {
            for i in (0..n).step_by(V::LANES) {
                // SAFETY: the contract of this function.
                unsafe {
                    let (p, cap) = (self.scores.as_mut_ptr().add(i), V::splat(cap.get()));
                    (cap * math::tanh(V::load(p) / cap)).store(p);
                }
            }
        }
        if let Some(slopes) = more.slopes {
            for (r, sight) in sights.iter().enumerate() {
                let slope = slopes.load((self.first + r) / e.s);
                for j in seen.ranges[r].start..seen.ranges[r].end {
                    let away = ((start + j) as u32).wrapping_sub(sight.position) as i32;
                    self.scores[at(r, j)] += slope * away as f32;
                }
            }
        }
        if let Some(mask) = more.mask {
            for (r, sees) in sees.iter_mut().enumerate().take(sights.len()) {
                let first = mask.row(&e, self.first + r) + start * mask.strides[2];
                with_entries!(mask.data, entries => {
                    for j in seen.ranges[r].start..seen.ranges[r].end {
                        let bias = entries[first + j * mask.strides[2]].bias();
                        let hidden = bias == f32::NEG_INFINITY;
                        let score = &mut self.scores[at(r, j)];
                        *score = if hidden { bias } else { *score + bias };
                        seen.holes |= hidden;
                        *sees |= !hidden;
                    }
                });
            }
        }
    }
}
