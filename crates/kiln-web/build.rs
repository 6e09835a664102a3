//! The stack of the module that runs models.

use std::env;

/// Chat templates come with files, and may nest values as deeply as their fuel goes: kilobytes of stack for each level.
const STACK: usize = 32 << 20;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let wasm = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32");
    if wasm && env::var_os("CARGO_FEATURE_MODELS").is_some() {
        println!("cargo::rustc-link-arg-cdylib=-zstack-size={STACK}");
    }
}
