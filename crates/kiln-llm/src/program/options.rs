//! Options that several commands have.

use clap::Args;
use kiln::{Backend, DType, Engine};
use kiln_llm::{Sampler, SessionOptions};

use crate::Result;

/// How tokens are made.
#[derive(Args)]
pub(crate) struct GenerationOptions {
    /// Tokens that there is room for, prompt included [default: those of the model, at most 4096]
    #[arg(long)]
    ctx: Option<usize>,
    /// Divides logits: 0 chooses the likeliest token, 1 draws from what the model says
    #[arg(long, default_value_t = Sampler::default().temperature)]
    temperature: f32,
    /// Draw from this many of the likeliest tokens; 0 means all
    #[arg(long, default_value_t = Sampler::default().top_k)]
    top_k: usize,
    /// Draw from the likeliest tokens whose probabilities reach this sum
    #[arg(long, default_value_t = Sampler::default().top_p)]
    top_p: f32,
    /// Leave tokens out that are less likely than this times the likeliest
    #[arg(long, default_value_t = Sampler::default().min_p)]
    min_p: f32,
    /// What random numbers are drawn from: the same seed gives the same tokens
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    execution: ExecutionOptions,
}

impl GenerationOptions {
    /// How tokens are chosen.
    pub(crate) fn sampler(&self) -> Sampler {
        let &Self { temperature, top_k, top_p, min_p, seed, .. } = self;
        Sampler { temperature, top_k, top_p, min_p, seed }
    }

    /// How a session is made.
    pub(crate) fn session(&self) -> Result<SessionOptions> {
        Ok(SessionOptions { context: self.ctx, cache: self.execution.cache()? })
    }

    /// The engine of the device.
    pub(crate) fn engine(&self) -> Result<Engine> {
        self.execution.engine()
    }
}

/// Where a model runs, and what it keeps there.
#[derive(Args)]
pub(crate) struct ExecutionOptions {
    /// The type of keys and values that are kept: f32, f16, bf16 or a quantised format such as q8_0
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    cache: String,
    /// Where to run: cpu, gpu (the feature gpu), cuda (the feature cuda), or a place by its name [default: where it is predicted
    /// to be fastest; GPUs are known once the machine was calibrated]
    #[arg(long)]
    device: Option<String>,
}

impl ExecutionOptions {
    /// The element type of keys and values.
    pub(crate) fn cache(&self) -> Result<DType> {
        let unknown = || format!("{:?} is not an element type; f32, f16, bf16 and q8_0 are", self.cache);
        Ok(DType::from_name(&self.cache).ok_or_else(unknown)?)
    }

    /// The engine that runs everything on a device: `cpu`, `gpu`, `cuda` or the name of a place; without one, where it is predicted
    /// to be fastest.
    pub(crate) fn engine(&self) -> Result<Engine> {
        Ok(match self.device.as_deref() {
            None => Engine::new()?,
            Some("cpu") => Engine::builder().backends(&[Backend::Scalar, Backend::Simd]).build()?,
            #[cfg(feature = "gpu")]
            Some("gpu") => first_of(|| Engine::builder().adapter(kiln::gpu::AdapterChoice::default()), Backend::Gpu)?,
            #[cfg(feature = "cuda")]
            Some("cuda") => first_of(|| Engine::builder().cuda_device(0), Backend::Cuda)?,
            Some(place) => Engine::builder().force(place).build()?,
        })
    }
}

/// The engine that runs everything on the device that a builder asks for, which fails where there is no such device.
#[cfg(any(feature = "gpu", feature = "cuda"))]
fn first_of(asked: impl Fn() -> kiln::EngineBuilder, kind: Backend) -> kiln::Result<Engine> {
    let engine = asked().build()?;
    match engine.places().iter().find(|place| place.backend == kind) {
        Some(place) => asked().force(place.name.clone()).build(),
        None => Ok(engine),
    }
}
