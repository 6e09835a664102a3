//! Loads models from files that arrive in parts, such as downloads.

use std::collections::HashMap;

use kiln::{Buffer, DType, Engine, Shape, Tensor, TensorType};
use kiln_gguf::{Header, Metadata};

use crate::config::Config;
use crate::session::CONTEXT;
use crate::{Error, Model, Result, Tokenizer};

/// The description of a model from the header of its file, and the memory that it takes. See [`Loader::plan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPlan {
    /// The architecture, as the file names it.
    pub architecture: &'static str,
    /// The bytes of all weights.
    pub weights: usize,
    /// The bytes of the largest tensor, for which a device needs one buffer.
    pub largest: usize,
    /// The number of weights.
    pub parameters: u64,
    /// The context length of the model in tokens.
    pub context: usize,
    /// The number of layers.
    pub layers: usize,
    /// Elements of a token's keys and values, in all layers.
    kept: usize,
}

impl ModelPlan {
    /// Returns the bytes of keys and values of a session with a context of `context` tokens (`None`: the default of
    /// [`SessionOptions`](crate::SessionOptions)) and a cache of type `cache`.
    pub fn cache(&self, context: Option<usize>, cache: DType) -> usize {
        let context = context.unwrap_or(self.context.min(CONTEXT));
        let elements = Shape::new(&[self.kept.saturating_mul(context)]);
        elements.and_then(|shape| TensorType::of(cache, shape)).map_or(usize::MAX, |ty| ty.bytes())
    }
}

/// Builds a [`Model`] from a GGUF file that arrives in parts. Of the file it keeps only the weights, each in its own memory, so a weight
/// can be moved to a device while the next ones arrive.
///
/// ```no_run
/// use std::io::Read;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = kiln::Engine::new()?;
/// let mut file = std::fs::File::open("model.gguf")?;
/// let mut loader = kiln_llm::Loader::new(file.metadata()?.len());
/// let mut part = vec![0; 1 << 20];
/// loop {
///     match file.read(&mut part)? {
///         0 => break,
///         n => loader.push(&part[..n])?,
///     }
///     for tensor in loader.completed() {
///         engine.move_to(&tensor, &engine.places()[0].name)?;
///     }
/// }
/// let model = loader.finish(&engine)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Loader {
    /// The length of the file, and the number of bytes received.
    file: u64,
    come: u64,
    /// The beginning of the file until its header is complete, and the length at which to parse it next.
    beginning: Vec<u8>,
    next_try: usize,
    head: Option<Head>,
    tensors: HashMap<String, Tensor>,
    completed: Vec<Tensor>,
    /// Whether an earlier part caused an error.
    failed: bool,
}

/// The parsed header.
#[derive(Debug)]
struct Head {
    header: Header,
    config: Config,
    plan: ModelPlan,
    /// Missing tensors, the next one last.
    missing: Vec<Missing>,
    /// The next tensor's buffer, and the number of bytes received.
    filled: Option<(Buffer, usize)>,
}

/// A tensor that has not been received yet.
#[derive(Debug)]
struct Missing {
    name: String,
    ty: TensorType,
    start: u64,
    bytes: usize,
}

/// Number of bytes at which the header is first parsed.
const FIRST_TRY: usize = 1 << 10;

impl Loader {
    /// Begins a file of this many bytes.
    pub fn new(file_bytes: u64) -> Self {
        Self {
            file: file_bytes,
            come: 0,
            beginning: Vec::new(),
            next_try: FIRST_TRY,
            head: None,
            tensors: HashMap::new(),
            completed: Vec::new(),
            failed: false,
        }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// [`Error::File`] for a file that is not valid; [`Error::Model`] for a part of a split model, and for more bytes than announced; the
    /// errors of [`Model::load`] for an unsupported model, as soon as the header is complete; [`Error::Kiln`] if memory runs out. After an
    /// error only another loader can load the file.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.check_whole()?;
        let taken = self.take(bytes);
        self.failed = taken.is_err();
        taken
    }

    /// After an error bytes are missing.
    fn check_whole(&self) -> Result<()> {
        match self.failed {
            true => Err(Error::model("file", "an earlier part of it caused an error: load it again")),
            false => Ok(()),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let begins = self.come;
        self.come += bytes.len() as u64;
        if self.come > self.file {
            let reason = format!("the file has more than the {} bytes that were announced", self.file);
            return Err(Error::model("file", reason));
        }
        if let Some(head) = &mut self.head {
            return head.take(bytes, begins, &mut self.tensors, &mut self.completed);
        }
        self.beginning.extend_from_slice(bytes);
        if self.beginning.len() < self.next_try && self.come < self.file {
            return Ok(());
        }
        // Parses again after the length has doubled, so that a long header is not parsed many times.
        self.next_try = self.beginning.len().saturating_mul(2);
        let Some(header) = Header::parse(&self.beginning, self.file)? else { return Ok(()) };
        let head = self.head.insert(Head::new(header)?);
        let beginning = std::mem::take(&mut self.beginning);
        head.take(&beginning, 0, &mut self.tensors, &mut self.completed)
    }

    /// The description of the model and the memory that it takes; `None` until the header is complete.
    pub fn plan(&self) -> Option<&ModelPlan> {
        self.head.as_ref().map(|head| &head.plan)
    }

    /// Returns the weights that were completed since the last call. They share their elements with the model: moved to a device, they
    /// are resident when the model runs.
    pub fn completed(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.completed)
    }

    /// Returns the model, after all bytes have arrived.
    ///
    /// # Errors
    /// [`Error::Model`] if bytes are missing; the errors of [`Model::load`].
    pub fn finish(self, engine: &Engine) -> Result<Model<'_>> {
        self.check_whole()?;
        let (come, file) = (self.come, self.file);
        if self.head.is_none() && come == file {
            // Reports the defect of the header, or of an empty file.
            Header::parse(&self.beginning, file)?;
        }
        let cut = || Error::model("file", format!("it ends after {come} of {file} bytes: load it again"));
        let head = self.head.filter(|_| come == file).ok_or_else(cut)?;
        Model::of_tensors(engine, head.header.metadata(), head.config, self.tensors)
    }
}

impl Head {
    fn new(header: Header) -> Result<Self> {
        let metadata = header.metadata();
        check_whole(metadata)?;
        let embedding = header.infos().iter().find(|info| info.name() == "token_embd.weight");
        let rows = embedding.and_then(|info| info.extents().get(1)).map_or(0, |&rows| rows as usize);
        let config = Config::read(metadata, rows)?;
        // Reports a defect of the vocabulary before the weights arrive.
        Tokenizer::from_gguf(metadata)?.check_rows(config.vocabulary)?;
        let mut missing = Vec::with_capacity(header.infos().len());
        for info in header.infos() {
            let (start, bytes) = (info.offset() as u64, info.bytes());
            missing.push(Missing { name: info.name().to_owned(), ty: info.tensor_type()?, start, bytes });
        }
        missing.sort_by_key(|tensor| std::cmp::Reverse((tensor.start, tensor.bytes)));
        let plan = ModelPlan {
            architecture: config.architecture.name,
            // On a page with 32 bits a file may exceed the memory.
            weights: missing.iter().map(|tensor| tensor.bytes).fold(0, usize::saturating_add),
            largest: missing.iter().map(|tensor| tensor.bytes).max().unwrap_or(0),
            parameters: header.infos().iter().map(|info| info.elements()).sum(),
            context: config.context,
            layers: config.layers.len(),
            kept: config.layers.len().saturating_mul(config.kv_heads).saturating_mul(config.head + config.value_head),
        };
        Ok(Self { config, plan, missing, filled: None, header })
    }

    /// Takes bytes of the file, beginning at byte `begins`.
    fn take(
        &mut self,
        bytes: &[u8],
        begins: u64,
        tensors: &mut HashMap<String, Tensor>,
        completed: &mut Vec<Tensor>,
    ) -> Result<()> {
        let ends = begins + bytes.len() as u64;
        while let Some(next) = self.missing.last() {
            let (mut buffer, filled) = match self.filled.take() {
                Some(filled) => filled,
                None if next.start < ends || next.bytes == 0 => (Buffer::with_bytes(next.ty.dtype, next.bytes)?, 0),
                None => break,
            };
            // Bytes before the first missing byte are skipped.
            let skipped = (next.start + filled as u64).saturating_sub(begins).min(bytes.len() as u64) as usize;
            let n = (bytes.len() - skipped).min(next.bytes - filled);
            buffer.as_mut().as_bytes()[filled..filled + n].copy_from_slice(&bytes[skipped..skipped + n]);
            if filled + n < next.bytes {
                self.filled = Some((buffer, filled + n));
                break;
            }
            let tensor = Tensor::from_buffer(buffer, next.ty.shape.dims())?;
            completed.push(tensor.clone());
            tensors.insert(next.name.clone(), tensor);
            self.missing.pop();
        }
        Ok(())
    }
}

/// Refuses adapters, and files of models in several files.
fn check_whole(metadata: Metadata<'_>) -> Result<()> {
    if matches!(metadata.get("general.type"), Ok("adapter")) {
        return Err(Error::adapter("file", crate::model::NO_MODEL));
    }
    match metadata.find::<u16>("split.count")? {
        Some(count) if count > 1 => {
            let reason =
                format!("it is one of {count} files of a model; join them into one (llama-gguf-split --merge)");
            Err(Error::model("file", reason))
        }
        _ => Ok(()),
    }
}
