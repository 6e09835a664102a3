//! The program as users run it.

use std::path::PathBuf;
use std::process::{Command, Output};

use kiln_gguf::{Gguf, TensorKind, Writer};

use crate::support;

/// Runs the program; its exit code, output and errors.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_kiln-llm")).args(arguments).output().expect("the program is built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what is printed is UTF-8");
    (status.code().expect("it ends by itself"), text(stdout), text(stderr))
}

fn path(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln-llm-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder.join(name)
}

/// A file with a tokenizer, tensors of three types and a hostile name.
fn model(name: &str) -> String {
    let path = path(name);
    let vocabulary = support::spm().bytes();
    let vocabulary = Gguf::parse(&vocabulary).unwrap();
    let mut writer = Writer::new();
    writer.set("general.architecture", &"llama").unwrap();
    writer.set("general.\u{1b}[2J", &"\u{1b}[31m").unwrap();
    writer.set_all(vocabulary.metadata()).unwrap();
    writer.tensor("token_embd.weight", TensorKind::F32, &[4, 12], &[0; 192]).unwrap();
    writer.tensor("ternary\n", TensorKind::Tq1_0, &[256], &[0; 54]).unwrap();
    writer.tensor("blk.0.attn_q.weight", TensorKind::Q8_0, &[32, 2], &[0; 68]).unwrap();
    writer.save(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn inspect_prints_what_is_there_and_what_cannot_be_used() {
    let model = model("inspect.gguf");
    for arguments in [&["inspect", &model][..], &["inspect", "--read", &model]] {
        let (code, out, errors) = run(arguments);
        assert_eq!((code, &*errors), (0, ""));
        for expected in [
            "GGUF version 3",
            "string general.architecture = \"llama\"",
            "array  tokenizer.ggml.scores = 12 f32 [0, 0, 0, 0, 0, -1, -2, -3, ...]",
            "F32      [4, 12]                     192 B  token_embd.weight",
            "Q8_0         1 tensors             64 elements       68 B",
            "all          3 tensors            368 elements      314 B",
            "12 tokens",
            "BOS       1 \"<s>\"",
            "in front of a text: 1 \"<s>\"; behind it: nothing",
            "a generation ends with: 2 \"</s>\"",
            "1 tensors of type TQ1_0 (ternary\\n, ...)",
        ] {
            assert!(out.contains(expected), "{expected:?} is not in\n{out}");
        }
        // Names from the file cannot control the terminal.
        assert!(!out.chars().any(|c| c.is_control() && c != '\n'), "{out:?}");
    }
}

#[test]
fn inspect_prints_the_plan_of_run() {
    let model = support::random_model::RandomModel::new(support::random_model::KINDS[0]).save("program-plan");
    let model = model.to_str().unwrap();
    let plan = |options: &[&str]| {
        let (code, out, errors) = run(&[&["inspect", model], options].concat());
        assert_eq!((code, &*errors), (0, ""), "{options:?}");
        let (_, plan) = out.split_once("\nMemory\n").expect("a section");
        let (plan, problems) = plan.split_once("\n\n").expect("a section after it");
        assert!(problems.contains("nothing: every tensor"), "{problems}");
        plan.lines().map(|line| line.trim_start().to_owned()).collect::<Vec<_>>()
    };
    for options in [&["--device", "cpu"][..], &["--ctx", "64", "--device", "cpu", "--cache", "f32"]] {
        let (code, _, explained) = run(&[&["run", model, "ab", "-n", "1", "--explain"], options].concat());
        assert_eq!(code, 0, "{explained}");
        let expected: Vec<&str> = explained.lines().take(3).collect();
        assert_eq!(plan(options), expected, "{options:?}");
    }
    // Two layers with two heads of six keys and as many values, of 16 and of 32 bits; half of the tokens take half of it.
    let cache = |options: &[&str]| plan(&[options, &["--device", "cpu"]].concat())[1].clone();
    for (options, expected) in [
        (&["--ctx", "100"][..], "9600 B"),
        (&["--ctx", "50"], "4800 B"),
        (&["--ctx", "100", "--cache", "f32"], "19.2 kB"),
    ] {
        assert!(cache(options).contains(expected), "{options:?}: {}", cache(options));
    }
    // Without a GPU no limit of its memory says how many layers fit.
    let limited = plan(&["--device", "cpu", "--device-memory", "8G"]);
    assert!(limited.len() == 4 && limited[3].contains("no GPU is among the placements of the engine"), "{limited:?}");
    for (options, expected) in [
        (&["--layers", "1", "--device", "cpu"][..], "no GPU is among the placements"),
        (&["--cache", "f17"], "f17"),
        (&["--ctx", "0"], "a context of 0 tokens"),
        (&["--device", "nowhere"], "nowhere"),
    ] {
        let (code, _, errors) = run(&[&["inspect", model], options].concat());
        assert!(code == 1 && errors.contains(expected), "{options:?}: {errors}");
    }
    std::fs::remove_file(model).unwrap();
    // A model that cannot be loaded is no error here: the reason is what kiln cannot use.
    let mut broken = support::random_model::RandomModel::new(support::random_model::KINDS[0]);
    broken.tensors.retain(|(name, ..)| name != "blk.1.ffn_up.weight");
    let broken = broken.save("program-plan-broken");
    let (code, out, errors) = run(&["inspect", broken.to_str().unwrap(), "--device", "cpu"]);
    assert_eq!((code, &*errors), (0, ""));
    assert!(out.contains("\nMemory\n  cannot be planned, see below\n"), "{out}");
    assert!(out.contains("  the model: ") && out.contains("blk.1.ffn_up.weight"), "{out}");
    std::fs::remove_file(broken).unwrap();
}

#[test]
fn tokenize_prints_tokens() {
    let model = model("tokenize.gguf");
    let (code, out, _) = run(&["tokenize", &model, "ab<s>"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("      1 \"<s>\"\n      9 \"\u{2581}ab\"\n"), "{out}");
    assert_eq!(run(&["tokenize", "--ids", &model, "abab"]), (0, "1 9 8\n".into(), String::new()));
    assert_eq!(run(&["tokenize", "--ids", "--no-special", &model, "ab"]).1, "9\n");
    assert_eq!(run(&["tokenize", "--ids", "--no-special", "--parse-special", &model, "ab<s>"]).1, "9 1\n");
}

#[test]
fn errors_have_exit_codes_and_say_what_to_do() {
    let (code, out, errors) = run(&["inspect", "/nowhere/model.gguf"]);
    assert_eq!((code, &*out), (1, ""));
    assert!(errors.starts_with("kiln-llm: /nowhere/model.gguf: "), "{errors}");
    let text = path("text.gguf");
    std::fs::write(&text, "not a model").unwrap();
    let (code, _, errors) = run(&["tokenize", text.to_str().unwrap(), "x"]);
    assert!(code == 1 && errors.contains("not a GGUF file"), "{errors}");
    assert_eq!(run(&["inspect"]).0, 2);
    assert_eq!(run(&["sing"]).0, 2);
    assert_eq!(run(&[]).0, 2);
    let (code, out, _) = run(&["--help"]);
    assert!(code == 0 && out.contains("inspect") && out.contains("tokenize") && out.contains("Exit codes"), "{out}");
    let (code, out, _) = run(&["tokenize", "--help"]);
    assert!(code == 0 && out.contains("--parse-special") && out.contains("Example"), "{out}");
    assert_eq!(run(&["--version"]).0, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_a_reader_that_goes_away_is_not() {
    use std::process::Stdio;
    let model = model("full.gguf");
    let program = env!("CARGO_BIN_EXE_kiln-llm");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(program).args(["inspect", &model]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let mut child = Command::new(program).args(["inspect", &model]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// What the program prints where no thread can be created. `None` where the limit cannot be set.
#[cfg(target_os = "linux")]
fn run_without_threads(arguments: &[&str]) -> Option<String> {
    use std::os::unix::process::CommandExt;
    let mut shell = Command::new("/bin/sh");
    // No such limit binds root: root starts a process of another user, who has no other process.
    if !Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout != b"0\n") {
        shell.uid(61_290).gid(61_290);
    }
    // bash and dash name the limit differently.
    let limited = "{ ulimit -u 0 2>/dev/null || ulimit -p 0; } && echo limited && exec \"$0\" \"$@\"";
    let output = shell.args(["-c", limited, env!("CARGO_BIN_EXE_kiln-llm")]).args(arguments).current_dir("/").output();
    let Ok(Output { status, stdout, stderr }) = output else {
        println!("skipped: this user cannot start a process of another one");
        return None;
    };
    let (out, errors) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    let Some(out) = out.strip_prefix("limited\n") else {
        println!("skipped: the number of threads cannot be limited: {errors}");
        return None;
    };
    assert!(status.success() && errors.contains("Ctrl-C will end the program"), "{status}: {errors}");
    Some(out.to_owned())
}

#[test]
fn run_continues_a_text_and_bench_measures() {
    let model = support::random_model::RandomModel::new(support::random_model::KINDS[0]).save("program");
    let model = model.to_str().unwrap();
    let greedy = ["run", model, "ab", "--temperature", "0", "-n", "4", "--device", "cpu"];
    let (code, text, errors) = run(&greedy);
    assert_eq!((code, &*errors), (0, ""));
    assert!(text.starts_with("ab") && text.ends_with('\n'), "{text:?}");
    #[cfg(target_os = "linux")]
    assert_eq!(run_without_threads(&greedy).as_deref().unwrap_or(&text), text);
    let (code, ids, _) = run(&[&greedy[..], &["--ids"]].concat());
    let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert!(code == 0 && ids.len() <= 4, "{ids:?}");
    let seeded = ["run", model, "ab", "--seed", "7", "--temperature", "2", "--ids", "--cache", "f32"];
    assert_eq!(run(&seeded), run(&seeded));
    let (code, _, explained) = run(&[&greedy[..], &["--explain"]].concat());
    assert!(code == 0 && explained.contains("predicted"), "{explained}");
    // The memory plan: a line of numbers with units, for layers 0 and 1.
    let plan: Vec<&str> = explained.lines().take(3).collect();
    assert!(["layers", "weights", "cache", "scratch"].iter().all(|head| plan[0].contains(head)), "{explained}");
    assert!(plan[1].contains("0 to 1") && plan[1].contains("unknown") && plan[2].contains("context of"), "{explained}");
    let (code, _, errors) = run(&[&greedy[..], &["--layers", "1"]].concat());
    assert!(code == 1 && errors.contains("no GPU is among the placements of the engine"), "{errors}");
    let (code, _, errors) = run(&[&greedy[..], &["--layers", "3"]].concat());
    assert!(code == 1 && errors.contains("the model has 2"), "{errors}");
    assert_eq!(run(&[&greedy[..], &["--layers", "0", "--device-memory", "1.5GiB"]].concat()), run(&greedy));
    for wrong in [["--layers", "-1"], ["--layers", "all"], ["--device-memory", "0"], ["--device-memory", "1x"]] {
        let (code, _, errors) = run(&[&greedy[..], &wrong].concat());
        assert!(code == 2 && errors.contains("expected") | errors.contains("unexpected"), "{wrong:?}: {errors}");
    }
    let (code, table, errors) = run(&["bench", model, "-p", "20", "-n", "3", "-r", "1", "--depth", "9"]);
    assert_eq!((code, &*errors), (0, ""));
    assert!(["prompt", "decode", "tokens/s"].iter().all(|word| table.contains(word)), "{table}");
    // Several sequences: a line and an object for each number of sequences.
    let batched = ["bench", model, "-p", "20", "-n", "3", "-r", "1", "--batch", "1,3"];
    let (code, table, errors) = run(&batched);
    assert_eq!((code, &*errors, table.lines().count()), (0, "", 3), "{table}");
    let objects = |arguments: &[&str]| {
        let (code, out, errors) = run(&[arguments, &["--json"]].concat());
        assert_eq!((code, &*errors), (0, ""));
        serde_json::from_str::<Vec<serde_json::Value>>(&out).unwrap()
    };
    let found = objects(&batched);
    for (object, batch) in found.iter().zip([1, 3]) {
        assert_eq!((&object["batch"], &object["prompt"], &object["tokens"]), (&batch.into(), &20.into(), &3.into()));
        for rate in ["prompt_tokens_per_second", "decode_tokens_per_second", "tokens_per_second"] {
            assert!(object[rate]["mean"].as_f64() > Some(0.0) && object[rate]["deviation"] == 0.0, "{object}");
        }
    }
    let single = objects(&["bench", model, "-p", "20", "-n", "3", "-r", "1"]);
    assert_eq!((found.len(), single.len(), &single[1]["test"]), (2, 2, &"decode".into()));
    for (arguments, code, expected) in [
        (&["--profile", "--device", "cpu"][..], 1, "not that of one GPU"),
        (&["--profile", "--json"], 2, "--json"),
        (&["--batch", "65"], 1, "1 to 64"),
        (&["--batch", "2", "-p", "0"], 1, "-p and -n"),
        (&["--batch", "2", "--depth", "1"], 2, "--depth"),
        (&["-p", "18446744073709551615", "--depth", "1"], 1, "context of 18446744073709551615"),
        (&["-p", "18446744073709551615", "--batch", "1"], 1, "context of 18446744073709551615"),
        (&["--profile", "-p", "18446744073709551615", "--batch", "1"], 1, "context of 18446744073709551615"),
    ] {
        let (found, _, errors) = run(&[&["bench", model][..], arguments].concat());
        assert!(found == code && errors.contains(expected), "{arguments:?}: {errors}");
    }
    for (arguments, expected) in [
        (&["--cache", "f17"][..], "f17"),
        (&["--device", "nowhere"], "nowhere"),
        (&["--ctx", "1"], "context of 1"),
        (&["--cache", "q8_0"], "whole blocks"),
    ] {
        let (code, _, errors) = run(&[&greedy[..7], arguments].concat());
        assert!(code == 1 && errors.contains(expected), "{arguments:?}: {errors}");
    }
    std::fs::remove_file(model).unwrap();
}

#[test]
fn adapters_change_what_every_command_computes() {
    use support::random_adapter::RandomAdapter;
    use support::random_model::{LLAMA, RandomModel};

    let mut random = RandomModel::new(LLAMA);
    let model = random.save("program-adapted");
    let adapter = RandomAdapter::new(LLAMA, 7, 3, "F32", |_, name| name != "ffn_up");
    let [gguf, text] = [path("a=b.gguf"), path("adapted.txt")];
    std::fs::write(&gguf, adapter.gguf()).unwrap();
    std::fs::write(&text, "ab".repeat(20)).unwrap();
    let folder = support::random_folder::TemporaryFolder::new("program-peft");
    folder.write("adapter_config.json", adapter.peft_config().to_string());
    folder.write("adapter_model.safetensors", adapter.peft_weights());
    // The same with the adapter half merged into the weights.
    adapter.merge(&mut random, 0.5);
    let merged = random.save("program-merged");
    let [model, merged, gguf, text] = [&model, &merged, &gguf, &text].map(|path| path.to_str().unwrap());
    let peft = folder.0.to_str().unwrap();

    let logits = |model: &str, options: &[&str]| {
        let common = ["logits", model, "--tokens", "1,6,7,8", "--top", "12", "--device", "cpu"];
        let (code, out, errors) = run(&[&common[..], options].concat());
        assert_eq!((code, &*errors), (0, ""), "{options:?}");
        let of = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
        out.lines().map(of).collect::<Vec<_>>()
    };
    let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
    let [by_half, of_folder] = [gguf, peft].map(|file| format!("{file}=0.5"));
    let quarters = format!("{gguf}=0.25");
    let expected = logits(merged, &[]);
    assert!(!close(&logits(model, &[]), &expected) && !close(&logits(model, &["--lora", gguf]), &expected));
    assert!(close(&logits(model, &["--lora", &by_half]), &expected));
    assert!(close(&logits(model, &["--lora", &of_folder]), &expected));
    // The updates of several adapters are added.
    assert!(close(&logits(model, &["--lora", &quarters, "--lora", &format!("{peft}=0.25")]), &expected));
    for arguments in [
        &["run", "ab", "-n", "3", "--temperature", "0", "--device", "cpu", "--cache", "f32"][..],
        &["perplexity", text, "--ctx", "8", "--device", "cpu", "--cache", "f32"],
    ] {
        let with = |model: &str, options: &[&str]| {
            let (code, out, errors) = run(&[&arguments[..1], &[model], &arguments[1..], options].concat());
            assert_eq!((code, &*errors), (0, ""), "{arguments:?}");
            out
        };
        let (adapted, expected) = (with(model, &["--lora", &by_half]), with(merged, &[]));
        // A perplexity differs in its last digit at most.
        let number = |out: &str| out.strip_prefix("perplexity ")?.split_whitespace().next()?.parse::<f64>().ok();
        match (number(&adapted), number(&expected)) {
            (Some(adapted), Some(expected)) => assert!((adapted - expected).abs() < 2e-4, "{adapted} {expected}"),
            _ => assert_eq!(adapted, expected, "{arguments:?}"),
        }
    }
    let (code, _, errors) = run(&["bench", model, "-p", "4", "-n", "2", "-r", "1", "--lora", gguf]);
    assert_eq!((code, &*errors), (0, ""));

    let (code, out, _) = run(&["inspect", gguf]);
    assert_eq!(code, 0);
    for expected in
        ["of the architecture llama", "attn_k          2 layers (0 to 1), rank 3, 24 inputs, 12 outputs, factor 3"]
    {
        assert!(out.contains(expected), "{expected:?} is not in\n{out}");
    }
    let (code, out, _) = run(&["inspect", peft]);
    assert!(code == 0 && out.contains("a folder of PEFT") && out.contains("ffn_down"), "{out}");
    for (arguments, expected) in [
        (&["run", gguf, "ab"][..], "a model is needed"),
        (&["run", peft, "ab"], "a model is needed"),
        (&["tokenize", peft, "ab"], "a model is needed"),
        (&["run", model, "ab", "--lora", model], "general.type"),
        (&["run", model, "ab", "--lora", "/nowhere.gguf"], "/nowhere.gguf"),
    ] {
        let (code, _, errors) = run(arguments);
        assert!(code == 1 && errors.contains(expected), "{arguments:?}: {errors}");
    }
    for scale in ["=1", "x.gguf=inf"] {
        assert_eq!(run(&["run", model, "ab", "--lora", scale]).0, 2, "{scale}");
    }
    for file in [model, merged] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn run_draws_as_its_options_say() {
    let model = support::random_model::RandomModel::new(support::random_model::KINDS[0]).save("program-sampling");
    let model = model.to_str().unwrap();
    let ids = |options: &[&str]| {
        let common = ["run", model, "ab", "-n", "5", "--ids", "--device", "cpu", "--cache", "f32"];
        let (code, out, errors) = run(&[&common[..], options].concat());
        assert_eq!((code, &*errors), (0, ""), "{options:?}");
        out
    };
    // A bias forces a token, and forbids it.
    assert_eq!(ids(&["--logit-bias", "7=1000"]), "7 7 7 7 7\n");
    assert_eq!(ids(&["--temperature", "0", "--logit-bias", "7=1000"]), "7 7 7 7 7\n");
    let forbidden =
        ids(&["--temperature", "0", "--logit-bias", "7=1000", "--logit-bias", "7=-inf", "--logit-bias=6=999"]);
    assert_eq!(forbidden, "6 6 6 6 6\n");
    // Penalties change which of two tokens comes next: at first the logit of 7 is greater by about 20.
    let two = ["--temperature", "0", "--logit-bias", "7=1020", "--logit-bias", "6=1000"];
    let with = |options: &[&str]| ids(&[&two[..], options].concat());
    let alternating = with(&["--frequency-penalty", "50"]);
    assert_eq!(alternating, "7 6 7 6 7\n");
    assert_eq!(with(&["--frequency-penalty", "50", "--repeat-last-n", "0"]), with(&[]));
    assert_eq!(with(&["--frequency-penalty", "50", "--repeat-last-n", "-1"]), alternating);
    assert_eq!(with(&["--presence-penalty", "-50"]), with(&["--frequency-penalty", "-50"]));
    assert_eq!(with(&["--repeat-penalty", "1.5", "--repeat-last-n", "1"]), alternating);
    // After `7 7` DRY prefers 6 to a third 7; after `7 7 6 7` it penalises both. The text of 7, "b", ends repetitions.
    let dry = ["--dry-multiplier", "100", "--dry-base", "2", "--dry-allowed-length", "1", "--dry-last-n", "-1"];
    let seven = ["--temperature", "0", "--logit-bias", "7=1100", "--logit-bias", "6=1060"];
    assert_eq!(ids(&[&seven[..], &dry].concat()), "7 7 6 7 7\n");
    assert_eq!(ids(&[&seven[..], &dry, &["--dry-sequence-breaker", "b"]].concat()), "7 7 7 7 7\n");
    // Each of the other options has an effect: it leaves only the likeliest token.
    let likeliest = ids(&["--temperature", "0"]);
    for options in [
        &["--typical-p", "1", "--top-k", "1"][..],
        &["--top-n-sigma", "0.0001"],
        &["--xtc-probability", "0", "--xtc-threshold", "0.1", "--min-p", "1"],
        &["--mirostat-tau", "0.001", "--mirostat-eta", "0"],
        &["--dynatemp-range", "0.8", "--dynatemp-exponent", "1000"],
    ] {
        assert_eq!(ids(options), likeliest, "{options:?}");
    }
    assert_ne!(ids(&["--xtc-probability", "1", "--xtc-threshold", "0"]), likeliest);
    let refused = |options: &[&str]| {
        let (code, out, errors) = run(&[&["run", model, "ab"][..], options].concat());
        assert_eq!(out, "", "nothing before the error");
        (code, errors)
    };
    for (options, code, expected) in [
        (&["--top-p", "0"][..], 1, "top_p: 0 was given, a number above 0 and at most 1 is expected"),
        (&["--temperature", "nan"], 1, "temperature"),
        (&["--temperature", "-1"], 1, "temperature: -1 was given"),
        (&["--logit-bias", "99=1"], 1, "token 99"),
        (&["--dry-multiplier", "1", "--dry-sequence-breaker", ""], 1, "dry_breakers"),
        (&["--logit-bias", "7"], 2, "7=-inf"),
        (&["--repeat-last-n", "-2"], 2, "-1 is expected"),
    ] {
        let (found, errors) = refused(options);
        assert!(found == code && errors.contains(expected), "{options:?}: {found} {errors}");
    }
    let (_, help, _) = run(&["run", "--help"]);
    let parts = help
        .split_once("\nSampling:\n")
        .and_then(|(first, rest)| Some((first, rest.split_once("\nPenalties and bias:\n")?)));
    let (options, (sampling, penalties)) = parts.expect("two headings");
    assert!(
        options.contains("--device") && sampling.contains("--top-p") && penalties.contains("--logit-bias"),
        "{help}"
    );
    std::fs::remove_file(model).unwrap();
}

#[test]
fn perplexity_is_the_exponential_of_the_mean_loss() {
    use support::random_model::{LLAMA, RandomModel};
    let random = RandomModel::new(LLAMA);
    let model = random.save("program-perplexity");
    let model = model.to_str().unwrap();
    let text = path("text.txt");
    std::fs::write(&text, "ab x b ab ab x ".repeat(20)).unwrap();
    let text = text.to_str().unwrap();
    let arguments = ["perplexity", model, text, "--ctx", "16", "--cache", "f32", "--device", "cpu", "--chunks", "3"];
    let (code, line, errors) = run(&arguments);
    assert_eq!((code, &*errors), (0, ""));
    // The same by exact arithmetic: tokens 9 to 15 of each part, which begins with BOS.
    let (_, tokens, _) = run(&["tokenize", model, "--ids", &"ab x b ab ab x ".repeat(20)]);
    let mut tokens: Vec<u32> = tokens.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let (mut sum, mut count) = (0.0, 0);
    for part in tokens.chunks_exact_mut(16).take(3) {
        part[0] = 1;
        let logits = random.reference(part);
        for i in 9..16 {
            let total: f64 = logits[i - 1].iter().map(|logit| logit.exp()).sum();
            sum += total.ln() - logits[i - 1][part[i] as usize];
            count += 1;
        }
    }
    let found: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let expected = (sum / f64::from(count)).exp();
    assert!((found - expected).abs() < 1e-3 * expected, "{line} {expected}");
    assert!(line.contains("21 tokens in 3 parts of 16"), "{line}");
    let (code, _, errors) = run(&["perplexity", model, text, "--device", "cpu"]);
    assert!(code == 1 && errors.contains("--ctx"), "{errors}");
    assert_eq!(run(&["perplexity", model, "/nowhere/text"]).0, 1);
    std::fs::remove_file(model).unwrap();
}

#[test]
fn quantize_writes_a_file_that_runs() {
    let model = support::random_model::RandomModel::new(support::random_model::KINDS[0]).save("program-quantize");
    let model = model.to_str().unwrap();
    let to = path("quantized.gguf");
    let to = to.to_str().unwrap();
    let (code, table, errors) = run(&["quantize", model, to, "Q8_0"]);
    assert_eq!((code, &*errors), (0, ""));
    // Rows of 24 and 40 elements are not whole blocks of 32.
    assert!(table.contains("F32    to F16") && table.contains("bits a weight"), "{table}");
    let (code, text, errors) = run(&["run", to, "ab", "--temperature", "0", "-n", "4", "--device", "cpu"]);
    assert!(code == 0 && text.starts_with("ab"), "{text} {errors}");
    let (code, _, errors) = run(&["quantize", model, to, "q9"]);
    assert!(code == 2 && errors.contains("q4_k_m"), "{errors}");
    let (code, _, errors) = run(&["quantize", model, "/nowhere/x.gguf", "f16"]);
    assert!(code == 1 && errors.contains("/nowhere/"), "{errors}");
    std::fs::remove_file(model).unwrap();
}

#[test]
fn logits_prints_what_follows_tokens() {
    use support::random_model::{LLAMA, RandomModel, VOCABULARY};
    let random = RandomModel::new(LLAMA);
    let model = random.save("program-logits");
    let model = model.to_str().unwrap();
    let arguments = ["logits", model, "--tokens", "1,6,7", "--device", "cpu"];
    let (code, json, errors) = run(&[&arguments[..], &["--json"]].concat());
    assert_eq!((code, &*errors), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["tokens"], serde_json::json!([1, 6, 7]));
    let logits: Vec<f64> = json["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let expected = &random.reference(&[1, 6, 7])[2];
    assert_eq!(logits.len(), VOCABULARY);
    assert!(logits.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4), "{logits:?}");
    let (code, table, _) = run(&[&arguments[..], &["--top", "3"]].concat());
    let tokens: Vec<usize> =
        table.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    let mut likeliest: Vec<usize> = (0..VOCABULARY).collect();
    likeliest.sort_by(|&a, &b| expected[b].total_cmp(&expected[a]));
    assert_eq!((code, &tokens[..]), (0, &likeliest[..3]));
    assert_eq!(run(&[&arguments[..], &["--top", "3", "--json"]].concat()).0, 2);
    assert_eq!(run(&["logits", model]).0, 2);
    for (arguments, expected) in
        [(["--tokens", "1,99"], "token 99"), (["--ctx", "2"], "context of 2"), (["--cache", "f17"], "f17")]
    {
        let tokens: &[&str] = if arguments[0] == "--tokens" { &[] } else { &["--tokens", "1,6,7"] };
        let (code, _, errors) = run(&[&["logits", model], tokens, &arguments].concat());
        assert!(code == 1 && errors.contains(expected), "{arguments:?}: {errors}");
    }
    std::fs::remove_file(model).unwrap();
}

/// A folder works where a file does.
#[test]
fn commands_take_folders() {
    use serde_json::json;
    use support::random_folder::{Form, PLAIN};
    use support::random_model::{Kind, LLAMA, RandomModel};

    let random = RandomModel::new(Kind { interleaved: false, ..LLAMA });
    let own = json!({"a\u{1b}": "\u{9b}31m", "long": "x".repeat(200)});
    let folder = random.save_folder("program", &random.config("llama", own), Form { dtype: "BF16", files: 2, ..PLAIN });
    folder.write("tokenizer_config.json", json!({"bos_token": "<s>", "eos_token": "</s>"}).to_string());
    folder.write("chat_template.jinja", "{{ messages[-1].content }}");
    let path = folder.0.to_str().unwrap();
    for arguments in [&["inspect", path][..], &["inspect", "--read", path]] {
        let (code, out, errors) = run(arguments);
        assert_eq!((code, &*errors), (0, ""));
        for expected in [
            "model-00002-of-00002.safetensors\": safetensors, ",
            "  hidden_size = 24\n",
            "  a\\u{1b} = \"31m\"\n",
            "xxx...\n",
            "  BF16     [12, 24]                    576 B  model.embed_tokens.weight\n",
            "  all         21 tensors",
            "in front of a text: 1 \"<s>\"; behind it: nothing",
            "a generation ends with: 2 \"</s>\"",
            "nothing: every tensor has a type that kiln computes with",
        ] {
            assert!(out.contains(expected), "{expected:?} is not in\n{out}");
        }
        assert!(!out.contains(['\u{1b}', '\u{9b}']), "{out}");
    }
    assert_eq!(run(&["tokenize", path, "ab ab", "--ids"]), (0, "1 9 9\n".into(), "".into()));
    let (code, out, _) = run(&["logits", path, "--tokens", "1,9", "--device", "cpu", "--json"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("{\"logits\":["), "{out}");
    for arguments in [
        &["run", path, "ab", "-n", "3", "--device", "cpu", "--ids"][..],
        &["run", "--read", path, "ab", "-n", "3", "--device", "cpu"],
        &["bench", path, "-p", "2", "-n", "2", "-r", "1", "--device", "cpu"],
    ] {
        let (code, out, errors) = run(arguments);
        assert!(code == 0 && !out.is_empty(), "{arguments:?}: {errors}");
    }
    folder.write("model-00002-of-00002.safetensors", "");
    let (code, _, errors) = run(&["run", path, "ab"]);
    assert!(code == 1 && errors.contains("model-00002-of-00002.safetensors"), "{errors}");
}

#[test]
fn embed_prints_embeddings_and_cosines() {
    use std::io::Write;
    use std::process::Stdio;

    use support::random_bert::{PLAIN, POSITIONS, RandomBert, Rows, WIDTH};

    let random = RandomBert::new();
    let model = random.save("program-embed");
    let model = model.to_str().unwrap();
    let unit = |tokens: &[u32], rows: Rows| -> Vec<f64> {
        let row = random.reference(tokens, rows);
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.into_iter().map(|x| x / length).collect()
    };
    let close = |found: &[f64], expected: &[f64]| {
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    let rows = |out: &str| -> Vec<Vec<f64>> {
        out.lines().map(|line| line.split_whitespace().map(|x| x.parse().unwrap()).collect()).collect()
    };
    let texts = ["unable", "cafe"];
    let expected = [unit(&[2, 4, 5, 3], Rows::All), unit(&[2, 6, 3], Rows::All)];
    let common = [&["embed", model, "--device", "cpu"][..], &texts].concat();
    let (code, out, errors) = run(&common);
    assert_eq!((code, &*errors), (0, ""));
    let found = rows(&out);
    assert!(found.len() == 2 && found.iter().zip(&expected).all(|(a, b)| close(a, b)), "{out}");
    // The same from lines of standard input.
    let lines = |input: &[u8]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln-llm"));
        command.args(&common[..4]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(lines(b"unable\ncafe\n"), (Some(0), out, String::new()));
    assert_eq!(rows(&lines(b"unable\n\ncafe").1).len(), 3);
    assert_eq!(lines(b""), (Some(0), String::new(), String::new()));
    let (code, _, errors) = lines(b"\xff");
    assert!(code == Some(1) && errors.contains("standard input"), "{errors}");

    let (code, json, errors) = run(&[&common[..], &["--json", "--pooling", "cls", "--no-normalize"]].concat());
    assert_eq!((code, &*errors), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["texts"], serde_json::json!(texts));
    let second: Vec<f64> = json["embeddings"][1].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert!(close(&second, &random.reference(&[2, 6, 3], Rows::First)), "{json}");

    let cosine: f64 = expected[0].iter().zip(&expected[1]).map(|(a, b)| a * b).sum();
    let (code, out, _) = run(&[&common[..], &["--similarity"]].concat());
    assert_eq!((code, &*out), (0, &*format!(" 1.0000 {cosine:7.4}\n{cosine:7.4}  1.0000\n")));
    let (_, json, _) = run(&[&common[..], &["--similarity", "--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!((json["similarity"][0][1].as_f64().unwrap() - cosine).abs() < 1e-5, "{json}");

    let long = "cafe ".repeat(POSITIONS);
    let (code, _, errors) = run(&["embed", model, "un", &long]);
    assert!(
        code == 1 && errors.contains("text 1, counted from 0, has 39 tokens") && errors.contains("--truncate"),
        "{errors}"
    );
    let (code, out, errors) = run(&["embed", model, "un", &long, "--truncate", "--max-tokens", "5"]);
    assert!(code == 0 && close(&rows(&out)[1], &unit(&[2, 6, 6, 6, 3], Rows::All)), "{errors}");
    for (arguments, expected_code, expected) in [
        (&["--similarity", "--no-normalize"][..], 2, "--no-normalize"),
        (&["--pooling", "max"], 2, "last"),
        (&["--max-tokens", "2"], 1, "at least 3"),
        (&["--device", "nowhere"], 1, "nowhere"),
    ] {
        let (code, _, errors) = run(&[&["embed", model, "un"], arguments].concat());
        assert!(code == expected_code && errors.contains(expected), "{arguments:?}: {errors}");
    }
    // Commands for other kinds of models.
    for arguments in [&["run", model, "un"][..], &["bench", model], &["logits", model, "--tokens", "2"]] {
        let (code, out, errors) = run(arguments);
        assert!(code == 1 && out.is_empty() && errors.contains("kiln-llm embed"), "{arguments:?}: {errors}");
    }
    let decoder =
        support::random_model::RandomModel::new(support::random_model::KINDS[0]).save("program-embed-decoder");
    let (code, _, errors) = run(&["embed", decoder.to_str().unwrap(), "ab"]);
    assert!(code == 1 && errors.contains("llama models are decoders") && errors.contains("bert"), "{errors}");
    let (_, out, _) = run(&["inspect", decoder.to_str().unwrap()]);
    assert!(out.contains("  a decoder, which continues texts: kiln-llm run\n"), "{out}");

    let folder = random.save_folder("program-embed", PLAIN);
    let path = folder.0.to_str().unwrap();
    let (code, out, errors) = run(&["embed", path, "unable"]);
    assert!(code == 0 && close(&rows(&out)[0], &expected[0]), "{errors}");
    for model in [model, path] {
        let (code, out, errors) = run(&["inspect", model]);
        assert_eq!((code, &*errors), (0, ""));
        assert!(out.contains("  an encoder, which gives texts embeddings: kiln-llm embed\n"), "{out}");
        assert!(out.contains("in front of a text: 2 \"[CLS]\"; behind it: 3 \"[SEP]\""), "{out}");
        assert!(out.contains("nothing: every tensor has a type that kiln computes with"), "{out}");
    }
    folder.change("config.json", |config| config["model_type"] = "roberta".into());
    let (_, out, _) = run(&["inspect", path]);
    assert!(out.contains("the model: the architecture \"roberta\" is not supported"), "{out}");

    // Positions and types are unchanged, and rows of 24 elements are not whole blocks.
    let to = self::path("embed-q8_0.gguf");
    let to = to.to_str().unwrap();
    let (code, table, errors) = run(&["quantize", model, to, "q8_0"]);
    assert!(
        code == 0 && !table.lines().any(|line| line.contains("position_embd") && line.contains(" to ")),
        "{table} {errors}"
    );
    let (code, out, errors) = run(&["embed", to, "unable"]);
    // Weights with 11 significant bits.
    let far = rows(&out)[0].iter().zip(&expected[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(code == 0 && rows(&out)[0].len() == WIDTH && far > 0.0 && far < 1e-2, "{far} {errors}");
    let (_, help, _) = run(&["embed", "--help"]);
    assert!(help.contains("--truncate") && help.contains("Example") && !help.contains("--cache"), "{help}");
    for file in [model, decoder.to_str().unwrap(), to] {
        std::fs::remove_file(file).unwrap();
    }
}
