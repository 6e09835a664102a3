//! Sums over the devices of a group, run as text: every device gets the sum in their order, whichever of them is ahead.

use kiln_ptx::Kernel;
use kiln_ptx::kernels::all_reduce::AllReduce;

use crate::support::{Device, floats, words};

/// Random words (a linear congruential generator).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    /// From -1 to 1, of magnitudes that make sums depend on their order.
    fn float(&mut self) -> f32 {
        (self.below(2001) as f32 - 1000.0) / 1000.0 * [1.0, 1e-4, 3e3][self.below(3)]
    }
}

/// The destination of the result: memory of its own, that of the first operand or that of the last one.
#[derive(Debug, Clone, Copy)]
enum Out {
    Apart,
    First,
    Last,
}

impl Out {
    const ALL: [Self; 3] = [Self::Apart, Self::First, Self::Last];
}

/// A group whose devices share one memory.
struct Group {
    memory: Device,
    regions: Vec<usize>,
    random: Random,
}

impl Group {
    /// Regions that begin at these epochs for all blocks.
    fn new(devices: usize, epoch: u32) -> Self {
        let mut memory = Device::default();
        let mut bytes = vec![0; AllReduce::exchange_bytes(devices)];
        for block in 0..128 {
            // The counters and the flags, 128 bytes from one another. There are no flags for pairs, only their counter.
            let first = 128 * block * (devices + 1);
            for at in (0..=devices).map(|line| first + 128 * line).chain([first + 4]) {
                bytes[at..at + 4].copy_from_slice(&epoch.to_le_bytes());
            }
        }
        let regions = (0..devices).map(|_| memory.upload(&bytes)).collect();
        Self { memory, regions, random: Random(7 * devices as u64) }
    }

    /// Sums of `n` random elements by the kernel for them, on devices with this number of multiprocessors.
    fn sums(&mut self, n: usize, multiprocessors: u32, addend: bool, out: Out) -> String {
        let kernel = AllReduce::new(self.regions.len(), n).unwrap().adding(addend);
        self.sums_by(kernel, n, multiprocessors, addend, out)
    }

    /// Sums of `n` random elements by any kernel for groups of this size.
    fn sums_by(&mut self, kernel: AllReduce, n: usize, multiprocessors: u32, adds: bool, out: Out) -> String {
        let devices = self.regions.len();
        let mut floats_of = |n| -> Vec<f32> { (0..n).map(|_| self.random.float()).collect() };
        let x: Vec<Vec<f32>> = (0..devices).map(|_| floats_of(n)).collect();
        let addend = if adds { floats_of(n) } else { Vec::new() };
        let sum = |i: usize| {
            let sum = x[1..].iter().fold(x[0][i], |sum, x| sum + x[i]);
            if adds { sum + addend[i] } else { sum }
        };
        let wanted: Vec<u32> = (0..n).map(|i| sum(i).to_bits()).collect();
        let launch = kernel.launch(n, multiprocessors).unwrap();
        let bytes = 4 * n.next_multiple_of(4);
        let upload = |memory: &mut Device, x: &[f32]| {
            let mut padded = words(x);
            padded.resize(bytes, 0xff);
            memory.upload(&padded)
        };
        let mut buffers = Vec::new();
        for (x, &region) in x.iter().zip(&self.regions) {
            let mut of_device = vec![upload(&mut self.memory, x)];
            if adds {
                of_device.push(upload(&mut self.memory, &addend));
            }
            of_device.push(match out {
                Out::Apart => self.memory.allocate(bytes),
                Out::First => of_device[0],
                Out::Last => of_device[of_device.len() - 1],
            });
            of_device.push(region);
            of_device.extend(&self.regions);
            buffers.push(of_device);
        }
        let random = &mut self.random;
        self.memory.run_group(&kernel, &launch, &buffers, |running| random.below(running)).unwrap();
        for (device, buffers) in buffers.iter().enumerate() {
            let got: Vec<u32> =
                floats(self.memory.download(buffers[1 + usize::from(adds)]))[..n].iter().map(|x| x.to_bits()).collect();
            assert_eq!(got, wanted, "device {device} of {devices}, {n} elements");
        }
        kernel.name()
    }
}

#[test]
fn every_device_gets_the_sum_in_their_order() {
    for devices in [1, 2, 3] {
        let mut group = Group::new(devices, 0);
        let name =
            |form: &str, addend: bool| format!("all_reduce_{devices}_{form}{}", if addend { "_addend" } else { "" });
        for (addend, out) in [(false, Out::Apart), (false, Out::First), (true, Out::Apart), (true, Out::Last)] {
            assert_eq!(group.sums(1, 132, addend, out), name("narrow", addend));
            assert_eq!(group.sums(4097, 132, addend, out), name("narrow", addend));
            assert_eq!(group.sums(65_537, 132, addend, out), name("medium", addend));
            assert_eq!(group.sums(5003, 2, addend, out), name("narrow", addend));
        }
    }
    assert_eq!(Group::new(2, 0).sums(262_145, 132, true, Out::First), "all_reduce_2_wide_addend");
}

#[test]
fn launches_of_all_forms_use_the_same_regions() {
    for devices in 1..=4 {
        let mut group = Group::new(devices, 0);
        let prefix = format!("all_reduce_{devices}_");
        let kernels: Vec<AllReduce> =
            AllReduce::all().into_iter().filter(|kernel| kernel.name().starts_with(&prefix)).collect();
        assert_eq!(kernels.len(), 6);
        for _ in 0..40 {
            let kernel = kernels[group.random.below(6)];
            // Up to 13 chunks of the narrow form, for one block, two or three.
            let n = 1 + group.random.below(6500);
            let multiprocessors = 1 + group.random.below(3) as u32;
            let out = Out::ALL[group.random.below(3)];
            group.sums_by(kernel, n, multiprocessors, kernel.name().ends_with("addend"), out);
        }
    }
}

#[test]
fn larger_groups_have_larger_regions() {
    // The regions of eight devices are half a gigabyte together, those of six a quarter.
    let mut group = Group::new(6, 0);
    for _ in 0..4 {
        group.sums(2051, 3, false, Out::First);
    }
    assert_eq!(AllReduce::exchange_bytes(8), 128 * 9 * 128 + 128 * 2 * 8 * (36 << 10));
}

#[test]
fn epochs_wrap_around() {
    let mut group = Group::new(2, u32::MAX - 2);
    for _ in 0..3 {
        group.sums(2050, 2, false, Out::Apart);
    }
}

#[test]
fn the_form_follows_from_the_number_of_elements() {
    for (n, form) in [(0, "narrow"), (65_536, "narrow"), (65_537, "medium"), (262_144, "medium"), (262_145, "wide")] {
        assert_eq!(AllReduce::new(2, n).unwrap().name(), format!("all_reduce_2_{form}"));
    }
}

#[test]
fn nothing_is_launched_for_no_elements_and_a_group_has_up_to_eight_devices() {
    let kernel = AllReduce::new(8, 0).unwrap();
    assert_eq!(kernel.launch(0, 132).unwrap().grid, [0, 1, 1]);
    assert_eq!(kernel.launch(1 << 16, 132).unwrap().grid, [128, 1, 1]);
    assert_eq!(kernel.launch(1 << 16, 68).unwrap().grid, [68, 1, 1]);
    assert_eq!(AllReduce::new(8, 1 << 17).unwrap().launch(1 << 17, 132).unwrap().grid, [64, 1, 1]);
    assert_eq!(AllReduce::new(8, 1 << 20).unwrap().launch(1 << 20, 132).unwrap().grid, [128, 1, 1]);
    assert!(kernel.launch(u32::MAX as usize, 132).unwrap_err().to_string().contains("elements"));
    for devices in [0, 9] {
        assert!(AllReduce::new(devices, 1).unwrap_err().to_string().contains("1 to 8 devices"));
    }
}

#[test]
fn a_device_gives_up_where_another_never_comes() {
    let mut group = Group::new(2, 0);
    let x = group.memory.upload(&[0; 16]);
    let kernel = AllReduce::new(2, 4).unwrap();
    let launch = kernel.launch(4, 132).unwrap();
    let buffers = vec![x, x, group.regions[1], group.regions[0], group.regions[1]];
    let mut polls = 0;
    let run = group.memory.run_group(&kernel, &launch, &[buffers], |running_or_threads| {
        polls += u32::from(running_or_threads == 1);
        0
    });
    assert!(run.unwrap_err().contains("it gives up"));
    // A minute at ten milliseconds for each of two halves of a vector, which have two pairs each. The clock is looked at after 1024
    // polls of a vector.
    assert!((2 * 6000..2 * 9000).contains(&polls), "{polls}");
}
