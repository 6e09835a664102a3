//! The tests that need only Rust, in one program: each program would compile the interpreter and link the crate again.
//! `cargo test -p kiln-ptx --test all kernels` runs those of one file.

mod all_reduce;
#[path = "support/catalogue.rs"]
mod catalogue;
mod elementwise;
mod goldens;
mod index;
mod interpreter;
mod kernels;
mod operations;
mod planes;
mod shape;
mod support;
mod tensor_cores;
mod warp_groups;
