//! Models on a GPU through wgpu.
#![cfg(not(target_arch = "wasm32"))]
#![cfg(feature = "gpu")]

#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;
mod support;

use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};
use kiln::{Backend, DType, Engine, EngineBuilder};
#[cfg(feature = "program")]
use kiln_llm::{DeviceLayers, ModelOutline};
use kiln_llm::{Error, Model, Sampler, SequenceOptions, SequencesOptions, SessionOptions};
use pollster::block_on;
use skip::skip;
use support::random_model::{GEMMA2, LLAMA, RandomModel};
use support::{divided, placed, several};

/// An engine that runs everything on the adapter of the environment, or on any. Without one the test is left out, and says so; with
/// `wgpu` in `KILN_REQUIRE` it fails instead.
fn engine() -> Option<Engine> {
    engine_of(Engine::builder)
}

/// The same, with other settings.
fn engine_of(settings: impl Fn() -> EngineBuilder) -> Option<Engine> {
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
    let label = match GpuDevice::find(&choice) {
        Ok(found) => found.label,
        Err(why) => {
            skip("wgpu", why);
            return None;
        }
    };
    let builder = || settings().adapter(AdapterChoice::Name(label.clone())).without_profile();
    let engine = builder().build().unwrap();
    let place = engine.places().iter().find(|place| place.backend == Backend::Gpu).expect("a GPU was asked for");
    Some(builder().force(place.name.clone()).build().unwrap())
}

#[test]
fn several_sequences_together_get_the_tokens_of_each_alone() {
    let Some(engine) = engine() else { return };
    several::together_is_as_alone(&engine, &[(LLAMA, DType::F16, &[0, 3]), (GEMMA2, DType::F32, &[2])], 40);
}

#[test]
fn sequences_come_and_go_while_others_go_on() {
    let Some(engine) = engine() else { return };
    several::sequences_come_and_go(&engine, 40);
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

/// `kiln-llm inspect` says how many layers fit a limit: to the byte, all or one, or none.
#[cfg(feature = "program")]
#[test]
fn inspect_says_how_many_layers_fit() {
    let Some(engine) = engine() else { return };
    let place = &engine.places()[engine.router().forced().unwrap()].name;
    let path = RandomModel::new(LLAMA).save("gpu-inspect");
    let inspect = |limit: u64| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_kiln-llm"));
        program.arg("inspect").arg(&path).args(["--device", "gpu", "--ctx", "100"]).env(ADAPTER_VARIABLE, place);
        let output = program.args(["--device-memory", &limit.to_string()]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).split_once("\nMemory\n").expect("a section").1.to_owned()
    };
    let needed = |layers: usize| {
        let mut outline = ModelOutline::load(&engine, &path).unwrap();
        outline.place_layers(DeviceLayers::Last(layers));
        let plan = outline.memory_plan(SessionOptions { context: Some(100), ..SessionOptions::default() }).unwrap();
        plan.parts.last().unwrap().bytes()
    };
    let all = inspect(needed(2));
    assert!(all.contains("  2 of 2 layers fit ") && all.contains(&format!(" on {place}\n")), "{all}");
    assert!(all.contains("0 to 1") && !all.contains("--layers fit"), "{all}");
    let one = inspect(needed(2) - 1);
    assert!(one.contains(" are needed on ") && one.contains("  1 of 2 layers fit "), "{one}");
    let (_, fitting) = one.split_once("  with --layers fit:\n").expect("another plan");
    assert!(fitting.contains("0 to 0") && fitting.contains("1 to 1"), "{fitting}");
    let none = inspect(needed(1) - 1);
    assert!(none.contains("  0 of 2 layers fit ") && none.contains("not one layer fits"), "{none}");
    std::fs::remove_file(path).unwrap();
}

/// A stream that waits for the GPU is dropped: its token is not in the session, and the next tokens are those without a stop.
#[test]
fn dropping_a_stream_cancels_the_token_that_is_computed() {
    let Some(engine) = engine() else { return };
    let path = RandomModel::new(LLAMA).save("gpu-stream");
    let model = Model::load(&engine, &path).unwrap();
    std::fs::remove_file(path).unwrap();
    let sampler = Sampler { temperature: 1.5, seed: 5, ..Sampler::default() };
    let [mut session, mut whole] = [(); 2].map(|()| model.session(SessionOptions::default()).unwrap());
    for session in [&mut session, &mut whole] {
        session.push(&[1, 6, 7]).unwrap();
    }
    let expected: Vec<u32> = whole.generate(&sampler, 6).map(|made| made.unwrap().token).collect();
    let (mut made, mut cancelled) = (Vec::new(), 0);
    while made.len() < expected.len() {
        let mut stream = session.stream(&sampler, 6);
        // The first poll submits work to the GPU, and rarely finds it done.
        match stream.poll_next_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {
                cancelled += 1;
                drop(stream);
                assert_eq!(session.tokens()[3..], made);
                made.extend(block_on(session.stream(&sampler, 1).next()).map(|made| made.unwrap().token));
            }
            Poll::Ready(token) => made.extend(token.map(|made| made.unwrap().token)),
        }
    }
    assert_eq!(made, expected);
    assert!(cancelled > 0, "no poll was pending");
}

/// A greedy token is read while the device computes the next one, whose input the device has itself.
#[test]
fn the_next_step_is_submitted_before_a_token_is_read() {
    let Some(engine) = engine() else { return };
    let path = RandomModel::new(LLAMA).save("gpu-begun");
    let model = Model::load(&engine, &path).unwrap();
    std::fs::remove_file(path).unwrap();
    let options = SessionOptions { context: Some(40), ..SessionOptions::default() };
    let [mut session, mut one_by_one] = [(); 2].map(|()| model.session(options).unwrap());
    let prompt = [1, 6, 7];
    for session in [&mut session, &mut one_by_one] {
        session.push(&prompt).unwrap();
    }
    let greedy = Sampler::greedy();
    // `sample` begins nothing ahead. The model does not end this text.
    let expected: Vec<u32> = (prompt.len()..40).map(|_| one_by_one.sample(&greedy).unwrap()).collect();
    let device = engine.gpu_devices().unwrap().remove(0);
    // The first token ends the prompt, and the second is the first that is begun.
    let made = |session: &mut kiln_llm::Session<'_>, most| -> Vec<u32> {
        session.generate(&greedy, most).map(|made| made.unwrap().token).collect()
    };
    assert_eq!(made(&mut session, 4), expected[..4]);

    let before = device.statistics();
    assert_eq!(made(&mut session, 6), expected[4..10]);
    let spent = device.statistics() - before;
    // The first token is uploaded with its row; places are uploaded for each.
    assert_eq!((spent.submissions, spent.downloads, spent.uploads), (6, 6, 6 * 3 + 2), "{spent}");
    assert_eq!(spent.made(), 0, "{spent}");

    let before = device.statistics();
    let taken: Vec<u32> = session.generate(&greedy, 30).take(4).map(|made| made.unwrap().token).collect();
    assert_eq!(taken, expected[10..14]);
    let spent = device.statistics() - before;
    assert_eq!((spent.submissions, spent.downloads), (5, 4), "the step after the last token is begun: {spent}");
    // It is the next token; tokens that are not wanted, and a step that is not, leave no trace.
    let before = device.statistics();
    assert_eq!(session.sample(&greedy).unwrap(), expected[14]);
    assert_eq!((device.statistics() - before).submissions, 0);
    let dropped = session.generate(&greedy, 30).next().unwrap().unwrap().token;
    assert_eq!(dropped, expected[15]);
    session.truncate(prompt.len() + 3);
    session.push(&expected[3..5]).unwrap();
    assert_eq!(made(&mut session, 2), expected[5..7]);
    let _ = session.generate(&greedy, 9).next();
    let others = session.logits().unwrap();
    let likeliest = (0u32..).zip(&others).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    assert_eq!((likeliest, made(&mut session, 3)), (expected[8], expected[8..11].to_vec()));
    // Another sampler, and a stream that is dropped while a step is in flight.
    let _ = session.generate(&greedy, 9).next();
    let drawn = Sampler { temperature: 1e-6, top_k: 4, ..Sampler::default() };
    assert_eq!(session.generate(&drawn, 2).map(|made| made.unwrap().token).collect::<Vec<_>>(), expected[12..14]);
    let mut stream = session.stream(&greedy, 9);
    block_on(stream.next());
    let _ = stream.poll_next_unpin(&mut Context::from_waker(Waker::noop()));
    drop(stream);
    let at = session.tokens().len() - prompt.len();
    let rest: Vec<_> = session.generate(&greedy, 99).collect();
    let (last, rest) = rest.split_last().unwrap();
    assert!(matches!(last, Err(Error::ContextFull { .. })), "{last:?}");
    assert_eq!(rest.iter().map(|made| made.as_ref().unwrap().token).collect::<Vec<_>>(), expected[at..]);
}

/// So is a drawn token, and the host's draw decides: what a device has guessed of another sampler leaves no trace.
#[test]
fn the_next_step_is_submitted_before_a_drawn_token_is_read() {
    let Some(engine) = engine() else { return };
    let path = RandomModel::new(LLAMA).save("gpu-drawn");
    let model = Model::load(&engine, &path).unwrap();
    std::fs::remove_file(path).unwrap();
    let device = engine.gpu_devices().unwrap().remove(0);
    let options = SessionOptions { context: Some(60), ..SessionOptions::default() };
    let [mut session, mut one_by_one] = [(); 2].map(|()| model.session(options).unwrap());
    for session in [&mut session, &mut one_by_one] {
        session.push(&[1, 6, 7]).unwrap();
    }
    let drawn = Sampler { temperature: 1.5, seed: 5, ..Sampler::default() };
    let mut expected = |sampler: &Sampler, count: usize| -> Vec<u32> {
        (0..count).map(|_| one_by_one.sample(sampler).unwrap()).collect()
    };
    let mut begun = |sampler: &Sampler, count: usize| -> Vec<u32> {
        (0..count).map(|_| session.sample_and_begin(sampler).unwrap()).collect()
    };
    assert_eq!(begun(&drawn, 4), expected(&drawn, 4));
    let before = device.statistics();
    let tokens = begun(&drawn, 6);
    let spent = device.statistics() - before;
    // `sample` begins nothing.
    let before = device.statistics();
    assert_eq!(tokens, expected(&drawn, 6));
    let alone = device.statistics() - before;
    assert_eq!(
        (spent.submissions, spent.downloads, spent.made()),
        (alone.submissions, alone.downloads, 0),
        "{spent}; {alone}"
    );
    // Places and the random number of each token.
    assert_eq!(spent.uploads, 6 * 4, "{spent}; {alone}");
    assert!(spent.dispatches - alone.dispatches <= 6 * 11, "drawing takes more kernels: {spent}; {alone}");

    // Steps are begun for each of these samplers, and then it is another one, which may take the device's guess or not.
    let others = [
        Sampler { seed: 6, ..drawn.clone() },
        Sampler { top_k: 3, seed: 8, ..drawn.clone() },
        Sampler { top_k: 100, top_p: 0.9, min_p: 0.0, ..drawn.clone() },
        Sampler::greedy(),
        Sampler { typical_p: 0.9, ..drawn.clone() },
        Sampler { repeat_penalty: 1.2, ..drawn.clone() },
        drawn,
    ];
    for sampler in others.iter().chain(&others).chain(&others) {
        assert_eq!(begun(sampler, 2), expected(sampler, 2), "{sampler:?}");
    }
}

#[test]
fn the_kernels_of_a_token_are_timed() {
    let path = RandomModel::new(LLAMA).save("timed");
    for (timed, engine) in [true, false].map(|timed| (timed, engine_of(|| Engine::builder().time_kernels(timed)))) {
        let Some(engine) = engine else { continue };
        let model = Model::load(&engine, &path).unwrap();
        let mut session = model.session(SessionOptions::default()).unwrap();
        assert!(matches!(session.profile(), Err(Error::Model { .. })), "nothing was computed");
        session.push(&[1]).unwrap();
        session.sample(&Sampler::greedy()).unwrap();
        match session.profile() {
            Ok(profile) if timed => {
                let names: Vec<&str> = profile.kernels.iter().map(|kernel| &*kernel.name).collect();
                assert!(names.len() > 20 && names.iter().any(|name| name.contains("attention")), "{names:?}");
                assert!(profile.nanoseconds() > 0.0);
            }
            Err(Error::Kiln(kiln::Error::Unavailable { .. })) if !timed => {}
            other => panic!("{timed}: {other:?}"),
        }
        let mut sequences = model.sequences(SequencesOptions::default()).unwrap();
        sequences.add(&[1, 2], SequenceOptions::default()).unwrap();
        (0..2).for_each(|_| drop(sequences.step().unwrap()));
        let profile = sequences.profile();
        assert_eq!(profile.as_ref().is_ok_and(|profile| profile.kernels.len() > 20), timed, "{profile:?}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn candidates_give_the_tokens_that_all_logits_give() {
    let Some(engine) = engine() else { return };
    several::candidates_are_those_of_all_logits(&engine, 1);
}

/// Settings of an engine with the adapter of [`engine`] among its places.
fn with_adapter() -> Option<impl Fn() -> EngineBuilder> {
    let engine = engine()?;
    let place = engine.places().iter().find(|place| place.backend == Backend::Gpu).expect("a GPU was asked for");
    let label = place.name.clone();
    Some(move || Engine::builder().adapter(AdapterChoice::Name(label.clone())).without_profile())
}

#[test]
fn layers_on_the_cpu_and_the_gpu_give_what_either_gives() {
    let Some(settings) = with_adapter() else { return };
    placed::layers_give_the_same_wherever_they_are(settings);
}

#[test]
fn limits_of_memory_decide_how_many_layers_are_on_the_gpu() {
    let Some(settings) = with_adapter() else { return };
    placed::limits_decide_how_many_layers_fit(settings);
}

/// Needs two adapters, whichever they are. With `adapters` in `KILN_REQUIRE` it fails where there are fewer.
#[test]
fn layers_follow_one_another_on_two_gpus() {
    let mut adapters = GpuDevice::list_adapters();
    if adapters.len() < 2 {
        skip("adapters", "there are no two adapters");
        return;
    }
    let labels: Vec<String> = adapters.drain(..2).map(|adapter| adapter.label).collect();
    let settings = || {
        let [first, second] = [&labels[0], &labels[1]].map(|label| AdapterChoice::Name(label.clone()));
        Engine::builder().adapter(first).adapter(second).without_profile()
    };
    placed::layers_follow_one_another_on_gpus(settings);
}

#[test]
fn predictions_decide_which_layers_are_on_the_gpu() {
    let Some(settings) = with_adapter() else { return };
    placed::predictions_decide_where_layers_are(settings);
}

/// Settings of an engine with a group of two devices, both of the adapter of [`engine`].
fn group() -> Option<impl Fn() -> EngineBuilder> {
    let engine = engine()?;
    let place = engine.places().iter().find(|place| place.backend == Backend::Gpu).expect("a GPU was asked for");
    let choice = AdapterChoice::Name(place.name.clone());
    Some(move || Engine::builder().adapter_group(&[choice.clone(), choice.clone()]).without_profile())
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
