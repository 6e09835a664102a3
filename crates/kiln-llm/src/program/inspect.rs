//! `kiln-llm inspect`.

use std::collections::BTreeMap;
use std::io::Write;

use kiln_gguf::Model;
use kiln_llm::Tokenizer;

use crate::Result;

/// What the tensors of one type are together.
#[derive(Default)]
struct Total {
    tensors: usize,
    elements: u64,
    bytes: u64,
    /// The first one, as an example.
    first: String,
}

/// Prints what is in a model.
pub(crate) fn run(model: &Model, out: &mut impl Write) -> Result<()> {
    for (path, file) in model.paths().iter().zip(model.files()) {
        let (keys, tensors) = (file.metadata().len(), file.infos().len());
        let size = size(file.file_bytes() as u64);
        // The path is what the user wrote, but file names may hold anything, too.
        writeln!(out, "{path:?}: GGUF version {}, {size}, {keys} keys, {tensors} tensors", file.version())?;
    }

    writeln!(out, "\nMetadata")?;
    for (key, value) in model.metadata().iter() {
        writeln!(out, "  {:<6} {} = {value}", value.kind(), plain(key))?;
    }

    writeln!(out, "\nTensors (extents as files have them: the contiguous one first)")?;
    let mut totals: BTreeMap<u32, Total> = BTreeMap::new();
    let mut all = Total::default();
    for info in model.infos() {
        let extents = format!("{:?}", info.extents());
        writeln!(out, "  {:<8} {extents:<22} {:>10}  {}", info.kind(), size(info.bytes() as u64), plain(info.name()))?;
        let total = totals.entry(info.kind().id()).or_default();
        if total.tensors == 0 {
            total.first = plain(info.name());
        }
        for total in [total, &mut all] {
            total.tensors += 1;
            total.elements = total.elements.saturating_add(info.elements());
            total.bytes += info.bytes() as u64;
        }
    }

    writeln!(out, "\nTypes")?;
    let kinds = || totals.iter().filter_map(|(&id, total)| Some((kiln_gguf::TensorKind::from_id(id)?, total)));
    for (kind, total) in kinds() {
        writeln!(
            out,
            "  {:<8} {:>5} tensors {:>14} elements {:>10}",
            kind,
            total.tensors,
            total.elements,
            size(total.bytes)
        )?;
    }
    writeln!(out, "  {:<8} {:>5} tensors {:>14} elements {:>10}", "all", all.tensors, all.elements, size(all.bytes))?;

    writeln!(out, "\nTokenizer")?;
    let tokenizer = match model.metadata().value("tokenizer.ggml.model") {
        None => {
            writeln!(out, "  the file has no tokenizer")?;
            None
        }
        Some(_) => Some(Tokenizer::from_gguf(model.metadata())),
    };
    let mut problems = Vec::new();
    match &tokenizer {
        None => {}
        Some(Ok(tokenizer)) => describe(tokenizer, out)?,
        Some(Err(error)) => {
            writeln!(out, "  cannot be used, see below")?;
            problems.push(format!("the tokenizer: {error}"));
        }
    }
    for (kind, total) in kinds().filter(|(kind, _)| kind.dtype().is_none()) {
        problems.push(format!(
            "{} tensors of type {kind} ({}, ...): kiln has no kernels for this type; quantise the model to a type that it has",
            total.tensors, total.first
        ));
    }
    writeln!(out, "\nWhat kiln cannot use")?;
    if problems.is_empty() {
        writeln!(out, "  nothing: every tensor has a type that kiln computes with")?;
    }
    for problem in problems {
        writeln!(out, "  {problem}")?;
    }
    Ok(())
}

fn describe(tokenizer: &Tokenizer, out: &mut impl Write) -> Result<()> {
    let ids = tokenizer.special_tokens();
    writeln!(out, "  {} tokens", tokenizer.len())?;
    let named = [
        ("BOS", ids.bos),
        ("EOS", ids.eos),
        ("EOT", ids.eot),
        ("EOM", ids.eom),
        ("unknown", ids.unknown),
        ("separator", ids.separator),
        ("padding", ids.padding),
        ("mask", ids.mask),
    ];
    let show = |id: u32| format!("{id} {:?}", String::from_utf8_lossy(tokenizer.token(id).unwrap_or_default()));
    for (name, id) in named {
        if let Some(id) = id {
            writeln!(out, "  {name:<9} {}", show(id))?;
        }
    }
    let (prefix, suffix) = tokenizer.around();
    let shown = |id: Option<u32>| id.map_or_else(|| "nothing".to_owned(), show);
    writeln!(out, "  in front of a text: {}; behind it: {}", shown(prefix), shown(suffix))?;
    let ends: Vec<String> = tokenizer.ends().map(show).collect();
    writeln!(out, "  a generation ends with: {}", if ends.is_empty() { "nothing".into() } else { ends.join(", ") })?;
    Ok(())
}

/// A name with control characters escaped, so that a file cannot control the terminal.
pub(crate) fn plain(name: &str) -> String {
    name.escape_debug().to_string()
}

/// Bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
