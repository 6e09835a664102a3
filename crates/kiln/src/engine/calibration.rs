//! The calibration of an engine.

use kiln_ir::Result;
use kiln_route::{Backend, MAX_MEMORIES, MAX_PLACES, Place, Profile, Router};

use super::{Engine, ProfileStatus, forced, refining};
use crate::calibrate::grid::{self, Probe};
use crate::calibrate::{self, CalibrationReport, Effort, Progress};
use crate::gpus::{self, Gpu};

impl Engine {
    /// Measures this machine, uses the result for later decisions, and stores it in the user's cache directory. With
    /// [`Effort::Quick`] it takes about half a minute, or a minute with a GPU; the machine should be idle otherwise.
    ///
    /// Measures the GPUs that the engine was asked for, or else every hardware GPU, and makes each a placement. One that fails is
    /// left out: the report and [`Engine::absent`] name it. A machine without a GPU is logged once through `tracing`.
    ///
    /// An engine that is limited to some threads, instruction sets, backends or GPUs measures only those and does not write to the
    /// user's cache directory, whose profile serves engines without limits, too.
    ///
    /// # Errors
    /// Errors of the measured operations, which are not expected; [`Unavailable`](kiln_ir::Error::Unavailable) if the forced GPU
    /// fails. After an error the engine is unchanged. A failed write of the profile is not an error; see
    /// [`CalibrationReport::saved`].
    pub fn calibrate(&mut self, effort: Effort, progress: &mut dyn FnMut(Progress<'_>)) -> Result<CalibrationReport> {
        self.calibrate_by(grid::calibration()?, effort, progress)
    }

    /// [`Engine::calibrate`] with these problems.
    pub(crate) fn calibrate_by(
        &mut self,
        probes: Vec<Probe>,
        effort: Effort,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<CalibrationReport> {
        let found = self.further_gpus();
        let mut all: Vec<&Gpu> = self.gpus.iter().chain(&found).collect();
        if !found.is_empty() {
            all.sort_by_key(|gpu| gpu.kind());
        }
        let room = (MAX_MEMORIES - 1).min(MAX_PLACES.saturating_sub(self.cpu.len()));
        if all.len() > room {
            tracing::warn!("a profile has room for {room} of the {} GPUs; the others are not used", all.len());
            let kinds: Vec<Backend> = all.iter().map(|gpu| gpu.kind()).collect();
            let mut kept = gpus::fitting(&kinds, room).into_iter();
            all.retain(|_| kept.next().unwrap_or(false));
        }
        let (profile, mut report) = calibrate::full::run(self, &all, probes, effort, progress)?;
        let mut router = self.router_of(profile.clone())?;
        let mut gpus: Vec<Gpu> = self.gpus.iter().cloned().chain(found).collect();
        let mut behind = |place: &Place| {
            let position = gpus.iter().position(|gpu| gpu.name() == place.name)?;
            Some(gpus.swap_remove(position))
        };
        let gpus: Vec<Gpu> = router.places()[self.cpu.len()..].iter().filter_map(&mut behind).collect();
        if !gpus.is_empty() {
            // A profile serves engines that force other placements, too.
            let unforced = Router::new(profile.clone()).with_precision(self.precision());
            let before =
                (std::mem::replace(&mut self.router, unforced), std::mem::replace(&mut self.gpus, gpus.clone()));
            let graphs = calibrate::graphs::on_cpu(self);
            (self.router, self.gpus) = before;
            let (queued, graphs) = graphs?;
            router = self.router_of(profile.with_graphs_on_host(queued, graphs).map_err(calibrate::unusable)?)?;
        }
        self.gpus = gpus;
        self.left_out.clone_from(&report.left_out);
        self.router = router;
        self.status = ProfileStatus::Calibrated;
        if let Some(path) = self.profile_file() {
            let before = self.is_shared.then(|| Profile::load(path, &self.machine).ok()).flatten();
            let saved = match before.as_ref().and_then(|before| unknown_gpu(before, gpus::KINDS)) {
                Some(gpu) => Err(format!(
                    "it has {gpu}, which this build does not support; set another file with `profile_file`"
                )),
                None => self.router.profile().save(path).map_err(|error| error.to_string()),
            };
            report.saved = Some(saved.map(|()| path.to_owned()));
            if let Some(Err(reason)) = &report.saved {
                tracing::warn!("the profile could not be written to {}: {reason}", path.display());
            }
        }
        Ok(report)
    }

    /// The router of a profile, with this engine's settings.
    fn router_of(&self, profile: Profile) -> Result<Router> {
        let mut router = Router::new(profile).with_precision(self.precision());
        if let Some(place) = self.router.forced() {
            router = forced(router, &self.places()[place].name)?;
        }
        Ok(refining(router, self.refine, self.keeps_observed))
    }

    /// GPUs of this machine that are not placements yet, unless the engine was asked for particular ones.
    fn further_gpus(&self) -> Vec<Gpu> {
        let found = self.find_gpus.iter().flat_map(|&kind| Gpu::hardware(kind, &self.opening).unwrap_or_default());
        found.filter(|gpu| !self.gpus.iter().any(|known| known.name() == gpu.name())).collect()
    }
}

/// Returns the name of a GPU of a profile whose backend is not among `kinds`.
fn unknown_gpu<'p>(profile: &'p Profile, kinds: &[Backend]) -> Option<&'p str> {
    let is_unknown =
        |place: &&Place| !matches!(place.backend, Backend::Scalar | Backend::Simd) && !kinds.contains(&place.backend);
    profile.places().iter().find(is_unknown).map(|place| place.name.as_str())
}

#[cfg(test)]
mod tests {
    use kiln_ir::op::{Matmul, Op, Softmax};
    use kiln_ir::{Precision, Shape, TensorType};
    use kiln_route::{Basis, Problem};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn a_gpu_that_a_program_was_built_without_is_found_in_a_profile() {
        let machine = Engine::builder().without_profile().build().unwrap().machine().clone();
        let mut gpu = Place::cpu("some GPU", Backend::Scalar, 1, 1);
        gpu.backend = Backend::Cuda;
        let profile = Profile::new(machine, vec![Place::cpu("scalar x1", Backend::Scalar, 1, 1), gpu]);
        let profile = profile.unwrap();
        assert_eq!(unknown_gpu(&profile, &[Backend::Gpu]), Some("some GPU"));
        assert_eq!(unknown_gpu(&profile, &[Backend::Gpu, Backend::Cuda]), None);
    }

    #[test]
    fn products_are_calibrated_with_the_precision_of_the_engine() {
        let matrix = TensorType::f32(Shape::new(&[40, 40]).unwrap());
        let probe = |op: Op, inputs: usize| Probe::new(op, vec![matrix; inputs]).unwrap();
        for precision in [Precision::Contract, Precision::Int8] {
            let probes = vec![probe(Matmul::default().into(), 2), probe(Softmax.into(), 1)];
            let builder = Engine::builder().without_profile().precision(precision);
            let mut engine = builder.backends(&[Backend::Scalar, Backend::Simd]).build().unwrap();
            engine.calibrate_by(probes, Effort::Quick, &mut |_| {}).unwrap();
            let known = engine.router().profile().classes().iter();
            let known: Vec<_> = known.map(|class| (class.op.as_str(), class.precision)).collect();
            assert_eq!(known, [("matmul", precision), ("softmax", Precision::Contract)]);
            let problem = Problem::new(&Matmul::default().into(), &[matrix; 2]).unwrap();
            assert_eq!(engine.router().decide(&problem, &engine.on_host()).basis(), Basis::Interpolated);
        }
    }
}
