//! The name of builds for pages with WebGPU, where nothing can wait: that of the crate kiln.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(browser_gpu)");
    let wasm = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32");
    if wasm && env::var_os("CARGO_FEATURE_GPU_WASM").is_some() {
        println!("cargo::rustc-cfg=browser_gpu");
    }
}
