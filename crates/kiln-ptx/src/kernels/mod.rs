//! The kernels: what each computes, over any shape, and how it is launched.

pub mod all_reduce;
pub mod attention;
pub mod cast;
pub mod channels;
pub mod compare;
pub mod conv;
pub mod cumsum;
pub mod elementwise;
pub mod experts;
mod functions;
pub mod gather;
mod half;
mod math;
pub mod matmul;
pub mod norm;
mod order;
pub mod pooling;
pub mod quant;
pub mod reduce;
pub mod resize;
pub mod rope;
pub mod rows;
pub mod scatter;
pub mod shape;
pub mod softmax;
pub mod sort;
mod team;
pub mod topk;
pub mod transpose;
mod warp;
mod window;
pub mod write_rows;

// For the files of `quant`, which know the family by its former name.
use matmul as gemm;
