//! Plans that are compiled and bound to memory: they run repeatedly without new allocations.

use std::collections::HashMap;

#[cfg(not(target_arch = "wasm32"))]
use kiln_ir::DataMut;
use kiln_ir::graph::TensorId;
use kiln_ir::{Error, Result};

use crate::driver::{Driver, Read, RegionOf};
use crate::location::Fault;
use crate::plan::{Bindings, Plan};
use crate::profile::Profile;
use crate::waiting::{Arriving, Waiting};

/// A compiled plan with its memory.
#[derive(Debug)]
pub struct Executable<D: Driver> {
    device: D,
    program: D::Program,
    memory: Bindings<D::Memory>,
    /// The wanted tensors, in the requested order.
    results: Vec<RegionOf<D>>,
    faults: Vec<Fault>,
    has_run: bool,
}

impl<D: Driver> Executable<D> {
    /// Compiles a plan and allocates its memory, except for inputs and results that are given.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`]; [`Error::Driver`] for a kernel that the driver
    /// refuses.
    pub async fn new(device: &D, plan: Plan<D>, given: &HashMap<TensorId, RegionOf<D>>) -> Result<Self> {
        device.compile(&plan.steps).await?;
        let bytes = plan.computed_bytes();
        let prepare = || {
            let memory = Bindings::allocate(device, &plan, given)?;
            let results = plan.results.iter().map(|&(at, _)| memory.find(at)).collect::<Result<_>>()?;
            let program = device.bind(plan.steps, &memory)?;
            Ok(Self { device: device.clone(), program, memory, results, faults: plan.faults, has_run: false })
        };
        device.scoped("preparing a batch", bytes, prepare).await
    }

    /// The region of an input.
    pub fn input(&self, id: TensorId) -> Option<&RegionOf<D>> {
        self.memory.inputs.get(&id)
    }

    /// The regions of the wanted tensors.
    pub fn results(&self) -> &[RegionOf<D>] {
        &self.results
    }

    /// Its program, for drivers that submit it by themselves.
    pub fn program(&mut self) -> &mut D::Program {
        &mut self.program
    }

    /// Total bytes of its memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.inputs.values().map(|region| region.bytes()).sum::<u64>() + self.computed_bytes()
    }

    /// Bytes of its results and intermediate results.
    pub(crate) fn computed_bytes(&self) -> u64 {
        let between = self.memory.slots.iter().chain(&self.memory.scratch).chain(&self.memory.kept);
        self.memory.results.values().chain(between).map(|region| region.bytes()).sum()
    }

    /// Runs the plan, and copies the results at these positions to slices. Without reads it does not wait, unless the data
    /// can be at fault.
    ///
    /// # Errors
    /// [`Error::Index`] for faults in the data, [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
    pub async fn run(&mut self, reads: Vec<(usize, &mut [u8])>, waiting: Waiting) -> Result<()> {
        let mut words = self.words();
        let mut all = Vec::with_capacity(reads.len() + 1);
        if let Some(from) = &self.memory.faults {
            all.push(Read { from: from.clone(), to: &mut words });
        }
        for (position, to) in reads {
            let from = self.results.get(position).ok_or(Error::ForeignTensor { index: position })?;
            all.push(Read { from: from.clone(), to });
        }
        self.device.run(&mut self.program, self.memory.faults.as_ref(), &mut all, waiting).await?;
        drop(all);
        self.has_run = true;
        Fault::first(&self.faults, &words, D::FAULT_STRIDE, D::FAULT_POSITION).map_or(Ok(()), Err)
    }

    /// Submits the plan, and begins to copy results of these sizes to the host, in the order of the wanted tensors. `None` if the
    /// device cannot do this: then nothing was submitted.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`]; those of the future also [`Error::Index`] for faults in the data.
    pub(crate) async fn begin(
        &mut self,
        sizes: impl Iterator<Item = usize>,
        waiting: Waiting,
    ) -> Result<Option<Arriving<Vec<Vec<u8>>>>> {
        let words = self.memory.faults.iter().map(|words| (words.clone(), self.words().len() as u64));
        let results = self.results.iter().zip(sizes).map(|(from, bytes)| (from.clone(), bytes as u64));
        let reads = words.chain(results).collect();
        let begun = self.device.begin(&mut self.program, self.memory.faults.as_ref(), reads, waiting).await?;
        let Some(arriving) = begun else { return Ok(None) };
        self.has_run = true;
        let (faults, has_words) = (self.faults.clone(), self.memory.faults.is_some());
        Ok(Some(Box::pin(async move {
            let mut arrived = arriving.await?;
            let words = if has_words { arrived.remove(0) } else { Vec::new() };
            Fault::first(&faults, &words, D::FAULT_STRIDE, D::FAULT_POSITION).map_or(Ok(arrived), Err)
        })))
    }

    /// The words of its faults on the host, as they are before it runs.
    fn words(&self) -> Vec<u8> {
        vec![0xff; D::FAULT_STRIDE as usize * self.faults.len()]
    }

    /// Runs the plan this many times. Neither waits nor reports faults.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) async fn repeat(&mut self, times: usize) -> Result<()> {
        self.has_run |= times > 0;
        self.device.repeat(&mut self.program, self.memory.faults.as_ref(), times).await
    }

    /// The time of each kernel of the last run.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the device was opened without timing, [`Error::Parameter`] before the first run,
    /// [`Error::DeviceLost`].
    pub(crate) async fn profile(&self, waiting: Waiting) -> Result<Profile> {
        if !self.device.is_profiling() {
            return Err(Error::Unavailable {
                what: "the time of each kernel".into(),
                reason: "the device was opened without `profile` in its options".into(),
            });
        }
        if !self.has_run {
            return Err(Error::Parameter { op: "profile", reason: "nothing was executed; execute it first".into() });
        }
        self.device.check_alive()?;
        self.device.times(&self.program, waiting).await
    }
}

/// One execution of a plan that is submitted together with others, and memory of the host for what it returns.
#[cfg(not(target_arch = "wasm32"))]
#[derive(Debug)]
pub(crate) struct Call<D: Driver> {
    executable: Executable<D>,
    results: Vec<Vec<u8>>,
    words: Vec<u8>,
}

#[cfg(not(target_arch = "wasm32"))]
impl<D: Driver> Call<D> {
    /// A call that has not run. `sizes` are the bytes of the wanted tensors, in the requested order.
    pub(crate) fn new(executable: Executable<D>, sizes: impl Iterator<Item = usize>) -> Self {
        let words = executable.words();
        Self { results: sizes.map(|bytes| vec![0; bytes]).collect(), words, executable }
    }

    /// Runs calls of one device, and copies their results to the host, in one submission if the driver can.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`]. Faults of the data are no error here.
    pub(crate) async fn run_all(device: &D, calls: &mut [&mut Self], waiting: Waiting) -> Result<()> {
        let (mut programs, mut reads) = (Vec::with_capacity(calls.len()), Vec::new());
        for Self { executable, results, words } in calls.iter_mut().map(|call| &mut **call) {
            let faults = executable.memory.faults.as_ref();
            if let Some(from) = faults {
                reads.push(Read { from: from.clone(), to: &mut words[..] });
            }
            let of_results = executable.results.iter().zip(results);
            reads.extend(of_results.map(|(from, to)| Read { from: from.clone(), to: &mut to[..] }));
            executable.has_run = true;
            programs.push((&mut executable.program, faults));
        }
        device.run_all(&mut programs, &mut reads, waiting).await
    }

    /// Copies the results to slices of the same sizes, unless the data are at fault, and returns the executable.
    pub(crate) fn finish(self, outputs: &mut [DataMut<'_>]) -> (Executable<D>, Result<()>) {
        let Self { executable, results, words } = self;
        let fault = Fault::first(&executable.faults, &words, D::FAULT_STRIDE, D::FAULT_POSITION);
        if fault.is_none() {
            outputs.iter_mut().zip(&results).for_each(|(to, from)| to.as_bytes().copy_from_slice(from));
        }
        (executable, fault.map_or(Ok(()), Err))
    }
}
