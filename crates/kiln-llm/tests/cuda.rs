//! Models on a GPU of NVIDIA.
#![cfg(not(target_arch = "wasm32"))]
#![cfg(feature = "cuda")]

#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;
mod support;

use kiln::cuda::CudaDevice;
use kiln::{Backend, DType, Engine, EngineBuilder};
use skip::skip;
use support::random_model::{GEMMA2, Kind, LLAMA, QWEN3};
use support::{divided, placed, several};

/// An engine that runs everything on the first device. Without one the test is left out, and says so; with `cuda` in `KILN_REQUIRE` it
/// fails instead.
fn engine() -> Option<Engine> {
    let why = match CudaDevice::list() {
        Ok(devices) if devices.is_empty() => Some("there is no device".to_owned()),
        Ok(_) => None,
        Err(why) => Some(why.to_string()),
    };
    if let Some(why) = why {
        skip("cuda", why);
        return None;
    }
    let builder = || Engine::builder().cuda_device(0).without_profile();
    let engine = builder().build().unwrap();
    let place = engine.places().iter().find(|place| place.backend == Backend::Cuda).expect("a device was asked for");
    Some(builder().force(place.name.clone()).build().unwrap())
}

#[test]
fn several_sequences_together_get_the_tokens_of_each_alone() {
    let Some(engine) = engine() else { return };
    let kinds: [(Kind, DType, &[usize]); 3] =
        [(LLAMA, DType::F16, &[0, 1, 2, 3]), (QWEN3, DType::Bf16, &[0, 3]), (GEMMA2, DType::F32, &[1, 2])];
    several::together_is_as_alone(&engine, &kinds, 300);
}

#[test]
fn sequences_come_and_go_while_others_go_on() {
    let Some(engine) = engine() else { return };
    several::sequences_come_and_go(&engine, 300);
}

#[test]
fn greedy_sequences_begin_steps_ahead() {
    let Some(engine) = engine() else { return };
    several::greedy_steps_begin_ahead(&engine, true);
}

#[test]
fn sequences_leave_while_a_step_is_under_way() {
    let Some(engine) = engine() else { return };
    several::steps_outlive_their_sequences(&engine);
}

#[test]
fn sequences_end_and_what_is_wrong_with_one_names_it() {
    let Some(engine) = engine() else { return };
    several::sequences_end_and_errors_name_them(&engine);
}

#[test]
fn candidates_give_the_tokens_that_all_logits_give() {
    let Some(engine) = engine() else { return };
    several::candidates_are_those_of_all_logits(&engine, 4);
}

/// Settings of an engine with the first device among its places.
fn with_device() -> Option<impl Fn() -> EngineBuilder> {
    engine().map(|_| || Engine::builder().cuda_device(0).without_profile())
}

#[test]
fn layers_on_the_cpu_and_the_gpu_give_what_either_gives() {
    let Some(settings) = with_device() else { return };
    placed::layers_give_the_same_wherever_they_are(settings);
}

#[test]
fn limits_of_memory_decide_how_many_layers_are_on_the_gpu() {
    let Some(settings) = with_device() else { return };
    placed::limits_decide_how_many_layers_fit(settings);
}

#[test]
fn predictions_decide_which_layers_are_on_the_gpu() {
    let Some(settings) = with_device() else { return };
    placed::predictions_decide_where_layers_are(settings);
}

#[test]
fn layers_follow_one_another_on_two_gpus() {
    if engine().is_none() || CudaDevice::list().is_ok_and(|devices| devices.len() < 2) {
        eprintln!("skipped: there are no two devices");
        return;
    }
    placed::layers_follow_one_another_on_gpus(|| Engine::builder().cuda_device(0).cuda_device(1).without_profile());
}

/// Settings of an engine with a group of the first two devices. With fewer the test is left out, and says so; with `cuda-group` in
/// `KILN_REQUIRE` it fails instead.
fn group() -> Option<impl Fn() -> EngineBuilder> {
    let found = CudaDevice::list().map_or(0, |devices| devices.len());
    if found < 2 {
        skip("cuda-group", format!("a group needs two devices, there are {found}"));
        return None;
    }
    Some(|| Engine::builder().cuda_group(&[0, 1]).without_profile())
}

#[test]
fn models_divided_over_two_devices_give_what_one_gives() {
    let Some(settings) = group() else { return };
    divided::models_give_the_same(&divided::forced(settings), &divided::KINDS);
}

#[test]
fn sequences_of_a_divided_model_get_the_same_tokens() {
    let Some(settings) = group() else { return };
    divided::sequences_give_the_same(&divided::forced(&settings));
    divided::what_cannot_be_divided_is_refused(settings);
}
