//! Files made to attack: each kind that readers of GGUF files are known to have failed on, one test a kind. The crate `fuzz` has
//! mutated ones.

mod support;

use kiln_gguf::{Error, Gguf, Result};
use support::{Raw, small};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn parse(raw: Raw) -> Result<()> {
    Gguf::parse(&raw.0).map(drop)
}

/// The error of a file.
#[track_caller]
fn error(raw: Raw) -> Error {
    parse(raw).expect_err("the file is invalid")
}

/// Asserts the variant of an error.
macro_rules! refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error: Error = $result;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
    }};
}

/// A file with one tensor of f32 and 128 bytes of data.
fn one_tensor(extents: &[u64], kind: u32, offset: u64) -> Error {
    let file = Raw::new(1, 0).tensor("t", extents, kind, offset).data(128);
    Gguf::parse(&file).map(drop).expect_err("the file is invalid")
}

#[test]
fn what_is_not_gguf_is_named() {
    refused!(error(Raw::default()), Error::Magic { found } if found.is_empty());
    refused!(error(Raw::default().bytes(b"GG")), Error::Magic { found } if found == b"GG");
    refused!(error(Raw::default().bytes(b"PK\x03\x04 and more")), Error::Magic { found } if found == b"PK\x03\x04");
}

#[test]
fn other_versions_are_named() {
    for version in [0, 1, 4, 0xffff] {
        refused!(error(Raw::default().bytes(b"GGUF").u32(version)), Error::Version { found } if *found == version);
    }
}

#[test]
fn big_endian_files_are_named() {
    let file = Raw::default().bytes(b"GGUF").bytes(&3u32.to_be_bytes()).bytes(&[0; 16]);
    refused!(error(file), Error::BigEndian { version: 3 });
}

/// Readers that allocate or multiply by counts of the file before checking them were overrun (heap overflow).
#[test]
fn counts_are_checked_before_memory_is_allocated() {
    for count in [2, 1 << 32, 1 << 60, u64::MAX / 24 + 1, u64::MAX] {
        refused!(error(Raw::new(count, 0)), Error::Count { found, at_most: 0, .. } if *found == count);
        refused!(error(Raw::new(0, count)), Error::Count { found, at_most: 0, .. } if *found == count);
        for kind in [0, 5, 8, 10] {
            let array = Raw::new(0, 1).string(b"k").u32(9).u32(kind).u64(count);
            refused!(error(array), Error::Count { what, .. } if what.contains("\"k\""));
        }
    }
}

/// A length of a string that wraps when it is added to a position, or that is used as a signed number.
#[test]
fn lengths_of_strings_are_checked() {
    for len in [1, i32::MAX as u64 + 1, u64::MAX - 7, u64::MAX] {
        let value = Raw::new(0, 1).string(b"k").u32(8).u64(len);
        refused!(error(value), Error::Truncated { needed, .. } if *needed == len);
        let in_array = Raw::new(0, 1).string(b"k").u32(9).u32(8).u64(1).u64(len);
        refused!(error(in_array), Error::Truncated { needed, .. } if *needed == len);
    }
    refused!(error(Raw::new(0, 1).u64(65536).bytes(&[b'k'; 65600])), Error::TooLong { found: 65536, .. });
    refused!(error(Raw::new(0, 1).u64(u64::MAX).bytes(&[0; 32])), Error::TooLong { .. });
    refused!(error(Raw::new(1, 0).u64(65).bytes(&[b'n'; 100])), Error::TooLong { found: 65, at_most: 64, .. });
}

/// A product of extents that wraps to something small lets later reads leave the file.
#[test]
fn products_of_extents_that_wrap_are_refused() {
    for extents in [[1 << 32, 1 << 32, 1, 1], [u64::MAX, 2, 1, 1], [1 << 63, 2, 1, 1], [3, u64::MAX / 2, 2, 1]] {
        refused!(one_tensor(&extents, 0, 0), Error::Overflow { .. });
    }
    // A zero extent does not hide the overflow of the others.
    refused!(one_tensor(&[0, u64::MAX, 2], 0, 0), Error::Overflow { .. });
    // The number of elements fits 64 bits, the number of bytes does not.
    refused!(one_tensor(&[1 << 62], 0, 0), Error::Overflow { .. });
    refused!(one_tensor(&[1 << 62], 28, 0), Error::Overflow { .. });
}

/// A tensor that is larger than the file, so that a reader copies memory of its own into a new file.
#[test]
fn tensors_larger_than_the_file_are_refused() {
    refused!(one_tensor(&[33], 0, 0), Error::Outside { bytes: 132, left: 128, .. });
    refused!(one_tensor(&[1 << 40], 0, 0), Error::Outside { .. });
    refused!(one_tensor(&[1 << 61], 24, 0), Error::Outside { .. });
}

/// An offset that wraps when it is added to a size.
#[test]
fn offsets_outside_of_the_file_are_refused() {
    refused!(one_tensor(&[1], 0, 128), Error::Outside { offset: 128, .. });
    refused!(one_tensor(&[8], 0, u64::MAX - 31), Error::Outside { .. });
    refused!(one_tensor(&[1], 0, 1 << 63), Error::Outside { .. });
    // Even an empty tensor must not begin beyond the end.
    refused!(one_tensor(&[0], 0, 160), Error::Outside { .. });
}

/// Sizes that are added up over all tensors wrap, where each fits for itself.
#[test]
fn sums_of_sizes_are_never_formed() {
    let mut raw = Raw::new(4, 0);
    for name in ["a", "b", "c", "d"] {
        raw = raw.tensor(name, &[1 << 62], 24, 0);
    }
    let file = raw.data(64);
    refused!(Gguf::parse(&file).map(drop).unwrap_err(), Error::Outside { .. });
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused() {
    refused!(one_tensor(&[16, 2], 8, 0), Error::Blocks { extent: 16, .. });
    refused!(one_tensor(&[], 2, 0), Error::Blocks { extent: 1, .. });
    // The number of elements is a multiple of the block, the rows are not.
    refused!(one_tensor(&[1, 32], 2, 0), Error::Blocks { extent: 1, .. });
}

/// An alignment of zero divides by zero, one that is large lets a padded size wrap to zero.
#[test]
fn alignments_are_small_powers_of_two() {
    for alignment in [0, 3, 24, 33, 1 << 21, 1 << 31, u32::MAX] {
        let raw = Raw::new(0, 1).string(b"general.alignment").u32(4).u32(alignment);
        refused!(error(raw), Error::Alignment { .. });
    }
    refused!(error(Raw::new(0, 1).string(b"general.alignment").u32(10).u64(32)), Error::Alignment { .. });
    refused!(error(Raw::new(0, 1).string(b"general.alignment").u32(8).string(b"32")), Error::Alignment { .. });
}

#[test]
fn unaligned_tensors_are_refused() {
    for offset in [1, 4, 31, 33] {
        refused!(one_tensor(&[1], 0, offset), Error::Offset { alignment: 32, .. });
    }
}

#[test]
fn overlapping_tensors_are_refused() {
    let file = |second| Raw::new(2, 0).tensor("a", &[9], 0, 0).tensor("b", &[1], 0, second).data(128);
    refused!(Gguf::parse(&file(0)).map(drop).unwrap_err(), Error::Overlap { .. });
    refused!(
        Gguf::parse(&file(32)).map(drop).unwrap_err(),
        Error::Overlap { first, second } if first == "a" && second == "b"
    );
    // Gaps and any order are allowed.
    Gguf::parse(&file(96)).unwrap();
    let backwards = Raw::new(2, 0).tensor("a", &[1], 0, 64).tensor("b", &[1], 0, 0).data(128);
    Gguf::parse(&backwards).unwrap();
}

#[test]
fn duplicates_are_refused() {
    let keys = Raw::new(0, 2).string(b"k").u32(0).bytes(&[1]).string(b"k").u32(0).bytes(&[2]).bytes(&[0; 8]);
    refused!(error(keys), Error::Duplicate { what: "metadata key", name } if name == "k");
    let tensors = Raw::new(2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(64);
    refused!(Gguf::parse(&tensors).map(drop).unwrap_err(), Error::Duplicate { what: "tensor", .. });
}

#[test]
fn keys_and_names_are_utf8_and_printed_with_escapes() {
    refused!(error(Raw::new(0, 1).string(b"\xff\xfe").u32(0).bytes(&[0; 8])), Error::Utf8 { .. });
    let file = Raw::new(1, 0).string(b"\xc0\x80").bytes(&[0; 64]);
    refused!(error(file), Error::Utf8 { .. });
    let escape = error(Raw::new(0, 1).string(b"\x1b[2J").u32(99).bytes(&[0; 8])).to_string();
    assert!(!escape.contains('\u{1b}'), "{escape:?}");
    // Strings may contain any bytes, as tokens do.
    parse(Raw::new(0, 1).string(b"k").u32(8).string(b"\xff")).unwrap();
}

#[test]
fn types_that_do_not_exist_are_named() {
    refused!(error(Raw::new(0, 1).string(b"k").u32(13).bytes(&[0; 8])), Error::UnknownValueType { found: 13, .. });
    refused!(error(Raw::new(0, 1).string(b"k").u32(9).u32(13).u64(0)), Error::UnknownValueType { .. });
    refused!(error(Raw::new(0, 1).string(b"k").u32(9).u32(9).u64(0)), Error::NestedArray { .. });
    refused!(error(Raw::new(0, 1).string(b"k").u32(7).bytes(&[2]).bytes(&[0; 8])), Error::Bool { found: 2, .. });
    refused!(error(Raw::new(0, 1).string(b"k").u32(9).u32(7).u64(2).bytes(&[1, 255])), Error::Bool { found: 255, .. });
    let removed = one_tensor(&[32], 31, 0);
    assert!(removed.to_string().contains("Q4_0_4_4"), "{removed}");
    for kind in [43, u32::MAX] {
        refused!(one_tensor(&[32], kind, 0), Error::UnknownKind { found, .. } if *found == kind);
    }
}

#[test]
fn ranks_are_at_most_four() {
    refused!(one_tensor(&[1, 1, 1, 1, 1], 0, 0), Error::Rank { found: 5, .. });
    let huge = Raw::new(1, 0).string(b"t").u32(u32::MAX).bytes(&[0; 64]);
    refused!(error(huge), Error::Rank { found: u32::MAX, .. });
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let whole = small();
    let end = Gguf::parse(&whole).unwrap().infos().iter().map(|t| t.offset() + t.bytes()).max().unwrap();
    for len in 0..end {
        let error = Gguf::parse(&whole[..len]).map(drop).expect_err("a part is missing");
        assert!(!error.to_string().is_empty());
    }
    // Padding behind the last tensor may be missing.
    for len in end..=whole.len() {
        let file = Gguf::parse(&whole[..len]).unwrap();
        assert!(file.tensors().all(|tensor| tensor.bytes().len() == tensor.info().bytes()));
    }
}
