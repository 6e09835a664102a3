//! Translates a `config.json` to the keys of a GGUF file, so that the same code reads models of both kinds.

use std::f64::consts::TAU;
use std::path::Path;

use serde_json::Value;

use super::families::{self, Family, GPT_OSS_GATE, GPT_OSS_ROPE, Mixture, Windows};
use super::keys::{Keys, Object};
use super::names::ExpertNames;
use crate::architecture::{Architecture, WindowRope};
use crate::config::MOST_LAYERS;
use crate::{Error, Result};

/// Maximum number of elements of a head: more than any model has, because factors are computed for them before the
/// weights are read.
const MOST_HEAD: usize = 1 << 16;

/// The translation of a `config.json`.
#[derive(Debug)]
pub(super) struct Translated {
    /// The names of the tensors of mixtures.
    pub(super) experts: Option<ExpertNames>,
    /// A GGUF file that contains only metadata.
    pub(super) metadata: Vec<u8>,
    pub(super) vocabulary: Option<usize>,
    /// Whether the embedding is the head.
    pub(super) tied: bool,
    /// Whether norms multiply by 1 + w.
    pub(super) plus_one: bool,
    /// Whether each layer rotates queries and keys, if the file states it.
    pub(super) rotates: Option<Vec<bool>>,
    /// The divisors of angles, by their names in GGUF files.
    pub(super) divisors: Vec<(&'static str, Vec<f32>)>,
}

/// Translates the `config.json` of a decoder.
///
/// # Errors
/// [`Error::NotADecoder`] and [`Error::UnsupportedArchitecture`] for the `model_type` of an unsupported decoder;
/// [`Error::Folder`] for keys that are missing, of another type, or request unsupported features.
pub(super) fn translate(path: &Path, json: &Value) -> Result<Translated> {
    let outer = Object::of(path, json)?;
    let model_type = outer.needed("model_type", outer.text("model_type")?)?;
    let family = families::decoder(model_type).ok_or_else(|| match families::encoder(model_type) {
        Some(architecture) => Error::NotADecoder { architecture },
        None => Error::unsupported_architecture(model_type, families::decoders()),
    })?;
    // Models of texts and images have the decoder's keys in a nested object.
    let config =
        if model_type == "gemma3" { outer.needed("text_config", outer.object("text_config")?)? } else { outer };
    refuse_what_is_not_computed(&outer, &config, family)?;

    let mut keys = Keys::new(family.architecture)?;
    let count = |name: &str, default: Option<u32>| config.needed(name, config.count(name)?.or(default));
    let layers = count("num_hidden_layers", None)?;
    if layers as usize > MOST_LAYERS {
        return Err(config.wrong(format!("num_hidden_layers is {layers}, at most {MOST_LAYERS} are expected")));
    }
    let (width, context) = (count("hidden_size", None)?, count("max_position_embeddings", family.sizes.map(|n| n[2]))?);
    let heads = count("num_attention_heads", family.sizes.map(|n| n[0]))?;
    let kv_heads = count("num_key_value_heads", family.sizes.map(|n| n[1]).or(Some(heads)))?;
    let own = config.count("head_dim")?.or(if config.values.contains_key("head_dim") { None } else { family.head });
    if own.is_none() && !width.is_multiple_of(heads) {
        return Err(
            config.wrong(format!("{heads} heads do not share a width of {width} evenly, and head_dim is missing"))
        );
    }
    let head = own.unwrap_or(width / heads);
    if head as usize > MOST_HEAD {
        return Err(config.wrong(format!("heads of {head} elements; at most {MOST_HEAD} are expected")));
    }
    keys.set("block_count", &layers)?;
    keys.set("context_length", &context)?;
    keys.set("embedding_length", &width)?;
    keys.set("feed_forward_length", &count("intermediate_size", None)?)?;
    keys.set("attention.head_count", &heads)?;
    keys.set("attention.head_count_kv", &kv_heads)?;
    keys.set("attention.key_length", &head)?;
    keys.set("attention.value_length", &head)?;
    let eps = config.positive("rms_norm_eps")?.unwrap_or(family.eps);
    keys.number("attention.layer_norm_rms_epsilon", eps)?;
    if family.is_gemma {
        let scalar = config.positive("query_pre_attn_scalar")?.unwrap_or(256.0);
        keys.number("attention.scale", 1.0 / scalar.sqrt())?;
        let names = ["attn_logit_softcapping", "final_logit_softcapping"];
        for (name, default) in names.into_iter().zip(family.caps) {
            let cap = match config.positive(name)? {
                Some(cap) => cap as f32,
                // Null means no cap.
                None if config.values.contains_key(name) => 0.0,
                None => default.unwrap_or(0.0),
            };
            keys.set(name, &cap)?;
        }
    }
    if family.has_multipliers {
        for (name, theirs) in [
            ("embedding_scale", "embedding_multiplier"),
            ("attention.scale", "attention_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ] {
            keys.number(name, config.positive(theirs)?.unwrap_or(1.0))?;
        }
    }
    experts(&config, family, &mut keys)?;
    windows(&config, family, layers as usize, &mut keys)?;
    let divisors = rotations(&config, family, head, context, &mut keys)?;

    let rotates = match family.has_no_rope_layers {
        false => None,
        true => {
            // 1 marks layers that rotate.
            let read = |value: &Value| value.as_u64().filter(|&n| n <= 1).map(|n| n == 1);
            let each = config.list("no_rope_layers", "a list of 0 and 1", read)?;
            let interval = config.count("no_rope_layer_interval")?.unwrap_or(4);
            let each = each.unwrap_or_else(|| (1..=layers).map(|i| !i.is_multiple_of(interval)).collect());
            if each.len() != layers as usize {
                return Err(config.wrong(format!("no_rope_layers names {} layers of {layers}", each.len())));
            }
            Some(each)
        }
    };
    let tied = match config.truth("tie_word_embeddings")? {
        None => outer.truth("tie_word_embeddings")?.unwrap_or(family.tied),
        Some(tied) => tied,
    };
    let vocabulary = config.count("vocab_size")?.map(|n| n as usize);
    let experts = match family.mixture {
        Mixture::None => None,
        Mixture::Mixtral => Some(ExpertNames::MIXTRAL),
        Mixture::Qwen3 => Some(ExpertNames::QWEN3_MOE),
        Mixture::GptOss => Some(ExpertNames::GPT_OSS),
    };
    let (metadata, plus_one) = (keys.into_file(), family.is_gemma);
    Ok(Translated { metadata, vocabulary, tied, plus_one, rotates, divisors, experts })
}

fn refuse_what_is_not_computed(outer: &Object<'_>, config: &Object<'_>, family: &Family) -> Result<()> {
    if family.mixture == Mixture::GptOss {
        let quantised = outer.object("quantization_config")?.map(|how| how.text("quant_method")).transpose()?.flatten();
        if quantised != Some("mxfp4") {
            outer.refuse_quantised()?;
        }
        for (name, computed) in GPT_OSS_GATE {
            if let Some(found) = config.number(name)?.filter(|&found| found != computed) {
                return Err(config.wrong(format!("{name} is {found}, {computed} is supported")));
            }
        }
    } else {
        outer.refuse_quantised()?;
    }
    if config.truth("use_bidirectional_attention")? == Some(true) {
        return Err(config.wrong("use_bidirectional_attention: attention to later tokens is not supported".to_owned()));
    }
    if let Some(kind @ "nope") = config.text("position_embedding_type")? {
        return Err(config.wrong(format!("position_embedding_type {kind} is not supported")));
    }
    let (names, expected) = match family.is_gemma {
        true => (&["hidden_activation", "hidden_act"][..], "gelu_pytorch_tanh"),
        false => (&["hidden_act"][..], "silu"),
    };
    // The first wins.
    for name in names {
        match config.text(name)? {
            None => {}
            Some(found) if found == expected => break,
            Some(found) => {
                let found = found.escape_debug();
                return Err(
                    config.wrong(format!("{name} is {found}, {expected} is supported for {}", family.model_type))
                );
            }
        }
    }
    Ok(())
}

/// Writes the number of experts, and how they are selected.
fn experts(config: &Object<'_>, family: &Family, keys: &mut Keys) -> Result<()> {
    let (count, used) = match family.mixture {
        Mixture::None => return Ok(()),
        Mixture::Mixtral => (8, 2),
        Mixture::Qwen3 => (128, 8),
        Mixture::GptOss => (128, 4),
    };
    // Both have two names: newer files use the first.
    let found = match config.count("num_local_experts")? {
        None => config.count("num_experts")?,
        found => found,
    };
    keys.set("expert_count", &found.unwrap_or(count))?;
    keys.set("expert_used_count", &config.count("num_experts_per_tok")?.unwrap_or(used))?;
    if family.mixture == Mixture::Qwen3 {
        keys.set("expert_feed_forward_length", &config.count("moe_intermediate_size")?.unwrap_or(768))?;
        keys.set("expert_weights_norm", &config.truth("norm_topk_prob")?.unwrap_or(false))?;
        let dense =
            config.list("mlp_only_layers", "a list of layers", Value::as_u64)?.is_some_and(|all| !all.is_empty());
        if dense || config.count("decoder_sparse_step")?.is_some_and(|step| step != 1) {
            let reason = "mlp_only_layers, decoder_sparse_step: layers without experts beside others are not supported";
            return Err(config.wrong(reason.to_owned()));
        }
    }
    Ok(())
}

/// Writes which layers have a window.
fn windows(config: &Object<'_>, family: &Family, layers: usize, keys: &mut Keys) -> Result<()> {
    let is_said = config.values.contains_key("sliding_window");
    let found = config.whole("sliding_window")?;
    let window = match family.windows {
        Windows::None => return Ok(()),
        Windows::Switched | Windows::SwitchedAll(_) if config.truth("use_sliding_window")? != Some(true) => {
            return Ok(());
        }
        Windows::Switched => found,
        Windows::All(default) => {
            if is_said {
                found
            } else {
                default
            }
        }
        Windows::Pattern(_, default) | Windows::SwitchedAll(default) => {
            if is_said {
                found
            } else {
                Some(default)
            }
        }
    };
    keys.set("attention.sliding_window", &window.unwrap_or(0))?;
    if window.is_none_or(|window| window == 0) {
        return Ok(());
    }
    let read = |value: &Value| match value.as_str()? {
        "sliding_attention" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    };
    let each = config.list("layer_types", "a list of full_attention and sliding_attention", read)?;
    let each = match (each, family.windows) {
        (Some(each), _) => each,
        (None, Windows::Switched) => {
            let first = config.needed("max_window_layers", config.whole("max_window_layers")?)? as usize;
            (0..layers).map(|i| i >= first).collect()
        }
        (None, Windows::Pattern(n, _)) => {
            let n = match config.count("sliding_window_pattern")? {
                None => config.count("_sliding_window_pattern")?.map_or(n, |n| n as usize),
                Some(n) => n as usize,
            };
            (0..layers).map(|i| i % n != n - 1).collect()
        }
        (None, _) => vec![true; layers],
    };
    if each.len() != layers {
        return Err(config.wrong(format!("layer_types names {} layers of {layers}", each.len())));
    }
    keys.set("attention.sliding_window_pattern", &each)
}

/// The scaling type in an object of the configuration; `default` without one.
fn kind_of<'a>(rope: Option<Object<'a>>) -> Result<&'a str> {
    let Some(rope) = rope else { return Ok("default") };
    Ok(match rope.text("rope_type")? {
        None => rope.text("type")?.unwrap_or("default"),
        Some(kind) => kind,
    })
}

/// Writes the rotations of queries and keys, and returns the divisors that GGUF files contain as tensors.
fn rotations(
    config: &Object<'_>,
    family: &Family,
    head: u32,
    context: u32,
    keys: &mut Keys,
) -> Result<Vec<(&'static str, Vec<f32>)>> {
    // `rope_parameters` since transformers 5, by layer type if the types differ.
    let mut rope = match config.object("rope_parameters")? {
        None => config.object("rope_scaling")?,
        rope => rope,
    };
    if family.mixture == Mixture::GptOss && rope.is_none() {
        rope = Some(Object { values: &GPT_OSS_ROPE, ..*config });
    }
    let mut local = None;
    if let Some(both) = rope
        && ["full_attention", "sliding_attention"].iter().any(|name| both.get(name).is_some())
    {
        rope = Some(both.needed("full_attention", both.object("full_attention")?)?);
        local = both.object("sliding_attention")?;
    }
    let of = |rope: Option<Object<'_>>, name: &str| match rope {
        Some(rope) => rope.positive(name),
        None => Ok(None),
    };
    let theta = match of(rope, "rope_theta")? {
        None => config.positive("rope_theta")?.unwrap_or(family.theta),
        Some(theta) => theta,
    };
    keys.number("rope.freq_base", theta)?;
    let local_theta = of(local, "rope_theta")?;
    let windows_rotate = Architecture::find(family.architecture)?.windows.rope;
    match family.windows {
        Windows::Pattern(..) if windows_rotate != WindowRope::Same => {
            let found = kind_of(local)?;
            if found != "default" {
                let found = found.escape_debug();
                return Err(
                    config.wrong(format!("positions scaled by {found} in layers with a window are not supported"))
                );
            }
            let default =
                if family.is_gemma { config.positive("rope_local_base_freq")?.unwrap_or(10_000.0) } else { theta };
            keys.number("rope.freq_base_swa", local_theta.unwrap_or(default))?;
        }
        _ if local.is_some_and(|local| Some(local.values) != rope.map(|rope| rope.values)) => {
            return Err(config.wrong("rope_parameters that differ between layers are not supported".to_owned()));
        }
        _ => {}
    }
    let part = match of(rope, "partial_rotary_factor")? {
        None => config.positive("partial_rotary_factor")?.unwrap_or(1.0),
        Some(part) => part,
    };
    let rotated = (f64::from(head) * part.min(2.0)) as u32;
    if rotated > head {
        return Err(config.wrong(format!("partial_rotary_factor is {part}, at most 1 is expected")));
    }
    keys.set("rope.dimension_count", &rotated)?;

    let kind = kind_of(rope)?;
    // Without an object there is no scaling.
    let (Some(rope), false) = (rope, kind == "default") else {
        keys.set("rope.scaling.type", &"none")?;
        return Ok(Vec::new());
    };
    let needed = |name: &str| rope.needed(name, rope.positive(name)?);
    let outer_original = config.count("original_max_position_embeddings")?;
    let original = match rope.count("original_max_position_embeddings")? {
        None => outer_original,
        original => original,
    };
    let grown = |original: u32| f64::from(context) / f64::from(original);
    let pairs = (rotated / 2) as usize;
    match kind {
        "linear" => {
            keys.set("rope.scaling.type", &kind)?;
            keys.number("rope.scaling.factor", needed("factor")?)?;
            Ok(Vec::new())
        }
        "llama3" => {
            keys.set("rope.scaling.type", &"none")?;
            let (factor, low, high) = (needed("factor")?, needed("low_freq_factor")?, needed("high_freq_factor")?);
            let original = f64::from(rope.needed("original_max_position_embeddings", original)?);
            if low >= high {
                return Err(
                    rope.wrong(format!("low_freq_factor is {low}, which is not below high_freq_factor, {high}"))
                );
            }
            let divisor = |i: usize| {
                let turns = original / (TAU * theta.powf(2.0 * i as f64 / f64::from(rotated)));
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - kept) / factor + kept)) as f32
            };
            Ok(vec![("rope_freqs.weight", (0..pairs).map(divisor).collect())])
        }
        "yarn" => {
            keys.set("rope.scaling.type", &kind)?;
            let original = original.unwrap_or(context);
            let factor = rope.positive("factor")?.unwrap_or(grown(original));
            keys.number("rope.scaling.factor", factor)?;
            keys.set("rope.scaling.original_context_length", &original)?;
            for (name, theirs) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(turns) = rope.positive(theirs)? {
                    keys.number(&format!("rope.scaling.{name}"), turns)?;
                }
            }
            keys.set("rope.scaling.yarn_truncate", &rope.truth("truncate")?.unwrap_or(true))?;
            let by = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
            // Zero counts as missing.
            let scale = |name: &str| Ok::<_, Error>(rope.number(name)?.filter(|&scale| scale != 0.0));
            let magnitude = match (rope.positive("attention_factor")?, scale("mscale")?, scale("mscale_all_dim")?) {
                (Some(magnitude), ..) => magnitude,
                (None, Some(scale), Some(all)) => by(scale) / by(all),
                (None, ..) => by(1.0),
            };
            keys.number("rope.scaling.yarn_attn_factor", magnitude)?;
            Ok(Vec::new())
        }
        // `su` is the name in files of 2024.
        "longrope" | "su" => {
            keys.set("rope.scaling.type", &"longrope")?;
            if let Some(name) = ["short_mscale", "long_mscale"].iter().find(|name| rope.get(name).is_some()) {
                return Err(rope.wrong(format!("{name}: magnitudes by context are not supported")));
            }
            let (original, factor) = match (outer_original, original) {
                (Some(original), _) => (original, grown(original)),
                (None, original) => {
                    let original = original.unwrap_or(context);
                    (original, rope.positive("factor")?.unwrap_or(grown(original)))
                }
            };
            let magnitude = match rope.positive("attention_factor")? {
                Some(magnitude) => magnitude,
                None if factor <= 1.0 || original == 1 => 1.0,
                None => (1.0 + factor.ln() / f64::from(original).ln()).sqrt(),
            };
            keys.set("rope.scaling.original_context_length", &original)?;
            keys.number("rope.scaling.attn_factor", magnitude)?;
            let read = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_normal() && *x > 0.0);
            let names = [("rope_factors_short.weight", "short_factor"), ("rope_factors_long.weight", "long_factor")];
            let lists = names.into_iter().map(|(name, theirs)| {
                let factors = rope.needed(theirs, rope.list(theirs, "a list of positive numbers", read)?)?;
                if factors.len() != pairs {
                    return Err(rope.wrong(format!("{theirs} has {} numbers, {pairs} are expected", factors.len())));
                }
                Ok((name, factors))
            });
            lists.collect()
        }
        other => Err(rope.wrong(format!("positions scaled by {} are not supported", other.escape_debug()))),
    }
}

#[cfg(test)]
mod tests {
    use kiln_gguf::Gguf;
    use serde_json::json;

    use super::super::families::DECODERS;
    use super::*;
    use crate::config::Config;

    fn translated(json: &Value) -> Result<Translated> {
        translate(Path::new("config.json"), json)
    }

    /// Like files of Gemma 3 with images, which omit most keys.
    #[test]
    fn keys_that_are_missing_have_the_defaults_of_transformers() {
        let json = json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
            "intermediate_size": 10240, "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024}});
        let found = translated(&json).unwrap();
        assert!(found.tied && found.plus_one && found.vocabulary.is_none() && found.divisors.is_empty());
        let config = Config::read(Gguf::parse(&found.metadata).unwrap().metadata(), 262_208).unwrap();
        assert_eq!((config.heads, config.kv_heads, config.head, config.rotated), (8, 4, 256, 256));
        assert_eq!((config.eps, config.context, config.scales.scores), (1e-6, 131_072, 0.0625));
        assert_eq!(config.rotations.iter().map(|rotation| rotation.theta).collect::<Vec<_>>(), [1e6, 1e4]);
        let windows: Vec<_> = config.layers.iter().take(7).map(|layer| layer.window).collect();
        let window = Some(1024);
        assert_eq!(windows, [window, window, window, window, window, None, window]);
        assert_eq!((config.caps.scores, config.caps.logits), (None, None));
    }

    #[test]
    fn mutated_configurations_give_errors_or_numbers() {
        let rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "beta_fast": 32, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 1e4,
            "attention_factor": 1.0, "short_factor": [1.0, 2.0], "long_factor": [1.0, 2.0]});
        let whole = json!({"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "vocab_size": 12, "tie_word_embeddings": true, "sliding_window": 3,
            "use_sliding_window": true, "max_window_layers": 1, "layer_types": (["full_attention"; 3]),
            "sliding_window_pattern": 2, "no_rope_layers": [1, 0, 1], "no_rope_layer_interval": 4,
            "query_pre_attn_scalar": 4, "attn_logit_softcapping": 1.0, "embedding_multiplier": 2.0,
            "partial_rotary_factor": 1.0, "original_max_position_embeddings": 32});
        let values = [
            json!(null),
            json!(0),
            json!(1),
            json!(2),
            json!(3),
            json!(-1),
            json!(0.5),
            json!(1e-40),
            json!(1e39),
            json!(1e300),
            json!(65_536),
            json!(u32::MAX),
            json!(u64::MAX),
            json!(true),
            json!("full_attention"),
            json!([]),
            json!([1, 0, 1]),
            json!([1.5, 1e-300]),
            json!({}),
        ];
        let kinds = ["default", "linear", "llama3", "yarn", "longrope", "su", "dynamic"];
        let mut state = 3u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let (mut config, mut rope) = (whole.clone(), rope.clone());
            config["model_type"] = DECODERS[random(DECODERS.len())].model_type.into();
            rope["rope_type"] = kinds[random(kinds.len())].into();
            for object in [&mut config, &mut rope] {
                let object = object.as_object_mut().unwrap();
                for _ in 0..random(3) {
                    let key = object.keys().nth(random(object.len())).unwrap().clone();
                    match random(4) {
                        0 => drop(object.remove(&key)),
                        _ => drop(object.insert(key, values[random(values.len())].clone())),
                    }
                }
            }
            match random(4) {
                0 => {}
                1 => config["rope_scaling"] = rope,
                2 => config["rope_parameters"] = rope,
                _ => {
                    config["rope_parameters"] =
                        json!({"full_attention": rope, "sliding_attention": {"rope_theta": 1e4}})
                }
            }
            if config["model_type"] == "gemma3" {
                config = json!({"model_type": "gemma3", "text_config": config});
            }
            let config = translated(&config).and_then(|found| {
                assert!(found.rotates.as_ref().is_none_or(|each| each.len() <= MOST_LAYERS));
                assert!(found.divisors.iter().flat_map(|(_, all)| all).all(|&by| by.is_finite() && by > 0.0));
                Config::read(Gguf::parse(&found.metadata)?.metadata(), 12)
            });
            match config {
                Ok(config) => {
                    read += 1;
                    assert!(
                        config.rotations.iter().all(|rotation| rotation.theta > 0.0 && rotation.magnitude.is_finite())
                    );
                }
                Err(_) => refused += 1,
            }
        }
        assert!(read > 2000 && refused > 2000, "{read} {refused}");
    }
}
