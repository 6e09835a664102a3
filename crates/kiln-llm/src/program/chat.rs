//! `kiln-llm chat`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use kiln_llm::{ChatTemplate, Error, Message, Model, Sampler, Session};

use crate::Result;
use crate::program::input::Input;
use crate::program::interrupt::Interrupt;
use crate::program::options::GenerationOptions;

/// The options of a chat.
pub(crate) struct Chat {
    pub(crate) system: Option<String>,
    pub(crate) template: Option<PathBuf>,
    pub(crate) template_name: Option<String>,
    pub(crate) most: Option<usize>,
    pub(crate) generation: GenerationOptions,
}

/// Answers lines of standard input until it ends. Prompts and help go to standard error if that is a terminal.
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
                    eprintln!("kiln-llm: {problem}");
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
        let (mut answer, mut made) = (String::new(), 0);
        for token in self.session.generate(&self.sampler, self.most.min(room)) {
            let token = token?;
            write!(out, "{}", token.text)?;
            // Prints each token immediately.
            out.flush()?;
            answer += &token.text;
            made += 1;
            if self.interrupt.is_requested() {
                break;
            }
        }
        writeln!(out)?;
        out.flush()?;
        let was_stopped = self.interrupt.end();
        if was_stopped && answer.is_empty() {
            self.messages.pop();
        } else {
            self.messages.push(Message::assistant(answer));
        }
        Ok((made == room && !was_stopped).then(|| format!("the answer was cut, {}", full(context))))
    }
}

/// The advice for a full context.
fn full(context: usize) -> String {
    format!("the context has room for {context}: /clear forgets the conversation, and a larger --ctx gives more room")
}
