//! The command `chat` of the program as users run it.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::support;
use crate::support::random_model::{KINDS, RandomModel};

/// Messages in turn with the tokens that the random models have.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' and m.content == 'x' %}\
                        {{ raise_exception('no system') }}{% endif %}<user>{{ m.content }}{% endfor %}<user>";

fn model(name: &str) -> String {
    let model = RandomModel::new(KINDS[0]).with("tokenizer.chat_template", TEMPLATE);
    model.save(name).to_str().unwrap().to_owned()
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln-llm"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the program with lines of input; its exit code, output and errors.
fn chat(arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child = start(&[&["chat", "--device", "cpu"], arguments].concat());
    // A program that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what is printed is UTF-8");
    (output.status.code().expect("it ends by itself"), text(output.stdout), text(output.stderr))
}

#[test]
fn turns_are_answered_and_forgotten() {
    let model = model("program-chat");
    let arguments = [&*model, "--temperature", "0", "-n", "6"];
    let (code, first, errors) = chat(&arguments, "ab x");
    assert_eq!((code, &*errors), (0, ""));
    assert!(first.ends_with('\n') && first.len() > 1, "{first:?}");
    // An answer depends on earlier messages until they are forgotten; empty lines are not messages.
    let (_, two, _) = chat(&arguments, "ab x\n\nab x\n");
    assert!(two.starts_with(&first) && two != format!("{first}{first}"), "{two:?}");
    assert_eq!(chat(&arguments, "ab x\n/clear\nab x\n/quit\nab x\n"), (0, format!("{first}{first}"), String::new()));
    // The system message has an effect, and is kept.
    let system = [&arguments[..], &["--system", "b b ab"]].concat();
    let (_, with_system, _) = chat(&system, "ab x\n");
    assert_ne!(with_system, first);
    assert_eq!(chat(&system, "ab x\n/clear\nab x\n").1, format!("{with_system}{with_system}"));
    // A seed gives reproducible answers.
    let seeded = [&*model, "--temperature", "2", "-n", "9", "--seed", "7"];
    let answers = chat(&seeded, "ab\nx\nab\n");
    assert_eq!(chat(&seeded, "ab\nx\nab\n"), answers);
    assert_ne!(chat(&[&seeded[..6], &["8"]].concat(), "ab\nx\nab\n"), answers);
    std::fs::remove_file(model).unwrap();
}

#[test]
fn problems_are_reported_with_what_to_do() {
    let model = model("program-chat-problems");
    // A message that does not fit is forgotten; one that fits is answered as far as the context allows.
    let small = [&*model, "--temperature", "0", "--ctx", "12"];
    let (code, out, errors) = chat(&small, "x x x x x x x x x x x x\n");
    assert_eq!((code, &*out), (1, ""));
    assert!(errors.contains("/clear") && errors.contains("--ctx") && errors.lines().count() == 1, "{errors}");
    let (_, alone, _) = chat(&small, "ab\n");
    assert_eq!(chat(&small, "x x x x x x x x x x x x\nab\n").1, alone);
    // The template's refusal is one line; the conversation continues.
    let (code, out, errors) = chat(&[&model, "--system", "x"], "ab\n");
    assert_eq!((code, &*out), (1, ""));
    assert!(errors.contains("no system"), "{errors}");
    let template = support::temporary("template.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let template = template.to_str().unwrap();
    let (code, out, _) = chat(&[&model, "--template", template, "--system", "x", "-n", "3"], "ab\n");
    assert!(code == 0 && out.ends_with('\n'), "{out:?}");
    std::fs::write(template, "{% for %}").unwrap();
    let none = RandomModel::new(KINDS[0]).save("program-chat-none");
    let none = none.to_str().unwrap();
    for (arguments, expected) in [
        (&[none][..], "--template FILE"),
        (&[&model, "--template-name", "tools"], "\"default\""),
        (&[&model, "--template", "/nowhere/template"], "/nowhere/template"),
        (&[&model, "--template", template], "syntax error"),
        (&[&model, "--cache", "f17"], "f17"),
    ] {
        let (code, out, errors) = chat(arguments, "ab\n");
        assert_eq!((code, &*out), (1, ""), "{arguments:?}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
    let mut child = start(&["chat", &model, "--device", "cpu"]);
    child.stdin.take().unwrap().write_all(b"\xff\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("standard input"));
    for file in [&model, none, template] {
        std::fs::remove_file(file).unwrap();
    }
}

/// A model that answers in the format harmony. With a penalty for tokens that were there, the second channel and the second text
/// differ from the first ones. Its template refuses thinking in the conversation, as that of gpt-oss does.
fn harmony(name: &str) -> String {
    let [control, user] = [support::CONTROL, support::USER];
    let tokens = [
        ("<|start|>", control),
        ("<|channel|>", control),
        ("<|message|>", control),
        ("<|end|>", control),
        ("<|return|>", control),
        ("<|call|>", control),
        ("assistant", user),
        ("analysis", user),
        ("final", user),
        ("hm", user),
        ("yes", user),
    ];
    let follows = [
        (9, 4, 90.0),
        (4, 10, 90.0),
        (4, 11, 80.0),
        (10, 5, 90.0),
        (11, 5, 90.0),
        (5, 12, 90.0),
        (5, 13, 80.0),
        (12, 6, 90.0),
        (6, 3, 90.0),
        (3, 9, 90.0),
        (13, 7, 90.0),
    ];
    let template = "{% for m in messages %}{% if 'hm' in m.content or 'analysis' in m.content %}\
                    {{ raise_exception('thinking') }}{% endif %}{% if m.role == 'assistant' and m.content != 'yes' %}\
                    {{ raise_exception('no answer') }}{% endif %}{% endfor %}<|start|>assistant";
    let keys = [("tokenizer.chat_template", template)];
    support::chain::chain(name, &tokens, &follows, &keys).to_str().unwrap().to_owned()
}

#[test]
fn thinking_is_neither_answer_nor_history() {
    let model = harmony("program-harmony");
    let arguments = [&*model, "--temperature", "0", "--presence-penalty", "20"];
    assert_eq!(chat(&arguments, "yes\nyes\n"), (0, "yes\nyes\n".into(), String::new()));
    // A message without an answer is forgotten: the template would refuse it in the next turn.
    let (code, out, errors) = chat(&[&arguments[..], &["-n", "5"]].concat(), "yes\nyes\n");
    assert_eq!((code, &*out), (1, "\n\n"));
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("without an answer")), "{errors}");
    // Nor has one of no tokens.
    let (code, out, errors) = chat(&[&arguments[..], &["-n", "0"]].concat(), "yes\nyes\n");
    assert_eq!((code, &*out, errors.matches("without an answer").count()), (1, "\n\n", 2), "{errors}");
    std::fs::remove_file(model).unwrap();
}

/// On a terminal thinking is shown, dimmed unless colours are unwelcome.
#[cfg(target_os = "linux")]
#[test]
fn thinking_is_shown_on_a_terminal() {
    let model = harmony("program-harmony-terminal");
    let line = format!(
        "printf 'yes\\n' | {} chat {model} --device cpu --temperature 0 --presence-penalty 20",
        env!("CARGO_BIN_EXE_kiln-llm")
    );
    for (no_color, expected) in [("", "\u{1b}[2mthinking: hm\u{1b}[0m\r\nyes\r\n"), ("1", "thinking: hm\r\nyes\r\n")] {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("NO_COLOR", no_color);
        let Ok(output) = script.stdin(Stdio::null()).output() else {
            println!("skipped: there is no program `script` (util-linux), which opens a terminal");
            break;
        };
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(shown.ends_with(expected), "{shown:?}");
    }
    std::fs::remove_file(model).unwrap();
}

/// A model that hardly ever ends a text.
#[cfg(unix)]
fn endless(name: &str) -> String {
    let has_output = |model: &RandomModel| model.tensors.iter().any(|(name, ..)| name == "output.weight");
    let mut model = KINDS.into_iter().map(RandomModel::new).find(has_output).unwrap();
    // The logit of </s> is 0, which makes tokens with greater logits likely.
    let (_, dims, data) = model.tensors.iter_mut().find(|(name, ..)| name == "output.weight").unwrap();
    data[2 * dims[1]..3 * dims[1]].fill(0.0);
    model.with("tokenizer.chat_template", TEMPLATE).save(name).to_str().unwrap().to_owned()
}

#[cfg(unix)]
fn press_ctrl_c(child: &Child) {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_an_answer_and_ends_the_program_between_answers() {
    let model = endless("program-chat-endless");
    let endless = ["--device", "cpu", "--temperature", "0", "-n", "99999", "--ctx", "99999"];
    let mut child = start(&[&["chat", &model], &endless[..]].concat());
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    input.write_all(b"ab\n").unwrap();
    let mut byte = [0];
    output.read_exact(&mut byte).unwrap();
    press_ctrl_c(&child);
    // The answer ends with its line, and the next message is answered.
    while byte[0] != b'\n' {
        output.read_exact(&mut byte).unwrap();
    }
    input.write_all(b"/clear\nx\n").unwrap();
    output.read_exact(&mut byte).unwrap();
    press_ctrl_c(&child);
    while byte[0] != b'\n' {
        output.read_exact(&mut byte).unwrap();
    }
    // The program waits for a line now, or is about to: then the first press still concerns the answer, and the
    // next ends the program.
    let status = loop {
        press_ctrl_c(&child);
        std::thread::sleep(std::time::Duration::from_millis(50));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(130));

    let mut child = start(&[&["run", &model, "ab"], &endless[..]].concat());
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 8]).unwrap();
    press_ctrl_c(&child);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with('\n'), "what was made is printed");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    std::fs::remove_file(model).unwrap();
}
