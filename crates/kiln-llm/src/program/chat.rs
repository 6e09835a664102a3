//! `kiln-llm chat`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use kiln_llm::{Channel, ChatTemplate, Error, Message, Model, Reply, Sampler, Session};

use crate::Result;
use crate::program::input::Input;
use crate::program::interrupt::Interrupt;
use crate::program::options::{GenerationOptions, note};
use crate::program::prompt;

/// The options of a chat.
pub(crate) struct Chat {
    pub(crate) system: Option<String>,
    pub(crate) template: Option<PathBuf>,
    pub(crate) template_name: Option<String>,
    pub(crate) most: Option<usize>,
    pub(crate) generation: GenerationOptions,
}

/// Answers lines of standard input until it ends. Prompts, help and what a model thinks go to standard error if that is a
/// terminal.
pub(crate) fn run(input: Input, options: &Chat, out: &mut impl Write) -> Result<ExitCode> {
    let interrupt = Interrupt::new();
    let engine = options.generation.engine()?;
    let model = options.generation.model(input, &engine)?;
    let template = match &options.template {
        Some(path) => {
            let source = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            ChatTemplate::new(&source, model.tokenizer())?
        }
        None => model.chat_template(options.template_name.as_deref())?,
    };
    let mut conversation = Conversation {
        model: &model,
        template: &template,
        session: options.generation.session(&model)?,
        sampler: options.generation.sampler(&model)?,
        most: options.most.unwrap_or(usize::MAX),
        system: options.system.as_deref(),
        messages: Vec::new(),
        interrupt: &interrupt,
        aside: Aside::new(io::stderr().is_terminal().then(io::stderr)),
    };
    conversation.clear();
    let with_person = io::stdin().is_terminal() && io::stderr().is_terminal();
    if with_person {
        eprintln!("/clear forgets the conversation, /quit ends; Ctrl-C stops an answer");
    }
    let mut lines = io::stdin().lock().lines();
    let mut code = ExitCode::SUCCESS;
    loop {
        if with_person {
            eprint!("> ");
        }
        let Some(line) = lines.next() else { break };
        let line = line.map_err(|error| format!("the standard input: {error}"))?;
        match line.trim() {
            "" => {}
            "/quit" => break,
            "/clear" => conversation.clear(),
            _ => {
                if let Some(problem) = conversation.answer(&line, out)? {
                    note(format_args!("kiln-llm: {problem}"));
                    // A person has seen the message; a script needs the exit code.
                    code = if with_person { code } else { ExitCode::FAILURE };
                }
            }
        }
    }
    Ok(code)
}

struct Conversation<'m> {
    model: &'m Model<'m>,
    template: &'m ChatTemplate,
    session: Session<'m>,
    sampler: Sampler,
    most: usize,
    system: Option<&'m str>,
    messages: Vec<Message>,
    interrupt: &'m Interrupt,
    aside: Aside<io::Stderr>,
}

/// Shows the parts of replies that are not the answer, such as thinking, dimmed, or nowhere.
struct Aside<W> {
    to: Option<W>,
    /// Whether colours are welcome: see <https://no-color.org>.
    dims: bool,
    /// The channel of the last text, while it is shown.
    shown: Option<Channel>,
}

impl<W: Write> Aside<W> {
    fn new(to: Option<W>) -> Self {
        let dims = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { to, dims, shown: None }
    }

    /// Shows a part of a reply, in a line of its own that begins with a label.
    fn write(&mut self, channel: Channel, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if self.shown != Some(channel) {
            self.end()?;
        }
        let Some(to) = &mut self.to else { return Ok(()) };
        if self.shown.replace(channel).is_none() {
            let label = if channel == Channel::ToolCall { "call of a tool" } else { "thinking" };
            write!(to, "{}{label}: ", if self.dims { "\x1b[2m" } else { "" })?;
        }
        write!(to, "{text}")?;
        to.flush()
    }

    /// Ends the line of the last part.
    fn end(&mut self) -> io::Result<()> {
        match (&mut self.to, self.shown.take()) {
            (Some(to), Some(_)) => writeln!(to, "{}", if self.dims { "\x1b[0m" } else { "" }),
            _ => Ok(()),
        }
    }
}

impl Conversation<'_> {
    /// Forgets all messages except the system's.
    fn clear(&mut self) {
        self.messages.clear();
        self.messages.extend(self.system.map(Message::system));
    }

    /// Answers a message, and prints the answer as it is generated. Returns what prevents an answer, or a whole one;
    /// the conversation can continue then. A message without any answer is forgotten.
    fn answer(&mut self, text: &str, out: &mut impl Write) -> Result<Option<String>> {
        self.messages.push(Message::user(text));
        let context = self.session.context();
        let prompt = match self.template.encode(self.model.tokenizer(), &self.messages, true) {
            Err(error @ Error::Template { .. }) => {
                self.messages.pop();
                return Ok(Some(error.to_string()));
            }
            prompt => prompt?,
        };
        if prompt.len() >= context {
            self.messages.pop();
            return Ok(Some(format!(
                "the conversation has {} tokens with this message, {}",
                prompt.len(),
                full(context)
            )));
        }
        self.session.replace(&prompt)?;
        let room = context - prompt.len();
        self.interrupt.begin();
        let mut most = self.most.min(room);
        if most > 0 && !prompt::compute(&mut self.session, self.interrupt)? {
            most = 0;
        }
        let mut made = 0;
        let mut reply = Reply::new(self.model.tokenizer(), &prompt);
        for token in self.session.generate(&self.sampler, most) {
            match reply.push(token?.token) {
                (Channel::Answer, text) => {
                    if !text.is_empty() {
                        self.aside.end()?;
                    }
                    write!(out, "{text}")?;
                    // Prints each token immediately.
                    out.flush()?;
                }
                (channel, text) => self.aside.write(channel, text)?,
            }
            made += 1;
            if self.interrupt.is_requested() {
                break;
            }
        }
        self.aside.end()?;
        writeln!(out)?;
        out.flush()?;
        let was_stopped = self.interrupt.end();
        let was_cut = made == room && !was_stopped;
        if reply.answer().is_empty() {
            self.messages.pop();
            let advice = if was_cut { full(context) } else { "ask again, with a larger -n if there is one".into() };
            let without = format!("the model ended its reply without an answer, so the message is forgotten: {advice}");
            return Ok((!was_stopped).then_some(without));
        }
        self.messages.push(Message::assistant(reply.answer()));
        Ok(was_cut.then(|| format!("the answer was cut, {}", full(context))))
    }
}

/// The advice for a full context.
fn full(context: usize) -> String {
    format!("the context has room for {context}: /clear forgets the conversation, and a larger --ctx gives more room")
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn asides_have_lines_of_their_own() {
        let parts = [
            (Channel::Thinking, ""),
            (Channel::Thinking, "Well"),
            (Channel::Thinking, ", 2."),
            (Channel::ToolCall, "{}"),
            (Channel::Thinking, "4"),
        ];
        for (dims, begin, end) in [(true, "\x1b[2m", "\x1b[0m"), (false, "", "")] {
            let mut aside = Aside { to: Some(Vec::new()), dims, shown: None };
            for (channel, text) in parts {
                aside.write(channel, text).unwrap();
            }
            aside.end().unwrap();
            aside.end().unwrap();
            let line = |text: &str| format!("{begin}{text}{end}\n");
            let expected = [line("thinking: Well, 2."), line("call of a tool: {}"), line("thinking: 4")].concat();
            assert_eq!(String::from_utf8(aside.to.unwrap()).unwrap(), expected);
        }
        let mut nowhere = Aside { to: None::<Vec<u8>>, dims: true, shown: None };
        nowhere.write(Channel::Thinking, "x").unwrap();
        nowhere.end().unwrap();
    }
}
