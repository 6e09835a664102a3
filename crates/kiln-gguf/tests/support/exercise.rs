//! What the test of mutated files and the fuzz target do with bytes.

use kiln_gguf::{Gguf, Writer};

/// Validates bytes as a file, reads all that it holds, and writes it again: what was read must come back.
pub(crate) fn exercise(bytes: &[u8]) {
    let file = match Gguf::parse(bytes) {
        Ok(file) => file,
        Err(error) => {
            assert!(!error.to_string().chars().any(char::is_control), "{error}");
            return;
        }
    };
    let metadata = file.metadata();
    let mut writer = Writer::new();
    for (key, value) in metadata.iter() {
        assert!(!value.to_string().chars().any(char::is_control), "{key:?} {value}");
        if let Some(array) = metadata.find::<kiln_gguf::Array>(key).unwrap_or_default() {
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
