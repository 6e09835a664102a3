//! Chat templates: render conversations as prompts, and tokenize them.

mod environment;
mod guard;
mod message;
mod python;
mod reply;
mod time;

use std::io::{self, Write};

use kiln_gguf::Metadata;
pub use message::Message;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
pub use reply::{Channel, Reply};

use crate::{Error, Result, Tokenizer};

/// The key of the template in GGUF files. Named templates have the keys `tokenizer.chat_template.NAME`.
const KEY: &str = "tokenizer.chat_template";

/// The name of the template that is used by default.
pub(crate) const DEFAULT: &str = "default";

/// Maximum instructions of a template, as a base and for each message. The templates of 70 models take at most 870 for
/// four messages.
const FUEL: u64 = 20_000;
const FUEL_OF_MESSAGE: u64 = 500;

/// Bytes of stack for each instruction: each may put a value into a new list, and nested lists are compared, printed
/// and dropped by recursion, which takes up to 800 bytes per level, and up to 3200 without optimisation.
const STACK: usize = if cfg!(debug_assertions) { 4096 } else { 1024 };

/// Maximum bytes of a prompt in addition to 16 times those of its messages.
const MOST_OUTPUT: usize = 1 << 20;

/// The templates of a file by name.
#[derive(Debug, Default)]
pub(crate) struct Templates(Vec<(String, String)>);

impl Templates {
    /// The templates in the metadata of a GGUF file; empty for the many files without templates.
    ///
    /// # Errors
    /// [`Error::File`] if a template is not a string.
    pub(crate) fn from_gguf(metadata: Metadata<'_>) -> Result<Self> {
        let mut templates = Vec::new();
        for (key, _) in metadata.iter() {
            let name = match key.strip_prefix(KEY) {
                Some("") => DEFAULT,
                Some(rest) => match rest.strip_prefix('.') {
                    Some(name) => name,
                    None => continue,
                },
                None => continue,
            };
            templates.push((name.to_owned(), metadata.get::<&str>(key)?.to_owned()));
        }
        Ok(Self(templates))
    }

    /// The templates with these names; the unnamed one is called `default`.
    pub(crate) fn new(named: Vec<(String, String)>) -> Self {
        Self(named)
    }

    /// The source of the template of this name, or of the default one.
    ///
    /// # Errors
    /// [`Error::MissingTemplate`].
    pub(crate) fn get(&self, name: Option<&str>) -> Result<&str> {
        let wanted = name.unwrap_or(DEFAULT);
        let found = self.0.iter().find(|(name, _)| name == wanted);
        found.map(|(_, source)| &**source).ok_or_else(|| {
            let names: Vec<String> = self.0.iter().map(|(name, _)| format!("{name:?}")).collect();
            let found = if names.is_empty() { "no template".to_owned() } else { names.join(", ") };
            Error::MissingTemplate { wanted: wanted.to_owned(), found }
        })
    }
}

/// A chat template: makes the prompt of a conversation, in the form that a model was trained with.
///
/// Templates are written in Jinja, for the environment of the Python library transformers: `messages`, `add_generation_prompt`,
/// `bos_token`, `eos_token`, `tools` and `documents` (both `none`), `raise_exception`, `strftime_now` (in UTC), `tojson`, methods of
/// Python's strings, lists and dictionaries, and loop controls.
///
/// A template is part of a downloaded file, so it may be malicious. It cannot access files or the network, and endless loops,
/// recursion and output are errors. The memory of values that a template computes but does not print is not limited.
///
/// The answers of some models, such as gpt-oss, have parts that do not belong in the conversation: see [`Reply`].
///
/// ```no_run
/// # fn main() -> kiln_llm::Result<()> {
/// # let engine = kiln::Engine::new()?;
/// use kiln_llm::{Message, Model, Sampler, SessionOptions};
///
/// let model = Model::load(&engine, "model.gguf")?;
/// let template = model.chat_template(None)?;
/// let mut messages = vec![Message::user("What is the capital of France?")];
/// let mut session = model.session(SessionOptions::default())?;
/// session.replace(&template.encode(model.tokenizer(), &messages, true)?)?;
/// let answer: kiln_llm::Result<String> = session.generate(&Sampler::default(), 100).map(|made| Ok(made?.text)).collect();
/// messages.push(Message::assistant(answer?));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    seconds: Option<u64>,
}

impl ChatTemplate {
    /// Compiles a template. The tokenizer provides the texts of BOS and EOS, which are empty if it lacks the token.
    ///
    /// # Errors
    /// [`Error::Template`] if the source is not a template.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let text = |id: Option<u32>| {
            let bytes = id.and_then(|id| tokenizer.token(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let ids = tokenizer.special_tokens();
        let environment = environment::environment(source).map_err(|error| failed(&error))?;
        Ok(Self { environment, bos: text(ids.bos), eos: text(ids.eos), seconds: None })
    }

    /// Sets the time that `strftime_now` uses instead of the current time, in seconds since 1970-01-01 00:00:00 UTC. Prompts that
    /// contain the date are then the same every day.
    #[must_use]
    pub fn at(mut self, seconds: u64) -> Self {
        self.seconds = Some(seconds);
        self
    }

    /// Returns the prompt of a conversation as text. With `answer` it ends where the model's answer begins.
    ///
    /// To get tokens, call [`ChatTemplate::encode`]: this text alone does not show which parts of it a user wrote.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the conversation or fails.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String> {
        self.render_at(messages, answer, self.seconds.unwrap_or_else(time::now))
    }

    fn render_at(&self, messages: &[Message], answer: bool, seconds: u64) -> Result<String> {
        let fuel = FUEL + FUEL_OF_MESSAGE * messages.len() as u64;
        with_stack(STACK.saturating_mul(fuel as usize), || self.render_here(messages, answer, seconds, fuel))
    }

    fn render_here(&self, messages: &[Message], answer: bool, seconds: u64, fuel: u64) -> Result<String> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(environment::NAME).map_err(|error| failed(&error))?;
        let list = messages.iter().map(|Message { role, content }| -> Value {
            [("role", Value::from(&**role)), ("content", Value::from(&**content))].into_iter().collect()
        });
        let context: Value = [
            ("messages", list.collect()),
            ("add_generation_prompt", answer.into()),
            ("bos_token", Value::from(&*self.bos)),
            ("eos_token", Value::from(&*self.eos)),
            ("tools", ().into()),
            ("documents", ().into()),
            ("strftime_now", Value::from_function(move |format: &str| time::format(seconds, format))),
        ]
        .into_iter()
        .collect();
        let sizes = messages.iter().map(|message| message.role.len() + message.content.len());
        let most = MOST_OUTPUT + 16 * sizes.sum::<usize>();
        let mut output = Output { bytes: Vec::new(), most };
        template.render_captured_to(context, &mut output).map_err(|error| match error.kind() {
            ErrorKind::WriteFailure => Error::Template { reason: format!("the prompt is longer than {most} bytes") },
            _ => failed(&error),
        })?;
        String::from_utf8(output.bytes).map_err(|error| Error::Template { reason: error.to_string() })
    }

    /// Returns the tokens of the prompt of a conversation. With `answer` they end where the model's answer begins.
    ///
    /// Only text of the template itself becomes control tokens: a message that spells `<|im_end|>` stays text. To distinguish the two,
    /// the template is rendered a second time with a guard, a character that occurs nowhere else, after each character of the messages
    /// that could begin such a token. Tags (`<name>`, `</name>`, `[NAME]` and `[/NAME]`) that are not tokens get no guard, because
    /// templates search for them in answers. The guards are removed before the text is split into words.
    ///
    /// The token that the model requires before a text (BOS) is added if the template does not write it.
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::render`], and [`Error::Template`] if the template changes text that could be taken for a token, so
    /// that its origin is unknown.
    pub fn encode(&self, tokenizer: &Tokenizer, messages: &[Message], answer: bool) -> Result<Vec<u32>> {
        let seconds = self.seconds.unwrap_or_else(time::now);
        let text = self.render_at(messages, answer, seconds)?;
        let Some((guard, messages)) = guard::guarded(tokenizer, messages, &text)? else {
            return Ok(tokenizer.encode_chat(&text, None));
        };
        let guarded = self.render_at(&messages, answer, seconds)?;
        if guarded.replace(guard, "") != text {
            let reason = "it changes text of a message that could be taken for a special token, which therefore cannot \
                          be kept text; write the message without such text";
            return Err(Error::Template { reason: reason.into() });
        }
        Ok(tokenizer.encode_chat(&guarded, Some(guard)))
    }
}

/// Renders on a thread with this stack size in bytes; only used pages take memory. If no thread can be created, renders on the
/// current thread, whose stack suffices for templates that are not malicious. A panic of the template engine is an error: in builds
/// with overflow checks it panics on slices such as `x[:4294967295:-1]`.
fn with_stack(bytes: usize, render: impl Fn() -> Result<String> + Sync) -> Result<String> {
    let rendered = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, &render);
        thread.ok().map(std::thread::ScopedJoinHandle::join)
    });
    match rendered {
        Some(Ok(result)) => result,
        Some(Err(_)) => Err(Error::Template { reason: "the template engine panicked on it".into() }),
        None => render(),
    }
}

/// Converts the error of a template.
fn failed(error: &minijinja::Error) -> Error {
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => "it does not end, or takes far more steps than a template should".to_owned(),
        _ => error.to_string(),
    };
    Error::Template { reason }
}

/// A limited buffer.
struct Output {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
