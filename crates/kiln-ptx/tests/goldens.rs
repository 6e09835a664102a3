//! Texts of kernels as they were last reviewed. `KILN_BLESS=1` writes them again.
#![cfg(not(target_arch = "wasm32"))]

use std::path::Path;

use kiln_ir::QuantFormat;
use kiln_ir::graph::Fetch;
use kiln_ir::op::{Elementwise, Matmul};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::matmul::{Epilogue, TiledGemm, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::kernels::quant::Quantize;
use kiln_ptx::{Kernel, PtxKernel, PtxModule, PtxType, Target};

use crate::catalogue;

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name).with_extension("ptx");
    if std::env::var("KILN_BLESS").is_ok_and(|bless| bless == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let different = text.lines().zip(golden.lines()).position(|(a, b)| a != b);
    let different = different.or((text.len() != golden.len()).then_some(golden.lines().count()));
    if let Some(line) = different {
        let of = |text: &str| text.lines().nth(line).unwrap_or("its end").to_owned();
        panic!(
            "{name}, line {}: {:?} is not {:?}; if it is right, KILN_BLESS=1 keeps it",
            line + 1,
            of(text),
            of(&golden)
        );
    }
}

#[test]
fn texts_are_as_they_were() {
    for target in catalogue::LADDER {
        let max = Chain::of(&Elementwise::max(), &[Fetch::Whole; 2], target).unwrap();
        check(&format!("max_{target}"), &max.emit_ptx());
    }
    check("chain", &catalogue::chain(Target::Sm70).emit_ptx());
    check("quantize_q8_0", &Quantize::new(QuantFormat::Q8_0).emit_ptx());
    check("gemm_tiled", &TiledGemm.emit_ptx());
    let tile = WarpGroupTile::new(1, 1, 16, 2).unwrap();
    let operation = Matmul { transpose_a: false, transpose_b: true };
    let gemm = WarpGroupGemm::new(operation, [PtxType::F16, PtxType::F32], tile, Epilogue::PLAIN).unwrap();
    check("gemm_sm_90a", &gemm.emit_ptx());
}

/// Numbers of every length, and both signs.
#[test]
fn numbers_are_written_whole() {
    let lengths = (0..20).map(|digits| 10u64.pow(digits));
    let numbers: Vec<u64> = lengths.flat_map(|n| [n - 1, n, n + 7, n / 2 * 3]).chain([1_002_003, u64::MAX]).collect();
    let kernel = PtxKernel::new("numbers", [32, 1, 1], |k| {
        for &n in &numbers {
            k.constant::<u64>(n);
            k.constant::<i32>(n as i32);
            k.constant::<u32>(n as u32);
        }
    });
    for (i, &n) in numbers.iter().enumerate() {
        let lines = [
            format!("\tmov.b64 %rd{i}, {n};\n"),
            format!("\tmov.b32 %r{}, {};\n", 2 * i, n as i32),
            format!("\tmov.b32 %r{}, {};\n", 2 * i + 1, n as u32),
        ];
        assert!(kernel.text().contains(&lines.concat()), "{n}: {}", kernel.text());
    }
}

/// Registers of every length, and names that are longer than a line has room for.
#[test]
fn long_texts_and_names_are_written_whole() {
    const MANY: usize = 12_345;
    let name = "long_".repeat(2_000);
    let kernel = PtxKernel::new(&name, [32, 1, 1], |k| {
        (0..MANY).for_each(|i| _ = k.constant::<f32>(i as f32));
    });
    let moves: String = (0..MANY).map(|i| format!("\tmov.f32 %f{i}, 0f{:08X};\n", (i as f32).to_bits())).collect();
    let head = ".version 6.0\n.target sm_70\n.address_size 64\n\n.visible .entry ";
    let text = format!("{head}{name}(\n)\n.reqntid 32, 1, 1\n{{\n\t.reg .f32 %f<{MANY}>;\n{moves}\tret;\n}}\n");
    assert!(kernel.text() == text, "{} bytes, not {}", kernel.text().len(), text.len());
    assert_eq!(PtxModule::from(kernel).to_string(), text);
}

/// The same configuration gives the same text on every thread and every time.
#[test]
fn texts_repeat() {
    for target in catalogue::LADDER.into_iter().chain([Target::Sm90, Target::Sm90a]) {
        for kernel in catalogue::kernels(target) {
            assert_eq!(kernel.emit_ptx(), kernel.emit_ptx(), "{}", kernel.name());
        }
    }
}
