use std::ops::{Deref, DerefMut};

/// Bytes of a page, as the tag of pending stores sees it.
const PAGE: usize = 4096;
/// Elements of a page.
const PAGE_ELEMENTS: usize = PAGE / 4;
/// The offset between neighbouring arrays, in elements: 21 cache lines.
const STAGGER: usize = 336;

/// f32 elements at a chosen place inside of a page.
///
/// Processors compare loads with pending stores by the lowest twelve bits of their addresses. Arrays that a bench makes
/// one after another, of lengths that are powers of two, lie so that a load seems to need the store just before it; the
/// pass then runs at a tenth of its rate. Staggered arrays keep this accident out of the figures.
#[derive(Debug)]
pub struct Array {
    memory: Vec<f32>,
    start: usize,
    n: usize,
}

impl Array {
    /// `n` times `value`; arrays used together have positions of their own, 0 to 7.
    pub fn new(n: usize, value: f32, position: usize) -> Self {
        let memory = vec![value; n + 2 * PAGE_ELEMENTS + 7 * STAGGER];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE_ELEMENTS) + position % 8 * STAGGER;
        Self { memory, start, n }
    }

    /// Random elements in `lo..hi`, the same for the same position.
    pub fn random(n: usize, lo: f32, hi: f32, position: usize) -> Self {
        let mut array = Self::new(n, 0.0, position);
        array.copy_from_slice(&crate::random(n, lo, hi, position as u64 + 1));
        array
    }
}

impl Deref for Array {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.n]
    }
}

impl DerefMut for Array {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.n]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_lie_apart_within_their_pages() {
        let place = |a: &Array| a.as_ptr() as usize % PAGE;
        let arrays: Vec<Array> = (0..4).map(|i| Array::new(4096, 1.0, i)).collect();
        for (i, array) in arrays.iter().enumerate() {
            assert_eq!(array.len(), 4096);
            assert_eq!(place(array), i * STAGGER * 4 % PAGE);
        }
    }
}
