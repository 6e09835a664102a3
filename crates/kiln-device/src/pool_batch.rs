//! Operations recorded once that run on any device of a pool.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::{Op, check_outputs};
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Record, Result, Shape, TensorType};

use crate::device_pool::{is_small, work_of};
use crate::tensor::Tensor;
use crate::waiting::{Waiting, block_on};
use crate::{DevicePool, Driver, GraphRunner};

/// A tensor that each device of a pool has in its memory, such as the weights of a model. Cloning it is cheap.
#[derive(Debug)]
pub struct PoolTensor<D: Driver> {
    /// One for each device that was alive.
    copies: Arc<[Tensor<D>]>,
    ty: TensorType,
}

impl<D: Driver> Clone for PoolTensor<D> {
    fn clone(&self) -> Self {
        Self { copies: self.copies.clone(), ty: self.ty }
    }
}

impl<D: Driver> PoolTensor<D> {
    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The tensor in the memory of a device, if that device had it uploaded.
    pub fn on(&self, device: &D) -> Option<&Tensor<D>> {
        self.copies.iter().find(|copy| copy.check_on(device).is_ok())
    }
}

impl<D: Driver> DevicePool<D> {
    /// Copies a tensor to each device that is not lost.
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::OutOfMemory`] where it is too large for one of them; [`Error::DeviceLost`] when all are lost.
    pub fn upload(&self, operand: &Operand<'_>) -> Result<PoolTensor<D>> {
        let mut lost = None;
        let mut copies = Vec::new();
        for device in self.devices() {
            match block_on(Tensor::upload(device, operand)) {
                Ok(copy) => copies.push(copy),
                Err(error @ Error::DeviceLost { .. }) => lost = Some(error),
                Err(error) => return Err(error),
            }
        }
        match lost {
            Some(lost) if copies.is_empty() => Err(lost),
            _ => Ok(PoolTensor { copies: copies.into(), ty: operand.ty() }),
        }
    }
}

/// Operations recorded once that run on any device of a pool. They are the methods of [`Record`].
///
/// Each run goes to the device with the least work in flight, which compiles and binds the operations the first time and replays
/// them afterwards. The batch keeps the host's copy of what was uploaded, and a device gets it again only if it changed. So if a device
/// is lost during a run, another one repeats it, with the same results on equal devices.
///
/// For many runs at a time, give each thread a batch of its own and let them share [`PoolTensor`]s.
#[derive(Debug)]
pub struct PoolBatch<D: Driver> {
    pool: DevicePool<D>,
    graph: Graph,
    /// In the order in which they were added.
    inputs: Vec<Input<D>>,
    /// The number of the last change of an input.
    changes: u64,
    /// By position of the device; `None` before the first run there.
    replicas: Vec<Option<Replica<D>>>,
}

/// An input of a batch.
#[derive(Debug)]
struct Input<D: Driver> {
    id: TensorId,
    source: Source<D>,
    /// The number of its last change.
    change: u64,
}

/// The location of the data of an input.
#[derive(Debug)]
enum Source<D: Driver> {
    /// The caller passes them to each run.
    Caller,
    Host(Buffer),
    Pool(PoolTensor<D>),
    Device(Tensor<D>),
}

/// The batch on one device.
#[derive(Debug)]
struct Replica<D: Driver> {
    runner: GraphRunner<D>,
    /// For each input whose data are there, the number of their change.
    changes: HashMap<TensorId, u64>,
}

impl<D: Driver> Replica<D> {
    fn new(device: &D) -> Self {
        Self { runner: GraphRunner::new(device.clone()), changes: HashMap::new() }
    }

    /// Bytes that [`Replica::update`] copies from the host.
    fn outdated(&self, inputs: &[Input<D>], given: &[(TensorId, Data<'_>)]) -> u64 {
        let of_host = inputs.iter().filter(|input| self.changes.get(&input.id) != Some(&input.change));
        let of_host = of_host.map(|input| match &input.source {
            Source::Host(data) if given.iter().all(|(id, _)| *id != input.id) => data.as_data().bytes() as u64,
            _ => 0,
        });
        of_host.chain(given.iter().map(|(_, data)| data.bytes() as u64)).sum()
    }

    /// Copies data of the host to an input.
    fn write(&mut self, graph: &Graph, id: TensorId, data: Data<'_>) -> Result<()> {
        let Self { runner, .. } = self;
        match runner.has(id) {
            true => block_on(runner.set(graph, id, data)),
            false => block_on(runner.upload(id, &Operand::new(data, graph.ty(id)?.shape)?)),
        }
    }

    /// Brings the inputs up to date. `given` replaces some of them for one run.
    fn update(&mut self, graph: &Graph, inputs: &[Input<D>], given: &[(TensorId, Data<'_>)]) -> Result<()> {
        for Input { id, source, change } in inputs {
            if let Some((_, data)) = given.iter().rfind(|(given, _)| given == id) {
                self.changes.remove(id);
                self.write(graph, *id, *data)?;
                continue;
            }
            if self.changes.get(id) == Some(change) {
                continue;
            }
            match source {
                // What an earlier run was given is not used again.
                Source::Caller => {
                    self.runner.release(&[*id]);
                    continue;
                }
                Source::Host(data) => self.write(graph, *id, data.as_data())?,
                Source::Device(tensor) => self.runner.import(*id, tensor)?,
                Source::Pool(tensor) => {
                    let missing = || Error::Unavailable {
                        what: format!("input {} on {}", id.index(), self.runner.device().label()),
                        reason: "it was uploaded to another pool; upload it to the pool of the batch".into(),
                    };
                    let tensor = tensor.on(self.runner.device()).ok_or_else(missing)?;
                    self.runner.import(*id, tensor)?;
                }
            }
            self.changes.insert(*id, *change);
        }
        Ok(())
    }
}

impl<D: Driver> PoolBatch<D> {
    /// An empty batch.
    pub fn new(pool: &DevicePool<D>) -> Self {
        let replicas = pool.devices().map(|_| None).collect();
        Self { pool: pool.clone(), graph: Graph::new(), inputs: Vec::new(), changes: 0, replicas }
    }

    /// The recorded graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    fn add(&mut self, ty: TensorType, source: Source<D>) -> TensorId {
        let id = self.graph.input(ty);
        self.changes += 1;
        self.inputs.push(Input { id, source, change: self.changes });
        id
    }

    /// Adds an input whose data are passed to each [`PoolBatch::run_with`].
    pub fn input(&mut self, ty: TensorType) -> TensorId {
        self.add(ty, Source::Caller)
    }

    /// Adds f32 elements of the given extents, which the batch keeps.
    ///
    /// # Errors
    /// [`Error::Length`] when the elements do not fill the extents; [`Error::OutOfMemory`] of the host.
    pub fn upload(&mut self, data: &[f32], dims: &[usize]) -> Result<TensorId> {
        self.upload_operand(&Operand::new(Data::F32(data), Shape::new(dims)?)?)
    }

    /// Adds an operand of any element type, which the batch keeps.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] of the host.
    pub fn upload_operand(&mut self, operand: &Operand<'_>) -> Result<TensorId> {
        let data = operand.data().to_buffer()?;
        Ok(self.add(operand.ty(), Source::Host(data)))
    }

    /// Adds a tensor that each device of the pool has, without a copy.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a tensor of another pool.
    pub fn import(&mut self, tensor: &PoolTensor<D>) -> Result<TensorId> {
        if !self.pool.devices().any(|device| tensor.on(device).is_some()) {
            return Err(Error::Unavailable {
                what: "a tensor of another pool".into(),
                reason: "upload it to the pool of the batch".into(),
            });
        }
        Ok(self.add(tensor.ty(), Source::Pool(tensor.clone())))
    }

    /// Adds a tensor of one device of the pool, without a copy. The batch then runs on that device alone.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a tensor of a device outside of the pool, or of another device than an earlier one.
    pub fn import_from_device(&mut self, tensor: &Tensor<D>) -> Result<TensorId> {
        let position = self.pool.position(tensor.device());
        if position.is_none() || self.only().is_some_and(|(only, _)| Some(only) != position) {
            return Err(Error::Unavailable {
                what: format!("a tensor of {}", tensor.device().label()),
                reason: "all tensors of single devices must be of the same device of the pool".into(),
            });
        }
        Ok(self.add(tensor.ty(), Source::Device(tensor.clone())))
    }

    /// The position of the device that alone has an input, and that input.
    fn only(&self) -> Option<(usize, TensorId)> {
        self.inputs.iter().find_map(|input| match &input.source {
            Source::Device(tensor) => Some((self.pool.position(tensor.device())?, input.id)),
            _ => None,
        })
    }

    /// Replaces the f32 elements of an input for later runs.
    ///
    /// # Errors
    /// The errors of [`PoolBatch::set_data`].
    pub fn set(&mut self, id: TensorId, data: &[f32]) -> Result<()> {
        self.set_data(id, Data::F32(data))
    }

    /// Replaces the elements of an input for later runs. The batch keeps a copy.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that is not an input, [`Error::Type`] and
    /// [`Error::Length`] where the elements do not fit; [`Error::OutOfMemory`] of the host.
    pub fn set_data(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        let position = self.check_input("set", id, data)?;
        let input = &mut self.inputs[position];
        input.source = Source::Host(data.to_buffer()?);
        self.changes += 1;
        input.change = self.changes;
        Ok(())
    }

    /// The position of an input that takes these data.
    fn check_input(&self, op: &'static str, id: TensorId, data: Data<'_>) -> Result<usize> {
        let ty = self.graph.ty(id)?;
        if ty.dtype != data.dtype() {
            return Err(Error::Type { op, index: 0, expected: ty.dtype, found: data.dtype() });
        }
        Operand::new(data, ty.shape)?;
        self.inputs.iter().position(|input| input.id == id).ok_or_else(|| Error::Parameter {
            op,
            reason: format!("tensor {} is a result; only inputs can be replaced", id.index()),
        })
    }

    /// Makes the computation of these tensors ready on each device that is not lost: its inputs uploaded, its kernels compiled and its
    /// memory allocated.
    ///
    /// # Errors
    /// The errors of [`PoolBatch::run`].
    pub fn prepare(&mut self, wanted: &[TensorId]) -> Result<()> {
        let only = self.only().map(|(position, _)| position);
        let of_caller = self.inputs.iter().filter(|input| matches!(input.source, Source::Caller));
        let zeros = of_caller.map(|input| Ok((input.id, Buffer::zeros(&self.graph.ty(input.id)?)?)));
        let zeros = zeros.collect::<Result<Vec<_>>>()?;
        let given: Vec<_> = zeros.iter().map(|(id, zeros)| (*id, zeros.as_data())).collect();
        let mut lost = None;
        for (position, device) in self.pool.devices().enumerate().filter(|&(at, _)| only.is_none_or(|only| at == only))
        {
            let replica = self.replicas[position].get_or_insert_with(|| Replica::new(device));
            let updated = replica.update(&self.graph, &self.inputs, &given);
            match updated.and_then(|()| block_on(replica.runner.prepare(&self.graph, wanted))) {
                Err(error @ Error::DeviceLost { .. }) => {
                    self.replicas[position] = None;
                    lost = Some(error);
                }
                done => done?,
            }
        }
        let is_ready = self.replicas.iter().any(Option::is_some);
        lost.filter(|_| !is_ready).map_or(Ok(()), |lost| Err(self.lost(lost)))
    }

    /// Computes these tensors and reads them.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch; [`Error::Parameter`] for an input without data; [`Error::Index`] for an
    /// index outside of its table; [`Error::Unsupported`], [`Error::Limit`], [`Error::OutOfMemory`]; [`Error::DeviceLost`] when all
    /// devices are lost, or the one that alone had an input, which the error then names.
    pub fn run(&mut self, wanted: &[TensorId]) -> Result<Vec<Buffer>> {
        self.run_with(&[], wanted)
    }

    /// Computes these tensors from inputs that are given for this run alone, and reads them. The data are borrowed, not copied on the
    /// host.
    ///
    /// # Errors
    /// The errors of [`PoolBatch::run`] and [`PoolBatch::set_data`].
    pub fn run_with(&mut self, given: &[(TensorId, Data<'_>)], wanted: &[TensorId]) -> Result<Vec<Buffer>> {
        let types = wanted.iter().map(|&id| self.graph.ty(id)).collect::<Result<Vec<_>>>()?;
        let mut results = types.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
        self.run_with_into(given, wanted, &mut outputs)?;
        Ok(results)
    }

    /// [`PoolBatch::run_with`] that reads into slices.
    ///
    /// # Errors
    /// The errors of [`PoolBatch::run_with`]; [`Error::Arity`], [`Error::Type`], [`Error::Length`] where results do not fit `outputs`.
    pub fn run_with_into(
        &mut self,
        given: &[(TensorId, Data<'_>)],
        wanted: &[TensorId],
        outputs: &mut [DataMut<'_>],
    ) -> Result<()> {
        let types = wanted.iter().map(|&id| self.graph.ty(id)).collect::<Result<Vec<_>>>()?;
        check_outputs("run_with_into", &types, outputs)?;
        given.iter().try_for_each(|&(id, data)| self.check_input("run_with", id, data).map(drop))?;
        let cost = self.graph.cost()?;
        let results = types.iter().map(|ty| ty.bytes() as u64).sum::<u64>();
        let only = self.only().map(|(position, _)| position);
        let (pool, graph, inputs, mut lost) = (&self.pool, &self.graph, &self.inputs, None);
        loop {
            let least = pool.least_loaded_of(work_of(&cost), |at| only.is_none_or(|only| at == only));
            let (position, lent) = match least {
                Ok(found) => found,
                Err(error) => return Err(self.lost(lost.unwrap_or(error))),
            };
            let replica = self.replicas[position].get_or_insert_with(|| Replica::new(lent.device()));
            let is_small = is_small(&cost, results.saturating_add(replica.outdated(inputs, given)));
            let done = lent.in_turn(is_small, |queue| {
                replica.update(graph, inputs, given)?;
                let runner = &mut replica.runner;
                match queue {
                    Some(queue) if runner.execute_queued(graph, wanted, outputs, queue)? => Ok(()),
                    _ => block_on(runner.compute_into(graph, wanted, outputs, false, Waiting::Here)),
                }
            });
            match done {
                Err(error @ Error::DeviceLost { .. }) if lent.device().check_alive().is_err() => {
                    self.replicas[position] = None;
                    lost = Some(error);
                }
                done => return done,
            }
        }
    }

    /// The error of a run that no device can repeat.
    fn lost(&self, error: Error) -> Error {
        match (error, self.only()) {
            (Error::DeviceLost { device, reason }, Some((_, id))) => Error::DeviceLost {
                device,
                reason: format!(
                    "{reason}; input {} of the batch was in its memory alone, so no other device can run the batch: record it again, \
                     with that input uploaded to the pool",
                    id.index()
                ),
            },
            (error, _) => error,
        }
    }
}

impl<D: Driver> Record for PoolBatch<D> {
    type Tensor = TensorId;

    fn record_all(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.graph.record_all(op, inputs)
    }
}
