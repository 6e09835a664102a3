//! cuBLASLt: products of matrices, by the fastest of the algorithms that its heuristics name first.
#![allow(unsafe_code)] // calls of cuBLASLt

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

use cudarc::cublaslt::result;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtHandle_t, cublasLtMatmulAlgo_t as Algorithm, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulHeuristicResult_t as Found, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as Wish, cublasLtMatrixLayout_t, cudaDataType_t as Type,
};
use cudarc::driver::{self, CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};

use crate::Result;
use crate::case::{Case, Data, Numbers};
use crate::contender::{Contender, Ready};
use crate::cublas::Matrix;

/// Algorithms that are tried.
const TRIED: usize = 8;
/// Runs of each contender; the shortest counts.
const RUNS: usize = 5;
/// Bytes that an algorithm may use beside the matrices: what cuBLAS takes on Hopper.
const WORKSPACE: usize = 32 << 20;

pub(crate) struct CublasLt {
    stream: Arc<CudaStream>,
    handle: Owned<cublasLtHandle_t>,
    workspace: CudaSlice<u8>,
}

/// An object of the library, and the function that destroys it.
struct Owned<T: Copy>(T, unsafe fn(T) -> std::result::Result<(), result::CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nothing uses it any more. An error here has no remedy.
        let _ = unsafe { (self.1)(self.0) };
    }
}

impl CublasLt {
    /// On the device with this number, where its library is found.
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        // SAFETY: both load a library and let go of it.
        if !unsafe { driver::sys::is_culib_present() && sys::is_culib_present() } {
            return Err("its library was not found: add its folder to LD_LIBRARY_PATH".into());
        }
        let stream = CudaContext::new(ordinal as usize)?.new_stream()?;
        let handle = Owned(result::create_handle()?, result::destroy_handle);
        Ok(Self { workspace: stream.alloc_zeros(WORKSPACE)?, stream, handle })
    }

    /// A matrix of this many rows, stored column by column.
    fn layout(ty: Type, rows: usize, columns: usize) -> Result<Owned<cublasLtMatrixLayout_t>> {
        let layout = result::create_matrix_layout(ty, rows as u64, columns as u64, rows as i64)?;
        Ok(Owned(layout, result::destroy_matrix_layout))
    }
}

impl Contender for CublasLt {
    fn name(&self) -> &'static str {
        "cuBLASLt"
    }

    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>> {
        let Case::Product { numbers, m, k, n } = *case else { return Ok(None) };
        let compute = match numbers {
            Numbers::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        let operation: Owned<cublasLtMatmulDesc_t> =
            Owned(result::create_matmul_desc(compute, Type::CUDA_R_32F)?, result::destroy_matmul_desc);
        // A row-major matrix is the transpose for cuBLASLt: Cᵀ = B Aᵀ. 1 is CUBLAS_OP_T.
        let transposed: c_int = 1;
        // SAFETY: the attribute is of this size.
        unsafe {
            let from = std::ptr::from_ref(&transposed).cast();
            let bytes = size_of::<c_int>();
            result::set_matmul_desc_attribute(operation.0, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, from, bytes)?;
        }
        let input = match numbers {
            Numbers::F16 => Type::CUDA_R_16F,
            Numbers::Bf16 => Type::CUDA_R_16BF,
            Numbers::F32 | Numbers::Tf32x3 | Numbers::Tf32 => Type::CUDA_R_32F,
        };
        let layouts = [Self::layout(input, k, n)?, Self::layout(input, k, m)?, Self::layout(Type::CUDA_R_32F, n, m)?];
        let mut product = Product {
            lt: self,
            a: Matrix::stored(&self.stream, numbers, &data.floats[0])?,
            b: Matrix::stored(&self.stream, numbers, &data.floats[1])?,
            c: self.stream.alloc_zeros(m * n)?,
            operation,
            layouts,
            algorithm: Algorithm { data: [0; 8] },
        };
        product.choose()?;
        Ok(Some(Box::new(product)))
    }

    fn first(&self) -> Result<()> {
        Err("its start is not measured".into())
    }
}

struct Product<'a> {
    lt: &'a CublasLt,
    operation: Owned<cublasLtMatmulDesc_t>,
    /// The layouts of B, A and C, as the library sees them.
    layouts: [Owned<cublasLtMatrixLayout_t>; 3],
    algorithm: Algorithm,
    a: Matrix,
    b: Matrix,
    c: CudaSlice<f32>,
}

impl Product<'_> {
    /// Takes the fastest of the first algorithms.
    fn choose(&mut self) -> Result<()> {
        let wishes: Owned<cublasLtMatmulPreference_t> =
            Owned(result::create_matmul_pref()?, result::destroy_matmul_pref);
        // SAFETY: the structure has only numbers, for which every pattern of bits is valid.
        let mut found: [Found; TRIED] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let [b, a, c] = self.layouts.each_ref().map(|layout| layout.0);
        // SAFETY: the attribute is of this size; all objects that the call names exist, and the array has room for the
        // results.
        unsafe {
            let from = std::ptr::from_ref(&WORKSPACE).cast();
            let wish = Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(wishes.0, wish, from, size_of::<usize>())?;
            let (handle, operation, room) = (self.lt.handle.0, self.operation.0, found.as_mut_ptr());
            let asked = TRIED as c_int;
            sys::cublasLtMatmulAlgoGetHeuristic(handle, operation, b, a, c, c, wishes.0, asked, room, &mut count)
                .result()?;
        }
        let mut best = None;
        for algorithm in found.iter().take(count as usize).filter(|found| found.state.result().is_ok()) {
            self.algorithm = algorithm.algo;
            let mut least = f64::INFINITY;
            for _ in 0..RUNS {
                let start = Instant::now();
                self.run()?;
                self.wait()?;
                least = least.min(start.elapsed().as_secs_f64());
            }
            if best.is_none_or(|(seconds, _)| least < seconds) {
                best = Some((least, algorithm.algo));
            }
        }
        self.algorithm = best.ok_or("no algorithm")?.1;
        Ok(())
    }
}

impl Ready for Product<'_> {
    fn run(&mut self) -> Result<()> {
        let CublasLt { stream, handle, workspace } = self.lt;
        let (a, b) = (self.a.pointer(stream).0, self.b.pointer(stream).0);
        let c = self.c.device_ptr_mut(stream).0 as *mut c_void;
        let [of_b, of_a, of_c] = self.layouts.each_ref().map(|layout| layout.0);
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero) = (std::ptr::from_ref(&one).cast(), std::ptr::from_ref(&zero).cast());
        let room = workspace.device_ptr(stream).0 as *mut c_void;
        // SAFETY: the matrices are on the device of the stream with these extents, and outlive the product: it is
        // waited for before they are dropped, on the stream of their memory. So does the workspace, which runs share
        // one after another.
        unsafe {
            let (operation, stream) = (self.operation.0, stream.cu_stream().cast());
            let algorithm = &self.algorithm;
            result::matmul(
                handle.0, operation, one, zero, b, of_b, a, of_a, c, of_c, c, of_c, algorithm, room, WORKSPACE, stream,
            )?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(self.lt.stream.synchronize()?)
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.lt.stream.clone_dtoh(&self.c)?)
    }
}
