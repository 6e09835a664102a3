//! Access patterns of kernels on GPUs for the inputs of element-wise chains.

/// The access pattern for an input of an element-wise kernel that computes four neighbouring elements at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// Element by element.
    Whole,
    /// One element for all positions.
    Scalar,
    /// Repeated along the outer dimensions; the length is a multiple of four.
    Vectors,
    /// Repeated along the outer dimensions; any length.
    Elements,
}

impl Fetch {
    /// The pattern for an input of `len` elements when `n` elements are read.
    pub fn of(len: usize, n: usize) -> Self {
        match len {
            _ if len == n => Self::Whole,
            1 => Self::Scalar,
            _ if len.is_multiple_of(4) => Self::Vectors,
            _ => Self::Elements,
        }
    }

    /// Whether the length of the input is a parameter.
    pub fn takes_length(self) -> bool {
        matches!(self, Self::Vectors | Self::Elements)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::Fetch;

    #[test]
    fn an_input_that_is_as_long_as_the_result_is_read_once() {
        assert_eq!([0, 1, 12].map(|n| Fetch::of(n, n)), [Fetch::Whole; 3]);
        assert_eq!([1, 4, 6].map(|len| Fetch::of(len, 12)), [Fetch::Scalar, Fetch::Vectors, Fetch::Elements]);
    }
}
