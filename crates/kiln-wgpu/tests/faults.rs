//! Faults of a device: typed errors, host data intact, everything else still usable.

mod support;

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};

use kiln_ir::op::{Bound, Contract, Custom, CustomCall, CustomOperation, Elementwise, Gather, Matmul, Outputs};
use kiln_ir::{Error, Operand, Operations, Record, Result, TensorType};
use kiln_wgpu::runtime::block_on;
use kiln_wgpu::{
    AdapterChoice, AdapterKind, BufferId, GpuBackend, GpuCommandBatch, GpuDevice, GpuDeviceOptions, GpuMatmulCache,
    WgslKernel, WgslLaunch,
};

#[test]
fn a_device_that_is_destroyed_says_so_and_another_can_be_opened() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let host = [1.0, 2.0, 3.0];
    let x = batch.upload(&host, &[3]).unwrap();
    let y = batch.exp(x).unwrap();
    batch.execute_all().unwrap();
    let tensor = batch.tensor(y).unwrap();
    device.destroy();
    assert!(device.is_lost());
    let lost = |error: Option<Error>| matches!(error, Some(Error::DeviceLost { .. }));
    assert!(lost(batch.read(y).err()));
    assert!(lost(batch.execute_all().err()));
    assert!(lost(batch.set(x, &host).err()));
    assert!(lost(batch.upload(&host, &[3]).err()));
    assert!(lost(tensor.read().err()));
    assert!(lost(device.run(&Elementwise::relu().into(), &[&tensor]).err()));
    assert!(lost(GpuBackend::on(device).relu(&host).err()));
    let Some(again) = support::device() else { return };
    assert_eq!(GpuBackend::on(again).scale(&host, 2.0).unwrap(), [2.0, 4.0, 6.0]);
}

/// Results that take a device some time, each of them needed.
fn long_work(batch: &mut GpuCommandBatch) -> Vec<BufferId> {
    let n = 1 << 20;
    let mut y = batch.upload(&vec![0.5; n], &[n]).unwrap();
    let step = |_| {
        y = batch.tanh(y).unwrap();
        batch.mish(y).unwrap()
    };
    (0..20).map(step).collect()
}

#[test]
fn a_device_destroyed_while_it_works_is_an_error() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let wanted = long_work(&mut batch);
    // Nothing waits for it: it is in flight or done. In both cases the next call is an error.
    batch.execute(&wanted).unwrap();
    device.destroy();
    let lost = |error: Option<Error>| matches!(error, Some(Error::DeviceLost { .. }));
    assert!(lost(batch.read(wanted[0]).err()) && lost(batch.read_many(&wanted).err()));
    assert!(lost(device.finish().err()) && lost(batch.execute_all().err()));

    // A caller that is waiting already gets the error too.
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let wanted = long_work(&mut batch);
    batch.execute(&wanted).unwrap();
    let mut reading = pin!(batch.read_many_async(&wanted));
    let first = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    device.destroy();
    match first {
        Poll::Pending => assert!(lost(block_on(reading).err())),
        Poll::Ready(read) => assert!(read.is_ok(), "it was done before: {:?}", read.err()),
    }
}

/// Polls a future once and drops it; whether it was done.
fn poll_once<T>(future: impl Future<Output = Result<T>>) -> bool {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => {
            assert!(done.is_ok(), "{:?}", done.err());
            true
        }
        Poll::Pending => false,
    }
}

#[test]
fn a_future_that_is_dropped_on_the_way_leaves_its_object_as_it_was() {
    let Some(device) = support::device() else { return };
    let mut busy = GpuCommandBatch::new(device.clone());
    let long = long_work(&mut busy);
    busy.prepare(&long).unwrap();

    // With indices, which can be invalid: then every execution downloads something.
    let mut batch = GpuCommandBatch::new(device.clone());
    let table = batch.upload(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let indices = batch.upload_indices(&[1, 0, 1], &[3]).unwrap();
    let rows = batch.gather(table, indices).unwrap();
    let sum = batch.sum(rows).unwrap();
    let double = batch.scale(table, 2.0).unwrap();
    let table_here = device.upload(&Operand::f32(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap()).unwrap();
    let indices_here = device.upload(&Operand::elements(&[0u32, 1], &[2]).unwrap()).unwrap();
    let mut operation = device.prepare(&Gather.into(), &[&table_here, &indices_here]).unwrap();
    let backend = GpuBackend::on(device.clone());
    let (table_op, indices_op) =
        (Operand::f32(&[5.0, 6.0], &[2, 1]).unwrap(), Operand::elements(&[1u32], &[1]).unwrap());
    let mut cache = GpuMatmulCache::new(device.clone());
    cache.upload_weight("w", &[2.0, 3.0], 1, 2).unwrap();
    // Compiles everything.
    batch.run(&[rows, sum]).unwrap();
    batch.run(&[double]).unwrap();
    backend.run(&Gather.into(), &[table_op, indices_op]).unwrap();
    backend.scale(&[1.0], 2.0).unwrap();
    cache.matmul("w", &[1.0, 1.0]).unwrap();
    operation.run().unwrap();

    for round in 0..3 {
        // The device has other work first, so that hardly anything is done at the first poll.
        let mut done = Vec::new();
        busy.execute(&long).unwrap();
        done.push(poll_once(batch.execute_async(&[rows, sum])));
        done.push(poll_once(batch.run_async(&[rows, sum])));
        done.push(poll_once(batch.run_async(&[double])));
        done.push(poll_once(batch.read_buffer_async(table)));
        done.push(poll_once(batch.read_many_async(&[table, indices])));
        done.push(poll_once(operation.run_async()));
        done.push(poll_once(backend.run_async(&Gather.into(), &[table_op, indices_op])));
        done.push(poll_once(cache.matmul_async("w", &[1.0, 1.0])));
        done.push(poll_once(table_here.read_async()));
        done.push(poll_once(device.finish_async()));
        if device.adapter().kind == AdapterKind::Software {
            assert!(done.contains(&false), "{done:?}");
        }
        let factor = (round + 1) as f32;
        batch.set(table, &[factor, 0.0, 10.0 * factor, 1.0]).unwrap();
        batch.execute(&[rows, sum]).unwrap();
        assert_eq!(batch.read(rows).unwrap(), [10.0 * factor, 1.0, factor, 0.0, 10.0 * factor, 1.0]);
        assert_eq!(batch.run(&[rows, sum]).unwrap()[1].as_data().f32(), [21.0 * factor + 2.0]);
        assert_eq!(batch.run(&[double]).unwrap()[0].as_data().f32(), [2.0 * factor, 0.0, 20.0 * factor, 2.0]);
        operation.run().unwrap();
        assert_eq!(operation.results()[0].read().unwrap().as_data().f32(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(backend.run(&Gather.into(), &[table_op, indices_op]).unwrap()[0].as_data().f32(), [6.0]);
        assert_eq!(cache.matmul("w", &[1.0, factor]).unwrap(), [2.0 + 3.0 * factor]);
        device.finish().unwrap();
    }
    // An abandoned compilation may continue or not; in both cases it can be requested again.
    let y = batch.mish(double).unwrap();
    let y = batch.softmax(y).unwrap();
    poll_once(batch.run_async(&[y]));
    assert_eq!(batch.run(&[y]).unwrap()[0].as_data().f32().len(), 4);
    poll_once(GpuDevice::open_async(&AdapterChoice::Any));
    poll_once(GpuDevice::find_async(&AdapterChoice::Any));
    let opened = block_on(GpuDevice::open_async(&AdapterChoice::Any)).unwrap();
    assert_eq!(GpuBackend::on(opened).scale(&[1.0], 3.0).unwrap(), [3.0]);
}

#[test]
fn futures_can_go_to_other_threads() {
    fn sendable<F: Future + Send>(_: &F) {}
    let Some(device) = support::device() else { return };
    sendable(&GpuDevice::open_async(&AdapterChoice::Any));
    sendable(&device.finish_async());
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0], &[1]).unwrap();
    sendable(&batch.run_async(&[x]));
    sendable(&batch.execute_async(&[x]));
    sendable(&batch.read_buffer_async(x));
}

#[test]
fn more_than_the_device_has_is_an_error_and_the_device_goes_on() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    // An outer product of two vectors: small operands, a result beyond any buffer.
    let n = 1 << 20;
    let x = device.upload(&Operand::f32(&vec![1.0; n], &[n, 1]).unwrap()).unwrap();
    let y = x.reshape(&[1, n]).unwrap();
    let refused = device.run(&Matmul::default().into(), &[&x, &y]).unwrap_err();
    assert!(matches!(refused, Error::Limit { .. } | Error::OutOfMemory { .. } | Error::Overflow { .. }), "{refused}");
    assert_eq!(backend.scale(&[1.0], 3.0).unwrap(), [3.0]);
}

#[test]
fn an_index_outside_of_its_table_is_found_on_the_device() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device);
    let table = batch.upload(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let indices = batch.upload_indices(&[1, 0, 7, 9], &[4]).unwrap();
    let rows = batch.gather(table, indices).unwrap();
    let Err(Error::Index { position, index, bound, .. }) = batch.run(&[rows]) else { panic!("no such row") };
    assert_eq!((position, index, bound), (2, 7, 2));
    assert!(batch.execute_all().is_err(), "also when nothing is read");
    // The tables are still there.
    assert_eq!(batch.read(table).unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn two_threads_on_one_device_and_ten_devices_in_one_process() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let backend = &backend;
            scope.spawn(move || {
                for i in 0..50 {
                    let factor = (thread * 100 + i) as f32;
                    let n = 100 + i;
                    assert_eq!(backend.scale(&vec![1.0; n], factor).unwrap(), vec![factor; n]);
                }
            });
        }
    });
    let devices: Vec<GpuDevice> = (0..10).map(|_| support::device().unwrap()).collect();
    for (i, device) in devices.into_iter().enumerate() {
        assert_eq!(GpuBackend::on(device).scale(&[1.0], i as f32).unwrap(), [i as f32]);
    }
}

#[test]
fn threads_open_devices_at_the_same_time() {
    if support::device().is_none() {
        return;
    }
    let started = Barrier::new(8);
    let open = |i: usize| {
        started.wait();
        GpuDevice::list_adapters();
        let device = match i % 2 {
            0 => support::device().unwrap(),
            _ => block_on(GpuDevice::open_with_async(&AdapterChoice::Any, &GpuDeviceOptions::new().checks())).unwrap(),
        };
        // All are open at once, so none is a retired device.
        started.wait();
        assert_eq!(GpuBackend::on(device).scale(&[1.0], i as f32).unwrap(), [i as f32]);
    };
    let open = &open;
    std::thread::scope(|scope| (0..8).for_each(|i| _ = scope.spawn(move || open(i))));
}

#[test]
fn work_in_flight_may_be_dropped() {
    let Some(device) = support::device() else { return };
    for round in 0..4 {
        let mut batch = GpuCommandBatch::new(device.clone());
        let wanted = long_work(&mut batch);
        let x = batch.upload(&vec![round as f32; 1 << 16], &[1 << 16]).unwrap();
        let y = batch.scale(x, 2.0).unwrap();
        batch.execute(&[&wanted[..], &[y]].concat()).unwrap();
        let held = batch.tensor(y).unwrap();
        // The batch is dropped while it runs, and later allocations take its memory.
        drop(batch);
        let noise = device.upload(&Operand::f32(&vec![-7.0; 1 << 20], &[1 << 20]).unwrap()).unwrap();
        drop(noise);
        // An operation and its operand are dropped before its result is read.
        let mut operation = device.prepare(&Elementwise::scale(5.0).into(), &[&held]).unwrap();
        operation.run().unwrap();
        let result = operation.results().remove(0);
        drop((operation, held));
        device.trim();
        assert_eq!(result.read().unwrap().as_data().f32(), vec![10.0 * round as f32; 1 << 16]);
    }
    // The device itself is dropped; the next one opened may be the same, still busy.
    let mut batch = GpuCommandBatch::new(device.clone());
    let wanted = long_work(&mut batch);
    batch.execute(&wanted).unwrap();
    drop((batch, device));
    let Some(again) = support::device() else { return };
    assert_eq!(GpuBackend::on(again).scale(&[1.0], 3.0).unwrap(), [3.0]);
}

#[test]
#[cfg(target_os = "linux")]
fn what_keeps_gpus_away_is_named_for_each_interface() {
    const CHILD: &str = "KILN_TEST_WITHOUT_DRIVERS";
    if std::env::var_os(CHILD).is_some() {
        let refused = GpuDevice::open(&AdapterChoice::Any).unwrap_err();
        return println!("{refused}\n{:?}", GpuDevice::absent_apis());
    }
    // A process that finds no driver, as on a machine without one.
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "what_keeps_gpus_away_is_named_for_each_interface", "--nocapture"]).env(CHILD, "1");
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        child.env(variable, "/nonexistent/driver.json");
    }
    let output = child.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
    assert!(["vulkan: ", "metal: only Apple", "dx12: only Windows"].iter().all(|text| told.contains(text)), "{told}");
    assert!(told.contains("there is no loader") || told.contains("install the driver"), "{told}");
    assert!(GpuDevice::absent_apis().iter().any(|absent| absent.api == "metal"));
}

#[test]
fn an_adapter_that_is_not_there_is_named_with_those_that_are() {
    let missing = GpuDevice::open(&AdapterChoice::Name("no such adapter".into())).unwrap_err();
    assert!(matches!(&missing, Error::Unavailable { what, .. } if what.contains("no such adapter")), "{missing}");
    assert!(matches!(GpuDevice::open(&AdapterChoice::Index(1000)), Err(Error::Unavailable { .. })));
    let lazy = GpuBackend::with_choice(AdapterChoice::Index(1000));
    assert!(matches!(lazy.relu(&[1.0]), Err(Error::Unavailable { .. })));
    assert!(matches!(lazy.relu(&[1.0]), Err(Error::Unavailable { .. })), "each time the same");
}

/// A copy by a kernel of a program, of this source.
#[derive(Debug)]
struct Copy(Option<WgslKernel>);

impl CustomOperation for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn formula(&self) -> &'static str {
        "x"
    }

    fn infer(&self, _: &[f32], inputs: &[TensorType]) -> Result<Outputs> {
        Ok(inputs[0].into())
    }

    fn flops(&self, _: &CustomCall<'_>) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Exact, special: "" }
    }

    fn kernels(&self) -> Vec<&(dyn std::any::Any + Send + Sync)> {
        self.0.iter().map(|kernel| kernel as _).collect()
    }
}

const HEAD: &str = "#input x: array<f32>\n#output y: array<f32>\n#param n: u32\n";

const fn copy(source: &'static str) -> Copy {
    Copy(Some(WgslKernel::new(source, |call| {
        Ok(WgslLaunch { params: vec![call.outputs[0].shape.numel() as u32], workgroups: 1 })
    })))
}

/// Kernels of programs are checked: what does not fit the call or does not compile is an error, and an access beyond a buffer
/// changes nothing else.
#[test]
fn kernels_of_programs_that_are_wrong_are_errors() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let run = |operation: Copy| {
        let operation: &'static Copy = Box::leak(Box::new(operation));
        let op = Custom::new(operation, &[]).unwrap().into();
        Ok(backend.run(&op, &[Operand::vector(&[1.0, 2.0, 3.0])])?.remove(0).as_data().f32().to_vec())
    };
    let source = |body: &str| -> &'static str { Box::leak(format!("{HEAD}{body}").into_boxed_str()) };
    let main = "@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32)";
    let right = source(&format!("{main} {{ if i < p.n {{ y[i] = x[i]; }} }}"));
    assert_eq!(run(copy(right)), Ok(vec![1.0, 2.0, 3.0]));
    assert_eq!(run(Copy(None)), Err(Error::Unsupported { op: "copy", backend: "wgpu" }));
    let no_parameter = source(&format!("#param more: u32\n{main} {{ y[i] = x[i]; }}"));
    assert!(matches!(run(copy(no_parameter)), Err(Error::Parameter { op: "copy", .. })));
    let two_results = source(&format!("#output z: array<f32>\n{main} {{ y[i] = x[i]; z[i] = x[i]; }}"));
    assert!(matches!(run(copy(two_results)), Err(Error::Parameter { op: "copy", .. })));
    let broken = run(copy(source(&format!("{main} {{ y[i] = unknown; }}"))));
    assert!(matches!(&broken, Err(Error::Driver { message, .. }) if message.contains("unknown")), "{broken:?}");
    let included = run(copy(source(&format!("#include nothing\n{main} {{ y[i] = x[i]; }}"))));
    assert!(matches!(included, Err(Error::Driver { .. })), "{included:?}");
    let beyond = source(&format!("#trusted it says so\n{main} {{ y[i * 1000000u] = x[i * 1000000u]; }}"));
    assert!(run(copy(beyond)).is_ok());
    assert_eq!(run(copy(right)), Ok(vec![1.0, 2.0, 3.0]));
}
