//! Kernels, called again and again within a module, so that the way from JavaScript to them is not in their times.

use std::cell::RefCell;

use kiln_ir::QuantFormat;
use kiln_ir::op::{Attention, Convolve2d, Padding};
use kiln_simd::{Operations, Simd};

/// The operands and the result of the case that is prepared.
#[derive(Default)]
struct Data {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    w: Vec<u8>,
    out: Vec<f32>,
    /// The side of square matrices.
    extent: usize,
    run: Option<fn(&Simd, &mut Data)>,
}

/// A case: its name, whether its operands are square matrices, and the function that runs it.
type Case = (&'static str, bool, fn(&Simd, &mut Data));

const CASES: &[Case] = &[
    ("add", false, |kiln, d| kiln.add_into(&d.a, &d.b, &mut d.out).unwrap()),
    ("fma", false, |kiln, d| kiln.fma_into(&d.a, &d.b, &d.c, &mut d.out).unwrap()),
    ("sqrt", false, |kiln, d| kiln.sqrt_into(&d.a, &mut d.out).unwrap()),
    ("exp", false, |kiln, d| kiln.exp_into(&d.a, &mut d.out).unwrap()),
    ("tanh", false, |kiln, d| kiln.tanh_into(&d.a, &mut d.out).unwrap()),
    ("sigmoid", false, |kiln, d| kiln.sigmoid_into(&d.a, &mut d.out).unwrap()),
    ("gelu_tanh", false, |kiln, d| kiln.gelu_tanh_into(&d.a, &mut d.out).unwrap()),
    ("gelu", false, |kiln, d| kiln.gelu_into(&d.a, &mut d.out).unwrap()),
    ("sum", false, |kiln, d| d.out[0] = kiln.sum(&d.a).unwrap()),
    ("max_element", false, |kiln, d| d.out[0] = kiln.max_element(&d.a).unwrap()),
    ("argmax", false, |kiln, d| d.out[0] = kiln.argmax(&d.a).unwrap() as f32),
    ("norm_l2", false, |kiln, d| d.out[0] = kiln.norm_l2(&d.a).unwrap()),
    ("dot", false, |kiln, d| d.out[0] = kiln.dot(&d.a, &d.b).unwrap()),
    ("softmax", true, |kiln, d| kiln.softmax_into(&d.a, d.extent, &mut d.out).unwrap()),
    ("matmul", true, |kiln, d| kiln.matmul_into(&d.a, &d.b, d.extent, d.extent, d.extent, &mut d.out).unwrap()),
    // Weights of Q4_K, enough for the product of square matrices, packed from the numbers.
    ("quant_matmul", true, |kiln, d| {
        let n = d.extent;
        if d.w.is_empty() {
            d.w = kiln.quantize(&d.b, n, QuantFormat::Q4K).unwrap();
        }
        kiln.quant_matmul_into(&d.a[..n], &d.w, 1, n, n, QuantFormat::Q4K, &mut d.out[..n]).unwrap();
    }),
    // 16 channels of 64 x 64, with kernels of 3 x 3.
    ("convolve2d", true, |kiln, d| {
        let op = Convolve2d { padding: Padding::Valid, ..Convolve2d::default() };
        let (input, kernel, out) = (&d.a[..16 << 12], &d.b[..16 * 16 * 9], &mut d.out[..16 * 62 * 62]);
        kiln.convolve2d_with_into(input, &[16, 64, 64], kernel, &[16, 16, 3, 3], op, out).unwrap();
    }),
    // Four heads of 256 rows of 64.
    ("attention", true, |kiln, d| {
        let dims = [4, 256, 64];
        kiln.attention_into(&d.a, &dims, &d.b, &d.c, &dims, Attention::default(), &mut d.out).unwrap();
    }),
    #[cfg(feature = "gemm")]
    ("gemm", true, |_, d| {
        let (n, row, column) = (d.extent, d.extent as isize, 1);
        let (out, a, b) = (d.out.as_mut_ptr(), d.a.as_ptr(), d.b.as_ptr());
        let alone = gemm::Parallelism::None;
        // SAFETY: each matrix has n * n elements.
        unsafe {
            gemm::gemm(
                n, n, n, out, column, row, false, a, column, row, b, column, row, 0., 1., false, false, false, alone,
            );
        }
    }),
];

thread_local! {
    static DATA: RefCell<Data> = RefCell::default();
}

/// `count` values uniform in `0.5..1.5`: xorshift64.
fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32 + 0.5
    };
    std::iter::repeat_with(next).skip(8).take(count).collect()
}

/// Makes the operands of the case with this name, `length` bytes at `name`: of `n` elements, or of `n * n`. Gives the place of
/// the result; nothing for another name.
///
/// # Safety
/// There are this many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prepare(name: *const u8, length: usize, n: usize) -> *const f32 {
    // SAFETY: the caller's contract.
    let name = unsafe { std::slice::from_raw_parts(name, length) };
    let Some(&(_, square, run)) = CASES.iter().find(|case| case.0.as_bytes() == name) else {
        return std::ptr::null();
    };
    let count = if square { n * n } else { n };
    let [a, b, c] = [1, 2, 3].map(|seed| random(count, seed));
    let data = Data { a, b, c, w: Vec::new(), out: vec![0.0; count], extent: n, run: Some(run) };
    DATA.with_borrow_mut(|held| {
        *held = data;
        held.out.as_ptr()
    })
}

/// Runs the case that is prepared this many times.
#[unsafe(no_mangle)]
pub extern "C" fn run(repeats: usize) {
    let kiln = Simd::new().unwrap();
    DATA.with_borrow_mut(|data| {
        let run = data.run.unwrap();
        (0..repeats).for_each(|_| run(&kiln, data));
    });
}

/// A place for this many bytes of a name.
#[unsafe(no_mangle)]
pub extern "C" fn place(length: usize) -> *mut u8 {
    Vec::leak(vec![0; length]).as_mut_ptr()
}
