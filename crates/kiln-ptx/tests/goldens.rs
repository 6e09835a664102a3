//! Texts as they were when somebody last looked at them. With `KILN_BLESS=1` they are written anew.
#![cfg(not(target_arch = "wasm32"))]

#[path = "support/catalogue.rs"]
mod catalogue;

use std::path::Path;

use kiln_core::graph::Fetch;
use kiln_core::op::{Elementwise, Matmul};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::gemm::{Epilogue, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::{Kernel, PtxType, Target};

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
    let tile = WarpGroupTile::new(1, 1, 16, 2).unwrap();
    let operation = Matmul { transpose_a: false, transpose_b: true };
    let gemm = WarpGroupGemm::new(operation, [PtxType::F16, PtxType::F32], tile, Epilogue::PLAIN).unwrap();
    check("gemm_sm_90a", &gemm.emit_ptx());
}

/// The same configuration gives the same text, whoever asks and however often.
#[test]
fn texts_repeat() {
    for target in catalogue::LADDER.into_iter().chain([Target::Sm90, Target::Sm90a]) {
        for kernel in catalogue::kernels(target) {
            assert_eq!(kernel.emit_ptx(), kernel.emit_ptx(), "{}", kernel.name());
        }
    }
}
