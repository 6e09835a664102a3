//! The sums of the asynchronous products of a warp group (`wgmma`).

use std::marker::PhantomData;

use super::operands::{Flag, Fragment, Groups, Sign};
use super::value::{Value, Variable};
use super::{Builder, Pointer, Shared};
use crate::layout::Panels;
use crate::table::{
    WgmmaN16, WgmmaN32, WgmmaN64, WgmmaN128, WgmmaN176, WgmmaN256, WgmmaOfRegistersN16, WgmmaOfRegistersN32,
    WgmmaOfRegistersN64, WgmmaOfRegistersN128, WgmmaOfRegistersN256,
};

/// Rows of C of one instruction.
const ROWS: u32 = 64;

/// Sums of 64-row blocks of C by some columns, in the registers of a warp group, with no product under way that adds to them.
///
/// In each block, warp w of the group has the rows from 16 w on; there, with g = lane / 4 and t = lane mod 4, the values 4j
/// to 4j + 3 are the columns 8j + 2t and the next of the row g, then of g + 8.
pub struct Sums<'k> {
    builder: &'k Builder,
    first: u32,
    blocks: u32,
    columns: u32,
}

/// [`Sums`] that products are being added to. They can be read only after [`Running::finish`].
pub struct Running<'k>(Sums<'k>);

/// An operand of a product in shared memory: the position of its first step along k, and the layout of the next ones.
#[derive(Clone, Copy)]
pub struct Descriptor<'k> {
    first: Value<'k, u64>,
    panels: Panels,
    across: bool,
}

impl Builder {
    /// The operand at `at` in the layout of the panels, at the beginning of one of their first rows or panels that is a multiple
    /// of 1024 bytes from the first; `across`: rows are along k, not columns.
    pub fn descriptor<'k, T>(&'k self, at: Pointer<'k, Shared, T>, panels: Panels, across: bool) -> Descriptor<'k> {
        // In a cluster, the upper bits of an address identify the block.
        const IN_BLOCK: u32 = (1 << 18) - 1;
        let first = self.or(self.cvt_u64((at.address() & IN_BLOCK) >> 4u32), panels.descriptor(across));
        Descriptor { first, panels, across }
    }

    /// Uninitialised sums: the first product replaces them and must not add.
    ///
    /// # Panics
    /// If no instruction has this many columns.
    pub fn sums(&self, blocks: u32, columns: u32) -> Sums<'_> {
        assert!(matches!(columns, 16 | 32 | 64 | 128 | 176 | 256), "products of {columns} columns");
        Sums { builder: self, first: self.fresh_many::<f32>(blocks * columns / 2), blocks, columns }
    }
}

impl<'k> Descriptor<'k> {
    /// This many bytes further.
    pub fn byte_index(self, bytes: Value<'k, u32>) -> Self {
        let k = bytes.builder;
        Self { first: self.first + k.cvt_u64(bytes >> 4u32), ..self }
    }

    /// This many bytes further.
    pub fn bytes(self, bytes: u32) -> Self {
        if bytes == 0 { self } else { Self { first: self.first + u64::from(bytes >> 4), ..self } }
    }

    fn step(self, step: u32) -> Value<'k, u64> {
        self.bytes(self.panels.step(self.across, step)).first
    }
}

impl<'k> Sums<'k> {
    /// The values of a block.
    pub fn values(&self, block: u32) -> Vec<Value<'k, f32>> {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        let first = self.first + block * self.columns / 2;
        let value = |number| Value { builder: self.builder, number, scalar: PhantomData };
        (first..first + self.columns / 2).map(value).collect()
    }

    /// Makes all values 0.
    pub fn clear(&mut self) {
        let k = self.builder;
        (0..self.blocks).flat_map(|block| self.values(block)).for_each(|value| k.copy(value, 0.0f32));
    }

    /// Multiplies the values of a block, those of each of the two rows that a thread has by a number.
    pub fn scale(&mut self, block: u32, rows: [Value<'k, f32>; 2]) {
        let k = self.builder;
        for (i, value) in self.values(block).into_iter().enumerate() {
            k.copy(value, value * rows[i / 2 % 2]);
        }
    }

    /// From here on products are added.
    pub fn start(self) -> Running<'k> {
        Running(self)
    }

    /// Products are added during `body`, and all of them are done behind it.
    pub fn during<R>(&mut self, body: impl FnOnce(&Running<'k>) -> R) -> R {
        let running = Running(Sums { ..*self });
        let result = body(&running);
        running.wait(0);
        result
    }
}

impl<'k> Running<'k> {
    /// A group of products.
    pub fn group(&self, products: impl FnOnce()) {
        let k = self.0.builder;
        k.wgmma_fence::<u32>();
        products();
        k.wgmma_commit_group::<u32>();
    }

    /// Waits until no more than this many groups are under way.
    pub fn wait(&self, pending: u32) {
        self.0.builder.wgmma_wait_group::<u32>(Groups(pending));
    }

    /// Waits for all groups.
    pub fn finish(self) -> Sums<'k> {
        self.wait(0);
        self.0
    }

    /// Waits until no more than this many groups are under way, all of them begun after those of these sums.
    pub fn finish_before(self, later: u32) -> Sums<'k> {
        self.wait(later);
        self.0
    }

    /// Begins to add to a block the product of the 64 rows of `a` and the columns of `b`, 32 bytes deep, from this many such
    /// steps on; the first product of all is put there instead, where `adds` is false.
    pub fn multiply<T: WgmmaN16 + WgmmaN32 + WgmmaN64 + WgmmaN128 + WgmmaN176 + WgmmaN256>(
        &self,
        block: u32,
        [a, b]: [Descriptor<'k>; 2],
        step: u32,
        adds: Value<'k, bool>,
    ) {
        let k = self.0.builder;
        let [from_a, from_b] = [a.step(step), b.step(step)];
        let (plus, across) = (Sign(false), [Flag(a.across), Flag(b.across)]);
        macro_rules! by_columns {
            ($($columns:literal $method:ident;)*) => {
                match self.0.columns {
                    $($columns => {
                        let d = self.registers::<{ $columns / 2 }>(block);
                        k.$method::<T>(d, from_a, from_b, adds, plus, plus, across[0], across[1]);
                    })*
                    _ => unreachable!("sums are made with these numbers of columns"),
                }
            };
        }
        by_columns! { 16 wgmma_n16; 32 wgmma_n32; 64 wgmma_n64; 128 wgmma_n128; 176 wgmma_n176; 256 wgmma_n256; }
    }

    /// [`Running::multiply`] with the part of `a` of this step in registers, which keep what they hold until the product is
    /// done.
    ///
    /// # Panics
    /// With 176 columns.
    pub fn multiply_registers<T>(
        &self,
        block: u32,
        a: [Variable<'k, u32>; 4],
        b: Descriptor<'k>,
        step: u32,
        adds: Value<'k, bool>,
    ) where
        T: WgmmaOfRegistersN16
            + WgmmaOfRegistersN32
            + WgmmaOfRegistersN64
            + WgmmaOfRegistersN128
            + WgmmaOfRegistersN256,
    {
        let (k, from_b) = (self.0.builder, b.step(step));
        let (plus, across) = (Sign(false), Flag(b.across));
        macro_rules! by_columns {
            ($($columns:literal $method:ident;)*) => {
                match self.0.columns {
                    $($columns => {
                        let d = self.registers::<{ $columns / 2 }>(block);
                        k.$method::<T>(d, a, from_b, adds, plus, plus, across);
                    })*
                    columns => panic!("products of registers of {columns} columns"),
                }
            };
        }
        by_columns! {
            16 wgmma_of_registers_n16;
            32 wgmma_of_registers_n32;
            64 wgmma_of_registers_n64;
            128 wgmma_of_registers_n128;
            256 wgmma_of_registers_n256;
        }
    }

    /// [`Running::multiply`] in TF32: of the f32 in shared memory the upper 19 bits are read.
    ///
    /// # Panics
    /// If there are fewer than 64 columns, or an operand is not stored with k innermost.
    pub fn multiply_tf32(&self, block: u32, [a, b]: [Descriptor<'k>; 2], step: u32, adds: Value<'k, bool>) {
        assert!(!a.across && !b.across, "operands in TF32 lie with k innermost");
        let k = self.0.builder;
        let [from_a, from_b] = [a.step(step), b.step(step)];
        let plus = Sign(false);
        match self.0.columns {
            64 => k.wgmma_tf32_n64::<f32>(self.registers(block), from_a, from_b, adds, plus, plus),
            128 => k.wgmma_tf32_n128::<f32>(self.registers(block), from_a, from_b, adds, plus, plus),
            256 => k.wgmma_tf32_n256::<f32>(self.registers(block), from_a, from_b, adds, plus, plus),
            columns => panic!("products in TF32 of {columns} columns"),
        }
    }

    fn registers<const N: usize>(&self, block: u32) -> Fragment<'k, f32, N> {
        let first = self.0.first + block * self.0.columns / 2;
        Fragment { builder: self.0.builder, first, scalar: PhantomData }
    }

    /// Rows of a block.
    pub const ROWS: u32 = ROWS;
    /// Bytes of a step along k.
    pub const DEPTH_BYTES: u32 = 32;
}
