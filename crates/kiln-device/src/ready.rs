//! Operations that a backend keeps ready for operands of the same types: kernels compiled, memory taken.

use std::sync::{Mutex, PoisonError};

use kiln_ir::TensorType;
use kiln_ir::graph::TensorId;
use kiln_ir::op::Op;

/// Maximum number of cached operations.
const MOST: usize = 64;

/// A compiled operation.
#[derive(Debug)]
pub(crate) struct Ready<E> {
    /// The operation.
    pub(crate) op: Op,
    /// The types of its operands.
    pub(crate) types: Vec<TensorType>,
    /// The tensors of its operands.
    pub(crate) inputs: Vec<TensorId>,
    /// The compiled form.
    pub(crate) executable: E,
}

/// A cache of compiled operations, most recently used last.
#[derive(Debug)]
pub(crate) struct ReadyOperations<E>(Mutex<Vec<Ready<E>>>);

impl<E> Default for ReadyOperations<E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<E> ReadyOperations<E> {
    /// Takes the compiled operation for operands of these types out of the cache.
    pub(crate) fn take(&self, op: &Op, types: &[TensorType]) -> Option<Ready<E>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|kept| kept.op == *op && kept.types == types)?;
        Some(kept.remove(at))
    }

    /// Empties the cache. Returns whether it contained anything.
    pub(crate) fn clear(&self) -> bool {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        !kept.is_empty()
    }

    /// Returns an operation to the cache, and evicts the least recently used ones while there are more than 64 or they
    /// hold more than `most_bytes`.
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
        // 1, 2 and 3 together exceed 5.
        assert!(all.take(&op, &types(1)).is_none());
        assert_eq!(all.take(&op, &types(2)).map(|ready| ready.executable), Some(2));
        assert!(all.take(&op, &types(2)).is_none(), "it is in use");
        // The most recent one stays, however large.
        all.keep(ready(9), 5, |&n| n as u64);
        assert!(all.take(&op, &types(3)).is_none());
        assert_eq!(all.take(&op, &types(9)).map(|ready| ready.executable), Some(9));
        for n in 0..=MOST {
            all.keep(ready(n), u64::MAX, |&n| n as u64);
        }
        assert!(all.take(&op, &types(0)).is_none() && all.take(&op, &types(1)).is_some());
    }
}
