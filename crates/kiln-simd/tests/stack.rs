//! Every operation runs on a thread with 32 KiB of stack. A stack that is too small ends the process: so this test runs again in
//! a process of its own.

#![cfg(not(target_arch = "wasm32"))] // no threads on this target
#![cfg(unix)]
#![cfg(not(miri))] // no processes under Miri

mod support;

#[path = "support/again.rs"]
#[allow(dead_code)] // items that other tests use
mod again;

use std::process::Command;

use again::again;
use kiln_ir::Buffer;
use kiln_ir::op::reference::{Case, Input};
use kiln_ir::op::{
    Attention, Convolve2d, Dot, ElementwiseKind, LayerNorm, Matmul, Op, Padding, Reduce, Reduction, Softmax, TopK,
    Transpose, all_cases,
};
use kiln_simd::{Isa, Operations, Simd};
use support::sampled;

const STACK: usize = 32 * 1024;

/// The cases of the conformance suite, and such as are cut among threads.
fn cases() -> Vec<Case> {
    let long = |n: usize| Input::f32((0..n).map(|i| (i % 7) as f32 * 0.1).collect(), &[n]);
    let mut cases: Vec<Case> = sampled(all_cases()).collect();
    for &reduction in Reduction::ALL {
        cases.push(Case::new(Reduce::all(reduction), vec![long(1 << 20)]));
        cases.push(Case::new(Reduce::all(reduction), vec![long(100_003)]));
    }
    cases.push(Case::new(Dot, vec![long(1 << 20), long(1 << 20)]));
    let tensor =
        |dims: &[usize]| Input::f32((0..dims.iter().product()).map(|i: usize| (i % 7) as f32 * 0.1).collect(), dims);
    let large: [(Op, &[&[usize]]); 8] = [
        (Softmax.into(), &[&[1 << 20]]),
        (ElementwiseKind::Exp.with_params([0.0; 2]).into(), &[&[1 << 20]]),
        (LayerNorm::new(1e-5).into(), &[&[1 << 20], &[1 << 20], &[1 << 20]]),
        (Matmul::default().into(), &[&[512, 512], &[512, 512]]),
        (Transpose.into(), &[&[1000, 1000]]),
        (TopK { k: 50 }.into(), &[&[40, 30_000]]),
        (Convolve2d { padding: Padding::Same, ..Convolve2d::default() }.into(), &[&[32, 64, 64], &[32, 32, 3, 3]]),
        (Attention::full().into(), &[&[8, 256, 64], &[8, 256, 64], &[8, 256, 64]]),
    ];
    cases.extend(large.map(|(op, shapes)| Case::new(op, shapes.iter().map(|dims| tensor(dims)).collect())));
    cases
}

/// The bits of f32 results, so that a NaN equals itself.
fn bits(results: &[Buffer]) -> Vec<u32> {
    let of = |result: &Buffer| match result {
        Buffer::F32(values) => values.iter().map(|x| x.to_bits()).collect(),
        _ => Vec::new(),
    };
    results.iter().flat_map(of).collect()
}

#[test]
fn threads_with_little_stack_suffice_for_every_operation() {
    if !again(Command::new("/bin/sh"), "true", "threads_with_little_stack_suffice_for_every_operation") {
        return;
    }
    let cases = cases();
    for isa in Isa::available() {
        for case in &cases {
            let operands = case.operands().unwrap();
            // On one line, so that the last line names the operation that needed more.
            let name = format!("{case}");
            println!("{isa}, {}", name.lines().next().unwrap_or_default());
            let simd = Simd::with_isa(isa).unwrap().with_threads(2);
            let expected = simd.run(&case.op, &operands).unwrap();
            let found = std::thread::scope(|scope| {
                let small = std::thread::Builder::new().stack_size(STACK);
                small.spawn_scoped(scope, || simd.run(&case.op, &operands)).unwrap().join().unwrap().unwrap()
            });
            assert!(bits(&expected) == bits(&found), "{case}");
        }
    }
}
