//! Sums over the devices of a group, run as text: every device gets the sum in their order, whichever of them is ahead.

mod support;

use kiln_ptx::Kernel;
use kiln_ptx::kernels::all_reduce::AllReduce;
use support::{Device, floats, words};

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
            // The counter and the flags, 128 bytes from one another.
            for line in 0..=devices {
                let at = 128 * (block * (devices + 1) + line);
                bytes[at..at + 4].copy_from_slice(&epoch.to_le_bytes());
            }
        }
        let regions = (0..devices).map(|_| memory.upload(&bytes)).collect();
        Self { memory, regions, random: Random(7 * devices as u64) }
    }

    /// Sums of `n` random elements, in place or not, on devices with this number of multiprocessors.
    fn sums(&mut self, n: usize, multiprocessors: u32, in_place: bool) -> String {
        let devices = self.regions.len();
        let x: Vec<Vec<f32>> = (0..devices).map(|_| (0..n).map(|_| self.random.float()).collect()).collect();
        let wanted: Vec<u32> = (0..n).map(|i| x[1..].iter().fold(x[0][i], |sum, x| sum + x[i]).to_bits()).collect();
        let kernel = AllReduce::new(devices, n).unwrap();
        let launch = kernel.launch(n, multiprocessors).unwrap();
        let buffers: Vec<Vec<usize>> = (0..devices)
            .map(|device| {
                let mut bytes = words(&x[device]);
                bytes.resize(bytes.len().next_multiple_of(16), 0xff);
                let x = self.memory.upload(&bytes);
                let out = if in_place { x } else { self.memory.allocate(bytes.len()) };
                [x, out, self.regions[device]].into_iter().chain(self.regions.iter().copied()).collect()
            })
            .collect();
        let random = &mut self.random;
        self.memory.run_group(&kernel, &launch, &buffers, |running| random.below(running)).unwrap();
        for (device, buffers) in buffers.iter().enumerate() {
            let got: Vec<u32> = floats(self.memory.download(buffers[1]))[..n].iter().map(|x| x.to_bits()).collect();
            assert_eq!(got, wanted, "device {device} of {devices}, {n} elements");
        }
        kernel.name()
    }
}

#[test]
fn every_device_gets_the_sum_in_their_order() {
    for devices in [1, 2, 3] {
        let mut group = Group::new(devices, 0);
        // One after the other in the same regions: both forms, several chunks of a block, tails.
        let narrow = format!("all_reduce_{devices}_narrow");
        let wide = format!("all_reduce_{devices}_wide");
        for in_place in [false, true] {
            assert_eq!(group.sums(1, 132, in_place), narrow);
            assert_eq!(group.sums(4097, 132, in_place), narrow);
            assert_eq!(group.sums(65_537, 132, in_place), wide);
            assert_eq!(group.sums(5003, 2, in_place), narrow);
        }
    }
}

#[test]
fn larger_groups_have_larger_regions() {
    // The regions of eight devices are half a gigabyte together, those of six a quarter.
    let mut group = Group::new(6, 0);
    for _ in 0..4 {
        group.sums(2051, 3, true);
    }
    assert_eq!(AllReduce::exchange_bytes(8), 128 * 9 * 128 + 128 * 2 * 8 * (32 << 10));
}

#[test]
fn epochs_wrap_around() {
    let mut group = Group::new(2, u32::MAX - 2);
    for _ in 0..3 {
        group.sums(2050, 2, false);
    }
}

#[test]
fn nothing_is_launched_for_no_elements_and_a_group_has_up_to_eight_devices() {
    let kernel = AllReduce::new(8, 0).unwrap();
    assert_eq!(kernel.launch(0, 132).unwrap().grid, [0, 1, 1]);
    assert_eq!(kernel.launch(1 << 16, 132).unwrap().grid, [128, 1, 1]);
    assert_eq!(kernel.launch(1 << 16, 68).unwrap().grid, [68, 1, 1]);
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
    let run = group.memory.run_group(&kernel, &launch, &[buffers], |_| {
        polls += 1;
        0
    });
    assert!(run.unwrap_err().contains("it gives up"));
    // A minute at ten milliseconds a poll, and the clock is looked at now and then.
    assert!((6000..8000).contains(&polls), "{polls}");
}
