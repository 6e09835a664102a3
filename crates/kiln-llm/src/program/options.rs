//! Options of several commands.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use kiln::{Backend, Budget, DType, Engine, EngineBuilder, Precision};
use kiln_llm::{Adapter, DeviceLayers, MemoryPlan, Model, Sampler, SequenceBreakers, Session, SessionOptions};

use crate::Result;
use crate::program::input::Input;

/// Options of generating tokens.
#[derive(Args)]
pub(crate) struct GenerationOptions {
    /// Maximum number of tokens, including the prompt [default: the model's context, at most 4096]
    #[arg(long)]
    ctx: Option<usize>,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    penalties: PenaltyOptions,
    #[command(flatten)]
    execution: ExecutionOptions,
}

impl GenerationOptions {
    /// The sampler for a model.
    pub(crate) fn sampler(&self, model: &Model<'_>) -> Result<Sampler> {
        let (sampling, penalties) = (&self.sampling, &self.penalties);
        let dry_breakers = match &penalties.dry_sequence_breaker[..] {
            _ if penalties.dry_multiplier == 0.0 => SequenceBreakers::default(),
            [] => SequenceBreakers::from_texts(model.tokenizer(), &SequenceBreakers::TEXTS)?,
            [none] if none == "none" => SequenceBreakers::default(),
            texts => SequenceBreakers::from_texts(model.tokenizer(), texts)?,
        };
        let sampler = Sampler {
            temperature: sampling.temperature,
            dynatemp_range: sampling.dynatemp_range,
            dynatemp_exponent: sampling.dynatemp_exponent,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            typical_p: sampling.typical_p,
            top_n_sigma: sampling.top_n_sigma,
            xtc_probability: sampling.xtc_probability,
            xtc_threshold: sampling.xtc_threshold,
            repeat_penalty: penalties.repeat_penalty,
            frequency_penalty: penalties.frequency_penalty,
            presence_penalty: penalties.presence_penalty,
            repeat_last_n: penalties.repeat_last_n,
            dry_multiplier: penalties.dry_multiplier,
            dry_base: penalties.dry_base,
            dry_allowed_length: penalties.dry_allowed_length,
            dry_last_n: penalties.dry_last_n,
            dry_breakers,
            logit_bias: penalties.logit_bias.clone(),
            mirostat_tau: sampling.mirostat_tau,
            mirostat_eta: sampling.mirostat_eta,
            seed: sampling.seed,
        };
        sampler.check(model.vocabulary())?;
        Ok(sampler)
    }

    /// An empty session.
    pub(crate) fn session<'m>(&self, model: &'m Model<'m>) -> Result<Session<'m>> {
        self.execution.session(model, self.ctx)
    }

    /// The model of a command, with its layers placed as the options say.
    pub(crate) fn model<'e>(&self, input: Input, engine: &'e Engine) -> Result<Model<'e>> {
        self.execution.model(input, engine)
    }

    /// The memory that a session takes, and where its layers run.
    pub(crate) fn plan(&self, model: &Model<'_>) -> Result<MemoryPlan> {
        Ok(model.memory_plan(SessionOptions { context: self.ctx, cache: self.execution.cache()? })?)
    }

    /// The engine of the device.
    pub(crate) fn engine(&self) -> Result<Engine> {
        self.execution.engine()
    }
}

/// The headings of help.
const SAMPLING: &str = "Sampling";
const PENALTIES: &str = "Penalties and bias";

/// How the next token is drawn.
#[derive(Args)]
struct SamplingOptions {
    /// Divide logits by this: 0 chooses the likeliest token, 1 draws with the model's probabilities
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().temperature,
        allow_negative_numbers = true,
    )]
    temperature: f32,
    /// Let the temperature follow the entropy, up to this much below and above; 0 keeps it constant
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().dynatemp_range,
        allow_negative_numbers = true,
    )]
    dynatemp_range: f32,
    /// The exponent of the entropy in the dynamic temperature
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().dynatemp_exponent,
        allow_negative_numbers = true,
    )]
    dynatemp_exponent: f32,
    /// Draw from this many of the likeliest tokens; 0 means all
    #[arg(long, help_heading = SAMPLING, default_value_t = Sampler::default().top_k)]
    top_k: usize,
    /// Draw from the likeliest tokens whose probabilities reach this sum; 1 means all
    #[arg(long, help_heading = SAMPLING, default_value_t = Sampler::default().top_p, allow_negative_numbers = true)]
    top_p: f32,
    /// Exclude tokens that are less likely than this times the likeliest; 0 keeps all
    #[arg(long, help_heading = SAMPLING, default_value_t = Sampler::default().min_p, allow_negative_numbers = true)]
    min_p: f32,
    /// Draw from the tokens closest to the entropy whose probabilities exceed this sum; 1 means all
    #[arg(long, help_heading = SAMPLING, default_value_t = Sampler::default().typical_p, allow_negative_numbers = true)]
    typical_p: f32,
    /// Exclude tokens whose logits are more than this many standard deviations below the greatest; 0 keeps all
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().top_n_sigma,
        allow_negative_numbers = true,
    )]
    top_n_sigma: f32,
    /// XTC: with this probability, exclude all top choices except the least likely of them; 0 turns it off
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().xtc_probability,
        allow_negative_numbers = true,
    )]
    xtc_probability: f32,
    /// XTC: the minimum probability of a top choice; more than 0.5 turns it off
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().xtc_threshold,
        allow_negative_numbers = true,
    )]
    xtc_threshold: f32,
    /// Mirostat 2: the average surprise of tokens in bits, instead of the options that exclude tokens; 0 turns it off
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().mirostat_tau,
        allow_negative_numbers = true,
    )]
    mirostat_tau: f32,
    /// Mirostat 2: the learning rate
    #[arg(
        long,
        help_heading = SAMPLING,
        default_value_t = Sampler::default().mirostat_eta,
        allow_negative_numbers = true,
    )]
    mirostat_eta: f32,
    /// The seed of the random numbers: the same seed gives the same tokens
    #[arg(long, help_heading = SAMPLING, default_value_t = Sampler::default().seed)]
    seed: u64,
}

/// Changes of the logits before a token is drawn.
#[derive(Args)]
struct PenaltyOptions {
    /// Divide positive logits of recent tokens by this, and multiply the others; 1 turns it off
    #[arg(
        long,
        help_heading = PENALTIES,
        default_value_t = Sampler::default().repeat_penalty,
        allow_negative_numbers = true,
    )]
    repeat_penalty: f32,
    /// Subtract this from the logit of a recent token for each occurrence; 0 turns it off
    #[arg(
        long,
        help_heading = PENALTIES,
        default_value_t = Sampler::default().frequency_penalty,
        allow_negative_numbers = true,
    )]
    frequency_penalty: f32,
    /// Subtract this from the logit of a recent token; 0 turns it off
    #[arg(
        long,
        help_heading = PENALTIES,
        default_value_t = Sampler::default().presence_penalty,
        allow_negative_numbers = true,
    )]
    presence_penalty: f32,
    /// The number of recent tokens for these penalties, including the prompt; 0 turns them off, -1 means all
    #[arg(
        long,
        help_heading = PENALTIES,
        default_value = "64",
        value_name = "N",
        value_parser = last_n,
        allow_negative_numbers = true,
    )]
    repeat_last_n: usize,
    /// DRY: subtract this times a power of the base from the logit of a token that continues a repetition; 0 turns it
    /// off
    #[arg(
        long,
        help_heading = PENALTIES,
        default_value_t = Sampler::default().dry_multiplier,
        allow_negative_numbers = true,
    )]
    dry_multiplier: f32,
    /// DRY: the base of the power; the exponent is the length of the repetition minus the allowed length
    #[arg(long, help_heading = PENALTIES, default_value_t = Sampler::default().dry_base, allow_negative_numbers = true)]
    dry_base: f32,
    /// DRY: the length of a repetition, in tokens, from which it is penalised
    #[arg(long, help_heading = PENALTIES, default_value_t = Sampler::default().dry_allowed_length)]
    dry_allowed_length: usize,
    /// DRY: the number of tokens to look back, including the prompt; 0 turns it off, -1 means all
    #[arg(
        long,
        help_heading = PENALTIES,
        default_value = "-1",
        value_name = "N",
        value_parser = last_n,
        allow_negative_numbers = true,
    )]
    dry_last_n: usize,
    /// DRY: a text at which repetitions end; may be given several times, `none` means no text [default: line feed, :, ", *]
    #[arg(long, help_heading = PENALTIES, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Add a number to the logit of a token, -inf forbids it; may be given several times
    #[arg(long, help_heading = PENALTIES, value_name = "ID=VALUE", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
}

/// Parses a path and a scale.
fn lora(text: &str) -> Result<(PathBuf, f32), String> {
    let scaled = text.rsplit_once('=').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    let (path, scale) = scaled.unwrap_or((text, 1.0));
    match path.is_empty() || !scale.is_finite() {
        true => Err("a file, or a file, = and a finite number are expected, as in poems.gguf=0.5".into()),
        false => Ok((path.into(), scale)),
    }
}

/// Parses a number of tokens to look back; -1 means all.
fn last_n(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => text.parse().map_err(|_| "a number of tokens or -1 is expected".into()),
    }
}

/// Parses a token and the number to add to its logit.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(token, value)| Some((token.parse().ok()?, value.parse().ok()?)));
    parts.ok_or_else(|| "the number of a token, = and a number are expected, as in 7=-1.5 or 7=-inf".into())
}

/// Where a model runs, how it stores keys and values, and which adapters it uses.
#[derive(Args)]
pub(crate) struct ExecutionOptions {
    #[command(flatten)]
    placement: PlacementOptions,
    /// A LoRA adapter (a GGUF file or a PEFT folder) and its scale: 1 unless a number follows the last `=`. May be
    /// given several times: the updates of all adapters are added
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = lora)]
    lora: Vec<(PathBuf, f32)>,
}

/// Where a model runs, and how it stores keys and values: the options that its plan of memory depends on.
#[derive(Args)]
pub(crate) struct PlacementOptions {
    /// The type of stored keys and values: f32, f16, bf16 or a quantised format such as q8_0
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    cache: String,
    /// How many layers, counted from the last, run on the GPU while the others run on the CPU: a number, or `fit` for
    /// as many as fit its memory [default: all; without --device the number that is predicted to be fastest among those
    /// that fit]
    #[arg(long, value_name = "N|fit", value_parser = layers)]
    layers: Option<DeviceLayers>,
    #[command(flatten)]
    device: DeviceOption,
}

/// Where a model runs.
#[derive(Args)]
pub(crate) struct DeviceOption {
    /// Where to run: cpu, gpu (needs the feature gpu), cuda (needs the feature cuda), or a placement by its name
    /// [default: where it is predicted to be fastest; GPUs are known after the machine was calibrated]
    #[arg(long)]
    device: Option<String>,
    /// Run the model on these devices of CUDA, by their numbers: `0,1` (needs the feature cuda)
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "N,N", value_delimiter = ',', conflicts_with = "device")]
    devices: Vec<u32>,
    /// How several devices share the model: `tensors` divides every layer over all of them, `layers` gives the fastest as many
    /// layers as fit, and the others those before
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "BY", default_value = "tensors", requires = "devices")]
    split: Split,
    /// Bytes of GPU memory for a model with its keys and values, such as 8G or 512Mi [default: what the driver reports
    /// as free, if it does]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    device_memory: Option<u64>,
    /// How products may round their operands: contract, tf32x3, tf32, bf16 or int8. Lower precisions make prompts
    /// faster on CUDA, those below tf32x3 prompts of quantised models on GPUs through wgpu with cooperative matrices, and
    /// int8 prompts and generation with quantised models on CPUs
    #[arg(long, default_value_t)]
    precision: Precision,
}

/// The division of a model over several devices.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Split {
    /// Each has a part of every layer.
    Tensors,
    /// Each has whole layers.
    Layers,
}

/// Parses a number of bytes with a unit of powers of 1000 (k, M, G, T) or of 1024 (Ki, Mi, Gi, Ti).
fn size(text: &str) -> Result<u64, String> {
    let (unit, number) = match text.find(|c: char| !c.is_ascii_digit() && c != '.') {
        Some(at) => (&text[at..], &text[..at]),
        None => ("", text),
    };
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let power = |unit: &str| ["", "k", "M", "G", "T"].iter().position(|known| unit.eq_ignore_ascii_case(known));
    let factor = match unit.strip_suffix('i') {
        Some(binary) => power(binary).filter(|&power| power > 0).map(|power| 1024_f64.powi(power as i32)),
        None => power(unit).map(|power| 1000_f64.powi(power as i32)),
    };
    let bytes = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    let whole = bytes.filter(|&bytes| (1.0..u64::MAX as f64).contains(&bytes));
    whole.map(|bytes| bytes as u64).ok_or_else(|| "a number of bytes is expected, such as 8G, 512Mi or 1000000".into())
}

/// Parses which layers run on a GPU.
fn layers(text: &str) -> Result<DeviceLayers, String> {
    match text {
        "fit" => Ok(DeviceLayers::Fitting),
        _ => text.parse().map(DeviceLayers::Last).map_err(|_| "a number of layers or `fit` is expected".into()),
    }
}

/// Whether a plan is worth printing: its layers run on several devices, or it has a notice.
pub(crate) fn is_notable(plan: &MemoryPlan) -> bool {
    plan.is_split() || plan.notice.is_some()
}

/// Prints a line to standard error. A closed pipe is ignored.
pub(crate) fn note(line: impl Display) {
    // Writing fails when the reader has closed the pipe.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints where layers run and the memory they take, if that is worth printing.
pub(crate) fn tell(plan: Option<&MemoryPlan>) {
    if let Some(plan) = plan.filter(|plan| is_notable(plan)) {
        note(plan);
    }
}

impl ExecutionOptions {
    /// An empty session with room for this many tokens, using the adapters.
    pub(crate) fn session<'m>(&self, model: &'m Model<'m>, context: Option<usize>) -> Result<Session<'m>> {
        let options = SessionOptions { context, cache: self.cache()? };
        let adapters = self.lora.iter().map(|(path, _)| Adapter::load(path));
        let adapters: Vec<Adapter> = adapters.collect::<kiln_llm::Result<_>>()?;
        let mut session = model.with_adapters(&adapters)?.session(options)?;
        tell(session.memory_plan());
        let used: Vec<_> = adapters.iter().zip(&self.lora).map(|(adapter, &(_, scale))| (adapter, scale)).collect();
        session.set_adapters(&used)?;
        Ok(session)
    }

    /// The model of a command, with its layers placed as the options say.
    pub(crate) fn model<'e>(&self, input: Input, engine: &'e Engine) -> Result<Model<'e>> {
        let mut model = input.model(engine)?;
        model.place_layers(self.placement.layers());
        Ok(model)
    }

    /// The element type of keys and values.
    pub(crate) fn cache(&self) -> Result<DType> {
        self.placement.cache()
    }

    /// The engine of the device.
    pub(crate) fn engine(&self) -> Result<Engine> {
        self.placement.engine()
    }

    /// The engine of the device, with timed kernels.
    pub(crate) fn timed_engine(&self) -> Result<Engine> {
        self.placement.device.engine_of(&|| Engine::builder().time_kernels(true))
    }
}

impl PlacementOptions {
    /// The element type of keys and values.
    pub(crate) fn cache(&self) -> Result<DType> {
        let unknown = || format!("{:?} is not an element type; use f32, f16, bf16 or q8_0", self.cache);
        Ok(DType::from_name(&self.cache).ok_or_else(unknown)?)
    }

    /// The engine of the device.
    pub(crate) fn engine(&self) -> Result<Engine> {
        self.device.engine()
    }

    /// Which layers run on GPUs.
    pub(crate) fn layers(&self) -> DeviceLayers {
        // Devices that are named are used.
        let unless_given = if self.device.has_whole_layers() { DeviceLayers::Fitting } else { DeviceLayers::default() };
        self.layers.unwrap_or(unless_given)
    }

    /// The bytes of GPU memory that a model may take, if the user gives them.
    pub(crate) fn device_memory(&self) -> Option<u64> {
        self.device.device_memory
    }
}

impl DeviceOption {
    /// Whether several devices have whole layers.
    fn has_whole_layers(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.split == Split::Layers;
        #[cfg(not(feature = "cuda"))]
        return false;
    }

    /// The engine that runs everything on a device: `cpu`, `gpu`, `cuda` or the name of a placement; without one, where
    /// it is predicted to be fastest.
    pub(crate) fn engine(&self) -> Result<Engine> {
        self.engine_of(&Engine::builder)
    }

    /// The same, for a builder with other settings.
    fn engine_of(&self, settings: &dyn Fn() -> EngineBuilder) -> Result<Engine> {
        let builder = || {
            let settings = settings().precision(self.precision);
            match self.device_memory {
                Some(device_bytes) => settings.budget(Budget { device_bytes, ..Budget::default() }),
                None => settings,
            }
        };
        #[cfg(feature = "cuda")]
        if !self.devices.is_empty() {
            if self.has_whole_layers() {
                return Ok(self
                    .devices
                    .iter()
                    .fold(builder(), |builder, &device| builder.cuda_device(device))
                    .build()?);
            }
            return Ok(first_of(|| builder().cuda_group(&self.devices), Backend::Cuda)?);
        }
        Ok(match self.device.as_deref() {
            None => builder().build()?,
            Some("cpu") => builder().backends(&[Backend::Scalar, Backend::Simd]).build()?,
            #[cfg(feature = "gpu")]
            Some("gpu") => first_of(|| builder().adapter(kiln::gpu::AdapterChoice::default()), Backend::Gpu)?,
            #[cfg(feature = "cuda")]
            Some("cuda") => first_of(|| builder().cuda_device(0), Backend::Cuda)?,
            Some(place) => builder().force(place).build()?,
        })
    }
}

/// The engine that runs everything on the device that a builder requests; fails if there is no such device.
#[cfg(any(feature = "gpu", feature = "cuda"))]
fn first_of(asked: impl Fn() -> EngineBuilder, kind: Backend) -> kiln::Result<Engine> {
    let engine = asked().build()?;
    match engine.places().iter().find(|place| place.backend == kind) {
        Some(place) => asked().force(place.name.clone()).build(),
        None => Ok(engine),
    }
}
