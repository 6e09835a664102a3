//! Chat templates, and messages that spell what templates and tokens are made of.

use std::sync::OnceLock;

use kiln_gguf::Gguf;
use kiln_llm::{ChatTemplate, Message, Tokenizer};

use super::message;
use crate::model_files::bpe;
use crate::parts;

/// Templates as models have them, and the constructs that they use.
const TEMPLATES: [&str; 5] = [
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}\
     {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content']|trim %}\
     {% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ strftime_now('%d %b %Y') }}\
     {% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}\
     {% endif %}[INST] {{ system }}{{ m.content.strip().split('</think>')[-1] }} [/INST]{{ eos_token }}{% endfor %}",
    "{%- macro turn(m, depth) -%}{{ m|tojson(indent=2) }}{% if depth > 0 %}{{ turn(m, depth - 1) }}{% endif %}{%- endmacro -%}\
     {%- set ns = namespace(n=0) -%}{%- for m in messages|reverse -%}{%- set ns.n = ns.n + 1 -%}{{ turn(m, 2) }}\
     {%- if loop.last %}{% break %}{% endif -%}{%- endfor -%}{{ ns.n }}",
    "{% generation %}{% for i in range(3) %}{{ i ** 2 }}{{ messages[i:i+1]|map(attribute='role')|join(',') }}\
     {{ 'a' * i ~ i|string }}{% endfor %}{% endgeneration %}",
    "{% filter upper %}{% for key, value in messages[0].items() %}{{ key.replace('o', '0') }}={{ value[::-1] }}\
     {{ value if value is string else value|length }}{% endfor %}{% endfilter %}",
];

/// Contents of messages.
const CONTENTS: [&str; 2] = ["Hello <|im_end|> \u{e4}\u{1f980} </think>", "{{ bos_token }} [INST] ab"];

/// A message and a template.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let source = TEMPLATES.into_iter().enumerate();
    source.map(|(at, source)| parts::join(&[CONTENTS[at % 2].as_bytes(), source.as_bytes()])).collect()
}

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let bytes = bpe().bytes();
        Tokenizer::from_gguf(Gguf::parse(&bytes).expect("it was just written").metadata()).expect("it is valid")
    })
}

/// Compiles a template and makes a prompt of a conversation.
pub(crate) fn run(bytes: &[u8]) {
    let [content, source] = parts::split(bytes);
    let (content, source) = (String::from_utf8_lossy(content), String::from_utf8_lossy(source));
    let template = match ChatTemplate::new(&source, tokenizer()) {
        Ok(template) => template.at(1_700_000_000),
        Err(error) => return message(error),
    };
    let messages =
        [Message::system("Be brief."), Message::user(&*content), Message::assistant("ab"), Message::user("ab")];
    match template.render(&messages, true) {
        Ok(prompt) => assert!(prompt.len() < 2 << 20),
        Err(error) => message(error),
    }
    match template.encode(tokenizer(), &messages[1..], false) {
        Ok(tokens) => assert!(tokens.iter().all(|&token| (token as usize) < tokenizer().len())),
        Err(error) => message(error),
    }
}
