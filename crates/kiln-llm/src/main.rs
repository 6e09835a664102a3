//! The program `kiln-llm`.
#![forbid(unsafe_code)]

mod program {
    pub(crate) mod bench;
    #[cfg(feature = "chat")]
    pub(crate) mod chat;
    pub(crate) mod embed;
    pub(crate) mod input;
    pub(crate) mod inspect;
    pub(crate) mod interrupt;
    pub(crate) mod logits;
    pub(crate) mod options;
    pub(crate) mod perplexity;
    pub(crate) mod profile;
    pub(crate) mod prompt;
    pub(crate) mod quantize;
    pub(crate) mod run;
    pub(crate) mod tokenize;
}

use std::io::{self, BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use kiln_llm::{EmbeddingOptions, Pooling, Recipe, Tokenizer};
use program::embed::POOLINGS;
use program::input::Input;
use program::options::{DeviceOption, ExecutionOptions, GenerationOptions, PlacementOptions, note};

/// Runs and inspects language models in GGUF files and in folders of safetensors.
///
/// Exit codes: 0 success; 1 failure, explained by a message; 2 invalid arguments; 130 ended by Ctrl-C.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a text
    ///
    /// Tokens are printed as they are generated. If standard error is a terminal, rates are printed there at the end. A
    /// step runs where it is predicted to take the least time; --explain shows the prediction.
    #[command(after_help = "Example: kiln-llm run model.gguf 'Once upon a time' -n 200 --temperature 0")]
    Run {
        #[command(flatten)]
        file: File,
        /// The text to continue; `-` reads it from standard input
        prompt: String,
        /// Maximum number of tokens to generate
        #[arg(short = 'n', long, default_value_t = 128)]
        tokens: usize,
        #[command(flatten)]
        generation: GenerationOptions,
        /// Print only the token numbers, in one line
        #[arg(long)]
        ids: bool,
        /// Print where a token is computed, and why, before the text
        #[arg(long)]
        explain: bool,
    },
    /// Chat with a model
    ///
    /// Each line of standard input is a message; the answer is printed as it is generated. /clear forgets the
    /// conversation, /quit or the end of the input ends it. Ctrl-C stops an answer. Text that spells a special token
    /// stays text. What gpt-oss thinks before an answer (its channel analysis) is shown on standard error if that is a
    /// terminal, and is not part of the conversation.
    #[cfg(feature = "chat")]
    #[command(after_help = "Example: kiln-llm chat model.gguf --system 'Answer in one sentence.'")]
    Chat {
        #[command(flatten)]
        file: File,
        /// Instructions for the whole conversation (the system message)
        #[arg(long, value_name = "TEXT")]
        system: Option<String>,
        /// A file with the chat template [default: the model's template]
        #[arg(long, value_name = "FILE")]
        template: Option<PathBuf>,
        /// The name of one of the model's templates
        #[arg(long, value_name = "NAME", conflicts_with = "template")]
        template_name: Option<String>,
        /// Maximum number of tokens of an answer [default: until the model ends it]
        #[arg(short = 'n', long)]
        tokens: Option<usize>,
        #[command(flatten)]
        generation: GenerationOptions,
    },
    /// Measure how many tokens per second a model processes and generates
    ///
    /// Prints the mean of all repetitions and their standard deviation; a first repetition is not counted. The tokens
    /// of the prompt are arbitrary, and the likeliest token is always chosen. With --batch several sequences are
    /// computed at once: each has its own prompt, and a step generates a token for each of them.
    #[command(after_help = "Examples: kiln-llm bench model.gguf --device cuda -p 2048 --depth 8192\n          \
                            kiln-llm bench model.gguf -p 128 -n 64 --batch 1,8,16")]
    Bench {
        #[command(flatten)]
        file: File,
        /// Tokens of the prompt; 0 skips this test, unless --batch is given
        #[arg(short = 'p', long, default_value_t = 512)]
        prompt: usize,
        /// Tokens to generate one by one; 0 skips this test
        #[arg(short = 'n', long, default_value_t = 128)]
        tokens: usize,
        /// Tokens in the context before each test
        #[arg(long, default_value_t = 0, conflicts_with = "batch")]
        depth: usize,
        /// Numbers of simultaneous sequences, 1 to 64: measures each instead of a single sequence
        #[arg(conflicts_with = "lora", long, value_delimiter = ',', value_name = "N,N,...")]
        batch: Vec<usize>,
        /// Repetitions, at least one
        #[arg(short = 'r', long, default_value_t = NonZeroUsize::new(5).expect("5 is not 0"))]
        repetitions: NonZeroUsize,
        /// Print an array with an object for each test
        #[arg(long)]
        json: bool,
        /// Time the kernels of a GPU instead, for a prompt and for a token after it, or with --batch for a step. The
        /// kernels then run one by one, so their sum exceeds the time of a token
        #[arg(long, conflicts_with_all = ["json", "repetitions"])]
        profile: bool,
        #[command(flatten)]
        execution: ExecutionOptions,
    },
    /// Print the embeddings of texts: vectors whose directions represent the meaning of the texts
    ///
    /// For encoders: BERT and models based on it, such as all-MiniLM-L6-v2. Each embedding is a line of numbers, of
    /// length 1 unless --no-normalize is given. A text with more tokens than the model supports is an error unless
    /// --truncate is given.
    #[command(
        after_help = "Example: kiln-llm embed all-MiniLM-L6-v2 --similarity 'A cat sits on the mat.' 'There is a kitten on the rug.'"
    )]
    Embed {
        #[command(flatten)]
        file: File,
        /// The texts [default: the lines of standard input]
        #[arg(value_name = "TEXT")]
        texts: Vec<String>,
        /// Print the cosines of all pairs of texts instead, one line for each text
        #[arg(long, conflicts_with = "no_normalize")]
        similarity: bool,
        /// Print an object with the arrays `texts` and `embeddings`, or `similarity`
        #[arg(long)]
        json: bool,
        /// How to pool the rows of a text's tokens: mean, cls (the first) or last [default: the model's pooling]
        #[arg(long, value_name = "POOLING", value_parser = PossibleValuesParser::new(POOLINGS.map(|(name, _)| name)).try_map(pooling))]
        pooling: Option<Pooling>,
        /// Do not normalise embeddings to length 1
        #[arg(long)]
        no_normalize: bool,
        /// Truncate texts with too many tokens to their first ones
        #[arg(long)]
        truncate: bool,
        /// Maximum number of tokens of a text, including those that the model adds [default: the model's maximum]
        #[arg(long, value_name = "N")]
        max_tokens: Option<usize>,
        #[command(flatten)]
        device: DeviceOption,
    },
    /// Print the logits of the next token
    ///
    /// Tokens are given by their numbers, which excludes differences between tokenizers: to compare models, devices and
    /// programs.
    #[command(
        // Compares computations without the error of a rounded cache.
        mut_arg("cache", |cache| cache.default_value("f32")),
        after_help = "Example: kiln-llm logits model.gguf --tokens 1,15043,3186 --top 5"
    )]
    Logits {
        #[command(flatten)]
        file: File,
        /// The token numbers
        #[arg(long, required = true, value_delimiter = ',', value_name = "ID,ID,...")]
        tokens: Vec<u32>,
        /// Print this many of the likeliest tokens
        #[arg(long, default_value_t = 10, conflicts_with = "json")]
        top: usize,
        /// Print all logits: an object with the arrays `tokens` and `logits`
        #[arg(long)]
        json: bool,
        /// Maximum number of tokens, as in the command run
        #[arg(long)]
        ctx: Option<usize>,
        #[command(flatten)]
        execution: ExecutionOptions,
    },
    /// Print the metadata, tensors, types and sizes of a model, the memory that it takes, and which parts of it kiln
    /// cannot use
    ///
    /// The plan of the memory is that of the command run with the same options: weights, keys and values, and scratch
    /// memory of each device, and which layers run there. No weights are loaded for it. With --device-memory it says how many
    /// layers fit. Strings are printed with escapes, and long values are abbreviated. For a model in several files
    /// (NAME-00001-of-0000N.gguf) name the first.
    #[command(after_help = "Examples: kiln-llm inspect model.gguf\n          \
                            kiln-llm inspect model.gguf --ctx 32768 --device cuda --device-memory 8G")]
    Inspect {
        #[command(flatten)]
        file: File,
        /// Maximum number of tokens, as in the command run
        #[arg(long)]
        ctx: Option<usize>,
        #[command(flatten)]
        placement: PlacementOptions,
    },
    /// Measure how well a model predicts a text
    ///
    /// The text is divided into parts, and the second half of each is scored given the preceding tokens of the part, as
    /// in llama.cpp: the perplexity is the exponential of the mean of -ln p. Lower is better; values of models with the
    /// same vocabulary are comparable.
    #[command(after_help = "Example: kiln-llm perplexity model.gguf wiki.test.raw --chunks 20")]
    Perplexity {
        #[command(flatten)]
        file: File,
        /// The text file, in UTF-8
        text: PathBuf,
        /// Tokens of a part
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
        ctx: u32,
        /// Maximum number of parts [default: all]
        #[arg(long)]
        chunks: Option<NonZeroUsize>,
        #[command(flatten)]
        execution: ExecutionOptions,
    },
    /// Write a copy of a model with its matrices in another type
    ///
    /// Norms and biases keep their types. With a quantised type the matrix of the logits becomes Q6_K or Q8_0; q4_k_m
    /// and q5_k_m use Q6_K for the matrices whose errors matter most. FILE is a GGUF file. An existing file OUT is
    /// replaced when the new one is complete.
    #[command(after_help = "Example: kiln-llm quantize model-f16.gguf model-q4_k_m.gguf q4_k_m")]
    Quantize {
        #[command(flatten)]
        file: File,
        /// The file to write
        #[arg(value_name = "OUT")]
        to: PathBuf,
        /// The type of most matrices
        #[arg(value_name = "TYPE", ignore_case = true, value_parser = PossibleValuesParser::new(Recipe::names()).try_map(recipe))]
        recipe: Recipe,
        /// Quantise matrices that are already quantised: the errors of both add up
        #[arg(long)]
        again: bool,
    },
    /// Print the tokens of a text
    ///
    /// FILE may be a GGUF file, a folder or a tokenizer.json.
    ///
    /// The model's own tokens around a text (BOS, EOS) are added as the model specifies. Text that spells a special
    /// token stays text unless --parse-special is given.
    #[command(after_help = "Example: kiln-llm tokenize model.gguf 'Once upon a time'")]
    Tokenize {
        #[command(flatten)]
        file: File,
        /// The text; `-` reads it from standard input
        text: String,
        /// Print only the token numbers, in one line
        #[arg(long)]
        ids: bool,
        /// Add no tokens around the text
        #[arg(long)]
        no_special: bool,
        /// Recognise special tokens in the text
        #[arg(long)]
        parse_special: bool,
    },
}

#[derive(Args)]
struct File {
    /// The model: a GGUF file, or a folder with config.json, tokenizer.json and weights in safetensors files
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// Read whole files into memory instead of mapping them: for files that may change meanwhile
    #[arg(long)]
    read: bool,
}

impl File {
    fn open(&self) -> kiln_llm::Result<Input> {
        Input::open(&self.path, self.read)
    }
}

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let Program { command } = Program::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    let result = run(command, &mut out).and_then(|code| {
        out.flush()?;
        Ok(code)
    });
    match result {
        Ok(code) => code,
        // The reader of the output has closed it.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // Earlier output must precede the error.
            let _ = out.flush();
            note(format_args!("kiln-llm: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, out: &mut impl Write) -> Result<ExitCode> {
    match command {
        Command::Inspect { file, ctx, placement } => {
            let inspect = program::inspect::Inspect { context: ctx, placement };
            program::inspect::run(file.open()?, &inspect, out)?;
        }
        Command::Bench { file, prompt, tokens, depth, batch, repetitions: _, json: _, profile: true, execution } => {
            let profile = program::profile::Profile { prompt, tokens, depth, batches: batch, execution };
            program::profile::run(file.open()?, &profile, out)?;
        }
        Command::Bench { file, prompt, tokens, depth, batch, repetitions, json, profile: false, execution } => {
            let batches = batch;
            let bench = program::bench::Bench { prompt, tokens, depth, batches, repetitions, json, execution };
            program::bench::run(file.open()?, &bench, out)?;
        }
        Command::Embed { file, texts, similarity, json, pooling, no_normalize, truncate, max_tokens, device } => {
            let options = EmbeddingOptions { pooling, normalize: !no_normalize, truncate, max_tokens };
            let embed = program::embed::Embed { texts, options, json, similarity, device };
            program::embed::run(file.open()?, embed, out)?;
        }
        Command::Logits { file, tokens, top, json, ctx, execution } => {
            let logits = program::logits::Logits { tokens, top, json, context: ctx, execution };
            program::logits::run(file.open()?, &logits, out)?;
        }
        Command::Run { file, prompt, tokens, generation, ids, explain } => {
            let prompt = if prompt == "-" { io::read_to_string(io::stdin())? } else { prompt };
            let run = program::run::Run { prompt, most: tokens, generation, ids, explain };
            return program::run::run(file.open()?, &run, out);
        }
        #[cfg(feature = "chat")]
        Command::Chat { file, system, template, template_name, tokens, generation } => {
            let chat = program::chat::Chat { system, template, template_name, most: tokens, generation };
            return program::chat::run(file.open()?, &chat, out);
        }
        Command::Perplexity { file, text, ctx, chunks, execution } => {
            let read = std::fs::read_to_string(&text);
            let text = read.map_err(|error| format!("{}: {error}", text.display()))?;
            let chunks = chunks.map(NonZeroUsize::get);
            let perplexity = program::perplexity::Perplexity { text, context: ctx as usize, chunks, execution };
            program::perplexity::run(file.open()?, &perplexity, out)?;
        }
        Command::Quantize { file, to, recipe, again } => {
            program::quantize::run(&file.open()?.gguf()?, &to, recipe, again, out)?;
        }
        Command::Tokenize { file, text, ids, no_special, parse_special } => {
            let text = if text == "-" { io::read_to_string(io::stdin())? } else { text };
            let encoding = kiln_llm::Encoding { add_special: !no_special, parse_special };
            let tokenizer = if file.path.extension().is_some_and(|extension| extension == "json") {
                let json = std::fs::read_to_string(&file.path);
                Tokenizer::from_json(&json.map_err(|error| format!("{}: {error}", file.path.display()))?)?
            } else {
                file.open()?.tokenizer()?
            };
            program::tokenize::run(&tokenizer, &text, encoding, ids, out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The pooling with this name, which is one of the possible values.
fn pooling(name: String) -> Result<Pooling, String> {
    let found = POOLINGS.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, pooling)| pooling).ok_or_else(|| format!("{name:?} is not a known pooling"))
}

/// The recipe with this name, which is one of the possible values.
fn recipe(name: String) -> Result<Recipe, String> {
    Recipe::find(&name).ok_or_else(|| format!("{name:?} is not a known type"))
}
