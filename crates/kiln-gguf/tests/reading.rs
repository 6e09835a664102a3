//! What is written comes back.

mod support;

use kiln_gguf::{Array, Error, Gguf, Header, TensorKind, Value, ValueKind, Writer};
use kiln_ir::{DType, Data, QuantFormat};
use support::{aligned, small};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn every_type_of_value_comes_back() {
    let bytes = small();
    let file = Gguf::parse(&bytes).expect("the file is valid");
    let m = file.metadata();
    assert_eq!((file.version(), file.alignment(), m.len(), file.file_bytes()), (3, 64, 18, bytes.len()));
    assert_eq!(m.get::<&str>("general.architecture").unwrap(), "llama");
    assert_eq!((m.get::<u8>("u8").unwrap(), m.get::<i8>("i8").unwrap()), (8, -8));
    assert_eq!((m.get::<u16>("u16").unwrap(), m.get::<i16>("i16").unwrap()), (16, -16));
    assert_eq!((m.get::<u32>("u32").unwrap(), m.get::<i32>("i32").unwrap()), (32, -32));
    assert_eq!((m.get::<u64>("u64").unwrap(), m.get::<i64>("i64").unwrap()), (u64::MAX, i64::MIN));
    assert_eq!((m.get::<f32>("f32").unwrap(), m.get::<f64>("f64").unwrap()), (0.5, 0.25));
    assert!(m.get::<bool>("bool").unwrap());
    assert_eq!(m.get::<&[u8]>("any bytes").unwrap(), b"\xff\x00");
    assert_eq!(m.get::<Vec<&str>>("tokens").unwrap(), ["a", "", "\u{2581}b"]);
    let scores = m.get::<Vec<f32>>("scores").unwrap();
    assert!(scores[0] == -1.0 && scores[1].is_nan());
    assert_eq!(m.get::<Vec<bool>>("flags").unwrap(), [true, false]);
    let empty = m.get::<Array>("empty").unwrap();
    assert!(empty.is_empty() && empty.kind() == ValueKind::U64);
    let strings: Vec<_> = m.get::<Array>("tokens").unwrap().strings().unwrap().collect();
    assert_eq!(strings, [&b"a"[..], b"", "\u{2581}b".as_bytes()]);
    assert!(empty.strings().is_none());
    assert_eq!(m.iter().next(), Some(("general.architecture", Value::String(b"llama"))));
}

#[test]
fn integers_are_read_as_every_type_that_holds_them() {
    let bytes = small();
    let file = Gguf::parse(&bytes).expect("the file is valid");
    let m = file.metadata();
    assert_eq!((m.get::<u64>("u8").unwrap(), m.get::<usize>("u32").unwrap(), m.get::<i8>("u16").unwrap()), (8, 32, 16));
    assert_eq!(m.get::<f64>("f32").unwrap(), 0.5);
    assert_eq!(m.find::<u32>("absent").unwrap(), None);
}

#[test]
fn wrong_types_and_missing_keys_name_key_expected_and_found() {
    let bytes = small();
    let file = Gguf::parse(&bytes).expect("the file is valid");
    let m = file.metadata();
    let text = |error: Error| error.to_string();
    assert_eq!(
        text(m.get::<u32>("i32").unwrap_err()),
        "the value of \"i32\" is i32 -32, an unsigned integer of 32 bits is needed"
    );
    assert_eq!(
        text(m.find::<&str>("any bytes").unwrap_err()),
        "the value of \"any bytes\" is string \"\u{fffd}\\0\", a string of UTF-8 is needed"
    );
    assert!(matches!(m.get::<u8>("u64"), Err(Error::Value { .. })));
    assert!(matches!(m.get::<Vec<u32>>("tokens"), Err(Error::Value { .. })));
    assert!(matches!(m.get::<f32>("f64"), Err(Error::Value { .. })));
    assert_eq!(text(m.get::<bool>("x").unwrap_err()), "the file has no value for \"x\", true or false is needed");
    assert!(matches!(file.tensor("x"), Err(Error::MissingTensor { .. })));
}

#[test]
fn tensors_are_operands_without_a_copy() {
    let words = aligned(&small());
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let file = Gguf::parse(bytes).expect("the file is valid");
    let scalar = file.tensor("scalar").unwrap();
    assert_eq!(scalar.operand().unwrap().data().f32(), [f32::from_le_bytes([0, 1, 2, 3])]);
    assert_eq!((scalar.info().elements(), scalar.info().extents()), (1, &[][..]));
    let matrix = file.tensor("matrix.weight").unwrap();
    assert_eq!(matrix.info().offset() % 64, 0);
    let operand = matrix.operand().unwrap();
    // Extents in files begin with the contiguous one, shapes of kiln end with it.
    assert_eq!((operand.shape().dims(), operand.ty().dtype), (&[2, 3][..], DType::F16));
    assert!(std::ptr::eq(operand.data().as_bytes(), matrix.bytes()));
    let quantised = file.tensor("quantised").unwrap().operand().unwrap();
    assert!(matches!(quantised.data(), Data::Blocks(QuantFormat::Q8_0, blocks) if blocks.len() == 68));
    assert_eq!(quantised.shape().dims(), [1, 1, 2, 32]);
    assert!(file.tensor("nothing").unwrap().operand().unwrap().shape().is_empty());
    let ternary = file.tensor("ternary").unwrap();
    assert_eq!((ternary.info().kind(), ternary.bytes().len()), (TensorKind::Tq1_0, 54));
    let error = ternary.operand().unwrap_err();
    assert!(matches!(error, Error::NotComputed { kind: TensorKind::Tq1_0, .. }));
    assert!(error.to_string().contains("TQ1_0"));
}

#[test]
fn elements_that_cannot_begin_where_borrowed_bytes_do_are_refused() {
    let small = small();
    let words = aligned(&[&[0], &small[..]].concat());
    let bytes: &[u8] = &bytemuck::cast_slice(&words)[1..];
    let file = Gguf::parse(bytes).expect("the file is valid");
    assert!(matches!(file.tensor("scalar").unwrap().operand(), Err(Error::Address { needed: 4, .. })));
    // Blocks need no alignment.
    file.tensor("quantised").unwrap().operand().unwrap();
}

#[test]
fn version_2_is_version_3() {
    let mut bytes = small();
    bytes[4] = 2;
    assert_eq!(Gguf::parse(&bytes).unwrap().version(), 2);
}

#[test]
fn a_file_without_anything_is_valid() {
    let mut bytes = Vec::new();
    Writer::new().write(&mut bytes).unwrap();
    // Padding after the metadata is not needed without tensors.
    let file = Gguf::parse(&bytes[..24]).unwrap();
    assert!(file.metadata().is_empty() && file.infos().is_empty());
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut w = Writer::new();
    w.set("a", &1u8).unwrap();
    w.tensor("t", TensorKind::F32, &[1], &[0; 4]).unwrap();
    let long = "k".repeat(65536);
    let refused = [
        w.set("a", &2u8),
        w.set(&long, &2u8),
        w.set("general.alignment", &24u32),
        w.set("general.alignment", &32u64),
        w.set("general.alignment", &(1u32 << 21)),
        w.tensor("t", TensorKind::F32, &[1], &[0; 4]),
        w.tensor("u", TensorKind::F32, &[1], &[0; 5]),
        w.tensor(&"n".repeat(65), TensorKind::F32, &[1], &[0; 4]),
        w.tensor("u", TensorKind::F32, &[1, 1, 1, 1, 1], &[0; 4]),
        w.tensor_with("t", TensorKind::F32, &[1], &|_| Ok(())),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::Write { .. })), "{result:?}");
    }
    assert!(matches!(w.tensor("u", TensorKind::Q4K, &[255], &[]), Err(Error::Blocks { .. })));
    assert!(matches!(w.tensor("u", TensorKind::F32, &[u64::MAX, 2], &[]), Err(Error::Overflow { .. })));
    // Refused entries leave nothing in the file.
    let mut bytes = Vec::new();
    w.write(&mut bytes).unwrap();
    let file = Gguf::parse(&bytes).unwrap();
    assert_eq!((file.metadata().len(), file.infos().len(), file.alignment()), (1, 1, 32));
}

#[test]
fn tensors_may_be_made_when_they_are_written() {
    let numbers = [1.0f32, -2.0, 3.5];
    let make = |to: &mut dyn std::io::Write| numbers.iter().try_for_each(|x| to.write_all(&x.to_le_bytes()));
    let mut w = Writer::new();
    w.tensor_with("made", TensorKind::F32, &[3], &make).unwrap();
    w.tensor("given", TensorKind::I8, &[1], &[7]).unwrap();
    // Each write calls the function again.
    for _ in 0..2 {
        let mut bytes = Vec::new();
        w.write(&mut bytes).unwrap();
        let file = Gguf::parse(&bytes).unwrap();
        assert_eq!(file.tensor("made").unwrap().bytes(), numbers.map(f32::to_le_bytes).as_flattened());
        assert_eq!(file.tensor("given").unwrap().bytes(), [7]);
    }
    // One byte too many, one too few, and a function that fails.
    for n in [2, 4] {
        let mut w = Writer::new();
        w.tensor_with("made", TensorKind::F32, &[n], &make).unwrap();
        let error = w.write(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("12 bytes were made"), "{error}");
    }
    let mut w = Writer::new();
    w.tensor_with("made", TensorKind::F32, &[3], &|_| Err(std::io::Error::other("no more"))).unwrap();
    assert_eq!(w.write(&mut Vec::new()).unwrap_err().to_string(), "no more");
}

#[test]
fn text_of_values_has_no_control_characters_and_is_short() {
    let mut w = Writer::new();
    w.set("escape", &"\u{1b}[2J\n").unwrap();
    w.set("long", &"x".repeat(100)).unwrap();
    w.set("many", &vec![1u32; 1000]).unwrap();
    let mut bytes = Vec::new();
    w.write(&mut bytes).unwrap();
    let file = Gguf::parse(&bytes).unwrap();
    let text = |key| file.metadata().value(key).unwrap().to_string();
    assert_eq!(text("escape"), r#""\u{1b}[2J\n""#);
    assert_eq!(text("long"), format!("{:?}... (100 bytes)", "x".repeat(60)));
    assert_eq!(text("many"), "1000 u32 [1, 1, 1, 1, 1, 1, 1, 1, ...]");
}

#[test]
fn a_header_is_known_as_soon_as_it_has_come() {
    let bytes = small();
    let file = Gguf::parse(&bytes).expect("the file is valid");
    let length = bytes.len() as u64;
    let complete = (0..bytes.len()).find(|&n| Header::parse(&bytes[..n], length).expect("nothing is wrong").is_some());
    let complete = complete.expect("tensors have bytes, which a header does not need");
    for n in [complete, bytes.len()] {
        let header = Header::parse(&bytes[..n], length).unwrap().unwrap();
        assert_eq!(header.infos(), file.infos());
        assert_eq!(header.metadata().len(), file.metadata().len());
        assert_eq!(header.metadata().get::<Vec<&str>>("tokens").unwrap(), ["a", "", "\u{2581}b"]);
    }
    assert!(complete <= file.infos().iter().map(|info| info.offset()).min().unwrap());
    // An error is reported at the byte that shows it, and a file that ends too early differs from one that is not read
    // completely.
    assert!(matches!(Header::parse(b"GGUX", length), Err(Error::Magic { .. })));
    assert!(matches!(Header::parse(b"x", length), Err(Error::Magic { .. })));
    assert!(matches!(Header::parse(b"GG", 2), Err(Error::Magic { .. })));
    assert!(matches!(Header::parse(&bytes[..100], 100), Err(Error::Truncated { .. } | Error::Count { .. })));
    assert!(matches!(Header::parse(&bytes, length - 1), Ok(Some(_))));
    assert!(matches!(Header::parse(&bytes[..complete], complete as u64), Err(Error::Outside { .. })));
    // A count that the file could hold but the known bytes do not allocates nothing.
    let mut many = bytes[..24].to_vec();
    many[16..24].copy_from_slice(&(1u64 << 27).to_le_bytes());
    assert!(matches!(Header::parse(&many, 1 << 31), Ok(None)));
}
