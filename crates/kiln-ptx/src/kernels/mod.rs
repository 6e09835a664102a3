//! The kernels: what each computes, over any shape, and how it is launched.

pub mod attention;
pub mod cast;
pub mod channels;
pub mod compare;
pub mod cumsum;
pub mod elementwise;
mod functions;
pub mod gather;
pub mod gemm;
mod half;
mod math;
pub mod norm;
mod order;
pub mod quant;
pub mod reduce;
pub mod rope;
mod rows;
pub mod scatter;
pub mod softmax;
pub mod sort;
pub mod strided;
mod team;
pub mod top_k;
pub mod transpose;
mod warp;
pub mod window;
pub mod write_rows;
