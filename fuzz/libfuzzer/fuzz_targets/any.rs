//! The target that `KILN_FUZZ_TARGET` names, guided by coverage. Its seeds are written to `corpus/TARGET` first.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use kiln_fuzz::{TARGETS, Target, find};

static TARGET: OnceLock<&Target> = OnceLock::new();

fn begin() {
    let name = std::env::var("KILN_FUZZ_TARGET").unwrap_or_default();
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    let target = find(&name).unwrap_or_else(|| panic!("KILN_FUZZ_TARGET is {name:?}; the targets are {}", names()));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    std::fs::create_dir_all(&folder).expect("the folder of the corpus");
    for (number, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), seed).expect("a seed");
    }
    TARGET.get_or_init(|| target);
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(bytes);
    }
});
