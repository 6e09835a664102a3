//! The interface between an engine and a device, for every backend.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use kiln_device::waiting::{Arriving, Waiting};
use kiln_device::{Backend, Driver, Executable, GraphRunner, MemoryUse, Plan, Prepared, Profile, State, Tensor};
use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::{Call, Custom, Op};
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Record, Result, TensorType};

/// A result that may have to wait for a device. Except in a page, which has one thread, any thread may wait for it.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
#[cfg(target_arch = "wasm32")]
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Work on a device that can be repeated: the argument is the number of runs in one submission; only the last is waited
/// for.
pub(crate) type Again = Box<dyn FnMut(usize) -> Result<()>>;

/// The device of a placement, opened at its first use.
pub(crate) trait Device: Any + Debug + Send + Sync {
    /// Opens the device if it is not open.
    fn open(&self, waiting: Waiting) -> Pending<'_, ()>;

    /// The number of devices: several for a group.
    fn devices(&self) -> usize {
        1
    }

    /// Whether there is a kernel for a custom operation.
    fn has_kernel(&self, custom: &Custom) -> bool;

    /// Runs an operation from host to host.
    fn run_call<'a>(&'a self, call: &'a Call<'_>, outputs: &'a mut [DataMut<'_>], waiting: Waiting) -> Pending<'a, ()>;

    /// Copies an operand to the device.
    fn upload<'a>(&'a self, operand: &'a Operand<'_>, waiting: Waiting) -> Pending<'a, Resident>;

    /// Copies an operand to each device of a group.
    fn upload_parts<'a>(&'a self, parts: &'a [Operand<'_>], waiting: Waiting) -> Pending<'a, Resident> {
        match parts {
            [only] => self.upload(only, waiting),
            _ => {
                let wrong = Error::Arity { op: "parts of a tensor", expected: 1, found: parts.len() };
                Box::pin(std::future::ready(Err(wrong)))
            }
        }
    }

    /// Creates a state with these elements, or with zeros.
    fn state<'a>(&'a self, from: Option<Data<'a>>, ty: TensorType, waiting: Waiting) -> Pending<'a, Resident>;

    /// Runs an operation on tensors of the device; its results stay in device memory.
    fn run<'a>(&'a self, op: &'a Op, inputs: &'a [Resident], waiting: Waiting) -> Pending<'a, Vec<Resident>>;

    /// Runs recorded graphs.
    fn runner(&self, waiting: Waiting) -> Pending<'_, Box<dyn Runner>>;

    /// The bytes that computing these tensors of a graph takes for results, intermediate results and scratch memory, by
    /// its plan: nothing is compiled or allocated.
    fn planned_bytes<'a>(&'a self, graph: &'a Graph, wanted: &'a [TensorId], waiting: Waiting) -> Pending<'a, u64>;

    /// The free bytes of device memory, if the driver reports them, and the granularity of allocations.
    fn memory(&self, waiting: Waiting) -> Pending<'_, (Option<u64>, u64)>;

    /// The device memory in use; `None` before it is opened.
    fn memory_use(&self) -> Option<MemoryUse>;

    /// Compiles the kernels of those of these operations that the device supports.
    fn compile_ahead<'a>(&'a self, operations: &'a [(Op, &'a [TensorType])], waiting: Waiting) -> Pending<'a, ()>;

    /// Prepares an operation on operands in device memory for measurements.
    fn resident(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Again>;

    /// Prepares a graph of this many equal operations on the same operands for measurements. Each is launched by itself and overwrites
    /// the result of the one before, so that none runs beside another.
    fn copies(&self, op: &Op, inputs: &[Operand<'_>], copies: usize) -> Result<Again>;

    /// Opens a new device in place of a lost one. Returns whether the device now works.
    fn reopen(&self, waiting: Waiting) -> Pending<'_, bool>;
}

/// A tensor in the memory of some device. A clone refers to the same memory.
#[derive(Debug, Clone)]
pub(crate) struct Resident(Arc<dyn OnDevice>);

/// A tensor of any driver.
trait OnDevice: Any + Debug + Send + Sync {
    fn read(&self, waiting: Waiting) -> Pending<'_, Buffer>;
    fn view(&self, offset: u64, ty: TensorType, waiting: Waiting) -> Pending<'_, Resident>;
}

impl Resident {
    fn new(tensor: impl OnDevice) -> Self {
        Self(Arc::new(tensor))
    }

    /// The tensor or state of a driver.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a tensor of another backend.
    fn of<T: OnDevice>(&self) -> Result<&T> {
        let tensor: &dyn Any = &*self.0;
        tensor.downcast_ref().ok_or_else(|| Error::Unavailable {
            what: "a tensor of another backend".into(),
            reason: "move it to this device first, with `Engine::move_to`".into(),
        })
    }

    /// Copies the elements to the host.
    pub(crate) fn read(&self, waiting: Waiting) -> Pending<'_, Buffer> {
        self.0.read(waiting)
    }

    /// A view of the elements with another type, beginning at a byte.
    pub(crate) fn view(&self, offset: u64, ty: TensorType, waiting: Waiting) -> Pending<'_, Self> {
        self.0.view(offset, ty, waiting)
    }
}

/// Runs a recorded graph on a device, as [`GraphRunner`] does.
pub(crate) trait Runner: Debug + Send + Sync {
    fn has(&self, id: TensorId) -> bool;
    fn import(&mut self, id: TensorId, tensor: &Resident) -> Result<()>;
    fn bind_state(&mut self, id: TensorId, state: &Resident) -> Result<()>;
    fn alias(&mut self, id: TensorId, graph: &Graph, source: TensorId) -> Result<()>;
    fn release(&mut self, ids: &[TensorId]);
    fn upload<'a>(&'a mut self, id: TensorId, operand: &'a Operand<'_>) -> Pending<'a, ()>;
    fn set_all<'a>(&'a mut self, graph: &'a Graph, all: &'a [(TensorId, Data<'a>)]) -> Pending<'a, ()>;
    fn execute<'a>(&'a mut self, graph: &'a Graph, wanted: &'a [TensorId], waiting: Waiting) -> Pending<'a, ()>;
    fn run<'a>(&'a mut self, graph: &'a Graph, wanted: &'a [TensorId], waiting: Waiting) -> Pending<'a, Vec<Buffer>>;
    fn begin<'a>(
        &'a mut self,
        graph: &'a Graph,
        wanted: &'a [TensorId],
        feed: [TensorId; 2],
        waiting: Waiting,
    ) -> Pending<'a, Option<Arriving<Vec<Buffer>>>>;
    fn read<'a>(&'a self, graph: &'a Graph, ids: &'a [TensorId], waiting: Waiting) -> Pending<'a, Vec<Buffer>>;
    fn tensor(&mut self, graph: &Graph, id: TensorId) -> Result<Resident>;
    fn profile(&self, waiting: Waiting) -> Pending<'_, Profile>;
}

/// A device of one driver.
#[derive(Debug)]
pub(super) struct On<D: Driver> {
    /// The label that the device must have: the same choice may select another device later.
    name: String,
    label: fn(&D) -> String,
    /// Replaced when a lost device is reopened.
    backend: RwLock<Arc<Backend<D>>>,
    choice: D::Choice,
    options: D::Options,
}

impl<D: Driver> On<D> {
    pub(super) fn new(name: String, label: fn(&D) -> String, choice: D::Choice, options: D::Options) -> Self {
        let backend = Backend::with_choice(choice.clone()).with_options(options.clone());
        Self { name, label, backend: RwLock::new(Arc::new(backend)), choice, options }
    }

    /// Wraps a device that is open.
    #[cfg(target_arch = "wasm32")]
    pub(super) fn opened(name: String, label: fn(&D) -> String, choice: D::Choice, device: D) -> Self {
        let backend = RwLock::new(Arc::new(Backend::on(device)));
        Self { name, label, backend, choice, options: D::Options::default() }
    }

    fn backend(&self) -> Arc<Backend<D>> {
        self.backend.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn checked(&self, device: &D) -> Result<D> {
        let found = (self.label)(device);
        if found != self.name {
            let reason = format!("the same choice now selects {found}");
            return Err(Error::Unavailable { what: self.name.clone(), reason });
        }
        Ok(device.clone())
    }

    /// The device; opens it if it is not open.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is missing, or if another device is found.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn device(&self) -> Result<D> {
        self.checked(self.backend().device()?)
    }

    /// The device, for callers that cannot block. Native builds block while opening the device, which happens once.
    pub(super) async fn device_waiting(&self, _: Waiting) -> Result<D> {
        #[cfg(not(target_arch = "wasm32"))]
        return self.device();
        #[cfg(target_arch = "wasm32")]
        self.checked(self.backend().device_async().await?)
    }
}

/// Implements the traits above for a driver; `$devices` counts the devices of one of its choices. A blanket implementation is
/// impossible: only for a concrete driver can the compiler prove that its futures are `Send`.
macro_rules! devices_of {
    ($driver:ty, $devices:expr) => {
        impl OnDevice for Tensor<$driver> {
            fn read(&self, waiting: Waiting) -> Pending<'_, Buffer> {
                Box::pin(self.read_waiting(waiting))
            }

            fn view(&self, offset: u64, ty: TensorType, waiting: Waiting) -> Pending<'_, Resident> {
                Box::pin(async move { Ok(Resident::new(Tensor::view(self, offset, ty, waiting).await?)) })
            }
        }

        impl OnDevice for State<$driver> {
            fn read(&self, waiting: Waiting) -> Pending<'_, Buffer> {
                Box::pin(self.read_waiting(waiting))
            }

            fn view(&self, _: u64, _: TensorType, _: Waiting) -> Pending<'_, Resident> {
                let refused = Error::View { what: "state", reason: "its memory changes".into() };
                Box::pin(std::future::ready(Err(refused)))
            }
        }

        impl Runner for GraphRunner<$driver> {
            fn has(&self, id: TensorId) -> bool {
                self.has(id)
            }

            fn import(&mut self, id: TensorId, tensor: &Resident) -> Result<()> {
                self.import(id, tensor.of()?)
            }

            fn bind_state(&mut self, id: TensorId, state: &Resident) -> Result<()> {
                self.bind_state(id, state.of()?)
            }

            fn alias(&mut self, id: TensorId, graph: &Graph, source: TensorId) -> Result<()> {
                self.alias(id, graph, source)
            }

            fn release(&mut self, ids: &[TensorId]) {
                self.release(ids);
            }

            fn upload<'a>(&'a mut self, id: TensorId, operand: &'a Operand<'_>) -> Pending<'a, ()> {
                Box::pin(self.upload(id, operand))
            }

            fn set_all<'a>(&'a mut self, graph: &'a Graph, all: &'a [(TensorId, Data<'a>)]) -> Pending<'a, ()> {
                Box::pin(self.set_all(graph, all))
            }

            fn execute<'a>(
                &'a mut self,
                graph: &'a Graph,
                wanted: &'a [TensorId],
                waiting: Waiting,
            ) -> Pending<'a, ()> {
                Box::pin(self.execute(graph, wanted, waiting))
            }

            fn run<'a>(
                &'a mut self,
                graph: &'a Graph,
                wanted: &'a [TensorId],
                waiting: Waiting,
            ) -> Pending<'a, Vec<Buffer>> {
                Box::pin(self.run(graph, wanted, waiting))
            }

            fn begin<'a>(
                &'a mut self,
                graph: &'a Graph,
                wanted: &'a [TensorId],
                feed: [TensorId; 2],
                waiting: Waiting,
            ) -> Pending<'a, Option<Arriving<Vec<Buffer>>>> {
                Box::pin(self.begin(graph, wanted, feed, waiting))
            }

            fn read<'a>(&'a self, graph: &'a Graph, ids: &'a [TensorId], waiting: Waiting) -> Pending<'a, Vec<Buffer>> {
                Box::pin(self.read(graph, ids, waiting))
            }

            fn tensor(&mut self, graph: &Graph, id: TensorId) -> Result<Resident> {
                Ok(Resident::new(self.tensor(graph, id)?))
            }

            fn profile(&self, waiting: Waiting) -> Pending<'_, Profile> {
                Box::pin(self.profile(waiting))
            }
        }

        impl Device for On<$driver> {
            fn open(&self, waiting: Waiting) -> Pending<'_, ()> {
                Box::pin(async move { self.device_waiting(waiting).await.map(drop) })
            }

            fn devices(&self) -> usize {
                $devices(&self.choice)
            }

            fn has_kernel(&self, custom: &Custom) -> bool {
                <$driver as Driver>::has_kernel(custom)
            }

            fn run_call<'a>(
                &'a self,
                call: &'a Call<'_>,
                outputs: &'a mut [DataMut<'_>],
                waiting: Waiting,
            ) -> Pending<'a, ()> {
                Box::pin(async move {
                    self.device_waiting(waiting).await?;
                    self.backend().run_call_waiting(call, outputs, waiting).await
                })
            }

            fn upload<'a>(&'a self, operand: &'a Operand<'_>, waiting: Waiting) -> Pending<'a, Resident> {
                Box::pin(async move {
                    let device = self.device_waiting(waiting).await?;
                    Ok(Resident::new(Tensor::upload(&device, operand).await?))
                })
            }

            fn upload_parts<'a>(&'a self, parts: &'a [Operand<'_>], waiting: Waiting) -> Pending<'a, Resident> {
                Box::pin(async move {
                    let device = self.device_waiting(waiting).await?;
                    Ok(Resident::new(Tensor::upload_parts(&device, parts).await?))
                })
            }

            fn state<'a>(&'a self, from: Option<Data<'a>>, ty: TensorType, waiting: Waiting) -> Pending<'a, Resident> {
                Box::pin(async move {
                    let device = self.device_waiting(waiting).await?;
                    Ok(Resident::new(match from {
                        Some(data) => State::upload_to(&device, &Operand::new(data, ty.shape)?).await?,
                        None => State::zeros_on(&device, ty).await?,
                    }))
                })
            }

            fn run<'a>(&'a self, op: &'a Op, inputs: &'a [Resident], waiting: Waiting) -> Pending<'a, Vec<Resident>> {
                Box::pin(async move {
                    let device = self.device_waiting(waiting).await?;
                    let inputs = inputs.iter().map(Resident::of).collect::<Result<Vec<_>>>()?;
                    let results = kiln_device::bodies::run(&device, op, &inputs, waiting).await?;
                    Ok(results.into_iter().map(Resident::new).collect())
                })
            }

            fn runner(&self, waiting: Waiting) -> Pending<'_, Box<dyn Runner>> {
                Box::pin(async move {
                    let runner: Box<dyn Runner> = Box::new(GraphRunner::new(self.device_waiting(waiting).await?));
                    Ok(runner)
                })
            }

            fn planned_bytes<'a>(
                &'a self,
                graph: &'a Graph,
                wanted: &'a [TensorId],
                waiting: Waiting,
            ) -> Pending<'a, u64> {
                Box::pin(async move {
                    let device = self.device_waiting(waiting).await?;
                    Ok(Plan::<$driver>::new(graph, wanted, Driver::target(&device))?.computed_bytes())
                })
            }

            fn memory(&self, waiting: Waiting) -> Pending<'_, (Option<u64>, u64)> {
                Box::pin(async move {
                    let device = self.device_waiting(waiting).await?;
                    Ok((device.free_bytes()?, device.shared().pool.granularity()))
                })
            }

            fn memory_use(&self) -> Option<MemoryUse> {
                self.backend().opened().map(kiln_device::bodies::memory_use)
            }

            fn compile_ahead<'a>(
                &'a self,
                operations: &'a [(Op, &'a [TensorType])],
                waiting: Waiting,
            ) -> Pending<'a, ()> {
                Box::pin(async move {
                    let device = self.device_waiting(waiting).await?;
                    kiln_device::bodies::compile_supported(&device, operations).await
                })
            }

            fn resident(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Again> {
                let prepare = async {
                    let device = self.device_waiting(WAITING).await?;
                    let mut tensors = Vec::with_capacity(inputs.len());
                    for input in inputs {
                        tensors.push(Tensor::upload(&device, input).await?);
                    }
                    let operation = Prepared::new(&device, op, &tensors.iter().collect::<Vec<_>>()).await?;
                    Ok((device, operation))
                };
                let (device, mut operation) = wait(prepare)?;
                Ok(Box::new(move |times| {
                    wait(async {
                        for _ in 0..times {
                            operation.run_waiting(WAITING).await?;
                        }
                        device.wait(WAITING).await
                    })
                }))
            }

            fn copies(&self, op: &Op, inputs: &[Operand<'_>], copies: usize) -> Result<Again> {
                let prepare = async {
                    let device = self.device_waiting(WAITING).await?;
                    let mut tensors = Vec::with_capacity(inputs.len());
                    for input in inputs {
                        tensors.push(Tensor::upload(&device, input).await?);
                    }
                    let one = Prepared::new(&device, op, &tensors.iter().collect::<Vec<_>>()).await?;
                    let memory = one.results().first().map(|result| result.region().clone());
                    let (mut graph, mut wanted, mut given) = (Graph::new(), Vec::new(), HashMap::new());
                    for _ in 0..copies {
                        // With distinct ids, because equal operations would be merged into one.
                        let ids: Vec<TensorId> = inputs.iter().map(|input| graph.input(input.ty())).collect();
                        given.extend(ids.iter().zip(&tensors).map(|(&id, tensor)| (id, tensor.region().clone())));
                        let result = graph.record_all(*op, &ids)?.first().copied();
                        given.extend(result.zip(memory.clone()));
                        wanted.extend(result);
                    }
                    let plan = Plan::<$driver>::one_by_one(&graph, &wanted, Driver::target(&device))?;
                    let executable = Executable::new(&device, plan, &given).await?;
                    Ok((device, executable))
                };
                let (device, mut executable) = wait(prepare)?;
                Ok(Box::new(move |times| {
                    wait(async {
                        for _ in 0..times {
                            executable.run(Vec::new(), WAITING).await?;
                        }
                        device.wait(WAITING).await
                    })
                }))
            }

            fn reopen(&self, waiting: Waiting) -> Pending<'_, bool> {
                Box::pin(async move {
                    let lost = self.backend();
                    if lost.device_async().await.is_ok_and(|device| device.check_alive().is_ok()) {
                        // Another caller has opened a new device in the meantime.
                        return Ok(true);
                    }
                    let device = <$driver as Driver>::open_device(&self.choice, &self.options, waiting).await?;
                    *self.backend.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Backend::on(device));
                    Ok(true)
                })
            }
        }
    };
}
#[cfg(any(native_gpu, browser_gpu))]
devices_of!(kiln_wgpu::GpuDevice, |_: &_| 1);
#[cfg(native_gpu)]
devices_of!(kiln_device::Group<kiln_wgpu::GpuDevice>, Vec::len);
#[cfg(native_cuda)]
devices_of!(kiln_cuda::CudaDevice, |_: &_| 1);
#[cfg(native_cuda)]
devices_of!(kiln_device::Group<kiln_cuda::CudaDevice>, Vec::len);

/// The mode of blocking calls: the calling thread drives the device while it waits.
#[cfg(not(target_arch = "wasm32"))]
pub const WAITING: Waiting = Waiting::Here;
/// The mode of browsers: the browser drives the device.
#[cfg(target_arch = "wasm32")]
pub const WAITING: Waiting = Waiting::Elsewhere;

/// Waits for a future that was made with [`WAITING`].
///
/// # Errors
/// The errors of the future; [`Error::Unavailable`] if a browser would have to wait.
pub fn wait<T, E: From<Error>>(future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    #[cfg(not(target_arch = "wasm32"))]
    return kiln_device::waiting::block_on(future);
    #[cfg(target_arch = "wasm32")]
    kiln_device::waiting::poll_once(std::pin::pin!(future)).unwrap_or_else(|| {
        let reason = "a page cannot block; call the form that ends in `_async`".into();
        Err(Error::Unavailable { what: "waiting for a device".into(), reason }.into())
    })
}

/// Tensors of the scripted GPUs of tests.
#[cfg(test)]
mod script {
    use super::*;

    type Held = (kiln_ir::Shape, Buffer);

    impl OnDevice for Held {
        fn read(&self, _: Waiting) -> Pending<'_, Buffer> {
            Box::pin(std::future::ready(Ok(self.1.clone())))
        }

        fn view(&self, offset: u64, ty: TensorType, _: Waiting) -> Pending<'_, Resident> {
            let start = offset as usize;
            let view = || {
                let bytes = self.1.as_data().as_bytes();
                let data = Data::from_bytes(ty.dtype, &bytes[start..start + ty.bytes()])?;
                Ok(Resident::scripted(ty.shape, data.to_buffer()?))
            };
            Box::pin(std::future::ready(view()))
        }
    }

    /// A state of a scripted GPU.
    type Shared = std::sync::Mutex<Held>;

    impl OnDevice for Shared {
        fn read(&self, _: Waiting) -> Pending<'_, Buffer> {
            let elements = self.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
            Box::pin(std::future::ready(Ok(elements)))
        }

        fn view(&self, _: u64, _: TensorType, _: Waiting) -> Pending<'_, Resident> {
            Box::pin(std::future::ready(Err(Error::View { what: "state", reason: "its memory changes".into() })))
        }
    }

    impl Resident {
        pub(in crate::gpus) fn scripted_state(shape: kiln_ir::Shape, buffer: Buffer) -> Self {
            Self(Arc::new(Shared::new((shape, buffer))))
        }

        pub(in crate::gpus) fn scripted(shape: kiln_ir::Shape, buffer: Buffer) -> Self {
            Self(Arc::new((shape, buffer)))
        }

        pub(in crate::gpus) fn state_of_script(&self) -> Result<std::sync::MutexGuard<'_, Held>> {
            let state: &Shared = self.of()?;
            Ok(state.lock().unwrap_or_else(PoisonError::into_inner))
        }

        pub(in crate::gpus) fn of_script(&self) -> Result<&Held> {
            let tensor: &dyn Any = &*self.0;
            tensor.downcast_ref().ok_or(Error::ForeignTensor { index: 0 })
        }
    }
}
