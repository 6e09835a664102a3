//! Marks text of messages that could be taken for tokens that direct the model.

use std::collections::HashSet;

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
    let control = Control::of(tokenizer);
    let mut guarded = |text: &str| {
        let with = with_guards(tokenizer, &control, text, guard);
        is_needed |= with.len() != text.len();
        with
    };
    let messages = messages.iter().map(|m| Message::new(guarded(&m.role), guarded(&m.content))).collect();
    Ok(is_needed.then_some((guard, messages)))
}

/// The beginnings and tags of control tokens.
struct Control {
    /// Their first bytes.
    begins: [bool; 256],
    /// Those that are tags, [`folded`].
    tags: HashSet<String>,
}

impl Control {
    fn of(tokenizer: &Tokenizer) -> Self {
        let (mut begins, mut tags) = ([false; 256], HashSet::new());
        for text in tokenizer.control_texts() {
            if let Some(&first) = text.first() {
                begins[usize::from(first)] = true;
            }
            if let Some(tag) = str::from_utf8(text).ok().and_then(tag) {
                tags.insert(folded(tag));
            }
        }
        Self { begins, tags }
    }
}

/// A tag without what templates often change: its case, and underscores.
fn folded(tag: &str) -> String {
    tag.chars().filter(|&c| c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// A text with a guard after each character that could begin a token.
fn with_guards(tokenizer: &Tokenizer, control: &Control, text: &str, guard: char) -> String {
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
        // Letters, spaces and tags are too common: only whole tokens that begin with them get a guard, and tags that are tokens in
        // another case.
        let is_tag = || tag(&text[at..]).is_some_and(|tag| !control.tags.contains(&folded(tag)));
        let is_common = || c.is_alphanumeric() || c.is_whitespace() || is_tag();
        if tokenizer.control_at(text, at) || control.begins[usize::from(text.as_bytes()[at])] && !is_common() {
            to.push(guard);
        }
        at += c.len_utf8();
    }
    to
}

/// The `<name>`, `</name>`, `[NAME]` or `[/NAME]` that a text begins with.
fn tag(text: &str) -> Option<&str> {
    [('<', '>'), ('[', ']')].into_iter().find_map(|(open, close)| {
        let inner = text.strip_prefix(open)?;
        let name = inner.strip_prefix('/').unwrap_or(inner);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        let len = text.len() - name.len() + end + 1;
        (end > 0 && name[end..].starts_with(close)).then(|| &text[..len])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn tags_are_names_in_brackets() {
        for (text, expected) in [
            ("<think>", "<think>"),
            ("</think> x", "</think>"),
            ("[THINK]]", "[THINK]"),
            ("[/INST]", "[/INST]"),
            ("<a_1>", "<a_1>"),
        ] {
            assert_eq!(tag(text), Some(expected), "{text}");
        }
        for text in ["<", "<>", "</>", "<|im_end|>", "< a>", "<a", "[a>", "a", "<a/b>", "<a<b>"] {
            assert_eq!(tag(text), None, "{text}");
        }
    }
}
