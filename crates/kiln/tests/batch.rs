//! Recorded batches give what the same operations give one by one.

use kiln::op::Matmul;
use kiln::{Engine, Error, Operations, Record};
use kiln_ir::op::reference::Random;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn a_layer_gives_what_its_operations_give() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let (m, k, n) = (17, 40, 65);
    let mut random = Random::new(5);
    let (x, w, b) =
        (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0), random.uniforms(n, -1.0, 1.0));

    let mut batch = engine.batch();
    let (xi, wi, bi) =
        (batch.upload(&x, &[m, k]).unwrap(), batch.upload(&w, &[k, n]).unwrap(), batch.upload(&b, &[n]).unwrap());
    let product = batch.matmul(xi, wi).unwrap();
    let sum = batch.add(product, bi).unwrap();
    let y = batch.gelu(sum).unwrap();
    let total = batch.sum(y).unwrap();
    assert_eq!((batch.num_operations(), batch.num_tensors()), (4, 7));
    batch.execute(&[y, total]).unwrap();

    let product = engine.matmul(&x, &w, m, k, n).unwrap();
    let rows: Vec<f32> = b.iter().copied().cycle().take(m * n).collect();
    let expected = engine.gelu(&engine.add(&product, &rows).unwrap()).unwrap();
    assert_eq!(batch.read(y).unwrap(), expected);
    assert_eq!(batch.read(total).unwrap(), [engine.sum(&expected).unwrap()]);
    assert!(matches!(batch.read(sum), Err(Error::Parameter { .. })), "an intermediate result is not kept");

    // New inputs, the same schedule.
    let x2 = random.uniforms(m * k, -1.0, 1.0);
    batch.set(xi, &x2).unwrap();
    batch.execute(&[y, total]).unwrap();
    let product = engine.matmul(&x2, &w, m, k, n).unwrap();
    let expected = engine.gelu(&engine.add(&product, &rows).unwrap()).unwrap();
    assert_eq!(batch.read(y).unwrap(), expected);

    // Other results of the same batch, one of them an input.
    batch.execute(&[sum, xi]).unwrap();
    assert_eq!(batch.read(sum).unwrap(), engine.add(&product, &rows).unwrap());
    assert_eq!(batch.read(xi).unwrap(), x2);
}

#[test]
fn a_packed_matrix_gives_the_same_and_follows_what_is_set() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let (stack, m, k, n) = (3, 5, 40, 65);
    let mut random = Random::new(6);
    let (x, w) = (random.uniforms(stack * m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
    let turned = engine.transpose(&w, k, n).unwrap();
    let mut batch = engine.batch();
    let xi = batch.upload(&x, &[stack, m, k]).unwrap();
    let (wi, ti) = (batch.upload(&w, &[k, n]).unwrap(), batch.upload(&turned, &[n, k]).unwrap());
    batch.pack(wi).unwrap();
    batch.pack(ti).unwrap();
    let by_transposed = Matmul { transpose_b: true, ..Matmul::default() };
    let (y, z) = (batch.matmul(xi, wi).unwrap(), batch.record(by_transposed, &[xi, ti]).unwrap());
    // Other operations read the packed matrix as an ordinary one.
    let total = batch.sum(wi).unwrap();
    let squared = batch.matmul(ti, wi).unwrap();
    batch.execute(&[y, z, total, squared]).unwrap();
    let expected = engine.matmul(&x, &w, stack * m, k, n).unwrap();
    assert_eq!(batch.read(y).unwrap(), expected);
    assert_eq!(batch.read(z).unwrap(), expected);
    assert_eq!(batch.read(total).unwrap(), [engine.sum(&w).unwrap()]);
    assert_eq!(batch.read(squared).unwrap(), engine.matmul(&turned, &w, n, k, n).unwrap());

    let w = random.uniforms(k * n, -1.0, 1.0);
    batch.set(wi, &w).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), engine.matmul(&x, &w, stack * m, k, n).unwrap());

    // Every operation that takes f32 takes f16.
    let halves: Vec<kiln::f16> = x.iter().map(|&x| kiln::f16::from_f32(x)).collect();
    let hi = batch.upload_operand(&kiln::Operand::elements(&halves, &[stack, m, k]).unwrap()).unwrap();
    let h = batch.matmul(hi, wi).unwrap();
    batch.execute(&[h]).unwrap();
    let wide: Vec<f32> = halves.iter().map(|h| h.to_f32()).collect();
    assert_eq!(batch.read(h).unwrap(), engine.matmul(&wide, &w, stack * m, k, n).unwrap());

    assert!(matches!(batch.pack(xi), Err(Error::Shape { .. })));
    assert!(matches!(batch.pack(y), Err(Error::Parameter { .. })));
    let indices = batch.upload_indices(&[0, 1], &[1, 2]).unwrap();
    assert!(matches!(batch.pack(indices), Err(Error::Type { .. })));
    let foreign = engine.batch().upload(&[1.0], &[1, 1]).unwrap();
    assert!(matches!(batch.pack(foreign), Err(Error::ForeignTensor { .. })));
}

#[test]
fn wrong_use_is_one_clear_error_and_the_batch_stays_usable() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let (mut batch, mut other) = (engine.batch(), engine.batch());
    let a = batch.upload(&[1.0, 2.0], &[2]).unwrap();
    let foreign = other.upload(&[1.0, 2.0], &[2]).unwrap();
    assert!(matches!(batch.upload(&[1.0], &[2]), Err(Error::Length { .. })));
    assert!(matches!(batch.upload(&[], &[usize::MAX, 2]), Err(Error::Overflow { .. })));
    assert!(matches!(batch.add(a, foreign), Err(Error::ForeignTensor { .. })));
    assert!(matches!(batch.execute(&[foreign]), Err(Error::ForeignTensor { .. })));
    assert!(matches!(batch.read(foreign), Err(Error::ForeignTensor { .. })));
    assert!(matches!(batch.set(a, &[1.0]), Err(Error::Length { .. })));
    let b = batch.neg(a).unwrap();
    assert!(matches!(batch.set(b, &[1.0, 1.0]), Err(Error::Parameter { .. })));
    assert!(matches!(batch.read(b), Err(Error::Parameter { .. })), "nothing has run yet");
    batch.execute(&[b]).unwrap();
    assert_eq!(batch.read(b).unwrap(), [-1.0, -2.0]);
    let empty = batch.upload(&[], &[0]).unwrap();
    let e = batch.exp(empty).unwrap();
    let f = batch.relu(e).unwrap();
    batch.execute(&[f]).unwrap();
    assert!(batch.read(f).unwrap().is_empty());
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_result_that_no_memory_holds_is_an_error_and_the_batch_stays_usable() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let n = 1 << 23;
    assert!(matches!(engine.matmul(&[], &[], n, 0, n), Err(Error::OutOfMemory { .. })));
    let mut batch = engine.batch();
    let (a, b) = (batch.upload(&[], &[n, 0]).unwrap(), batch.upload(&[], &[0, n]).unwrap());
    let product = batch.matmul(a, b).unwrap();
    let total = batch.sum(product).unwrap();
    assert!(matches!(batch.execute(&[product]), Err(Error::OutOfMemory { .. })), "wanted");
    assert!(matches!(batch.execute(&[total]), Err(Error::OutOfMemory { .. })), "on the way");
    assert!(matches!(batch.read(total), Err(Error::Parameter { .. })));
    let c = batch.upload(&[1.0, 4.0], &[2]).unwrap();
    let root = batch.sqrt(c).unwrap();
    batch.execute(&[root, c, root]).unwrap();
    assert_eq!(batch.read(root).unwrap(), [1.0, 2.0]);
    batch.execute(&[]).unwrap();
    assert!(matches!(batch.read(root), Err(Error::Parameter { .. })), "not asked for this time");
    assert_eq!(batch.read(c).unwrap(), [1.0, 4.0], "what was uploaded is there");
}

#[test]
fn an_index_out_of_its_table_is_an_error_and_other_indices_work() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let mut batch = engine.batch();
    let table = batch.upload(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let (bad, good) = (batch.upload_indices(&[0, u32::MAX], &[2]).unwrap(), batch.upload_indices(&[1], &[1]).unwrap());
    let (missing, found) = (batch.gather(table, bad).unwrap(), batch.gather(table, good).unwrap());
    assert!(matches!(batch.execute(&[missing, found]), Err(Error::Index { .. })));
    batch.execute(&[found]).unwrap();
    assert_eq!(batch.read(found).unwrap(), [3.0, 4.0]);
    assert!(matches!(batch.gather(bad, good), Err(Error::Shape { .. })));
    assert!(matches!(batch.gather(table, table), Err(Error::Type { index: 1, .. })));
    assert!(matches!(batch.set(bad, &[0.0, 1.0]), Err(Error::Type { .. })));
}

#[test]
fn an_operation_with_two_results_and_one_that_needs_only_the_second() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let mut batch = engine.batch();
    let x = batch.upload(&[3.0, 9.0, 1.0, 5.0, 4.0, 8.0], &[2, 3]).unwrap();
    let (_, indices) = batch.top_k(x, 1).unwrap();
    let table = batch.upload(&[0.0, 0.5, 1.0, 1.5, 2.0, 2.5], &[3, 2]).unwrap();
    let rows = batch.gather(table, indices).unwrap();
    batch.execute(&[rows, indices]).unwrap();
    assert_eq!(batch.read_indices(indices).unwrap(), [1, 2]);
    assert_eq!(batch.read(rows).unwrap(), [1.0, 1.5, 2.0, 2.5]);
    assert!(matches!(batch.read(indices), Err(Error::Type { .. })));
}
