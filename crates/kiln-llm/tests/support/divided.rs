//! Checks of models that are divided over the devices of a group, whatever the devices are.

use kiln::{Backend, Budget, DType, Engine, EngineBuilder};
use kiln_llm::{Adapter, DeviceLayers, Error, Model, Sampler, SequenceOptions, SequencesOptions, SessionOptions};

use super::placed::{close, given, load};
use super::random_adapter::RandomAdapter;
use super::random_model::{
    GEMMA2, GPT_OSS, Kind, LLAMA, MIXTRAL, OLMO2, PHI3, QWEN2, QWEN3_MOE, RandomModel, VOCABULARY,
};

/// The engine of settings that ask for a group of two devices; it runs everything there.
pub(crate) fn forced(settings: impl Fn() -> EngineBuilder) -> Engine {
    let engine = settings().build().unwrap();
    let is_gpu = |backend| matches!(backend, Backend::Gpu | Backend::Cuda);
    let place = engine.places().iter().find(|place| is_gpu(place.backend)).expect("a group was asked for");
    assert_eq!(engine.devices_of(&place.name), Ok(2));
    settings().force(place.name.clone()).build().unwrap()
}

fn options() -> SessionOptions {
    SessionOptions { context: Some(300), cache: DType::F32 }
}

/// That models divided over two devices give what they give on the CPU: with biases, norms of heads, sinks, fused matrices,
/// experts and their biases, and norms of what is summed.
pub(crate) fn models_give_the_same(group: &Engine, kinds: &[Kind]) {
    let host = Engine::builder().without_profile().build().unwrap();
    for &kind in kinds {
        let alone = load(&host, kind, DeviceLayers::Predicted);
        let expected = given(&mut alone.session(options()).unwrap());
        let model = load(group, kind, DeviceLayers::Predicted);
        let mut session = model.session(options()).unwrap();
        let found = given(&mut session);
        assert_eq!(found.0, expected.0, "{}", kind.name);
        close(&found.1, &expected.1, kind.name);
        // Each device has its share of the keys and values.
        let part = &session.memory_plan().unwrap().parts[0];
        let row = (4 * 300 * 2 * kind.head) as u64;
        assert!(part.cache >= row * kind.layers as u64 && part.cache < 2 * row * kind.layers as u64, "{}", kind.name);
    }
}

/// [`models_give_the_same`] for every kind of block.
pub(crate) const KINDS: [Kind; 7] = [LLAMA, GEMMA2, QWEN2, QWEN3_MOE, PHI3, MIXTRAL, GPT_OSS];

/// That several sequences get the tokens that they get on the CPU.
pub(crate) fn sequences_give_the_same(group: &Engine) {
    let host = Engine::builder().without_profile().build().unwrap();
    let made = |engine: &Engine| {
        let model = load(engine, GEMMA2, DeviceLayers::Predicted);
        let options = SequencesOptions { most: 4, context: Some(300), cache: DType::F32 };
        let mut sequences = model.sequences(options).unwrap();
        let prompt: Vec<u32> = (0..20).map(|i| (i * 5 + i / 3) % VOCABULARY as u32).collect();
        let options = SequenceOptions { sampler: Sampler::greedy(), most: 6, ignore_end: true };
        for length in [20, 7, 13] {
            sequences.add(&prompt[..length], options.clone()).unwrap();
        }
        sequences.steps().map(|made| made.unwrap().token).collect::<Vec<u32>>()
    };
    assert_eq!(made(group), made(&host));
}

/// That what cannot be divided, and what does not fit, is one clear error.
pub(crate) fn what_cannot_be_divided_is_refused(settings: impl Fn() -> EngineBuilder) {
    let limited = forced(|| settings().budget(Budget { device_bytes: 1 << 14, ..Budget::default() }));
    for layers in [DeviceLayers::Predicted, DeviceLayers::Fitting] {
        let model = load(&limited, LLAMA, layers);
        let refused = model.session(options()).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { .. }), "{layers:?}: {refused:?}");
    }
    let group = &forced(settings);
    let refused = |model: Result<Model<'_>, Error>, what: &str| match model {
        Err(Error::Model { reason, .. }) => assert!(reason.contains(what), "{reason}"),
        other => panic!("{other:?}"),
    };
    let path = RandomModel::new(OLMO2).save("divided-olmo2");
    refused(Model::load(group, &path), "norms of all heads");
    std::fs::remove_file(path).unwrap();
    let model = load(group, LLAMA, DeviceLayers::Last(1));
    assert!(matches!(model.session(options()), Err(Error::Model { reason, .. }) if reason.contains("divided over 2")));
    let whole = load(group, LLAMA, DeviceLayers::Predicted);
    let random = RandomAdapter::new(LLAMA, 7, 3, "F32", |_, _| true);
    let adapter = Adapter::from_peft("random", &random.peft_config().to_string(), &random.peft_weights()).unwrap();
    assert!(matches!(whole.with_adapters([&adapter]), Err(Error::Model { what: "adapters", .. })));
    whole.with_adapters([]).unwrap();
}
