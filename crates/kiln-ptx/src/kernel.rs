//! Finished kernels, modules of them, and launches.

use std::fmt;

use kiln_ir::{Error, Result};

use crate::text::Text;
use crate::{Gate, PtxType, Target};

/// The name of the shared memory of a kernel.
pub(crate) const SHARED: &str = "smem";
/// The alignment of dynamic shared memory: that of swizzled rows of 128 bytes.
const DYNAMIC_SHARED_ALIGN: u32 = 1024;

/// The name of a parameter: a word, or a word and a number. Comes from `"n"` and `("in", 3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    pub(crate) word: &'static str,
    pub(crate) number: Option<usize>,
    /// The launch that it belongs to, in a kernel for several launches at once: `n_0`.
    pub(crate) launch: Option<usize>,
}

impl Name {
    pub(crate) fn write(self, text: &mut Text) {
        text.name(self.word);
        if let Some(number) = self.number {
            text.line(|line| line.decimal(number as u64));
        }
    }
}

impl From<&'static str> for Name {
    fn from(word: &'static str) -> Self {
        Self { word, number: None, launch: None }
    }
}

impl From<(&'static str, usize)> for Name {
    fn from((word, number): (&'static str, usize)) -> Self {
        Self { word, number: Some(number), launch: None }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word)?;
        self.number.map_or(Ok(()), |number| number.fmt(f))?;
        self.launch.map_or(Ok(()), |launch| write!(f, "_{launch}"))
    }
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: Name,
    /// Its kind.
    pub kind: ParameterKind,
}

/// The kind of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterKind {
    /// A scalar of this type.
    Scalar(PtxType),
    /// The address of a buffer, 8 bytes, aligned to 16 bytes.
    Buffer,
    /// A tensor map by value, 128 bytes aligned to 64: the output of `cuTensorMapEncodeTiled` for a [`TensorMap`].
    Tensor,
}

impl ParameterKind {
    /// The parts of its declaration before the name and after it.
    pub(crate) fn declared(self) -> [&'static str; 2] {
        match self {
            Self::Scalar(ty) => [ty.name(), ""],
            Self::Buffer => [PtxType::U64.name(), ""],
            Self::Tensor => ["align 64 .b8", "[128]"],
        }
    }
}

impl fmt::Display for ParameterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar(ty) => ty.name(),
            Self::Buffer => "a buffer",
            Self::Tensor => "a tensor",
        })
    }
}

/// A kernel whose text is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxKernel {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) block: [u32; 3],
    pub(crate) cluster: u32,
    pub(crate) blocks_stay: bool,
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared: bool,
    pub(crate) gate: Gate,
    /// A module that contains only this kernel.
    pub(crate) text: String,
    /// The offsets of its entry and of its instructions in the text.
    pub(crate) entry: usize,
    pub(crate) body: usize,
}

/// The prologue of a kernel whose launch overlaps with others (programmatic dependent launch): the next launch may
/// begin, and this one waits until the preceding ones have ended. Measured on an H100: if a kernel has more blocks than
/// run at once, a launch that begins beside it slows it down by more than it gains, so launches of more than 512 blocks
/// let none begin.
const OVERLAPS: &str = "\
\t{
\t.reg .pred %few;
\t.reg .b32 %blocks, %across;
\tmov.u32 %blocks, %nctaid.x;
\tmov.u32 %across, %nctaid.y;
\tmul.lo.u32 %blocks, %blocks, %across;
\tmov.u32 %across, %nctaid.z;
\tmul.lo.u32 %blocks, %blocks, %across;
\tsetp.le.u32 %few, %blocks, 512;
\t@%few griddepcontrol.launch_dependents;
\t}
\tgriddepcontrol.wait;
";
/// The requirements of these instructions.
const OVERLAPS_NEED: Gate = Gate::new(7.8, Target::Sm90);

impl PtxKernel {
    /// This kernel with a prologue that lets the next launch begin and waits for the preceding ones, unless it waits already.
    #[must_use]
    pub fn overlapping(mut self) -> Self {
        let (head, body) = self.text.split_at(self.body);
        if body.contains("griddepcontrol.wait") {
            return self;
        }
        self.gate = self.gate.and(OVERLAPS_NEED);
        let mut text = Text::new();
        preamble(&mut text, self.gate, self.dynamic_shared);
        text.line(|line| line.put("\n"));
        let (entry, before) = (text.len(), self.entry);
        self.text = [text.as_str(), &head[before..], OVERLAPS, body].concat();
        self.body = self.body + entry - before;
        self.entry = entry;
        self
    }

    /// A module of this kernel alone, as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A module of this kernel alone, as text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// The name of its entry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Threads of a block along x, y and z; the driver refuses a launch with other numbers.
    pub fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Blocks of a cluster along x. The text contains this number; the grid of a launch is a multiple of it.
    pub fn cluster(&self) -> u32 {
        self.cluster
    }

    /// Whether the kernel is persistent: a launch with fewer blocks along x, in whole clusters, computes the same. Blocks beyond
    /// those that the device holds at once only wait.
    pub fn blocks_stay(&self) -> bool {
        self.blocks_stay
    }

    /// Bytes of shared memory that a block takes.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Bytes of shared memory that a launch must request. Above 48 KiB these are all bytes, and the attribute of the function must
    /// allow that size before the launch; otherwise 0, because the text declares the memory.
    pub fn dynamic_shared_bytes(&self) -> u32 {
        if self.dynamic_shared { self.shared_bytes } else { 0 }
    }

    /// The least version and target that its instructions need.
    pub fn gate(&self) -> Gate {
        self.gate
    }
}

/// Kernels in one text.
///
/// [`Display`](fmt::Display) writes it; version and target are the least that serve all of its kernels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PtxModule {
    kernels: Vec<PtxKernel>,
}

impl PtxModule {
    /// A module without kernels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kernel.
    ///
    /// # Errors
    /// [`Error::Parameter`] if the module already has a kernel of its name.
    pub fn add(&mut self, kernel: PtxKernel) -> Result<()> {
        if self.kernels.iter().any(|other| other.name == kernel.name) {
            return Err(Error::Parameter {
                op: "PtxModule",
                reason: format!("the module already has a kernel named {}", kernel.name),
            });
        }
        self.kernels.push(kernel);
        Ok(())
    }

    /// Its kernels.
    pub fn kernels(&self) -> &[PtxKernel] {
        &self.kernels
    }

    /// The least version and target that its kernels need.
    pub fn gate(&self) -> Gate {
        self.kernels.iter().fold(Gate::LEAST, |gate, kernel| gate.and(kernel.gate))
    }
}

impl From<PtxKernel> for PtxModule {
    fn from(kernel: PtxKernel) -> Self {
        Self { kernels: vec![kernel] }
    }
}

impl fmt::Display for PtxModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = Text::new();
        preamble(&mut head, self.gate(), self.kernels.iter().any(|kernel| kernel.dynamic_shared));
        f.write_str(head.as_str())?;
        for kernel in &self.kernels {
            f.write_str("\n")?;
            f.write_str(&kernel.text[kernel.entry..])?;
        }
        Ok(())
    }
}

/// Writes the directives before the kernels of a module.
pub(crate) fn preamble(text: &mut Text, Gate { version, target }: Gate, dynamic_shared: bool) {
    text.line(|line| {
        line.put(".version ");
        version.write(line);
        line.put("\n.target ");
        line.put(target.name());
        line.put("\n.address_size 64\n");
        if dynamic_shared {
            line.put("\n.extern .shared .align ");
            line.decimal(DYNAMIC_SHARED_ALIGN.into());
            line.put(" .b8 ");
            line.put(SHARED);
            line.put("[];\n");
        }
    });
}

/// The configuration of a kernel: what it computes and how, without extents.
pub trait Kernel {
    /// The name of the entry.
    fn name(&self) -> String;

    /// Writes it.
    fn build(&self) -> PtxKernel;

    /// The buffers, numbered as in a launch, that it reads on devices of this target before it waits for the preceding
    /// launches; `None` if it does not wait. A kernel that waits may begin while those still run (programmatic
    /// dependent launch), provided that none of them writes these buffers; it accesses no other memory before it has
    /// waited.
    ///
    /// From `sm_90` on every kernel waits, which [`Kernel::build_for`] ensures.
    fn reads_early(&self, target: Target) -> Option<Vec<usize>> {
        (target >= Target::Sm90).then(Vec::new)
    }

    /// For a persistent kernel, how many of its blocks along x a device with this many multiprocessors runs at once; it
    /// computes the same with fewer blocks, because a block takes one piece of work after the other. `None` for other
    /// kernels.
    fn blocks_at_once(&self, _multiprocessors: u32) -> Option<u32> {
        None
    }

    /// Writes it for devices of this target: it waits for the preceding launches if [`Kernel::reads_early`] says so.
    /// Its launch latency then overlaps with the preceding launch.
    fn build_for(&self, target: Target) -> PtxKernel {
        match self.reads_early(target) {
            Some(_) => self.build().overlapping(),
            None => self.build(),
        }
    }

    /// A module that contains only this kernel, as text.
    fn emit_ptx(&self) -> String {
        self.build().into_text()
    }
}

impl<K: Kernel + ?Sized> Kernel for Box<K> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn build(&self) -> PtxKernel {
        (**self).build()
    }

    fn reads_early(&self, target: Target) -> Option<Vec<usize>> {
        (**self).reads_early(target)
    }

    fn blocks_at_once(&self, multiprocessors: u32) -> Option<u32> {
        (**self).blocks_at_once(multiprocessors)
    }
}

/// A tensor of three dimensions in a buffer, and how it is copied to and from shared memory: all that
/// `cuTensorMapEncodeTiled` asks for. Boxes are not interleaved, elements are adjacent in both memories, and elements
/// outside of the tensor are read as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMap {
    /// The number of the buffer; its address is a multiple of 16.
    pub buffer: usize,
    /// The type of elements.
    pub element: PtxType,
    /// Elements along each dimension, the innermost first; none is 0.
    pub extents: [u64; 3],
    /// Bytes between neighbours along the second and third dimension, multiples of 16.
    pub strides: [u64; 2],
    /// Elements of a box along each dimension.
    pub tile: [u32; 3],
    /// Whether rows of a box, of 128 bytes each, are swizzled (`CU_TENSOR_MAP_SWIZZLE_128B`).
    pub swizzles: bool,
}

/// An argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Argument {
    /// The address of the buffer with this number: inputs first, then outputs, as the kernel numbers them.
    Buffer(usize),
    /// A scalar.
    U32(u32),
    /// A scalar.
    F32(f32),
    /// A tensor map for a tensor in a buffer.
    Tensor(TensorMap),
}

/// One launch of a kernel, complete but for the addresses of the buffers.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// Blocks along x, y and z. A launch without blocks is omitted.
    pub grid: [u32; 3],
    /// Arguments in the order of the parameters.
    pub arguments: Vec<Argument>,
}

impl Launch {
    /// Whether the arguments have the number and kinds of the kernel's parameters.
    pub fn fits(&self, kernel: &PtxKernel) -> bool {
        let fits = |(parameter, argument): (&Parameter, &Argument)| match argument {
            Argument::Buffer(_) => parameter.kind == ParameterKind::Buffer,
            Argument::U32(_) => parameter.kind == ParameterKind::Scalar(PtxType::U32),
            Argument::F32(_) => parameter.kind == ParameterKind::Scalar(PtxType::F32),
            Argument::Tensor(_) => parameter.kind == ParameterKind::Tensor,
        };
        kernel.parameters.len() == self.arguments.len() && kernel.parameters.iter().zip(&self.arguments).all(fits)
    }
}

/// Maximum extent of a grid along x.
pub(crate) const MAX_GRID_X: u64 = (1 << 31) - 1;

/// Maximum extent of a grid along y and z.
pub(crate) const MAX_GRID_YZ: u64 = (1 << 16) - 1;

/// An extent as a 32-bit number.
///
/// # Errors
/// [`Error::Limit`] beyond `limit`.
pub(crate) fn extent(what: &'static str, asked: usize, limit: u64) -> Result<u32> {
    match u32::try_from(asked) {
        Ok(extent) if u64::from(extent) <= limit => Ok(extent),
        _ => Err(Error::Limit { what, device: "a kernel".into(), asked: asked as u64, limit }),
    }
}
