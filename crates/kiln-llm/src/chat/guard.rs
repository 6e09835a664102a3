//! Marks text of messages that could be taken for tokens that direct the model.

use super::message::Message;
use crate::{Error, Result, Tokenizer};

/// The messages with a guard character after each character that could begin a token, and the guard, which occurs
/// neither in the messages nor in `text`. `None` if no message contains such a character.
///
/// # Errors
/// [`Error::Template`] if no unused character is left, which requires messages with every noncharacter and private-use
/// character.
pub(super) fn guarded(tokenizer: &Tokenizer, messages: &[Message], text: &str) -> Result<Option<(char, Vec<Message>)>> {
    let is_free = |guard: char| {
        !text.contains(guard) && messages.iter().all(|m| !m.content.contains(guard) && !m.role.contains(guard))
    };
    // Tries noncharacters first: no text should contain them.
    let guard = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{ffffd}').find(|&guard| is_free(guard));
    let guard = guard.ok_or_else(|| Error::Template { reason: "the messages use every private character".into() })?;
    let mut is_needed = false;
    let begins = tokenizer.control_beginnings();
    let mut guarded = |text: &str| {
        let with = with_guards(tokenizer, &begins, text, guard);
        is_needed |= with.len() != text.len();
        with
    };
    let messages = messages.iter().map(|m| Message::new(guarded(&m.role), guarded(&m.content))).collect();
    Ok(is_needed.then_some((guard, messages)))
}

/// A text with a guard after each character that could begin a token; `begins` marks the first bytes of such tokens.
fn with_guards(tokenizer: &Tokenizer, begins: &[bool; 256], text: &str, guard: char) -> String {
    let mut to = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        // Tokens that users may write are recognised in every text.
        if let Some(len) = tokenizer.user_defined_at(text, at) {
            to.push_str(&text[at..at + len]);
            at += len;
            continue;
        }
        to.push(c);
        // Letters and spaces are too common: only whole tokens that begin with them get a guard.
        let is_common = c.is_alphanumeric() || c.is_whitespace() || is_tag(&text[at..]);
        if tokenizer.control_at(text, at) || !is_common && begins[usize::from(text.as_bytes()[at])] {
            to.push(guard);
        }
        at += c.len_utf8();
    }
    to
}

/// Whether a text begins with `<name>`, `</name>`, `[NAME]` or `[/NAME]`.
fn is_tag(text: &str) -> bool {
    [('<', '>'), ('[', ']')].into_iter().any(|(open, close)| {
        let Some(inner) = text.strip_prefix(open) else { return false };
        let name = inner.strip_prefix('/').unwrap_or(inner);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        end > 0 && name[end..].starts_with(close)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn tags_are_names_in_brackets() {
        for tag in ["<think>", "</think> x", "[THINK]", "[/INST]", "<a_1>"] {
            assert!(is_tag(tag), "{tag}");
        }
        for text in ["<", "<>", "</>", "<|im_end|>", "< a>", "<a", "[a>", "a", "<a/b>", "<a<b>"] {
            assert!(!is_tag(text), "{text}");
        }
    }
}
