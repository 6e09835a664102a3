//! Embeddings: a small BERT of random weights against exact arithmetic, texts together and alone, and files that are damaged,
//! contradict themselves or are of the other kind.

use kiln::Engine;
use kiln_llm::{EmbeddingModel, EmbeddingOptions, Error, Folder, Model, ModelKind, Pooling};
use serde_json::{Value, json};

use crate::support::random_bert::{Form, PLAIN, POSITIONS, RandomBert, Rows, VOCABULARY, WIDTH};
use crate::support::random_folder::TemporaryFolder;
use crate::support::random_model::{KINDS, LLAMA, RandomModel};
use crate::support::{self, distance};

/// Texts and their tokens, from the shortest to the longest that there are positions for.
fn texts() -> Vec<(String, Vec<u32>)> {
    let mut texts = vec![
        (String::new(), vec![2, 3]),
        ("cafe".into(), vec![2, 6, 3]),
        ("Unable,  CAF\u{c9}\u{4e2d}".into(), vec![2, 4, 5, 7, 6, 8, 3]),
        // Special tokens in a text stay text.
        ("un [SEP]".into(), vec![2, 4, 1, 1, 1, 3]),
    ];
    for n in [13, 14, 15, 29, 30, 31, 34, 35] {
        let words = ["un", "cafe", ",", "\u{4e2d}"];
        let text = (0..n).map(|i| words[(i * 7 + i / 3) % 4]).collect::<Vec<_>>().join(" ");
        let tokens = (0..n).map(|i| [4, 6, 7, 8][(i * 7 + i / 3) % 4]);
        texts.push((text, [2].into_iter().chain(tokens).chain([3]).collect()));
    }
    assert_eq!(texts.last().unwrap().1.len(), POSITIONS);
    texts
}

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

/// A model that is saved, loaded and removed.
fn load<'e>(engine: &'e Engine, model: &RandomBert, name: &str) -> kiln_llm::Result<EmbeddingModel<'e>> {
    let path = model.save(name);
    // Read into memory, so that the file can be deleted.
    let file = kiln_gguf::Model::read(&path).map_err(Error::from);
    std::fs::remove_file(path).unwrap();
    EmbeddingModel::from_gguf(engine, file?)
}

const POOLINGS: [(Pooling, Rows); 3] =
    [(Pooling::Mean, Rows::All), (Pooling::Cls, Rows::First), (Pooling::Last, Rows::Last)];

/// That the embeddings of all texts, in every way of pooling, are those of exact arithmetic.
fn check(model: &mut EmbeddingModel<'_>, random: &RandomBert, name: &str) {
    let texts = texts();
    let all: Vec<&str> = texts.iter().map(|(text, _)| &**text).collect();
    for (pooling, rows) in POOLINGS {
        let options = EmbeddingOptions { pooling: Some(pooling), normalize: false, ..EmbeddingOptions::default() };
        let plain = model.embed_with(&all, options).unwrap();
        let normed = model.embed_with(&all, EmbeddingOptions { normalize: true, ..options }).unwrap();
        for (i, (text, tokens)) in texts.iter().enumerate() {
            assert_eq!(model.tokenizer().encode(text), *tokens, "{text}");
            let expected = random.reference(tokens, rows);
            let length = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            let unit: Vec<f64> = expected.iter().map(|x| x / length).collect();
            // Some fifty roundings of f32 in the same direction.
            let far = distance(&plain[i], &expected).max(distance(&normed[i], &unit));
            assert!(far < 5e-6, "{name}, {pooling:?}, {text:?}: {far:e}");
        }
    }
}

#[test]
fn embeddings_are_those_of_exact_arithmetic() {
    let engine = engine();
    let random = RandomBert::new();
    let mut model = load(&engine, &random, "exact").unwrap();
    assert_eq!((model.dimensions(), model.positions(), model.max_tokens()), (WIDTH, POSITIONS, POSITIONS));
    check(&mut model, &random, "a file");
    assert!(model.embed(&[] as &[&str]).unwrap().is_empty());
    for (name, form) in [
        ("plain", PLAIN),
        ("f16", Form { dtype: "F16", prefix: "bert.", ..PLAIN }),
        ("bf16", Form { dtype: "BF16", greek: true, ..PLAIN }),
        ("greek", Form { greek: true, prefix: "bert.", ..PLAIN }),
    ] {
        let mut random = RandomBert::new();
        random.round(form.dtype);
        let folder = random.save_folder(name, form);
        let mut model = EmbeddingModel::load(&engine, &folder).unwrap();
        assert_eq!((model.max_tokens(), model.pooling()), (POSITIONS, Pooling::Mean));
        check(&mut model, &random, name);
    }
}

/// Tokens do not see those of other texts, nor those that fill texts up.
#[test]
fn texts_together_have_the_embeddings_of_texts_alone() {
    let engine = engine();
    let mut model = load(&engine, &RandomBert::new(), "together").unwrap();
    let texts = texts();
    // More texts than are computed at once, of all lengths in turn.
    let many: Vec<&str> = (0..300).map(|i| &*texts[(i * 5 + i / 12) % texts.len()].0).collect();
    let together = model.embed(&many).unwrap();
    let mut alone = std::collections::HashMap::new();
    for (text, _) in &texts {
        alone.insert(&**text, model.embed(&[text]).unwrap().remove(0));
    }
    for (text, found) in many.iter().zip(&together) {
        let expected: Vec<f64> = alone[text].iter().map(|&x| f64::from(x)).collect();
        // Sums in another order; the largest element of a vector of 24 elements and length 1 is at least 0.2.
        assert!(distance(found, &expected) < 2e-6, "{text:?}");
    }
    // The order of texts and earlier computations have no effect.
    let mut reversed = many.clone();
    reversed.reverse();
    let mut again = model.embed(&reversed).unwrap();
    again.reverse();
    for (a, b) in again.iter().zip(&together) {
        let expected: Vec<f64> = b.iter().map(|&x| f64::from(x)).collect();
        assert!(distance(a, &expected) < 2e-6);
    }
}

#[test]
fn texts_that_are_too_long_are_errors_or_truncated() {
    let engine = engine();
    let random = RandomBert::new();
    let mut model = load(&engine, &random, "lengths").unwrap();
    let text = |words: usize| vec!["cafe"; words].join(" ");
    let long = [text(3), text(POSITIONS - 1)];
    let error = model.embed(&long).unwrap_err();
    assert!(matches!(error, Error::TextLength { text: 1, tokens: 38, most: POSITIONS }), "{error}");
    let cut = EmbeddingOptions { truncate: true, ..EmbeddingOptions::default() };
    let found = model.embed_with(&long, cut).unwrap();
    assert_eq!(found, model.embed(&[text(3), text(POSITIONS - 2)]).unwrap());
    // The token after the text is kept.
    let cut = EmbeddingOptions { max_tokens: Some(4), pooling: Some(Pooling::Last), normalize: false, ..cut };
    let found = model.embed_with(&["un able, cafe"], cut).unwrap();
    assert!(distance(&found[0], &random.reference(&[2, 4, 1, 3], Rows::Last)) < 5e-6);
    let error = model.embed_with(&long, EmbeddingOptions { truncate: false, ..cut }).unwrap_err();
    assert!(matches!(error, Error::TextLength { text: 0, tokens: 5, most: 4 }), "{error}");
    for most in [0, 2, POSITIONS + 1, usize::MAX] {
        let error = model.embed_with(&["un"], EmbeddingOptions { max_tokens: Some(most), ..cut }).unwrap_err();
        assert!(matches!(&error, Error::Model { what: "max_tokens", .. }), "{error}");
    }
    // A tokenizer that adds no tokens to a text.
    let folder = random.save_folder("no-special", PLAIN);
    folder.change("tokenizer.json", |json| json["post_processor"] = Value::Null);
    let mut model = EmbeddingModel::load(&engine, &folder).unwrap();
    let error = model.embed(&["un", " "]).unwrap_err();
    assert!(matches!(error, Error::TextLength { text: 1, tokens: 0, .. }), "{error}");
    let found = model.embed_with(&["unable"], EmbeddingOptions { normalize: false, ..Default::default() }).unwrap();
    assert!(distance(&found[0], &random.reference(&[4, 5], Rows::All)) < 5e-6);
}

#[test]
fn files_say_how_texts_become_embeddings() {
    let engine = engine();
    for (number, expected) in [(0u32, Pooling::Mean), (1, Pooling::Mean), (2, Pooling::Cls), (3, Pooling::Last)] {
        let model = load(&engine, &RandomBert::new().with("bert.pooling_type", number), "pooling").unwrap();
        assert_eq!(model.pooling(), expected);
    }
    let random = RandomBert::new();
    let folder = random.save_folder("sentences", PLAIN);
    let pool = |path: &str, config: &Value| {
        std::fs::create_dir_all(folder.0.join(path)).unwrap();
        folder.write(&format!("{path}/config.json"), config.to_string());
    };
    let pooling = || EmbeddingModel::load(&engine, &folder).map(|model| model.pooling());
    // Without modules.json, at the location of the first releases.
    pool("1_Pooling", &json!({"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": true}));
    assert_eq!(pooling().unwrap(), Pooling::Cls);
    let module = |kind: &str, path: &str| json!({"idx": 0, "name": "0", "path": path, "type": kind});
    let transformer = || module("sentence_transformers.models.Transformer", "");
    let modules = |rest: Vec<Value>| {
        let all: Vec<Value> = [transformer()].into_iter().chain(rest).collect();
        folder.write("modules.json", json!(all).to_string());
    };
    let pooled = || module("sentence_transformers.models.Pooling", "3_Pool");
    let normalize = || module("sentence_transformers.models.Normalize", "2_Normalize");
    modules(vec![pooled(), normalize()]);
    for (config, expected) in [
        (json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}), Pooling::Mean),
        (json!({"pooling_mode_cls_token": true, "include_prompt": true}), Pooling::Cls),
        (json!({"pooling_mode_lasttoken": true}), Pooling::Last),
        (json!({"embedding_dimension": WIDTH, "pooling_mode": "cls"}), Pooling::Cls),
        (json!({"pooling_mode": ["lasttoken"]}), Pooling::Last),
    ] {
        pool("3_Pool", &config);
        assert_eq!(pooling().unwrap(), expected, "{config}");
    }
    for (config, found) in [
        (json!({"pooling_mode_max_tokens": true}), "max"),
        (json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}), "[\"mean\", \"cls\"]"),
        (json!({"pooling_mode": ["mean", 7]}), "mean"),
        (json!({"pooling_mode": 7}), "a string"),
        (json!({"pooling_mode_mean_tokens": "yes"}), "true or false"),
        (json!({}), "[]"),
        (json!([]), "an object"),
    ] {
        pool("3_Pool", &config);
        let error = pooling().unwrap_err();
        let named = matches!(&error, Error::Folder { path, .. } if path.ends_with("3_Pool/config.json"));
        assert!(named && error.to_string().contains(found), "{config}: {error}");
    }
    std::fs::remove_dir_all(folder.0.join("3_Pool")).unwrap();
    assert!(matches!(pooling(), Err(Error::Folder { .. })));
    // A list without a pooling module means the mean.
    modules(vec![normalize()]);
    assert_eq!(pooling().unwrap(), Pooling::Mean);
    for wrong in [
        module("sentence_transformers.models.Dense", "2_Dense"),
        module("sentence_transformers.models.Transformer", "0_Transformer"),
        module("sentence_transformers.models.Pooling", "../1_Pooling"),
        module("\u{1b}", ""),
        json!({"type": "sentence_transformers.models.Pooling"}),
        json!({"path": ""}),
        json!(7),
    ] {
        modules(vec![wrong.clone()]);
        let error = pooling().unwrap_err();
        assert!(matches!(&error, Error::Folder { path, .. } if path.ends_with("modules.json")), "{wrong}: {error}");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }
    modules(vec![pooled(), pooled()]);
    assert!(matches!(pooling(), Err(Error::Folder { .. })));
    folder.write("modules.json", "{}");
    assert!(matches!(pooling(), Err(Error::Folder { .. })));
    std::fs::remove_file(folder.0.join("modules.json")).unwrap();

    let most = || EmbeddingModel::load(&engine, &folder).unwrap().max_tokens();
    folder.write("tokenizer_config.json", json!({"model_max_length": 1e30}).to_string());
    assert_eq!(most(), POSITIONS);
    folder.write("tokenizer_config.json", json!({"model_max_length": 20}).to_string());
    assert_eq!(most(), 20);
    folder.write("sentence_bert_config.json", json!({"max_seq_length": null, "do_lower_case": false}).to_string());
    assert_eq!(most(), 20);
    folder.write("sentence_bert_config.json", json!({"max_seq_length": 999}).to_string());
    assert_eq!(most(), POSITIONS);
    folder.write("sentence_bert_config.json", json!({"max_seq_length": 5, "do_lower_case": true}).to_string());
    assert_eq!(most(), 5);
    // A tokenizer that keeps upper case, and a text longer than the files allow.
    folder.change("tokenizer.json", |json| json["normalizer"]["lowercase"] = false.into());
    let mut model = EmbeddingModel::load(&engine, &folder).unwrap();
    let options =
        EmbeddingOptions { max_tokens: Some(6), pooling: Some(Pooling::Mean), normalize: false, truncate: false };
    let found = model.embed_with(&["UNable, Cafe"], options).unwrap();
    assert!(distance(&found[0], &random.reference(&[2, 4, 5, 7, 6, 3], Rows::All)) < 5e-6);
    assert!(matches!(model.embed(&["unable, cafe"]), Err(Error::TextLength { tokens: 6, most: 5, .. })));
    folder.write("sentence_bert_config.json", json!({"max_seq_length": 0}).to_string());
    assert!(matches!(EmbeddingModel::load(&engine, &folder), Err(Error::Folder { .. })));
}

#[test]
fn models_of_the_other_kind_are_named() {
    let engine = engine();
    let bert = RandomBert::new();
    let (encoder, decoder) = (bert.save("kind-encoder"), RandomModel::new(KINDS[0]).save("kind-decoder"));
    let error = Model::load(&engine, &encoder).unwrap_err();
    assert!(matches!(error, Error::NotADecoder { architecture: "bert" }), "{error}");
    let error = EmbeddingModel::load(&engine, &decoder).unwrap_err();
    assert!(
        matches!(&error, Error::NotAnEncoder { architecture: "llama", supported } if supported == "bert"),
        "{error}"
    );
    let kind = |path| ModelKind::of_gguf(kiln_gguf::Model::open(path).unwrap().metadata());
    assert_eq!((kind(&encoder).unwrap(), kind(&decoder).unwrap()), (ModelKind::Encoder, ModelKind::Decoder));
    for path in [encoder, decoder] {
        std::fs::remove_file(path).unwrap();
    }
    let folder = bert.save_folder("kind-encoder", PLAIN);
    assert!(matches!(Model::load(&engine, &folder), Err(Error::NotADecoder { architecture: "bert" })));
    assert_eq!(Folder::open(&folder).unwrap().kind().unwrap(), ModelKind::Encoder);
    let random = RandomModel::new(LLAMA);
    let form = support::random_folder::PLAIN;
    let folder = random.save_folder("kind-decoder", &random.config("mistral", json!({})), form);
    assert!(matches!(EmbeddingModel::load(&engine, &folder), Err(Error::NotAnEncoder { architecture: "llama", .. })));
    assert_eq!(Folder::open(&folder).unwrap().kind().unwrap(), ModelKind::Decoder);
    folder.change("config.json", |config| config["model_type"] = "gpt-x\u{1b}".into());
    let error = Folder::open(&folder).unwrap().kind().unwrap_err();
    let names = |supported: &str| supported.contains("gemma3_text") && supported.contains("bert");
    assert!(matches!(&error, Error::UnsupportedArchitecture { supported, .. } if names(supported)), "{error}");
    assert!(!error.to_string().contains('\u{1b}'), "{error}");
    let error = EmbeddingModel::load(&engine, &folder).unwrap_err();
    assert!(matches!(&error, Error::UnsupportedArchitecture { supported, .. } if supported == "bert"), "{error}");
    let unknown = RandomBert::new().with("general.architecture", "nomic-bert");
    let error = load(&engine, &unknown, "kind-unknown").unwrap_err();
    assert!(matches!(&error, Error::UnsupportedArchitecture { supported, .. } if supported == "bert"), "{error}");
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let engine = engine();
    let wrong = |model: RandomBert| load(&engine, &model, "wrong").unwrap_err();
    let names: Vec<String> = RandomBert::new().tensors.into_iter().map(|(name, ..)| name).collect();
    for name in &names {
        let mut lacking = RandomBert::new();
        lacking.tensors.retain(|(known, ..)| known != name);
        let error = wrong(lacking);
        assert!(
            matches!(&error, Error::File(kiln_gguf::Error::MissingTensor { name: found }) if found == name),
            "{error}"
        );
        // One row or one element too many.
        let mut larger = RandomBert::new();
        let (_, dims, data) = larger.tensor(name);
        data.extend(vec![0.0; data.len() / dims[0]]);
        dims[0] += 1;
        match (&**name, load(&engine, &larger, "larger")) {
            // There may be more rows than tokens, and more than one type.
            ("token_embd.weight" | "token_types.weight", Ok(_)) => {}
            (_, Err(Error::Model { reason, .. })) if reason.contains(name) => {}
            (_, found) => panic!("{name}: {:?}", found.map(drop)),
        }
    }
    let mut few = RandomBert::new();
    let (_, dims, data) = few.tensor("token_embd.weight");
    dims[0] = 8;
    data.truncate(8 * WIDTH);
    assert!(matches!(wrong(few), Error::Model { what: "the vocabulary", .. }));
    let mut more = RandomBert::new();
    more.tensors.push(("cls.weight".into(), vec![WIDTH, WIDTH], vec![0.0; WIDTH * WIDTH]));
    let error = wrong(more);
    assert!(matches!(&error, Error::Model { reason, .. } if reason.contains("cls.weight")), "{error}");
    for (key, value) in [
        ("bert.block_count", 0u32),
        ("bert.block_count", 513),
        ("bert.block_count", u32::MAX),
        ("bert.context_length", 0),
        ("bert.context_length", u32::MAX),
        ("bert.embedding_length", 0),
        ("bert.embedding_length", 23),
        ("bert.embedding_length", u32::MAX),
        ("bert.feed_forward_length", 0),
        ("bert.feed_forward_length", u32::MAX),
        ("bert.attention.head_count", 0),
        ("bert.attention.head_count", 5),
        ("bert.attention.head_count", u32::MAX),
        ("bert.attention.head_count_kv", 2),
        ("bert.attention.key_length", 8),
        ("bert.attention.value_length", 8),
        ("bert.pooling_type", 4),
        ("bert.pooling_type", 5),
    ] {
        let error = wrong(RandomBert::new().with(key, value));
        assert!(matches!(error, Error::Model { .. }), "{key} = {value}: {error}");
    }
    for eps in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
        let error = wrong(RandomBert::new().with("bert.attention.layer_norm_epsilon", eps));
        assert!(matches!(error, Error::Model { .. }), "{eps}: {error}");
    }
    assert!(matches!(wrong(RandomBert::new().with("bert.attention.causal", true)), Error::Model { .. }));
    let text = wrong(RandomBert::new().with("bert.block_count", "three"));
    assert!(matches!(text, Error::File(kiln_gguf::Error::Value { .. })), "{text}");
    for value in [f32::NAN, f32::INFINITY] {
        let mut damaged = RandomBert::new();
        damaged.tensor("blk.2.ffn_down.weight").2[5] = value;
        let mut model = load(&engine, &damaged, "damaged").unwrap();
        let error = model.embed(&["un", "cafe"]).unwrap_err();
        assert!(matches!(error, Error::NotFinite { text: 0 }), "{error}");
    }
}

/// What is wrong with a folder once it is changed.
fn wrong_folder(change: impl FnOnce(&TemporaryFolder)) -> Error {
    let folder = RandomBert::new().save_folder("wrong", PLAIN);
    change(&folder);
    EmbeddingModel::load(&engine(), &folder).unwrap_err()
}

#[test]
fn folders_that_contradict_themselves_are_refused() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!("24")),
        ("hidden_size", json!(null)),
        ("num_hidden_layers", json!(-1)),
        ("max_position_embeddings", json!(u64::MAX)),
        ("layer_norm_eps", json!(0.0)),
        ("layer_norm_eps", json!(1e300)),
        ("vocab_size", json!(VOCABULARY + 1)),
        ("hidden_act", json!("gelu_new")),
        ("hidden_act", json!("\u{1b}")),
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("quantization_config", json!({})),
        ("model_type", json!(null)),
    ] {
        let error = wrong_folder(|folder| folder.change("config.json", |config| config[key] = value.clone()));
        let named = matches!(&error, Error::Folder { path, .. } if path.ends_with("config.json"));
        assert!(named && !error.to_string().contains('\u{1b}'), "{key} = {value}: {error}");
    }
    for (key, value) in [
        ("hidden_size", 28),
        ("intermediate_size", 41),
        ("num_hidden_layers", 2),
        ("num_hidden_layers", 513),
        ("num_attention_heads", 5),
        ("max_position_embeddings", 38),
    ] {
        let error = wrong_folder(|folder| folder.change("config.json", |config| config[key] = value.into()));
        assert!(matches!(error, Error::Model { .. }), "{key} = {value}: {error}");
    }
    let error = wrong_folder(|folder| folder.change("config.json", |config| config["num_hidden_layers"] = 4.into()));
    let missing = "encoder.layer.3.attention.self.query.weight";
    assert!(matches!(&error, Error::File(kiln_gguf::Error::MissingTensor { name }) if name == missing), "{error}");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let error = wrong_folder(|folder| std::fs::remove_file(folder.0.join(file)).unwrap());
        assert!(matches!(&error, Error::Folder { .. }) && error.to_string().contains(file), "{error}");
    }
    for file in ["modules.json", "sentence_bert_config.json", "tokenizer_config.json"] {
        for bytes in [&b"{"[..], b"7", b"\xff"] {
            let error = wrong_folder(|folder| folder.write(file, bytes));
            assert!(matches!(&error, Error::Folder { path, .. } if path.ends_with(file)), "{file}: {error}");
        }
    }
    // A ranking head of a cross-encoder, which embeddings would silently ignore.
    let mut random = RandomBert::new();
    random.tensors.push(("classifier.weight".into(), vec![1, WIDTH], vec![0.0; WIDTH]));
    let folder = random.save_folder("classifier", PLAIN);
    let error = EmbeddingModel::load(&engine(), &folder).unwrap_err();
    assert!(matches!(&error, Error::Model { reason, .. } if reason.contains("classifier.weight")), "{error}");
}
