//! States: tensors that executions of batches change.

use kiln::graph::TensorId;
use kiln::op::{Attention, WriteRows};
use kiln::{Batch, Buffer, DType, Data, Engine, Error, Record, State};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn engine() -> Engine {
    Engine::builder().threads(1).without_profile().build().unwrap()
}

/// Writes one row of two to a state of three and adds up its rows: the position, and the sums.
fn sums(batch: &mut Batch<'_>, state: &State) -> (TensorId, TensorId) {
    let held = batch.state(state);
    let row = batch.upload(&[1.0, 2.0], &[1, 2]).unwrap();
    let at = batch.upload_indices(&[0], &[1]).unwrap();
    let written = batch.write_rows(held, row, at).unwrap();
    (at, batch.sum_axis(written, 0).unwrap())
}

#[test]
fn executions_of_several_batches_go_on_from_one_another() {
    let engine = engine();
    let state = State::zeros(DType::F32, &[3, 2]).unwrap();
    assert_eq!(state.residency(), "nowhere");
    let (mut first, mut second) = (engine.batch(), engine.batch());
    let ((_, a), (at, b)) = (sums(&mut first, &state), sums(&mut second, &state));
    first.execute(&[a]).unwrap();
    assert_eq!((first.read(a).unwrap(), state.residency()), (vec![1.0, 2.0], "host".into()));
    for (position, total) in [(2, [2.0, 4.0]), (WriteRows::SKIPPED, [2.0, 4.0]), (1, [3.0, 6.0])] {
        second.set_data(at, Data::U32(&[position])).unwrap();
        second.execute(&[b]).unwrap();
        assert_eq!(second.read(b).unwrap(), total);
    }
    // Adding a state to a batch again gives the same tensor.
    let again = second.state(&state);
    assert_eq!(again, second.state(&state.clone()));
    assert_eq!(second.read(again).unwrap(), [1.0, 2.0].repeat(3));
    second.set(again, &[0.0; 6]).unwrap();
    assert_eq!(state.to_buffer().unwrap(), Buffer::F32(vec![0.0; 6]));
    assert!(matches!(second.tensor(again), Err(Error::Parameter { .. })));
    assert!(matches!(second.pack(again), Err(Error::Parameter { .. })));
}

#[test]
fn what_a_state_was_before_a_write_is_no_result_of_all() {
    let engine = engine();
    let state = State::zeros(DType::F32, &[3, 2]).unwrap();
    let mut batch = engine.batch();
    let held = batch.state(&state);
    let before = batch.reshape(held, &[6]).unwrap();
    let (_, out) = sums(&mut batch, &state);
    batch.execute_all().unwrap();
    assert_eq!(batch.read(out).unwrap(), [1.0, 2.0]);
    assert!(matches!(batch.execute(&[before]), Err(Error::Parameter { .. })));
}

#[test]
fn errors_leave_the_state_as_it_was() {
    let engine = engine();
    let state = State::from_buffer(Buffer::F32(vec![5.0; 6]), &[3, 2]).unwrap();
    let mut batch = engine.batch();
    let (at, out) = sums(&mut batch, &state);
    batch.set_data(at, Data::U32(&[3])).unwrap();
    let error = Error::Index { op: "write_rows", position: 0, index: 3, bound: 3 };
    assert_eq!(batch.execute(&[out]), Err(error));
    assert_eq!(state.to_buffer().unwrap(), Buffer::F32(vec![5.0; 6]));
    batch.set_data(at, Data::U32(&[1])).unwrap();
    batch.execute(&[out]).unwrap();
    assert_eq!(batch.read(out).unwrap(), [11.0, 12.0]);
    assert!(matches!(state.set(Data::F32(&[1.0])), Err(Error::Length { .. })));
    assert!(matches!(state.set(Data::U32(&[1; 6])), Err(Error::Type { .. })));
    assert!(State::zeros(DType::F32, &[usize::MAX, 2]).is_err());
    assert!(State::from_buffer(Buffer::F32(vec![1.0]), &[2]).is_err());
}

/// A decoder's step: keys and values of a token are written where it is, and attention sees all tokens up to it. Token by token
/// it gives what attention over the whole text gives.
#[test]
fn keys_and_values_are_kept_from_token_to_token() {
    const N: usize = 7;
    let numbers =
        |seed: usize| -> Vec<f32> { (0..2 * N * 4).map(|i| ((i * 29 + seed) % 23) as f32 / 9.0 - 1.2).collect() };
    let (q, k, v) = (numbers(1), numbers(5), numbers(11));
    let engine = engine();
    let mut whole = engine.batch();
    let [a, b, c] = [&q, &k, &v].map(|x| whole.upload(x, &[2, N, 4]).unwrap());
    let expected = whole.attention(a, b, c, Attention::causal()).unwrap();
    whole.execute(&[expected]).unwrap();
    let expected = whole.read(expected).unwrap();

    let states = [0, 1].map(|_| State::zeros(DType::F32, &[2, N, 4]).unwrap());
    let of_token = |x: &[f32], token: usize| -> Vec<f32> {
        (0..2).flat_map(|head| x[(head * N + token) * 4..][..4].to_vec()).collect()
    };
    for token in 0..N {
        // One graph for every number of keys: the number of visible keys is a parameter of this attention.
        let mut step = engine.batch();
        let [query, key, value] = [&q, &k, &v].map(|x| step.upload(&of_token(x, token), &[2, 1, 4]).unwrap());
        let at = step.upload_indices(&[token as u32], &[1]).unwrap();
        let [keys, values] = [(0, key), (1, value)].map(|(i, row)| {
            let held = step.state(&states[i]);
            let written = step.write_rows(held, row, at).unwrap();
            step.slice(written, 1, 0..token + 1, 1).unwrap()
        });
        let out = step.attention(query, keys, values, Attention::full()).unwrap();
        step.execute(&[out]).unwrap();
        let found = step.read(out).unwrap();
        for (found, expected) in found.iter().zip(of_token(&expected, token)) {
            assert!((found - expected).abs() < 1e-6, "token {token}: {found}, not {expected}");
        }
    }
    let Buffer::F32(keys) = states[0].to_buffer().unwrap() else { panic!("a state of f32") };
    assert_eq!(keys, k);
}
