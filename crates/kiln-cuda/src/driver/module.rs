//! Compiled modules, their kernels, and launches.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUjit_option, CUjitInputType, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterDimensions, CUlaunchConfig,
    CUlinkState, CUmodule, CUstream, CUtensorMap,
};
use kiln_ir::{Error, Result};
use kiln_ptx::{Argument, Launch, PtxKernel};

use super::Context;
use super::memory::Span;
use super::tensor_map::encode;

/// The code from which a module is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Image<'a> {
    /// The text, which the driver compiles.
    Ptx(&'a str),
    /// Machine code from [`compile`] for this kind of device and this driver.
    Cubin(&'a [u8]),
}

/// Bytes for the log of the driver's compiler.
const LOG_BYTES: usize = 16 << 10;

/// Buffers for the compiler's logs, and the options that refer to them.
struct Logs {
    error: Vec<u8>,
    info: Vec<u8>,
    options: [CUjit_option; 4],
    values: [*mut c_void; 4],
}

impl Logs {
    fn new() -> Box<Self> {
        use CUjit_option as Option;
        let mut logs = Box::new(Self {
            error: vec![0; LOG_BYTES],
            info: vec![0; LOG_BYTES],
            options: [
                Option::CU_JIT_ERROR_LOG_BUFFER,
                Option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                Option::CU_JIT_INFO_LOG_BUFFER,
                Option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            ],
            values: [std::ptr::null_mut(); 4],
        });
        // The API takes sizes as pointers.
        let size = std::ptr::without_provenance_mut(LOG_BYTES);
        logs.values = [logs.error.as_mut_ptr().cast(), size, logs.info.as_mut_ptr().cast(), size];
        logs
    }

    fn text(bytes: &[u8]) -> String {
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).trim().to_owned()
    }

    /// The error with the compiler's log.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Driver { what, device, message } => {
                let log = Self::text(&self.error);
                let message = if log.is_empty() { message } else { format!("{message}\n{log}") };
                Error::Driver { what, device, message }
            }
            error => error,
        }
    }
}

/// Compiles a text to machine code for the device of a context.
///
/// # Errors
/// [`Error::Driver`] with the compiler's log; [`Error::DeviceLost`], [`Error::OutOfMemory`].
pub(crate) fn compile(context: &Context, name: &str, text: &str) -> Result<Vec<u8>> {
    let what = format!("compiling {name}");
    let text = terminated(context, &what, text)?;
    let label = terminated(context, &what, name)?;
    let mut logs = Logs::new();
    let mut state: CUlinkState = std::ptr::null_mut();
    let (options, values) = (logs.options.as_mut_ptr(), logs.values.as_mut_ptr());
    // SAFETY: there are as many options and values as stated; the logs live until the linker is destroyed.
    context.run_waiting(&what, |call| unsafe { (call.cuLinkCreate_v2)(4, options, values, &mut state) })?;
    let bytes = text.as_bytes_with_nul();
    // SAFETY: the text ends with a zero and is only read.
    let added = context.run_waiting(&what, |call| unsafe {
        let (data, nothing) = (bytes.as_ptr().cast_mut().cast(), std::ptr::null_mut());
        let kind = CUjitInputType::CU_JIT_INPUT_PTX;
        (call.cuLinkAddData_v2)(state, kind, data, bytes.len(), label.as_ptr(), 0, nothing, std::ptr::null_mut())
    });
    let (mut cubin, mut size) = (std::ptr::null_mut::<c_void>(), 0);
    let linked = added.and_then(|()| {
        context.run_waiting(&what, |call| {
            // SAFETY: it writes an address and a number, to valid places.
            unsafe { (call.cuLinkComplete)(state, &mut cubin, &mut size) }
        })
    });
    // SAFETY: the code belongs to the linker, which is alive until the next call.
    let code = linked.map(|()| unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), size) }.to_vec());
    // SAFETY: the handle came from the driver and is destroyed once.
    context.give_back("destroying a linker", |call| unsafe { (call.cuLinkDestroy)(state) });
    let info = Logs::text(&logs.info);
    if !info.is_empty() {
        tracing::debug!("{what}: {info}");
    }
    code.map_err(|error| logs.explain(error))
}

/// A loaded module.
#[derive(Debug)]
struct Module {
    context: Arc<Context>,
    module: CUmodule,
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the handle came from the driver and is unloaded once.
        self.context.give_back("unloading a module", |call| unsafe { (call.cuModuleUnload)(self.module) });
    }
}

/// The time at which a launch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    /// After all earlier work has ended.
    Behind,
    /// As soon as the preceding launch allows it: its kernel waits for the remaining dependencies
    /// ([`reads_early`](kiln_ptx::Kernel::reads_early)). The same as `Behind` if the driver or the device does not
    /// support such launches.
    Beside,
}

/// A value that a launch passes.
enum Passed {
    Word(u64),
    Tensor(CUtensorMap),
}

impl Passed {
    fn address(&mut self) -> *mut c_void {
        match self {
            Self::Word(word) => std::ptr::from_mut(word).cast(),
            Self::Tensor(map) => std::ptr::from_mut(map).cast(),
        }
    }
}

/// A kernel that is ready to launch.
#[derive(Debug)]
pub(crate) struct Function {
    module: Module,
    function: CUfunction,
    kernel: PtxKernel,
    /// Maximum blocks of a launch along x: for a persistent kernel as many as the device runs at once.
    most_blocks: u32,
    /// The name of a launch in errors.
    launching: String,
}

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for Function {}
// SAFETY: as above; the driver synchronizes access to the state of a function.
unsafe impl Sync for Function {}

impl Function {
    /// Loads a kernel from its compiled code.
    ///
    /// # Errors
    /// [`Error::Driver`] with the driver's message; [`Error::DeviceLost`], [`Error::OutOfMemory`].
    pub(crate) fn load(context: &Arc<Context>, kernel: PtxKernel, image: Image<'_>) -> Result<Self> {
        let what = format!("loading {}", kernel.name());
        let entry = terminated(context, &what, kernel.name())?;
        let code = match image {
            Image::Ptx(text) => terminated(context, &what, text)?.into_bytes_with_nul(),
            Image::Cubin(code) => code.to_vec(),
        };
        let mut logs = Logs::new();
        let mut module = std::ptr::null_mut();
        let (options, values) = (logs.options.as_mut_ptr(), logs.values.as_mut_ptr());
        // SAFETY: there are as many options and values as stated, and the logs outlive the call. A text ends with a
        // zero; machine code came from the driver's compiler, or from a file whose checksum is valid.
        let loaded = context.run_waiting(&what, |call| unsafe {
            (call.cuModuleLoadDataEx)(&mut module, code.as_ptr().cast(), 4, options, values)
        });
        loaded.map_err(|error| logs.explain(error))?;
        let module = Module { context: context.clone(), module };
        let mut function = std::ptr::null_mut();
        // SAFETY: the name ends with a zero; it writes one handle, to a valid place.
        let found = context.run_waiting(&what, |call| unsafe {
            (call.cuModuleGetFunction)(&mut function, module.module, entry.as_ptr())
        });
        found?;
        let shared = kernel.dynamic_shared_bytes();
        if shared > 0 {
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the driver has just returned the function; a size beyond that of the device is refused.
            context.run_waiting(&what, |call| unsafe { (call.cuFuncSetAttribute)(function, most, shared as c_int) })?;
        }
        let launching = format!("launching {}", kernel.name());
        let mut function = Self { module, function, kernel, most_blocks: u32::MAX, launching };
        if function.kernel.blocks_stay() {
            function.most_blocks = function.blocks_at_once()?.unwrap_or(u32::MAX);
        }
        Ok(function)
    }

    /// The number of its blocks that the device runs at once, if the driver reports it.
    fn blocks_at_once(&self) -> Result<Option<u32>> {
        let (context, cluster) = (&self.module.context, self.kernel.cluster());
        let Some(max_active_clusters) = context.max_active_clusters() else { return Ok(None) };
        let [x, y, z] = self.kernel.block();
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { clusterDim: ClusterDimensions { x: cluster, y: 1, z: 1 } },
        };
        let config = CUlaunchConfig {
            gridDimX: cluster,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: x,
            blockDimY: y,
            blockDimZ: z,
            sharedMemBytes: self.kernel.dynamic_shared_bytes(),
            hStream: context.stream(),
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut clusters = 0;
        let what = "querying the occupancy";
        // SAFETY: it writes one number, to a valid place, and reads a configuration whose attribute outlives the call.
        context.run(what, |_| unsafe { max_active_clusters(&mut clusters, self.function, &config) })?;
        let clusters = u32::try_from(clusters).unwrap_or(0);
        Ok(Some(clusters.saturating_mul(cluster)).filter(|&most| most > 0))
    }

    pub(crate) fn kernel(&self) -> &PtxKernel {
        &self.kernel
    }

    /// The blocks of a launch: for a persistent kernel, along x at most as many as the device runs at once.
    pub(crate) fn grid(&self, launch: &Launch) -> [u32; 3] {
        let [x, y, z] = launch.grid;
        [x.min(self.most_blocks), y, z]
    }

    /// The number of its blocks that a multiprocessor runs at once.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) fn resident_blocks(&self) -> Result<u32> {
        let threads = self.kernel.block().iter().product::<u32>() as c_int;
        let shared = self.kernel.dynamic_shared_bytes() as usize;
        let mut blocks = 0;
        // SAFETY: it writes one number, to a valid place.
        self.module.context.run("querying the occupancy", |call| unsafe {
            (call.cuOccupancyMaxActiveBlocksPerMultiprocessor)(&mut blocks, self.function, threads, shared)
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Submits a launch after all earlier work. Omits a launch without blocks.
    ///
    /// # Errors
    /// [`Error::Driver`] if the arguments do not match the kernel's parameters, or a buffer is misaligned or on another
    /// device and not mapped for this one; [`Error::DeviceLost`].
    pub(crate) fn launch(&self, launch: &Launch, buffers: &[Span<'_>], begins: Begins) -> Result<()> {
        self.launch_on(self.module.context.stream(), launch, buffers, begins)
    }

    pub(super) fn launch_on(
        &self,
        stream: CUstream,
        launch: &Launch,
        buffers: &[Span<'_>],
        begins: Begins,
    ) -> Result<()> {
        let context = &self.module.context;
        let refused = |message: String| Error::Driver {
            what: self.launching.clone(),
            device: context.name().to_owned(),
            message,
        };
        if !launch.fits(&self.kernel) {
            let (given, taken) = (&launch.arguments, self.kernel.parameters());
            return Err(refused(format!("the arguments are {given:?}, the kernel's parameters {taken:?}")));
        }
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let find = |number: usize| {
            let buffer = buffers.get(number).ok_or_else(|| refused(format!("buffer {number} is missing")))?;
            if !buffer.is_open_to(context) || !buffer.address().is_multiple_of(16) {
                return Err(refused(format!("buffer {number} is of another device or not aligned to 16 bytes")));
            }
            Ok(buffer)
        };
        let mut values: Vec<Passed> = Vec::with_capacity(launch.arguments.len());
        for argument in &launch.arguments {
            values.push(match argument {
                Argument::Buffer(number) => Passed::Word(find(*number)?.address()),
                // The lower bytes are read, which come first on every host that CUDA supports.
                Argument::U32(value) => Passed::Word((*value).into()),
                Argument::F32(value) => Passed::Word(value.to_bits().into()),
                Argument::Tensor(map) => Passed::Tensor(encode(context, map, find(map.buffer)?)?),
                other => return Err(refused(format!("the argument {other:?} is not supported"))),
            });
        }
        let mut arguments: Vec<*mut c_void> = values.iter_mut().map(Passed::address).collect();
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (self.grid(launch), self.kernel.block());
        let shared = self.kernel.dynamic_shared_bytes();
        let (function, arguments, nothing) = (self.function, arguments.as_mut_ptr(), std::ptr::null_mut());
        if let (Begins::Beside, Some(launch_kernel_ex)) = (begins, context.launch_kernel_ex()) {
            let mut attribute = CUlaunchAttribute {
                id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let config = CUlaunchConfig {
                gridDimX: grid_x,
                gridDimY: grid_y,
                gridDimZ: grid_z,
                blockDimX: block_x,
                blockDimY: block_y,
                blockDimZ: block_z,
                sharedMemBytes: shared,
                hStream: stream,
                attrs: &mut attribute,
                numAttrs: 1,
            };
            // SAFETY: as below; there is one attribute, which outlives the call. No preceding launch writes what the
            // kernel reads before it waits: the caller that passes `Beside` has checked that.
            return context
                .run(&self.launching, |_| unsafe { launch_kernel_ex(&config, function, arguments, nothing) });
        }
        // SAFETY: the arguments have the number and types of the kernel's parameters, and the call copies them. Kernels
        // guard every access by the extents that they receive, which come from checked shapes, and the memory at the
        // addresses was allocated for these shapes. It is held as long as the launch can run, or reused only by later
        // work on the same stream; host memory is held until the launch has been waited for, and memory that is mapped
        // for several devices waits for all of them when it is dropped.
        context.run(&self.launching, |call| unsafe {
            (call.cuLaunchKernel)(
                function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, nothing,
            )
        })
    }
}

fn terminated(context: &Context, what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Driver {
        what: what.to_owned(),
        device: context.name().to_owned(),
        message: "the text contains a zero byte".into(),
    })
}
