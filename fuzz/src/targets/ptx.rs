//! Random programs of the PTX builder. NVIDIA's assembler takes them where `KILN_PTXAS` names it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use kiln_ptx::{PtxKernel, PtxModule, Target};

#[path = "../../../crates/kiln-ptx/tests/support/random.rs"]
mod random;

/// Numbers of a step of a program.
const STEP: usize = 5;

/// Programs of a few steps and of many.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let bytes = |steps: usize| (0..2 * STEP * steps).map(|i| (i * i * 31 + i * 7) as u8).collect();
    [1, 5, 20, 60].map(bytes).into()
}

/// Builds a program twice, which gives the same text, and assembles it.
pub(crate) fn run(bytes: &[u8]) {
    let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let step = |bytes: &[u8]| std::array::from_fn(|i| number(&bytes[2 * i..]));
    let steps: Vec<[u16; STEP]> = bytes.chunks_exact(2 * STEP).take(120).map(step).collect();
    let build = || PtxModule::from(PtxKernel::new("random", [64, 1, 1], |k| random::write(k, &steps)));
    let (module, again) = (build(), build());
    let text = module.to_string();
    assert_eq!(text, again.to_string());
    let named = std::env::var_os("KILN_PTXAS").filter(|names| !names.is_empty());
    if let Some(ptxas) = named.and_then(|names| std::env::split_paths(&names).last()) {
        let target = module.gate().target.max(Target::Sm80);
        let mut command = Command::new(ptxas);
        command.arg(format!("-arch={target}")).args(["-o", "/dev/null", "/dev/stdin"]);
        let mut running = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ptxas starts");
        // One that ends early says why.
        let _ = running.stdin.take().expect("it is piped").write_all(text.as_bytes());
        let output = running.wait_with_output().expect("ptxas ends");
        assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    }
}
