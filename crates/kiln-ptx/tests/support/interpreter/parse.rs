//! Reads the text of a kernel.

use std::collections::HashMap;

use super::functions::function;
use super::warp::Collective;
use super::{Action, Address, Instruction, Operand, Program, Space, special};

/// Names of registers to their numbers.
#[derive(Default)]
pub(super) struct Registers(HashMap<String, usize>);

impl Registers {
    pub(super) fn number(&mut self, name: &str) -> usize {
        let next = self.0.len();
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    pub(super) fn operand(&mut self, text: &str) -> Operand {
        if let Some(special) = special(text) {
            Operand::Special(special)
        } else if text.starts_with('%') {
            Operand::Register(self.number(text))
        } else if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")) {
            Operand::Constant(u64::from_str_radix(bits, 16).unwrap_or_else(|_| panic!("{text}")))
        } else {
            let number: i128 = text.parse().unwrap_or_else(|_| panic!("{text} is no operand"));
            Operand::Constant(if number < 0 { number as u32 as u64 } else { number as u64 })
        }
    }

    pub(super) fn address(&mut self, text: &str) -> Address {
        let text = text.trim_matches(['[', ']']);
        let split = text.find(['+', '-']).unwrap_or(text.len());
        let offset = text[split..].trim_start_matches('+');
        let offset = if offset.is_empty() { 0 } else { offset.parse().unwrap_or_else(|_| panic!("{text}")) };
        Address { base: self.number(&text[..split]), offset }
    }
}

/// Operands at the commas that are not inside of braces.
fn operands(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// The parts of `{a, b}`, or `a` alone.
pub(super) fn list(text: &str) -> Vec<&str> {
    text.trim_matches(['{', '}']).split(", ").collect()
}

fn space(name: &str) -> Space {
    match name {
        _ if name.contains(".shared::cluster") => Space::Cluster,
        _ if name.contains(".shared") => Space::Shared,
        _ => Space::Global,
    }
}

fn bytes(name: &str) -> usize {
    match name.rsplit('.').next() {
        Some("u32" | "s32" | "f32" | "b32") => 4,
        Some("u64" | "f64" | "b64") => 8,
        Some("b16") => 2,
        Some("u8") => 1,
        _ => panic!("the width of {name}"),
    }
}

impl Program {
    /// Parses the only kernel of a module, which has this many bytes of shared memory.
    pub(crate) fn parse(text: &str, shared: u32) -> Self {
        let mut registers = Registers::default();
        let mut labels = HashMap::new();
        let mut program = Self {
            code: Vec::new(),
            registers: 0,
            block: [1; 3],
            cluster: 1,
            shared: shared as usize,
            waits: false,
            copies_bulk: false,
        };
        let mut parameters: Vec<&str> = Vec::new();
        let mut branches = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(parameter) = line.strip_prefix(".param ") {
                parameters.extend(parameter.trim_end_matches(',').split(' ').next_back());
            } else if let Some(block) = line.strip_prefix(".reqntid ") {
                block.split(", ").zip(&mut program.block).for_each(|(n, to)| *to = n.parse().unwrap());
            } else if let Some(cluster) = line.strip_prefix(".reqnctapercluster ") {
                program.cluster = cluster.split(", ").next().unwrap().parse().unwrap();
            } else if let Some(label) = line.strip_suffix(':') {
                labels.insert(label, program.code.len());
            } else if let Some(statement) = line.strip_suffix(';').filter(|_| !line.starts_with('.')) {
                let (guard, statement) = match statement.strip_prefix('@') {
                    None => (None, statement),
                    Some(rest) => {
                        let (p, rest) = rest.split_once(' ').unwrap();
                        (Some((registers.number(p.trim_start_matches('!')), !p.starts_with('!'))), rest)
                    }
                };
                let (name, rest) = statement.split_once(' ').unwrap_or((statement, ""));
                let parts = operands(rest);
                let action = match name.split('.').next().unwrap() {
                    "ret" => Action::Return,
                    "trap" => Action::Trap,
                    "bra" => {
                        branches.push((program.code.len(), parts[0]));
                        Action::Branch(0)
                    }
                    "bar" if name == "bar.sync" => Action::Barrier,
                    "barrier" if name == "barrier.cluster.arrive" => Action::ArriveAtCluster,
                    "barrier" if name == "barrier.cluster.wait" => Action::WaitForCluster,
                    "fence" if name == "fence.mbarrier_init.release.cluster" => continue,
                    "fence" if name == "fence.proxy.async.shared::cta" => Action::FenceProxies,
                    "mbarrier" if name == "mbarrier.init.shared.b64" && parts[1] == "1" => {
                        Action::InitBarrier(registers.address(parts[0]))
                    }
                    "mbarrier" if name == "mbarrier.arrive.expect_tx.shared::cta.b64" => {
                        Action::ExpectBytes { at: registers.address(parts[1]), bytes: registers.operand(parts[2]) }
                    }
                    "mbarrier"
                        if let "mbarrier.try_wait.parity.shared::cta.b64"
                        | "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64" = name =>
                    {
                        Action::WaitForPhase {
                            to: registers.number(parts[0]),
                            at: registers.address(parts[1]),
                            parity: registers.operand(parts[2]),
                            of_cluster: name.contains(".cluster"),
                        }
                    }
                    "st" if name.starts_with("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes") => {
                        Action::CountedStore {
                            bytes: bytes(name),
                            to: registers.address(parts[0]),
                            from: registers.operand(parts[1]),
                            barrier: registers.address(parts[2]),
                        }
                    }
                    "griddepcontrol" if name == "griddepcontrol.wait" => {
                        program.waits = true;
                        Action::WaitForLaunches
                    }
                    // The launches after this one do not matter here.
                    "griddepcontrol" => continue,
                    "bar" | "shfl" | "ldmatrix" | "mma" => {
                        Action::Warp(Collective::parse(&mut registers, name, &parts))
                    }
                    "cp" if name == "cp.async.commit_group" => Action::CommitCopies,
                    "cp" if name == "cp.async.wait_group" => Action::WaitForCopies(parts[0].parse().unwrap()),
                    "cp" if name == "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" => {
                        program.copies_bulk = true;
                        let [to, from, barrier] = [0, 1, 3].map(|i: usize| registers.address(parts[i]));
                        Action::BulkCopy { to, from, bytes: registers.operand(parts[2]), barrier }
                    }
                    "cp" => {
                        let bytes = match (name, parts[2]) {
                            ("cp.async.cg.shared.global", "16") => 16,
                            ("cp.async.ca.shared.global", "4") => 4,
                            _ => panic!("{line}"),
                        };
                        let [to, from] = [0, 1].map(|i: usize| registers.address(parts[i]));
                        Action::Copy { to, from, bytes, present: registers.operand(parts[3]) }
                    }
                    "ld" if name.starts_with("ld.param") => {
                        let index = parameters.iter().position(|p| *p == parts[1].trim_matches(['[', ']'])).unwrap();
                        Action::Parameter { to: registers.number(parts[0]), index }
                    }
                    "ld" if let "ld.acquire.sys.global.u32" | "ld.relaxed.sys.global.v2.u64" = name => Action::Poll {
                        bytes: bytes(name),
                        to: list(parts[0]).into_iter().map(|to| registers.number(to)).collect(),
                        from: registers.address(parts[1]),
                    },
                    "ld" => Action::Load {
                        space: space(name),
                        bytes: bytes(name),
                        to: list(parts[0]).into_iter().map(|to| registers.number(to)).collect(),
                        from: registers.address(parts[1]),
                    },
                    "st" => Action::Store {
                        space: space(name),
                        bytes: bytes(name),
                        to: registers.address(parts[0]),
                        from: list(parts[1]).into_iter().map(|from| registers.operand(from)).collect(),
                    },
                    "red" => {
                        assert_eq!(name, "red.global.min.u64", "{line}");
                        Action::Least { to: registers.address(parts[0]), from: registers.operand(parts[1]) }
                    }
                    "mov" if parts[0].starts_with('{') => {
                        let to: Vec<usize> = list(parts[0]).into_iter().map(|to| registers.number(to)).collect();
                        let bits = 4 * bytes(name) as u32;
                        Action::Split { to: [to[0], to[1]], from: registers.operand(parts[1]), bits }
                    }
                    "mov" if parts[1].starts_with('{') => Action::Compute {
                        run: function("join").unwrap(),
                        to: registers.number(parts[0]),
                        from: list(parts[1]).into_iter().map(|from| registers.operand(from)).collect(),
                    },
                    _ => Action::Compute {
                        run: function(name).unwrap_or_else(|| panic!("the interpreter does not know {name}")),
                        to: registers.number(parts[0]),
                        from: parts[1..].iter().map(|from| registers.operand(from)).collect(),
                    },
                };
                program.code.push(Instruction { guard, action, line: line.to_owned() });
            }
        }
        for (at, label) in branches {
            program.code[at].action = Action::Branch(labels[label]);
        }
        program.registers = registers.0.len();
        program
    }
}
