//! What tests share.
#![allow(dead_code, reason = "each test uses a part")]

use kiln_gguf::{TensorKind, Writer};

/// A file of every type of value and of some types of tensors, of about a kilobyte.
pub(crate) fn small() -> Vec<u8> {
    let data: Vec<u8> = (0..=255).collect();
    let mut writer = Writer::new();
    let mut set = |key: &str, value: &dyn kiln_gguf::ToValue| writer.set(key, value).expect("the key is new");
    set("general.architecture", &"llama");
    set("general.alignment", &64u32);
    set("u8", &8u8);
    set("i8", &-8i8);
    set("u16", &16u16);
    set("i16", &-16i16);
    set("u32", &32u32);
    set("i32", &-32i32);
    set("u64", &u64::MAX);
    set("i64", &i64::MIN);
    set("f32", &0.5f32);
    set("f64", &0.25f64);
    set("bool", &true);
    set("any bytes", &&b"\xff\x00"[..]);
    set("tokens", &vec!["a", "", "\u{2581}b"]);
    set("scores", &vec![-1.0f32, f32::NAN]);
    set("flags", &vec![true, false]);
    set("empty", &Vec::<u64>::new());
    let mut tensor = |name: &str, kind, extents: &[u64], bytes: usize| {
        writer.tensor(name, kind, extents, &data[..bytes]).expect("the tensor is valid");
    };
    tensor("scalar", TensorKind::F32, &[], 4);
    tensor("matrix.weight", TensorKind::F16, &[3, 2], 12);
    tensor("quantised", TensorKind::Q8_0, &[32, 2, 1, 1], 68);
    tensor("ternary", TensorKind::Tq1_0, &[256], 54);
    tensor("nothing", TensorKind::F32, &[0, 7], 0);
    let mut bytes = Vec::new();
    writer.write(&mut bytes).expect("a Vec takes everything");
    bytes
}

/// Bytes that begin at a multiple of 8, as files in memory do.
pub(crate) fn aligned(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|c| u64::from_le_bytes(std::array::from_fn(|i| c.get(i).copied().unwrap_or(0)))).collect()
}

/// A header as it is written by hand: for files that the writer refuses to write.
#[derive(Default, Clone)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version 3 and counts.
    pub(crate) fn new(tensors: u64, keys: u64) -> Self {
        Self::default().bytes(b"GGUF").u32(3).u64(tensors).u64(keys)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, x: u32) -> Self {
        self.bytes(&x.to_le_bytes())
    }

    pub(crate) fn u64(self, x: u64) -> Self {
        self.bytes(&x.to_le_bytes())
    }

    pub(crate) fn string(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// The description of a tensor.
    pub(crate) fn tensor(self, name: &str, extents: &[u64], kind: u32, offset: u64) -> Self {
        let mut raw = self.string(name.as_bytes()).u32(extents.len() as u32);
        for &extent in extents {
            raw = raw.u64(extent);
        }
        raw.u32(kind).u64(offset)
    }

    /// Padding to the alignment 32, and `bytes` bytes of data.
    pub(crate) fn data(mut self, bytes: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + bytes, 0);
        self.0
    }
}
