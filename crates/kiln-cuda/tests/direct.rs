//! Element-wise work from host to host, which goes through blocks of memory that host and device both see.

mod support;

use kiln_cuda::CudaBackend;
use kiln_ir::Operations;
use kiln_ir::op::reference::Random;

/// Elements of a block.
const BLOCK: usize = 1 << 17;

/// Of one part and of many, whole ones and not: with one, two and three operands, again and again through the same blocks.
#[test]
fn parts_come_back_in_their_places() {
    let Some(device) = support::device() else { return };
    let backend = CudaBackend::on(device);
    let mut random = Random::new(71);
    for n in [1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 16 * BLOCK, 16 * BLOCK + 5, 41 * BLOCK + 77, 3] {
        let [a, b, c] = [(); 3].map(|()| random.uniforms(n, -2.0, 2.0));
        let mut out = vec![f32::NAN; n];
        backend.add_into(&a, &b, &mut out).unwrap();
        assert!((0..n).all(|i| out[i] == a[i] + b[i]), "add of {n}");
        backend.neg_into(&a, &mut out).unwrap();
        assert!((0..n).all(|i| out[i] == -a[i]), "neg of {n}");
        backend.fma_into(&a, &b, &c, &mut out).unwrap();
        assert!((0..n).all(|i| out[i] == a[i].mul_add(b[i], c[i])), "fma of {n}");
    }
}

/// Calls from several threads, beside copies of other work on the same device.
#[test]
fn threads_do_not_meet_in_blocks() {
    let Some(device) = support::device() else { return };
    let backend = CudaBackend::on(device);
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let backend = &backend;
            scope.spawn(move || {
                let mut random = Random::new(73 + thread);
                let n = (3 * BLOCK) << (thread % 3);
                let [a, b] = [(); 2].map(|()| random.uniforms(n, -2.0, 2.0));
                let total: f64 = a.iter().map(|&x| f64::from(x)).sum();
                for turn in 0..10 {
                    let sum = backend.add(&a, &b).unwrap();
                    assert!((0..n).all(|i| sum[i] == a[i] + b[i]), "thread {thread}, turn {turn}");
                    let got = f64::from(backend.sum(&a).unwrap());
                    assert!((got - total).abs() < 1e-3 * (n as f64).sqrt(), "thread {thread}, turn {turn}: {got}");
                }
            });
        }
    });
}
