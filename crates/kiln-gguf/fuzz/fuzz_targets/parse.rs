//! Arbitrary bytes as a file.
#![no_main]

#[path = "../../tests/support/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exercise::exercise(bytes));
