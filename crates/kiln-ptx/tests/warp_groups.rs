//! Products and attention on warp groups, as far as they can be looked at without a GPU: what launches pass to kernels.

use kiln_ir::op::{AttentionExtents, ElementwiseKind, Matmul, MatmulExtents};
use kiln_ir::{Error, QuantFormat};
use kiln_ptx::kernels::attention::WarpGroupAttention;
use kiln_ptx::kernels::matmul::{Epilogue, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::kernels::quant::WarpGroupTiling;
use kiln_ptx::{Argument, Kernel, Launch, Panels, PtxKernel, PtxType, Target, TensorMap, Together};

use crate::catalogue;
use crate::support::Device;

const STORED: Matmul = Matmul { transpose_a: false, transpose_b: true };
/// Multiprocessors of an H200.
const MULTIPROCESSORS: u32 = 132;

fn extents(m: usize, k: usize, n: usize) -> MatmulExtents {
    MatmulExtents::of_one([m, k, n])
}

fn maps(launch: &Launch) -> Vec<TensorMap> {
    let map = |argument: &Argument| if let Argument::Tensor(map) = argument { Some(*map) } else { None };
    launch.arguments.iter().filter_map(map).collect()
}

/// What `cuTensorMapEncodeTiled` takes, and what a device has.
#[test]
fn launches_keep_the_limits_of_copies_and_devices() {
    let mut launched = 0;
    for tile in [(2, 1, 256, 4), (2, 2, 128, 4), (2, 1, 128, 6), (2, 1, 64, 8), (1, 1, 128, 8), (1, 1, 64, 12)] {
        let (groups, blocks, columns, stages) = tile;
        let tile = WarpGroupTile::new(groups, blocks, columns, stages).unwrap();
        for tile in [tile, tile.pairs(), tile.split(2)] {
            for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
                for output in [PtxType::F16, PtxType::F32] {
                    let operation = Matmul { transpose_a, transpose_b };
                    let gemm = WarpGroupGemm::new(operation, [PtxType::Bf16, output], tile, Epilogue::PLAIN.bias());
                    let Ok(gemm) = gemm else { continue };
                    let kernel = gemm.build();
                    assert!(kernel.shared_bytes() <= 227 << 10, "{}", kernel.name());
                    for (m, k, n) in [(8, 1000, 8), (4096, 4096, 14_336), (136, 128, 520)] {
                        let launch = gemm.launch(extents(m, k, n), [1.0, 0.0], MULTIPROCESSORS).unwrap();
                        assert!(launch.fits(&kernel), "{}: {:?}", kernel.name(), launch.arguments);
                        assert!(launch.grid[0].is_multiple_of(kernel.cluster()), "{:?}", launch.grid);
                        check_maps(&launch);
                        launched += 1;
                    }
                }
            }
        }
    }
    assert!(launched > 300, "{launched}");
}

/// A matrix that serves all products is the only one of its description, and its number stays 0.
#[test]
fn a_matrix_of_all_products_is_described_once() {
    let tile = WarpGroupTile::new(1, 1, 128, 8).unwrap();
    let plain = WarpGroupGemm::new(STORED, [PtxType::F16, PtxType::F32], tile, Epilogue::PLAIN).unwrap();
    let in_planes = WarpGroupGemm::of_planes(PtxType::F32, tile, Epilogue::PLAIN).unwrap();
    for (gemm, planes) in [(plain, 1), (in_planes, 2)] {
        for shared in [[false, false], [true, false], [false, true]] {
            let [shared_a, shared_b] = shared;
            let three = MatmulExtents { batch: 3, shared_a, shared_b, ..extents(64, 64, 128) };
            let launch = gemm.launch(three, [1.0, 0.0], MULTIPROCESSORS).unwrap();
            let matrices = [0, 1].map(|i: usize| maps(&launch)[i].extents[2]);
            assert_eq!(matrices, shared.map(|shared| planes * if shared { 1 } else { 3 }), "{shared:?}");
            let word = |argument: &Argument| if let Argument::U32(word) = argument { Some(*word) } else { None };
            let words: Vec<u32> = launch.arguments.iter().filter_map(word).collect();
            assert_eq!(words[6..8], shared.map(|shared| u32::from(!shared)), "batched_a and batched_b");
        }
    }
}

#[test]
fn what_copies_do_not_take_is_an_error() {
    let tile = WarpGroupTile::new(2, 1, 256, 4).unwrap();
    let gemm = WarpGroupGemm::new(STORED, [PtxType::F16, PtxType::F16], tile, Epilogue::PLAIN).unwrap();
    for (m, k, n) in [(128, 65, 128), (128, 64, 127), (128, 64, 4), (0, 64, 64), (64, 0, 64), (64, 64, 0)] {
        let got = gemm.launch(extents(m, k, n), [1.0, 0.0], MULTIPROCESSORS);
        assert!(matches!(got, Err(Error::Shape { .. })), "{m} x {k} x {n}: {got:?}");
    }
    assert!(gemm.launch(extents(127, 64, 128), [1.0, 0.0], MULTIPROCESSORS).is_ok(), "rows are of any number");
    let got = gemm.launch(extents(1 << 31, 64, 128), [1.0, 0.0], MULTIPROCESSORS);
    assert!(matches!(got, Err(Error::Limit { .. })), "{got:?}");
    // Single steps cannot be shared.
    let split = WarpGroupGemm::new(STORED, [PtxType::F16, PtxType::F16], tile.split(2), Epilogue::PLAIN).unwrap();
    assert!(matches!(split.launch(extents(128, 64, 256), [1.0, 0.0], MULTIPROCESSORS), Err(Error::Shape { .. })));
    for (groups, blocks, columns, stages) in
        [(3, 1, 64, 4), (2, 2, 256, 4), (1, 0, 64, 4), (1, 1, 48, 4), (1, 1, 64, 1)]
    {
        let got = WarpGroupTile::new(groups, blocks, columns, stages);
        assert!(matches!(got, Err(Error::Parameter { .. })), "{got:?}");
    }
    assert!(Epilogue::PLAIN.activation(ElementwiseKind::Add).is_err());
    assert!(Epilogue::PLAIN.activation(ElementwiseKind::Elu).is_err());
    let nn = Matmul { transpose_a: false, transpose_b: false };
    assert!(WarpGroupGemm::new(nn, [PtxType::F32, PtxType::F32], tile, Epilogue::PLAIN).is_err());
    assert!(WarpGroupGemm::new(STORED, [PtxType::F64, PtxType::F32], tile, Epilogue::PLAIN).is_err());
}

/// What holds for the description of every tensor that is copied.
fn check_maps(launch: &Launch) {
    for map in maps(launch) {
        assert!(map.strides.iter().all(|stride| stride.is_multiple_of(16)), "{map:?}");
        assert!(map.tile.iter().all(|&extent| (1..=256).contains(&extent)), "{map:?}");
        assert!(map.extents.iter().all(|&extent| extent > 0), "{map:?}");
        let row = map.tile[0] * map.element.bytes();
        assert!(if map.swizzles { row == 128 } else { row.is_multiple_of(16) }, "{map:?}");
    }
}

#[test]
fn quantised_products_keep_the_limits_of_copies_and_devices() {
    use QuantFormat::{Iq4Xs, Q2K, Q3K, Q4K, Q6K, Q8_0};
    for format in QuantFormat::ALL.into_iter().filter(|format| ![Q2K, Q3K, Iq4Xs].contains(format)) {
        for (m, depth, n) in [(1, 4096, 1), (16, 4096, 4096), (33, 14_336, 1024), (64, 2048, 129), (500, 4096, 14_336)]
        {
            for rounds in [false, true] {
                let tiling =
                    WarpGroupTiling::new(format, [m, depth, n], rounds, Target::Sm90a, MULTIPROCESSORS).unwrap();
                for adds in [false, true] {
                    let (product, launch) = tiling.product(adds).unwrap();
                    let kernel = product.build();
                    assert!(kernel.shared_bytes() <= 227 << 10, "{}: {}", kernel.name(), kernel.shared_bytes());
                    assert!(launch.fits(&kernel), "{}: {:?}", kernel.name(), launch.arguments);
                    assert!(launch.grid[0].is_multiple_of(kernel.cluster()), "{:?}", launch.grid);
                    check_maps(&launch);
                    // Copies of weights begin at multiples of 16 bytes of a row, and a chunk fits from wherever in them it begins.
                    let of_weights = maps(&launch)[1];
                    let [row_bytes, copied] = [of_weights.extents[0] * 2, u64::from(of_weights.tile[0]) * 2];
                    assert_eq!(row_bytes, format.bytes(depth).unwrap() as u64);
                    let chunk = format.bytes(256).unwrap() as u64;
                    let first = (0..depth as u64 / 256).map(|i| i * chunk % 16).max().unwrap();
                    assert!(first + chunk <= copied, "{format:?}: {chunk} bytes from byte {first} on, {copied} copied");
                }
                let (rounding, launch) = tiling.rounding(None).unwrap();
                assert!(launch.fits(&rounding.build()));
                let joins = tiling.joining(true).unwrap();
                assert_eq!(joins.is_some(), tiling.parts_bytes().unwrap() > 0);
                assert!(joins.is_none_or(|(join, launch)| launch.fits(&join.build())));
            }
        }
    }
    let of = |format, extents, target| WarpGroupTiling::new(format, extents, false, target, MULTIPROCESSORS);
    assert!(of(Q4K, [16, 4096, 8], Target::Sm90).is_none(), "warp groups are Hopper's alone");
    assert!(of(Q6K, [16, 256, 8], Target::Sm90a).is_none(), "rows that are no multiples of 16 bytes");
    assert!(of(Q8_0, [16, 32, 8], Target::Sm90a).is_none(), "less than a chunk");
    for format in QuantFormat::ALL {
        let listed = WarpGroupTiling::MULTIPLES.iter().find(|(of, _)| *of == format).map(|&(_, elements)| elements);
        // Q6_K has the greatest multiple.
        let first =
            (1..=8).map(|chunks| chunks * 256).find(|&depth| of(format, [16, depth, 8], Target::Sm90a).is_some());
        assert_eq!(first, listed, "{format:?}");
    }
    // Products at once are cut alike: 2, 1 and 1 tiles and two parts of each for eight multiprocessors.
    let round = WarpGroupTiling::of_round(Q4K, [16, 4096], &[512, 256, 8], false, Target::Sm90a, 8).unwrap();
    assert_eq!(
        round.iter().map(|of| of.parts_bytes().unwrap()).collect::<Vec<_>>(),
        [512, 256, 8].map(|n| 2 * 4 * 16 * n)
    );
    let (kernels, launches): (Vec<_>, Vec<_>) = round.iter().map(|of| of.product(false).unwrap()).unzip();
    let (joined, launch) = Together::new(kernels[0], &launches.iter().collect::<Vec<_>>(), 8).unwrap().unwrap();
    assert!(launch.fits(&joined.build()) && launch.grid == [8, 1, 1], "{launch:?}");
    let buffers = maps(&launch).into_iter().map(|map| map.buffer).collect::<Vec<_>>();
    assert_eq!(buffers, [0, 2, 4, 5, 7, 9, 10, 12, 14], "x, weights and sums of each");
    assert!(of(Q4K, [0, 4096, 8], Target::Sm90a).is_none() && of(Q4K, [16, 0, 8], Target::Sm90a).is_none());
}

#[test]
fn attention_keeps_the_limits_of_copies_and_devices() {
    for attention in catalogue::warp_group_attentions() {
        let kernel = attention.build();
        assert!(kernel.shared_bytes() <= 227 << 10, "{}: {} bytes", kernel.name(), kernel.shared_bytes());
        let d = kernel.name().rsplit('_').next().unwrap().parse().unwrap();
        for (batch, kv_heads, group, s, t) in [(1, 1, 1, 1, 1), (2, 3, 4, 100, 517), (1, 200, 1, 4096, 4096)] {
            let extents = AttentionExtents { batch, kv_heads, group, s, t, d, dv: d };
            let launch = attention.launch(&extents, 0.1, MULTIPROCESSORS).unwrap();
            assert!(launch.fits(&kernel), "{}: {:?}", kernel.name(), launch.arguments);
            assert_eq!(launch.grid, [attention.tiles(&extents).min(MULTIPROCESSORS as usize) as u32, 1, 1]);
            check_maps(&launch);
            let [q, k, v] = maps(&launch)[..] else { panic!("{launch:?}") };
            assert_eq!(q.extents, [d, group * s, batch * kv_heads].map(|extent| extent as u64));
            assert_eq!([k.extents, v.extents], [[d, t, batch * kv_heads].map(|extent| extent as u64); 2]);
        }
    }
}

#[test]
fn what_attention_does_not_take_is_an_error() {
    use PtxType::{F16, F32};
    assert!(matches!(WarpGroupAttention::new([F16, F16], 72, true), Err(Error::Parameter { .. })));
    assert!(matches!(WarpGroupAttention::new([F32, F32], 64, true), Err(Error::Parameter { .. })));
    assert!(matches!(WarpGroupAttention::new([F16, PtxType::U32], 64, true), Err(Error::Parameter { .. })));
    let kernel = WarpGroupAttention::new([F16, F32], 128, true).unwrap();
    let one = AttentionExtents { batch: 1, kv_heads: 1, group: 1, s: 1, t: 1, d: 128, dv: 128 };
    let launch = |extents, scale| kernel.launch(&extents, scale, MULTIPROCESSORS);
    assert!(launch(one, 0.1).is_ok());
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(launch(one, scale), Err(Error::Parameter { .. })), "{scale}");
    }
    for wrong in [
        AttentionExtents { d: 64, ..one },
        AttentionExtents { t: 0, ..one },
        AttentionExtents { s: 0, ..one },
        AttentionExtents { batch: 0, ..one },
    ] {
        assert!(matches!(launch(wrong, 0.1), Err(Error::Shape { .. })), "{wrong:?}");
    }
    for large in [
        AttentionExtents { s: 1 << 31, t: 1 << 31, ..one },
        AttentionExtents { group: 1 << 16, s: 1 << 16, t: 1 << 16, ..one },
        AttentionExtents { t: 1 << 31, ..one },
        AttentionExtents { batch: 1 << 16, kv_heads: 1 << 16, ..one },
    ] {
        assert!(matches!(launch(large, 0.1), Err(Error::Limit { .. })), "{large:?}");
    }
}

/// Large products take large tiles, few rows small ones.
#[test]
fn tiles_follow_the_extents() {
    let chosen = |m, k, n| {
        let tile = WarpGroupTile::for_extents(extents(m, k, n), PtxType::F16, MULTIPROCESSORS);
        (tile.rows(), tile.columns(), tile.cluster())
    };
    assert_eq!(chosen(8192, 8192, 8192), (128, 256, 2));
    assert_eq!(chosen(4096, 4096, 4096), (128, 256, 1));
    assert_eq!(chosen(2048, 2048, 2048), (128, 128, 1));
    assert_eq!(chosen(1024, 1024, 1024), (64, 128, 1));
    assert_eq!(chosen(16, 4096, 4096), (64, 64, 1));
    assert_eq!(chosen(64, 4096, 14_336), (64, 128, 1));
    assert_eq!(chosen(128, 4096, 4096), (128, 64, 2));
    assert_eq!(chosen(128, 4096, 14_336), (128, 128, 1));
    // Every chosen tile can be launched.
    for (m, k, n) in [(1, 8, 8), (1, 64, 100_000), (100_000, 8, 8), (usize::MAX, 8, 8)] {
        let tile = WarpGroupTile::for_extents(extents(m, k, n), PtxType::F16, MULTIPROCESSORS);
        let gemm = WarpGroupGemm::new(STORED, [PtxType::F16, PtxType::F16], tile, Epilogue::PLAIN).unwrap();
        assert_eq!(gemm.launch(extents(m, k, n), [1.0, 0.0], MULTIPROCESSORS).is_ok(), m <= 100_000);
    }
}

/// Kernels with more shared memory than a text may hold say how much a launch has to ask for.
#[test]
fn shared_memory_comes_with_the_launch() {
    for kernel in catalogue::kernels(Target::Sm90a) {
        let (kernel, text) = (kernel.build(), kernel.emit_ptx());
        let outside = kernel.dynamic_shared_bytes();
        assert_eq!(outside, if kernel.shared_bytes() > 48 << 10 { kernel.shared_bytes() } else { 0 });
        assert_eq!(text.contains(".extern .shared .align 1024 .b8 smem[];"), outside > 0, "{}", kernel.name());
        assert_eq!(text.contains(&format!(".reqnctapercluster {}, 1, 1", kernel.cluster())), kernel.cluster() > 1);
        // Kernels with rows in bulk copies are for Hopper, where they were measured, though later devices have the
        // instructions, too.
        let needed = if text.contains("wgmma.mma_async") { Target::Sm90a } else { Target::Sm90 };
        assert_eq!(kernel.gate().target, needed, "{}", kernel.name());
    }
}

struct Written(PtxKernel);

impl Kernel for Written {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }
    fn build(&self) -> PtxKernel {
        self.0.clone()
    }
}

/// Piece p of row r is at p xor (r mod 8), 16 rows of 8 pieces.
#[test]
fn pieces_are_swizzled_as_copies_do() {
    let kernel = Written(PtxKernel::new("pieces", [128, 1, 1], |k| {
        let out = k.buffer::<u32>("out");
        let panels = Panels::new(PtxType::F16, 16, 64);
        let at = k.shared_bytes(panels.bytes(), Panels::ALIGN);
        let thread = k.tid_x();
        let words = [0, 1, 2, 3].map(|i: u32| thread * 4 + i);
        k.st_v(panels.piece(k, at, thread >> 3, thread & 7), words);
        k.bar_sync(0u32);
        k.st_v(out.index(thread * 4), k.ld_v::<_, _, 4>(at.index(thread * 4)));
    }));
    let mut device = Device::default();
    let out = device.allocate(128 * 16);
    let launch = Launch { grid: [1; 3], arguments: vec![Argument::Buffer(0)] };
    device.run(&kernel, &launch, &[out]).unwrap();
    let words: Vec<u32> =
        device.download(out).chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    for (row, words) in words.chunks_exact(32).enumerate() {
        for (place, piece) in words.chunks_exact(4).enumerate() {
            let first = 4 * (8 * row + (place ^ (row % 8))) as u32;
            assert_eq!(piece, [first, first + 1, first + 2, first + 3], "row {row}, place {place}");
        }
    }
}
