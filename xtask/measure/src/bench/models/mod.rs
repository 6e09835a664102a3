//! Tokens a second of language models on the CPU and on every GPU: the tests of `kiln-llm bench`.

mod random;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln::gpu::AdapterChoice;
use kiln::{Backend, Engine, EngineBuilder};
use kiln_benches::ceilings::Limits;
use kiln_benches::measure::{Effort, Sampler, Timing};
use kiln_gguf::TensorKind;
use kiln_ir::Operand;
use kiln_llm::{Model, ModelOutline, SequencesOptions, SessionOptions};
use kiln_simd::ceilings::Pass;
use kiln_simd::{Isa, Simd};
use serde::Serialize;

use crate::Result;

/// The name of the section, for `--only`.
pub(super) const NAME: &str = "language models";

/// The rates of language models on the devices of this machine.
#[derive(Debug, Serialize)]
pub(super) struct Models {
    pub(super) tests: Tests,
    /// Whether the models have random weights.
    pub(super) random: bool,
    pub(super) devices: Vec<Device>,
    pub(super) models: Vec<Rates>,
    /// The tests that a quick run had no time for, or that would have taken too long.
    pub(super) left_out: Vec<String>,
}

/// The tests of each model.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tests {
    /// Tokens of the prompt, and tokens that one sequence generates after none.
    pub(super) prompt: usize,
    pub(super) tokens: usize,
    /// Numbers of sequences at once.
    pub(super) sequences: Vec<usize>,
    /// Tokens of the prompt of each of them, and tokens that each generates.
    pub(super) short_prompt: usize,
    pub(super) tokens_each: usize,
    repetitions: usize,
    /// Seconds after which no further repetition of a test is begun, if there are enough to judge them.
    budget: f64,
    /// The same for fewer repetitions.
    patience: f64,
    /// Seconds after which no further test is begun.
    all: Option<f64>,
}

/// Repetitions that are enough to judge whether they are disturbed.
const ENOUGH: usize = 3;
/// If one sequence takes more seconds than this, several are left out.
const PATIENCE: f64 = 10.0;

impl Tests {
    /// The tests of a run: those of llama.cpp's `llama-bench`, and shorter ones in a quick run.
    pub(super) fn new(quick: bool) -> Self {
        match quick {
            false => Self {
                prompt: 512,
                tokens: 128,
                sequences: vec![4, 16],
                short_prompt: 16,
                tokens_each: 64,
                repetitions: 5,
                budget: 8.0,
                patience: 60.0,
                all: None,
            },
            true => Self {
                prompt: 64,
                tokens: 16,
                sequences: Vec::new(),
                short_prompt: 0,
                tokens_each: 0,
                repetitions: ENOUGH,
                budget: 0.5,
                patience: 1.0,
                all: Some(QUICK_SECONDS),
            },
        }
    }

    /// Whether they are those of a quick run.
    pub(super) fn is_quick(&self) -> bool {
        self.all.is_some()
    }

    /// The number of tests of a model on a device.
    fn count(&self) -> usize {
        2 + self.sequences.len()
    }
}

/// The time of a quick run that language models get, in seconds.
pub(super) const QUICK_SECONDS: f64 = 4.0;

/// The CPU or a GPU.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    /// `cpu`, or a GPU as in the other sections: `gpu` or `cuda`, and its number.
    pub(super) name: String,
    pub(super) detail: String,
    /// GB/s at which the CPU reads memory, or a GPU copies within its own.
    pub(super) bandwidth: Option<f64>,
    /// GFLOP/s of multiply-adds; for the CPU alone.
    pub(super) peak: Option<f64>,
}

/// One model on all devices.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    pub(super) name: String,
    /// Bytes of weights that a generated token reads.
    pub(super) bytes: u64,
    /// Floating-point operations of a token of a prompt.
    pub(super) flops: u64,
    /// In the order of [`Models::devices`].
    pub(super) on: Vec<OnDevice>,
}

/// One model on one device.
#[derive(Debug, Default, Serialize)]
pub(super) struct OnDevice {
    pub(super) prompt: Option<Rate>,
    pub(super) decode: Option<Rate>,
    /// All tokens a second of several sequences, in the order of [`Tests::sequences`].
    pub(super) several: Vec<Option<Rate>>,
    /// The reason for missing rates, if the device cannot run the model.
    pub(super) refused: Option<String>,
}

/// A measured rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Rate {
    pub(super) tokens_per_second: f64,
    /// The rate that the limit of the device allows, where one is known.
    pub(super) limit: Option<f64>,
    /// Whether enough repetitions were undisturbed.
    pub(super) certain: bool,
}

impl Rate {
    /// The share of the limit that is reached.
    pub(super) fn share(&self) -> Option<f64> {
        Some(self.tokens_per_second / self.limit?)
    }
}

/// A model to measure.
#[derive(Debug)]
struct Source {
    name: String,
    path: PathBuf,
}

/// Checks the files of the user before minutes are spent.
///
/// # Errors
/// What is wrong with the first one that is not a model.
pub(super) fn check(files: &[PathBuf]) -> Result<()> {
    let engine = cpu(&Engine::builder)?;
    for file in files {
        ModelOutline::load(&engine, file).map_err(|error| format!("--model {}: {error}", file.display()))?;
    }
    Ok(())
}

/// The models of a run: those of the user, or ones with random weights, which are written to `out`.
fn sources(files: &[PathBuf], quick: bool, out: &Path) -> Result<Vec<Source>> {
    let name = |path: &Path| {
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    };
    if !files.is_empty() {
        return Ok(files.iter().map(|file| Source { name: name(file), path: file.clone() }).collect());
    }
    let kinds = if quick { &[TensorKind::Q8_0][..] } else { &[TensorKind::Q8_0, TensorKind::F16] };
    let random = |&kind: &TensorKind| {
        let shape = random::SMOLLM2;
        let path = out.join(format!("random-{}-{}.gguf", shape.name, kind.name()).to_lowercase());
        shape.save(kind, &path)?;
        Ok(Source { name: format!("{} {}", shape.name, kind.name()), path })
    };
    kinds.iter().map(random).collect()
}

/// An engine that runs everything on one device.
struct Place {
    device: Device,
    engine: Engine,
}

/// The engine of the CPU, which may use all threads.
fn cpu(settings: &dyn Fn() -> EngineBuilder) -> kiln::Result<Engine> {
    settings().backends(&[Backend::Scalar, Backend::Simd]).build()
}

/// The engine of the GPU that is requested of `settings`.
fn gpu(settings: &dyn Fn() -> EngineBuilder) -> kiln::Result<Engine> {
    let engine = settings().build()?;
    let place = engine.places().iter().find(|place| !matches!(place.backend, Backend::Scalar | Backend::Simd));
    match place {
        Some(place) => settings().force(place.name.clone()).build(),
        None => Ok(engine),
    }
}

/// Measures models on the CPU and on every GPU in use, with engines of these settings. `limits` are those of all threads, if
/// they were measured.
pub(super) fn run(
    files: &[PathBuf],
    quick: bool,
    out: &Path,
    limits: Option<Limits>,
    settings: &dyn Fn() -> EngineBuilder,
) -> Result<Models> {
    let sources = sources(files, quick, out)?;
    let best = Simd::with_isa(Isa::best())?;
    let effort = match quick {
        true => Effort { samples: 3, budget: Duration::from_millis(80) },
        false => Effort { samples: 21, budget: Duration::from_millis(500) },
    };
    let sampler = Sampler::new(best.with_threads(1));
    let mut bench = Bench { tests: Tests::new(quick), start: Instant::now(), sampler, left_out: Vec::new() };
    let limits = limits.unwrap_or_else(|| Limits::new(best, effort));
    let mut places = vec![bench.cpu(limits, settings)?];
    for info in super::find::adapters() {
        let choice = AdapterChoice::Index(info.index);
        let engine = gpu(&|| settings().adapter(choice.clone()));
        let detail = format!("{} through {}", info.label, info.api);
        places.extend(bench.opened(format!("gpu {}", info.index), detail, engine, effort));
    }
    for info in super::find::cuda_devices() {
        let engine = gpu(&|| settings().cuda_device(info.ordinal));
        let detail = format!("{info} through CUDA");
        places.extend(bench.opened(super::find::cuda_name(&info), detail, engine, effort));
    }
    let bar = super::bar(sources.len() * places.len() * bench.tests.count());
    bench.start = Instant::now();
    let models = sources.iter().map(|source| bench.rates(source, &places, &bar)).collect();
    bar.finish_and_clear();
    Ok(Models {
        tests: bench.tests,
        random: files.is_empty(),
        devices: places.into_iter().map(|place| place.device).collect(),
        models,
        left_out: bench.left_out,
    })
}

/// Copies that are waited for once, so that the wait is negligible.
const COPIES: usize = 4;
/// f32 that a copy reads: together with those that it writes, more than caches hold.
const COPIED: usize = 1 << 24;

/// Everything that is measured with.
struct Bench {
    tests: Tests,
    /// The time at which the first test began.
    start: Instant,
    sampler: Sampler,
    left_out: Vec<String>,
}

impl Bench {
    /// The CPU, with its limits.
    fn cpu(&mut self, mut limits: Limits, settings: &dyn Fn() -> EngineBuilder) -> Result<Place> {
        let simd = limits.simd();
        let device = Device {
            name: "cpu".into(),
            detail: super::measure::variant_name(simd.isa().name(), simd.threads()),
            bandwidth: Some(limits.bandwidth(&mut self.sampler, Pass::Read, COPIED) * 1e-9),
            peak: Some(limits.peak(&mut self.sampler) * 1e-9),
        };
        Ok(Place { device, engine: cpu(settings)? })
    }

    /// A GPU, with the rate of its copies; reports one that does not open.
    fn opened(&mut self, name: String, detail: String, engine: kiln::Result<Engine>, effort: Effort) -> Option<Place> {
        let measured = engine.and_then(|engine| Ok((self.copies(&engine, effort)?, engine)));
        match measured {
            Ok((bandwidth, engine)) => Some(Place { device: Device { name, detail, bandwidth, peak: None }, engine }),
            Err(why) => {
                println!("  without {name}: {why}");
                None
            }
        }
    }

    /// GB/s that copies within the memory of an engine's GPU read and write.
    fn copies(&mut self, engine: &Engine, effort: Effort) -> kiln::Result<Option<f64>> {
        let numbers = vec![1.0; COPIED];
        let mut rate = |copies: &mut dyn FnMut() -> kiln::Result<()>| {
            copies()?;
            let timing = self.sampler.time(|| _ = copies(), effort);
            Ok::<_, kiln::Error>((2 * COPIES * COPIED * size_of::<f32>()) as f64 / timing.seconds * 1e-9)
        };
        if let Some(device) = engine.gpu_devices()?.first() {
            let mut copy = kiln_wgpu::device_copy::DeviceCopy::of(&device.upload(&Operand::vector(&numbers))?)?;
            let mut copies = || (0..COPIES).try_for_each(|_| copy.run()).and_then(|()| device.finish());
            return rate(&mut copies).map(Some);
        }
        if let Some(device) = engine.cuda_devices()?.first() {
            let mut copy = kiln_cuda::device_copy::DeviceCopy::of(&device.upload(&Operand::vector(&numbers))?)?;
            let mut copies = || (0..COPIES).try_for_each(|_| copy.run()).and_then(|()| device.finish());
            return rate(&mut copies).map(Some);
        }
        Ok(None)
    }

    /// A model on all devices.
    fn rates(&mut self, source: &Source, places: &[Place], bar: &indicatif::ProgressBar) -> Rates {
        let mut rates = Rates { name: source.name.clone(), bytes: 0, flops: 0, on: Vec::new() };
        for place in places {
            bar.set_message(format!("{} on {}", source.name, place.device.name));
            let mut on = OnDevice { several: vec![None; self.tests.sequences.len()], ..OnDevice::default() };
            let before = bar.position();
            // A device may lack memory, for example.
            on.refused = self.on_device(source, place, &mut rates, &mut on, bar).err().map(|why| why.to_string());
            bar.set_position(before + self.tests.count() as u64);
            rates.on.push(on);
        }
        rates
    }

    /// Whether there is time for a test; notes it as left out otherwise.
    fn has_time(&mut self, test: &str, source: &Source, place: &Place) -> bool {
        let has = self.tests.all.is_none_or(|all| self.start.elapsed().as_secs_f64() < all);
        if !has {
            self.leave_out(test, source, place);
        }
        has
    }

    fn leave_out(&mut self, test: &str, source: &Source, place: &Place) {
        self.left_out.push(format!("{test} of {} on {}", source.name, place.device.name));
    }

    /// Runs all tests of a model on a device.
    fn on_device(
        &mut self,
        source: &Source,
        place: &Place,
        rates: &mut Rates,
        on: &mut OnDevice,
        bar: &indicatif::ProgressBar,
    ) -> kiln_llm::Result<()> {
        let Tests { prompt, tokens, short_prompt, tokens_each, .. } = self.tests;
        if !self.has_time("all tests", source, place) {
            return Ok(());
        }
        let model = Model::load(&place.engine, &source.path)?;
        let work = model.token_work();
        (rates.bytes, rates.flops) = (work.bytes, work.flops);
        let limit = |rate: Option<f64>, work: u64| rate.map(|rate| rate * 1e9 / work as f64);
        let context = Some(prompt.max(tokens) + 1);
        let mut session = model.session(SessionOptions { context, ..SessionOptions::default() })?;
        on.prompt = Some(Rate {
            limit: limit(place.device.peak, work.flops),
            ..self.rate(prompt, |_| session.time_prompt(0, prompt))?
        });
        bar.inc(1);
        if !self.has_time("generation", source, place) {
            return Ok(());
        }
        let one = self.rate(tokens, |_| session.time_decode(0, tokens))?;
        on.decode = Some(Rate { limit: limit(place.device.bandwidth, work.bytes), ..one });
        bar.inc(1);
        drop(session);
        let counts = self.tests.sequences.clone();
        if !counts.is_empty() && tokens as f64 / one.tokens_per_second > PATIENCE {
            self.leave_out("several sequences", source, place);
            return Ok(());
        }
        for (count, several) in counts.into_iter().zip(&mut on.several) {
            let context = Some(short_prompt + tokens_each + 1);
            let options = SequencesOptions { most: count, context, ..SequencesOptions::default() };
            let mut sequences = model.sequences(options)?;
            let decode = |round| Ok(sequences.time(count, short_prompt, tokens_each, round)?.decode);
            *several = Some(self.rate(count * tokens_each, decode)?);
            bar.inc(1);
        }
        Ok(())
    }

    /// Repeats a test of `tokens` tokens. The repetition 0, which compiles and allocates, is not counted.
    fn rate(
        &mut self,
        tokens: usize,
        mut test: impl FnMut(usize) -> kiln_llm::Result<Duration>,
    ) -> kiln_llm::Result<Rate> {
        test(0)?;
        let start = Instant::now();
        let mut samples = Vec::new();
        for repetition in 1..=self.tests.repetitions {
            let mut time = Ok(Duration::ZERO);
            let (_, clean) = self.sampler.sample(|| time = test(repetition));
            samples.push((time?.as_secs_f64(), clean));
            let most = if samples.len() >= ENOUGH { self.tests.budget } else { self.tests.patience };
            if start.elapsed().as_secs_f64() > most {
                break;
            }
        }
        let timing = Timing::of(&samples);
        Ok(Rate { tokens_per_second: tokens as f64 / timing.seconds, limit: None, certain: timing.is_certain() })
    }
}

#[cfg(test)]
mod tests {
    use super::random::Shape;
    use super::*;

    /// The tensors of the tiny shape have several blocks, and rows of whole ones.
    const TINY: Shape = Shape { name: "tiny", layers: 2, width: 64, ffn: 96, heads: 4, kv_heads: 2, vocabulary: 300 };
    /// Elements of the matrices of its two layers, and of all norms and the logits.
    const MATRICES: u64 = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64);
    const NORMS: u64 = 5 * 64;
    const LOGITS: u64 = 300 * 64;

    /// A file that is removed again.
    struct Saved(Source);

    impl Drop for Saved {
        fn drop(&mut self) {
            _ = std::fs::remove_file(&self.0.path);
        }
    }

    fn saved(kind: TensorKind, test: &str) -> Saved {
        let path =
            std::env::temp_dir().join(format!("kiln-measure-{}-{test}-{}.gguf", std::process::id(), kind.name()));
        TINY.save(kind, &path).unwrap();
        Saved(Source { name: format!("tiny {}", kind.name()), path })
    }

    fn bench(all: Option<f64>) -> (Bench, Place) {
        let tests = Tests {
            prompt: 8,
            tokens: 4,
            sequences: vec![3],
            short_prompt: 2,
            tokens_each: 3,
            repetitions: 4,
            budget: 0.0,
            patience: 60.0,
            all,
        };
        let simd = Simd::with_isa(Isa::best()).unwrap();
        let mut bench =
            Bench { tests, start: Instant::now(), sampler: Sampler::new(simd.with_threads(1)), left_out: Vec::new() };
        let limits = Limits::new(simd, Effort { samples: 1, budget: Duration::ZERO });
        let place = bench.cpu(limits, &|| Engine::builder().without_profile()).unwrap();
        (bench, place)
    }

    #[test]
    fn a_model_is_measured_on_the_cpu() {
        for (kind, bytes) in [
            (TensorKind::Q8_0, (MATRICES + LOGITS) / 32 * 34 + 4 * NORMS),
            (TensorKind::F16, 2 * (MATRICES + LOGITS) + 4 * NORMS),
        ] {
            let (file, (mut bench, place)) = (saved(kind, "measured"), bench(None));
            let bar = super::super::bar(3);
            let rates = bench.rates(&file.0, std::slice::from_ref(&place), &bar);
            assert_eq!((rates.bytes, rates.flops, bar.position()), (bytes, 2 * MATRICES, 3));
            let on = &rates.on[0];
            assert_eq!((on.refused.as_deref(), &bench.left_out[..]), (None, &[][..]));
            let [prompt, decode, several] = [on.prompt, on.decode, on.several[0]].map(Option::unwrap);
            for rate in [prompt, decode, several] {
                assert!(rate.tokens_per_second > 1.0 && rate.tokens_per_second < 1e7, "{rate:?}");
            }
            let [peak, bandwidth] = [place.device.peak, place.device.bandwidth].map(|rate| rate.unwrap() * 1e9);
            assert_eq!(prompt.limit, Some(peak / rates.flops as f64));
            assert_eq!((decode.limit, several.limit), (Some(bandwidth / rates.bytes as f64), None));
        }
    }

    #[test]
    fn a_run_without_time_begins_no_test_and_says_so() {
        let (file, (mut bench, place)) = (saved(TensorKind::Q8_0, "without"), bench(Some(0.0)));
        let rates = bench.rates(&file.0, std::slice::from_ref(&place), &super::super::bar(3));
        assert_eq!((rates.on[0].prompt, rates.on[0].decode, &rates.on[0].several[..]), (None, None, &[None][..]));
        assert_eq!(bench.left_out, ["all tests of tiny Q8_0 on cpu"]);
    }

    #[test]
    fn a_device_that_cannot_run_a_model_says_why() {
        let (mut bench, place) = bench(None);
        let missing = Source { name: "missing".into(), path: "no-such-file.gguf".into() };
        let rates = bench.rates(&missing, &[place], &super::super::bar(3));
        assert!(rates.on[0].refused.as_ref().unwrap().contains("no-such-file.gguf"), "{rates:?}");
        let error = check(&[missing.path]).unwrap_err().to_string();
        assert!(error.starts_with("--model no-such-file.gguf: "), "{error}");
    }

    #[test]
    fn tensors_of_random_models_differ_and_keep_their_scale() {
        let file = saved(TensorKind::F16, "differ");
        let model = kiln_gguf::Model::read(&file.0.path).unwrap();
        let elements = |name: &str| -> Vec<f32> {
            let tensor = model.tensor(name).unwrap();
            let halves = tensor.bytes().chunks_exact(2);
            halves.map(|half| kiln_ir::f16::from_le_bytes([half[0], half[1]]).to_f32()).collect()
        };
        let [q, next, down] = ["blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.0.ffn_down.weight"].map(elements);
        assert_ne!(q, next);
        for (matrix, columns) in [(q, 64), (down, 96)] {
            let mean_square = matrix.iter().map(|x| x * x).sum::<f32>() / matrix.len() as f32;
            assert!((mean_square * columns as f32 - 1.0).abs() < 0.1, "{columns}: {mean_square}");
        }
    }
}
