//! Every kernel in every configuration, for the tests that go through all of them.

use kiln_ir::graph::{Fetch, FusionLimits, Graph, Step};
use kiln_ir::op::{AttentionExtents, ElementwiseKind, Matmul, Pooling, Reduction, Rope as RopeOp};
use kiln_ir::{QuantFormat, Record, Shape, TensorType};
use kiln_ptx::kernels::all_reduce::AllReduce;
use kiln_ptx::kernels::attention::{
    Attention, CausalSight, FlashAttention, FlashTile, ScanAttention, ScanCombine, TiledAttention, WarpGroupAttention,
    plan,
};
use kiln_ptx::kernels::cast::Cast;
use kiln_ptx::kernels::channels::Channels;
use kiln_ptx::kernels::compare::{Arithmetic, Compare, Select};
use kiln_ptx::kernels::conv::{Convolve, ConvolveTranspose, Unfold};
use kiln_ptx::kernels::cumsum::Cumsum;
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::experts::{ExpertGemm, GroupByExpert};
use kiln_ptx::kernels::gather::Gather;
use kiln_ptx::kernels::matmul::{
    Epilogue, FewRowsGemm, Gemm, MultistageGemm, MultistageTile, NaiveGemm, SplitSum, Tf32Planes, Tile, TiledGemm,
    WarpGemm, WarpGroupGemm, WarpGroupTile, WarpTile,
};
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::pooling::Pool;
use kiln_ptx::kernels::quant::{
    Dequantize, HalfRows, JoinParts, QuantMatmul, Quantize, RepairRows, RoundRows, SplitBlocks, SplitRows,
    TiledQuantMatmul, WarpGroupQuantMatmul, WarpQuantMatmul,
};
use kiln_ptx::kernels::reduce::ReduceLevel;
use kiln_ptx::kernels::resize::Resize;
use kiln_ptx::kernels::rope::Rope;
use kiln_ptx::kernels::scatter::{IndexAdd, LastSource, Scatter};
use kiln_ptx::kernels::shape::{Fill, StridedCopy};
use kiln_ptx::kernels::softmax::Softmax;
use kiln_ptx::kernels::sort::{MergeRuns, SortRuns};
use kiln_ptx::kernels::topk::TopK;
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::kernels::write_rows::WriteRows;
use kiln_ptx::{Kernel, Launch, PtxType, Target, Together};

/// The targets that kernels are written for; each text serves those up to the next.
#[allow(dead_code)] // not every test file uses it
pub(crate) const LADDER: [Target; 2] = [Target::Sm70, Target::Sm80];

/// Every way to say which operands of a product are stored transposed.
const STORED: [Matmul; 4] = [
    Matmul { transpose_a: false, transpose_b: false },
    Matmul { transpose_a: true, transpose_b: false },
    Matmul { transpose_a: false, transpose_b: true },
    Matmul { transpose_a: true, transpose_b: true },
];

/// Kernels for a step of the ladder; of Hopper on, and of Hopper alone, those that need it.
pub(crate) fn kernels(target: Target) -> Vec<Box<dyn Kernel>> {
    let mut kernels: Vec<Box<dyn Kernel>> = Vec::new();
    if target == Target::Sm90 {
        kernels.extend(Softmax::all(target).into_iter().map(|softmax| Box::new(softmax) as _));
        kernels.extend(Norm::all(target).into_iter().map(|norm| Box::new(norm) as _));
        let products = WarpQuantMatmul::all(target).into_iter().filter(|product| product.reads_early(target).is_some());
        kernels.extend(products.map(|product| Box::new(product) as _));
        // Those of devices with less shared memory, too.
        let tiled = [target, Target::Sm120].into_iter().flat_map(TiledQuantMatmul::some);
        kernels.extend(tiled.map(|product| Box::new(product) as _));
        kernels.extend(together(target));
        return kernels;
    }
    if target == Target::Sm90a {
        kernels.extend(Softmax::all(target).into_iter().map(|softmax| Box::new(softmax) as _));
        kernels.extend(Norm::all(target).into_iter().map(|norm| Box::new(norm) as _));
        kernels.extend(warp_groups().into_iter().map(|kernel| Box::new(kernel) as _));
        kernels.extend(warp_group_attentions().map(|kernel| Box::new(kernel) as _));
        kernels.extend(WarpGroupQuantMatmul::some().into_iter().map(|kernel| Box::new(kernel) as _));
        return kernels;
    }
    if target >= Target::Sm80 {
        kernels.extend([false, true].map(|transposes| Box::new(Tf32Planes::new(transposes)) as _));
        kernels.extend(WarpQuantMatmul::all(target).into_iter().map(|product| Box::new(product) as _));
        kernels.extend(TiledQuantMatmul::some(target).into_iter().map(|product| Box::new(product) as _));
        kernels.extend(HalfRows::all().into_iter().map(|rows| Box::new(rows) as _));
        kernels.extend(RoundRows::all().map(|round| Box::new(round) as _));
        kernels.extend(JoinParts::all().into_iter().map(|join| Box::new(join) as _));
        kernels.push(Box::new(SplitRows));
        kernels.extend(SplitBlocks::all().into_iter().map(|split| Box::new(split) as _));
        kernels.extend(RepairRows::all().into_iter().map(|repair| Box::new(repair) as _));
        kernels.extend(warps());
        kernels.extend(stages());
    }
    for &kind in ElementwiseKind::ALL {
        let op = kind.with_params([0.0; 2]);
        kernels.push(Box::new(Chain::of(&op, &vec![Fetch::Whole; kind.arity()], target).unwrap()));
    }
    for fetch in [Fetch::Scalar, Fetch::Vectors, Fetch::Elements] {
        let op = ElementwiseKind::Add.with_params([0.0; 2]);
        kernels.push(Box::new(Chain::of(&op, &[Fetch::Whole, fetch], target).unwrap()));
    }
    kernels.push(Box::new(chain(target)));
    for &reduction in Reduction::ALL {
        kernels.extend(ReduceLevel::all(reduction, target).into_iter().map(|level| Box::new(level) as _));
    }
    kernels.extend(Softmax::all(target).into_iter().map(|softmax| Box::new(softmax) as _));
    kernels.extend(Norm::all(target).into_iter().map(|norm| Box::new(norm) as _));
    kernels.extend([true, false].map(|statistics| Box::new(Channels::new(statistics)) as _));
    kernels.push(Box::new(Transpose));
    kernels.extend(StridedCopy::all().into_iter().map(|copy| Box::new(copy) as _));
    kernels.push(Box::new(Fill));
    kernels.extend(Gather::all().into_iter().map(|gather| Box::new(gather) as _));
    kernels.extend(WriteRows::all().into_iter().map(|write| Box::new(write) as _));
    kernels.extend(Scatter::all().into_iter().map(|scatter| Box::new(scatter) as _));
    kernels.push(Box::new(LastSource));
    kernels.extend(IndexAdd::all().into_iter().map(|add| Box::new(add) as _));
    kernels.extend(Compare::all().into_iter().map(|compare| Box::new(compare) as _));
    kernels.push(Box::new(Select));
    kernels.extend(Arithmetic::all().into_iter().map(|arithmetic| Box::new(arithmetic) as _));
    kernels.extend(AllReduce::all().into_iter().map(|sum| Box::new(sum) as _));
    kernels.extend(Cumsum::all().into_iter().map(|cumsum| Box::new(cumsum) as _));
    kernels.extend(Cast::all().into_iter().map(|cast| Box::new(cast) as _));
    kernels.push(Box::new(TopK));
    kernels.extend(SortRuns::all().into_iter().map(|sort| Box::new(sort) as _));
    kernels.extend(MergeRuns::all().into_iter().map(|merge| Box::new(merge) as _));
    kernels.extend([Pooling::Max, Pooling::Average].map(|pooling| Box::new(Pool::new(pooling, target)) as _));
    kernels.extend(Convolve::all().into_iter().map(|convolve| Box::new(convolve) as _));
    kernels.push(Box::new(ConvolveTranspose));
    kernels.push(Box::new(Unfold));
    kernels.extend(Resize::all().into_iter().map(|resize| Box::new(resize) as _));
    kernels.extend(Rope::all().into_iter().map(|rope| Box::new(rope) as _));
    kernels.extend(QuantFormat::ALL.map(|format| Box::new(Quantize::new(format)) as _));
    kernels.extend(QuantFormat::ALL.map(|format| Box::new(Dequantize::new(format)) as _));
    kernels.extend(QuantMatmul::all().into_iter().map(|product| Box::new(product) as _));
    kernels.extend(Attention::all(target).into_iter().map(|attention| Box::new(attention) as _));
    kernels.extend(TiledAttention::all(target).into_iter().map(|attention| Box::new(attention) as _));
    kernels.extend(ScanAttention::some(target).into_iter().map(|attention| Box::new(attention) as _));
    kernels.push(Box::new(ScanCombine::new(target)));
    kernels.push(Box::new(CausalSight));
    kernels.extend(together(target));
    kernels.push(Box::new(GroupByExpert));
    kernels.extend(ExpertGemm::all().into_iter().map(|product| Box::new(product) as _));
    kernels.extend(FewRowsGemm::all().into_iter().map(|product| Box::new(product) as _));
    kernels.push(Box::new(NaiveGemm));
    kernels.push(Box::new(TiledGemm));
    for tile in Tile::ALL {
        kernels.extend(STORED.map(|operation| Box::new(Gemm::new(operation, tile)) as _));
    }
    kernels
}

/// Some kernels for several launches at once.
fn together(target: Target) -> Vec<Box<dyn Kernel>> {
    fn of(kernel: impl Kernel + 'static, launch: kiln_ir::Result<Launch>, launches: usize) -> Box<dyn Kernel> {
        let launch = launch.unwrap();
        Box::new(Together::new(kernel, &vec![&launch; launches], 132).unwrap().unwrap().0)
    }
    let products = [(QuantFormat::Q4K, 1, 3), (QuantFormat::Q6K, 2, 2), (QuantFormat::Q8_0, 8, 4)];
    let products = products.into_iter().filter_map(|(format, rows, launches)| {
        let product = WarpQuantMatmul::new(format, rows, target)?;
        Some(of(product, product.launch(rows, 512, 64, 132), launches))
    });
    let rope = Rope::all()[0];
    products.chain([of(rope, rope.launch(&RopeOp::default(), 4, 4, 64), 2)]).collect()
}

/// Products of f32 in stages: every tile and every way to store the operands, though not each with each, and sums of parts.
fn stages() -> Vec<Box<dyn Kernel>> {
    let mut kernels: Vec<Box<dyn Kernel>> = Vec::new();
    for (i, tile) in MultistageTile::ALL.into_iter().enumerate() {
        let ways = if i == 0 { STORED.to_vec() } else { vec![STORED[i % 2], STORED[2 + i / 2 % 2]] };
        kernels.extend(ways.into_iter().map(|operation| Box::new(MultistageGemm::new(operation, tile)) as _));
    }
    kernels.extend([(2, 1), (32, 4)].map(|(parts, len)| Box::new(SplitSum::new(parts, len)) as _));
    kernels
}

#[allow(dead_code)] // not every test file uses it
/// Kernels whose warps multiply on tensor cores: every width, tile and type of attention, every way to store the operands of
/// a product, and both of its tiles, though not each with each.
pub(crate) fn warps() -> Vec<Box<dyn Kernel>> {
    use PtxType::{Bf16, F16, F32};
    let tile = |warps, blocks, keys| FlashTile::new(warps, blocks, keys).unwrap();
    let tiles = [
        ([F16, F16], 64, true, tile(4, 2, 128)),
        ([Bf16, F16], 80, true, tile(4, 2, 64)),
        ([F16, Bf16], 96, false, tile(4, 2, 64)),
        ([F16, F16], 128, true, tile(4, 2, 64)),
        ([Bf16, F32], 256, false, tile(4, 1, 32)),
    ];
    let mut kernels: Vec<Box<dyn Kernel>> = Vec::new();
    for (types, d, causal, tile) in tiles {
        kernels.push(Box::new(FlashAttention::new(types, d, causal, tile).unwrap()));
    }
    let gelu = Epilogue::PLAIN.adds().bias().activation(ElementwiseKind::Gelu).unwrap();
    let product =
        |operation, types, tile, epilogue| WarpGemm::new(operation, types, tile, epilogue, Target::Sm80).unwrap();
    for (operation, types, tile, epilogue) in [
        (STORED[0], [F16, F16], WarpTile::LARGE, Epilogue::PLAIN),
        (STORED[1], [Bf16, F32], WarpTile::LARGE, Epilogue::PLAIN.bias()),
        (STORED[2], [F32, F32], WarpTile::LARGE, Epilogue::PLAIN),
        (STORED[2], [Bf16, Bf16], WarpTile::SMALL, gelu),
        (STORED[3], [F16, F16], WarpTile::SMALL, Epilogue::PLAIN),
    ] {
        kernels.push(Box::new(product(operation, types, tile, epilogue)));
    }
    for (output, d) in [(F16, 64), (Bf16, 80), (F32, 256)] {
        let extents = AttentionExtents { batch: 1, kv_heads: 1, group: 1, s: 1, t: 4096, d, dv: d };
        let parts = plan([F16, output], &extents, true, 1.0, 132).unwrap();
        kernels.push(Box::new(parts.combine.unwrap().0));
        if output == F32 {
            kernels.push(Box::new(parts.attention.0));
        }
    }
    kernels
}

/// Attention on warp groups: every tile, every type and every width, though not each with each.
pub(crate) fn warp_group_attentions() -> [WarpGroupAttention; 8] {
    use PtxType::{Bf16, F16, F32};
    let of = |types, d, causal| WarpGroupAttention::new(types, d, causal).unwrap();
    [
        of([F16, F32], 64, true),
        of([Bf16, Bf16], 80, true),
        of([F16, F16], 96, false),
        of([F16, F32], 128, true),
        of([Bf16, F16], 128, false),
        of([F16, F32], 256, true),
        of([F16, F32], 64, true).with_sight(),
        of([Bf16, F32], 128, true).with_sight(),
    ]
}

/// Products on warp groups: every tile, every pair of types and every epilogue, though not each with each.
fn warp_groups() -> Vec<WarpGroupGemm> {
    use PtxType::{Bf16, F16, F32};
    let tile = |groups, blocks, columns| WarpGroupTile::new(groups, blocks, columns, 12).unwrap();
    let large = tile(2, 1, 256);
    let tiles = [large, large.pairs(), tile(2, 2, 128), tile(2, 1, 128), tile(2, 1, 64), tile(2, 1, 64).split(2)];
    let more = [tile(1, 1, 128), tile(1, 1, 64), tile(1, 2, 128).split(4)];
    let product = |operation, types, tile, epilogue| WarpGroupGemm::new(operation, types, tile, epilogue).unwrap();
    let mut kernels = Vec::new();
    for operation in STORED {
        kernels.extend(tiles.into_iter().chain(more).map(|tile| product(operation, [F16, F16], tile, Epilogue::PLAIN)));
    }
    let narrow = [tile(1, 1, 32), tile(1, 1, 16)];
    kernels.extend(narrow.map(|tile| product(STORED[2], [F16, F32], tile, Epilogue::PLAIN)));
    let gelu = Epilogue::PLAIN.adds().bias().activation(ElementwiseKind::Gelu).unwrap();
    for types in [[F16, Bf16], [F16, F32], [Bf16, Bf16], [Bf16, F16], [Bf16, F32]] {
        for tile in [large, tile(2, 1, 64).split(2)] {
            let epilogues = [Epilogue::PLAIN, Epilogue::PLAIN.adds(), Epilogue::PLAIN.bias(), gelu];
            kernels.extend(epilogues.map(|epilogue| product(STORED[0], types, tile, epilogue)));
        }
    }
    for tile in tiles {
        kernels.push(product(STORED[2], [F32, F32], tile, Epilogue::PLAIN));
        kernels.push(product(STORED[2], [F32, Bf16], tile, gelu));
    }
    let parts = [tile(2, 1, 128), tile(2, 1, 128).pairs(), tile(2, 1, 64), tile(2, 1, 64).split(2)];
    for tile in parts.into_iter().chain([tile(1, 1, 128), tile(1, 1, 64)]) {
        kernels.extend([Epilogue::PLAIN, gelu].map(|end| WarpGroupGemm::of_planes(F32, tile, end).unwrap()));
        kernels.push(WarpGroupGemm::of_planes(Bf16, tile, Epilogue::PLAIN).unwrap());
    }
    kernels
}

/// relu(scale(a + b)) and the sum, the way a graph gives it.
pub(crate) fn chain(target: Target) -> Chain {
    let mut graph = Graph::new();
    let matrix = graph.input(TensorType::f32(Shape::new(&[8, 4]).unwrap()));
    let row = graph.input(TensorType::f32(Shape::new(&[4]).unwrap()));
    let sum = graph.add(matrix, row).unwrap();
    let scaled = graph.scale(sum, 2.0).unwrap();
    let out = graph.relu(scaled).unwrap();
    let schedule = graph.schedule(&[sum, out], FusionLimits::default()).unwrap();
    let [Step::Fused(fused)] = &schedule.steps[..] else { panic!("{:?}", schedule.steps) };
    Chain::fused(fused, &[Fetch::Whole, Fetch::Vectors], target).unwrap()
}
