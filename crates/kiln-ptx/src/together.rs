//! Several launches of one kernel as one launch.
//!
//! The grid has the blocks of the launches one after the other along x. Each block computes which launch it belongs to, counts from the
//! first block of that launch, and loads its arguments. Kernels are written for one launch.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, Name, Parameter, ParameterKind, TensorMap, extent, preamble};
use crate::text::Text;
use crate::{Argument, Kernel, Launch, PtxKernel, PtxType, Target};

/// A kernel for a fixed number of launches of another at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Together<K> {
    kernel: K,
    launches: usize,
    /// Number of buffers of one launch.
    buffers: usize,
}

/// The registers for the position of a block along x and the number of blocks, with their replacements.
const SPECIAL: [(&str, &str); 2] = [("%ctaid.x", "%own_block"), ("%nctaid.x", "%own_blocks")];

/// The parameters with the number of blocks of each launch.
const BLOCKS: &str = "launch_blocks";

impl<K: Kernel> Together<K> {
    /// The kernel for these launches, which have nothing to wait for in one another, and their launch: buffers of the first launch
    /// first, and so on. Launches that a device of `multiprocessors` would not run at once get fewer blocks where the kernel works
    /// with fewer ([`Kernel::blocks_at_once`]).
    ///
    /// None for fewer than two launches, those whose grids differ in more than x, those without blocks, and kernels in clusters.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Limit`] beyond 2³¹ - 1 blocks along x.
    pub fn new(kernel: K, launches: &[&Launch], multiprocessors: u32) -> Result<Option<(Self, Launch)>> {
        let Some((first, others)) = launches.split_first() else { return Ok(None) };
        let buffers = first.buffers();
        let alike = |launch: &&Launch| launch.grid[1..] == first.grid[1..] && launch.buffers() == buffers;
        let together = Self { kernel, launches: launches.len(), buffers };
        let has_blocks = launches.iter().all(|launch| !launch.grid.contains(&0));
        let written = together.kernel.build();
        let fits = has_blocks && launches.iter().all(|launch| launch.fits(&written));
        if others.is_empty() || !others.iter().all(alike) || !fits || written.cluster() > 1 {
            return Ok(None);
        }
        let blocks = |launch: &&Launch| u64::from(launch.grid[0]);
        let all: u64 = launches.iter().map(blocks).sum();
        let most = together.kernel.blocks_at_once(multiprocessors).map_or(all, u64::from);
        let own = launches.iter().map(|launch| match all > most {
            true => (blocks(launch) * most / all).max(1) as u32,
            false => launch.grid[0],
        });
        let own: Vec<u32> = own.collect();
        let across = own.iter().map(|&blocks| blocks as usize).sum();
        let mut arguments = Vec::new();
        for (number, launch) in launches.iter().enumerate() {
            let first = number * buffers;
            arguments.extend(launch.arguments.iter().map(|argument| match *argument {
                Argument::Buffer(buffer) => Argument::Buffer(first + buffer),
                Argument::Tensor(map) => Argument::Tensor(TensorMap { buffer: first + map.buffer, ..map }),
                other => other,
            }));
        }
        arguments.extend(own.into_iter().map(Argument::U32));
        let grid = [extent("blocks", across, MAX_GRID_X)?, first.grid[1], first.grid[2]];
        Ok(Some((together, Launch { grid, arguments })))
    }
}

impl<K: Kernel> Kernel for Together<K> {
    fn name(&self) -> String {
        format!("{}_together_{}", self.kernel.name(), self.launches)
    }

    fn build(&self) -> PtxKernel {
        self.kernel.build().together(self.name(), self.launches)
    }

    fn reads_early(&self, target: Target) -> Option<Vec<usize>> {
        let early = self.kernel.reads_early(target)?;
        let of = |launch: usize| early.iter().map(move |buffer| launch * self.buffers + buffer);
        Some((0..self.launches).flat_map(of).collect())
    }
}

impl Launch {
    /// Number of buffers that the arguments name, up to the greatest number.
    fn buffers(&self) -> usize {
        let number = |argument: &Argument| match *argument {
            Argument::Buffer(buffer) | Argument::Tensor(TensorMap { buffer, .. }) => Some(buffer + 1),
            _ => None,
        };
        self.arguments.iter().filter_map(number).max().unwrap_or(0)
    }
}

impl PtxKernel {
    /// The kernel for this many of its launches at once. Its parameters are those of the first launch, then those of
    /// the others, followed by the blocks of each launch along x.
    fn together(mut self, name: String, launches: usize) -> Self {
        let (head, body) = self.text.split_at(self.body);
        // The text after the parameters: the extents of a block, declarations of registers and of shared memory.
        let declarations = head[self.entry..].split_once("\n)\n").map_or("", |(_, rest)| rest);
        let of = |launch: usize| self.parameters.iter().map(move |parameter| parameter.of_launch(launch));
        let blocks = |launch| {
            Parameter { name: Name::from(BLOCKS), kind: ParameterKind::Scalar(PtxType::U32) }.of_launch(launch)
        };
        let parameters: Vec<Parameter> = (0..launches).flat_map(of).chain((0..launches).map(blocks)).collect();

        let mut preface = Text::new();
        preamble(&mut preface, self.gate, self.dynamic_shared);
        let mut text = format!("{}\n", preface.as_str());
        let entry = text.len();
        let declared = parameters.iter().map(|parameter| {
            let [ty, array] = parameter.kind.declared();
            format!("\t.param .{ty} {}{array}", parameter.name)
        });
        let declared: Vec<String> = declared.collect();
        text += &format!(".visible .entry {name}(\n{}\n)\n{declarations}", declared.join(",\n"));
        text += "\t.reg .pred %later<";
        text += &format!("{launches}>;\n\t.reg .b32 %own_block, %own_blocks, %of_u32, %of_s32;\n");
        text += "\t.reg .b64 %of_u64;\n\t.reg .f32 %of_f32;\n\t.reg .f64 %of_f64;\n";
        let first_instruction = text.len();
        text += "\tmov.u32 %own_block, %ctaid.x;\n\tld.param.u32 %own_blocks, [launch_blocks_0];\n";
        for launch in 1..launches {
            text += &format!(
                "\tsetp.ge.u32 %later{launch}, %own_block, %own_blocks;\n\
                 \t@%later{launch} sub.u32 %own_block, %own_block, %own_blocks;\n\
                 \t@%later{launch} ld.param.u32 %own_blocks, [launch_blocks_{launch}];\n"
            );
        }
        for line in body.lines() {
            let load = line.strip_prefix("\tld.param.").and_then(Load::parse);
            let of_address = || Load::parse_address(line.strip_prefix("\tmov.b64 ")?, &self.parameters);
            match load.or_else(of_address) {
                Some(load) => load.write(launches, &mut text),
                None => {
                    let own = SPECIAL.iter().fold(line.to_owned(), |line, (special, own)| line.replace(special, own));
                    text += &own;
                    text.push('\n');
                }
            }
        }
        self.parameters = parameters;
        (self.name, self.text, self.entry, self.body) = (name, text, entry, first_instruction);
        self
    }
}

impl Parameter {
    fn of_launch(self, launch: usize) -> Self {
        Self { name: Name { launch: Some(launch), ..self.name }, ..self }
    }
}

/// A load of a parameter, `ld.param.u64 %rd0, [x];`, or of the address of one, `mov.b64 %rd0, x;`.
struct Load<'t> {
    ty: &'t str,
    to: &'t str,
    parameter: &'t str,
    of_address: bool,
}

impl<'t> Load<'t> {
    /// The load with these operands, behind `ld.param.`.
    fn parse(text: &'t str) -> Option<Self> {
        let (ty, rest) = text.split_once(' ')?;
        let (to, rest) = rest.split_once(", [")?;
        Some(Self { ty, to, parameter: rest.strip_suffix("];")?, of_address: false })
    }

    /// The load of an address with these operands, behind `mov.b64 `, if the source is a parameter.
    fn parse_address(text: &'t str, parameters: &[Parameter]) -> Option<Self> {
        let (to, parameter) = text.strip_suffix(';')?.split_once(", ")?;
        let is_parameter = parameters.iter().any(|known| known.name.to_string() == parameter);
        is_parameter.then_some(Self { ty: "u64", to, parameter, of_address: true })
    }

    /// Loads the argument of the launch to which the block belongs: the last launch whose blocks begin at or before
    /// this one.
    fn write(&self, launches: usize, text: &mut String) {
        let &Self { ty, to, parameter, of_address } = self;
        let load = |to: &str, launch: usize| match of_address {
            true => format!("\tmov.b64 {to}, {parameter}_{launch};\n"),
            false => format!("\tld.param.{ty} {to}, [{parameter}_{launch}];\n"),
        };
        *text += &load(to, 0);
        for launch in 1..launches {
            *text += &load(&format!("%of_{ty}"), launch);
            *text += &format!("\tselp.{ty} {to}, %of_{ty}, {to}, %later{launch};\n");
        }
    }
}
