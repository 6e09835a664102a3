//! The buffer that a kernel is written into.
//!
//! Pieces are copied at a fixed length and counted at their own, so that a copy is a few moves and no call.

use crate::types::{Class, PtxType, Source};

/// Room for one instruction: a mnemonic and six operands are shorter, but for lists of registers.
const LINE: usize = 256;

/// Text, and room behind it.
#[derive(Debug)]
pub(crate) struct Text {
    bytes: Vec<u8>,
    len: usize,
}

/// A mnemonic between its tab and its blank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mnemonic {
    bytes: [u8; 32],
    len: usize,
    /// A name that is too long for the bytes.
    long: &'static str,
}

impl Mnemonic {
    pub(crate) const fn new(long: &'static str) -> Self {
        let name = long.as_bytes();
        if name.len() > 30 {
            return Self { bytes: [0; 32], len: 0, long };
        }
        let mut mnemonic = Self { bytes: [b' '; 32], len: name.len() + 2, long: "" };
        mnemonic.bytes[0] = b'\t';
        let mut i = 0;
        while i < name.len() {
            mnemonic.bytes[i + 1] = name[i];
            i += 1;
        }
        mnemonic
    }
}

/// The digits of 0 to 999, and how many they are.
static DIGITS: [[u8; 4]; 1000] = {
    let mut digits = [[0; 4]; 1000];
    let mut n = 0;
    while n < 1000 {
        let all = [b'0' + (n / 100) as u8, b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8];
        digits[n] = match n {
            0..10 => [all[2], 0, 0, 1],
            10..100 => [all[1], all[2], 0, 2],
            _ => [all[0], all[1], all[2], 3],
        };
        n += 1;
    }
    digits
};

impl Text {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; 4096], len: 0 }
    }

    /// Makes room for a line.
    #[inline]
    pub(crate) fn line(&mut self) {
        if self.bytes.len() - self.len < LINE {
            self.grow(LINE);
        }
    }

    /// Makes room for a line with a name of so many bytes.
    pub(crate) fn line_and(&mut self, name: usize) {
        if self.bytes.len() - self.len < LINE + name {
            self.grow(LINE + name);
        }
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        self.bytes.resize(2 * self.bytes.len() + more, 0);
    }

    #[inline]
    fn copy<const N: usize>(&mut self, bytes: &[u8; N], len: usize) {
        self.bytes[self.len..self.len + N].copy_from_slice(bytes);
        self.len += len;
    }

    /// A piece of a line.
    #[inline]
    pub(crate) fn piece<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.copy(bytes, N);
    }

    /// A piece of a line whose length is known only now.
    #[inline]
    pub(crate) fn word(&mut self, word: &str) {
        self.bytes[self.len..self.len + word.len()].copy_from_slice(word.as_bytes());
        self.len += word.len();
    }

    #[inline]
    pub(crate) fn mnemonic(&mut self, mnemonic: &Mnemonic) {
        self.copy(&mnemonic.bytes, mnemonic.len);
        if mnemonic.len == 0 {
            self.piece(b"\t");
            self.word(mnemonic.long);
            self.piece(b" ");
        }
    }

    #[inline]
    pub(crate) fn decimal(&mut self, n: u64) {
        if n < 1000 {
            let digits = &DIGITS[n as usize];
            self.copy(digits, digits[3] as usize);
        } else {
            self.decimal(n / 1000);
            let n = (n % 1000) as usize;
            self.piece(&[b'0' + (n / 100) as u8, b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8]);
        }
    }

    #[inline]
    pub(crate) fn signed(&mut self, n: i32) {
        if n < 0 {
            self.piece(b"-");
        }
        self.decimal(n.unsigned_abs().into());
    }

    fn hexadecimal(&mut self, bits: u64, digits: u32) {
        for digit in (0..digits).rev() {
            self.piece(&[b"0123456789ABCDEF"[(bits >> (4 * digit) & 15) as usize]]);
        }
    }

    #[inline]
    pub(crate) fn register(&mut self, class: Class, number: u32) {
        const PREFIXES: [[u8; 4]; 6] = [*b"%p 2", *b"%r 2", *b"%rd3", *b"%f 2", *b"%fd3", *b"%h 2"];
        let prefix = &PREFIXES[class as usize];
        self.copy(prefix, (prefix[3] - b'0') as usize);
        self.decimal(number.into());
    }

    #[inline]
    pub(crate) fn source(&mut self, source: Source) {
        match source {
            Source::Register(class, number) => self.register(class, number),
            Source::Constant(ty, bits) => self.constant(ty, bits),
            Source::Registers(class, first, count) => self.registers(class, first..first + count),
            Source::List(class, numbers, count) => self.registers(class, numbers.into_iter().take(count as usize)),
            Source::Address(class, base, offset) => self.address(class, base, offset),
            Source::Tensor(map, coordinates) => {
                self.piece(b"[");
                self.register(Class::Wide, map);
                for (i, number) in coordinates.into_iter().enumerate() {
                    self.word(if i == 0 { ", {" } else { ", " });
                    self.register(Class::Word, number);
                }
                self.piece(b"}]");
            }
        }
    }

    fn registers(&mut self, class: Class, numbers: impl Iterator<Item = u32>) {
        for (i, number) in numbers.enumerate() {
            self.line();
            self.word(if i == 0 { "{" } else { ", " });
            self.register(class, number);
        }
        self.piece(b"}");
    }

    #[inline]
    pub(crate) fn address(&mut self, class: Class, base: u32, offset: i32) {
        self.piece(b"[");
        self.register(class, base);
        if offset != 0 {
            if offset > 0 {
                self.piece(b"+");
            }
            self.signed(offset);
        }
        self.piece(b"]");
    }

    fn constant(&mut self, ty: PtxType, bits: u64) {
        match ty {
            PtxType::F32 => {
                self.piece(b"0f");
                self.hexadecimal(bits, 8);
            }
            PtxType::F64 => {
                self.piece(b"0d");
                self.hexadecimal(bits, 16);
            }
            PtxType::S32 => self.signed(bits as i32),
            _ => self.decimal(bits),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).expect("what is written here is ASCII")
    }
}
