/// A block as the product with any format takes it: a small integer for each element, a scale and a minimum for each group of
/// neighbours.
///
/// Element `i` is `scales[g] q[i] - minima[g]` for its group `g = i / (LEN / GROUPS)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unpacked<const LEN: usize, const GROUPS: usize> {
    /// The integers.
    pub q: [i8; LEN],
    /// The scale of each group.
    pub scales: [f32; GROUPS],
    /// What is taken from the elements of each group.
    pub minima: [f32; GROUPS],
}

impl<const LEN: usize, const GROUPS: usize> Unpacked<LEN, GROUPS> {
    /// The elements.
    #[inline(always)]
    pub fn decode(&self, out: &mut [f32; LEN]) {
        let len = LEN / GROUPS;
        for g in 0..GROUPS {
            let (scale, minimum) = (self.scales[g], self.minima[g]);
            for i in g * len..(g + 1) * len {
                // Subtracting a zero minimum changes no number, zeros of either sign included.
                out[i] = scale * f32::from(self.q[i]) - minimum;
            }
        }
    }
}
