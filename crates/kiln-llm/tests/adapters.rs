//! Adapters: what models compute with them, against exact arithmetic with merged weights; switches between them; files that are damaged
//! or do not fit; and the forward pass of wgpu.
#![cfg(not(target_arch = "wasm32"))]

#[cfg(feature = "gpu")]
#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;
mod support;

use kiln::op::RopeStyle;
use kiln::{DType, Engine, Tensor};
use kiln_gguf::{Gguf, TensorKind, Writer};
use kiln_llm::{
    AdaptedModel, Adapter, Error, ForwardPass, ForwardShape, Model, QkvLora, Sampler, Session, SessionOptions,
};
use serde_json::json;
use support::distance;
use support::random_adapter::RandomAdapter;
use support::random_folder::{PLAIN, TemporaryFolder};
use support::random_model::{
    CONTEXT, EPS, FFN, GEMMA3, GPT_OSS, HEADS, KV_HEADS, Kind, LLAMA, MIXTRAL, PHI3, QWEN2, RandomModel, VOCABULARY,
    WIDTH,
};

/// Adapters with their scales.
type Used<'a> = &'a [(&'a Adapter, f32)];

const TOKENS: [u32; 11] = [1, 6, 7, 8, 11, 9, 5, 6, 6, 3, 10];

/// Keys and values as they are computed.
const EXACT: SessionOptions = SessionOptions { context: None, cache: DType::F32 };

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

fn load<'e>(engine: &'e Engine, model: &RandomModel, name: &str) -> Model<'e> {
    let path = model.save(name);
    let loaded = Model::from_gguf(engine, kiln_gguf::Model::read(&path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    loaded
}

fn gguf(random: &RandomAdapter) -> Adapter {
    Adapter::from_gguf("random", &Gguf::parse(&random.gguf()).unwrap()).unwrap()
}

fn peft(random: &RandomAdapter) -> Adapter {
    Adapter::from_peft("random", &random.peft_config().to_string(), &random.peft_weights()).unwrap()
}

fn pushed<'m>(model: &AdaptedModel<'m>, tokens: &[u32]) -> Session<'m> {
    let mut session = model.session(EXACT).unwrap();
    session.push(tokens).unwrap();
    session
}

/// The logits after all tokens of a model that adapters are merged into, each multiplied by a number.
fn merged(kind: Kind, adapters: &[(&RandomAdapter, f64)]) -> Vec<f64> {
    let mut model = RandomModel::new(kind);
    adapters.iter().for_each(|(adapter, scale)| adapter.merge(&mut model, *scale));
    model.reference(&TOKENS).pop().unwrap()
}

fn everything(_: usize, _: &str) -> bool {
    true
}

fn attention(_: usize, name: &str) -> bool {
    name.starts_with("attn")
}

/// What a session gives after all tokens, with some of its adapters.
#[track_caller]
fn check(session: &mut Session<'_>, used: Used<'_>, expected: &[f64], what: &str) {
    session.set_adapters(used).unwrap();
    let far = distance(&session.logits().unwrap(), expected);
    assert!(far < 1e-5, "{what}: {far:e}");
}

#[test]
fn an_adapter_gives_what_merged_weights_give() {
    let engine = engine();
    // Neighbour rotations with all file types; biases; fused projections and partial rotation; norms of heads and GELU;
    // sinks beside experts, which take no adapters.
    let cases = [(LLAMA, "F32"), (LLAMA, "F16"), (QWEN2, "BF16"), (PHI3, "F32"), (GEMMA3, "F16"), (GPT_OSS, "F32")];
    for (number, (kind, dtype)) in cases.into_iter().enumerate() {
        let model = load(&engine, &RandomModel::new(kind), &format!("adapted-{number}"));
        let wanted: fn(usize, &str) -> bool = if kind.experts.is_some() { attention } else { everything };
        let random = RandomAdapter::new(kind, 7, 3, dtype, wanted);
        let (plain, expected) = (merged(kind, &[]), merged(kind, &[(&random, 0.7)]));
        assert!(plain.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-2), "it makes a difference");
        for (form, adapter) in [("GGUF", gguf(&random)), ("PEFT", peft(&random))] {
            let what = format!("{} {dtype} from {form}", kind.name);
            let adapted = model.with_adapters([&adapter]).unwrap();
            let mut session = pushed(&adapted, &TOKENS);
            check(&mut session, &[], &plain, &what);
            check(&mut session, &[(&adapter, 0.7)], &expected, &what);
            check(&mut session, &[], &plain, &what);
        }
    }
}

#[test]
fn models_in_folders_take_adapters_of_both_kinds() {
    let engine = engine();
    // Folders store rows in the order for half rotations, GGUF files of adapters in the order for neighbour rotations.
    let halves = Kind { interleaved: false, ..LLAMA };
    let random = RandomModel::new(halves);
    let folder = random.save_folder("adapted-folder", &random.config("llama", json!({})), PLAIN);
    let model = Model::load(&engine, &folder).unwrap();
    let only = |_: usize, name: &str| matches!(name, "attn_q" | "attn_k");
    let of_halves = RandomAdapter::new(halves, 9, 4, "F32", only);
    // The equivalent matrices in a file with neighbour rotations.
    let mut of_neighbours = RandomAdapter::new(LLAMA, 9, 4, "F32", only);
    for pair in &mut of_neighbours.pairs {
        let (head, old) = (LLAMA.head * pair.rank, pair.b.clone());
        for (i, row) in pair.b.chunks_exact_mut(pair.rank).enumerate() {
            let (first, at) = (i / LLAMA.head * head, i % LLAMA.head);
            row.copy_from_slice(&old[first + (at % 2 * LLAMA.head / 2 + at / 2) * pair.rank..][..pair.rank]);
        }
    }
    let expected = merged(halves, &[(&of_halves, 1.0)]);
    for adapter in [peft(&of_halves), gguf(&of_neighbours), peft(&of_neighbours)] {
        let mut session = pushed(&model.with_adapters([&adapter]).unwrap(), &TOKENS);
        check(&mut session, &[(&adapter, 1.0)], &expected, "folder");
    }
}

#[test]
fn several_adapters_are_switched_and_added_and_leave_no_trace() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(LLAMA), "switched");
    // Other projections, ranks and types.
    let first = RandomAdapter::new(LLAMA, 3, 2, "F16", |layer, name| layer == 0 || name.starts_with("attn"));
    let second = RandomAdapter::new(LLAMA, 5, 5, "F32", |_, name| name != "attn_v");
    let [a, b] = [gguf(&first), peft(&second)];
    let adapted = model.with_adapters([&a, &b]).unwrap();
    assert_eq!(adapted.adapters().len(), 2);
    let mut session = pushed(&adapted, &TOKENS);
    let cases: [(Used<'_>, Vec<f64>); 5] = [
        (&[(&a, 1.0)], merged(LLAMA, &[(&first, 1.0)])),
        (&[(&b, -0.5)], merged(LLAMA, &[(&second, -0.5)])),
        (&[(&b, 0.25), (&a, 0.5)], merged(LLAMA, &[(&first, 0.5), (&second, 0.25)])),
        (&[(&a, 0.0)], merged(LLAMA, &[])),
        (&[], merged(LLAMA, &[])),
    ];
    for (used, expected) in &cases {
        check(&mut session, used, expected, &format!("{used:?}"));
    }
    // The bits of fresh sessions, with another adapter between, so that no state of the first use remains: logits,
    // generated tokens and scores, in every order.
    let fresh = |used: Used<'_>| {
        let mut session = pushed(&adapted, &TOKENS);
        session.set_adapters(used).unwrap();
        session
    };
    for (used, _) in cases.iter().chain(cases.iter().rev()) {
        session.truncate(TOKENS.len());
        session.set_adapter(Some(&a), 7.0).unwrap();
        session.set_adapters(used).unwrap();
        let mut other = fresh(used);
        assert_eq!(session.logits().unwrap(), other.logits().unwrap(), "{used:?}");
        let seeded = Sampler { seed: 3, temperature: 1.5, ..Sampler::default() };
        for sampler in [Sampler::greedy(), seeded] {
            let made = |session: &mut Session| (0..5).map(|_| session.sample(&sampler).unwrap()).collect::<Vec<_>>();
            assert_eq!(made(&mut session), made(&mut other), "{used:?}");
        }
        session.truncate(3);
        session.set_adapter(Some(&a), 7.0).unwrap();
        session.set_adapters(used).unwrap();
        let mut other = pushed(&adapted, &TOKENS[..3]);
        other.set_adapters(used).unwrap();
        assert_eq!(session.score(&TOKENS[3..]).unwrap(), other.score(&TOKENS[3..]).unwrap(), "{used:?}");
    }
    // Setting the active adapter again computes nothing, and a refused adapter changes nothing.
    session.set_adapter(Some(&a), 1.0).unwrap();
    session.logits().unwrap();
    let mut longer = TOKENS.to_vec();
    longer.push(4);
    session.set_adapter(Some(&a), 1.0).unwrap();
    assert_eq!(session.replace(&longer).unwrap(), TOKENS.len());
    for (used, expected) in [
        (vec![(&a, f32::NAN)], "scale"),
        (vec![(&b, f32::INFINITY)], "scale"),
        (vec![(&b, f32::MAX)], "scale"),
        (vec![(&a, 1.0), (&a, 1.0)], "twice"),
        (vec![(&gguf(&first), 1.0)], "Model::with_adapters"),
    ] {
        let error = session.set_adapters(&used).unwrap_err();
        assert!(matches!(&error, Error::Adapter { reason, .. } if reason.contains(expected)), "{error}");
    }
    assert_eq!(session.replace(&longer).unwrap(), TOKENS.len());
    session.set_adapter(None, 1.0).unwrap();
    assert_eq!(session.replace(&longer).unwrap(), 0);
    // Without adapters.
    let mut plain = model.session(EXACT).unwrap();
    plain.set_adapter(None, 1.0).unwrap();
    assert!(matches!(plain.set_adapter(Some(&a), 1.0), Err(Error::Adapter { .. })));
    let none = model.with_adapters([]).unwrap();
    assert_eq!(pushed(&none, &TOKENS).logits().unwrap(), {
        plain.push(&TOKENS).unwrap();
        plain.logits().unwrap()
    });
}

#[test]
fn peft_says_by_what_products_are_multiplied() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(LLAMA), "factors");
    let random = RandomAdapter::new(LLAMA, 11, 4, "F32", |_, name| matches!(name, "attn_q" | "ffn_down"));
    let factors_of = |config: &str| {
        let adapter = Adapter::from_peft("p", config, &random.peft_weights())?;
        model.with_adapters([&adapter]).unwrap();
        Ok::<_, Error>(
            adapter.modules().map(|module| (module.projection.to_owned(), module.factor)).collect::<Vec<_>>(),
        )
    };
    let factors = |config: serde_json::Value| factors_of(&config.to_string());
    let with = |key: &str, value: serde_json::Value| {
        let mut config = random.peft_config();
        config[key] = value;
        config
    };
    let each = |q: [f32; 2], down: [f32; 2]| {
        let all = [("attn_q", q[0]), ("ffn_down", down[0]), ("attn_q", q[1]), ("ffn_down", down[1])];
        all.map(|(name, factor)| (name.to_owned(), factor)).to_vec()
    };
    assert_eq!(factors(random.peft_config()).unwrap(), each([3.0; 2], [3.0; 2]));
    assert_eq!(factors(with("use_rslora", json!(true))).unwrap(), each([6.0; 2], [6.0; 2]));
    assert_eq!(factors(with("alpha_pattern", json!({"q_proj": 2}))).unwrap(), each([0.5; 2], [3.0; 2]));
    // The first matching key wins.
    let pattern = r#""alpha_pattern":{"layers.1.mlp.down_proj":8,"proj":1,"down_proj":6.0}"#;
    let config = random.peft_config().to_string().replace(r#""alpha_pattern":{}"#, pattern);
    assert_eq!(factors_of(&config).unwrap(), each([3.0; 2], [1.5, 2.0]));
    // The ranks of patterns must equal those of the matrices.
    let mut config = with("rank_pattern", json!({"mlp.down_proj": 4}));
    config["r"] = json!(2);
    assert!(matches!(factors(config), Err(Error::Adapter { reason, .. }) if reason.contains("q_proj has rank 4")));
    let mut config = with("rank_pattern", json!({"mlp.down_proj": 4, "self_attn.q_proj": 4}));
    config["r"] = json!(2);
    assert_eq!(factors(config).unwrap(), each([3.0; 2], [3.0; 2]));
    for (key, value) in [
        ("peft_type", json!("LOHA")),
        ("r", json!(-1)),
        ("r", json!(8)),
        ("lora_alpha", json!("x")),
        ("lora_alpha", json!(1e300)),
        ("rank_pattern", json!({"^model.*": 4})),
        ("alpha_pattern", json!({".*q_proj": 4})),
        ("alpha_pattern", json!({"q_proj": "4"})),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["lm_head\u{1b}"])),
        ("layer_replication", json!([[0, 2]])),
        ("lora_bias", json!(true)),
    ] {
        let error = factors(with(key, value.clone())).unwrap_err();
        assert!(matches!(error, Error::Adapter { .. }), "{key} = {value}: {error}");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }
    // Without alpha, a GGUF file has the factor 1.
    let mut plain = RandomAdapter::new(LLAMA, 11, 4, "F32", |_, name| name == "attn_q");
    plain.alpha = 0.0;
    assert!(gguf(&plain).modules().all(|module| (module.factor, module.rank) == (1.0, 4)));
}

/// A GGUF file of an adapter with these tensors: names, extents as files have them, and elements.
fn file(keys: &[(&str, &str)], tensors: &[(&str, &[u64], f32)]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in keys {
        writer.set(key, value).unwrap();
    }
    writer.set("adapter.lora.alpha", &4.0f32).unwrap();
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, extents, value)| value.to_le_bytes().repeat(extents.iter().product::<u64>() as usize))
        .collect();
    for ((name, extents, _), bytes) in tensors.iter().zip(&bytes) {
        writer.tensor(name, TensorKind::F32, extents, bytes).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file).unwrap();
    file
}

const KEYS: [(&str, &str); 3] =
    [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")];

#[test]
fn adapters_that_are_damaged_or_do_not_fit_are_refused() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(LLAMA), "refused");
    let parsed = |bytes: &[u8]| Adapter::from_gguf("bad", &Gguf::parse(bytes)?);
    let refused = |bytes: Vec<u8>, expected: &str| {
        let error = parsed(&bytes).unwrap_err();
        assert!(matches!(&error, Error::Adapter { reason, .. } if reason.contains(expected)), "{expected}: {error}");
    };
    let q = |side: &str| format!("blk.0.attn_q.weight.lora_{side}");
    let (a, b) = (q("a"), q("b"));
    let (a, b) = (a.as_str(), b.as_str());
    let good: [(&str, &[u64], f32); 2] = [(a, &[24, 2], 0.5), (b, &[2, 24], 0.5)];
    let adapter = parsed(&file(&KEYS, &good)).unwrap();
    assert_eq!(adapter.architecture(), Some("llama"));
    model.with_adapters([&adapter]).unwrap();
    // The type of the file.
    refused(file(&[], &good), "general.type");
    refused(file(&[("general.type", "model\u{1b}"), KEYS[1], KEYS[2]], &good), "model\\u{1b}");
    refused(file(&[KEYS[0], KEYS[1], ("adapter.type", "control_vector")], &good), "control_vector");
    assert!(matches!(parsed(&file(&[KEYS[0], KEYS[2]], &good)), Err(Error::File(_))), "no architecture");
    // The tensors of the file.
    refused(file(&KEYS, &[]), "changes nothing");
    refused(file(&KEYS, &good[..1]), "one of the matrices");
    refused(file(&KEYS, &[(a, &[24, 2], f32::NAN), good[1]]), "NaN");
    refused(file(&KEYS, &[good[0], (b, &[2, 24], f32::INFINITY)]), "inf");
    refused(file(&KEYS, &[good[0], (b, &[3, 24], 0.5)]), "different ranks");
    refused(file(&KEYS, &[(a, &[24, 2, 2], 0.5), good[1]]), "a matrix is expected");
    refused(file(&KEYS, &[(a, &[24, 0], 0.5), (b, &[0, 24], 0.5)]), "empty");
    for name in [
        "token_embd.weight.lora_a",
        "output.weight.lora_b",
        "blk.0.attn_q.weight",
        "blk.0.attn_norm.weight.lora_a",
        "blk.+0.attn_q.weight.lora_a",
        "blk.99999999999999999999.attn_q.weight.lora_a",
        "blk.0.attn_q.lora_a",
        "\u{1b}.lora_a",
    ] {
        refused(file(&KEYS, &[good[0], good[1], (name, &[24, 2], 0.5)]), "tensor");
    }
    // The model of the file.
    let for_model = |keys: &[(&str, &str)], tensors: &[(&str, &[u64], f32)]| {
        model.with_adapters([&parsed(&file(keys, tensors)).unwrap()]).unwrap_err()
    };
    let qwen = for_model(&[KEYS[0], ("general.architecture", "qwen2\u{1b}"), KEYS[2]], &good);
    assert!(matches!(&qwen, Error::AdapterArchitecture { found, model: "llama", .. } if found.contains("qwen2")));
    assert!(!qwen.to_string().contains('\u{1b}'));
    // In a mixture of experts attention takes adapters, and the experts do not.
    let mixture = load(&engine, &RandomModel::new(MIXTRAL), "refused-experts");
    mixture.with_adapters([&adapter]).unwrap();
    let (up_a, up_b) = ("blk.1.ffn_up.weight.lora_a", "blk.1.ffn_up.weight.lora_b");
    let up = parsed(&file(&KEYS, &[(up_a, &[24, 2], 0.5), (up_b, &[2, FFN as u64], 0.5)])).unwrap();
    let error = mixture.with_adapters([&up]).unwrap_err();
    assert!(matches!(&error, Error::Adapter { reason, .. } if reason.contains("experts")), "{error}");
    // The last one is transposed.
    for wide in [[&[48u64, 2][..], &[2, 24]], [&[24, 2], &[2, 12]], [&[2, 24], &[24, 2]]] {
        let error = for_model(&KEYS, &[(a, wide[0], 0.5), (b, wide[1], 0.5)]);
        let Error::AdapterShape { layer: 0, projection: "attn_q", expected: [24, 24], .. } = error else {
            panic!("{error}")
        };
    }
    let deep = ["blk.2.attn_q.weight.lora_a", "blk.2.attn_q.weight.lora_b"];
    let error = for_model(&KEYS, &[(deep[0], &[24, 2], 0.5), (deep[1], &[2, 24], 0.5)]);
    assert!(matches!(&error, Error::Adapter { reason, .. } if reason.contains("layer 2")), "{error}");
    let (qkv_a, qkv_b) = ("blk.0.attn_qkv.weight.lora_a", "blk.0.attn_qkv.weight.lora_b");
    let error = for_model(&KEYS, &[good[0], good[1], (qkv_a, &[24, 2], 0.5), (qkv_b, &[2, 48], 0.5)]);
    assert!(matches!(&error, Error::Adapter { reason, .. } if reason.contains("twice")), "{error}");
    let twice = model.with_adapters([&adapter, &adapter]).unwrap_err();
    assert!(matches!(&twice, Error::Adapter { reason, .. } if reason.contains("twice")), "{twice}");
    // An adapter is not a model.
    let path = std::env::temp_dir().join(format!("kiln-llm-{}-adapter.gguf", std::process::id()));
    std::fs::write(&path, file(&KEYS, &good)).unwrap();
    assert!(matches!(Model::load(&engine, &path), Err(Error::Adapter { .. })));
    Adapter::load(&path).unwrap();
    // Truncated at every length.
    let whole = file(&KEYS, &good);
    for len in 0..whole.len() {
        assert!(parsed(&whole[..len]).is_err(), "{len}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Adapter::load(&path), Err(Error::File(_))));
}

#[test]
fn folders_of_peft_that_are_damaged_are_refused() {
    let random = RandomAdapter::new(LLAMA, 13, 2, "F32", |layer, name| layer == 0 && name == "attn_v");
    let (config, weights) = (random.peft_config().to_string(), random.peft_weights());
    let folder = TemporaryFolder::new("peft");
    assert!(matches!(Adapter::load(&folder), Err(Error::Folder { .. })));
    folder.write("adapter_config.json", &config);
    let error = Adapter::load(&folder).unwrap_err();
    assert!(error.to_string().contains("adapter_model.bin"), "{error}");
    folder.write("adapter_model.safetensors", &weights);
    let adapter = Adapter::load(&folder).unwrap();
    assert_eq!((adapter.architecture(), adapter.modules().count()), (None, 1));
    for len in 0..weights.len() {
        let error = Adapter::from_peft("cut", &config, &weights[..len]).unwrap_err();
        assert!(matches!(error, Error::Folder { .. } | Error::Adapter { .. }), "{len}: {error}");
    }
    for len in 0..config.len() {
        let error = Adapter::from_peft("cut", &config[..len], &weights).unwrap_err();
        assert!(matches!(error, Error::Adapter { .. }), "{len}: {error}");
    }
    let text = String::from_utf8_lossy(&weights).into_owned();
    for (from, to) in [
        ("v_proj.lora_A", "v_norm.lora_A"),
        ("lora_A.weight", "lora_A.biased"),
        ("base_model.model", "base_model.moddl"),
        ("self_attn.v_proj.lora_A", "embed_tokensss.x.lora_A"),
    ] {
        assert_eq!(from.len(), to.len());
        let changed = weights.windows(from.len()).position(|at| at == from.as_bytes()).unwrap();
        let mut other = weights.clone();
        other[changed..][..to.len()].copy_from_slice(to.as_bytes());
        let error = Adapter::from_peft("renamed", &config, &other).unwrap_err();
        assert!(matches!(&error, Error::Adapter { reason, .. } if reason.contains("tensor")), "{error} {text}");
    }
}

/// LoRA of queries, keys and values from memory.
#[test]
fn matrices_in_memory_are_adapters() {
    let engine = engine();
    let model = load(&engine, &RandomModel::new(LLAMA), "memory");
    let random = RandomAdapter::new(LLAMA, 17, 3, "F32", |_, name| matches!(name, "attn_q" | "attn_k" | "attn_v"));
    let adapter = Adapter::from_qkv("memory", &qkv(&random)).unwrap();
    let adapted = model.with_adapters([&adapter]).unwrap();
    let expected = merged(LLAMA, &[(&random, 2.0)]);
    check(&mut pushed(&adapted, &TOKENS), &[(&adapter, 2.0)], &expected, "memory");
    let good = qkv(&random)[0];
    for bad in [
        QkvLora { k_b: &[], ..good },
        QkvLora { rank: 0, ..good },
        QkvLora { rank: 5, ..good },
        QkvLora { scale: f32::NAN, ..good },
        QkvLora { v_a: &[f32::NAN; 3 * WIDTH], ..good },
        QkvLora::default(),
    ] {
        assert!(matches!(Adapter::from_qkv("bad", &[bad]), Err(Error::Adapter { .. })), "{bad:?}");
    }
    let short = QkvLora { q_b: &[0.0; 3 * HEADS], ..good };
    let short = model.with_adapters([&Adapter::from_qkv("short", &[short]).unwrap()]);
    assert!(matches!(short, Err(Error::AdapterShape { projection: "attn_q", .. })));
    assert_eq!(good.v_b.len(), 3 * KV_HEADS * LLAMA.head);
}

/// The layers of an adapter of queries, keys and values.
fn qkv(random: &RandomAdapter) -> Vec<QkvLora<'_>> {
    let mut layers = vec![QkvLora::default(); LLAMA.layers];
    for pair in &random.pairs {
        let of = &mut layers[pair.layer];
        (of.rank, of.scale) = (pair.rank, random.alpha / pair.rank as f32);
        match pair.name {
            "attn_q" => (of.q_a, of.q_b) = (&pair.a, &pair.b),
            "attn_k" => (of.k_a, of.k_b) = (&pair.a, &pair.b),
            _ => (of.v_a, of.v_b) = (&pair.a, &pair.b),
        }
    }
    layers
}

#[test]
fn the_forward_pass_computes_a_layer_and_a_model() {
    let engine = engine();
    a_layer_and_a_model(ForwardPass::new(&engine, shape()).unwrap());
    for wrong in [
        ForwardShape { heads: 3, ..shape() },
        ForwardShape { hidden: 0, ..shape() },
        ForwardShape { layers: 1 << 40, ..shape() },
        ForwardShape { context: 0, ..shape() },
        ForwardShape { context: usize::MAX, ..shape() },
        ForwardShape { rms_norm_eps: f32::NAN, ..shape() },
    ] {
        assert!(matches!(ForwardPass::new(&engine, wrong), Err(Error::Model { .. })), "{wrong:?}");
    }
}

/// The numbers of the random model.
fn shape() -> ForwardShape {
    ForwardShape {
        hidden: WIDTH,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: LLAMA.head,
        intermediate: FFN,
        layers: LLAMA.layers,
        vocabulary: VOCABULARY,
        context: CONTEXT as usize,
        rms_norm_eps: EPS,
        rope_theta: LLAMA.theta,
        rope_style: RopeStyle::Interleaved,
    }
}

/// A forward pass without weights computes what the random model does, with and without adapters of queries, keys and values.
fn a_layer_and_a_model(mut pass: ForwardPass<'_>) {
    let random = RandomModel::new(LLAMA);
    assert!(matches!(pass.forward_model(&[1], 0), Err(Error::File(kiln_gguf::Error::MissingTensor { .. }))));
    for (name, dims, data) in &random.tensors {
        pass.upload_weight(name, &Tensor::from_slice(data, dims).unwrap());
    }
    let of = RandomAdapter::new(LLAMA, 17, 3, "F32", |_, name| matches!(name, "attn_q" | "attn_k" | "attn_v"));
    let lora = Adapter::from_qkv("memory", &qkv(&of)).unwrap();
    pass.set_adapters([&lora]);
    let [plain, adapted] = [merged(LLAMA, &[]), merged(LLAMA, &[(&of, 1.0)])];
    for (used, expected) in [(None, &plain), (Some(&lora), &adapted), (None, &plain)] {
        pass.use_adapter(used, 1.0).unwrap();
        // In parts, whose keys and values are kept.
        pass.forward_model(&TOKENS[..4], 0).unwrap();
        let far = distance(&pass.forward_model(&TOKENS[4..], 4).unwrap(), expected);
        assert!(far < 1e-5, "{far:e}");
    }
    // A weight that is replaced leaves the adapter in use.
    pass.use_adapter(Some(&lora), 1.0).unwrap();
    let (name, dims, data) = &random.tensors[0];
    pass.upload_weight(name, &Tensor::from_slice(data, dims).unwrap());
    let far = distance(&pass.forward_model(&TOKENS, 0).unwrap(), &adapted);
    assert!(far < 1e-5, "{far:e}");
    // Layer by layer, from the rows of the embedding; the head is that of the model.
    let (_, _, embedding) = &random.tensors[0];
    let mut rows: Vec<f32> =
        TOKENS.iter().flat_map(|&token| &embedding[token as usize * WIDTH..][..WIDTH]).copied().collect();
    for layer in 0..LLAMA.layers {
        let mut first = pass.forward_layer(layer, &rows[..3 * WIDTH], 0).unwrap();
        first.extend(pass.forward_layer(layer, &rows[3 * WIDTH..], 3).unwrap());
        rows = first;
    }
    let of = |name: &str| &random.tensors.iter().find(|(known, ..)| known == name).unwrap().2;
    let last = &rows[rows.len() - WIDTH..];
    let mean = last.iter().map(|x| x * x).sum::<f32>() / WIDTH as f32;
    let normed: Vec<f32> =
        last.iter().zip(of("output_norm.weight")).map(|(x, w)| x / (mean + EPS).sqrt() * w).collect();
    let head = of("output.weight").chunks_exact(WIDTH);
    let logits: Vec<f32> = head.map(|row| row.iter().zip(&normed).map(|(a, b)| a * b).sum()).collect();
    let far = distance(&logits, &adapted);
    assert!(far < 1e-5, "{far:e}");
    // Invalid arguments.
    assert!(matches!(pass.forward_layer(2, &rows, 0), Err(Error::Model { .. })));
    assert!(matches!(pass.forward_layer(0, &rows[..7], 0), Err(Error::Model { .. })));
    assert!(matches!(pass.forward_layer(0, &rows, usize::MAX), Err(Error::ContextFull { .. })));
    assert!(matches!(pass.forward_model(&[], 0), Err(Error::Model { .. })));
    assert!(matches!(pass.forward_model(&[12], 0), Err(Error::Token { .. })));
    assert!(matches!(pass.forward_model(&[1], 1000), Err(Error::ContextFull { context: 1000, asked: 1001 })));
    assert!(matches!(pass.use_adapter(Some(&lora), f32::NAN), Err(Error::Adapter { .. })));
    pass.upload_weight("blk.0.attn_q.weight", &Tensor::from_slice(&[0.0; 24], &[1, 24]).unwrap());
    assert!(matches!(pass.forward_model(&[1], 0), Err(Error::Model { .. })));
}

#[cfg(feature = "gpu")]
mod gpu {
    use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};
    use kiln_llm::WgslForwardPass;

    use super::skip::skip;
    use super::*;

    /// An engine on the adapter to test on: that of the environment, or any. Without one the test is left out, and says so; with
    /// `wgpu` in `KILN_REQUIRE` it fails instead.
    fn engine() -> Option<Engine> {
        let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
        let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
        match GpuDevice::find(&choice) {
            Ok(_) => Some(WgslForwardPass::engine(&choice).unwrap()),
            Err(why) => {
                skip("wgpu", why);
                None
            }
        }
    }

    #[test]
    fn a_switch_on_a_gpu_sends_scales_and_makes_nothing() {
        let Some(engine) = engine() else { return };
        let model = load(&engine, &RandomModel::new(LLAMA), "gpu");
        let first = RandomAdapter::new(LLAMA, 3, 2, "F16", everything);
        let second = RandomAdapter::new(LLAMA, 5, 5, "F32", |_, name| name.starts_with("attn"));
        let [a, b] = [gguf(&first), peft(&second)];
        let adapted = model.with_adapters([&a, &b]).unwrap();
        let mut session = pushed(&adapted, &TOKENS);
        let expected = [merged(LLAMA, &[(&first, 1.0)]), merged(LLAMA, &[(&second, 0.5)]), merged(LLAMA, &[])];
        let used: [Used<'_>; 3] = [&[(&a, 1.0)], &[(&b, 0.5)], &[]];
        let device = engine.gpu_devices().unwrap().remove(0);
        let mut logits = Vec::new();
        for round in 0..3 {
            for (at, (used, expected)) in used.iter().zip(&expected).enumerate() {
                session.truncate(TOKENS.len());
                let before = device.statistics();
                session.set_adapters(used).unwrap();
                let found = session.logits().unwrap();
                let spent = device.statistics() - before;
                assert!(distance(&found, expected) < 1e-5, "{at}: {:e}", distance(&found, expected));
                session.sample(&Sampler::greedy()).unwrap();
                if round == 0 {
                    logits.push(found);
                    continue;
                }
                assert_eq!(found, logits[at], "the bits of the first time");
                assert_eq!(spent.made(), 0, "{spent}");
                // Two executions, the second with the index of its last row, plus the scales of projections of both
                // adapters and of those of the first only.
                assert_eq!(spent.uploads, 4 + 5 + 2, "{spent}");
            }
        }
    }

    #[test]
    fn the_forward_pass_on_a_gpu_computes_a_layer_and_a_model() {
        let Some(engine) = engine() else { return };
        a_layer_and_a_model(WgslForwardPass::new(&engine, shape()).unwrap());
    }
}
