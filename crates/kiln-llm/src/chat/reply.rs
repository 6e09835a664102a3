//! Replies of models: separates the answer from thinking and tool calls.

use crate::{Decoder, Tokenizer};

/// The audience of a part of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Channel {
    /// The answer: for the user, and for the conversation that the model sees later.
    Answer,
    /// The chain of thought, which is not part of the conversation.
    Thinking,
    /// The call of a tool.
    ToolCall,
}

/// Separates the answer of a model from its thinking, token by token.
///
/// gpt-oss writes messages in the format harmony, `<|channel|>analysis<|message|>...<|end|>`. The channel names the kind of a message:
/// `analysis` is thinking, a message to a recipient (`to=functions.x`) is a tool call, and all others, such as `final`, are the answer.
/// The format requires that later prompts contain only the answer. For models without the tokens of this format everything is the answer,
/// also text between `<think>` and `</think>`, which the templates of such models remove.
///
/// ```no_run
/// # fn main() -> kiln_llm::Result<()> {
/// # let engine = kiln::Engine::new()?;
/// use kiln_llm::{Channel, Message, Model, Reply, Sampler, SessionOptions};
///
/// let model = Model::load(&engine, "gpt-oss-20b.gguf")?;
/// let mut messages = vec![Message::user("What is the capital of France?")];
/// let prompt = model.chat_template(None)?.encode(model.tokenizer(), &messages, true)?;
/// let mut session = model.session(SessionOptions::default())?;
/// session.replace(&prompt)?;
/// let mut reply = Reply::new(model.tokenizer(), &prompt);
/// for made in session.generate(&Sampler::default(), 1000) {
///     match reply.push(made?.token) {
///         (Channel::Answer, text) => print!("{text}"),
///         (_, text) => eprint!("{text}"),
///     }
/// }
/// messages.push(Message::assistant(reply.answer()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Reply<'t> {
    tokenizer: &'t Tokenizer,
    decoder: Decoder<'t>,
    markers: Option<Markers>,
    at: At,
    /// The text of the last token, with the space between two messages.
    text: String,
    answer: String,
}

/// The tokens that structure messages.
#[derive(Debug, Clone, Copy)]
struct Markers {
    start: u32,
    channel: u32,
    message: u32,
    end: u32,
}

/// The position in a message.
#[derive(Debug, Clone)]
enum At {
    /// In the header: the name of the role, and of the channel once that begins; both may be followed by a recipient.
    Header { role: String, channel: Option<String> },
    /// In the content. Until it has text, `is_empty` is true.
    Content { channel: Channel, is_empty: bool },
}

/// The text between two messages that are both part of the answer.
const BETWEEN: &str = "\n\n";

impl Markers {
    fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let find = |text: &str| tokenizer.find(text.as_bytes());
        Some(Self {
            start: find("<|start|>")?,
            channel: find("<|channel|>")?,
            message: find("<|message|>")?,
            end: find("<|end|>")?,
        })
    }
}

impl At {
    const HEADER: Self = Self::Header { role: String::new(), channel: None };
    const ANSWER: Self = Self::Content { channel: Channel::Answer, is_empty: true };

    /// The channel of the content after a header.
    fn channel(&self) -> Channel {
        let Self::Header { role, channel } = self else { return Channel::Answer };
        let channel = channel.as_deref().unwrap_or_default();
        let mut words = role.split_whitespace().chain(channel.split_whitespace());
        match channel.split_whitespace().next() {
            _ if words.any(|word| word.starts_with("to=")) => Channel::ToolCall,
            Some("analysis") => Channel::Thinking,
            _ => Channel::Answer,
        }
    }
}

impl<'t> Reply<'t> {
    /// The reply to a prompt, whose last tokens may begin the reply's first message.
    pub fn new(tokenizer: &'t Tokenizer, prompt: &[u32]) -> Self {
        let markers = Markers::of(tokenizer);
        let (decoder, text, answer) = (tokenizer.decoder(), String::new(), String::new());
        let mut reply = Self { tokenizer, decoder, markers, at: At::ANSWER, text, answer };
        let begin = markers.and_then(|markers| prompt.iter().rposition(|&token| token == markers.start));
        for &token in begin.map_or(&[][..], |begin| &prompt[begin..]) {
            reply.push(token);
        }
        reply.answer.clear();
        reply
    }

    /// The text that a token completes, and its audience. Tokens that structure messages, and headers, have no text.
    pub fn push(&mut self, token: u32) -> (Channel, &str) {
        self.text.clear();
        if let Some(markers) = self.markers
            && self.moves(markers, token)
        {
            self.decoder = self.tokenizer.decoder();
            return (Channel::Answer, &self.text);
        }
        let text = self.decoder.push(token);
        match &mut self.at {
            At::Header { role, channel } => {
                channel.as_mut().unwrap_or(role).push_str(text);
                (Channel::Answer, &self.text)
            }
            At::Content { channel, is_empty } => {
                if *channel == Channel::Answer {
                    if *is_empty && !text.is_empty() && !self.answer.is_empty() {
                        self.text.push_str(BETWEEN);
                    }
                    *is_empty &= text.is_empty();
                    self.text.push_str(text);
                    self.answer.push_str(&self.text);
                } else {
                    self.text.push_str(text);
                }
                (*channel, &self.text)
            }
        }
    }

    /// Moves to another position if the token is a marker; returns whether it is one.
    fn moves(&mut self, markers: Markers, token: u32) -> bool {
        let at = match token {
            _ if token == markers.start || token == markers.end => At::HEADER,
            _ if token == markers.message => At::Content { channel: self.at.channel(), is_empty: true },
            _ if token == markers.channel => {
                let role = match &mut self.at {
                    At::Header { role, .. } => std::mem::take(role),
                    At::Content { .. } => String::new(),
                };
                At::Header { role, channel: Some(String::new()) }
            }
            _ => return false,
        };
        self.at = at;
        true
    }

    /// The text of the answer so far: the content of the message for the conversation.
    pub fn answer(&self) -> &str {
        &self.answer
    }
}
