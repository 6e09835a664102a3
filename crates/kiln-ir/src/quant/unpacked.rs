/// A block as the product with any format takes it: a small integer for each element, a scale and a minimum for each group of
/// neighbours.
///
/// Element `i` is `scales[g] q[i] - minima[g]` for its group `g = i / (LEN / GROUPS)`. With a code book, `q[i]` is an index, and
/// the element has the number there in its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unpacked<const LEN: usize, const GROUPS: usize> {
    /// The integers, or indices into the code book.
    pub q: [i8; LEN],
    /// The scale of each group.
    pub scales: [f32; GROUPS],
    /// The minimum that is subtracted from the elements of each group.
    pub minima: [f32; GROUPS],
}

impl<const LEN: usize, const GROUPS: usize> Unpacked<LEN, GROUPS> {
    /// The same with the numbers of a code book.
    #[inline(always)]
    pub fn through(mut self, book: &[i8; 16]) -> Self {
        for i in 0..LEN {
            self.q[i] = book[usize::from(self.q[i] as u8 & 15)];
        }
        self
    }

    /// The elements of a block without a code book.
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
