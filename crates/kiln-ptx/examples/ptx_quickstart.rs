//! A kernel written with the builder, and a chain of element-wise functions out of a recorded graph. Prints PTX; no GPU.

use kiln_ir::graph::{Fetch, FusionLimits, Graph, Step};
use kiln_ir::{Record, Result, Shape, TensorType};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::{Kernel, PtxKernel, PtxModule, Target};

fn main() -> Result<()> {
    // y = a x + y, a thread an element.
    let axpy = PtxKernel::new("axpy", [256, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer::<f32>("y"));
        let (a, n) = (k.parameter::<f32>("a"), k.parameter::<u32>("n"));
        let i = k.ctaid_x() * 256 + k.tid_x();
        k.if_(k.lt(i, n), || {
            let y = y.index(i);
            k.st(y, k.fma(a, k.ld(x.index(i)), k.ld(y)));
        });
    });
    println!("{}", PtxModule::from(axpy));

    // relu(x + row), recorded for a matrix and a row, fused into one kernel.
    let mut graph = Graph::new();
    let x = graph.input(TensorType::f32(Shape::new(&[1000, 64])?));
    let row = graph.input(TensorType::f32(Shape::new(&[64])?));
    let sum = graph.add(x, row)?;
    let out = graph.relu(sum)?;
    for step in graph.schedule(&[out], FusionLimits::default())?.steps {
        let Step::Fused(fused) = step else { continue };
        let chain = Chain::fused(&fused, &[Fetch::of(64_000, 64_000), Fetch::of(64, 64_000)], Target::Sm80)?;
        let params: Vec<_> = fused.instructions.iter().map(|i| i.params).collect();
        println!("{}\n// launched as {:?}", chain.emit_ptx(), chain.launch(64_000, &[64_000, 64], &params)?);
    }
    Ok(())
}
