//! cuBLAS: products of matrices.
#![allow(unsafe_code)] // calls of cuBLAS

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::cublas::CudaBlas;
use cudarc::cublas::result::gemm_ex;
use cudarc::cublas::sys::{
    self, cublasComputeType_t as Compute, cublasGemmAlgo_t as Algorithm, cublasOperation_t as Operation,
    cudaDataType_t as Type,
};
use cudarc::driver::{self, CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use half::{bf16, f16};

use crate::Result;
use crate::case::{Case, Data, Numbers};
use crate::contender::{Contender, Ready};

pub(crate) struct Cublas {
    stream: Arc<CudaStream>,
    blas: CudaBlas,
}

impl Cublas {
    /// On the device with this number, where its library is found.
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        // SAFETY: both load a library and let go of it.
        if !unsafe { driver::sys::is_culib_present() && sys::is_culib_present() } {
            return Err("its library was not found: add its folder to LD_LIBRARY_PATH".into());
        }
        let context = CudaContext::new(ordinal as usize)?;
        let stream = context.new_stream()?;
        Ok(Self { blas: CudaBlas::new(stream.clone())?, stream })
    }
}

impl Contender for Cublas {
    fn name(&self) -> &'static str {
        "cuBLAS"
    }

    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>> {
        let Case::Product { numbers, m, k, n } = *case else { return Ok(None) };
        let compute = match numbers {
            Numbers::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        Ok(Some(Box::new(Product {
            cublas: self,
            extents: [m, k, n].map(|extent| extent as c_int),
            compute,
            a: Matrix::stored(&self.stream, numbers, &data.floats[0])?,
            b: Matrix::stored(&self.stream, numbers, &data.floats[1])?,
            c: self.stream.alloc_zeros(m * n)?,
        })))
    }

    fn first(&self) -> Result<()> {
        Err("its start is not measured".into())
    }
}

/// A matrix on the device.
pub(crate) enum Matrix {
    F16(CudaSlice<f16>),
    Bf16(CudaSlice<bf16>),
    F32(CudaSlice<f32>),
}

impl Matrix {
    /// With these elements, in the type of the numbers.
    pub(crate) fn stored(stream: &Arc<CudaStream>, numbers: Numbers, x: &[f32]) -> Result<Self> {
        Ok(match numbers {
            Numbers::F16 => {
                let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
                Self::F16(stream.clone_htod(&halves)?)
            }
            Numbers::Bf16 => {
                let halves: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
                Self::Bf16(stream.clone_htod(&halves)?)
            }
            Numbers::F32 | Numbers::Tf32x3 | Numbers::Tf32 => Self::F32(stream.clone_htod(x)?),
        })
    }

    /// Its address, and the type of its elements.
    pub(crate) fn pointer(&self, stream: &CudaStream) -> (*const c_void, Type) {
        let (address, ty) = match self {
            Self::F16(slice) => (slice.device_ptr(stream).0, Type::CUDA_R_16F),
            Self::Bf16(slice) => (slice.device_ptr(stream).0, Type::CUDA_R_16BF),
            Self::F32(slice) => (slice.device_ptr(stream).0, Type::CUDA_R_32F),
        };
        (address as *const c_void, ty)
    }
}

struct Product<'a> {
    cublas: &'a Cublas,
    /// m, k and n.
    extents: [c_int; 3],
    compute: Compute,
    a: Matrix,
    b: Matrix,
    c: CudaSlice<f32>,
}

impl Ready for Product<'_> {
    fn run(&mut self) -> Result<()> {
        let Cublas { stream, blas } = self.cublas;
        let [m, k, n] = self.extents;
        let ((a, ty), (b, _)) = (self.a.pointer(stream), self.b.pointer(stream));
        let c = self.c.device_ptr_mut(stream).0 as *mut c_void;
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero) = (std::ptr::from_ref(&one).cast(), std::ptr::from_ref(&zero).cast());
        // A row-major matrix is the transpose for cuBLAS: Cᵀ = B Aᵀ. SAFETY: the matrices are on the device of the
        // handle with these extents, and outlive the product: it is waited for before they are dropped, on the stream
        // of their memory.
        unsafe {
            gemm_ex(
                *blas.handle(),
                Operation::CUBLAS_OP_T,
                Operation::CUBLAS_OP_N,
                n,
                m,
                k,
                one,
                b,
                ty,
                k,
                a,
                ty,
                k,
                zero,
                c,
                Type::CUDA_R_32F,
                n,
                self.compute,
                Algorithm::CUBLAS_GEMM_DEFAULT,
            )?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(self.cublas.stream.synchronize()?)
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.cublas.stream.clone_dtoh(&self.c)?)
    }
}
