//! Operations that a program defines, by their kernels in WGSL.

use kiln_ir::op::{Custom, CustomCall, Operation};
use kiln_ir::{Error, Result, TensorType};
use kiln_shaders::{Access, Kernel};

use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Grid, Slice, Word};

/// The kernel of a custom operation in WGSL, one of [`CustomOperation::kernels`](kiln_ir::op::CustomOperation::kernels).
///
/// The source begins with lines that describe it, from which its declarations are made: `#input name: type` for each input
/// and then `#output name: type` for each result, which become bindings; and `#param name: type` for each parameter of 32 bits,
/// which it reads as `p.name`. `#include common` gives it `group_number(group, groups)`: grids of many workgroups are folded
/// into two dimensions. Its entry point is `main`. Accesses beyond a buffer are caught by checks at run time.
#[derive(Debug, Clone, Copy)]
pub struct WgslKernel {
    source: &'static str,
    launch: fn(&CustomCall<'_>) -> Result<WgslLaunch>,
}

/// The launch of a [`WgslKernel`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WgslLaunch {
    /// The parameters as words, in the order of the source; `f32::to_bits` makes a word of a number.
    pub params: Vec<u32>,
    /// The number of workgroups.
    pub workgroups: usize,
}

impl WgslKernel {
    /// A kernel, and the function that returns its launch for a call.
    pub const fn new(source: &'static str, launch: fn(&CustomCall<'_>) -> Result<WgslLaunch>) -> Self {
        Self { source, launch }
    }
}

impl Lower<GpuDevice> for Custom {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let own = self.kernel::<WgslKernel>().ok_or(Error::Unsupported { op: self.name(), backend: "wgpu" })?;
        let [types, results] = [inputs, outputs].map(|values| values.iter().map(|v| v.ty).collect::<Vec<TensorType>>());
        let launch = self.call(&types, &results, own.launch)?;
        let kernel = Kernel::custom(self.name(), own.source);
        let head = kernel.head();
        let wanted = [(Access::Read, inputs.len()), (Access::Write, outputs.len())];
        let wanted = wanted.into_iter().flat_map(|(access, count)| std::iter::repeat_n(access, count));
        if !head.bindings.iter().map(|binding| binding.access).eq(wanted) || head.params.len() != launch.params.len() {
            let declared = head.bindings.len();
            let reason = format!(
                "its WGSL declares {declared} buffers and {} parameters; the call has {} inputs, then {} results, and {} parameters",
                head.params.len(),
                inputs.len(),
                outputs.len(),
                launch.params.len()
            );
            return Err(Error::Parameter { op: self.name(), reason });
        }
        let buffers: Vec<Slice> = inputs.iter().chain(outputs).map(|&value| value.into()).collect();
        let params: Vec<Word> = launch.params.iter().map(|&word| word.into()).collect();
        plan.run(kernel, &[], &buffers, &params, Grid::groups_of(launch.workgroups));
        Ok(())
    }
}
