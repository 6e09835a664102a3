//! Tensors of an engine, on the host and on a GPU: where their elements are, and what is uploaded.
#![cfg(not(target_arch = "wasm32"))]

#[cfg(feature = "gpu")]
#[path = "../../kiln-device/tests/support/skip.rs"]
mod skip;

use std::sync::Arc;

use kiln::op::{Comparison, IntegerFunction, Matmul};
use kiln::{Bool, Buffer, DType, Engine, Error, Record, Tensor, bf16};

fn on_cpu() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

#[test]
fn views_see_the_elements_of_their_tensor() {
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]).unwrap();
    assert_eq!(x.slice(1..3).unwrap().to_vec().unwrap(), [3.0, 4.0, 5.0, 6.0]);
    let rows = x.slice(1..3).unwrap().reshape(&[4]).unwrap();
    assert_eq!(rows.slice(1..2).unwrap().to_vec().unwrap(), [4.0]);
    assert_eq!(x.slice(2..2).unwrap().to_vec().unwrap(), [0.0; 0]);
    assert!(matches!(x.slice(2..4), Err(Error::View { .. })));
    assert!(matches!(x.reshape(&[5]), Err(Error::Shape { .. })));
    let mut out = [0.0; 6];
    x.read_into(&mut out).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert!(matches!(x.read_into(&mut out[..5]), Err(Error::Length { expected: 6, found: 5, .. })));
    let indices = Tensor::from_elements(&[1u32, 2], &[2]).unwrap();
    assert!(matches!(indices.to_vec(), Err(Error::Type { .. })));
    assert_eq!(indices.to_buffer().unwrap(), Buffer::U32(vec![1, 2]));
    assert!(matches!(Tensor::from_vec(vec![1.0; 3], &[2, 2]), Err(Error::Length { .. })));
}

#[test]
fn tensors_are_of_every_element_type() {
    let engine = on_cpu();
    let x = Tensor::from_elements(&[1.5, -2.0, 300.0].map(bf16::from_f32), &[3]).unwrap();
    assert_eq!((x.dtype(), x.to_elements::<bf16>().unwrap()[2].to_f32()), (DType::Bf16, 300.0));
    assert_eq!(engine.tensors().neg(&x).unwrap().to_vec().unwrap(), [-1.5, 2.0, -300.0]);
    let cast = |to: DType| engine.tensors().cast(&x, to).unwrap();
    assert_eq!(cast(DType::I8).to_elements::<i8>().unwrap(), [1, -2, 127]);
    assert_eq!(cast(DType::U8).to_elements::<u8>().unwrap(), [1, 0, 255]);
    assert_eq!(cast(DType::Bool).to_elements::<Bool>().unwrap(), [true; 3].map(Bool::from));
    let bytes = Tensor::from_elements(&[1u8, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    let turned = engine.tensors().permute(&bytes, &[1, 0]).unwrap();
    assert_eq!(turned.to_elements::<u8>().unwrap(), [1, 4, 2, 5, 3, 6]);
    assert!(matches!(engine.tensors().neg(&bytes), Err(Error::Type { .. })));
    assert!(matches!(bytes.to_elements::<i8>(), Err(Error::Type { found: DType::U8, .. })));
}

#[test]
fn integers_are_added_summed_and_sorted() {
    let engine = on_cpu();
    let of = |x: &[i32], dims: &[usize]| Tensor::from_elements(x, dims).unwrap();
    let (a, b) = (of(&[5, -3, i32::MAX, 2], &[2, 2]), of(&[1, 4], &[2]));
    let mut on = engine.tensors();
    let sum = on.arithmetic(&a, &b, IntegerFunction::Add).unwrap();
    assert_eq!(sum.to_elements::<i32>().unwrap(), [6, 1, i32::MIN, 6]);
    assert_eq!(on.cumsum(&a, 1).unwrap().to_elements::<i32>().unwrap(), [5, 2, i32::MAX, i32::MIN + 1]);
    let (values, indices) = on.sort(&a, 0, true).unwrap();
    assert_eq!(values.to_elements::<i32>().unwrap(), [i32::MAX, 2, 5, -3]);
    assert_eq!(indices.to_elements::<u32>().unwrap(), [1, 1, 0, 0]);
    assert_eq!(on.argsort(&a, 1, false).unwrap().to_elements::<u32>().unwrap(), [1, 0, 1, 0]);
    assert!(matches!(on.arithmetic(&a, &indices, IntegerFunction::Min), Err(Error::Type { index: 1, .. })));
}

#[test]
fn conditions_are_booleans_that_choose() {
    let engine = on_cpu();
    let of = |x: &[f32], dims: &[usize]| Tensor::from_slice(x, dims).unwrap();
    let (a, b) = (of(&[1.0, f32::NAN, -3.0, 4.0], &[2, 2]), of(&[1.0, 2.0], &[2]));
    let less = engine.tensors().compare(&a, &b, Comparison::Le).unwrap();
    assert_eq!(less.to_elements::<Bool>().unwrap(), [true, false, true, false].map(Bool::from));
    assert_eq!(engine.tensors().select(&less, &a, &of(&[0.0], &[])).unwrap().to_vec().unwrap(), [1.0, 0.0, -3.0, 0.0]);
    assert!(matches!(engine.tensors().select(&a, &a, &a), Err(Error::Type { index: 0, .. })));
    let mut batch = engine.batch();
    let (x, y) = (batch.import(&a), batch.import(&b));
    let greater = batch.compare(x, y, Comparison::Gt).unwrap();
    let chosen = batch.select(greater, x, y).unwrap();
    batch.execute(&[chosen]).unwrap();
    assert_eq!(batch.read(chosen).unwrap(), [1.0, 2.0, 1.0, 4.0]);
}

#[test]
fn shared_bytes_are_read_where_they_are() {
    let owner: Arc<Vec<u8>> = Arc::new([1.5f32, -2.0].iter().flat_map(|x| x.to_ne_bytes()).collect());
    if owner.as_ptr().addr().is_multiple_of(4) {
        let x = Tensor::from_shared(owner.clone(), DType::F32, &[2]).unwrap();
        assert_eq!(Arc::strong_count(&owner), 2);
        assert_eq!(on_cpu().tensors().neg(&x).unwrap().to_vec().unwrap(), [-1.5, 2.0]);
        drop(x);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
    struct Tail(Vec<u8>, usize);
    impl AsRef<[u8]> for Tail {
        fn as_ref(&self) -> &[u8] {
            &self.0[self.1..]
        }
    }
    let bytes = vec![0; 16];
    let odd = usize::from(bytes.as_ptr().addr().is_multiple_of(4));
    let misaligned = Tensor::from_shared(Arc::new(Tail(bytes, odd)), DType::F32, &[2]);
    assert!(misaligned.is_err(), "{misaligned:?}");
}

#[test]
fn operations_on_tensors_give_what_those_on_slices_give() {
    use kiln::Operations;
    let engine = on_cpu();
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..12).map(|i| i as f32).collect(), (0..8).map(|i| 0.5 * i as f32).collect());
    let mut on = engine.tensors();
    let (x, y) = (Tensor::from_slice(&a, &[3, 4]).unwrap(), Tensor::from_slice(&b, &[4, 2]).unwrap());
    let product = on.matmul(&x, &y).unwrap();
    let expected = engine.matmul(&a, &b, 3, 4, 2).unwrap();
    assert_eq!(product.to_vec().unwrap(), expected);
    let rows = on.softmax(&product).unwrap();
    assert_eq!(rows.to_vec().unwrap(), engine.softmax(&expected, 2).unwrap());
    let (values, indices) = on.top_k(&x, 2).unwrap();
    assert_eq!(values.to_vec().unwrap(), [3.0, 2.0, 7.0, 6.0, 11.0, 10.0]);
    assert_eq!(indices.to_buffer().unwrap(), Buffer::U32(vec![3, 2, 3, 2, 3, 2]));
    assert!(matches!(on.matmul(&y, &y), Err(Error::Shape { .. })));
    assert!(matches!(engine.move_to(&x, "a place that is not there"), Err(Error::Unavailable { .. })));
    let transposed = on.record(Matmul { transpose_b: true, ..Matmul::default() }, &[y.clone(), y.clone()]).unwrap();
    assert_eq!(transposed.shape().dims(), [4, 4]);
}

#[test]
fn batches_share_tensors_and_give_them() {
    let engine = on_cpu();
    let weights = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let (mut one, mut other) = (engine.batch(), engine.batch());
    for (batch, x) in [(&mut one, [1.0, 0.0]), (&mut other, [0.0, 1.0])] {
        let w = batch.import(&weights);
        let x = batch.upload(&x, &[1, 2]).unwrap();
        let y = batch.matmul(x, w).unwrap();
        batch.execute_all().unwrap();
        let y = batch.tensor(y).unwrap();
        assert_eq!(y.shape().dims(), [1, 2]);
        assert!(y.to_vec() == Ok(vec![1.0, 2.0]) || y.to_vec() == Ok(vec![3.0, 4.0]));
        assert_eq!(batch.tensor(w).unwrap().to_vec().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_become_tensors_in_standard_order() {
    let array = ndarray::Array2::from_shape_fn((2, 3), |(i, j)| (3 * i + j) as f32);
    let x = Tensor::from_array(&array.t()).unwrap();
    assert_eq!((x.shape().dims(), x.to_vec().unwrap()), (&[3, 2][..], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    assert_eq!(x.to_array().unwrap(), array.t().into_dyn());
}

#[cfg(feature = "gpu")]
mod on_a_gpu {
    use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};
    use kiln::{MemoryUse, Operations};

    use super::skip::skip;
    use super::*;

    /// An engine that sends everything to the adapter to test on; the test is skipped without one, and fails where
    /// `KILN_REQUIRE` names `wgpu`.
    fn engine() -> Option<(Engine, String)> {
        let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
        let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
        match GpuDevice::find(&choice) {
            Ok(found) => {
                let choice = AdapterChoice::Name(found.label.clone());
                let builder = Engine::builder().adapter(choice).without_profile().force(&found.label);
                Some((builder.build().unwrap(), found.label))
            }
            Err(why) => {
                skip("wgpu", why);
                None
            }
        }
    }

    fn live(engine: &Engine) -> u64 {
        engine.memory_use().iter().map(|(_, used)| used.live).sum()
    }

    #[test]
    fn a_tensor_is_uploaded_once_and_results_stay_until_they_are_read() {
        let Some((engine, place)) = engine() else { return };
        assert_eq!(engine.memory_use(), [(place.clone(), MemoryUse::default())], "nothing is opened yet");
        let mut on = engine.tensors();
        let x = Tensor::from_slice(&vec![2.0; 1000], &[10, 100]).unwrap();
        assert_eq!(x.residency(), ["host"]);
        let y = on.scale(&x, 3.0).unwrap();
        assert_eq!((x.residency(), y.residency()), (vec![place.clone()], vec![place.clone()]), "no copy on the host");
        let device = engine.gpu_devices().unwrap().remove(0);
        let before = device.statistics();
        let z = on.add(&x, &y).unwrap();
        let sum = on.sum(z.slice(2..4).unwrap()).unwrap();
        let spent = device.statistics() - before;
        assert_eq!((spent.uploads, spent.downloads), (0, 0), "{spent}");
        assert_eq!(sum.to_vec().unwrap(), [1600.0]);
        assert_eq!(z.slice(9..10).unwrap().to_vec().unwrap(), [8.0; 100]);
        assert_eq!(x.to_vec().unwrap(), [2.0; 1000]);
        // Dropping the last handle frees the memory.
        device.trim();
        let held = live(&engine);
        drop((x, y, z, sum));
        assert!(live(&engine) < held, "{held}");
        let kept = Tensor::from_slice(&[1.0, 2.0], &[2]).unwrap().keep_on_host().unwrap();
        engine.move_to(&kept, &place).unwrap();
        assert_eq!(kept.residency(), ["host".to_owned(), place]);
    }

    #[test]
    fn other_results_of_a_batch_upload_nothing_again() {
        let Some((engine, _)) = engine() else { return };
        let (rows, n) = (8, 64);
        let mut batch = engine.batch();
        let x = batch.upload(&vec![1.0; rows * n], &[rows, n]).unwrap();
        let w = batch.upload(&vec![0.5; n * n], &[n, n]).unwrap();
        let hidden = batch.matmul(x, w).unwrap();
        let y = batch.relu(hidden).unwrap();
        let total = batch.sum(y).unwrap();
        batch.execute(&[y]).unwrap();
        let device = engine.gpu_devices().unwrap().remove(0);
        let before = device.statistics();
        batch.execute(&[total, hidden]).unwrap();
        batch.execute(&[y]).unwrap();
        let spent = device.statistics() - before;
        assert_eq!((spent.uploaded_bytes, spent.downloads), (0, 0), "{spent}");
        assert_eq!(batch.read(y).unwrap(), [32.0; 8 * 64]);
        batch.execute(&[total]).unwrap();
        assert_eq!(batch.read(total).unwrap(), [32.0 * 8.0 * 64.0]);
        // Only the replaced input is uploaded.
        let before = device.statistics();
        batch.set(x, &vec![2.0; rows * n]).unwrap();
        assert!(matches!(batch.read(total), Err(Error::Parameter { .. })), "it is of the old elements");
        batch.execute(&[total]).unwrap();
        let spent = device.statistics() - before;
        assert_eq!((spent.uploads, spent.uploaded_bytes), (1, 4 * (rows * n) as u64), "{spent}");
        assert_eq!(batch.run(&[total]).unwrap(), [Buffer::F32(vec![64.0 * 8.0 * 64.0])]);
        // An input that no step reads is returned as it is, and so is one under other extents.
        let other = batch.upload(&[7.0, 8.0], &[2]).unwrap();
        let column = batch.reshape(other, &[2, 1]).unwrap();
        let read = batch.run(&[total, other, column]).unwrap();
        assert_eq!(read[1..], [Buffer::F32(vec![7.0, 8.0]), Buffer::F32(vec![7.0, 8.0])]);
        let kept = batch.tensor(column).unwrap();
        batch.set(other, &[0.0, 0.0]).unwrap();
        batch.execute(&[total, column]).unwrap();
        assert_eq!((kept.to_vec().unwrap(), batch.read(column).unwrap()), (vec![7.0, 8.0], vec![0.0, 0.0]));
        assert_eq!(batch.read(w).unwrap(), vec![0.5; n * n]);
    }

    #[test]
    fn two_batches_share_weights_on_the_device() {
        let Some((engine, place)) = engine() else { return };
        let n = 64;
        let weights = Tensor::from_vec(vec![0.25; n * n], &[n, n]).unwrap();
        engine.move_to(&weights, &place).unwrap();
        let device = engine.gpu_devices().unwrap().remove(0);
        let mut results = Vec::new();
        for fill in [1.0, 2.0] {
            let mut batch = engine.batch();
            let w = batch.import(&weights);
            let x = batch.upload(&vec![fill; n], &[1, n]).unwrap();
            let y = batch.matmul(x, w).unwrap();
            let before = device.statistics();
            batch.execute(&[y]).unwrap();
            assert_eq!((device.statistics() - before).uploaded_bytes, 4 * n as u64);
            results.push(batch.tensor(y).unwrap());
        }
        let sum = engine.tensors().add(&results[0], &results[1]).unwrap();
        assert_eq!(sum.to_vec().unwrap(), [48.0; 64]);
    }

    #[test]
    fn what_is_lost_with_a_device_is_named() {
        let Some((engine, place)) = engine() else { return };
        let x = Tensor::from_slice(&[1.0, 2.0, 3.0], &[3]).unwrap();
        let kept = x.keep_on_host().unwrap();
        engine.move_to(&x, &place).unwrap();
        engine.move_to(&kept, &place).unwrap();
        let mut batch = engine.batch();
        let id = batch.upload(&[4.0], &[1]).unwrap();
        let y = batch.neg(id).unwrap();
        batch.execute(&[y]).unwrap();
        engine.gpu_devices().unwrap()[0].destroy();
        match x.to_vec() {
            Err(Error::DeviceLost { reason, .. }) => assert!(reason.contains("[3]") && reason.contains("keep_on_host")),
            other => panic!("{other:?}"),
        }
        assert_eq!(kept.to_vec().unwrap(), [1.0, 2.0, 3.0]);
        assert!(matches!(batch.read(y), Err(Error::DeviceLost { .. })));
        assert!(matches!(batch.read(id), Err(Error::DeviceLost { .. })), "the host has no copy of what it uploaded");
        assert!(matches!(engine.tensors().neg(&kept), Err(Error::DeviceLost { .. })), "the place is forced");
        assert!(matches!(engine.neg(&[1.0]), Err(Error::DeviceLost { .. })));
    }
}

/// Futures may be given to a runtime that moves them between threads.
#[test]
fn futures_go_from_thread_to_thread() {
    fn sends<T>(future: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
        future
    }
    let engine = Engine::builder().without_profile().build().unwrap();
    let x = Tensor::from_slice(&[1.0, -2.0], &[2]).unwrap();
    let mut batch = engine.batch();
    let id = batch.import(&x);
    let y = batch.relu(id).unwrap();
    let work = sends(async {
        engine.move_to_async(&x, "host").await?;
        batch.execute_async(&[y]).await?;
        let eager = engine.tensors().run_async(&kiln::op::Elementwise::relu().into(), &[x]).await?;
        Ok::<_, Error>((batch.read_async(y).await?, eager[0].to_buffer_async().await?))
    });
    let (read, eager) = kiln_device::waiting::block_on(work).unwrap();
    assert_eq!((&read[..], eager.as_data().f32()), (&[1.0, 0.0][..], &[1.0, 0.0][..]));
}
