//! The kernels: what each computes, over any shape, and how it is launched.

pub mod elementwise;
mod functions;
pub mod gather;
pub mod gemm;
mod math;
pub mod norm;
pub mod reduce;
pub mod softmax;
mod team;
pub mod transpose;
