//! Every case of every operation on every instruction set of this machine, against the f64 reference.
//! `KILN_OP=name` narrows it to one operation, `KILN_ISA=name` to one instruction set; `KILN_SAMPLE=n` takes every n-th case.

mod support;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kiln_ir::Operand;
use kiln_ir::op::reference::Case;
use kiln_ir::op::{Cumsum, Op, Rope, RopeStyle, all_cases, all_worst_cases, reference};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// The cases to run.
fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let only = std::env::var("KILN_OP").ok().filter(|name| !name.is_empty());
        let mut cases = all_cases();
        cases.retain(|case| only.as_deref().is_none_or(|name| name == case.op.name()));
        support::sampled(cases).collect()
    })
}

#[test]
fn every_operation_keeps_its_contract_on_every_instruction_set() {
    let forced = std::env::var("KILN_ISA").ok().filter(|name| !name.is_empty());
    let mut failures = BTreeMap::<String, (usize, String)>::new();
    let mut compared = 0;
    for case in cases() {
        for isa in Isa::available().filter(|isa| forced.as_deref().is_none_or(|name| name == isa.name())) {
            let simd = Simd::with_isa(isa).unwrap();
            match reference::conform(case, |op, inputs| simd.run(op, inputs)) {
                Ok(accuracy) => compared += accuracy.compared,
                Err(why) => {
                    let seen = failures.entry(format!("{} on {isa}", case.op.name())).or_insert((0, why));
                    seen.0 += 1;
                }
            }
        }
    }
    let report: Vec<String> =
        failures.iter().map(|(what, (n, why))| format!("{what}: {n} cases, first: {why}")).collect();
    assert!(report.is_empty(), "{}", report.join("\n"));
    assert!(compared > 0, "no case ran");
}

#[test]
fn roundings_that_go_all_one_way_stay_within_the_worst_case() {
    let mut beyond_the_bound = 0;
    for case in all_worst_cases() {
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap();
            let run = |op: &Op, inputs: &[Operand<'_>]| simd.run(op, inputs);
            if let Err(why) = reference::conform_within(&case, Op::worst, false, run) {
                panic!("on {isa}: {why}");
            }
            beyond_the_bound += usize::from(reference::conform(&case, run).is_err());
        }
    }
    assert!(beyond_the_bound > 0, "the cases are as harmless as others");
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for case in cases() {
        let operands = case.operands().unwrap();
        let run = |threads| Simd::new().unwrap().with_threads(threads).run(&case.op, &operands).unwrap();
        let (one, three) = (run(1), run(3));
        // Compared through Debug, because NaN differs from itself but its text does not.
        assert_eq!(format!("{one:?}"), format!("{three:?}"), "{case}");
    }
}

#[test]
fn rows_that_threads_share_have_the_bits_of_one_thread() {
    // Many short rows, few long ones, and one: threads share rows, and parts of rows.
    for dims in [[3000, 20], [70, 1000], [1, 30_000], [2, 70_000]] {
        let x: Vec<f32> = (0..dims[0] * dims[1]).map(|i| (i * 7919 % 1013) as f32 * 0.01 - 5.0).collect();
        let rotate = |style| Op::from(Rope { style, position: 3, ..Rope::default() });
        for op in [Cumsum { axis: 1 }.into(), rotate(RopeStyle::HalfSplit), rotate(RopeStyle::Interleaved)] {
            let operands = [Operand::f32(&x, &dims).unwrap()];
            let run = |threads| Simd::new().unwrap().with_threads(threads).run(&op, &operands).unwrap();
            assert!(run(1) == run(7), "{} of {dims:?}", op.name());
        }
    }
}
