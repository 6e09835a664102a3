//! Operations that move elements, in recorded graphs: reshapes that cost nothing, and a block of a transformer made of them.

use kiln::op::{Matmul, Op};
use kiln::{Engine, Error, Operations, Record};
use kiln_ir::op::reference::Random;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

/// `[rows, inner] x [inner, columns]` in f64.
fn product(a: &[f64], b: &[f64], inner: usize, columns: usize) -> Vec<f64> {
    let rows = a.len() / inner;
    let element = |i: usize, j: usize| (0..inner).map(|p| a[i * inner + p] * b[p * columns + j]).sum::<f64>();
    (0..rows * columns).map(|at| element(at / columns, at % columns)).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

/// Pre-norm attention with two heads and a residual: layer norm, one product for queries, keys and values, heads by reshape
/// and permute, scaled scores, softmax, and back.
#[test]
fn a_block_of_a_transformer_is_one_graph() {
    let (s, heads, width) = (7, 2, 4);
    let d = heads * width;
    let mut random = Random::new(91);
    let x = random.uniforms(s * d, -1.0, 1.0);
    let (gamma, beta) = (random.uniforms(d, 0.5, 1.5), random.uniforms(d, -0.2, 0.2));
    let (w_in, w_out) = (random.uniforms(d * 3 * d, -0.5, 0.5), random.uniforms(d * d, -0.5, 0.5));
    let scale = 0.5; // 1 / √4

    let engine = engine();
    let mut batch = engine.batch();
    let xi = batch.upload(&x, &[s, d]).unwrap();
    let [gi, bi] = [&gamma, &beta].map(|v| batch.upload(v, &[d]).unwrap());
    let (wi, wo) = (batch.upload(&w_in, &[d, 3 * d]).unwrap(), batch.upload(&w_out, &[d, d]).unwrap());
    let normed = batch.layer_norm(xi, gi, bi, 1e-5).unwrap();
    let all = batch.matmul(normed, wi).unwrap();
    let of_heads: Vec<_> = batch.split(all, 1, &[d, d, d]).unwrap();
    let of_heads: Vec<_> = of_heads
        .into_iter()
        .map(|part| {
            let heads_inside = batch.reshape(part, &[s, heads, width]).unwrap();
            batch.permute(heads_inside, &[1, 0, 2]).unwrap()
        })
        .collect();
    let by_keys = Matmul { transpose_b: true, ..Matmul::default() };
    let scores = batch.matmul_with(of_heads[0], of_heads[1], by_keys).unwrap();
    let scaled = batch.scale(scores, scale).unwrap();
    let weights = batch.softmax(scaled).unwrap();
    let mixed = batch.matmul(weights, of_heads[2]).unwrap();
    let heads_inside = batch.permute(mixed, &[1, 0, 2]).unwrap();
    let joined = batch.reshape(heads_inside, &[s, d]).unwrap();
    let projected = batch.matmul(joined, wo).unwrap();
    let out = batch.add(xi, projected).unwrap();
    let rows = batch.unsqueeze(out, 0).unwrap();
    batch.execute(&[out, rows, weights]).unwrap();
    let schedule = batch.schedule(&[out]).unwrap();
    let moves =
        schedule.steps.iter().filter(|step| matches!(step, kiln_ir::graph::Step::Run { op: Op::Reshape(_), .. }));
    assert_eq!(moves.count(), 0, "reshapes are no steps");

    // The same in f64.
    let mut normed = Vec::new();
    for row in wide(&x).chunks(d) {
        let mean = row.iter().sum::<f64>() / d as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / d as f64;
        let of = |(j, v): (usize, &f64)| {
            (v - mean) / (variance + f64::from(1e-5f32)).sqrt() * f64::from(gamma[j]) + f64::from(beta[j])
        };
        normed.extend(row.iter().enumerate().map(of));
    }
    let all = product(&normed, &wide(&w_in), d, 3 * d);
    let mut joined = vec![0.0; s * d];
    for head in 0..heads {
        let at = |which: usize, row: usize, i: usize| all[row * 3 * d + which * d + head * width + i];
        for row in 0..s {
            let dot = |key: usize| (0..width).map(|i| at(0, row, i) * at(1, key, i)).sum::<f64>();
            let exps: Vec<f64> = (0..s).map(|key| (dot(key) * f64::from(scale)).exp()).collect();
            let total: f64 = exps.iter().sum();
            for i in 0..width {
                joined[row * d + head * width + i] = (0..s).map(|key| exps[key] / total * at(2, key, i)).sum();
            }
        }
    }
    let projected = product(&joined, &wide(&w_out), d, d);
    let got = batch.read(out).unwrap();
    for (i, (&got, projected)) in got.iter().zip(&projected).enumerate() {
        let exact = f64::from(x[i]) + projected;
        assert!((f64::from(got) - exact).abs() < 2e-6, "{i}: {got} and {exact}");
    }
    assert_eq!(batch.read(rows).unwrap(), got);
    assert_eq!(batch.shape(rows).unwrap().dims(), [1, s, d]);
    assert!(batch.read(weights).unwrap().chunks(s).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6));
}

#[test]
fn reshapes_of_inputs_and_results_are_read_and_follow_what_is_set() {
    let engine = engine();
    let mut batch = engine.batch();
    let x = batch.upload(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let turned = batch.reshape(x, &[3, 2]).unwrap();
    let flat = batch.reshape(turned, &[6]).unwrap();
    let doubled = batch.scale(flat, 2.0).unwrap();
    let square = batch.reshape(doubled, &[2, 3]).unwrap();
    let sum = batch.sum_axis(square, 0).unwrap();
    batch.execute(&[turned]).unwrap();
    assert_eq!(batch.read(turned).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    batch.execute(&[turned, square, sum, doubled]).unwrap();
    assert_eq!(batch.read(square).unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    assert_eq!(batch.read(doubled).unwrap(), batch.read(square).unwrap());
    assert_eq!(batch.read(sum).unwrap(), [10.0, 14.0, 18.0]);
    batch.set(x, &[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]).unwrap();
    batch.execute(&[turned, square, sum, doubled]).unwrap();
    assert_eq!(batch.read(turned).unwrap(), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
    assert_eq!(batch.read(sum).unwrap(), [2.0, 2.0, 2.0]);
    assert!(matches!(batch.set(turned, &[0.0; 6]), Err(Error::Parameter { .. })), "it was not uploaded");
}

#[test]
fn element_wise_chains_go_through_reshapes() {
    let engine = engine();
    let mut batch = engine.batch();
    let x: Vec<f32> = (0..24).map(|i| i as f32 / 10.0 - 1.0).collect();
    let bias = [0.5, -0.5, 1.0, -1.0];
    let (xi, bi) = (batch.upload(&x, &[24]).unwrap(), batch.upload(&bias, &[4]).unwrap());
    let e = batch.exp(xi).unwrap();
    let rows = batch.reshape(e, &[6, 4]).unwrap();
    let sum = batch.add(rows, bi).unwrap();
    let boxes = batch.reshape(sum, &[2, 3, 4]).unwrap();
    let out = batch.relu(boxes).unwrap();
    assert_eq!(batch.schedule(&[out]).unwrap().steps.len(), 1);
    batch.execute(&[out]).unwrap();
    let e = engine.exp(&x).unwrap();
    let bias: Vec<f32> = bias.iter().copied().cycle().take(24).collect();
    assert_eq!(batch.read(out).unwrap(), engine.relu(&engine.add(&e, &bias).unwrap()).unwrap());
}

#[test]
fn a_product_repeats_what_has_fewer_matrices() {
    let engine = engine();
    let mut random = Random::new(92);
    let (stack, n) = (32, 32);
    let (a, b) = (random.uniforms(n * n, -1.0, 1.0), random.uniforms(stack * n * n, -1.0, 1.0));
    let mut batch = engine.batch();
    let (ai, bi) = (batch.upload(&a, &[1, n, n]).unwrap(), batch.upload(&b, &[stack, n, n]).unwrap());
    let repeated = batch.broadcast_to(ai, &[stack, n, n]).unwrap();
    let (short, long) = (batch.matmul(ai, bi).unwrap(), batch.matmul(repeated, bi).unwrap());
    batch.execute(&[short, long]).unwrap();
    assert_eq!(batch.shape(short).unwrap().dims(), [stack, n, n]);
    assert_eq!(batch.read(short).unwrap(), batch.read(long).unwrap());
    let wrong = batch.upload(&b[..3 * n * n], &[3, n, n]).unwrap();
    let error = batch.matmul(wrong, bi).unwrap_err().to_string();
    assert!(error.contains("[3, 32, 32]") && error.contains("must be equal or 1"), "{error}");
}

#[test]
fn what_is_split_is_put_together_again() {
    let engine = engine();
    let x: Vec<f32> = (0..30).map(|i| i as f32).collect();
    let parts = engine.split(&x, &[2, 5, 3], 1, &[1, 4]).unwrap();
    assert_eq!((parts[0].len(), parts[1].len()), (6, 24));
    let whole = engine.concat(&[(&parts[0], &[2, 1, 3]), (&parts[1], &[2, 4, 3])], 1).unwrap();
    assert_eq!(whole, x);
    let padded = engine.pad(&x, &[5, 6], &[(0, 0), (1, 2)], -1.0).unwrap();
    assert_eq!(engine.slice(&padded, &[5, 9], 1, 1..7, 1).unwrap(), x);
    assert_eq!(engine.slice(&x, &[30], 0, 3..usize::MAX, 9).unwrap(), [3.0, 12.0, 21.0]);
    let mut out = [0.0; 30];
    engine.permute_into(&x, &[5, 6], &[1, 0], &mut out).unwrap();
    assert_eq!(out.to_vec(), engine.transpose(&x, 5, 6).unwrap());
}

#[test]
fn an_error_about_shapes_names_what_is_allowed() {
    let engine = engine();
    let x = vec![0.5; 32 * 32 * 32];
    let mut batch = engine.batch();
    let mut tensor = |dims: &[usize]| batch.upload(&x[..dims.iter().product()], dims).unwrap();
    let [stack, one, two, row, column, matrix] =
        [&[32, 32, 32][..], &[1, 32, 32], &[2, 32, 32], &[4], &[2, 1], &[2, 3]].map(&mut tensor);
    // One matrix multiplies every matrix of a stack.
    let product = batch.matmul(one, stack).unwrap();
    assert_eq!(batch.shape(product).unwrap().dims(), [32, 32, 32]);
    let error = batch.matmul(two, stack).unwrap_err().to_string();
    assert!(error.contains("the outer dimensions [2] and [32] must be equal or 1"), "{error}");
    let error = batch.matmul(matrix, stack).unwrap_err().to_string();
    assert!(error.contains("A has 3 columns, B 32 rows"), "{error}");
    let error = batch.add(matrix, row).unwrap_err().to_string();
    assert!(error.contains("[2, 3] and [4]") && error.contains("one shape must be the end of the other"), "{error}");
    let error = batch.add(matrix, column).unwrap_err().to_string();
    assert!(error.contains("broadcast_to"), "{error}");
    let error = batch.broadcast_to(row, &[2, 3]).unwrap_err().to_string();
    assert!(error.contains("must be equal or 1"), "{error}");
    let error = engine.dot(&x[..3], &x[..4]).unwrap_err().to_string();
    assert!(error.contains("both need as many elements"), "{error}");
}
