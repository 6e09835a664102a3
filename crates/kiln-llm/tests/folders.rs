//! Models in folders of Hugging Face: what they compute, against exact arithmetic, and folders that are damaged or contradict themselves.

use std::f64::consts::TAU;

use kiln::{DType, Engine};
use kiln_llm::{Error, Folder, Model, ModelOutline, SessionOptions};
use serde_json::{Value, json};

use crate::support::random_folder::{FolderTensor, Form, PLAIN, TemporaryFolder, safetensors};
use crate::support::random_model::{
    Divisors, Experts, GEMMA2, GEMMA3, GPT_OSS, Kind, LLAMA, LLAMA3, MIXTRAL, PHI3, QWEN2, QWEN3, QWEN3_MOE, QkNorms,
    RandomModel, Scaling,
};

const TOKENS: [u32; 11] = [1, 6, 7, 8, 11, 9, 5, 6, 6, 3, 10];

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

/// The greatest distance of a logit after the first tokens and after all, relative to the greatest logit.
fn distance(folder: &TemporaryFolder, random: &RandomModel, context: Option<usize>) -> f64 {
    let engine = engine();
    let model = Model::load(&engine, folder).unwrap();
    // Without its weights it has the same plan.
    let options = SessionOptions { context, ..SessionOptions::default() };
    let outline = ModelOutline::load(&engine, folder).unwrap();
    assert_eq!(outline.memory_plan(options).unwrap(), model.memory_plan(options).unwrap());
    let expected = random.reference(&TOKENS);
    let mut worst = 0.0f64;
    for n in [1, 4, TOKENS.len()] {
        let mut session = model.session(SessionOptions { context, cache: DType::F32 }).unwrap();
        session.push(&TOKENS[..n]).unwrap();
        let size = expected[n - 1].iter().fold(0.0, |size: f64, x| size.max(x.abs()));
        let logits = session.logits().unwrap();
        let far = logits.iter().zip(&expected[n - 1]).map(|(&x, y)| (f64::from(x) - y).abs() / size);
        worst = far.fold(worst, f64::max);
    }
    worst
}

fn check(name: &str, kind: Kind, model_type: &str, own: Value, form: Form) {
    check_with(name, RandomModel::new(kind), model_type, own, form);
}

fn check_with(name: &str, mut random: RandomModel, model_type: &str, own: Value, form: Form) {
    random.round(form);
    let folder = random.save_folder(name, &random.config(model_type, own), form);
    let far = distance(&folder, &random, None);
    // The tolerance of GGUF files; 16-bit weights equal those of the reference.
    assert!(far < 2e-5, "{name}: {far:e}");
}

/// Halves are rotated, whatever GGUF files of the architecture have.
const fn halves(kind: Kind) -> Kind {
    Kind { interleaved: false, ..kind }
}

const LLAMA_HALVES: Kind = halves(LLAMA);

#[test]
fn llama_is_that_of_exact_arithmetic() {
    check("llama", LLAMA_HALVES, "llama", json!({"hidden_act": "silu"}), PLAIN);
    for (name, dtype) in [("llama-bf16", "BF16"), ("llama-f16", "F16")] {
        check(name, LLAMA_HALVES, "llama", json!({}), Form { dtype, files: 2, ..PLAIN });
    }
    // Without head_dim, which most files of Llama lack.
    check("llama-null", LLAMA_HALVES, "llama", json!({"head_dim": null, "rope_scaling": null}), PLAIN);
    let linear = Kind { scaling: Scaling::Linear(2.5), ..LLAMA_HALVES };
    check("llama-linear", linear, "llama", json!({"rope_scaling": {"type": "linear", "factor": 2.5}}), PLAIN);
    let window = Kind { window: Some(4), ..LLAMA_HALVES };
    check("mistral", window, "mistral", json!({"sliding_window": 4}), Form { files: 3, ..PLAIN });
    check("mistral-full", LLAMA_HALVES, "mistral", json!({"sliding_window": null}), PLAIN);
}

/// Factors of pairs that turn seldom, often and in between.
#[test]
fn llama_3_divides_angles() {
    let kind = Kind { head: 16, rotated: 16, ..halves(LLAMA3) };
    let mut random = RandomModel::new(kind);
    let (factor, low, high, original) = (8.0, 1.0, 4.0, 200.0);
    let divisors: Vec<f32> = (0..8)
        .map(|i| {
            let wavelength = TAU * f64::from(kind.theta).powf(i as f64 / 8.0);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor as f32
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        })
        .collect();
    assert!(divisors.contains(&1.0) && divisors.contains(&8.0) && divisors.iter().any(|&d| d > 1.0 && d < 8.0));
    random.tensors.iter_mut().find(|(name, ..)| name == "rope_freqs.weight").unwrap().2 = divisors;
    let rope = json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original as u32});
    let folder = random.save_folder("llama3", &random.config("llama", json!({"rope_scaling": rope})), PLAIN);
    let far = distance(&folder, &random, None);
    assert!(far < 2e-5, "{far:e}");
    // In the format of transformers 5.
    let mut newer = rope;
    newer["rope_theta"] = kind.theta.into();
    folder.change("config.json", |config| {
        config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("rope"));
        config["rope_parameters"] = newer;
    });
    let far = distance(&folder, &random, None);
    assert!(far < 2e-5, "{far:e}");
}

#[test]
fn qwen_is_that_of_exact_arithmetic() {
    check("qwen2", QWEN2, "qwen2", json!({"use_sliding_window": false, "sliding_window": 3}), PLAIN);
    let window = Kind { window: Some(3), windowed: |i| i >= 1, ..QWEN2 };
    let own = json!({"use_sliding_window": true, "sliding_window": 3, "max_window_layers": 1});
    check("qwen2-window", window, "qwen2", own, PLAIN);
    let yarn = Kind { head: 16, rotated: 16, scaling: Scaling::Yarn(4.0, 16.0, 2.0, 1000.0), magnitude: 0.75, ..QWEN2 };
    let rope = json!({"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.75});
    check("qwen2-yarn", yarn, "qwen2", json!({"rope_scaling": rope}), PLAIN);
    check("qwen3", QWEN3, "qwen3", json!({}), Form { dtype: "BF16", ..PLAIN });
    let exact = Kind { scaling: Scaling::ExactYarn(4.0, 16.0, 2.0, 1000.0), ..yarn };
    let rope = json!({"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.75,
        "truncate": false});
    check("qwen2-yarn-exact", exact, "qwen2", json!({"rope_scaling": rope}), PLAIN);
    let window = Kind { layers: 3, window: Some(3), windowed: |i| i == 1, ..QWEN3 };
    let types = ["full_attention", "sliding_attention", "full_attention"];
    let own = json!({"use_sliding_window": true, "sliding_window": 3, "layer_types": types});
    check("qwen3-window", window, "qwen3", own, PLAIN);
}

/// Experts are tensors of their own in folders.
#[test]
fn mixtures_are_those_of_exact_arithmetic() {
    let own = json!({"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": null});
    check("mixtral", halves(MIXTRAL), "mixtral", own.clone(), Form { files: 3, ..PLAIN });
    check("mixtral-bf16", halves(MIXTRAL), "mixtral", own, Form { dtype: "BF16", ..PLAIN });
    let qwen = json!({"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": true,
        "mlp_only_layers": [], "decoder_sparse_step": 1});
    check("qwen3-moe", QWEN3_MOE, "qwen3_moe", qwen.clone(), Form { dtype: "F16", files: 2, ..PLAIN });
    // Without the key the weights of the selected experts are not normalised.
    let experts = QWEN3_MOE.experts.map(|experts| Experts { normalised: false, ..experts });
    let mut plain = qwen.clone();
    plain.as_object_mut().unwrap().remove("norm_topk_prob");
    check("qwen3-moe-plain", Kind { experts, ..QWEN3_MOE }, "qwen3_moe", plain, PLAIN);
    let mut windowed = qwen.clone();
    windowed
        .as_object_mut()
        .unwrap()
        .extend([("use_sliding_window".to_owned(), json!(true)), ("sliding_window".to_owned(), json!(4))]);
    check("qwen3-moe-window", Kind { window: Some(4), ..QWEN3_MOE }, "qwen3_moe", windowed, PLAIN);

    let random = RandomModel::new(QWEN3_MOE);
    let engine = engine();
    let wrong = |key: &str, value: Value| {
        let mut own = qwen.clone();
        own[key] = value;
        let folder = random.save_folder("qwen3-moe-wrong", &random.config("qwen3_moe", own), PLAIN);
        Model::load(&engine, &folder).unwrap_err()
    };
    for (key, value) in [("decoder_sparse_step", json!(2)), ("mlp_only_layers", json!([0])), ("num_experts", json!(0))]
    {
        let error = wrong(key, value);
        assert!(matches!(&error, Error::Folder { reason, .. } if reason.contains(key)), "{key}: {error}");
    }
    // One more than exist, and one fewer.
    let more = wrong("num_experts", json!(8));
    assert!(matches!(&more, Error::Model { reason, .. } if reason.contains("mlp.gate.weight")), "{more}");
    let used = wrong("num_experts_per_tok", json!(8));
    assert!(matches!(&used, Error::Model { reason, .. } if reason.contains("8 of 7 experts")), "{used}");
    let mut lacking = RandomModel::new(QWEN3_MOE);
    lacking.tensors.retain(|(name, ..)| name != "blk.1.ffn_up.6.weight");
    let folder = lacking.save_folder("qwen3-moe-lacking", &lacking.config("qwen3_moe", qwen), PLAIN);
    let error = Model::load(&engine, &folder).unwrap_err().to_string();
    assert!(error.contains("model.layers.1.mlp.experts.6.up_proj.weight"), "{error}");
}

/// The keys of gpt-oss in `config.json`.
fn gpt_oss() -> Value {
    json!({"num_local_experts": 6, "num_experts_per_tok": 4, "sliding_window": 4, "swiglu_limit": 7.0,
        "intermediate_size": 64, "attention_bias": true, "hidden_act": "silu",
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096}})
}

/// All experts of a layer are one tensor in folders of gpt-oss: floats, or MXFP4.
#[test]
fn gpt_oss_is_that_of_exact_arithmetic() {
    for (name, dtype, files) in [("gpt-oss", "F32", 1), ("gpt-oss-f16", "F16", 1), ("gpt-oss-bf16", "BF16", 3)] {
        check(name, GPT_OSS, "gpt_oss", gpt_oss(), Form { dtype, files, ..PLAIN });
    }
    // The rotations, and which layers have a window, are those of files without the keys.
    let mut own = gpt_oss();
    own.as_object_mut().unwrap().remove("rope_scaling");
    own["layer_types"] = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    check("gpt-oss-default", GPT_OSS, "gpt_oss", own, PLAIN);
    let whole = Kind { scaling: Scaling::Yarn(32.0, 32.0, 1.0, 4096.0), ..GPT_OSS };
    let mut own = gpt_oss();
    own["rope_scaling"]["truncate"] = json!(true);
    check("gpt-oss-whole", whole, "gpt_oss", own, PLAIN);
}

/// Blocks of 32 elements, so matrices of experts have 32 inputs.
#[test]
fn experts_in_mxfp4_are_those_of_exact_arithmetic() {
    let own = |quantised: bool| {
        let mut own = gpt_oss();
        own["quantization_config"] = json!({"quant_method": if quantised { "mxfp4" } else { "gptq" }});
        own
    };
    let mut random = RandomModel::new(GPT_OSS);
    let form = Form { dtype: "BF16", files: 2, mxfp4: true, ..PLAIN };
    random.round(form);
    let folder = random.save_folder("gpt-oss-mxfp4", &random.config("gpt_oss", own(true)), form);
    // Products with blocks round the other rows to 16 bits: about 1e-5 of the greatest element in each of nine products.
    let far = distance(&folder, &random, None);
    assert!(far < 1e-3, "{far:e}");
    let opened = Folder::open(&folder).unwrap();
    assert!(opened.tensors().all(|tensor| tensor.is_supported));
    let engine = engine();
    // The same blocks in a GGUF file give the same logits.
    random.mxfp4 = true;
    let path = random.save("gpt-oss-mxfp4-file");
    let logits = |path: &std::path::Path| {
        let model = Model::load(&engine, path).unwrap();
        let mut session = model.session(SessionOptions { context: None, cache: DType::F32 }).unwrap();
        session.push(&TOKENS).unwrap();
        session.logits().unwrap()
    };
    let (file, of_folder) = (logits(&path), logits(folder.as_ref()));
    std::fs::remove_file(path).unwrap();
    let greatest = file.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    assert!(file.iter().zip(&of_folder).all(|(a, b)| (a - b).abs() <= 1e-6 * greatest));

    let wrong = |config: Value, name: &str, form: Form| {
        let folder = random.save_folder(name, &random.config("gpt_oss", config), form);
        Model::load(&engine, &folder).unwrap_err()
    };
    let error = wrong(own(false), "gpt-oss-gptq", form);
    assert!(matches!(&error, Error::Folder { reason, .. } if reason.contains("quantization_config")), "{error}");
    for key in ["swiglu_limit", "swiglu_alpha"] {
        let mut other = own(true);
        other[key] = json!(5.0);
        let error = wrong(other, "gpt-oss-gate", form);
        assert!(matches!(&error, Error::Folder { reason, .. } if reason.contains(key)), "{error}");
    }
    // Another number of experts, and of elements between the products.
    for (key, value, named) in
        [("num_local_experts", 7, "mlp.router.weight"), ("intermediate_size", 32, "gate_up_proj_blocks")]
    {
        let mut other = own(true);
        other[key] = json!(value);
        let error = wrong(other, "gpt-oss-extents", form);
        assert!(matches!(&error, Error::Model { reason, .. } if reason.contains(named)), "{key}: {error}");
    }
    // Lacking scales, scales of another type, floats beside blocks, and a second model's tensors.
    let changed = |by: &dyn Fn(&mut Vec<FolderTensor>)| {
        let folder =
            random.save_folder("gpt-oss-parts", &random.config("gpt_oss", own(true)), Form { files: 1, ..form });
        let mut tensors = random.folder_tensors(Form { files: 1, ..form });
        by(&mut tensors);
        folder.write("model.safetensors", safetensors(&tensors));
        Model::load(&engine, &folder).unwrap_err().to_string()
    };
    let scales = "model.layers.1.mlp.experts.down_proj_scales";
    let error = changed(&|tensors| tensors.retain(|(name, ..)| name != scales));
    assert!(error.contains(scales), "{error}");
    let error = changed(&|tensors| tensors.iter_mut().filter(|(name, ..)| name == scales).for_each(|t| t.1 = "I8"));
    assert!(error.contains(scales) && error.contains("I8"), "{error}");
    let error = changed(&|tensors| {
        let (shape, bytes) = (vec![6, 64, 32], vec![0; 6 * 64 * 32 * 2]);
        tensors.push(("model.layers.1.mlp.experts.down_proj".into(), "BF16", shape, bytes));
    });
    assert!(error.contains("model.layers.1.mlp.experts.down_proj_"), "{error}");
    for lacking in [
        "model.layers.2.self_attn.sinks",
        "model.layers.0.mlp.experts.gate_up_proj_blocks",
        "model.layers.0.mlp.experts.gate_up_proj_bias",
    ] {
        let error = changed(&|tensors| tensors.retain(|(name, ..)| name != lacking));
        assert!(error.contains(lacking), "{lacking}: {error}");
    }
}

#[test]
fn gemma_is_that_of_exact_arithmetic() {
    let form = Form { plus_one: true, ..PLAIN };
    let own = json!({"query_pre_attn_scalar": 8, "sliding_window": 3, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"});
    check("gemma2", GEMMA2, "gemma2", own.clone(), form);
    check("gemma2-bf16", GEMMA2, "gemma2", own, Form { dtype: "BF16", files: 2, ..form });
    // Without caps, and with another scale of the scores.
    let uncapped = Kind { score_cap: None, logit_cap: None, score_scale: Some(0.408_248_290_463_863), ..GEMMA2 };
    let own = json!({"query_pre_attn_scalar": 6, "sliding_window": 3, "attn_logit_softcapping": null,
        "final_logit_softcapping": null});
    check("gemma2-uncapped", uncapped, "gemma2", own, form);
    let rope = json!({"rope_type": "linear", "factor": 8.0});
    let own = json!({"query_pre_attn_scalar": 8, "sliding_window": 3, "rope_local_base_freq": 10000.0,
        "rope_scaling": rope, "sliding_window_pattern": 6});
    check("gemma3", GEMMA3, "gemma3_text", own.clone(), form);
    // A model with images in the format of transformers 5.
    let mut random = RandomModel::new(GEMMA3);
    let form = Form { prefix: "model.language_model.", ..form };
    random.round(form);
    let mut text = random.config("gemma3_text", json!({"query_pre_attn_scalar": 8, "sliding_window": 3,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "layer_types": (0..7).map(|i| if i == 5 { "full_attention" } else { "sliding_attention" }).collect::<Vec<_>>()}));
    text.as_object_mut().unwrap().remove("rope_theta");
    let config = json!({"model_type": "gemma3", "text_config": text, "eos_token_id": [2, 5]});
    let folder = random.save_folder("gemma3-images", &config, form);
    let far = distance(&folder, &random, None);
    assert!(far < 2e-5, "{far:e}");
    let tokenizer = Folder::open(&folder).unwrap().tokenizer().unwrap();
    assert!(tokenizer.is_end(2) && tokenizer.is_end(5) && !tokenizer.is_end(6));
}

#[test]
fn phi_3_is_that_of_exact_arithmetic() {
    let magnitude = (1.0 + (1000.0f64 / 600.0).ln() / 600.0f64.ln()).sqrt();
    let mut random = RandomModel::new(Kind { magnitude, ..PHI3 });
    random.round(PLAIN);
    let factors = |which: &str| {
        let tensor = random.tensors.iter().find(|(name, ..)| *name == format!("rope_factors_{which}.weight"));
        tensor.unwrap().2.clone()
    };
    let own = json!({"sliding_window": 5, "partial_rotary_factor": 0.7, "original_max_position_embeddings": 600,
        "rope_scaling": {"type": "longrope", "short_factor": factors("short"), "long_factor": factors("long")}});
    let folder = random.save_folder("phi3", &random.config("phi3", own), PLAIN);
    let far = distance(&folder, &random, None);
    assert!(far < 2e-5, "{far:e}");
    random.kind.divisors = Divisors::ByContext(false);
    let far = distance(&folder, &random, Some(600));
    assert!(far < 2e-5, "{far:e}");
}

#[test]
fn other_architectures_are_those_of_exact_arithmetic() {
    let granite = Kind {
        name: "granite",
        tied: true,
        embedding_scale: 12.0,
        residual_scale: 0.25,
        logit_scale: 0.125,
        score_scale: Some(0.25),
        ..LLAMA_HALVES
    };
    let own = json!({"embedding_multiplier": 12, "residual_multiplier": 0.25, "logits_scaling": 8.0,
        "attention_multiplier": 0.25});
    check("granite", granite, "granite", own, Form { dtype: "BF16", ..PLAIN });
    let smollm = Kind { name: "smollm3", layers: 5, tied: true, rotates: |i| i != 3, ..LLAMA_HALVES };
    check("smollm3", smollm, "smollm3", json!({}), PLAIN);
    let own = json!({"no_rope_layers": [1, 0, 1, 1, 1]});
    check("smollm3-layers", Kind { rotates: |i| i != 1, ..smollm }, "smollm3", own, PLAIN);
    let olmo = Kind {
        name: "olmo2",
        layers: 5,
        head: 16,
        rotated: 16,
        norms_before: false,
        norms_after: true,
        qk_norms: QkNorms::Row,
        ..LLAMA_HALVES
    };
    check("olmo2", olmo, "olmo2", json!({}), PLAIN);
    let olmo = Kind {
        scaling: Scaling::Yarn(8.0, 32.0, 1.0, 2048.0),
        magnitude: 1.207_944_154_167_983_6,
        window: Some(4),
        windowed: |i| i != 3,
        local_theta: Some(10_000.0),
        ..olmo
    };
    let rope = json!({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2048});
    check("olmo3", olmo, "olmo3", json!({"sliding_window": 4, "rope_scaling": rope}), PLAIN);
}

/// Files whose headers have a length that is no multiple of the elements' size, and a head beside a tied embedding.
#[test]
fn elements_may_begin_anywhere_and_tied_heads_are_not_read() {
    let mut random = RandomModel::new(Kind { tied: true, ..LLAMA_HALVES });
    for dtype in ["F32", "BF16"] {
        let form = Form { dtype, ..PLAIN };
        random.round(form);
        let folder = random.save_folder(&format!("anywhere-{dtype}"), &random.config("llama", json!({})), form);
        let whole = std::fs::read(folder.0.join("model.safetensors")).unwrap();
        let len = u64::from_le_bytes(whole[..8].try_into().unwrap());
        for spaces in 0..4 {
            let (header, data) = whole[8..].split_at(len as usize);
            let padded = [&(len + spaces).to_le_bytes()[..], header, &b"    "[..spaces as usize], data].concat();
            folder.write("model.safetensors", padded);
            let far = distance(&folder, &random, None);
            assert!(far < 2e-5, "{dtype} {spaces}: {far:e}");
        }
    }
    let folder = random.save_folder("tied", &random.config("llama", json!({})), PLAIN);
    let mut tensors = vec![("lm_head.weight".to_owned(), "F32", vec![12, 24], vec![0; 12 * 24 * 4])];
    folder.write("head.safetensors", safetensors(&tensors));
    let names = Folder::open(&folder).unwrap();
    let map: serde_json::Map<String, Value> =
        names.tensors().map(|tensor| (tensor.name.to_owned(), "w.safetensors".into())).collect();
    let mut map = Value::from(map);
    map["lm_head.weight"] = "head.safetensors".into();
    std::fs::rename(folder.0.join("model.safetensors"), folder.0.join("w.safetensors")).unwrap();
    folder.write("model.safetensors.index.json", json!({"weight_map": map}).to_string());
    assert!(distance(&folder, &random, None) < 2e-5);
    // One unused tensor.
    tensors.push(("model.layers.0.self_attn.sinks".into(), "F32", vec![1], vec![0; 4]));
    folder.write("head.safetensors", safetensors(&tensors));
    let error = Model::load(&engine(), &folder).unwrap_err();
    assert!(error.to_string().contains("model.layers.0.self_attn.sinks"), "{error}");
}

#[test]
fn tokenizers_and_templates_are_those_of_the_folder() {
    let random = RandomModel::new(LLAMA_HALVES);
    let folder = random.save_folder("tokenizer", &random.config("llama", json!({"bos_token_id": 6})), PLAIN);
    let tokenizer = || Folder::read(&folder).unwrap().tokenizer();
    let t = tokenizer().unwrap();
    assert_eq!(t.encode("ab ab"), [1, 9, 9]);
    assert_eq!(
        (t.special_tokens().bos, t.special_tokens().eos, t.is_end(2), t.is_end(7)),
        (Some(6), Some(2), true, false)
    );
    folder.write("generation_config.json", json!({"eos_token_id": [7, 2]}).to_string());
    folder.write(
        "tokenizer_config.json",
        json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}a"}).to_string(),
    );
    let t = tokenizer().unwrap();
    assert_eq!(
        (t.special_tokens().bos, t.special_tokens().eos, t.is_end(2), t.is_end(7)),
        (Some(1), Some(2), true, true)
    );
    #[cfg(feature = "chat")]
    {
        let engine = engine();
        let rendered = |name: Option<&str>| {
            let model = Model::load(&engine, &folder).unwrap();
            model.chat_template(name).and_then(|template| template.render(&[], true))
        };
        assert_eq!(rendered(None).unwrap(), "<s>a");
        let named = json!([{"name": "default", "template": "b"}, {"name": "tool_use", "template": "c"}]);
        folder.change("tokenizer_config.json", |config| config["chat_template"] = named);
        assert_eq!((rendered(None).unwrap(), rendered(Some("tool_use")).unwrap()), ("b".into(), "c".into()));
        folder.write("chat_template.jinja", "{{ eos_token }}");
        assert_eq!(rendered(None).unwrap(), "</s>");
        assert!(matches!(rendered(Some("rag")), Err(Error::MissingTemplate { .. })));
        folder.change("tokenizer_config.json", |config| config["chat_template"] = json!(7));
        assert!(matches!(Model::load(&engine, &folder), Err(Error::Folder { .. })));
    }
    for (file, json) in [
        ("tokenizer_config.json", json!({"eos_token": "<none>"})),
        ("tokenizer_config.json", json!({"eos_token": 2})),
        ("generation_config.json", json!({"eos_token_id": "2"})),
        ("generation_config.json", json!({"eos_token_id": [2, -1]})),
        ("generation_config.json", json!([])),
    ] {
        folder.write("tokenizer_config.json", "{}");
        folder.write("generation_config.json", "{}");
        folder.write(file, json.to_string());
        let error = tokenizer().unwrap_err();
        assert!(matches!(&error, Error::Folder { path, .. } if path.ends_with(file)), "{json}: {error}");
    }
    folder.write("generation_config.json", json!({"eos_token_id": 12}).to_string());
    assert!(matches!(tokenizer(), Err(Error::Vocabulary { .. })));
    // Added tokens without a row, as in the shared file of a family.
    folder.write("generation_config.json", "{}");
    folder.change("tokenizer.json", |json| {
        json["added_tokens"].as_array_mut().unwrap().push(json!({"id": 12, "content": "<image>", "special": true}));
    });
    assert_eq!(tokenizer().unwrap().len(), 10);
}

/// A folder of a small Llama, and what is wrong with it once it is changed.
fn wrong(name: &str, form: Form, change: impl FnOnce(&TemporaryFolder)) -> Error {
    let random = RandomModel::new(LLAMA_HALVES);
    let folder = random.save_folder(name, &random.config("llama", json!({})), form);
    change(&folder);
    Model::load(&engine(), &folder).unwrap_err()
}

#[test]
fn folders_that_lack_something_are_refused() {
    let remove =
        |file: &'static str| move |folder: &TemporaryFolder| std::fs::remove_file(folder.0.join(file)).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let error = wrong("lacks", PLAIN, remove(file));
        assert!(matches!(&error, Error::Folder { .. }) && error.to_string().contains(file), "{error}");
    }
    let two = Form { files: 2, ..PLAIN };
    let error = wrong("lacks-file", two, remove("model-00002-of-00002.safetensors"));
    assert!(
        matches!(&error, Error::File(kiln_gguf::Error::Io { path, .. }) if path.ends_with("model-00002-of-00002.safetensors"))
    );
    for (file, expected) in [
        (json!("../model-00001-of-00002.safetensors"), "the name of a file"),
        (json!("/etc/passwd"), "the name of a file"),
        (json!(".."), "the name of a file"),
        (json!("a/"), "the name of a file"),
        (json!(""), "the name of a file"),
        (json!(7), "the name of a file"),
        (json!("model-00002-of-00002.safetensors"), "lacks tensor \"model.embed_tokens.weight\""),
    ] {
        let error = wrong("index", two, |folder| {
            folder.change("model.safetensors.index.json", |json| {
                json["weight_map"]["model.embed_tokens.weight"] = file.clone();
            });
        });
        assert!(matches!(&error, Error::Folder { .. }) && error.to_string().contains(expected), "{file}: {error}");
    }
    let error = wrong("twice", two, |folder| {
        let [first, second] = [1, 2].map(|i| folder.0.join(format!("model-0000{i}-of-00002.safetensors")));
        std::fs::copy(first, second).unwrap();
    });
    assert!(error.to_string().contains("is in another file, too"), "{error}");
    let error = wrong("no-map", two, |folder| folder.write("model.safetensors.index.json", "[]"));
    assert!(error.to_string().contains("weight_map"), "{error}");
    // Each tensor, by its name in the folder.
    let random = RandomModel::new(LLAMA_HALVES);
    for at in 0..random.tensors.len() {
        let mut lacking = RandomModel::new(LLAMA_HALVES);
        let (name, ..) = lacking.tensors.remove(at);
        let folder = lacking.save_folder("lacks-tensor", &random.config("llama", json!({})), PLAIN);
        let error = Model::load(&engine(), &folder).unwrap_err();
        let Error::File(kiln_gguf::Error::MissingTensor { name: found }) = &error else { panic!("{name}: {error}") };
        assert!(found.starts_with("model.") || found == "lm_head.weight", "{found}");
    }
    for bytes in [&b""[..], b"{", b"[]", b"\xff", &b"[".repeat(100_000)] {
        for file in ["config.json", "tokenizer_config.json", "model.safetensors"] {
            let error = wrong("damaged", PLAIN, |folder| folder.write(file, bytes));
            assert!(matches!(&error, Error::Folder { path, .. } if path.ends_with(file)), "{file}: {error}");
        }
    }
}

#[test]
fn folders_that_contradict_themselves_are_refused() {
    let changed = |key: &str, value: Value| {
        wrong("contradicts", PLAIN, |folder| folder.change("config.json", |config| config[key] = value))
    };
    for (key, value) in [
        ("hidden_size", json!(32)),
        ("intermediate_size", json!(41)),
        ("num_hidden_layers", json!(1)),
        ("num_attention_heads", json!(2)),
        ("num_key_value_heads", json!(1)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(12)),
        ("head_dim", json!(7)),
        ("max_position_embeddings", json!(u32::MAX)),
        ("rope_scaling", json!({"type": "yarn", "factor": 4.0, "beta_fast": 1e39})),
    ] {
        let error = changed(key, value.clone());
        assert!(matches!(error, Error::Model { .. } | Error::Folder { .. }), "{key} = {value}: {error}");
    }
    let layer = json!({"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e5}});
    let llama3 = json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 10});
    let longrope = json!({"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [1.0, 2.0]});
    for (key, value) in [
        ("vocab_size", json!(13)),
        ("model_type", json!(7)),
        ("model_type", json!(null)),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-24)),
        ("hidden_size", json!(24.5)),
        ("hidden_size", json!("24")),
        ("hidden_size", json!(u64::MAX)),
        ("hidden_size", json!(null)),
        ("num_hidden_layers", json!(513)),
        ("num_hidden_layers", json!(u32::MAX)),
        ("num_attention_heads", json!(0)),
        ("head_dim", json!(u32::MAX)),
        ("rms_norm_eps", json!(0.0)),
        ("rms_norm_eps", json!(1e300)),
        ("rope_theta", json!(-1.0)),
        ("tie_word_embeddings", json!("no")),
        ("hidden_act", json!("gelu")),
        ("partial_rotary_factor", json!(1.5)),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("rope_scaling", json!("linear")),
        ("rope_scaling", json!({"type": "dynamic\u{1b}", "factor": 2.0})),
        ("rope_scaling", json!({"type": "linear"})),
        ("rope_scaling", json!({"type": "linear", "factor": 0})),
        ("rope_scaling", json!({"type": "yarn", "factor": 4.0, "truncate": "no"})),
        ("rope_scaling", llama3),
        ("rope_scaling", longrope),
        ("rope_parameters", layer),
    ] {
        let error = changed(key, value.clone());
        assert!(
            matches!(&error, Error::Folder { path, .. } if path.ends_with("config.json")),
            "{key} = {value}: {error}"
        );
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }
    let unknown = changed("model_type", json!("gpt-x\u{1b}"));
    assert!(matches!(&unknown, Error::UnsupportedArchitecture { supported, .. } if supported.contains("gemma3_text")));
    assert!(!unknown.to_string().contains('\u{1b}'), "{unknown}");
    // A head that differs from the embedding must exist, and an equal one is not read.
    let mut tied = RandomModel::new(Kind { tied: true, ..LLAMA_HALVES });
    tied.kind.tied = false;
    let folder = tied.save_folder("untied", &tied.config("llama", json!({})), PLAIN);
    let error = Model::load(&engine(), &folder).unwrap_err();
    assert!(
        matches!(&error, Error::File(kiln_gguf::Error::MissingTensor { name }) if name == "lm_head.weight"),
        "{error}"
    );
    // Known types without kernels.
    let norm = ("model.norm.weight".to_owned(), "F64", vec![24], vec![0; 24 * 8]);
    let random = RandomModel::new(Kind { layers: 1, ..LLAMA_HALVES });
    let folder = random.save_folder("types", &random.config("llama", json!({})), Form { files: 2, ..PLAIN });
    let index = folder.0.join("model.safetensors.index.json");
    let map: Value = serde_json::from_slice(&std::fs::read(index).unwrap()).unwrap();
    let file = map["weight_map"]["model.norm.weight"].as_str().unwrap();
    let mut rest: Vec<(String, &str, Vec<usize>, Vec<u8>)> = vec![norm];
    let opened = Folder::open(&folder).unwrap();
    let others = opened.tensors().filter(|tensor| map["weight_map"][tensor.name] == file && tensor.name != rest[0].0);
    let others: Vec<_> = others.map(|t| (t.name.to_owned(), "F32", t.shape.to_vec(), vec![0; t.bytes])).collect();
    rest.extend(others);
    folder.write(file, safetensors(&rest));
    let error = Model::load(&engine(), &folder).unwrap_err();
    let named = error.to_string();
    assert!(matches!(&error, Error::Folder { path, .. } if path.ends_with(file)), "{error}");
    assert!(named.contains("model.norm.weight") && named.contains("F64"), "{error}");
}
