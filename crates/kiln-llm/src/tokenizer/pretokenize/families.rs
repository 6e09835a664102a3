//! The families of tokenizers, each with its expressions as lists of rules.

use super::rules::{
    afmoe_scripts, any_contraction, any_spaced_letters, any_spaced_punctuation, ascii_punctuation_and_letters,
    bloom_words, cased_letters, cased_letters_but_han, cased_letters_with_contraction, cjk, contraction,
    default_punctuation, falcon_punctuation, halving_spaces, han, image_token, led_letters, led_letters_and_marks,
    led_spaced_letters, letters_led_by_no_punctuation, line_or_newlines, lines, newline, number, numbers,
    one_punctuation, others_with_newlines, others_with_newlines_and_slashes, others_with_one_newline_or_slash,
    others_without_marks, punctuation_and_symbols, punctuation_and_symbols_with_newlines, sentinel,
    spaced_bicameral_letters, spaced_letters, spaced_numbers, spaced_others, spaced_punctuation, spaces,
    spaces_before_last, tab_or_indentation, three_digits, three_numbers, wide, youtu_scripts,
};
use super::stage::Stage;

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
const GPT_2: Stage =
    Stage::Find(&[contraction, spaced_letters, spaced_numbers, spaced_others, spaces_before_last, spaces]);
/// [`GPT_2`] after splitting numbers into digits.
const DIGITS_GPT_2: &[Stage] = &[Stage::Find(&[number]), GPT_2];
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
const LLAMA_3: Stage = Stage::Find(&[
    any_contraction,
    led_letters,
    three_numbers,
    others_with_newlines,
    lines,
    spaces_before_last,
    spaces,
]);
/// [`LLAMA_3`] with single digits.
const QWEN_2: Stage =
    Stage::Find(&[any_contraction, led_letters, number, others_with_newlines, lines, spaces_before_last, spaces]);
/// The last expression of DeepSeek-V3.
const DEEPSEEK_3: Stage = Stage::Find(&[
    ascii_punctuation_and_letters,
    letters_led_by_no_punctuation,
    punctuation_and_symbols_with_newlines,
    lines,
    spaces_before_last,
    spaces,
]);
/// That of GPT-4o.
const GPT_4O: Stage = Stage::Find(&[
    cased_letters_with_contraction,
    three_numbers,
    others_with_newlines_and_slashes,
    lines,
    spaces_before_last,
    spaces,
]);

/// [`QWEN_2`] with marks in addition to letters.
const QWEN_35: Stage = Stage::Find(&[
    any_contraction,
    led_letters_and_marks,
    number,
    others_without_marks,
    lines,
    spaces_before_last,
    spaces,
]);
/// That of Mistral's newer models: [`GPT_4O`] without contractions, with single digits.
const TEKKEN: Stage =
    Stage::Find(&[cased_letters, number, others_with_newlines_and_slashes, lines, spaces_before_last, spaces]);

/// The properties of a family other than splitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Traits {
    /// A word that is a token is used without merging.
    pub(super) whole_words: bool,
    /// BOS is added unless the file says otherwise.
    pub(super) adds_bos: bool,
    /// Texts of tokens are UTF-8 with `▁` for spaces, not GPT-2's alphabet.
    pub(super) plain: bool,
    /// A run of newlines that is a token is used without merging.
    pub(super) whole_newlines: bool,
}

/// A family: its names in files, its expressions, its other properties.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) names: &'static [&'static str],
    pub(super) stages: &'static [Stage],
    pub(super) traits: Traits,
}

pub(super) const NO_TRAITS: Traits =
    Traits { whole_words: false, adds_bos: false, plain: false, whole_newlines: false };
const WHOLE: Traits = Traits { whole_words: true, ..NO_TRAITS };

/// A row of the table of families.
macro_rules! families {
    ($([$($name:literal),+] $traits:expr, $stages:expr;)+) => {
        &[$(Family { names: &[$($name),+], stages: $stages, traits: $traits }),+]
    };
}

/// Every family that GGUF files name in `tokenizer.ggml.pre`.
pub(super) static FAMILIES: &[Family] = families! {
    ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"]
        Traits { adds_bos: true, ..WHOLE }, &[LLAMA_3];
    ["dbrx", "smaug-bpe", "chatglm-bpe"] NO_TRAITS, &[LLAMA_3];
    ["glm4", "glm5"] WHOLE, &[LLAMA_3];
    ["jais-2"] NO_TRAITS,
        &[Stage::Find(&[any_contraction, led_letters, three_numbers, others_with_newlines, lines, halving_spaces])];
    ["minicpm5"] WHOLE, &[
        Stage::Find(&[three_numbers]),
        Stage::Find(&[any_contraction, led_letters, numbers, others_with_newlines, lines, spaces_before_last, spaces]),
    ];
    ["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"]
        NO_TRAITS, &[QWEN_2];
    ["laguna"] NO_TRAITS, &[Stage::Find(&[line_or_newlines]), QWEN_2];
    ["qwen35"] NO_TRAITS, &[QWEN_35];
    ["ufakzeka"] NO_TRAITS,
        &[Stage::Find(&[led_letters, number, others_with_newlines, lines, spaces_before_last, spaces])];
    ["bailingmoe", "bailingmoe2", "llada-moe"] NO_TRAITS, &[Stage::Find(&[
        any_contraction, led_letters, number, others_with_newlines, lines, spaces_before_last, spaces,
    ])];
    ["seed-coder"] NO_TRAITS,
        &[Stage::Find(&[any_contraction, led_letters, number, spaced_others, lines, spaces_before_last, spaces])];
    ["exaone-moe"] NO_TRAITS, &[Stage::Find(&[
        any_contraction, led_spaced_letters, number, others_with_one_newline_or_slash, lines, spaces_before_last, spaces,
    ])];
    ["gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert",
        "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"]
        NO_TRAITS, &[GPT_2];
    ["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"]
        NO_TRAITS, DIGITS_GPT_2;
    ["falcon"] NO_TRAITS, &[Stage::Find(&[falcon_punctuation]), GPT_2, Stage::Find(&[three_digits])];
    ["default"] NO_TRAITS,
        &[Stage::Find(&[default_punctuation]), GPT_2, Stage::Find(&[numbers]), Stage::Find(&[three_digits])];
    ["deepseek-llm"] NO_TRAITS, &[
        Stage::Find(&[newline]), Stage::Find(&[spaced_bicameral_letters]), Stage::Find(&[spaced_punctuation]),
        Stage::SpacesAtTheEnd, Stage::Find(&[wide]), Stage::Find(&[numbers]),
    ];
    ["deepseek-coder"] NO_TRAITS, &[
        Stage::Find(&[newline]), Stage::Find(&[any_spaced_letters]), Stage::Find(&[any_spaced_punctuation]),
        Stage::Find(&[wide]), Stage::Find(&[number]),
    ];
    ["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"] NO_TRAITS,
        &[Stage::Find(&[three_numbers]), Stage::Find(&[cjk]), DEEPSEEK_3];
    ["spark2_5"] NO_TRAITS, &[
        Stage::Find(&[three_numbers]), Stage::Find(&[cjk]),
        Stage::Find(&[
            ascii_punctuation_and_letters, letters_led_by_no_punctuation, punctuation_and_symbols, newline,
            spaces_before_last, spaces,
        ]),
        Stage::Find(&[number]),
    ];
    ["afmoe"] NO_TRAITS, &[Stage::GroupsOfThree, Stage::Find(&[afmoe_scripts]), DEEPSEEK_3];
    ["youtu"] WHOLE, &[
        Stage::Find(&[youtu_scripts, cjk]),
        Stage::Find(&[
            cased_letters_with_contraction, number, others_with_newlines_and_slashes, lines, spaces_before_last, spaces,
        ]),
    ];
    ["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"] NO_TRAITS, &[GPT_4O];
    ["granite-embed-multi-97m"] WHOLE, &[GPT_4O];
    ["tiny_aya", "cohere2moe"] NO_TRAITS, &[Stage::GroupsOfThree, GPT_4O];
    ["tekken"] Traits { adds_bos: true, ..WHOLE }, &[TEKKEN];
    ["kimi-k2"] NO_TRAITS, &[Stage::Find(&[
        han, cased_letters_but_han, three_numbers, others_with_newlines, lines, spaces_before_last, spaces,
    ])];
    ["bloom", "poro-chat", "gpt3-finnish"] NO_TRAITS, &[Stage::Find(&[bloom_words])];
    ["viking"] NO_TRAITS, &[Stage::Find(&[bloom_words]), Stage::Find(&[number])];
    ["superbpe"] NO_TRAITS, &[Stage::Find(&[numbers]), Stage::GroupsOfThree];
    ["chameleon"] Traits { adds_bos: true, ..NO_TRAITS }, &[
        Stage::Find(&[sentinel]), Stage::Find(&[image_token]), Stage::Find(&[tab_or_indentation]), Stage::Find(&[number]),
        Stage::Find(&[one_punctuation]), GPT_2,
    ];
    ["gemma4", "granite-embed-multi-311m"] Traits { adds_bos: true, plain: true, whole_newlines: true, ..NO_TRAITS },
        &[Stage::Find(&[line_or_newlines])];
    ["sarvam-moe"] Traits { plain: true, ..NO_TRAITS }, &[Stage::Find(&[line_or_newlines])];
};

/// The expression of GPT-2.
pub(in crate::tokenizer) const GPT_2_EXPRESSION: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The expressions of Llama 3, Qwen 2, GPT-4o, Mistral's newer models, and two of DeepSeek-V3.
#[rustfmt::skip]
pub(super) const LLAMA_3_EXPRESSION: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
pub(super) const QWEN_2_EXPRESSION: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
pub(super) const GPT_4O_EXPRESSION: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
pub(super) const TEKKEN_EXPRESSION: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
pub(super) const DEEPSEEK_3_EXPRESSION: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
pub(super) const CJK_EXPRESSION: &str = r"[一-龥぀-ゟ゠-ヿ]+";

/// Expressions in files of Hugging Face, and their stages.
#[rustfmt::skip]
pub(super) static EXPRESSIONS: &[(&str, Stage)] = &[
    (GPT_2_EXPRESSION, GPT_2),
    (LLAMA_3_EXPRESSION, LLAMA_3),
    (QWEN_2_EXPRESSION, QWEN_2),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", QWEN_35),
    (GPT_4O_EXPRESSION, GPT_4O),
    (TEKKEN_EXPRESSION, TEKKEN),
    (DEEPSEEK_3_EXPRESSION, DEEPSEEK_3),
    (CJK_EXPRESSION, Stage::Find(&[cjk])),
    (r"\p{N}{1,3}", Stage::Find(&[three_numbers])),
    (r"\p{N}+", Stage::Find(&[numbers])),
    (r"\p{N}", Stage::Find(&[number])),
    (r"[0-9][0-9][0-9]", Stage::Find(&[three_digits])),
    (r"\d{1,3}(?=(?:\d{3})*\b)", Stage::GroupsOfThree),
];
