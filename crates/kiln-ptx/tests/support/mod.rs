//! Kernels run as text.

mod interpreter;

pub(crate) use interpreter::{Memory, Program, to_bf16};
use kiln_ptx::{Argument, Kernel, Launch, Target};

/// The bytes of a buffer that was not written yet.
const UNWRITTEN: u8 = 0xff;

/// The words of f32.
pub(crate) fn words(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The f32 of words.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The selection of cases: with `KILN_SAMPLE=n` every n-th of those that take the interpreter long, and all others.
pub(crate) struct Sample {
    /// The number in the variable, at least 1.
    pub(crate) n: usize,
    large: usize,
}

impl Sample {
    /// Reads `KILN_SAMPLE`; 1 if it is unset.
    pub(crate) fn new() -> Self {
        let n = std::env::var("KILN_SAMPLE").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1);
        Self { n, large: 0 }
    }

    /// Whether the next case runs.
    pub(crate) fn takes(&mut self, is_large: bool) -> bool {
        self.large += usize::from(is_large);
        !is_large || self.large.is_multiple_of(self.n)
    }
}

/// The memory of a device, and the addresses of its buffers.
#[derive(Default)]
pub(crate) struct Device {
    memory: Memory,
    addresses: Vec<u64>,
}

impl Device {
    /// A buffer with these bytes; its number.
    pub(crate) fn upload(&mut self, bytes: &[u8]) -> usize {
        self.addresses.push(self.memory.add(bytes));
        self.addresses.len() - 1
    }

    /// A buffer of this many bytes that nothing has written.
    pub(crate) fn allocate(&mut self, bytes: usize) -> usize {
        self.upload(&vec![UNWRITTEN; bytes])
    }

    /// The bytes of a buffer.
    pub(crate) fn download(&self, buffer: usize) -> &[u8] {
        self.memory.buffer(self.addresses[buffer])
    }

    /// Runs a launch on the devices of a group, each with its own buffers, which all are in this memory. `choice` decides which of the
    /// running devices, counted, is the next to run up to where it polls, and which of its threads do not: from one number to
    /// before another.
    pub(crate) fn run_group(
        &mut self,
        kernel: &dyn Kernel,
        launch: &Launch,
        buffers: &[Vec<usize>],
        choice: impl FnMut(usize) -> usize,
    ) -> Result<(), String> {
        let written = kernel.build_for(Target::Sm90);
        assert!(launch.fits(&written), "{:?} for {:?}", launch.arguments, written.parameters());
        let of = |buffers: &Vec<usize>| {
            let bits = |argument: &Argument| match *argument {
                Argument::Buffer(number) => self.addresses[buffers[number]],
                Argument::U32(value) => value.into(),
                _ => panic!("{argument:?}"),
            };
            launch.arguments.iter().map(bits).collect()
        };
        let arguments: Vec<Vec<u64>> = buffers.iter().map(of).collect();
        self.memory.early.clear();
        let program = Program::parse(written.text(), written.shared_bytes());
        let run = program.run_group(launch.grid[0], &arguments, &mut self.memory, choice);
        run.map_err(|why| format!("{}: {why}", kernel.name()))
    }

    /// Runs a launch; `buffers` are those that it counts.
    pub(crate) fn run(&mut self, kernel: &dyn Kernel, launch: &Launch, buffers: &[usize]) -> Result<(), String> {
        let written = kernel.build();
        assert!(launch.fits(&written), "{:?} for {:?}", launch.arguments, written.parameters());
        let bits = |argument: &Argument| match *argument {
            Argument::Buffer(number) => self.addresses[buffers[number]],
            Argument::U32(value) => value.into(),
            Argument::F32(value) => value.to_bits().into(),
            _ => panic!("{argument:?}"),
        };
        let arguments: Vec<u64> = launch.arguments.iter().map(bits).collect();
        let early = kernel.reads_early(Target::Sm90).unwrap_or_default();
        self.memory.early = early.iter().map(|&number| self.addresses[buffers[number]]).collect();
        let program = Program::parse(&kernel.emit_ptx(), written.shared_bytes());
        program.run(launch.grid, &arguments, &mut self.memory).map_err(|why| format!("{}: {why}", kernel.name()))
    }
}
