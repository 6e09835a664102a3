//! Names in plans: memory, tensors in it, and errors that kernels report.

use kiln_ir::graph::TensorId;
use kiln_ir::{Error, TensorType};

/// Memory of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Location {
    /// A tensor that is provided from outside.
    Input(TensorId),
    /// A state, which is provided from outside and modified.
    State(TensorId),
    /// A wanted result.
    Result(TensorId),
    /// A slot that intermediate results share.
    Slot(usize),
    /// Memory of one operation. Operations run one after another, so they share it.
    Scratch(usize),
    /// A value that several operations need, computed by the first of them.
    Kept(usize),
    /// The words that report one kind of fault.
    Fault(usize),
    /// The memory through which the other devices of a group send to the device of this number.
    Exchange(usize),
    /// The same of the device that runs the plan.
    OwnExchange,
}

impl From<kiln_ir::graph::Location> for Location {
    fn from(location: kiln_ir::graph::Location) -> Self {
        use kiln_ir::graph::Location as Tensor;
        match location {
            Tensor::Input(id) => Self::Input(id),
            Tensor::State(id) => Self::State(id),
            Tensor::Result(id) => Self::Result(id),
            Tensor::Slot(slot) => Self::Slot(slot),
        }
    }
}

/// A tensor of a plan: its location and type. It is contiguous and begins at the first byte of its region.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    /// Its location.
    pub at: Location,
    /// Its shape and element type.
    pub ty: TensorType,
}

/// An error in the data that only a kernel sees: an index outside of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The operation.
    pub op: &'static str,
    /// One past the largest index allowed.
    pub bound: usize,
}

impl Fault {
    /// The first of these faults that a device reported. A fault has two words, all ones at first: the position of an
    /// index, and the index. `position` says which of them is the position.
    pub(crate) fn first(faults: &[Self], words: &[u8], stride: u64, position: usize) -> Option<Error> {
        faults.iter().zip(words.chunks(stride as usize)).find_map(|(fault, words)| {
            let (words, _) = words.as_chunks::<4>();
            let word = |at: usize| words.get(at).map_or(u32::MAX, |word| u32::from_le_bytes(*word));
            (word(position) != u32::MAX).then(|| Error::Index {
                op: fault.op,
                position: word(position) as usize,
                index: word(1 - position) as usize,
                bound: fault.bound,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn the_first_fault_is_reported() {
        let fault = |op, bound| Fault { op, bound };
        let faults = [fault("gather", 5), fault("gather", 7)];
        let mut words = [0xff; 32];
        assert_eq!(Fault::first(&faults, &words, 16, 0), None);
        words[16..20].copy_from_slice(&3u32.to_le_bytes());
        words[20..24].copy_from_slice(&9u32.to_le_bytes());
        let reported = |position, index| Some(Error::Index { op: "gather", position, index, bound: 7 });
        assert_eq!(Fault::first(&faults, &words, 16, 0), reported(3, 9));
        assert_eq!(Fault::first(&faults, &words, 16, 1), reported(9, 3));
    }
}
