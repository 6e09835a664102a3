//! Pointers, loads and stores.

use super::Builder;
use super::value::Value;
use crate::text::Line;
use crate::types::{Operand, Scalar};

mod sealed {
    pub trait Sealed {}
}

/// Global memory: the buffers of the device.
#[derive(Debug, Clone, Copy)]
pub struct Global;

/// The shared memory of a block.
#[derive(Debug, Clone, Copy)]
pub struct Shared;

/// The shared memory of any block of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct SharedCluster;

/// A kind of memory with addresses of its own.
pub trait Space: Copy + sealed::Sealed {
    /// The type of an address.
    type Address: Scalar;
    /// Its name in PTX.
    const NAME: &'static str;
    #[doc(hidden)]
    fn index<'k>(
        k: &'k Builder,
        base: Value<'k, Self::Address>,
        index: impl Operand<u32>,
        bytes: u32,
    ) -> Value<'k, Self::Address>;
}

impl sealed::Sealed for Global {}
impl Space for Global {
    type Address = u64;
    const NAME: &'static str = "global";
    fn index<'k>(k: &'k Builder, base: Value<'k, u64>, index: impl Operand<u32>, bytes: u32) -> Value<'k, u64> {
        k.mad_wide(index, bytes, base)
    }
}

impl sealed::Sealed for Shared {}
impl Space for Shared {
    type Address = u32;
    const NAME: &'static str = "shared";
    fn index<'k>(k: &'k Builder, base: Value<'k, u32>, index: impl Operand<u32>, bytes: u32) -> Value<'k, u32> {
        k.mad(index, bytes, base)
    }
}

impl sealed::Sealed for SharedCluster {}
impl Space for SharedCluster {
    type Address = u32;
    const NAME: &'static str = "shared::cluster";
    fn index<'k>(k: &'k Builder, base: Value<'k, u32>, index: impl Operand<u32>, bytes: u32) -> Value<'k, u32> {
        k.mad(index, bytes, base)
    }
}

/// The address of elements `T` in the memory `S`: a register, and an offset that costs no instruction.
pub struct Pointer<'k, S: Space, T> {
    base: Value<'k, S::Address>,
    offset: i32,
    element: std::marker::PhantomData<T>,
}

impl<S: Space, T> Clone for Pointer<'_, S, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Space, T> Copy for Pointer<'_, S, T> {}

impl<'k, S: Space, T> Pointer<'k, S, T> {
    pub(super) fn new(base: Value<'k, S::Address>) -> Self {
        Self { base, offset: 0, element: std::marker::PhantomData }
    }

    #[inline(always)]
    pub(super) fn address_in(self, line: &mut Line<'_>) {
        line.address(S::Address::TYPE.class(), self.base.number, self.offset);
    }

    /// This many bytes further; no instruction.
    pub fn bytes(self, bytes: i32) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }

    /// The same address, of elements of another type.
    pub fn cast<U>(self) -> Pointer<'k, S, U> {
        Pointer { base: self.base, offset: self.offset, element: std::marker::PhantomData }
    }
}

impl<'k, S: Space, T: Scalar> Pointer<'k, S, T> {
    /// This many elements further; no instruction.
    pub fn offset(self, elements: i32) -> Self {
        self.bytes(elements * T::TYPE.bytes() as i32)
    }

    /// `index` elements further.
    pub fn index(self, index: impl Operand<u32>) -> Self {
        Self { base: S::index(self.base.builder, self.base, index, T::TYPE.bytes()), ..self }
    }
}

impl<'k, T> Pointer<'k, Shared, T> {
    /// The address as a number.
    pub fn address(self) -> Value<'k, u32> {
        if self.offset == 0 { self.base } else { self.base + self.offset as u32 }
    }

    /// This many bytes further.
    pub fn byte_index(self, bytes: impl Operand<u32>) -> Self {
        Self { base: self.base + bytes, ..self }
    }

    /// Flips some bits of the address, for addresses without a constant offset.
    pub(crate) fn flipped(self, bits: impl Operand<u32>) -> Self {
        Self { base: self.base ^ bits, ..self }
    }

    /// The same place in the shared memory of the block of this rank in the cluster.
    pub fn of_block(self, rank: impl Operand<u32>) -> Pointer<'k, SharedCluster, T> {
        let base = self.base.builder.mapa(self.base, rank);
        Pointer { base, offset: self.offset, element: std::marker::PhantomData }
    }
}

impl<'k, T> Pointer<'k, SharedCluster, T> {
    /// This many bytes further.
    pub fn byte_index(self, bytes: impl Operand<u32>) -> Self {
        Self { base: self.base + bytes, ..self }
    }
}

impl<'k, T> Pointer<'k, Global, T> {
    /// The address as a number.
    pub fn address(self) -> Value<'k, u64> {
        if self.offset == 0 { self.base } else { self.base + self.offset as i64 as u64 }
    }
}

impl<T: Scalar> Pointer<'_, Global, T> {
    /// `index` elements further, where 32 bits do not count so far.
    pub fn index_wide(self, index: impl Operand<u64>) -> Self {
        let k = self.base.builder;
        Self { base: k.mad(index, u64::from(T::TYPE.bytes()), self.base), ..self }
    }
}

/// A number of elements that one access reads or writes together.
#[derive(Debug)]
pub struct Lanes<const N: usize>;

/// The numbers of elements that there are vectors of. A vector is aligned to its own size.
pub trait VectorWidth: sealed::Sealed {
    #[doc(hidden)]
    const SUFFIX: &'static str;
}
impl sealed::Sealed for Lanes<2> {}
impl VectorWidth for Lanes<2> {
    const SUFFIX: &'static str = ".v2.";
}
impl sealed::Sealed for Lanes<4> {}
impl VectorWidth for Lanes<4> {
    const SUFFIX: &'static str = ".v4.";
}

/// `@p ld.global.v4.f32 `
#[inline(always)]
fn head<S: Space, T: Scalar>(
    line: &mut Line<'_>,
    guard: Option<Value<'_, bool>>,
    access: &'static str,
    vector: &'static str,
) {
    line.put("\t");
    if let Some(p) = guard {
        line.put("@");
        p.write(line);
        line.put(" ");
    }
    line.put(access);
    line.put(S::NAME);
    line.put(vector);
    line.put(T::TYPE.name());
    line.put(" ");
}

#[inline(always)]
fn list<T: Scalar>(line: &mut Line<'_>, values: &[impl Operand<T>]) {
    for (i, value) in values.iter().enumerate() {
        line.put(if i == 0 { "{" } else { ", " });
        value.write(line);
    }
    line.put("}");
}

/// Loads and stores: `ld` and `st` for `global` and `shared`.
impl Builder {
    fn load<'k, S: Space, T: Scalar>(
        &'k self,
        guard: Option<Value<'k, bool>>,
        to: Value<'k, T>,
        from: Pointer<'k, S, T>,
    ) {
        self.line(|line| {
            head::<S, T>(line, guard, "ld.", ".");
            to.write(line);
            line.put(", ");
            from.address_in(line);
            line.put(";\n");
        });
    }

    fn load_vector<'k, S: Space, T: Scalar, const N: usize>(
        &'k self,
        guard: Option<Value<'k, bool>>,
        access: &'static str,
        to: [Value<'k, T>; N],
        from: Pointer<'k, S, T>,
    ) where
        Lanes<N>: VectorWidth,
    {
        self.line(|line| {
            head::<S, T>(line, guard, access, Lanes::<N>::SUFFIX);
            list(line, &to);
            line.put(", ");
            from.address_in(line);
            line.put(";\n");
        });
    }

    fn store_vector<S: Space, T: Scalar, const N: usize>(
        &self,
        guard: Option<Value<'_, bool>>,
        access: &'static str,
        to: Pointer<'_, S, T>,
        values: [impl Operand<T>; N],
    ) where
        Lanes<N>: VectorWidth,
    {
        self.line(|line| {
            head::<S, T>(line, guard, access, Lanes::<N>::SUFFIX);
            to.address_in(line);
            line.put(", ");
            list(line, &values);
            line.put(";\n");
        });
    }

    fn store<S: Space, T: Scalar>(
        &self,
        guard: Option<Value<'_, bool>>,
        to: Pointer<'_, S, T>,
        value: impl Operand<T>,
    ) {
        self.line(|line| {
            head::<S, T>(line, guard, "st.", ".");
            to.address_in(line);
            line.put(", ");
            value.write(line);
            line.put(";\n");
        });
    }

    /// The element at `from`.
    pub fn ld<'k, S: Space, T: Scalar>(&'k self, from: Pointer<'k, S, T>) -> Value<'k, T> {
        let value = self.fresh();
        self.load(None, value, from);
        value
    }

    /// The element at `from` where `p`, else `otherwise`, and nothing is read.
    pub fn ld_if<'k, S: Space, T: Scalar>(
        &'k self,
        p: Value<'k, bool>,
        from: Pointer<'k, S, T>,
        otherwise: impl Operand<T>,
    ) -> Value<'k, T> {
        let value = self.constant(otherwise);
        self.load(Some(p), value, from);
        value
    }

    /// The `N` elements from `from` on.
    pub fn ld_v<'k, S: Space, T: Scalar, const N: usize>(&'k self, from: Pointer<'k, S, T>) -> [Value<'k, T>; N]
    where
        Lanes<N>: VectorWidth,
    {
        let values = std::array::from_fn(|_| self.fresh());
        self.load_vector(None, "ld.", values, from);
        values
    }

    /// The `N` elements from `from` on where `p`, else `otherwise` for each, and nothing is read.
    pub fn ld_v_if<'k, S: Space, T: Scalar, const N: usize>(
        &'k self,
        p: Value<'k, bool>,
        from: Pointer<'k, S, T>,
        otherwise: impl Operand<T>,
    ) -> [Value<'k, T>; N]
    where
        Lanes<N>: VectorWidth,
    {
        let values = std::array::from_fn(|_| self.constant(otherwise));
        self.load_vector(Some(p), "ld.", values, from);
        values
    }

    /// The `N` elements from `from` on where `p`, else `otherwise`, and nothing is read; elements that other devices store are
    /// never those of an older state of a cache.
    pub fn ld_relaxed_sys_v_if<'k, T: Scalar, const N: usize>(
        &'k self,
        p: Value<'k, bool>,
        from: Pointer<'k, Global, T>,
        otherwise: [Value<'k, T>; N],
    ) -> [Value<'k, T>; N]
    where
        Lanes<N>: VectorWidth,
    {
        let values = otherwise.map(|value| self.constant(value));
        self.load_vector(Some(p), "ld.relaxed.sys.", values, from);
        values
    }

    /// Writes the element at `to`.
    pub fn st<S: Space, T: Scalar>(&self, to: Pointer<'_, S, T>, value: impl Operand<T>) {
        self.store(None, to, value);
    }

    /// Writes the element at `to` where `p`.
    pub fn st_if<S: Space, T: Scalar>(&self, p: Value<'_, bool>, to: Pointer<'_, S, T>, value: impl Operand<T>) {
        self.store(Some(p), to, value);
    }

    /// Writes the `N` elements from `to` on.
    pub fn st_v<S: Space, T: Scalar, const N: usize>(&self, to: Pointer<'_, S, T>, values: [impl Operand<T>; N])
    where
        Lanes<N>: VectorWidth,
    {
        self.store_vector(None, "st.", to, values);
    }

    /// Writes the `N` elements from `to` on where `p`.
    pub fn st_v_if<S: Space, T: Scalar, const N: usize>(
        &self,
        p: Value<'_, bool>,
        to: Pointer<'_, S, T>,
        values: [impl Operand<T>; N],
    ) where
        Lanes<N>: VectorWidth,
    {
        self.store_vector(Some(p), "st.", to, values);
    }

    /// Writes the `N` elements from `to` on where `p`, for devices that load them by [`Builder::ld_relaxed_sys_v_if`]. Each element
    /// arrives whole, but in no order: neither among the elements nor with other accesses.
    pub fn st_relaxed_sys_v_if<T: Scalar, const N: usize>(
        &self,
        p: Value<'_, bool>,
        to: Pointer<'_, Global, T>,
        values: [impl Operand<T>; N],
    ) where
        Lanes<N>: VectorWidth,
    {
        self.store_vector(Some(p), "st.relaxed.sys.", to, values);
    }

    /// `a` if `c`, else `b`.
    pub fn select<'k, T>(
        &'k self,
        a: Pointer<'k, Global, T>,
        b: Pointer<'k, Global, T>,
        c: Value<'k, bool>,
    ) -> Pointer<'k, Global, T> {
        Pointer::new(self.selp(a.address(), b.address(), c))
    }

    /// Makes the element at `to` the lesser of what it is and a value, whatever other threads do to it at the same time.
    pub fn red_min(&self, to: Pointer<'_, Global, u64>, value: impl Operand<u64>) {
        self.line(|line| {
            line.put("\tred.global.min.u64 ");
            to.address_in(line);
            line.put(", ");
            value.write(line);
            line.put(";\n");
        });
    }
}
