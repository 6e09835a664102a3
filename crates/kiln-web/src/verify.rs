//! Runs the conformance suite in the user's browser.

use std::cell::RefCell;
use std::collections::HashSet;

use js_sys::{Array, Object};
use kiln::{Backend, Engine, Operand, Result, TensorType};
use kiln_ir::op::all_cases;
use kiln_ir::op::reference::{Accuracy, Case, conform, conform_within};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::js::set;

thread_local! {
    /// The cases, created once, because some take a while to generate.
    static CASES: RefCell<Vec<Case>> = const { RefCell::new(Vec::new()) };
}

fn with_cases<T>(see: impl FnOnce(&[Case]) -> T) -> T {
    CASES.with_borrow_mut(|cases| {
        if cases.is_empty() {
            *cases = all_cases();
        }
        see(cases)
    })
}

/// The names of the operations that have cases.
#[wasm_bindgen]
pub fn verifiable() -> Vec<String> {
    with_cases(|cases| {
        let mut names: Vec<String> = cases.iter().map(|case| case.op.name().to_owned()).collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    })
}

/// The cases of an operation with at most this many elements.
fn cases(name: &str, elements: usize) -> Vec<Case> {
    with_cases(|cases| {
        let size = |case: &Case| case.inputs.iter().map(|input| input.shape.numel()).sum::<usize>();
        cases.iter().filter(|case| case.op.name() == name && size(case) <= elements).cloned().collect()
    })
}

/// Runs every `step`-th of the cases of an operation on the placement with this name.
pub(crate) async fn verify(engine: &Engine, name: &str, place: &str, elements: usize, step: usize) -> Result<JsValue> {
    let forced = engine.with_force(Some(place))?;
    let gpu = forced.places().iter().any(|known| known.name == place && known.backend == Backend::Gpu);
    let (mut count, mut seen, mut failures) = (0u32, Accuracy::default(), Vec::new());
    let mut bound = String::new();
    for case in cases(name, elements).into_iter().step_by(step.max(1)) {
        count += 1;
        let operands = case.operands()?;
        bound = case.op.contract().bound.to_string();
        let results = forced.run_async(&case.op, &operands).await;
        // Devices have the bounds of their own arithmetic, and may flush subnormal numbers.
        let checked = match gpu {
            false => conform(&case, |_, _| results),
            true => {
                let types: Vec<TensorType> = operands.iter().map(Operand::ty).collect();
                let on_device = gpu_bound(&forced, &case, &types).await?;
                // The bound of other operations grows with the number of terms.
                if matches!(case.op, kiln::op::Op::Elementwise(_)) {
                    bound = on_device.to_string();
                }
                conform_within(&case, |_, _| Ok(on_device), true, |_, _| results)
            }
        };
        match checked {
            Ok(accuracy) => seen = seen.merge(accuracy),
            Err(why) => failures.push(JsValue::from(why)),
        }
    }
    let object = Object::new();
    set(&object, "cases", count);
    set(&object, "elements", seen.compared as f64);
    set(&object, "worst", seen.worst);
    set(&object, "bound", bound);
    set(&object, "failures", failures.into_iter().collect::<Array>());
    Ok(object.into())
}

#[cfg(feature = "webgpu")]
async fn gpu_bound(engine: &Engine, case: &Case, types: &[TensorType]) -> Result<kiln::op::Bound> {
    match engine.gpu_devices_async().await?.first() {
        Some(device) => kiln::gpu::numerics::bound_on(device, &case.op, types),
        None => case.op.bound(types),
    }
}

#[cfg(not(feature = "webgpu"))]
async fn gpu_bound(_: &Engine, case: &Case, types: &[TensorType]) -> Result<kiln::op::Bound> {
    case.op.bound(types)
}
