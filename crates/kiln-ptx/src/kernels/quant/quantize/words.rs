//! The words of blocks of 256 elements: the layout of the fitted numbers in each format.

use super::{Fitting, LEN, Quantize, VECTOR, Word, packed};
use crate::kernels::team;
use crate::{F16, Global, Pointer, Shared};

impl Quantize {
    /// The word of a Q2_K block that a thread writes, and the number of words.
    pub(super) fn q2_k<'k>(
        &self,
        block: &Fitting<'k>,
        units: Word<'k>,
        codes: [Pointer<'k, Shared, u32>; 2],
    ) -> (Word<'k>, u32) {
        let k = block.k;
        let (header, integers) = (4, 16);
        let word = k.variable(units);
        let at = block.thread;
        k.if_(k.lt(at, header), || {
            let code = |j: u32| {
                let [scale, minimum] = codes.map(|codes| k.ld(codes.index(at * 4u32).offset(j as i32)));
                (scale | minimum << 4) << (8 * j)
            };
            word.set((0..4).map(code).reduce(|a, b| a | b).unwrap_or(word.get()));
        });
        k.if_(k.and(k.ge(at, header), k.lt(at, header + integers)), || {
            // Four rows of a half, eight words each, share its bytes.
            let at = at - header;
            let first = block.integers.index(at + (at >> 3) * 24u32);
            let row = |row: u32| (k.ld(first.offset(8 * row as i32)) & 0x0303_0303u32) << (2 * row);
            word.set((0..4).map(row).reduce(|a, b| a | b).unwrap_or(word.get()));
        });
        (word.get(), header + integers + 1)
    }

    /// The same for Q4_K and Q5_K.
    pub(super) fn q4_k<'k>(
        &self,
        block: &Fitting<'k>,
        units: Word<'k>,
        of_subs: [Pointer<'k, Shared, u32>; 2],
    ) -> (Word<'k>, u32) {
        let k = block.k;
        let five = self.format.layout().bits == 5;
        let subs = LEN / block.len;
        let (header, high, low) = (4, if five { 8 } else { 0 }, 32);
        let word = k.variable(0u32);
        let at = block.thread;
        let integers = |at: Word<'k>, i: u32| k.ld(block.integers.index(at).offset(i as i32));
        k.if_(k.eq(at, 0), || word.set(units));
        k.if_(k.and(k.ge(at, 1), k.lt(at, header)), || {
            let codes = |kind: usize, from: u32| (0..4).map(move |i| k.ld(of_subs[kind].offset((from + i) as i32)));
            let bytes = |codes: Vec<Word<'k>>| {
                let places = codes.into_iter().zip(0..).map(|(code, i): (_, u32)| code << (8 * i)).collect();
                team::tree(places, |a, b| a | b).unwrap_or(word.get())
            };
            let whole = |kind| bytes(codes(kind, 0).zip(codes(kind, 4)).map(|(a, b)| a | b >> 4 << 6).collect());
            let rest = bytes(codes(0, 4).zip(codes(1, 4)).map(|(a, b)| a & 15u32 | (b & 15u32) << 4).collect());
            word.set(k.selp(whole(0), k.selp(whole(1), rest, k.eq(at, 2)), k.eq(at, 1)));
        });
        if five {
            k.if_(k.and(k.ge(at, header), k.lt(at, header + high)), || {
                let bits = (0..subs).map(|sub| (integers(at - header, 8 * sub) >> 4 & 0x0101_0101u32) << sub).collect();
                word.set(team::tree(bits, |a, b| a | b).unwrap_or(word.get()));
            });
        }
        k.if_(k.and(k.ge(at, header + high), k.lt(at, header + high + low)), || {
            // Eight words of a sub-block below eight of the next.
            let at = at - (header + high);
            let [lower, upper] = [0, 8].map(|i| integers(at + (at & !7u32), i) & 0x0f0f_0f0fu32);
            word.set(lower | upper << 4);
        });
        (word.get(), header + high + low)
    }

    /// Writes a block of Q6_K.
    pub(super) fn q6_k<'k>(
        &self,
        block: &Fitting<'k>,
        unit: Word<'k>,
        of_subs: Pointer<'k, Shared, u32>,
        out: Pointer<'k, Global, u32>,
    ) {
        let k = block.k;
        // Adding 32 to the integers and taking 6 bits inverts their sign bit.
        let integers =
            |at: Word<'k>, i: u32| k.ld(block.integers.index(at).offset(i as i32)) & 0x3f3f_3f3fu32 ^ 0x2020_2020u32;
        let (low, high, scales) = (32, 16, 4);
        let word = k.variable(unit);
        let at = block.thread;
        k.if_(k.lt(at, low), || {
            let at = at + (at & 16u32);
            let [lower, upper] = [0, 16].map(|i| integers(at, i) & 0x0f0f_0f0fu32);
            word.set(lower | upper << 4);
        });
        k.if_(k.and(k.ge(at, low), k.lt(at, low + high)), || {
            let at = at - low;
            let quarters = (0..4).map(|r| (integers(at + (at & 8u32) * 3u32, 8 * r) >> 4 & 0x0303_0303u32) << (2 * r));
            word.set(team::tree(quarters.collect(), |a, b| a | b).unwrap_or(word.get()));
        });
        let words = low + high + scales;
        k.if_(k.and(k.ge(at, low + high), k.lt(at, words)), || {
            let codes = k.ld_v::<_, _, 4>(of_subs.index((at - (low + high)) * VECTOR));
            word.set(packed(k, codes.map(|code| k.bits_f32(code))));
        });
        block.write_with_half(word.get(), words, out);
    }

    /// Writes a block of Q3_K.
    pub(super) fn q3_k<'k>(
        &self,
        block: &Fitting<'k>,
        unit: Word<'k>,
        of_subs: Pointer<'k, Shared, u32>,
        out: Pointer<'k, Global, u32>,
    ) {
        let k = block.k;
        // Adding 4 to the integers and taking 3 bits inverts their sign bit; adding 32 to codes and taking 6 bits
        // likewise.
        let integers =
            |at: Word<'k>, i: u32| k.ld(block.integers.index(at).offset(i as i32)) & 0x0707_0707u32 ^ 0x0404_0404u32;
        let code = |at: Word<'k>, i: u32| k.ld(of_subs.index(at).offset(i as i32)) & 63u32 ^ 32u32;
        let (third, low) = (8, 16);
        let word = k.variable(unit);
        let at = block.thread;
        k.if_(k.lt(at, third), || {
            let rows = (0..8).map(|row| (integers(at, 8 * row) >> 2 & 0x0101_0101u32) << row);
            word.set(rows.reduce(|a, b| a | b).unwrap_or(word.get()));
        });
        k.if_(k.and(k.ge(at, third), k.lt(at, third + low)), || {
            // Four rows of a half, eight words each, share its bytes.
            let at = at - third;
            let rows = (0..4).map(|row| (integers(at + (at >> 3) * 24u32, 8 * row) & 0x0303_0303u32) << (2 * row));
            word.set(rows.reduce(|a, b| a | b).unwrap_or(word.get()));
        });
        k.if_(k.and(k.ge(at, third + low), k.lt(at, third + low + 2)), || {
            let first = (at - (third + low)) * 4u32;
            let both = (0..4).map(|j| (code(first, j) & 15u32 | (code(first, j + 8) & 15u32) << 4) << (8 * j));
            word.set(both.reduce(|a, b| a | b).unwrap_or(word.get()));
        });
        let words = third + low + 3;
        k.if_(k.eq(at, words - 1), || {
            let first = k.constant(0u32);
            let two = (0..16u32).map(|s| (code(first, s) >> 4) << (8 * (s % 4) + 2 * (s / 4)));
            word.set(two.reduce(|a, b| a | b).unwrap_or(word.get()));
        });
        block.write_with_half(word.get(), words, out);
    }

    /// Writes a block of IQ4_XS.
    pub(super) fn iq4_xs<'k>(
        &self,
        block: &Fitting<'k>,
        unit: Word<'k>,
        of_subs: Pointer<'k, Shared, u32>,
        out: Pointer<'k, Global, u32>,
    ) {
        let k = block.k;
        let words = 34;
        let word = k.variable(unit);
        let at = block.thread;
        k.if_(k.lt(at, 2), || {
            let codes: Vec<Word<'k>> = (0..8).map(|s| k.ld(of_subs.offset(s)) & 63u32 ^ 32u32).collect();
            let joined = |code: &dyn Fn(Word<'k>, u32) -> Word<'k>| {
                let codes = codes.iter().zip(0..).map(|(&word, s)| code(word, s));
                codes.reduce(|a, b| a | b).unwrap_or(unit)
            };
            let low = joined(&|code, s| (code & 15u32) << (4 * s));
            let high = joined(&|code, s| (code >> 4) << (2 * s + 16));
            word.set(k.selp(unit | high, low, k.eq(at, 0)));
        });
        k.if_(k.and(k.ge(at, 2), k.lt(at, words)), || {
            // Four words of a sub-block beside the other four.
            let at = at - 2u32;
            let first = block.integers.index(at + (at & !3u32));
            word.set(k.ld(first) | k.ld(first.offset(4)) << 4);
        });
        // A block with values that are not finite has only its unit.
        let word = k.selp(word, k.selp(unit, 0, k.eq(at, 0)), block.range.finite);
        k.st_if(k.lt(at, words), out.index_wide(k.mul_wide(k.ctaid_x(), words)).index(at), word);
    }
}

impl<'k> Fitting<'k> {
    /// Writes the thread's word of `words` words, followed by a half word, the unit.
    fn write_with_half(&self, word: Word<'k>, words: u32, out: Pointer<'k, Global, u32>) {
        let (k, block, at) = (self.k, self, self.thread);
        // A block with values that are not finite has only its unit.
        let word = k.selp(word, 0, k.or(block.range.finite, k.eq(at, words)));
        let halves = k.halves::<F16>(word);
        let out = out.cast::<F16>().index_wide(k.mul_wide(k.ctaid_x(), 2 * words + 1)).index(at * 2u32);
        k.st_if(k.le(at, words), out, halves[0]);
        // Zeros after the last block complete the word.
        let block = k.ctaid_x();
        let fills = k.and(k.eq(block, k.nctaid_x() - 1u32), k.eq(block & 1u32, 0));
        let writes = k.or(k.lt(at, words), k.and(k.eq(at, words), fills));
        k.st_if(writes, out.offset(1), halves[1]);
    }
}
