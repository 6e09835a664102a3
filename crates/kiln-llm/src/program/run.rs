//! `kiln-llm run`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use kiln_llm::Encoding;

use crate::Result;
use crate::program::input::Input;
use crate::program::interrupt::{EXIT_CODE, Interrupt};
use crate::program::options::{GenerationOptions, is_notable, note};
use crate::program::prompt;

/// The options of the command.
pub(crate) struct Run {
    pub(crate) prompt: String,
    pub(crate) most: usize,
    pub(crate) generation: GenerationOptions,
    pub(crate) ids: bool,
    pub(crate) explain: bool,
}

/// Continues a prompt and prints the text as it is generated, until Ctrl-C. Times go to standard error if that is a
/// terminal.
pub(crate) fn run(input: Input, options: &Run, out: &mut impl Write) -> Result<ExitCode> {
    let interrupt = Interrupt::new();
    let engine = options.generation.engine()?;
    let started = Instant::now();
    let model = options.generation.model(input, &engine)?;
    let sampler = options.generation.sampler(&model)?;
    let mut session = options.generation.session(&model)?;
    let prompt = model.tokenizer().encode_with(&options.prompt, Encoding::default());
    session.push(&prompt)?;
    if options.explain {
        // A notable plan was printed already. A session on the CPU alone has no plan.
        match session.memory_plan() {
            Some(plan) if is_notable(plan) => {}
            Some(plan) => note(plan),
            None => note(options.generation.plan(&model)?),
        }
        note(session.explain()?);
    }
    let (loaded, room) = (started.elapsed(), session.context() - prompt.len());
    let (mut made, mut first) = (0usize, None);
    let mut most = options.most.min(room);
    interrupt.begin();
    if most > 0 && !prompt::compute(&mut session, &interrupt)? {
        most = 0;
    }
    if !options.ids {
        write!(out, "{}", options.prompt)?;
    }
    for token in session.generate(&sampler, most) {
        let token = token?;
        first.get_or_insert_with(|| started.elapsed());
        made += 1;
        match (options.ids, made) {
            (true, 1) => write!(out, "{}", token.token)?,
            (true, _) => write!(out, " {}", token.token)?,
            (false, _) => write!(out, "{}", token.text)?,
        }
        // Prints each token immediately.
        out.flush()?;
        if interrupt.is_requested() {
            break;
        }
    }
    writeln!(out)?;
    if io::stderr().is_terminal() {
        report(loaded, first, started.elapsed(), prompt.len(), made);
    }
    Ok(if interrupt.end() { ExitCode::from(EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// Prints the times of the steps.
fn report(
    loaded: std::time::Duration,
    first: Option<std::time::Duration>,
    ended: std::time::Duration,
    prompt: usize,
    made: usize,
) {
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let Some(first) = first else {
        let seconds = (ended - loaded).as_secs_f64();
        return eprintln!(
            "loaded in {:.2} s; ended after {seconds:.2} s, before the first token",
            loaded.as_secs_f64()
        );
    };
    eprintln!(
        "loaded in {:.2} s; {prompt} tokens of the prompt at {:.1} tokens/s, {made} new ones at {:.1} tokens/s",
        loaded.as_secs_f64(),
        rate(prompt, (first - loaded).as_secs_f64()),
        rate(made.saturating_sub(1), (ended - first).as_secs_f64())
    );
}
