//! GGUF files: validated, read, written again, and read in parts.

use kiln_gguf::{Array, Gguf, Header, Writer};

use super::message;
use crate::gguf_files;

/// A file of every type of value and of some types of tensors.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![gguf_files::small()]
}

/// Validates bytes as a file, reads all that it holds, and writes it again: what was read must come back.
pub(crate) fn run(bytes: &[u8]) {
    let parsed = Gguf::parse(bytes);
    as_it_comes(bytes, parsed.as_ref().ok());
    let file = match parsed {
        Ok(file) => file,
        Err(error) => return message(error),
    };
    let metadata = file.metadata();
    let mut writer = Writer::new();
    for (key, value) in metadata.iter() {
        message(format_args!("{key:?} {value}"));
        if let Some(array) = metadata.find::<Array<'_>>(key).unwrap_or_default() {
            assert_eq!(array.iter().count(), array.len());
        }
        let _ = metadata.get::<u32>(key);
        let _ = metadata.get::<&str>(key);
        let _ = metadata.get::<Vec<f32>>(key);
        writer.set(key, &value).expect("what was read is valid");
    }
    assert_eq!(metadata.iter().count(), metadata.len());
    for tensor in file.tensors() {
        let info = tensor.info();
        assert_eq!(tensor.bytes().len(), info.bytes());
        if let Ok(operand) = tensor.operand() {
            assert_eq!(operand.data().bytes(), info.bytes());
            assert_eq!(operand.shape().numel() as u64, info.elements());
        }
        writer.copy(tensor).expect("what was read is valid");
    }
    let mut written = Vec::new();
    writer.write(&mut written).expect("a Vec takes everything");
    let again = Gguf::parse(&written).expect("what is written is valid");
    // NaN payloads count too, so texts are compared.
    assert_eq!(format!("{:?}", again.metadata()), format!("{metadata:?}"));
    assert_eq!(again.infos().len(), file.infos().len());
    for (a, b) in again.tensors().zip(file.tensors()) {
        assert_eq!((a.info().name(), a.info().kind(), a.bytes()), (b.info().name(), b.info().kind(), b.bytes()));
        assert_eq!(a.info().extents(), b.info().extents());
    }
}

/// Reads the header from the first bytes of the file: too few are no error of a valid file, and enough give the same tensors.
fn as_it_comes(bytes: &[u8], whole: Option<&Gguf<'_>>) {
    let all = bytes.len() as u64;
    // Cuts that depend on the bytes, so that every place is cut in some case.
    let cut =
        bytes.iter().fold(0usize, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % (bytes.len() + 1);
    for len in [cut, bytes.len()] {
        match (Header::parse(&bytes[..len], all), whole) {
            (Ok(Some(header)), Some(whole)) => assert_eq!(header.infos(), whole.infos()),
            (Ok(None), Some(_)) => assert!(len < bytes.len(), "the header of a whole file is whole"),
            (Err(error), Some(_)) => panic!("{len} bytes of a valid file: {error}"),
            (Err(error), None) => message(error),
            (Ok(_), None) => {}
        }
    }
}
