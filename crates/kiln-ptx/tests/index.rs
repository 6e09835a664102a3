//! Kernels that choose by index, run as text, against the reference.

mod support;

use kiln_ir::Buffer;
use kiln_ir::op::{Gather as GatherOp, Op, Operation, WriteRows as WriteRowsOp, reference};
use kiln_ptx::kernels::gather::Gather;
use kiln_ptx::kernels::write_rows::WriteRows;
use support::Device;

fn bytes(indices: &[u32]) -> Vec<u8> {
    indices.iter().flat_map(|index| index.to_le_bytes()).collect()
}

/// Rows of so many bytes, and what was reported.
fn run_gather(table: &[u8], [rows, row]: [usize; 2], indices: &[u32]) -> Result<(Vec<u8>, u64), String> {
    let mut device = Device::default();
    let kernel = Gather::new(row);
    let result = indices.len() * row;
    let buffers = [
        device.upload(table),
        device.upload(&bytes(indices)),
        device.allocate(result),
        device.upload(&u64::MAX.to_le_bytes()),
    ];
    device.run(&kernel, &kernel.launch(indices.len(), rows, row).unwrap(), &buffers)?;
    let report = device.download(buffers[3]).try_into().map_or(0, u64::from_le_bytes);
    Ok((device.download(buffers[2])[..result].to_vec(), report))
}

#[test]
fn gather_keeps_its_contract() {
    let mut compared = 0;
    for case in GatherOp::cases() {
        let run = |op: &Op, inputs: &[kiln_ir::Operand<'_>]| {
            let (table, indices) = (inputs[0], inputs[1].data().u32());
            let rows = table.shape().rows();
            let row = table.ty().bytes() / rows.max(1);
            let (out, report) =
                run_gather(table.data().as_bytes(), [rows, row], indices).unwrap_or_else(|why| panic!("{case}: {why}"));
            assert_eq!(report, u64::MAX, "{case}");
            // What the rows stand for is made by other kernels.
            let mut stored = Buffer::with_bytes(table.ty().dtype, out.len()).unwrap();
            stored.as_mut().as_bytes().copy_from_slice(&out);
            let ty = op.infer(&[table.ty(), inputs[1].ty()]).unwrap()[0];
            if ty.dtype == table.ty().dtype {
                return Ok(vec![stored]);
            }
            let mut numbers = vec![0.0; ty.shape.numel()];
            match &stored {
                Buffer::Blocks(format, blocks) => format.decode(blocks, &mut numbers).unwrap(),
                other => kiln_ir::widen(other.as_data(), &mut numbers),
            }
            Ok(vec![Buffer::F32(numbers)])
        };
        compared += reference::conform(&case, run).unwrap_or_else(|why| panic!("{why}")).compared;
    }
    assert!(compared > 5000, "{compared}");
}

#[test]
fn the_first_index_outside_of_the_table_is_reported() {
    for row in [0usize, 1, 6, 12, 16, 48] {
        let table: Vec<u8> = (1..=3 * row as u8).collect();
        let indices = [0, 2, 3, 1, u32::MAX, 7];
        let (out, report) = run_gather(&table, [3, row], &indices).unwrap();
        assert_eq!((report >> 32, report as u32), (2, 3), "rows of {row} bytes");
        assert_eq!((&out[..row], &out[row..2 * row]), (&table[..row], &table[2 * row..]), "rows of {row} bytes");
    }
}

/// What `x` is afterwards, and what was reported. Rows are stored as those of `x` are.
fn run_write_rows(inputs: &[kiln_ir::Operand<'_>], rows: &[u8]) -> Result<(Vec<u8>, u64), String> {
    let mut device = Device::default();
    let [x, new, positions] = [0, 1, 2].map(|i| inputs[i]);
    let e = WriteRowsOp.extents(&x.shape(), &new.shape(), &positions.shape()).unwrap();
    let row = rows.len().checked_div(e.outer * e.s).unwrap_or(0);
    let kernel = WriteRows::new(row);
    let buffers = [
        device.upload(rows),
        device.upload(&bytes(positions.data().u32())),
        device.upload(x.data().as_bytes()),
        device.upload(&u64::MAX.to_le_bytes()),
    ];
    if e.s > 0 && !positions.shape().is_empty() {
        device.run(&kernel, &kernel.launch(&e, row, positions.shape().numel()).unwrap(), &buffers)?;
    }
    let report = device.download(buffers[3]).try_into().map_or(0, u64::from_le_bytes);
    Ok((device.download(buffers[2])[..x.ty().bytes()].to_vec(), report))
}

#[test]
fn rows_are_written_as_the_contract_says() {
    let mut compared = 0;
    for case in WriteRowsOp::cases() {
        let run = |_: &Op, inputs: &[kiln_ir::Operand<'_>]| {
            let dtype = inputs[0].data().dtype();
            // Other kernels make the rows that are stored.
            let stored = match inputs[1].data() {
                same if same.dtype() == dtype => same.to_buffer().unwrap(),
                other => WriteRowsOp::stored(other, dtype).unwrap(),
            };
            let (out, report) =
                run_write_rows(inputs, stored.as_data().as_bytes()).unwrap_or_else(|why| panic!("{case}: {why}"));
            assert_eq!(report, u64::MAX, "{case}");
            let mut written = Buffer::with_bytes(dtype, out.len()).unwrap();
            written.as_mut().as_bytes().copy_from_slice(&out);
            Ok(vec![written])
        };
        compared += reference::conform(&case, run).unwrap_or_else(|why| panic!("{why}")).compared;
    }
    assert!(compared > 5000, "{compared}");
}

#[test]
fn a_position_out_of_range_is_reported_and_no_row_is_written() {
    for columns in [1, 3, 4, 0] {
        let x = vec![1.0; 5 * columns];
        let rows = vec![2.0; 4 * columns];
        let positions = [3, 5, 0, u32::MAX - 1];
        let inputs = [
            kiln_ir::Operand::f32(&x, &[5, columns]).unwrap(),
            kiln_ir::Operand::f32(&rows, &[4, columns]).unwrap(),
            kiln_ir::Operand::elements(&positions, &[4]).unwrap(),
        ];
        let (out, report) = run_write_rows(&inputs, inputs[1].data().as_bytes()).unwrap();
        assert_eq!((report >> 32, report as u32), (1, 5), "{columns} columns");
        assert_eq!(out, inputs[0].data().as_bytes(), "{columns} columns");
    }
}
