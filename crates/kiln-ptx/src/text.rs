//! The buffer that a kernel is written into, and a line of it.
//!
//! Everything of a line is inlined into the method that writes it, so that its position stays in a register and what is known
//! at compile time is stored as it is. Numbers are copied at a fixed length and counted at their own: a few moves, and no
//! call.

use crate::ptx_type::{Class, PtxType};

/// Maximum length of a line. The longest, products of warp groups, have 128 registers in a list, at most 11 bytes each.
const LINE: usize = 1536;
/// Initial capacity of a text: enough for small kernels, because the memory is cleared first.
const FIRST: usize = 4096;

/// Text with spare capacity.
#[derive(Debug)]
pub(crate) struct Text {
    bytes: Vec<u8>,
    len: usize,
}

/// A line, or a part of one, that is being written.
#[derive(Debug)]
#[doc(hidden)]
pub struct Line<'t> {
    room: &'t mut [u8; LINE],
    len: usize,
}

impl Text {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; FIRST], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends the output of `write`, at most a line.
    #[inline(always)]
    pub(crate) fn line(&mut self, write: impl FnOnce(&mut Line<'_>)) {
        if self.bytes.len() - self.len < LINE {
            self.grow(LINE);
        }
        let room = self.bytes[self.len..].first_chunk_mut().expect("there is room for a line");
        let mut line = Line { room, len: 0 };
        write(&mut line);
        self.len += line.len;
    }

    /// Appends a name of any length.
    pub(crate) fn name(&mut self, name: &str) {
        if self.bytes.len() - self.len < name.len() {
            self.grow(name.len());
        }
        self.bytes[self.len..self.len + name.len()].copy_from_slice(name.as_bytes());
        self.len += name.len();
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        self.bytes.resize(2 * self.bytes.len() + more, 0);
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).expect("whole names and ASCII were written")
    }

    /// The text from `first` on, followed by the text before it.
    pub(crate) fn beginning_at(&self, first: usize) -> String {
        let (last, first) = self.bytes[..self.len].split_at(first);
        String::from_utf8([first, last].concat()).expect("whole names and ASCII were written")
    }
}

/// The digits of 0 to 999, three each, followed by the number of leading zeros.
static DIGITS: [[u8; 4]; 1000] = {
    let mut digits = [[0; 4]; 1000];
    let mut n = 0;
    while n < 1000 {
        let zeros = if n < 10 { 2 } else { (n < 100) as u8 };
        digits[n] = [b'0' + (n / 100) as u8, b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8, zeros];
        n += 1;
    }
    digits
};

/// The digits of a number below 1000 in consecutive bytes, first digit lowest, and their number. The bytes above are
/// unspecified.
#[inline(always)]
fn up_to_three(n: usize) -> (u32, usize) {
    let digits = u32::from_le_bytes(DIGITS[n]);
    let zeros = digits >> 24;
    (digits >> (8 * zeros), 3 - zeros as usize)
}

/// The same for a number below a million.
#[inline(never)]
fn up_to_six(n: usize) -> (u64, usize) {
    let (upper, len) = up_to_three(n / 1000);
    let upper = u64::from(upper) & ((1 << (8 * len)) - 1);
    (upper | u64::from(u32::from_le_bytes(DIGITS[n % 1000])) << (8 * len), len + 3)
}

/// The same for any number.
#[cold]
#[inline(never)]
fn any_number(n: u64) -> ([u8; 24], usize) {
    let mut digits = [0; 24];
    let mut at = digits.len();
    let mut rest = n;
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    digits.copy_within(at.., 0);
    (digits, digits.len() - at)
}

fn hexadecimal<const N: usize>(bits: u64) -> [u8; N] {
    std::array::from_fn(|i| b"0123456789ABCDEF"[(bits >> (4 * (N - 1 - i)) & 15) as usize])
}

impl Line<'_> {
    /// Appends `len` of the bytes.
    #[inline(always)]
    fn copy<const N: usize>(&mut self, bytes: [u8; N], len: usize) {
        assert!(self.len <= LINE - N, "a line is too long");
        self.room[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += len;
    }

    /// Appends a piece that is known at compile time.
    #[inline(always)]
    pub(crate) fn put(&mut self, piece: &'static str) {
        assert!(self.len <= LINE - piece.len(), "a line is too long");
        self.room[self.len..self.len + piece.len()].copy_from_slice(piece.as_bytes());
        self.len += piece.len();
    }

    #[inline(always)]
    pub(crate) fn decimal(&mut self, n: u64) {
        if n < 1000 {
            let (digits, len) = up_to_three(n as usize);
            self.copy(digits.to_le_bytes(), len);
        } else if n < 1_000_000 {
            let (digits, len) = up_to_six(n as usize);
            self.copy(digits.to_le_bytes(), len);
        } else {
            let (digits, len) = any_number(n);
            self.copy(digits, len);
        }
    }

    #[inline(always)]
    pub(crate) fn signed(&mut self, n: i32) {
        if n < 0 {
            self.put("-");
        }
        self.decimal(n.unsigned_abs().into());
    }

    #[inline(always)]
    pub(crate) fn register(&mut self, class: Class, number: u32) {
        self.put(class.prefix());
        self.decimal(number.into());
    }

    /// Registers as a list: `{%f8, %f9}`.
    #[inline(always)]
    pub(crate) fn registers(&mut self, class: Class, numbers: impl Iterator<Item = u32>) {
        for (i, number) in numbers.enumerate() {
            self.put(if i == 0 { "{" } else { ", " });
            self.register(class, number);
        }
        self.put("}");
    }

    /// `[%r5+16]`
    #[inline(always)]
    pub(crate) fn address(&mut self, class: Class, base: u32, offset: i32) {
        self.put("[");
        self.register(class, base);
        if offset != 0 {
            if offset > 0 {
                self.put("+");
            }
            self.signed(offset);
        }
        self.put("]");
    }

    /// A constant of this type, from its bits.
    #[inline(always)]
    pub(crate) fn constant(&mut self, ty: PtxType, bits: u64) {
        match ty {
            PtxType::F32 => {
                self.put("0f");
                self.copy(hexadecimal::<8>(bits), 8);
            }
            PtxType::F64 => {
                self.put("0d");
                self.copy(hexadecimal::<16>(bits), 16);
            }
            PtxType::S32 => self.signed(bits as i32),
            _ => self.decimal(bits),
        }
    }
}
