//! Packed tensors with the matrices of all experts of a layer, as in folders of gpt-oss: outputs of gate and up alternate, and the
//! elements are floats, inputs first, or MXFP4 in two tensors. They are copied to the layout of GGUF files.

use kiln::{Buffer, DType, QuantFormat, Shape, Tensor, TensorType};

use super::names::{MXFP4_PARTS, Packed};
use super::tensors::{Weights, floats, other_extents};
use crate::{Error, Result};

/// Elements of a block of MXFP4, the bytes of its elements in folders, and its bytes in GGUF files.
const BLOCK: usize = 32;
const NIBBLES: usize = BLOCK / 2;
const BYTES: usize = 1 + NIBBLES;

/// Rows of inputs that are transposed together: a line of the cache has several outputs of each.
const TILE: usize = 64;

impl Weights {
    /// Whether a packed tensor, by its name in GGUF files, is stored in MXFP4.
    pub(super) fn has_mxfp4(&self, name: &str) -> bool {
        let whole = self.names.packed(name).and_then(|_| self.names.of(name));
        whole.is_some_and(|whole| {
            let has = |name: &str| self.named(name).is_some();
            !has(&whole) && MXFP4_PARTS.iter().any(|part| has(&format!("{whole}{part}")))
        })
    }

    /// The part of a packed tensor that a GGUF file has under this name: `[experts, outputs, inputs]`, or biases
    /// `[experts, outputs]` in f32.
    ///
    /// # Errors
    /// The errors of [`Weights::rows_of`].
    pub(super) fn unpacked(&self, name: &str, packed: Packed, dims: &[usize]) -> Result<Tensor> {
        let whole = self.names.of(name).unwrap_or_else(|| name.to_owned());
        let missing = |name: String| Error::File(kiln_gguf::Error::MissingTensor { name });
        let &[experts, outputs, ref inputs @ ..] = dims else { return Err(missing(whole)) };
        let all = packed.step * outputs;
        if self.has_mxfp4(name) {
            let &[inputs] = inputs else { return Err(missing(whole)) };
            return self.blocks(&whole, packed, [experts, outputs, inputs]);
        }
        let Some((file, info)) = self.named(&whole) else { return Err(missing(whole)) };
        let (dtype, bytes) = (file.computed(info)?, file.bytes(info));
        let stored: Vec<usize> = std::iter::once(experts).chain(inputs.iter().copied()).chain([all]).collect();
        if info.shape != stored {
            return Err(other_extents(&whole, &info.shape, &stored));
        }
        let &[inputs] = inputs else {
            let chosen = floats(bytes, dtype).into_iter().skip(packed.first).step_by(packed.step);
            return Ok(Tensor::from_vec(chosen.collect(), dims)?);
        };
        let mut transposed = Buffer::zeros(&TensorType::of(dtype, Shape::new(dims)?)?)?;
        let mut into = transposed.as_mut();
        let extents = [outputs, inputs];
        match dtype.size() {
            _ if !self.copies => {}
            2 => transpose(bytes.as_chunks::<2>().0, packed, extents, into.as_bytes().as_chunks_mut::<2>().0),
            _ => transpose(bytes.as_chunks::<4>().0, packed, extents, into.as_bytes().as_chunks_mut::<4>().0),
        }
        Ok(Tensor::from_buffer(transposed, dims)?)
    }

    /// [`Weights::unpacked`] for a tensor in MXFP4.
    fn blocks(&self, whole: &str, packed: Packed, [experts, outputs, inputs]: [usize; 3]) -> Result<Tensor> {
        let stored = [experts, packed.step * outputs, inputs / BLOCK, NIBBLES];
        let part = |part: &str, shape: &[usize]| {
            let name = format!("{whole}{part}");
            let missing = || Error::File(kiln_gguf::Error::MissingTensor { name: name.clone() });
            let (file, info) = self.named(&name).ok_or_else(missing)?;
            if info.dtype != "U8" {
                let reason = format!("tensor {name:?} has type {}, U8 is expected", info.dtype);
                return Err(Error::folder(&file.path, reason));
            }
            if info.shape != shape {
                return Err(other_extents(&name, &info.shape, shape));
            }
            Ok(file.bytes(info))
        };
        let [nibbles, scales] = MXFP4_PARTS;
        let (nibbles, scales) = (part(nibbles, &stored)?, part(scales, &stored[..3])?);
        let dims = [experts, outputs, inputs];
        let mut repacked = Buffer::zeros(&TensorType::of(DType::Blocks(QuantFormat::Mxfp4), Shape::new(&dims)?)?)?;
        let mut into = repacked.as_mut();
        let mut into = into.as_bytes().as_chunks_mut::<BYTES>().0.iter_mut();
        let of_row = (inputs / BLOCK).max(1);
        let rows = nibbles.as_chunks::<NIBBLES>().0.chunks_exact(of_row).zip(scales.chunks_exact(of_row));
        let rows = rows.skip(packed.first).step_by(packed.step).filter(|_| self.copies);
        for (nibbles, scales) in rows {
            for ((nibbles, &scale), block) in nibbles.iter().zip(scales).zip(&mut into) {
                *block = repack(scale, nibbles);
            }
        }
        Ok(Tensor::from_buffer(repacked, &dims)?)
    }
}

/// Some outputs of matrices `[inputs, all outputs]` as `[outputs, inputs]`.
fn transpose<T: Copy>(from: &[T], Packed { first, step }: Packed, [outputs, inputs]: [usize; 2], into: &mut [T]) {
    let of_matrix = (outputs * inputs).max(1);
    for (from, into) in from.chunks_exact(step * of_matrix).zip(into.chunks_exact_mut(of_matrix)) {
        for start in (0..inputs).step_by(TILE) {
            let tile = start..inputs.min(start + TILE);
            for output in 0..outputs {
                for input in tile.clone() {
                    into[output * inputs + input] = from[input * step * outputs + first + step * output];
                }
            }
        }
    }
}

/// A block as GGUF files have it, which pair elements i and i + 16 in a byte, from nibbles that pair neighbours.
fn repack(scale: u8, nibbles: &[u8; NIBBLES]) -> [u8; BYTES] {
    let element = |i: usize| nibbles[i / 2] >> (i % 2 * 4) & 15;
    let mut block = [scale; BYTES];
    for (i, byte) in block[1..].iter_mut().enumerate() {
        *byte = element(i) | element(i + NIBBLES) << 4;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_pair_elements_that_are_sixteen_apart() {
        // Elements 0 to 15 twice, the second time in reverse order.
        let elements: Vec<u8> = (0..16).chain((0..16).rev()).collect();
        let neighbours: Vec<u8> = elements.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4).collect();
        let block = repack(130, neighbours.as_slice().try_into().unwrap());
        let expected: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        assert_eq!((block[0], &block[1..]), (130, &expected[..]));
    }

    #[test]
    fn outputs_alternate() {
        // Two matrices of 70 inputs and two times 3 outputs.
        let from: Vec<usize> = (0..2 * 70 * 6).collect();
        for first in [0, 1] {
            let mut into = vec![0; 2 * 3 * 70];
            transpose(&from, Packed { first, step: 2 }, [3, 70], &mut into);
            let at = |expert: usize, output: usize, input: usize| (expert * 70 + input) * 6 + first + 2 * output;
            let expected = (0..into.len()).map(|i| at(i / 210, i / 70 % 3, i % 70));
            assert!(into.iter().copied().eq(expected), "{first}");
        }
    }
}
