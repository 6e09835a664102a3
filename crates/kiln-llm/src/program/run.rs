//! `kiln-llm run`.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use kiln::{Backend, DType, Engine};
use kiln_gguf::Model as File;
use kiln_llm::{Encoding, Model, Sampler, SessionOptions};

use crate::Result;

/// What is run, and how.
pub(crate) struct Run {
    pub(crate) prompt: String,
    pub(crate) most: usize,
    pub(crate) sampler: Sampler,
    pub(crate) context: Option<usize>,
    pub(crate) cache: DType,
    pub(crate) device: Option<String>,
    pub(crate) ids: bool,
    pub(crate) explain: bool,
}

/// Continues a prompt and prints it as it comes. Times go to the standard error where that is a terminal.
pub(crate) fn run(file: File, options: &Run, out: &mut impl Write) -> Result<()> {
    let engine = engine(options.device.as_deref())?;
    let started = Instant::now();
    let model = Model::from_gguf(&engine, file)?;
    let mut session = model.session(SessionOptions { context: options.context, cache: options.cache })?;
    let prompt = model.tokenizer().encode_with(&options.prompt, Encoding::default());
    session.push(&prompt)?;
    if options.explain {
        eprintln!("{}", session.explain()?);
    }
    if !options.ids {
        write!(out, "{}", options.prompt)?;
    }
    let (loaded, room) = (started.elapsed(), session.context() - prompt.len());
    let (mut made, mut first) = (0usize, None);
    for token in session.generate(&options.sampler, options.most.min(room)) {
        let token = token?;
        first.get_or_insert_with(|| started.elapsed());
        made += 1;
        match (options.ids, made) {
            (true, 1) => write!(out, "{}", token.token)?,
            (true, _) => write!(out, " {}", token.token)?,
            (false, _) => write!(out, "{}", token.text)?,
        }
        // Each token as it comes.
        out.flush()?;
    }
    writeln!(out)?;
    if io::stderr().is_terminal() {
        report(loaded, first, started.elapsed(), prompt.len(), made);
    }
    Ok(())
}

/// The engine that runs everything on a device: `cpu`, `gpu`, `cuda` or the name of a place; without one, where it is predicted to be
/// fastest.
pub(crate) fn engine(device: Option<&str>) -> Result<Engine> {
    Ok(match device {
        None => Engine::new()?,
        Some("cpu") => Engine::builder().backends(&[Backend::Scalar, Backend::Simd]).build()?,
        #[cfg(feature = "gpu")]
        Some("gpu") => first_of(|| Engine::builder().adapter(kiln::gpu::AdapterChoice::default()), Backend::Gpu)?,
        #[cfg(feature = "cuda")]
        Some("cuda") => first_of(|| Engine::builder().cuda_device(0), Backend::Cuda)?,
        Some(place) => Engine::builder().force(place).build()?,
    })
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

/// Prints how long what took.
fn report(
    loaded: std::time::Duration,
    first: Option<std::time::Duration>,
    ended: std::time::Duration,
    prompt: usize,
    made: usize,
) {
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let first = first.unwrap_or(ended);
    eprintln!(
        "loaded in {:.2} s; {prompt} tokens of the prompt at {:.1} tokens/s, {made} new ones at {:.1} tokens/s",
        loaded.as_secs_f64(),
        rate(prompt, (first - loaded).as_secs_f64()),
        rate(made.saturating_sub(1), (ended - first).as_secs_f64())
    );
}
