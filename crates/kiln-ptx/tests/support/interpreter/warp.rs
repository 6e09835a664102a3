//! The collective operations of a warp: exchanges, and products of matrices whose elements the lanes share as the PTX ISA says
//! ("Matrix Fragments for mma" and "ldmatrix").

use std::ops::Range;
use std::sync::OnceLock;

use kiln_ir::f16;

use super::functions::{f, of};
use super::parse::{Registers, list};
use super::{Address, Block, Operand};

#[derive(Clone)]
pub(super) enum Collective {
    /// The value of the lane whose number differs by a mask.
    Butterfly { to: usize, from: Operand, mask: Operand },
    /// The value of the lane with a number.
    Index { to: usize, from: Operand, lane: Operand },
    /// Four matrices of 8 rows of 16 bytes.
    Matrices { to: Vec<usize>, from: Address, transposed: bool },
    /// `d = a b + c`, 16 by 8.
    Multiply { element: Element, d: Vec<usize>, a: Vec<Operand>, b: Vec<Operand>, c: Vec<Operand> },
    /// The same of bytes, all signed but those of `a` where `unsigned`; sums are integers.
    MultiplyBytes { unsigned: bool, d: Vec<usize>, a: Vec<Operand>, b: Vec<Operand>, c: Vec<Operand> },
    /// Waits.
    Meet,
}

/// The type of the elements.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Element {
    F16,
    Bf16,
    Tf32,
}

impl Element {
    /// Elements in 32 bits.
    fn packed(self) -> usize {
        if self == Self::Tf32 { 1 } else { 2 }
    }

    /// The element at a place of a word.
    fn of_word(self, word: u64, place: usize) -> f64 {
        static HALVES: OnceLock<Vec<f32>> = OnceLock::new();
        let bits = (word >> (16 * place)) as u16;
        match self {
            Self::F16 => {
                let halves = HALVES.get_or_init(|| (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect());
                halves[bits as usize].into()
            }
            Self::Bf16 => f32::from_bits(u32::from(bits) << 16).into(),
            // The lower bits are not read.
            Self::Tf32 => f(word & 0xffff_e000).into(),
        }
    }
}

impl Collective {
    pub(super) fn parse(registers: &mut Registers, name: &str, parts: &[&str]) -> Self {
        let mut numbers = |text| list(text).into_iter().map(|register| registers.number(register)).collect();
        match name {
            "shfl.sync.bfly.b32" | "shfl.sync.idx.b32" => {
                assert_eq!(parts[3..], ["31", "4294967295"], "{name}");
                let (to, from, other) =
                    (registers.number(parts[0]), registers.operand(parts[1]), registers.operand(parts[2]));
                match name.contains("bfly") {
                    true => Self::Butterfly { to, from, mask: other },
                    false => Self::Index { to, from, lane: other },
                }
            }
            "bar.warp.sync" => {
                assert_eq!(parts, ["4294967295"], "{name}");
                Self::Meet
            }
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16" | "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" => {
                let to = numbers(parts[0]);
                Self::Matrices { to, from: registers.address(parts[1]), transposed: name.contains("trans") }
            }
            _ if name.ends_with("8.s8.s32") => {
                let depth = name.trim_start_matches("mma.sync.aligned.m16n8").split('.').next();
                assert!(matches!(depth, Some("k16" | "k32")), "{name}");
                let d = numbers(parts[0]);
                let mut operands = |text| list(text).into_iter().map(|operand| registers.operand(operand)).collect();
                let [a, b, c] = [1, 2, 3].map(|i: usize| operands(parts[i]));
                Self::MultiplyBytes { unsigned: name.ends_with("u8.s8.s32"), d, a, b, c }
            }
            _ => {
                let element = match name {
                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => Element::F16,
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => Element::Bf16,
                    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" => Element::Tf32,
                    _ => panic!("the interpreter does not know {name}"),
                };
                let d = numbers(parts[0]);
                let mut operands = |text| list(text).into_iter().map(|operand| registers.operand(operand)).collect();
                Self::Multiply { element, d, a: operands(parts[1]), b: operands(parts[2]), c: operands(parts[3]) }
            }
        }
    }
}

/// `a b + c` of the words of all lanes, each sum rounded towards zero, as tensor cores do.
fn multiply(element: Element, a: &[Vec<u64>], b: &[Vec<u64>], c: &[Vec<u64>]) -> Vec<[f32; 4]> {
    let packed = element.packed();
    let depth = 8 * packed;
    let (mut rows, mut columns) = (vec![0.0; 16 * depth], vec![0.0; 8 * depth]);
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        for place in 0..packed {
            let along = packed * t + place;
            for i in 0..4 {
                let (row, along) = (g + 8 * (i % 2), along + depth / 2 * (i / 2));
                rows[row * depth + along] = element.of_word(a[i][lane], place);
            }
            for i in 0..2 {
                columns[g * depth + along + depth / 2 * i] = element.of_word(b[i][lane], place);
            }
        }
    }
    let sum = |lane: usize, i: usize| {
        let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
        let pairs = rows[row * depth..][..depth].iter().zip(&columns[column * depth..][..depth]);
        towards_zero(pairs.fold(f(c[i][lane]).into(), |sum: f64, (a, b)| sum + a * b))
    };
    (0..32).map(|lane| [0, 1, 2, 3].map(|i| sum(lane, i))).collect()
}

/// `a b + c` of the bytes of all lanes, 16 deep for each word of `b`.
fn multiply_bytes(unsigned: bool, a: &[Vec<u64>], b: &[Vec<u64>], c: &[Vec<u64>]) -> Vec<[u64; 4]> {
    let byte = |word: u64, place: usize| i32::from((word >> (8 * place)) as i8);
    let of_a = |word, place| byte(word, place) & if unsigned { 0xff } else { !0 };
    let sum = |lane: usize, i: usize| {
        let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
        let mut sum = c[i][lane] as i32;
        for (deep, words) in b.iter().enumerate() {
            for t in 0..4 {
                let (a, b) = (a[2 * deep + row / 8][row % 8 * 4 + t], words[column * 4 + t]);
                (0..4).for_each(|place| sum = sum.wrapping_add(of_a(a, place) * byte(b, place)));
            }
        }
        u64::from(sum as u32)
    };
    (0..32).map(|lane| [0, 1, 2, 3].map(|i| sum(lane, i))).collect()
}

fn towards_zero(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest).abs() > x.abs() && x.is_finite() { f32::from_bits(nearest.to_bits() - 1) } else { nearest }
}

impl Block<'_> {
    /// Does it, for all lanes.
    pub(super) fn together(&mut self, lanes: Range<usize>, at: usize) -> Result<(), String> {
        let program = self.program;
        let super::Action::Warp(collective) = &program.code[at].action else { return Ok(()) };
        let all = |operand| lanes.clone().map(|i| self.threads[i].read(operand)).collect::<Result<Vec<u64>, String>>();
        let each = |operands: &[Operand]| operands.iter().map(|&operand| all(operand)).collect::<Result<Vec<_>, _>>();
        match collective {
            Collective::Meet => lanes.clone().for_each(|i| self.threads[i].met += 1),
            Collective::Butterfly { to, from, mask: other } | Collective::Index { to, from, lane: other } => {
                let (values, others) = (all(*from)?, all(*other)?);
                let flips = matches!(collective, Collective::Butterfly { .. });
                for (lane, i) in lanes.clone().enumerate() {
                    let other = others[lane] as usize;
                    self.threads[i].write(*to, values[if flips { lane ^ other } else { other % 32 }]);
                }
            }
            Collective::Matrices { to, from, transposed } => {
                let mut rows = Vec::new();
                for i in lanes.clone() {
                    let address = self.threads[i].address(*from, 16)?;
                    rows.push(self.read_shared(i, address, 16)?.to_vec());
                }
                for (lane, i) in lanes.clone().enumerate() {
                    let (g, t) = (lane / 4, lane % 4);
                    for (matrix, &to) in to.iter().enumerate() {
                        let half = |row: usize, column: usize| {
                            let row = &rows[8 * matrix + row];
                            u64::from(u16::from_le_bytes([row[2 * column], row[2 * column + 1]]))
                        };
                        let [lower, upper] = match transposed {
                            false => [half(g, 2 * t), half(g, 2 * t + 1)],
                            true => [half(2 * t, g), half(2 * t + 1, g)],
                        };
                        self.threads[i].write(to, upper << 16 | lower);
                    }
                }
            }
            Collective::Multiply { element, d, a, b, c } => {
                let sums = multiply(*element, &each(a)?, &each(b)?, &each(c)?);
                for (i, sums) in lanes.clone().zip(sums) {
                    d.iter().zip(sums).for_each(|(&to, sum)| self.threads[i].write(to, of(sum)));
                }
            }
            Collective::MultiplyBytes { unsigned, d, a, b, c } => {
                let sums = multiply_bytes(*unsigned, &each(a)?, &each(b)?, &each(c)?);
                for (i, sums) in lanes.clone().zip(sums) {
                    d.iter().zip(sums).for_each(|(&to, sum)| self.threads[i].write(to, sum));
                }
            }
        }
        lanes.for_each(|i| self.threads[i].at += 1);
        Ok(())
    }
}
