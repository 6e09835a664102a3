//! Launches that may begin while those in front of them still run: what they compute is what they compute alone.

mod support;

use kiln_cuda::{BufferId, CudaCommandBatch};
use kiln_ir::op::reference::Random;
use kiln_ir::op::{Matmul, Op, QuantMatmul};
use kiln_ir::{Data, Operand, QuantFormat, Record};

/// Elements of a row.
const N: usize = 2048;
/// Products behind one another.
const PRODUCTS: usize = 6;
/// Executions: the first launches one by one, the second captures, the others replay.
const TURNS: usize = 5;

/// Weights that keep the size of what they are multiplied with.
fn weights(format: QuantFormat, random: &mut Random) -> Vec<u8> {
    let size = (3.0 / N as f32).sqrt();
    let mut blocks = vec![0; format.bytes(N * N).unwrap()];
    format.encode(&random.uniforms(N * N, -size, size), &mut blocks).unwrap();
    blocks
}

/// Of every format, with numbers of rows for which each kernel runs, behind a product of f32 that takes a while and writes x.
#[test]
fn what_the_launch_in_front_writes_is_waited_for() {
    let Some(device) = support::device() else { return };
    let mut random = Random::new(61);
    let dense = random.uniforms(N * N, -0.04, 0.04);
    for format in QuantFormat::ALL {
        let stored: Vec<Vec<u8>> = (0..PRODUCTS).map(|_| weights(format, &mut random)).collect();
        for rows in [1, 2, 4, 8, 64, 768] {
            let mut batch = CudaCommandBatch::new(device.clone());
            let first = batch.upload(&vec![0.0; rows * N], &[rows, N]).unwrap();
            let slow = batch.upload(&dense, &[N, N]).unwrap();
            let upload = |blocks: &Vec<u8>| batch.upload_blocks(blocks, &[N, N], format).unwrap();
            let weights: Vec<BufferId> = stored.iter().map(upload).collect();
            let mut results =
                vec![batch.matmul_with(first, slow, Matmul { transpose_a: false, transpose_b: true }).unwrap()];
            for &weights in &weights {
                let x = results[results.len() - 1];
                results.push(batch.record(QuantMatmul { format }, &[x, weights]).unwrap());
            }
            for turn in 0..TURNS {
                // All earlier results are wrong now: the inputs have changed and, every second time, the weights.
                batch.set(first, &random.uniforms(rows * N, -1.0, 1.0)).unwrap();
                let from = turn / 2;
                let of = |number: usize| &stored[(number + from) % PRODUCTS];
                for (number, &weights) in weights.iter().enumerate() {
                    batch.set_data(weights, Data::Blocks(format, of(number))).unwrap();
                }
                batch.execute(&results).unwrap();
                let got: Vec<_> = results.iter().map(|&result| batch.read_buffer(result).unwrap()).collect();
                for (number, pair) in got.windows(2).enumerate() {
                    let x = Operand::new(pair[0].as_data(), batch.ty(results[number]).unwrap().shape).unwrap();
                    let blocks = Data::Blocks(format, of(number));
                    let blocks = Operand::new(blocks, batch.ty(weights[number]).unwrap().shape).unwrap();
                    let [x, blocks] = [x, blocks].map(|operand| device.upload(&operand).unwrap());
                    let alone = device.run(&Op::from(QuantMatmul { format }), &[&x, &blocks]).unwrap();
                    let wanted = alone[0].read().unwrap();
                    assert!(wanted == pair[1], "{format:?}, {rows} rows, turn {turn}, product {number}");
                }
            }
        }
    }
}

/// Weights that arrive while an execution is under way are for the next one.
#[test]
fn weights_are_there_before_they_are_read() {
    let Some(device) = support::device() else { return };
    let mut random = Random::new(67);
    let format = QuantFormat::Q4K;
    let stored: Vec<Vec<u8>> = (0..2).map(|_| weights(format, &mut random)).collect();
    let mut batch = CudaCommandBatch::new(device);
    let first = batch.upload(&random.uniforms(N, -1.0, 1.0), &[1, N]).unwrap();
    let weights = batch.upload_blocks(&stored[0], &[N, N], format).unwrap();
    let mut y = first;
    for _ in 0..PRODUCTS {
        y = batch.record(QuantMatmul { format }, &[y, weights]).unwrap();
    }
    let of = |blocks: &Vec<u8>| {
        batch.set_data(weights, Data::Blocks(format, blocks)).unwrap();
        batch.run(&[y]).unwrap().remove(0)
    };
    let wanted: Vec<_> = stored.iter().map(of).collect();
    assert!(wanted[0] != wanted[1]);
    for turn in 0..40 {
        let now = turn % 2;
        // Without waiting for the execution before.
        batch.set_data(weights, Data::Blocks(format, &stored[1 - now])).unwrap();
        batch.execute(&[y]).unwrap();
        batch.set_data(weights, Data::Blocks(format, &stored[now])).unwrap();
        assert!(batch.run(&[y]).unwrap()[0] == wanted[now], "turn {turn}");
    }
}
