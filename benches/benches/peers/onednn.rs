//! oneDNN through its C interface, opened at run time: a convolution as a framework would set it up once and run often.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Handle = *mut c_void;
type Status = c_int;

// The values of the enumerations in `dnnl_types.h` of oneDNN 3.
const CPU: c_int = 1;
const IN_ORDER: c_int = 1;
const F32: c_int = 3;
const ANY: c_int = 1;
const FORWARD_INFERENCE: c_int = 96;
const CONVOLUTION_AUTO: c_int = 3;
const QUERY_WEIGHTS: c_int = 131;
const SRC: c_int = 1;
const DST: c_int = 17;
const WEIGHTS: c_int = 33;
/// The most dimensions that a description has.
const DIMS: usize = 12;

#[repr(C)]
struct Argument {
    which: c_int,
    memory: Handle,
}

type Dims = [i64; DIMS];
type CreateEngine = unsafe extern "C" fn(*mut Handle, c_int, usize) -> Status;
type CreateStream = unsafe extern "C" fn(*mut Handle, Handle, c_int) -> Status;
type DescribeStrided = unsafe extern "C" fn(*mut Handle, c_int, *const i64, c_int, *const i64) -> Status;
type DescribeTagged = unsafe extern "C" fn(*mut Handle, c_int, *const i64, c_int, c_int) -> Status;
type CreateMemory = unsafe extern "C" fn(*mut Handle, Handle, Handle, *mut c_void) -> Status;
type DescribeConvolution = unsafe extern "C" fn(
    *mut Handle,
    Handle,
    c_int,
    c_int,
    Handle,
    Handle,
    Handle,
    Handle,
    *const i64,
    *const i64,
    *const i64,
    *const i64,
    Handle,
) -> Status;
type DescribeReorder = unsafe extern "C" fn(*mut Handle, Handle, Handle, Handle, Handle, Handle) -> Status;
type CreatePrimitive = unsafe extern "C" fn(*mut Handle, Handle) -> Status;
type Query = unsafe extern "C" fn(Handle, c_int, c_int) -> Handle;
type Size = unsafe extern "C" fn(Handle) -> usize;
type Execute = unsafe extern "C" fn(Handle, Handle, c_int, *const Argument) -> Status;
type Wait = unsafe extern "C" fn(Handle) -> Status;
type SetData = unsafe extern "C" fn(Handle, *mut c_void) -> Status;

/// The library with an engine and a stream. It and all objects made with it last until the process ends.
pub(crate) struct OneDnn {
    engine: Handle,
    stream: Handle,
    strided: DescribeStrided,
    tagged: DescribeTagged,
    memory: CreateMemory,
    convolution: DescribeConvolution,
    reorder: DescribeReorder,
    primitive: CreatePrimitive,
    query: Query,
    size: Size,
    execute: Execute,
    wait: Wait,
    set_data: SetData,
}

/// The layout of images.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layout {
    /// Channel by channel, the layout of kiln.
    Planes,
    /// The channels of a pixel side by side, the fastest layout of oneDNN.
    Pixels,
}

/// A convolution of one image with same padding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub c_in: usize,
    pub c_out: usize,
    pub extent: usize,
    pub kernel: usize,
    pub stride: usize,
}

/// A convolution that is set up: its weights are in the layout that the library chose.
pub(crate) struct Convolution<'a> {
    library: &'a OneDnn,
    primitive: Handle,
    src: Handle,
    weights: Handle,
    dst: Handle,
    inputs: usize,
    outputs: usize,
    /// The memory that `weights` points to.
    _packed: Vec<f32>,
}

fn done(status: Status, what: &str) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("oneDNN: {what} ended with status {status}")) }
}

impl OneDnn {
    /// Opens the library. Its threads are those of OpenMP: the process must have `OMP_NUM_THREADS` set before it starts.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the library runs no code at load time that has preconditions.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
        let library = Box::leak(Box::new(library));
        // SAFETY: the types are those of the C header of oneDNN 3.
        unsafe {
            macro_rules! find {
                ($name:literal) => {
                    *library.get(concat!($name, "\0").as_bytes()).map_err(|e| e.to_string())?
                };
            }
            let create_engine: CreateEngine = find!("dnnl_engine_create");
            let create_stream: CreateStream = find!("dnnl_stream_create");
            let (mut engine, mut stream) = (null_mut(), null_mut());
            done(create_engine(&mut engine, CPU, 0), "an engine")?;
            done(create_stream(&mut stream, engine, IN_ORDER), "a stream")?;
            Ok(Self {
                engine,
                stream,
                strided: find!("dnnl_memory_desc_create_with_strides"),
                tagged: find!("dnnl_memory_desc_create_with_tag"),
                memory: find!("dnnl_memory_create"),
                convolution: find!("dnnl_convolution_forward_primitive_desc_create"),
                reorder: find!("dnnl_reorder_primitive_desc_create"),
                primitive: find!("dnnl_primitive_create"),
                query: find!("dnnl_primitive_desc_query_md"),
                size: find!("dnnl_memory_desc_get_size"),
                execute: find!("dnnl_primitive_execute"),
                wait: find!("dnnl_stream_wait"),
                set_data: find!("dnnl_memory_set_data_handle"),
            })
        }
    }

    /// Sets a convolution up for these weights, `c_out * c_in * kernel * kernel`.
    pub(crate) fn convolution(&self, s: Shape, layout: Layout, weights: &[f32]) -> Result<Convolution<'_>, String> {
        let along = s.extent.div_ceil(s.stride);
        assert_eq!(weights.len(), s.c_out * s.c_in * s.kernel * s.kernel);
        let missing = ((along - 1) * s.stride + s.kernel).saturating_sub(s.extent);
        let (before, after) = (missing / 2, missing - missing / 2);
        // SAFETY: every description lives as long as it is used; memories point to the operands of `run` or to vectors
        // that the result keeps, whose sizes the library reported.
        unsafe {
            let src_md = self.picture(s.c_in, s.extent, layout)?;
            let dst_md = self.picture(s.c_out, along, layout)?;
            let dims = padded(&[s.c_out, s.c_in, s.kernel, s.kernel]);
            let plain = padded(&[s.c_in * s.kernel * s.kernel, s.kernel * s.kernel, s.kernel, 1]);
            let (mut any, mut plain_md) = (null_mut(), null_mut());
            done((self.tagged)(&mut any, 4, dims.as_ptr(), F32, ANY), "weights")?;
            done((self.strided)(&mut plain_md, 4, dims.as_ptr(), F32, plain.as_ptr()), "weights")?;
            let (stride, dense) = (padded(&[s.stride, s.stride]), padded(&[0, 0]));
            let (left, right) = (padded(&[before, before]), padded(&[after, after]));
            let mut description = null_mut();
            let status = (self.convolution)(
                &mut description,
                self.engine,
                FORWARD_INFERENCE,
                CONVOLUTION_AUTO,
                src_md,
                any,
                null_mut(),
                dst_md,
                stride.as_ptr(),
                dense.as_ptr(),
                left.as_ptr(),
                right.as_ptr(),
                null_mut(),
            );
            done(status, "a convolution")?;
            let mut primitive = null_mut();
            done((self.primitive)(&mut primitive, description), "a convolution")?;
            // Reorders the weights once, into the chosen layout.
            let chosen = (self.query)(description, QUERY_WEIGHTS, 0);
            let mut packed = vec![0.0f32; (self.size)(chosen).div_ceil(4)];
            let from = self.memory_of(plain_md, weights.as_ptr().cast_mut())?;
            let weights = self.memory_of(chosen, packed.as_mut_ptr())?;
            let (mut reorder_pd, mut reorder) = (null_mut(), null_mut());
            let status = (self.reorder)(&mut reorder_pd, plain_md, self.engine, chosen, self.engine, null_mut());
            done(status, "an order of weights")?;
            done((self.primitive)(&mut reorder, reorder_pd), "an order of weights")?;
            self.run(reorder, &[(SRC, from), (DST, weights)])?;
            let (src, dst) = (self.memory_of(src_md, null_mut())?, self.memory_of(dst_md, null_mut())?);
            let (inputs, outputs) = (s.c_in * s.extent * s.extent, s.c_out * along * along);
            Ok(Convolution { library: self, primitive, src, weights, dst, inputs, outputs, _packed: packed })
        }
    }

    /// Describes one image.
    fn picture(&self, channels: usize, extent: usize, layout: Layout) -> Result<Handle, String> {
        let steps = match layout {
            Layout::Planes => [channels * extent * extent, extent * extent, extent, 1],
            Layout::Pixels => [channels * extent * extent, 1, extent * channels, channels],
        };
        let (dims, steps) = (padded(&[1, channels, extent, extent]), padded(&steps));
        let mut description = null_mut();
        // SAFETY: four dimensions are described.
        let status = unsafe { (self.strided)(&mut description, 4, dims.as_ptr(), F32, steps.as_ptr()) };
        done(status, "a picture").map(|()| description)
    }

    fn memory_of(&self, description: Handle, data: *mut f32) -> Result<Handle, String> {
        let mut memory = null_mut();
        // SAFETY: the description is one of this library's; the data are only touched when a primitive runs.
        let status = unsafe { (self.memory)(&mut memory, description, self.engine, data.cast()) };
        done(status, "a memory").map(|()| memory)
    }

    /// # Safety
    /// The memories fit the primitive and point to what they describe.
    unsafe fn run(&self, primitive: Handle, arguments: &[(c_int, Handle)]) -> Result<(), String> {
        let mut list = [const { Argument { which: 0, memory: null_mut() } }; 4];
        for (slot, &(which, memory)) in list.iter_mut().zip(arguments) {
            *slot = Argument { which, memory };
        }
        // SAFETY: the caller's contract.
        unsafe {
            done((self.execute)(primitive, self.stream, arguments.len() as c_int, list.as_ptr()), "a run")?;
            done((self.wait)(self.stream), "a wait")
        }
    }
}

impl Convolution<'_> {
    /// Convolves an image.
    pub(crate) fn run(&self, picture: &[f32], out: &mut [f32]) -> Result<(), String> {
        assert!(picture.len() >= self.inputs && out.len() >= self.outputs);
        // SAFETY: the slices have the lengths that were described; the library only reads the image.
        unsafe {
            done((self.library.set_data)(self.src, picture.as_ptr().cast_mut().cast()), "a picture")?;
            done((self.library.set_data)(self.dst, out.as_mut_ptr().cast()), "a picture")?;
            self.library.run(self.primitive, &[(SRC, self.src), (WEIGHTS, self.weights), (DST, self.dst)])
        }
    }
}

/// Extents or strides as the interface takes them.
fn padded(dims: &[usize]) -> Dims {
    let mut all = [0; DIMS];
    all.iter_mut().zip(dims).for_each(|(to, &from)| *to = from as i64);
    all
}
