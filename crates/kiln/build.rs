//! Names for the sets of features and targets that decide which GPUs there are.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let feature = |name: &str| env::var_os(format!("CARGO_FEATURE_{name}")).is_some();
    let wasm = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32");
    let aliases = [
        // GPUs through WebGPU in a page, which cannot block.
        ("browser_gpu", feature("GPU_WASM") && wasm),
        // GPUs through wgpu and CUDA on other targets.
        ("native_gpu", feature("GPU") && !wasm),
        ("native_cuda", feature("CUDA") && !wasm),
        // The workspace's pages, whose examples run as doctests of this crate. A packed crate does not contain them.
        ("pages", std::path::Path::new("../../docs/guide.md").exists()),
    ];
    for (name, set) in aliases {
        println!("cargo::rustc-check-cfg=cfg({name})");
        if set {
            println!("cargo::rustc-cfg={name}");
        }
    }
}
