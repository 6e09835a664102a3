//! `kiln-llm inspect`.

use std::collections::BTreeMap;
use std::io::Write;

use kiln_gguf::Model;
use kiln_llm::{
    Adapter, AdapterModule, Bytes, DeviceLayers, Error, Folder, MemoryPlan, ModelKind, ModelOutline, SessionOptions,
    Tokenizer,
};

use crate::Result;
use crate::program::input::Input;
use crate::program::options::PlacementOptions;

/// Maximum number of characters of a folder's value that are printed.
const MOST_OF_VALUE: usize = 100;

/// Totals of the tensors of one type.
#[derive(Default)]
struct Total {
    tensors: usize,
    elements: u64,
    bytes: u64,
    /// The first one, as an example.
    first: String,
}

impl Total {
    /// Counts a tensor.
    fn add(&mut self, name: &str, elements: u64, bytes: u64) {
        if self.tensors == 0 {
            self.first = plain(name);
        }
        self.tensors += 1;
        self.elements = self.elements.saturating_add(elements);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn print(&self, kind: &str, out: &mut impl Write) -> Result<()> {
        let Self { tensors, elements, bytes, .. } = self;
        Ok(writeln!(out, "  {kind:<8} {tensors:>5} tensors {elements:>14} elements {:>10}", size(*bytes))?)
    }
}

/// The session whose memory is planned.
pub(crate) struct Inspect {
    pub(crate) context: Option<usize>,
    pub(crate) placement: PlacementOptions,
}

/// The findings about a model after its contents were printed.
struct Findings {
    /// `None` for adapters, and for models that kiln does not run.
    kind: Option<ModelKind>,
    /// The parts that kiln cannot use, with the reasons.
    problems: Vec<String>,
}

/// Prints the contents of a model, and the memory that it takes.
pub(crate) fn run(input: Input, options: &Inspect, out: &mut impl Write) -> Result<()> {
    let Findings { kind, mut problems } = match &input {
        Input::Gguf(model) => run_gguf(model, out)?,
        Input::Folder(folder) => run_folder(folder, out)?,
        Input::Adapter(adapter) => return run_adapter(adapter, out),
    };
    if kind == Some(ModelKind::Decoder) && problems.is_empty() {
        describe_memory(input, options, &mut problems, out)?;
    }
    print_problems(&problems, out)
}

/// Prints the memory that a session takes, and, if the memory of a GPU is limited, how many layers fit.
fn describe_memory(input: Input, options: &Inspect, problems: &mut Vec<String>, out: &mut impl Write) -> Result<()> {
    let Inspect { context, placement } = options;
    let session = SessionOptions { context: *context, cache: placement.cache()? };
    let engine = placement.engine()?;
    writeln!(out, "\nMemory")?;
    let mut outline = match input.outline(&engine) {
        Ok(outline) => outline,
        Err(error) => {
            writeln!(out, "  cannot be planned, see below")?;
            problems.push(format!("the model: {error}"));
            return Ok(());
        }
    };
    outline.place_layers(placement.layers());
    let planned = plan(&outline, session)?;
    print_indented(&planned.as_ref().map_or_else(ToString::to_string, ToString::to_string), out)?;
    if let Some(limit) = placement.device_memory() {
        outline.place_layers(DeviceLayers::Fitting);
        describe_fitting(planned.ok(), outline.memory_plan(session), limit, out)?;
    }
    Ok(())
}

/// The plan of a session, or the reason why it does not fit.
fn plan(outline: &ModelOutline<'_>, session: SessionOptions) -> Result<Result<MemoryPlan, Error>> {
    match outline.memory_plan(session) {
        Err(error) if !matches!(error, Error::OutOfMemory { .. }) => Err(error.into()),
        plan => Ok(plan),
    }
}

/// Prints how many layers fit a limited memory, and the plan for these unless it was printed already.
fn describe_fitting(
    printed: Option<MemoryPlan>,
    fitting: kiln_llm::Result<MemoryPlan>,
    limit: u64,
    out: &mut impl Write,
) -> Result<()> {
    let limit = size(limit);
    let plan = match fitting {
        Ok(plan) => plan,
        Err(error) => return Ok(writeln!(out, "  the number of layers that fit {limit} is unknown: {error}")?),
    };
    let count = plan.parts.iter().map(|part| part.layers.len()).sum::<usize>();
    // Only parts on GPUs have a capacity.
    let on_gpus: Vec<_> = plan.parts.iter().filter(|part| part.capacity.is_some()).collect();
    for part in &on_gpus {
        writeln!(out, "  {} of {count} layers fit {limit} on {}", part.layers.len(), part.place)?;
    }
    if on_gpus.is_empty() {
        writeln!(out, "  0 of {count} layers fit {limit}")?;
    }
    if printed.is_none_or(|printed| printed.parts != plan.parts) {
        writeln!(out, "  with --layers fit:")?;
        print_indented(&plan.to_string(), out)?;
    }
    Ok(())
}

fn print_indented(text: &str, out: &mut impl Write) -> Result<()> {
    text.lines().try_for_each(|line| Ok(writeln!(out, "  {line}")?))
}

/// Prints the changes of an adapter in a PEFT folder.
fn run_adapter(adapter: &Adapter, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{:?}: a folder of PEFT", adapter.name())?;
    describe_adapter(Ok(adapter.clone()), &mut Vec::new(), out)
}

/// Prints the architecture of an adapter's models, and a line for each kind of projection that it changes.
fn describe_adapter(
    adapter: kiln_llm::Result<Adapter>,
    problems: &mut Vec<String>,
    out: &mut impl Write,
) -> Result<()> {
    writeln!(out, "\nAdapter")?;
    let adapter = match adapter {
        Ok(adapter) => adapter,
        Err(error) => {
            writeln!(out, "  cannot be used, see below")?;
            problems.push(format!("{error}"));
            return Ok(());
        }
    };
    let of = adapter.architecture().map_or_else(String::new, |name| format!(" of the architecture {}", plain(name)));
    writeln!(out, "  LoRA for models{of}: kiln-llm run MODEL PROMPT --lora FILE")?;
    let mut kinds: BTreeMap<&str, Vec<AdapterModule<'_>>> = BTreeMap::new();
    for module in adapter.modules() {
        kinds.entry(module.projection).or_default().push(module);
    }
    for (projection, modules) in kinds {
        let layers: Vec<usize> = modules.iter().map(|module| module.layer).collect();
        let ranks = modules.iter().map(|module| module.rank);
        let (least, most) = (ranks.clone().min().unwrap_or(0), ranks.max().unwrap_or(0));
        let rank = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let AdapterModule { inputs, outputs, factor, .. } = modules[0];
        let (first, last) = (layers[0], layers[layers.len() - 1]);
        write!(out, "  {projection:<12} {:>4} layers ({first} to {last}), rank {rank}, ", layers.len())?;
        writeln!(out, "{inputs} inputs, {outputs} outputs, factor {factor}")?;
    }
    Ok(())
}

fn run_gguf(model: &Model, out: &mut impl Write) -> Result<Findings> {
    for (path, file) in model.paths().iter().zip(model.files()) {
        let (keys, tensors) = (file.metadata().len(), file.infos().len());
        let size = size(file.file_bytes() as u64);
        // Escaped: the path comes from the user, but file names may contain any characters.
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
        for total in [totals.entry(info.kind().id()).or_default(), &mut all] {
            total.add(info.name(), info.elements(), info.bytes() as u64);
        }
    }

    writeln!(out, "\nTypes")?;
    let kinds = || totals.iter().filter_map(|(&id, total)| Some((kiln_gguf::TensorKind::from_id(id)?, total)));
    for (kind, total) in kinds() {
        total.print(kind.name(), out)?;
    }
    all.print("all", out)?;

    let mut problems = Vec::new();
    if let (Ok("adapter"), [path], [file]) = (model.metadata().get("general.type"), model.paths(), model.files()) {
        describe_adapter(Adapter::from_gguf(&path.display().to_string(), file), &mut problems, out)?;
        return Ok(Findings { kind: None, problems });
    }
    let kind = describe_kind(ModelKind::of_gguf(model.metadata()), &mut problems, out)?;
    match model.metadata().value("tokenizer.ggml.model") {
        None => writeln!(out, "\nTokenizer\n  the file has no tokenizer")?,
        Some(_) => describe(Tokenizer::from_gguf(model.metadata()), &mut problems, out)?,
    }
    for (kind, total) in kinds().filter(|(kind, _)| kind.dtype().is_none()) {
        problems.push(format!(
            "{} tensors of type {kind} ({}, ...): kiln has no kernels for this type; quantise the model to a type that it has",
            total.tensors, total.first
        ));
    }
    Ok(Findings { kind, problems })
}

fn run_folder(folder: &Folder, out: &mut impl Write) -> Result<Findings> {
    for (path, bytes) in folder.files() {
        writeln!(out, "{path:?}: safetensors, {}", size(bytes as u64))?;
    }

    writeln!(out, "\nconfig.json")?;
    for (key, value) in folder.config() {
        let mut shown: String = value.chars().take(MOST_OF_VALUE).filter(|c| !c.is_control()).collect();
        if value.chars().nth(MOST_OF_VALUE).is_some() {
            shown.push_str("...");
        }
        writeln!(out, "  {} = {shown}", plain(key))?;
    }

    writeln!(out, "\nTensors (extents as files have them: the contiguous one last)")?;
    let (mut totals, mut unsupported) = (BTreeMap::<&str, Total>::new(), BTreeMap::<&str, Total>::new());
    let mut all = Total::default();
    for tensor in folder.tensors() {
        let (extents, bytes) = (format!("{:?}", tensor.shape), tensor.bytes as u64);
        writeln!(out, "  {:<8} {extents:<22} {:>10}  {}", tensor.dtype, size(bytes), plain(tensor.name))?;
        let unsupported = (!tensor.is_supported).then(|| unsupported.entry(tensor.dtype).or_default());
        for total in [totals.entry(tensor.dtype).or_default(), &mut all].into_iter().chain(unsupported) {
            total.add(tensor.name, tensor.shape.iter().map(|&n| n as u64).product(), bytes);
        }
    }

    writeln!(out, "\nTypes")?;
    for (kind, total) in &totals {
        total.print(kind, out)?;
    }
    all.print("all", out)?;

    let mut problems = Vec::new();
    let kind = describe_kind(folder.kind(), &mut problems, out)?;
    describe(folder.tokenizer(), &mut problems, out)?;
    for (kind, total) in &unsupported {
        problems.push(format!(
            "{} tensors of type {kind} ({}, ...): weights of F32, F16 and BF16 are supported",
            total.tensors, total.first
        ));
    }
    Ok(Findings { kind, problems })
}

fn print_problems(problems: &[String], out: &mut impl Write) -> Result<()> {
    writeln!(out, "\nWhat kiln cannot use")?;
    if problems.is_empty() {
        writeln!(out, "  nothing: every tensor has a type that kiln computes with")?;
    }
    for problem in problems {
        writeln!(out, "  {problem}")?;
    }
    Ok(())
}

/// Prints what the model computes, and which commands run it.
fn describe_kind(
    kind: kiln_llm::Result<ModelKind>,
    problems: &mut Vec<String>,
    out: &mut impl Write,
) -> Result<Option<ModelKind>> {
    writeln!(out, "\nModel")?;
    match &kind {
        Ok(ModelKind::Decoder) => writeln!(out, "  a decoder, which continues texts: kiln-llm run")?,
        Ok(ModelKind::Encoder) => writeln!(out, "  an encoder, which gives texts embeddings: kiln-llm embed")?,
        Err(error) => {
            writeln!(out, "  cannot be run, see below")?;
            problems.push(format!("the model: {error}"));
        }
    }
    Ok(kind.ok())
}

fn describe(tokenizer: kiln_llm::Result<Tokenizer>, problems: &mut Vec<String>, out: &mut impl Write) -> Result<()> {
    writeln!(out, "\nTokenizer")?;
    let tokenizer = match tokenizer {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            writeln!(out, "  cannot be used, see below")?;
            problems.push(format!("the tokenizer: {error}"));
            return Ok(());
        }
    };
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

/// Formats a number of bytes with a unit.
pub(crate) fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}
