//! Checks of models whose layers are on the CPU and on a GPU, whichever the GPU is.

use kiln::{Backend, Budget, DType, Engine, EngineBuilder, Memory, Profile};
use kiln_llm::{
    DeviceLayers, Error, MemoryPlan, Model, PlannedPart, Sampler, SequenceOptions, SequencesOptions, Session,
    SessionOptions,
};

use super::random_model::{GEMMA2, GPT_OSS, Kind, LLAMA, RandomModel, VOCABULARY};

/// Tokens that a session has room for, more than the greatest graph has rows.
const ROOM: usize = 2000;

fn options() -> SessionOptions {
    SessionOptions { context: Some(ROOM), cache: DType::F32 }
}

pub(super) fn load<'e>(engine: &'e Engine, kind: Kind, layers: DeviceLayers) -> Model<'e> {
    let path = RandomModel::new(kind).save("placed");
    let mut model = Model::from_gguf(engine, kiln_gguf::Model::read(&path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    model.place_layers(layers);
    model
}

fn name_of_gpu(engine: &Engine) -> String {
    let gpu = engine.places().iter().find(|place| matches!(place.backend, Backend::Gpu | Backend::Cuda));
    gpu.expect("a GPU was asked for").name.clone()
}

/// What a session gives: tokens after a prompt of several parts, drawn in each way, and the logits then.
pub(super) fn given(session: &mut Session<'_>) -> (Vec<u32>, Vec<f32>) {
    let prompt: Vec<u32> = (0..9).map(|i| (i * 7 + i / 3) % VOCABULARY as u32).collect();
    session.push(&prompt).unwrap();
    let drawn = Sampler { temperature: 1.5, top_k: 5, seed: 3, ..Sampler::default() };
    let all = Sampler { top_k: 0, min_p: 0.01, repeat_penalty: 1.3, seed: 4, ..Sampler::default() };
    for _ in 0..2 {
        for sampler in [&Sampler::greedy(), &drawn, &all] {
            session.sample(sampler).unwrap();
        }
    }
    let logits = session.logits().unwrap();
    (session.tokens().to_vec(), logits)
}

pub(super) fn close(found: &[f32], expected: &[f32], what: &str) {
    let greatest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(found.len() == expected.len() && off <= 2e-5 * greatest, "{what}: {off} of {greatest}");
}

/// What is free on a device changes while other tests run.
fn without_capacities(plan: &MemoryPlan) -> MemoryPlan {
    let mut plan = plan.clone();
    plan.parts.iter_mut().for_each(|part| part.capacity = None);
    plan
}

fn layers_of(plan: &MemoryPlan) -> Vec<(&str, std::ops::Range<usize>)> {
    plan.parts.iter().map(|part| (&*part.place, part.layers.clone())).collect()
}

/// That a model gives the same however many of its layers are on a GPU; `settings` ask for the GPU.
pub(crate) fn layers_give_the_same_wherever_they_are(settings: impl Fn() -> EngineBuilder) {
    let engine = settings().build().unwrap();
    let gpu = name_of_gpu(&engine);
    let forced = settings().force(gpu.clone()).build().unwrap();
    let host = Engine::builder().without_profile().build().unwrap();
    // The embedding of the first model is also its head, so it is on both devices.
    for kind in [GEMMA2, Kind { layers: 3, ..LLAMA }, GPT_OSS] {
        let alone = load(&host, kind, DeviceLayers::Predicted);
        let mut session = alone.session(options()).unwrap();
        assert_eq!(session.memory_plan(), None);
        let expected = given(&mut session);
        let counts = if kind.layers == 4 { &[(&engine, 0), (&engine, 3), (&forced, 1)][..] } else { &[(&engine, 3)] };
        for &(engine, count) in counts {
            let what = format!("{count} layers of {} on {gpu}", kind.name);
            let model = load(engine, kind, DeviceLayers::Last(count));
            let mut session = model.session(options()).unwrap();
            let plan = session.memory_plan().unwrap().clone();
            assert_eq!(without_capacities(&plan), without_capacities(&model.memory_plan(options()).unwrap()));
            let split = kind.layers - count;
            let at = |i: usize| (plan.parts[i].place == gpu, plan.parts[i].layers.clone());
            match (plan.parts.len(), count) {
                (1, 0) => assert_eq!(at(0), (false, 0..split)),
                (1, _) => assert_eq!((at(0), split), ((true, 0..kind.layers), 0)),
                _ => assert_eq!([at(0), at(1)], [(false, 0..split), (true, split..kind.layers)], "{what}"),
            }
            assert!(plan.parts.iter().all(|part| part.weights > 0 && part.cache > 0 && part.scratch > 0), "{plan}");
            // Exact on the host, rounded to the granularity of allocations on the device.
            let row = (4 * ROOM * 2 * kind.head) as u64;
            let on_host = plan.parts.iter().filter(|part| part.place != gpu);
            on_host.for_each(|part| assert_eq!(part.cache % (row * part.layers.len() as u64), 0, "{plan}"));
            if plan.is_split() {
                let explained = session.explain().unwrap();
                let places: Vec<bool> = explained.segments.iter().map(|segment| segment.place == gpu).collect();
                assert_eq!(places, [false, true], "what passes crosses once: {explained}");
                assert!(plan.seconds > 0.0 && plan.to_string().contains(&gpu), "{plan}");
            }
            let found = given(&mut session);
            assert_eq!(found.0, expected.0, "{what}");
            close(&found.1, &expected.1, &what);
        }
        let model = load(&engine, kind, DeviceLayers::Last(kind.layers + 1));
        assert!(matches!(model.session(options()), Err(Error::Model { .. })));
    }
    let model = load(&host, LLAMA, DeviceLayers::Fitting);
    assert!(matches!(model.session(options()), Err(Error::Model { .. })), "there is no GPU");
    several(&engine, &host);
}

/// That layers which do not fit one GPU follow one another on two, with the rest on the CPU; `settings` ask for two GPUs.
pub(crate) fn layers_follow_one_another_on_gpus(settings: impl Fn() -> EngineBuilder) {
    let unlimited = settings().build().unwrap();
    let gpus = unlimited.places().iter().filter(|place| matches!(place.backend, Backend::Gpu | Backend::Cuda));
    let gpus: Vec<String> = gpus.map(|place| place.name.clone()).collect();
    assert_eq!(gpus.len(), 2, "{gpus:?}");
    let host = Engine::builder().without_profile().build().unwrap();
    let expected = given(&mut load(&host, GEMMA2, DeviceLayers::Predicted).session(options()).unwrap());
    let bytes = |layers: usize| {
        let plan = load(&unlimited, GEMMA2, DeviceLayers::Last(layers)).memory_plan(options()).unwrap();
        plan.parts.last().unwrap().bytes()
    };
    // The memory of each, and the layers on the CPU, on one GPU and on the other.
    for (device_bytes, layers, asked) in
        [(bytes(4) - 1, [0, 1, 3], DeviceLayers::Fitting), (bytes(1), [2, 1, 1], DeviceLayers::Last(2))]
    {
        let engine = settings().budget(Budget { device_bytes, ..Budget::default() }).build().unwrap();
        let model = load(&engine, GEMMA2, asked);
        let mut session = model.session(options()).unwrap();
        let plan = session.memory_plan().unwrap().clone();
        let counts: Vec<usize> = plan.parts.iter().map(|part| part.layers.len()).collect();
        assert_eq!(counts, layers[usize::from(layers[0] == 0)..], "{plan}");
        assert!(plan.parts.iter().all(|part| gpus.contains(&part.place) == part.capacity.is_some()), "{plan}");
        assert!(plan.parts.iter().all(PlannedPart::fits) && plan.notice.is_some(), "{plan}");
        let explained = session.explain().unwrap();
        let places: Vec<&str> = explained.segments.iter().map(|segment| &*segment.place).collect();
        assert_eq!(
            places[places.len() - 2..],
            plan.parts[plan.parts.len() - 2..].iter().map(|part| &*part.place).collect::<Vec<_>>(),
            "what passes crosses once at each border: {explained}"
        );
        assert_eq!(places.len(), plan.parts.len(), "{explained}");
        let found = given(&mut session);
        assert_eq!(found.0, expected.0, "{plan}");
        close(&found.1, &expected.1, "layers on two GPUs");
        if layers[0] > 0 {
            let more = load(&engine, GEMMA2, DeviceLayers::Last(3));
            let Err(Error::OutOfMemory { plan, .. }) = more.session(options()) else { panic!("{device_bytes} bytes") };
            assert_eq!(plan.parts.len(), 3, "{plan}");
        }
    }
    // What a device takes alone stays on one of them; a device that is forced does not share.
    let model = load(&unlimited, GEMMA2, DeviceLayers::Fitting);
    assert_eq!(layers_of(&model.memory_plan(options()).unwrap()).len(), 1);
    let budget = Budget { device_bytes: bytes(4) - 1, ..Budget::default() };
    let engine = settings().budget(budget).force(gpus[0].clone()).build().unwrap();
    let model = load(&engine, GEMMA2, DeviceLayers::Predicted);
    let Err(Error::OutOfMemory { plan, largest: Some(largest) }) = model.session(options()) else { panic!("it fits") };
    assert_eq!((plan.parts.len(), &plan.parts[0].place), (1, &gpus[0]), "{plan}");
    assert!(largest < ROOM);
}

/// That several sequences get the same.
fn several(engine: &Engine, host: &Engine) {
    let made = |engine: &Engine, layers: DeviceLayers| {
        let model = load(engine, GEMMA2, layers);
        let mut sequences =
            model.sequences(SequencesOptions { most: 4, context: Some(300), cache: DType::F32 }).unwrap();
        let prompt: Vec<u32> = (0..20).map(|i| (i * 5 + i / 3) % VOCABULARY as u32).collect();
        let options = SequenceOptions { sampler: Sampler::greedy(), most: 6, ignore_end: true };
        let first = sequences.add(&prompt, options.clone()).unwrap();
        sequences.add(&prompt[..7], options.clone()).unwrap();
        sequences.step().unwrap();
        sequences.fork(first, options).unwrap();
        let made: Vec<u32> = sequences.steps().map(|made| made.unwrap().token).collect();
        (made, sequences.memory_plan().cloned())
    };
    let (expected, _) = made(host, DeviceLayers::Predicted);
    let (found, plan) = made(engine, DeviceLayers::Last(2));
    assert_eq!(found, expected);
    let plan = plan.unwrap();
    assert!(plan.is_split(), "{plan}");
    // Four sequences, and the one that computes prompts.
    let one = load(engine, GEMMA2, DeviceLayers::Last(2));
    let one = one.memory_plan(SessionOptions { context: Some(300), cache: DType::F32 }).unwrap();
    assert_eq!(plan.parts[0].cache, 5 * one.parts[0].cache);
    // The steps of several sequences count, too.
    assert!(plan.parts.iter().zip(&one.parts).all(|(all, one)| all.scratch > one.scratch), "{plan}{one}");
    assert!(plan.parts[1].cache >= plan.parts[0].cache);
}

/// That a limit decides how many layers are on a GPU, and that what does not fit is an error with the context that does.
pub(crate) fn limits_decide_how_many_layers_fit(settings: impl Fn() -> EngineBuilder) {
    let kind = GEMMA2;
    let unlimited = settings().build().unwrap();
    let gpu = name_of_gpu(&unlimited);
    let planned = |layers: DeviceLayers| load(&unlimited, kind, layers).memory_plan(options()).unwrap();
    let [two, all] = [2, 4].map(|layers| planned(DeviceLayers::Last(layers)).parts.pop().unwrap().bytes());
    let limited = |device_bytes: u64| settings().budget(Budget { device_bytes, ..Budget::default() });

    // Two layers fit exactly.
    for (bytes, expected) in [(two, 2), (two - 1, 1)] {
        let engine = limited(bytes).build().unwrap();
        let model = load(&engine, kind, DeviceLayers::Fitting);
        let session = model.session(options()).unwrap();
        let plan = session.memory_plan().unwrap();
        assert_eq!(layers_of(plan)[1], (&*gpu, 4 - expected..4), "{plan}");
        let part = &plan.parts[1];
        assert!(
            part.fits() && part.capacity.is_some_and(|capacity| capacity <= bytes) && plan.notice.is_some(),
            "{plan}"
        );
        let model = load(&engine, kind, DeviceLayers::Last(3));
        assert!(matches!(model.session(options()), Err(Error::OutOfMemory { .. })));
    }
    // No layer fits.
    let engine = limited(1000).build().unwrap();
    let model = load(&engine, kind, DeviceLayers::Fitting);
    let mut session = model.session(options()).unwrap();
    let plan = session.memory_plan().unwrap();
    assert!(plan.parts.len() == 1 && plan.parts[0].place != gpu, "{plan}");
    assert!(plan.notice.as_ref().is_some_and(|notice| notice.contains("not one layer fits")), "{plan}");
    given(&mut session);
    assert!(engine.memory_use().iter().all(|(_, used)| used.live == 0), "{:?}", engine.memory_use());

    // If a GPU is forced, all layers must run there.
    let engine = limited(all - 1).force(gpu.clone()).build().unwrap();
    let model = load(&engine, kind, DeviceLayers::Predicted);
    let error = model.session(options()).unwrap_err();
    let message = error.to_string();
    let Error::OutOfMemory { plan, largest: Some(largest) } = error else { panic!("{message}") };
    assert!(message.contains(&largest.to_string()) && message.contains(&plan.to_string()), "{message}");
    assert!((1000..ROOM).contains(&largest), "{message}");
    let of = |context: usize| model.session(SessionOptions { context: Some(context), ..options() });
    assert!(matches!(of(largest + 1), Err(Error::OutOfMemory { .. })));
    assert_eq!(given(&mut of(largest).unwrap()).0.len(), 15);
    // A short context does not need the graphs of many tokens.
    let engine = limited(all / 4).force(gpu.clone()).build().unwrap();
    let model = load(&engine, kind, DeviceLayers::Predicted);
    let Err(Error::OutOfMemory { largest: Some(short), .. }) = model.session(options()) else { panic!("{all} bytes") };
    assert!((1..largest).contains(&short));
    assert!(model.session(SessionOptions { context: Some(short), ..options() }).is_ok());
    let tiny = limited(1000).force(gpu).build().unwrap();
    let model = load(&tiny, kind, DeviceLayers::Predicted);
    assert!(matches!(model.session(options()), Err(Error::OutOfMemory { largest: None, .. })));
}

/// That predictions decide where a model runs: on a GPU that is fast, as many layers as fit.
pub(crate) fn predictions_decide_where_layers_are(settings: impl Fn() -> EngineBuilder) {
    let plain = settings().build().unwrap();
    let gpu = name_of_gpu(&plain);
    let [two, all] = [2, 4].map(|layers| {
        let plan = load(&plain, GEMMA2, DeviceLayers::Last(layers)).memory_plan(options()).unwrap();
        plan.parts.last().unwrap().bytes()
    });
    // Seconds of any operation on the CPU and on the GPU, bytes of GPU memory, and layers on the GPU.
    for (cpu, seconds, bytes, expected) in
        [(1e-3, 1e-6, all, 4), (1e-3, 1e-6, two, 2), (1e-6, 1e-3, all, 0), (1e-3, 0.99e-3, two, 0)]
    {
        let mut places = plain.places().to_vec();
        for place in &mut places {
            place.roofline.overhead = if place.memory == Memory::HOST { cpu } else { seconds };
            // Transfers cost more than the small gain of the last case.
            place.launch = if place.memory == Memory::HOST { 0.0 } else { 1e-3 };
        }
        let mut profile = Profile::new(plain.machine().clone(), places).unwrap();
        let link = kiln::Link::linear((1e-6, 1e9), (1e-6, 1e9));
        profile = profile.with_link(Memory::new(1), link).unwrap();
        let budget = Budget { device_bytes: bytes, ..Budget::default() };
        let engine = settings().profile(profile).budget(budget).build().unwrap();
        let model = load(&engine, GEMMA2, DeviceLayers::Predicted);
        let mut session = model.session(options()).unwrap();
        let plan = session.memory_plan().unwrap().clone();
        let on_gpu = plan.parts.iter().filter(|part| part.place == gpu).map(|part| part.layers.len()).sum::<usize>();
        assert_eq!(on_gpu, expected, "{plan}");
        let sum: f64 = plan.parts.iter().map(|part| part.seconds).sum();
        assert!(plan.seconds > 0.0 && sum <= plan.seconds * (1.0 + 1e-9), "{plan}");
        session.push(&[1, 2, 3]).unwrap();
        session.sample(&Sampler::greedy()).unwrap();
        let used: u64 = engine.memory_use().iter().map(|(_, used)| used.live).sum();
        assert_eq!(used > 0, expected > 0, "{plan}");
    }
}
