//! Calls compute in the default floating-point state, whatever the state of the caller, and leave that as it was.

#![cfg(not(target_arch = "wasm32"))] // no such state on this target
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]

mod support;

use std::arch::asm;

use kiln_ir::op::reference::Case;
use kiln_ir::op::{WriteRows, all_cases};
use kiln_ir::{Buffer, DType, Operand, QuantFormat, Shape, TensorType};
use kiln_simd::{Isa, Operations, Simd};

/// The register that holds the state.
fn state() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut state = 0u32;
        // SAFETY: writes four bytes to a local variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut state, options(nostack)) };
        // Without the flags, which arithmetic sets.
        u64::from(state & !0x3f)
    }
    #[cfg(target_arch = "aarch64")]
    {
        let state: u64;
        // SAFETY: programs may read it.
        unsafe { asm!("mrs {}, fpcr", out(reg) state, options(nostack)) };
        state
    }
}

fn set(state: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the states of this test have no reserved bit.
    unsafe {
        asm!("ldmxcsr [{}]", in(reg) &(state as u32), options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: programs may write it.
    unsafe {
        asm!("msr fpcr, {}", in(reg) state, options(nostack));
    }
}

/// Flush to zero and denormals are zero, each of them, both with round down, and the other rounding modes.
#[cfg(target_arch = "x86_64")]
const STATES: [u64; 7] = [0x9fc0, 0x9f80, 0x1fc0, 0xbfc0, 0x3f80, 0x5f80, 0x7f80];
#[cfg(target_arch = "aarch64")]
const STATES: [u64; 4] = [1 << 24, 1 << 22, 1 << 24 | 2 << 22, 1 << 25];

/// The result of `f` in a state, and the state that it leaves.
fn within<R>(state_of_caller: u64, f: impl FnOnce() -> R) -> (R, u64) {
    let before = state();
    set(state_of_caller);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    let after = state();
    set(before);
    (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), after)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs `f` in the default state and in each other, on every instruction set and on one and two threads.
fn same_everywhere(name: &str, f: impl Fn(&Simd) -> Vec<f32>) {
    for isa in Isa::available() {
        for threads in [1, 2] {
            let simd = Simd::with_isa(isa).unwrap().with_threads(threads);
            let expected = bits(&f(&simd));
            for caller in STATES {
                let (found, left) = within(caller, || f(&simd));
                assert!(bits(&found) == expected, "{name} on {isa}, {threads} threads, in state {caller:#x}");
                assert_eq!(left, caller, "the state after {name} on {isa}");
            }
        }
    }
}

/// Numbers whose sums and products round, some of them subnormal.
fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin() * if i % 3 == 0 { 1e-39 } else { 1.5 }).collect()
}

#[test]
fn reductions_do_not_depend_on_the_state() {
    let subnormal = vec![1e-39f32; 1 << 20];
    same_everywhere("sum", |simd| vec![simd.sum(&subnormal).unwrap()]);
    for n in [5, 1000, 400_000] {
        let x = values(n);
        same_everywhere("sum", |simd| vec![simd.sum(&x).unwrap()]);
        same_everywhere("norm_l2", |simd| vec![simd.norm_l2(&x).unwrap()]);
        same_everywhere("mean", |simd| vec![simd.mean(&x).unwrap()]);
        same_everywhere("dot", |simd| vec![simd.dot(&x, &x).unwrap()]);
        let mut x = vec![1e-40f32; n];
        x[n - 1] = 2e-40;
        same_everywhere("argmax", |simd| vec![simd.argmax(&x).unwrap() as f32]);
        assert_eq!(within(STATES[0], || Simd::new().unwrap().argmax(&x).unwrap()).0 as usize, n - 1);
    }
    let x = values(3 * 500 * 40);
    same_everywhere("sum along an axis", |simd| simd.sum_axis(&x, &[3, 500, 40], 1).unwrap());
}

#[test]
fn element_wise_functions_do_not_depend_on_the_state() {
    for n in [3, 64, 300_000] {
        let x: Vec<f32> = values(n);
        let y: Vec<f32> = x.iter().map(|x| x.abs() + 1e-40).collect();
        let large: Vec<f32> = x.iter().map(|x| x * 60.0).collect();
        same_everywhere("add", |simd| simd.add(&x, &y).unwrap());
        same_everywhere("mul", |simd| simd.mul(&x, &y).unwrap());
        same_everywhere("div", |simd| simd.div(&x, &y).unwrap());
        same_everywhere("exp", |simd| simd.exp(&large).unwrap());
        same_everywhere("ln", |simd| simd.ln(&y).unwrap());
        same_everywhere("sqrt of what is negative too", |simd| simd.sqrt(&x).unwrap());
    }
    let (ln, _) = within(STATES[0], || Simd::new().unwrap().ln(&[1e-40]).unwrap());
    assert!((ln[0] + 92.1034).abs() < 1e-3, "{ln:?}");
}

#[test]
fn products_and_rows_do_not_depend_on_the_state() {
    let (m, k, n) = (96, 300, 200);
    let (a, b) = (values(m * k), values(k * n));
    same_everywhere("matmul", |simd| simd.matmul(&a, &b, m, k, n).unwrap());
    same_everywhere("small matmul", |simd| simd.matmul(&a[..16], &b[..16], 4, 4, 4).unwrap());
    same_everywhere("packed matmul", |simd| {
        let packed = simd.pack_b(&b, k, n, false).unwrap();
        simd.matmul_packed(&a, &packed, m).unwrap()
    });
    same_everywhere("softmax", |simd| simd.softmax(&a, k).unwrap());
    let wide = values(1 << 20);
    same_everywhere("wide softmax", |simd| simd.softmax(&wide, wide.len()).unwrap());
}

/// Rows that are converted to the type of the state.
#[test]
fn updates_do_not_depend_on_the_state() {
    let x = values(64);
    let rows = Operand::f32(&x, &[2, 32]).unwrap();
    let positions = Operand::elements(&[1u32, 0], &[2]).unwrap();
    for dtype in [DType::Bf16, DType::Blocks(QuantFormat::Q8_0)] {
        let ty = TensorType::of(dtype, Shape::new(&[2, 32]).unwrap()).unwrap();
        same_everywhere("write_rows", |simd| {
            let mut state = Buffer::zeros(&ty).unwrap();
            simd.update(&WriteRows.into(), &[Operand::of_type(ty), rows, positions], state.as_mut()).unwrap();
            state.as_data().as_bytes().iter().map(|&byte| byte.into()).collect()
        });
    }
}

/// A few cases of the conformance suite for each operation.
#[test]
fn no_operation_depends_on_the_state() {
    let most = if support::step() == 1 { 4 } else { 1 };
    let mut cases = std::collections::BTreeMap::<&str, Vec<Case>>::new();
    for case in all_cases() {
        cases.entry(case.op.name()).or_default().push(case);
    }
    let spread = |cases: Vec<Case>| {
        let step = cases.len().div_ceil(most);
        cases.into_iter().step_by(step)
    };
    let result_bytes = |results: Vec<Buffer>| -> Vec<Vec<u8>> {
        results.iter().map(|result| result.as_data().as_bytes().to_vec()).collect()
    };
    for case in cases.into_values().flat_map(spread) {
        let operands = case.operands().unwrap();
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap().with_threads(2);
            let run = || result_bytes(simd.run(&case.op, &operands).unwrap());
            let expected = run();
            // The first flushes, the last rounds otherwise (on AArch64 both flush).
            for caller in [STATES[0], STATES[STATES.len() - 1]] {
                let (found, left) = within(caller, run);
                assert!(found == expected, "{case} on {isa}, in state {caller:#x}");
                assert_eq!(left, caller, "the state after {case} on {isa}");
            }
        }
    }
}

#[test]
fn an_error_leaves_the_state_as_it_was() {
    let simd = Simd::new().unwrap();
    for caller in STATES {
        let (result, left) = within(caller, || simd.add(&[1.0], &[1.0, 2.0, 3.0]));
        assert!(result.is_err());
        assert_eq!(left, caller);
        let (result, left) = within(caller, || simd.matmul(&[1.0], &[1.0, 2.0], 2, 2, 2));
        assert!(result.is_err());
        assert_eq!(left, caller);
    }
}
