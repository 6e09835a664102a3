//! Kernels that choose by index, run as text, against the reference.

use kiln_ir::op::reference::Case;
use kiln_ir::op::{
    Gather as GatherOp, IndexAdd as IndexAddOp, Op, Operation, Scatter as ScatterOp, WriteRows as WriteRowsOp,
    reference,
};
use kiln_ir::{Buffer, Operand};
use kiln_ptx::kernels::gather::Gather;
use kiln_ptx::kernels::scatter::{IndexAdd, LastSource, Scatter};
use kiln_ptx::kernels::write_rows::WriteRows;

use crate::support::Device;

fn bytes(indices: &[u32]) -> Vec<u8> {
    indices.iter().flat_map(|index| index.to_le_bytes()).collect()
}

/// Rows of this many bytes, and what was reported.
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
        let run = |op: &Op, inputs: &[Operand<'_>]| {
            let (table, indices) = (inputs[0], inputs[1].data().u32());
            let rows = table.shape().rows();
            let row = table.ty().bytes() / rows.max(1);
            let (out, report) =
                run_gather(table.data().as_bytes(), [rows, row], indices).unwrap_or_else(|why| panic!("{case}: {why}"));
            assert_eq!(report, u64::MAX, "{case}");
            // Other kernels make the content of the rows.
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

/// The contents of `x` afterwards, and the report.
fn run_write_rows(inputs: &[Operand<'_>]) -> Result<(Vec<u8>, u64), String> {
    let mut device = Device::default();
    let [x, new, positions] = [0, 1, 2].map(|i| inputs[i]);
    let e = WriteRowsOp.extents(&x.shape(), &new.shape(), &positions.shape()).unwrap();
    let types = [new.data().dtype(), x.data().dtype()];
    let rounding = WriteRows::rounding(e.d, types);
    // Other kernels round the rows that this kernel does not round itself.
    let rows = match rounding {
        None if types[0] != types[1] => WriteRowsOp::stored(new.data(), types[1]).unwrap(),
        _ => new.data().to_buffer().unwrap(),
    };
    let rows = rows.as_data().as_bytes();
    let row = rows.len().checked_div(e.outer * e.s).unwrap_or(0);
    let kernel = rounding.unwrap_or_else(|| WriteRows::new(row));
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
        let run = |_: &Op, inputs: &[Operand<'_>]| {
            let dtype = inputs[0].data().dtype();
            let (out, report) = run_write_rows(inputs).unwrap_or_else(|why| panic!("{case}: {why}"));
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
            Operand::f32(&x, &[5, columns]).unwrap(),
            Operand::f32(&rows, &[4, columns]).unwrap(),
            Operand::elements(&positions, &[4]).unwrap(),
        ];
        let (out, report) = run_write_rows(&inputs).unwrap();
        assert_eq!((report >> 32, report as u32), (1, 5), "{columns} columns");
        assert_eq!(out, inputs[0].data().as_bytes(), "{columns} columns");
    }
}

/// A case on buffers, whose results `run` leaves in the last one.
fn conforms(case: &Case, run: impl Fn(&mut Device, [usize; 4], [usize; 3]) -> Result<(), String>) -> usize {
    let [rows, columns] = *case.inputs[0].shape.dims() else { panic!("{case}") };
    let results = |_: &Op, inputs: &[Operand<'_>]| {
        let mut device = Device::default();
        let [table, indices, source] = [0, 1, 2].map(|i: usize| device.upload(inputs[i].data().as_bytes()));
        let mut result = Buffer::zeros(&inputs[0].ty())?;
        let out = device.allocate(inputs[0].ty().bytes());
        if !inputs[0].shape().is_empty() {
            let extents = [rows, columns, inputs[1].shape().numel()];
            run(&mut device, [table, indices, source, out], extents).unwrap_or_else(|why| panic!("{case}: {why}"));
            result.as_mut().as_bytes().copy_from_slice(device.download(out));
        }
        Ok(vec![result])
    };
    reference::conform(case, results).unwrap_or_else(|why| panic!("{why}")).compared
}

#[test]
fn scatter_keeps_its_contract() {
    let mut compared = 0;
    for case in ScatterOp::cases() {
        let size = case.inputs[0].buffer.as_data().dtype().size();
        compared += conforms(&case, |device, [table, indices, source, out], [rows, columns, count]| {
            let row = columns * size;
            let last = device.upload(&vec![u8::MAX; 8 * rows]);
            device.run(&LastSource, &LastSource.launch(count, rows).unwrap(), &[indices, last])?;
            let kernel = Scatter::new(row);
            device.run(&kernel, &kernel.launch(rows, row).unwrap(), &[table, source, last, out])
        });
    }
    assert!(compared > 100_000, "{compared}");
}

#[test]
fn index_add_keeps_its_contract() {
    let mut compared = 0;
    for case in IndexAddOp::cases() {
        let given = case.inputs[1].buffer.as_data();
        let mut order: Vec<u32> = (0..given.u32().len() as u32).collect();
        order.sort_by_key(|&i| given.u32()[i as usize]);
        let sorted: Vec<u8> = order.iter().flat_map(|&i| given.u32()[i as usize].to_le_bytes()).collect();
        let order: Vec<u8> = order.iter().flat_map(|i| i.to_le_bytes()).collect();
        let kernel = IndexAdd::new(case.inputs[0].buffer.as_data().dtype());
        compared += conforms(&case, |device, [table, _, source, out], [rows, columns, count]| {
            let [sorted, order] = [&sorted, &order].map(|words| device.upload(words));
            let launch = kernel.launch(rows, columns, count).unwrap();
            device.run(&kernel, &launch, &[table, sorted, order, source, out])
        });
    }
    assert!(compared > 50_000, "{compared}");
}
