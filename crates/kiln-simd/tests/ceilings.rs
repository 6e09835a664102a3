//! The loops that other figures are compared with do the work that is counted.

use kiln_simd::ceilings::{Pass, multiply_add, touch};
use kiln_simd::{Isa, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn every_pass_does_what_it_says() {
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap().with_threads(2);
        let flops = multiply_add(&simd, 10);
        assert!(flops > 0 && flops.is_multiple_of((2 * 10 * isa.lanes() * simd.threads()) as u64), "{isa}: {flops}");
        assert_eq!(multiply_add(&simd, 20), 2 * flops, "{isa}");
        assert_eq!(multiply_add(&simd.with_threads(1), 10), flops / simd.threads() as u64, "{isa}");
        for n in [0, 1, 15, 64, 129, 1000] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            for &pass in Pass::ALL {
                let mut out = vec![-1.0; n];
                touch(&simd, pass, &a, &a, &mut out).unwrap();
                let factor = match pass {
                    Pass::Read => continue,
                    Pass::Copy | Pass::CopyStreamed => 1.0,
                    Pass::Add | Pass::AddStreamed => 2.0,
                };
                assert!(out.iter().zip(&a).all(|(o, a)| *o == factor * a), "{isa} {pass:?} {n}");
            }
        }
    }
    let simd = Simd::new().unwrap();
    assert!(touch(&simd, Pass::Add, &[1.0], &[], &mut [0.0]).is_err());
    assert!(touch(&simd, Pass::Copy, &[1.0], &[], &mut []).is_err());
    touch(&simd, Pass::Copy, &[1.0], &[], &mut [0.0]).unwrap();
    touch(&simd, Pass::Read, &[1.0], &[], &mut []).unwrap();
}
