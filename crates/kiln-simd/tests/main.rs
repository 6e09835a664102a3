//! The tests beyond the conformance suite, in one program: each program takes a second to compile and link for every target.
//! `cargo test -p kiln-simd --test all products` runs those of one file.

mod ceilings;
mod elementwise;
mod fused;
mod int8;
mod norm;
mod products;
mod reduce;
mod rounding;
mod support;
mod transpose;
