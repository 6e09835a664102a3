//! Operations that a program defines.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};

use super::call::MAX_OPERANDS;
use super::{Contract, Operation, Outputs, Param};
use crate::{DataMut, Error, Operand, Result, TensorType};

/// The maximum number of parameters of a custom operation.
const MAX_PARAMS: usize = 4;

/// An operation that a program defines: its properties and its kernels.
///
/// Implement it for a type without state and name a `static` of that type in [`Custom::new`]. The operation is then recorded
/// into graphs like any other. It runs where it has a kernel: on the CPU by [`CustomOperation::cpu`], on GPUs by
/// [`CustomOperation::kernels`]. It is never fused. Equal steps of a graph run once, so its results must depend on its inputs
/// and parameters alone.
pub trait CustomOperation: Any + fmt::Debug + Send + Sync {
    /// The name in snake case, unique in the program: profiles, predictions and errors use it.
    fn name(&self) -> &'static str;

    /// The formula of its result.
    fn formula(&self) -> &'static str;

    /// The shape rule: the types of the results, or why inputs or parameters do not match.
    ///
    /// # Errors
    /// [`Error::Arity`], [`Error::Type`], [`Error::Shape`], [`Error::Parameter`].
    fn infer(&self, params: &[f32], inputs: &[TensorType]) -> Result<Outputs>;

    /// Floating-point operations for inputs that the shape rule accepts; predictions of its time start from them.
    fn flops(&self, call: &CustomCall<'_>) -> u64;

    /// The error bound relative to the reference, and the results of special values.
    fn contract(&self) -> Contract;

    /// The function that computes it on the CPU, if there is one.
    fn cpu(&self) -> Option<CpuKernel> {
        None
    }

    /// Its kernels for GPUs. Each backend looks for its own type: kiln-wgpu for `WgslKernel`, kiln-cuda for
    /// `CudaKernel`.
    fn kernels(&self) -> Vec<&(dyn Any + Send + Sync)> {
        Vec::new()
    }

    /// The results of exact arithmetic, one entry for each result, with which
    /// [`reference::conform`](super::reference::conform) compares. Without it no case passes.
    #[cfg(feature = "reference")]
    fn reference(&self, _call: &CustomCall<'_>, _inputs: &[Operand<'_>]) -> Vec<super::reference::Expected> {
        Vec::new()
    }
}

/// A call of a custom operation, which its shape rule has accepted.
#[derive(Debug, Clone, Copy)]
pub struct CustomCall<'a> {
    /// The parameters.
    pub params: &'a [f32],
    /// Types of the inputs. Kernels are given f32 for f16.
    pub inputs: &'a [TensorType],
    /// Types of the results.
    pub outputs: &'a [TensorType],
}

/// Computes a custom operation on the CPU. Operands and results have the types of the call; operands of f16 come as f32.
pub type CpuKernel = fn(&CustomCall<'_>, &[Operand<'_>], &mut [DataMut<'_>]) -> Result<()>;

/// A custom operation with its parameters.
#[derive(Clone, Copy)]
pub struct Custom {
    operation: &'static dyn CustomOperation,
    params: [Param; MAX_PARAMS],
    count: u8,
}

impl Custom {
    /// The operation with these parameters, at most four.
    ///
    /// # Errors
    /// [`Error::Parameter`] for more.
    pub fn new(operation: &'static dyn CustomOperation, params: &[f32]) -> Result<Self> {
        if params.len() > MAX_PARAMS {
            let reason = format!("{} parameters, at most {MAX_PARAMS} are possible", params.len());
            return Err(Error::Parameter { op: operation.name(), reason });
        }
        let mut kept = [Param::from(0.0); MAX_PARAMS];
        kept.iter_mut().zip(params).for_each(|(kept, &param)| *kept = param.into());
        Ok(Self { operation, params: kept, count: params.len() as u8 })
    }

    /// The function that computes it on the CPU, if there is one.
    pub fn cpu(&self) -> Option<CpuKernel> {
        self.operation.cpu()
    }

    /// Its kernel of this type, if there is one.
    pub fn kernel<K: Any>(&self) -> Option<&K> {
        self.operation.kernels().into_iter().find_map(|kernel| (kernel as &dyn Any).downcast_ref())
    }

    /// Calls `run` with a call on inputs and outputs of these types.
    pub fn call<R>(&self, inputs: &[TensorType], outputs: &[TensorType], run: impl FnOnce(&CustomCall<'_>) -> R) -> R {
        self.with_params(|params| run(&CustomCall { params, inputs, outputs }))
    }

    fn with_params<R>(&self, run: impl FnOnce(&[f32]) -> R) -> R {
        run(&self.params.map(Param::get)[..usize::from(self.count)])
    }

    /// The identity of an operation: the type, and the address of the value unless the type has no size.
    fn identity(&self) -> (std::any::TypeId, *const ()) {
        let address: *const dyn CustomOperation = self.operation;
        let alike = size_of_val(self.operation) == 0;
        (self.operation.type_id(), if alike { std::ptr::null() } else { address.cast() })
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity() && self.count == other.count && self.params == other.params
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
        self.params.hash(state);
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.operation)?;
        match self.count {
            0 => Ok(()),
            count => write!(f, "{:?}", &self.params[..usize::from(count)]),
        }
    }
}

impl Operation for Custom {
    fn name(&self) -> &'static str {
        self.operation.name()
    }

    fn formula(&self) -> &'static str {
        self.operation.formula()
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        if inputs.len() > MAX_OPERANDS {
            return Err(Error::Arity { op: self.name(), expected: MAX_OPERANDS, found: inputs.len() });
        }
        self.with_params(|params| self.operation.infer(params, inputs))
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        self.call(inputs, outputs, |call| self.operation.flops(call))
    }

    fn contract(&self) -> Contract {
        self.operation.contract()
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[Operand<'_>]) -> Vec<super::reference::Expected> {
        let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
        let Ok(outputs) = self.infer(&types) else { return Vec::new() };
        self.call(&types, &outputs, |call| self.operation.reference(call, inputs))
    }

    /// A program tests its own operations.
    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Bound, Op};
    use crate::{Record, Shape};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Adds a number that is stored in the value, in addition to the parameters of the call.
    #[derive(Debug)]
    struct Shift(f32);

    impl CustomOperation for Shift {
        fn name(&self) -> &'static str {
            "shift"
        }

        fn formula(&self) -> &'static str {
            "x + s"
        }

        fn infer(&self, _: &[f32], inputs: &[TensorType]) -> Result<Outputs> {
            super::super::expect_types("shift", inputs, &[crate::DType::F32])?;
            Ok(inputs[0].into())
        }

        fn flops(&self, call: &CustomCall<'_>) -> u64 {
            call.outputs[0].shape.numel() as u64
        }

        fn contract(&self) -> Contract {
            Contract { bound: Bound::Exact, special: "" }
        }

        fn kernels(&self) -> Vec<&(dyn Any + Send + Sync)> {
            vec![&1u8, &"text"]
        }
    }

    static ONE: Shift = Shift(1.0);
    static TWO: Shift = Shift(2.0);

    #[test]
    fn operations_are_told_apart_by_value_and_parameters() {
        let of = |operation, params: &[f32]| Op::from(Custom::new(operation, params).unwrap());
        assert!(ONE.0 < TWO.0);
        assert_eq!(of(&ONE, &[0.0]), of(&ONE, &[0.0]));
        assert_ne!(of(&ONE, &[]), of(&TWO, &[]));
        assert_ne!(of(&ONE, &[0.0]), of(&ONE, &[-0.0]));
        assert_ne!(of(&ONE, &[0.0]), of(&ONE, &[]));
        assert!(matches!(Custom::new(&ONE, &[0.0; 5]), Err(Error::Parameter { op: "shift", .. })));
        let custom = Custom::new(&ONE, &[]).unwrap();
        assert_eq!((custom.kernel::<u8>(), custom.kernel::<&str>()), (Some(&1), Some(&"text")));
        assert_eq!(custom.kernel::<u16>(), None);
    }

    #[test]
    fn graphs_record_them_and_share_equal_ones() {
        let mut graph = crate::graph::Graph::new();
        let x = graph.input(TensorType::f32(Shape::new(&[3]).unwrap()));
        let custom = Custom::new(&ONE, &[2.0]).unwrap();
        let (a, b) = (graph.record(custom, &[x]).unwrap(), graph.record(custom, &[x]).unwrap());
        let c = graph.record(Custom::new(&TWO, &[2.0]).unwrap(), &[x]).unwrap();
        let y = graph.concat(&[a, b, c], 0).unwrap();
        let schedule = graph.schedule(&[y], crate::graph::FusionLimits::default()).unwrap();
        assert_eq!(schedule.steps.len(), 3, "{:?}", schedule.steps);
        assert!(matches!(graph.record(custom, &[x, x]), Err(Error::Arity { op: "shift", expected: 1, found: 2 })));
        let many = vec![x; 9];
        assert!(matches!(graph.record(custom, &many), Err(Error::Arity { op: "shift", .. })));
    }
}
