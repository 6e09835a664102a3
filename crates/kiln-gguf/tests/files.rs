//! Files on a disk: mapped, read, replaced, split.
#![cfg(not(target_arch = "wasm32"))]

mod support;

use std::path::PathBuf;

use kiln_gguf::{Bytes, Error, Gguf, Model, TensorKind, Writer};
use support::small;

/// A folder of its own for each test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln-gguf-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder
}

#[test]
fn mapped_and_read_files_are_the_same() {
    let path = folder("same").join("small.gguf");
    std::fs::write(&path, small()).unwrap();
    let (mapped, read) = (Gguf::open(&path).unwrap(), Gguf::read(&path).unwrap());
    assert_eq!(mapped.infos(), read.infos());
    for (a, b) in mapped.tensors().zip(read.tensors()) {
        assert_eq!(a.bytes(), b.bytes());
        // Both begin at an aligned address.
        assert_eq!(a.operand().is_ok(), a.info().kind().dtype().is_some());
        assert_eq!(b.operand().is_ok(), b.info().kind().dtype().is_some());
    }
    assert_eq!(format!("{:?}", mapped.metadata()), format!("{:?}", read.metadata()));
}

#[test]
fn what_is_no_file_is_an_error() {
    let folder = folder("absent");
    let empty = folder.join("empty.gguf");
    std::fs::write(&empty, "").unwrap();
    for open in [|p: &PathBuf| Gguf::open(p), |p: &PathBuf| Gguf::read(p)] {
        assert!(matches!(open(&folder), Err(Error::Io { .. })));
        assert!(matches!(open(&folder.join("absent")), Err(Error::Io { .. })));
        assert!(matches!(open(&empty), Err(Error::Magic { .. })));
    }
    assert!(matches!(Writer::new().save(&folder), Err(Error::Io { .. })));
    assert!(matches!(Writer::new().save(folder.join("absent/x.gguf")), Err(Error::Io { .. })));
}

#[test]
fn bytes_are_those_of_any_file() {
    let folder = folder("bytes");
    let path = folder.join("any");
    for open in [|p: &PathBuf| Bytes::map(p), |p: &PathBuf| Bytes::read(p)] {
        for bytes in [&b""[..], b"a", b"no GGUF file"] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(open(&path).unwrap().as_ref(), bytes);
        }
        assert!(matches!(open(&folder), Err(Error::Io { .. })));
        assert!(matches!(open(&folder.join("absent")), Err(Error::Io { .. })));
    }
}

#[test]
fn a_file_that_is_read_may_be_cut_and_one_that_is_mapped_replaced() {
    let path = folder("replaced").join("small.gguf");
    std::fs::write(&path, small()).unwrap();
    let mapped = Gguf::open(&path).unwrap();
    let mut writer = Writer::new();
    writer.set("new", &true).unwrap();
    writer.save(&path).unwrap();
    // The map keeps the file that was opened.
    assert_eq!(mapped.metadata().get::<&str>("general.architecture").unwrap(), "llama");
    assert!(Gguf::open(&path).unwrap().metadata().get::<bool>("new").unwrap());
    let read = Gguf::read(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    assert!(read.metadata().get::<bool>("new").unwrap());
    // No temporary file is left.
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn the_next_writer_removes_what_a_killed_process_has_left() {
    let folder = folder("killed");
    // No process has the number 4194305: it is beyond the largest that Linux gives. Process 1 always runs.
    for name in [".model.gguf.4194305-0", ".model.gguf.1-0", ".other.gguf.4194305-0"] {
        let file = std::fs::File::create(folder.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(2)).unwrap();
    }
    Writer::new().save(folder.join("model.gguf")).unwrap();
    let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<String> = names.collect();
    left.sort();
    assert_eq!(left, [".model.gguf.1-0", ".other.gguf.4194305-0", "model.gguf"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_is_an_error() {
    use std::io::Write;
    // Opened for writing, this device fails every write.
    let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert!(Writer::new().write(&mut full).is_err());
    assert!(full.flush().is_ok());
    assert!(matches!(Writer::new().save("/dev/full"), Err(Error::Io { .. })));
}

fn split(name: &str, most: usize) -> Vec<PathBuf> {
    let data = [7; 400];
    let mut writer = Writer::new();
    writer.set("general.architecture", &"llama").unwrap();
    writer.set("general.alignment", &64u32).unwrap();
    for (at, elements) in [10u64, 20, 100, 5].into_iter().enumerate() {
        writer.tensor(&format!("t{at}"), TensorKind::F32, &[elements], &data[..4 * elements as usize]).unwrap();
    }
    writer.save_split(folder(name).join("model"), most).unwrap()
}

#[test]
fn split_models_are_one_model() {
    let paths = split("split", 128);
    let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["model-00001-of-00003.gguf", "model-00002-of-00003.gguf", "model-00003-of-00003.gguf"]);
    for model in [Model::open(&paths[0]).unwrap(), Model::read(&paths[0]).unwrap()] {
        assert_eq!(model.paths(), paths);
        assert_eq!(model.files().iter().map(|file| file.infos().len()).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(model.infos().map(|info| info.elements()).collect::<Vec<_>>(), [10, 20, 100, 5]);
        assert_eq!(model.metadata().get::<&str>("general.architecture").unwrap(), "llama");
        assert_eq!(model.tensor("t2").unwrap().bytes(), [7; 400]);
        assert!(matches!(model.tensor("x"), Err(Error::MissingTensor { .. })));
    }
    // Keys that number files are refused, such as those of a divided model.
    let mut again = Writer::new();
    again.set_all(Model::open(&paths[0]).unwrap().metadata()).unwrap();
    assert!(matches!(again.save_split(folder("again").join("model"), 128), Err(Error::Write { .. })));
    // A single file is a valid model too.
    let single = split("single", usize::MAX);
    assert_eq!(Model::open(&single[0]).unwrap().infos().count(), 4);
}

#[test]
fn split_models_must_begin_with_the_first_file_and_be_whole() {
    let paths = split("broken", 128);
    let open = |path: &PathBuf| Model::open(path).map(drop).unwrap_err();
    assert!(open(&paths[1]).to_string().contains("open the first one"));
    let renamed = paths[0].with_file_name("other.gguf");
    std::fs::copy(&paths[0], &renamed).unwrap();
    assert!(open(&renamed).to_string().contains("-00001-of-00003.gguf"));
    // Another file of the model in place of the last.
    std::fs::copy(&paths[1], &paths[2]).unwrap();
    assert!(matches!(open(&paths[0]), Error::Split { path, .. } if path == paths[2]));
    std::fs::remove_file(&paths[2]).unwrap();
    assert!(matches!(open(&paths[0]), Error::Io { path, .. } if path == paths[2]));
}

#[test]
fn split_models_have_each_tensor_once() {
    let folder = folder("twice");
    let path = |number| folder.join(format!("m-0000{number}-of-00002.gguf"));
    let save = |number: u16, tensors: i32, name: &str| {
        let mut writer = Writer::new();
        writer.set("split.no", &number).unwrap();
        writer.set("split.count", &2u16).unwrap();
        writer.set("split.tensors.count", &tensors).unwrap();
        writer.tensor(name, TensorKind::F32, &[1], &[0; 4]).unwrap();
        writer.save(path(number + 1)).unwrap();
    };
    save(0, 2, "a");
    save(1, 2, "a");
    assert!(matches!(Model::open(path(1)), Err(Error::Duplicate { .. })));
    save(0, 3, "a");
    save(1, 3, "b");
    assert!(Model::open(path(1)).unwrap_err().to_string().contains("3 tensors announced, 2 found"));
    save(0, -1, "a");
    assert!(matches!(Model::open(path(1)), Err(Error::Value { .. })));
}
