//! Operations that a backend keeps ready for operands of the same types: kernels compiled, memory taken.

use std::sync::{Mutex, PoisonError};

use kiln_ir::TensorType;
use kiln_ir::graph::TensorId;
use kiln_ir::op::Op;

/// Operations that are kept at most.
const MOST: usize = 64;

/// An operation that is ready to run.
#[derive(Debug)]
pub(crate) struct Ready<E> {
    /// The operation.
    pub(crate) op: Op,
    /// The types of its operands.
    pub(crate) types: Vec<TensorType>,
    /// The tensors of its operands.
    pub(crate) inputs: Vec<TensorId>,
    /// What runs.
    pub(crate) executable: E,
}

/// Operations that are ready, the last used last.
#[derive(Debug)]
pub(crate) struct ReadyOperations<E>(Mutex<Vec<Ready<E>>>);

impl<E> Default for ReadyOperations<E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<E> ReadyOperations<E> {
    /// What is kept of an operation on operands of these types, taken out for as long as it is in use.
    pub(crate) fn take(&self, op: &Op, types: &[TensorType]) -> Option<Ready<E>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|kept| kept.op == *op && kept.types == types)?;
        Some(kept.remove(at))
    }

    /// Drops everything that is kept, and says whether there was anything.
    pub(crate) fn clear(&self) -> bool {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        !kept.is_empty()
    }

    /// Keeps what was used for the next time, and lets go of what was not used for longest where there are more than 64
    /// or they hold more than this many bytes.
    pub(crate) fn keep(&self, used: Ready<E>, most_bytes: u64, bytes: impl Fn(&E) -> u64) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(used);
        let held = |kept: &[Ready<E>]| kept.iter().map(|kept| bytes(&kept.executable)).sum::<u64>();
        while kept.len() > 1 && (kept.len() > MOST || held(&kept) > most_bytes) {
            kept.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;
    use kiln_ir::Shape;
    use kiln_ir::op::Elementwise;

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let op = Op::from(Elementwise::add());
        let types = |n: usize| vec![TensorType::f32(Shape::new(&[n]).unwrap()); 2];
        let ready = |n: usize| Ready { op, types: types(n), inputs: Vec::new(), executable: n };
        let all = ReadyOperations::default();
        for n in [1, 2, 3] {
            all.keep(ready(n), 5, |&n| n as u64);
        }
        // 1 and 2 and 3 are more than 5.
        assert!(all.take(&op, &types(1)).is_none());
        assert_eq!(all.take(&op, &types(2)).map(|ready| ready.executable), Some(2));
        assert!(all.take(&op, &types(2)).is_none(), "it is in use");
        // The last one stays, however large.
        all.keep(ready(9), 5, |&n| n as u64);
        assert!(all.take(&op, &types(3)).is_none());
        assert_eq!(all.take(&op, &types(9)).map(|ready| ready.executable), Some(9));
        for n in 0..=MOST {
            all.keep(ready(n), u64::MAX, |&n| n as u64);
        }
        assert!(all.take(&op, &types(0)).is_none() && all.take(&op, &types(1)).is_some());
    }
}
