//! The parametric ReLU as an operation of a program: the shape rule, the cost, and a kernel for each backend.

use std::any::Any;

#[cfg(feature = "gpu")]
use kiln::gpu::{WgslKernel, WgslLaunch};
use kiln::op::reference::Expected;
use kiln::op::{Bound, Contract, CpuKernel, CustomCall, CustomOperation, Outputs};
use kiln::{DType, DataMut, Error, Operand, Result, TensorType};
#[cfg(feature = "cuda")]
use kiln::{cuda, cuda::ptx};

/// `y[i, c] = x[i, c] if x[i, c] > 0, else slope[c] x[i, c]` of `x` `[..., channels]` and `slope` `[channels]`.
#[derive(Debug)]
pub(crate) struct Prelu;

impl CustomOperation for Prelu {
    fn name(&self) -> &'static str {
        "prelu"
    }

    fn formula(&self) -> &'static str {
        "y[i, c] = x[i, c] if x[i, c] > 0, else slope[c] x[i, c]"
    }

    fn infer(&self, _: &[f32], inputs: &[TensorType]) -> Result<Outputs> {
        let &[x, slope] = inputs else {
            return Err(Error::Arity { op: "prelu", expected: 2, found: inputs.len() });
        };
        for (index, ty) in inputs.iter().enumerate() {
            if !ty.dtype.is_float() {
                return Err(Error::Type { op: "prelu", index, expected: DType::F32, found: ty.dtype });
            }
        }
        if x.shape.rank() == 0 || slope.shape.dims() != [x.shape.columns()] {
            let reason = format!("{} has no slope for each channel of {}", slope.shape, x.shape);
            return Err(Error::Shape { op: "prelu", reason });
        }
        Ok(TensorType::f32(x.shape).into())
    }

    fn flops(&self, call: &CustomCall<'_>) -> u64 {
        2 * call.outputs[0].shape.numel() as u64
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Ulp(0.5), special: "NaN gives NaN" }
    }

    fn cpu(&self) -> Option<CpuKernel> {
        Some(|_, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]| {
            let (x, slope) = (inputs[0].data().f32(), inputs[1].data().f32());
            let rows = x.chunks(slope.len().max(1)).zip(outputs[0].f32().chunks_mut(slope.len().max(1)));
            for (x, y) in rows {
                for ((&x, &slope), y) in x.iter().zip(slope).zip(y) {
                    *y = if x > 0.0 { x } else { slope * x };
                }
            }
            Ok(())
        })
    }

    fn kernels(&self) -> Vec<&(dyn Any + Send + Sync)> {
        vec![
            #[cfg(feature = "gpu")]
            &WGSL,
            #[cfg(feature = "cuda")]
            &CUDA,
        ]
    }

    fn reference(&self, _: &CustomCall<'_>, inputs: &[Operand<'_>]) -> Vec<Expected> {
        let (x, slope) = (inputs[0].data().f32(), inputs[1].data().f32());
        let exact = |(i, &x): (usize, &f32)| match f64::from(x) {
            x if x > 0.0 => x,
            x => f64::from(slope[i % slope.len()]) * x,
        };
        let values: Vec<f64> = x.iter().enumerate().map(exact).collect();
        vec![Expected::F32 { magnitudes: values.iter().map(|value| value.abs()).collect(), values }]
    }
}

#[cfg(feature = "gpu")]
static WGSL: WgslKernel = WgslKernel::new(
    "
#input x: array<f32>
#input slope: array<f32>
#output y: array<f32>
#param n: u32
#param channels: u32
#include common

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * 256u + local;
    if i < p.n {
        let value = x[i];
        y[i] = select(slope[i % p.channels] * value, value, value > 0.0);
    }
}
",
    |call| {
        let shape = call.outputs[0].shape;
        let params = vec![shape.numel() as u32, shape.columns() as u32];
        Ok(WgslLaunch { params, workgroups: shape.numel().div_ceil(256) })
    },
);

#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
// SAFETY: each thread accesses only the element with its own index, if that exists, and the slope of that element's
// channel.
static CUDA: cuda::CudaKernel = unsafe { cuda::CudaKernel::new(write_ptx) };

/// Writes the kernel, a thread for each element, and its launch.
#[cfg(feature = "cuda")]
fn write_ptx(call: &CustomCall<'_>, _: ptx::Target) -> Result<(ptx::PtxKernel, ptx::Launch)> {
    use ptx::Argument;
    let kernel = ptx::PtxKernel::new("prelu", [256, 1, 1], |k| {
        let [x, slope, y] = ["x", "slope", "y"].map(|name| k.buffer::<f32>(name));
        let [n, channels] = ["n", "channels"].map(|name| k.parameter::<u32>(name));
        let i = k.mad(k.ctaid_x(), 256, k.tid_x());
        k.if_(k.lt(i, n), || {
            let value = k.ld(x.index(i));
            let scaled = k.ld(slope.index(i % channels)) * value;
            k.st(y.index(i), k.selp(value, scaled, k.gt(value, 0.0)));
        });
    });
    let shape = call.outputs[0].shape;
    // A kernel indexes elements with 32 bits, so it would skip the elements beyond this limit.
    let limit = u64::from(u32::MAX - 255);
    if shape.numel() as u64 > limit {
        let asked = shape.numel() as u64;
        return Err(Error::Limit { what: "elements", device: "CUDA".into(), asked, limit });
    }
    let words = [shape.numel() as u32, shape.columns() as u32].map(Argument::U32);
    let arguments = (0..3).map(Argument::Buffer).chain(words).collect();
    Ok((kernel, ptx::Launch { grid: [(shape.numel() as u32).div_ceil(256), 1, 1], arguments }))
}
