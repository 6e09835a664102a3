//! The matrix product as PTX, and how it is launched. Prints the text; no GPU.

use kiln_core::op::{Matmul, MatmulExtents};
use kiln_ptx::kernels::gemm::{Gemm, Tile};
use kiln_ptx::{Kernel, PtxModule};

fn main() -> kiln_core::Result<()> {
    // C = A Bᵀ: a layer whose weights are stored with their outputs outside.
    let gemm = Gemm::new(Matmul { transpose_a: false, transpose_b: true }, Tile::LARGE);
    let kernel = gemm.build();
    println!("// {}: {:?} threads, {} bytes of shared memory", kernel.name(), kernel.block(), kernel.shared_bytes());
    for parameter in kernel.parameters() {
        println!("// {}: {}", parameter.name, if parameter.buffer { "a buffer" } else { parameter.ty.name() });
    }
    let extents = MatmulExtents { batch: 1, shared_b: true, m: 1000, k: 300, n: 777 };
    println!("// for 1000 x 300 times 300 x 777: {:?}", gemm.launch(extents, 1.0, 0.0)?);
    println!("{}", PtxModule::from(kernel));
    Ok(())
}
