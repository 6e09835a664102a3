//! Pipelines: compiled ahead, each once, and kept in a file for the next process.

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use kiln_ir::op::{Elementwise, Matmul, Op, Reduce, Reduction, Softmax};
use kiln_ir::{Operations, Record, Shape, TensorType};
use kiln_wgpu::{GpuBackend, GpuCommandBatch, GpuDevice, GpuDeviceOptions};
use tracing::span;

#[test]
fn a_batch_that_was_prepared_compiles_nothing_when_it_runs() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&[0.5; 64], &[8, 8]).unwrap();
    let y = batch.matmul(x, x).unwrap();
    let sums = batch.sum(y).unwrap();
    let y = batch.softmax(y).unwrap();
    let z = batch.exp(y).unwrap();
    batch.prepare(&[z, sums]).unwrap();
    let kernels = device.compiled_kernels();
    assert!(kernels >= 4, "{kernels}");
    let before = device.statistics();
    batch.prepare(&[z, sums]).unwrap();
    let results = batch.run(&[z, sums]).unwrap();
    assert_eq!(results[1].as_data().f32(), [128.0]);
    assert!(results[0].as_data().f32().iter().all(|z| (z - 0.125f32.exp()).abs() < 1e-6), "{:?}", results[0]);
    assert_eq!(device.compiled_kernels(), kernels);
    assert_eq!((device.statistics() - before).submissions, 1, "preparing runs nothing");
}

#[test]
fn operations_that_were_compiled_ahead_compile_nothing_when_they_run() {
    let Some(device) = support::device() else { return };
    let matrix = TensorType::f32(Shape::new(&[8, 8]).unwrap());
    let (pair, one) = ([matrix; 2], [matrix]);
    let operations: [(Op, &[TensorType]); 4] = [
        (Matmul::default().into(), &pair),
        (Softmax.into(), &one),
        (Reduce::along(Reduction::Sum, 1).into(), &one),
        (Elementwise::tanh().into(), &one),
    ];
    device.compile_ahead(&operations).unwrap();
    let kernels = device.compiled_kernels();
    assert!(kernels >= 4, "{kernels}");
    let x = device.upload(&kiln_ir::Operand::f32(&[1.0; 64], &[8, 8]).unwrap()).unwrap();
    for (op, types) in &operations {
        device.run(op, &vec![&x; types.len()]).unwrap();
    }
    assert_eq!(device.compiled_kernels(), kernels);
    device.compile_ahead(&[]).unwrap();
    assert!(device.compile_ahead(&[(Op::from(Matmul::default()), &one[..])]).is_err(), "a product needs two");
}

#[test]
fn threads_that_compile_the_same_at_once_get_the_same() {
    let Some(device) = support::device() else { return };
    let started = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (device, started) = (device.clone(), &started);
            scope.spawn(move || {
                let mut batch = GpuCommandBatch::new(device);
                let x = batch.upload(&[2.0; 16], &[4, 4]).unwrap();
                let squared = batch.matmul(x, x).unwrap();
                let root = batch.sqrt(x).unwrap();
                let total = batch.sum(squared).unwrap();
                started.wait();
                let results = batch.run(&[total, root]).unwrap();
                assert_eq!(results[0].as_data().f32(), [256.0]);
            });
        }
    });
    let alone = support::device().map(|device| {
        let mut batch = GpuCommandBatch::new(device.clone());
        let x = batch.upload(&[2.0; 16], &[4, 4]).unwrap();
        let squared = batch.matmul(x, x).unwrap();
        let (root, total) = (batch.sqrt(x).unwrap(), batch.sum(squared).unwrap());
        batch.prepare(&[total, root]).unwrap();
        device.compiled_kernels()
    });
    assert_eq!(Some(device.compiled_kernels()), alone);
}

/// A folder of a test, empty at first and gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kiln-pipelines-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    /// A device that keeps its pipelines here. Only Vulkan has a cache of pipelines: elsewhere the test is left out.
    fn device(&self) -> Option<GpuDevice> {
        let device = support::device_with(&GpuDeviceOptions::new().pipeline_folder(&self.0))?;
        if device.adapter().api != "vulkan" {
            eprintln!("skipped: {} keeps no pipelines", device.adapter());
            return None;
        }
        Some(device)
    }

    /// The files in it.
    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.0) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Opens a device, takes its file away, runs what `run` does, and says whether the device wrote the file again when it
    /// was dropped: it does where the file lacked something.
    fn lacked(&self, run: impl FnOnce(&GpuBackend)) -> bool {
        let backend = GpuBackend::on(self.device().unwrap());
        self.files().iter().for_each(|file| std::fs::remove_file(file).unwrap());
        run(&backend);
        drop(backend);
        !self.files().is_empty()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn scale(backend: &GpuBackend) {
    assert_eq!(backend.scale(&[1.0, 2.0], 3.0).unwrap(), [3.0, 6.0]);
}

fn relu(backend: &GpuBackend) {
    assert_eq!(backend.relu(&[-1.0, 2.0]).unwrap(), [0.0, 2.0]);
}

/// Runs `scale` with the pipelines in the folder, and returns their file.
fn written(folder: &Folder) -> Option<PathBuf> {
    let device = folder.device()?;
    scale(&GpuBackend::on(device));
    let files = folder.files();
    let [file] = &files[..] else { panic!("{files:?}") };
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("pipelines-") && name.ends_with(".bin"), "{name}");
    Some(file.clone())
}

#[test]
fn the_file_is_written_when_it_lacks_a_pipeline_and_only_then() {
    let folder = Folder::new("written");
    let Some(file) = written(&folder) else { return };
    let kept = std::fs::read(&file).unwrap();
    assert!(!folder.lacked(scale), "it was there");
    std::fs::write(&file, &kept).unwrap();
    let both = |backend: &GpuBackend| {
        scale(backend);
        relu(backend);
    };
    assert!(folder.lacked(both), "relu was not");
    assert!(!folder.lacked(both), "both are");
}

#[test]
fn the_file_is_written_while_the_device_is_in_use() {
    let folder = Folder::new("quiet");
    let Some(device) = folder.device() else { return };
    let backend = GpuBackend::on(device);
    scale(&backend);
    let start = Instant::now();
    while folder.files().iter().all(|file| file.extension().is_none_or(|ending| ending != "bin")) {
        assert!(start.elapsed() < Duration::from_secs(120), "never written");
        std::thread::sleep(Duration::from_millis(50));
    }
    scale(&backend);
}

#[test]
fn a_file_that_is_damaged_or_foreign_is_told_of_and_replaced() {
    let folder = Folder::new("damaged");
    let Some(file) = written(&folder) else { return };
    let sound = std::fs::read(&file).unwrap();
    let mut bent = sound.clone();
    bent[sound.len() / 2] ^= 1;
    for damaged in [&b""[..], b"something else", &sound[..sound.len() - 1], &bent] {
        std::fs::write(&file, damaged).unwrap();
        let (told, _) = warnings(|| scale(&GpuBackend::on(folder.device().unwrap())));
        assert_eq!(told, 1, "{} bytes", damaged.len());
        assert!(!folder.lacked(scale), "it was replaced");
        std::fs::write(&file, &sound).unwrap();
    }
    assert_eq!(warnings(|| folder.device()).0, 0, "a sound file is nothing to tell of");
}

#[test]
fn a_folder_that_cannot_be_written_to_stops_nothing() {
    let folder = Folder::new("refused");
    let Some(file) = written(&folder) else { return };
    let options = GpuDeviceOptions::new().pipeline_folder(file.join("below a file"));
    let (told, _) = warnings(|| scale(&GpuBackend::on(support::device_with(&options).unwrap())));
    assert!(told >= 1);
}

/// The result of `run`, and the number of warnings that this thread saw meanwhile.
fn warnings<T>(run: impl FnOnce() -> T) -> (usize, T) {
    struct Count(Arc<AtomicUsize>);
    impl tracing::Subscriber for Count {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target().starts_with("kiln") && *metadata.level() <= tracing::Level::WARN
        }
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    let seen = Arc::new(AtomicUsize::new(0));
    let result = tracing::subscriber::with_default(Count(seen.clone()), run);
    (seen.load(Ordering::Relaxed), result)
}
