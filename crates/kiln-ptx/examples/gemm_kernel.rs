//! The matrix product as PTX, and how it is launched: as textbooks write it, of f32 on every target, and of bf16 on the
//! tensor cores of Hopper. Prints the texts; no GPU.

use kiln_ir::op::{ElementwiseKind, Matmul, MatmulExtents};
use kiln_ptx::kernels::matmul::{Epilogue, Gemm, NaiveGemm, Tile, TiledGemm, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::{Kernel, Launch, PtxModule, PtxType};

const EXTENTS: MatmulExtents = MatmulExtents::of_one([1000, 304, 776]);

fn print(kernel: &dyn Kernel, launch: &Launch) {
    let kernel = kernel.build();
    println!("// {}: {:?} threads, {} bytes of shared memory", kernel.name(), kernel.block(), kernel.shared_bytes());
    for (parameter, argument) in kernel.parameters().iter().zip(&launch.arguments) {
        println!("// {}, {}: {argument:?}", parameter.name, parameter.kind);
    }
    println!("// that was for {EXTENTS:?}, in {:?} blocks", launch.grid);
    println!("{}", PtxModule::from(kernel));
}

fn main() -> kiln_ir::Result<()> {
    // C = A B, an element a thread: from memory alone, and through tiles in shared memory.
    let MatmulExtents { m, k, n, .. } = EXTENTS;
    print(&NaiveGemm, &NaiveGemm.launch([m, k, n])?);
    print(&TiledGemm, &TiledGemm.launch([m, k, n])?);

    // C = A Bᵀ: a layer whose weights are stored with their outputs outside.
    let layer = Matmul { transpose_a: false, transpose_b: true };
    let gemm = Gemm::new(layer, Tile::LARGE);
    print(&gemm, &gemm.launch(EXTENTS, 1.0, 0.0)?);

    // The same of bf16, with a bias and an activation, for a device of 132 multiprocessors.
    let epilogue = Epilogue::PLAIN.bias().activation(ElementwiseKind::Relu)?;
    let tile = WarpGroupTile::for_extents(EXTENTS, PtxType::Bf16, 132);
    let gemm = WarpGroupGemm::new(layer, [PtxType::Bf16, PtxType::Bf16], tile, epilogue)?;
    print(&gemm, &gemm.launch(EXTENTS, [1.0, 0.0], 132)?);
    Ok(())
}
