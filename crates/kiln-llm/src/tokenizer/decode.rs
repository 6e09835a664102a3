//! Decoding: turns tokens into text.

use super::Tokenizer;

/// Turns tokens into text one by one, and buffers the bytes of a character until it is complete.
///
/// ```no_run
/// # fn tokens() -> Vec<u32> { Vec::new() }
/// # fn main() -> kiln_llm::Result<()> {
/// # let file = kiln_gguf::Gguf::open("model.gguf")?;
/// # let tokenizer = kiln_llm::Tokenizer::from_gguf(file.metadata())?;
/// let mut decoder = tokenizer.decoder();
/// for token in tokens() {
///     print!("{}", decoder.push(token));
/// }
/// print!("{}", decoder.finish());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Decoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Bytes of an incomplete character.
    bytes: Vec<u8>,
    text: String,
    special: bool,
    strip_space: bool,
}

impl<'t> Decoder<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, bytes: Vec::new(), text: String::new(), special: false, strip_space: false }
    }

    /// Also writes the texts of control tokens, which are otherwise omitted.
    #[must_use]
    pub fn with_special(mut self) -> Self {
        self.special = true;
        self
    }

    /// Declares that the tokens are the beginning of a text: the space that some tokenizers add before a text is removed.
    #[must_use]
    pub fn from_start(mut self) -> Self {
        self.strip_space = self.tokenizer.adds_space();
        self
    }

    /// Adds a token, and returns the text that it completes. Bytes that are not UTF-8 become replacement characters; unknown tokens
    /// have no text.
    pub fn push(&mut self, token: u32) -> &str {
        let start = self.bytes.len();
        self.tokenizer.piece(token, self.special, &mut self.bytes);
        if self.strip_space && self.bytes.len() > start {
            self.strip_space = false;
            if self.bytes[start] == b' ' {
                self.bytes.remove(start);
            }
        }
        self.text.clear();
        let mut kept = 0;
        let mut rest = &self.bytes[..];
        loop {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    break;
                }
                Err(error) => {
                    let (valid, behind) = rest.split_at(error.valid_up_to());
                    self.text.push_str(str::from_utf8(valid).unwrap_or_default());
                    match error.error_len() {
                        Some(len) => {
                            self.text.push('\u{fffd}');
                            rest = &behind[len..];
                        }
                        // The beginning of a character: at most three bytes.
                        None => {
                            kept = behind.len();
                            break;
                        }
                    }
                }
            }
        }
        self.bytes.drain(..self.bytes.len() - kept);
        &self.text
    }

    /// Returns the buffered bytes as a replacement character, if the text ends within a character.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.bytes.is_empty() {
            self.bytes.clear();
            self.text.push('\u{fffd}');
        }
        &self.text
    }
}
