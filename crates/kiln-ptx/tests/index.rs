//! Kernels that choose by index, run as text, against the reference.

mod support;

use kiln_ir::Buffer;
use kiln_ir::op::{Gather as GatherOp, Operation, reference};
use kiln_ptx::kernels::gather::Gather;
use support::{Device, floats, words};

fn bytes(indices: &[u32]) -> Vec<u8> {
    indices.iter().flat_map(|index| index.to_le_bytes()).collect()
}

/// Results, and what was reported.
fn run_gather(table: &[f32], [rows, columns]: [usize; 2], indices: &[u32]) -> Result<(Vec<f32>, u64), String> {
    let mut device = Device::default();
    let kernel = Gather::new(columns);
    let buffers = [
        device.upload(&words(table)),
        device.upload(&bytes(indices)),
        device.allocate(4 * indices.len() * columns),
        device.upload(&u64::MAX.to_le_bytes()),
    ];
    device.run(&kernel, &kernel.launch(indices.len(), rows, columns).unwrap(), &buffers)?;
    let report = device.download(buffers[3]).try_into().map_or(0, u64::from_le_bytes);
    Ok((floats(device.download(buffers[2])), report))
}

#[test]
fn gather_keeps_its_contract() {
    let mut compared = 0;
    for case in GatherOp::cases() {
        let run = |_: &_, inputs: &[kiln_ir::Operand<'_>]| {
            let table = inputs[0].shape();
            let (out, report) =
                run_gather(inputs[0].data().f32(), [table.rows(), table.columns()], inputs[1].data().u32())
                    .unwrap_or_else(|why| panic!("{case}: {why}"));
            assert_eq!(report, u64::MAX, "{case}");
            Ok(vec![Buffer::F32(out)])
        };
        compared += reference::conform(&case, run).unwrap_or_else(|why| panic!("{why}")).compared;
    }
    assert!(compared > 5000, "{compared}");
}

#[test]
fn the_first_index_outside_of_the_table_is_reported() {
    for columns in [0usize, 1, 4, 7] {
        let table = vec![1.0; 3 * columns];
        let indices = [0, 2, 3, 1, u32::MAX, 7];
        let (out, report) = run_gather(&table, [3, columns], &indices).unwrap();
        assert_eq!((report >> 32, report as u32), (2, 3), "{columns} columns");
        assert_eq!(out[..2 * columns], table[..2 * columns]);
    }
}
