//! C libraries with the BLAS interface, opened at run time, and Rust peers that take raw pointers: with [`super::onednn`]
//! everything unsafe of the benches.

use std::ffi::{c_char, c_int, c_longlong};
use std::mem::MaybeUninit;
use std::path::Path;

use super::Product;

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

/// Transposes a `rows * columns` matrix: rows, columns, the matrix, the result.
pub(crate) trait Transposition: Fn(usize, usize, &[f32], &mut [f32]) {}

impl<F: Fn(usize, usize, &[f32], &mut [f32])> Transposition for F {}

/// A vector function of two operands: both, and the result.
pub(crate) trait Binary: Fn(&[f32], &[f32], &mut [f32]) {}

impl<F: Fn(&[f32], &[f32], &mut [f32])> Binary for F {}

type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);
type Sgemv =
    unsafe extern "C" fn(c_int, c_int, c_int, c_int, f32, *const f32, c_int, *const f32, c_int, f32, *mut f32, c_int);
type Sdot = unsafe extern "C" fn(c_int, *const f32, c_int, *const f32, c_int) -> f32;
type Reduce = unsafe extern "C" fn(c_int, *const f32, c_int) -> f32;
type Index = unsafe extern "C" fn(c_int, *const f32, c_int) -> usize;
type CblasTranspose = unsafe extern "C" fn(c_int, c_int, c_int, c_int, f32, *const f32, c_int, *mut f32, c_int);
type MklTranspose = unsafe extern "C" fn(c_char, c_char, usize, usize, f32, *const f32, usize, *mut f32, usize);
type Vml1 = unsafe extern "C" fn(c_int, *const f32, *mut f32, c_longlong);
type Vml2 = unsafe extern "C" fn(c_int, *const f32, *const f32, *mut f32, c_longlong);

/// The accuracy of Intel's vector functions: HA is at most 1 ULP, LA at most 4.
pub(crate) const HIGH_ACCURACY: c_longlong = 2;

/// A C library with the BLAS interface (and, in Intel's, vector functions).
pub(crate) struct Library {
    pub name: &'static str,
    library: libloading::Library,
    sgemm: Sgemm,
    sgemv: Sgemv,
    sdot: Sdot,
    sasum: Reduce,
    snrm2: Reduce,
    isamax: Index,
    ssum: Option<Reduce>,
}

/// Shortens `n` to the integer of the interface.
fn int(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

impl Library {
    /// Opens a library and limits its threads.
    pub(crate) fn open(name: &'static str, path: &Path, threads: usize) -> Result<Self, String> {
        // SAFETY: these libraries run no code at load time that has preconditions. Symbols are made global because
        // MKL's interface layer resolves its other layers through them.
        #[cfg(unix)]
        let library = unsafe {
            use libloading::os::unix;
            unix::Library::open(Some(path), unix::RTLD_LAZY | unix::RTLD_GLOBAL).map(libloading::Library::from)
        };
        #[cfg(not(unix))]
        // SAFETY: as above.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|e| e.to_string())?;
        // SAFETY: the types are those of the C headers of CBLAS with 32-bit integers, which both libraries export
        // under these names.
        unsafe {
            let sgemm = find(&library, "cblas_sgemm")?;
            let sgemv = find(&library, "cblas_sgemv")?;
            let sdot = find(&library, "cblas_sdot")?;
            let sasum = find(&library, "cblas_sasum")?;
            let snrm2 = find(&library, "cblas_snrm2")?;
            let isamax = find(&library, "cblas_isamax")?;
            let ssum = find(&library, "cblas_ssum").ok();
            for setter in ["MKL_Set_Num_Threads", "openblas_set_num_threads"] {
                if let Ok(set) = find::<unsafe extern "C" fn(c_int)>(&library, setter) {
                    set(int(threads));
                }
            }
            Ok(Self { name, library, sgemm, sgemv, sdot, sasum, snrm2, isamax, ssum })
        }
    }

    /// `C = A B`.
    pub(crate) fn sgemm(&self, p: Product, a: &[f32], b: &[f32], c: &mut [f32]) {
        self.scaled_sgemm(p, 1.0, a, b, c);
    }

    /// `C = scale A B`.
    pub(crate) fn scaled_sgemm(&self, p: Product, scale: f32, a: &[f32], b: &[f32], c: &mut [f32]) {
        let Product { m, k, n, bt } = p;
        assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
        let (trans_b, ldb) = if bt { (TRANS, k) } else { (NO_TRANS, n) };
        // SAFETY: the extents were checked against the slices.
        unsafe {
            (self.sgemm)(
                ROW_MAJOR,
                NO_TRANS,
                trans_b,
                int(m),
                int(n),
                int(k),
                scale,
                a.as_ptr(),
                int(k),
                b.as_ptr(),
                int(ldb),
                0.0,
                c.as_mut_ptr(),
                int(n),
            );
        }
    }

    /// `y = x B` for a vector `x`, by the matrix-vector routine that a careful user would take.
    pub(crate) fn sgemv(&self, p: Product, x: &[f32], b: &[f32], y: &mut [f32]) {
        let Product { m, k, n, bt } = p;
        assert!(m == 1 && x.len() >= k && b.len() >= k * n && y.len() >= n);
        let (trans, rows, columns) = if bt { (NO_TRANS, n, k) } else { (TRANS, k, n) };
        // SAFETY: the extents were checked against the slices.
        unsafe {
            (self.sgemv)(
                ROW_MAJOR,
                trans,
                int(rows),
                int(columns),
                1.0,
                b.as_ptr(),
                int(columns),
                x.as_ptr(),
                1,
                0.0,
                y.as_mut_ptr(),
                1,
            );
        }
    }

    /// Inner product.
    pub(crate) fn sdot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len());
        // SAFETY: the lengths agree.
        unsafe { (self.sdot)(int(a.len()), a.as_ptr(), 1, b.as_ptr(), 1) }
    }

    /// Whether the library has a plain sum.
    pub(crate) fn has_sum(&self) -> bool {
        self.ssum.is_some()
    }

    /// Sum; NaN where the library has none.
    pub(crate) fn ssum(&self, x: &[f32]) -> f32 {
        // SAFETY: `x` is good for its length.
        self.ssum.map_or(f32::NAN, |f| unsafe { f(int(x.len()), x.as_ptr(), 1) })
    }

    /// Sum of absolute values.
    pub(crate) fn sasum(&self, x: &[f32]) -> f32 {
        // SAFETY: `x` is good for its length.
        unsafe { (self.sasum)(int(x.len()), x.as_ptr(), 1) }
    }

    /// Euclidean norm.
    pub(crate) fn snrm2(&self, x: &[f32]) -> f32 {
        // SAFETY: `x` is good for its length.
        unsafe { (self.snrm2)(int(x.len()), x.as_ptr(), 1) }
    }

    /// Position of the greatest absolute value.
    pub(crate) fn isamax(&self, x: &[f32]) -> usize {
        // SAFETY: `x` is good for its length.
        unsafe { (self.isamax)(int(x.len()), x.as_ptr(), 1) }
    }

    /// A routine that transposes a `rows * columns` matrix, where the library has one.
    pub(crate) fn transpose(&self) -> Option<impl Transposition + '_> {
        // SAFETY: the types are those of the headers of MKL and OpenBLAS.
        let (cblas, mkl) = unsafe {
            (
                find::<CblasTranspose>(&self.library, "cblas_somatcopy").ok(),
                find::<MklTranspose>(&self.library, "MKL_Somatcopy").ok(),
            )
        };
        if cblas.is_none() && mkl.is_none() {
            return None;
        }
        Some(move |rows: usize, columns: usize, a: &[f32], out: &mut [f32]| {
            assert!(a.len() >= rows * columns && out.len() >= rows * columns);
            let (from, to) = (a.as_ptr(), out.as_mut_ptr());
            // SAFETY: the extents were checked against the slices.
            unsafe {
                if let Some(f) = mkl {
                    f(b'R' as c_char, b'T' as c_char, rows, columns, 1.0, from, columns, to, rows);
                } else if let Some(f) = cblas {
                    f(ROW_MAJOR, TRANS, int(rows), int(columns), 1.0, from, int(columns), to, int(rows));
                }
            }
        })
    }

    /// A vector function of one operand by its C name, such as `vmsExp`, where the library has it.
    pub(crate) fn unary(&self, name: &str) -> Option<impl Fn(&[f32], &mut [f32]) + use<>> {
        // SAFETY: the type is that of the one-operand functions of VML with an accuracy mode.
        let f = unsafe { find::<Vml1>(&self.library, name) }.ok()?;
        Some(move |x: &[f32], out: &mut [f32]| {
            assert_eq!(x.len(), out.len());
            // SAFETY: the lengths agree.
            unsafe { f(int(x.len()), x.as_ptr(), out.as_mut_ptr(), HIGH_ACCURACY) }
        })
    }

    /// A vector function of two operands by its C name, such as `vmsAdd`, where the library has it.
    pub(crate) fn binary(&self, name: &str) -> Option<impl Binary + use<>> {
        // SAFETY: the type is that of the two-operand functions of VML with an accuracy mode.
        let f = unsafe { find::<Vml2>(&self.library, name) }.ok()?;
        Some(move |a: &[f32], b: &[f32], out: &mut [f32]| {
            assert!(a.len() == b.len() && a.len() == out.len());
            // SAFETY: the lengths agree.
            unsafe { f(int(a.len()), a.as_ptr(), b.as_ptr(), out.as_mut_ptr(), HIGH_ACCURACY) }
        })
    }
}

/// Looks a function up, also under the prefix of the wheels that SciPy ships.
///
/// # Safety
/// `F` is the type of the function of that name.
unsafe fn find<F: Copy>(library: &libloading::Library, name: &str) -> Result<F, String> {
    let prefixed = format!("scipy_{name}");
    let mut reason = String::new();
    for name in [name, &prefixed] {
        // SAFETY: the caller's contract.
        match unsafe { library.get::<F>(name.as_bytes()) } {
            Ok(f) => return Ok(*f),
            Err(e) => reason = e.to_string(),
        }
    }
    Err(reason)
}

/// The product by the gemm crate.
pub(crate) fn gemm_crate(p: Product, a: &[f32], b: &[f32], c: &mut [f32], threads: usize) {
    scaled_gemm_crate(p, 1.0, a, b, c, threads);
}

/// The product by the gemm crate, times a number.
pub(crate) fn scaled_gemm_crate(p: Product, scale: f32, a: &[f32], b: &[f32], c: &mut [f32], threads: usize) {
    let Product { m, k, n, bt } = p;
    assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
    let (columns_b, rows_b) = if bt { (k as isize, 1) } else { (1, n as isize) };
    let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    // SAFETY: the extents were checked against the slices and the strides are those of row-major matrices.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            1,
            k as isize,
            b.as_ptr(),
            columns_b,
            rows_b,
            0.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The product by the matrixmultiply crate, which takes its threads from `MATMUL_NUM_THREADS`.
pub(crate) fn matrixmultiply(p: Product, a: &[f32], b: &[f32], c: &mut [f32]) {
    let Product { m, k, n, bt } = p;
    assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
    let (rows_b, columns_b) = if bt { (1, k as isize) } else { (n as isize, 1) };
    // SAFETY: the extents were checked against the slices and the strides are those of row-major matrices.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            k as isize,
            1,
            b.as_ptr(),
            rows_b,
            columns_b,
            0.0,
            c.as_mut_ptr(),
            n as isize,
            1,
        );
    }
}

/// The slice as memory that rten's functions fill.
pub(crate) fn to_be_filled(x: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: the same memory; rten's vector functions only ever write initialised values into it.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len()) }
}
