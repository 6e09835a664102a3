//! Transfers between the host and the memory of a device.

use crate::json::{object, transparent};

/// No link of today's machines moves more bytes in a second: a measurement that says so is wrong.
pub const MOST_BANDWIDTH: f64 = 80e9;

/// Seconds of a copy over the number of its bytes, as measured at several sizes.
///
/// Between two sizes time is interpolated on the straight line through them, which is exact for `latency + bytes /
/// bandwidth`. Below the smallest size its time is kept; beyond the largest the rate between the last two is.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer(Vec<(u64, f64)>);

transparent!(Transfer);

/// The error of an implausible measured [`Transfer`].
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{bytes} bytes more took {seconds:e} s more, which is beyond {bandwidth:e} bytes a second")]
pub struct Implausible {
    /// Bytes between two sizes.
    pub bytes: u64,
    /// Seconds between them.
    pub seconds: f64,
    /// The limit in bytes a second.
    pub bandwidth: f64,
}

impl Transfer {
    /// The formula `latency + bytes / bandwidth`.
    pub fn linear(latency: f64, bandwidth: f64) -> Self {
        const LARGE: u64 = 1 << 30;
        Self(vec![(0, latency), (LARGE, latency + LARGE as f64 / bandwidth)])
    }

    /// Measured bytes and seconds, by ascending bytes. A time below that of fewer bytes was disturbed, so that of the fewer
    /// is taken down to it.
    pub fn measured(mut points: Vec<(u64, f64)>) -> Self {
        let mut least = f64::INFINITY;
        for (_, seconds) in points.iter_mut().rev() {
            least = least.min(*seconds);
            *seconds = least;
        }
        Self(points)
    }

    /// The median at each size of the first one; `None` if `all` is empty.
    pub fn median<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Option<Self> {
        let median = |&(bytes, _): &(u64, f64)| {
            let mut seconds: Vec<f64> = all.clone().map(|transfer| transfer.seconds(bytes)).collect();
            seconds.sort_by(f64::total_cmp);
            (bytes, 0.5 * (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]))
        };
        Some(Self::measured(all.clone().next()?.0.iter().map(median).collect()))
    }

    /// The same where no size is faster than `bandwidth` after the size before it.
    #[must_use]
    pub fn at_most(mut self, bandwidth: f64) -> Self {
        for i in 1..self.0.len() {
            let (bytes, seconds) = self.0[i - 1];
            self.0[i].1 = self.0[i].1.max(seconds + (self.0[i].0 - bytes) as f64 / bandwidth);
        }
        self
    }

    /// Whether no two sizes are nearer in time than `bandwidth`, or [`MOST_BANDWIDTH`], allows. Differences below half a
    /// megabyte are not checked, except the last, which predicts larger sizes: they are as short as the noise of a clock.
    ///
    /// # Errors
    /// [`Implausible`] for the first two that are.
    pub fn check(&self, bandwidth: f64) -> Result<(), Implausible> {
        let bandwidth = bandwidth.min(MOST_BANDWIDTH);
        let steps = self.0.windows(2).map(|w| (w[1].0 - w[0].0, w[1].1 - w[0].1));
        let last = self.0.len().saturating_sub(2);
        let mut checked = steps.enumerate().filter(|&(i, (bytes, _))| bytes >= 1 << 19 || i == last);
        match checked.find(|&(_, (bytes, seconds))| seconds * bandwidth < bytes as f64) {
            Some((_, (bytes, seconds))) => Err(Implausible { bytes, seconds, bandwidth }),
            None => Ok(()),
        }
    }

    /// The same with every size as slow as `bandwidth`, or [`MOST_BANDWIDTH`], allows after the size before it.
    #[must_use]
    pub fn limited(self, bandwidth: f64) -> Self {
        self.at_most(bandwidth.min(MOST_BANDWIDTH))
    }

    /// Predicted seconds to copy `bytes` bytes.
    #[inline]
    pub fn seconds(&self, bytes: u64) -> f64 {
        let points = &self.0[..];
        if let [] | [_] = points {
            return points.first().map_or(0.0, |&(_, seconds)| seconds);
        }
        let above = points.iter().position(|&(at, _)| at > bytes).unwrap_or(points.len() - 1).max(1);
        let [(from, before), (to, after)] = [points[above - 1], points[above]];
        before + bytes.saturating_sub(from) as f64 * (after - before) / (to - from) as f64
    }

    /// The measured bytes and seconds.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.0
    }

    /// Validates the values of a file.
    pub(crate) fn sound(&self, seconds: impl Fn(f64) -> Result<(), String>) -> Result<(), String> {
        if self.0.len() < 2 || self.0.windows(2).any(|w| w[0].0 >= w[1].0 || w[0].1 > w[1].1) {
            return Err("a transfer with fewer than two sizes, or whose sizes or times do not ascend".to_owned());
        }
        // Extrapolated sizes must have valid times too.
        let [.., (from, before), (to, after)] = self.0[..] else { return Ok(()) };
        if after <= before || (to - from) as f64 / (after - before) > 1e30 {
            return Err("a transfer whose two largest sizes give no rate between 0 and 1e30".to_owned());
        }
        self.0.iter().try_for_each(|&(_, time)| seconds(time))
    }
}

/// Maximum number of lines of [`Lines`].
const LINES: usize = 8;

/// A [`Transfer`] as the straight lines between its sizes, for decisions: it needs no search with branches and no division.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lines {
    /// Bytes where each line begins; infinite beyond the last line.
    from: [f64; LINES],
    /// Seconds there.
    seconds: [f64; LINES],
    /// Seconds for each byte more.
    slope: [f64; LINES],
}

impl Lines {
    /// The lines of a transfer; `None` if there are more than eight.
    pub(crate) fn of(transfer: &Transfer) -> Option<Self> {
        let points = transfer.points();
        let mut lines = Self { from: [f64::INFINITY; LINES], seconds: [0.0; LINES], slope: [0.0; LINES] };
        if points.len() > LINES + 1 {
            return None;
        }
        for (i, pair) in points.windows(2).enumerate() {
            let [(from, before), (to, after)] = [pair[0], pair[1]];
            lines.from[i] = from as f64;
            lines.seconds[i] = before;
            lines.slope[i] = (after - before) / (to - from) as f64;
        }
        Some(lines)
    }

    /// [`Transfer::seconds`], except for rounding.
    pub(crate) fn seconds(&self, bytes: f64) -> f64 {
        let begun = self.from.iter().fold(0, |begun, &from| begun + usize::from(from <= bytes));
        let line = begun.saturating_sub(1);
        self.seconds[line] + (bytes - self.from[line]).max(0.0) * self.slope[line]
    }
}

/// Transfers to a device and back.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkPath {
    /// From the host.
    pub upload: Transfer,
    /// To the host.
    pub download: Transfer,
}

object!(LinkPath { upload, download });

/// The transfers of a call of one element-wise function of f32 operands as large as the result. Devices run it on memory that the host also
/// sees, or in parts while they copy other parts, so uploads and downloads overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct ElementwisePath {
    /// An operand as large as the result, and the result, over the bytes of the result.
    pub first: Transfer,
    /// Further operands, over their bytes.
    pub further: Transfer,
}

object!(ElementwisePath { first, further });

/// The formula of [`ElementwisePath`] for the bytes of a call's operands and results.
#[inline]
pub(crate) fn of_elementwise<T>(
    [operands, results]: [u64; 2],
    [first, further]: [&T; 2],
    seconds: impl Fn(&T, u64) -> f64,
) -> f64 {
    // The smallest time of a transfer is not zero, but nothing is transferred if there is no further operand.
    let rest = Some(operands.saturating_sub(results)).filter(|&bytes| bytes > 0);
    seconds(first, results) + rest.map_or(0.0, |bytes| seconds(further, bytes))
}

/// The transfers between the host and the memory of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The transfers of a call on host memory: operands, kernel and result in one submission. What such a call takes beyond its
    /// launch, kernel and operands counts as download; a measured [`Link::round_trip`] contains it.
    pub call: LinkPath,
    /// A call that downloads as many bytes as it uploads, over the bytes of one direction. It takes less time than an upload and a download
    /// by themselves: the threads that copy are awake when the result arrives. `None` if it was not measured: then the two are added.
    pub round_trip: Option<Transfer>,
    /// The transfers of a call of one element-wise function. `None` if they were not measured: then those of other calls count.
    pub elementwise: Option<ElementwisePath>,
    /// The transfers of tensors: inputs of a recorded graph that are set before an execution, and results that are read after it.
    pub tensor: LinkPath,
}

object!(Link { call, round_trip, elementwise, tensor });

/// The formula of [`Link::round_trip`] for the bytes of a call's operands and results: a round trip of the smaller number, and what the larger
/// one takes beyond it.
#[inline]
pub(crate) fn of_round_trip<T>(
    [up, down]: [u64; 2],
    [round_trip, upload, download]: [&T; 3],
    seconds: impl Fn(&T, u64) -> f64,
) -> f64 {
    let (both, larger) = if up > down { (down, upload) } else { (up, download) };
    seconds(round_trip, both) + seconds(larger, up.max(down)) - seconds(larger, both)
}

impl Link {
    /// The formula `latency + bytes / bandwidth` for both ways.
    pub fn linear(upload: (f64, f64), download: (f64, f64)) -> Self {
        let [upload, download] = [upload, download].map(|(latency, bandwidth)| Transfer::linear(latency, bandwidth));
        let path = LinkPath { upload, download };
        Self { call: path.clone(), round_trip: None, elementwise: None, tensor: path }
    }

    /// The medians of all transfers; `None` if `all` is empty.
    pub fn median(all: &[Self]) -> Option<Self> {
        let path = |of: fn(&Self) -> &LinkPath| {
            let upload = Transfer::median(all.iter().map(|link| &of(link).upload))?;
            let download = Transfer::median(all.iter().map(|link| &of(link).download))?;
            Some(LinkPath { upload, download })
        };
        let of_functions = || {
            let known = all.iter().filter_map(|link| link.elementwise.as_ref());
            let first = Transfer::median(known.clone().map(|path| &path.first))?;
            Some(ElementwisePath { first, further: Transfer::median(known.map(|path| &path.further))? })
        };
        Some(Self {
            call: path(|link| &link.call)?,
            round_trip: Transfer::median(all.iter().filter_map(|link| link.round_trip.as_ref())),
            elementwise: of_functions(),
            tensor: path(|link| &link.tensor)?,
        })
    }

    /// Seconds of the transfers of a call, for the bytes of its operands and results.
    pub(crate) fn call_seconds(&self, elementwise: bool, bytes: [u64; 2]) -> f64 {
        let LinkPath { upload, download } = &self.call;
        match (&self.elementwise, &self.round_trip) {
            (Some(path), _) if elementwise => of_elementwise(bytes, [&path.first, &path.further], Transfer::seconds),
            (_, Some(round_trip)) => of_round_trip(bytes, [round_trip, upload, download], Transfer::seconds),
            _ => upload.seconds(bytes[0]) + download.seconds(bytes[1]),
        }
    }

    /// All transfers that were measured.
    pub(crate) fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        let paths = [&self.call, &self.tensor].into_iter().flat_map(|path| [&path.upload, &path.download]);
        let of_functions = self.elementwise.iter().flat_map(|path| [&path.first, &path.further]);
        paths.chain(&self.round_trip).chain(of_functions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-9
    }

    #[test]
    fn times_lie_on_the_lines_through_the_measured_ones() {
        let transfer = Transfer::measured(vec![(1000, 1e-6), (2000, 3e-6), (10_000, 4e-6)]);
        for (bytes, seconds) in [(0, 1e-6), (1000, 1e-6), (1500, 2e-6), (2000, 3e-6), (6000, 3.5e-6), (18_000, 5e-6)] {
            assert!(close(transfer.seconds(bytes), seconds), "{bytes}: {}", transfer.seconds(bytes));
        }
        assert!(transfer.seconds(u64::MAX).is_finite());
        let few = |points| Transfer::measured(points).seconds(7);
        assert!(few(vec![]) == 0.0 && few(vec![(5, 2e-6)]) == 2e-6, "no line, but no panic");
        let linear = Transfer::linear(5e-6, 1e9);
        assert!(close(linear.seconds(0), 5e-6) && close(linear.seconds(1 << 40), 5e-6 + (1u64 << 40) as f64 / 1e9));
    }

    #[test]
    fn lines_are_the_transfer() {
        let points: Vec<(u64, f64)> = (0..9).map(|i| (4096 << i, 1e-6 * f64::from(i * i + 1))).collect();
        for count in 2..=9 {
            let transfer = Transfer::measured(points[..count].to_vec());
            let lines = Lines::of(&transfer).unwrap();
            for bytes in [0, 1, 4095, 4096, 4097, 10_000, 100_000, 1 << 20, 5 << 20, 1 << 33] {
                let (exact, found) = (transfer.seconds(bytes), lines.seconds(bytes as f64));
                assert!((found / exact - 1.0).abs() < 1e-12, "{count} sizes, {bytes} bytes: {found} of {exact}");
            }
        }
        let more = points.into_iter().chain([(1 << 40, 1.0)]).collect();
        assert_eq!(Lines::of(&Transfer::measured(more)), None);
    }

    #[test]
    fn a_larger_transfer_never_takes_less() {
        let transfer = Transfer::measured(vec![(1, 3e-6), (2, 1e-6), (3, 2e-6)]);
        assert_eq!(transfer.points(), [(1, 1e-6), (2, 1e-6), (3, 2e-6)]);
    }

    #[test]
    fn measurements_have_a_median_at_each_size() {
        let a = Transfer::measured(vec![(1000, 1e-6), (2000, 3e-6), (4000, 8e-6)]);
        let b = Transfer::measured(vec![(1000, 2e-6), (2000, 2.5e-6)]);
        let c = Transfer::measured(vec![(1000, 5e-6), (2000, 6e-6)]);
        let alike = |found: &Transfer, expected: [f64; 3]| {
            found.points().iter().zip(expected).all(|(found, expected)| close(found.1, expected))
        };
        assert!(alike(&Transfer::median([&a, &b, &c].into_iter()).unwrap(), [2e-6, 3e-6, 8e-6]));
        assert!(alike(&Transfer::median([&a, &b].into_iter()).unwrap(), [1.5e-6, 2.75e-6, 5.75e-6]));
        let link = |[upload, download, set, read]: [&Transfer; 4]| Link {
            call: LinkPath { upload: upload.clone(), download: download.clone() },
            round_trip: Some(download.clone()),
            elementwise: Some(ElementwisePath { first: set.clone(), further: upload.clone() }),
            tensor: LinkPath { upload: set.clone(), download: read.clone() },
        };
        let links = [link([&a, &b, &c, &a]), link([&b, &c, &a, &a]), link([&c, &c, &b, &a])];
        let median = Link::median(&links).unwrap();
        assert!(alike(&median.call.upload, [2e-6, 3e-6, 8e-6]) && alike(&median.tensor.upload, [2e-6, 3e-6, 8e-6]));
        assert!(median.call.download == c && median.tensor.download == a && median.round_trip == Some(c.clone()));
        let elementwise = median.elementwise.unwrap();
        assert!(elementwise.first == median.tensor.upload && elementwise.further == median.call.upload);
        assert!(Link::median(&[]).is_none());
        let without = Link { round_trip: None, elementwise: None, ..links[0].clone() };
        let median = Link::median(std::slice::from_ref(&without)).unwrap();
        assert!(median.round_trip.is_none() && median.elementwise.is_none());
        let some = Link::median(&[without, links[1].clone()]).unwrap();
        let of_one = (&links[1].round_trip, &links[1].elementwise);
        assert_eq!((&some.round_trip, &some.elementwise), of_one, "the link that has them");
    }

    #[test]
    fn an_implausible_rate_is_refused_and_limited() {
        let (small, large) = (4 << 10, 16 << 20);
        let wrong = Transfer::measured(vec![(small, 1e-6), (large, 1e-6)]);
        assert!(wrong.check(f64::INFINITY).is_err());
        let right = wrong.clone().limited(f64::INFINITY);
        assert!(right.check(MOST_BANDWIDTH * (1.0 + 1e-9)).is_ok(), "{right:?}");
        assert!(close(right.seconds(large) - 1e-6, (large - small) as f64 / MOST_BANDWIDTH));
        let slower = wrong.limited(1e9);
        assert!(close(slower.seconds(large) - 1e-6, (large - small) as f64 / 1e9));
        let noise = Transfer::measured(vec![(small, 1e-6), (2 * small, 1e-6), (large, 1.0)]);
        assert!(noise.check(f64::INFINITY).is_ok(), "short copies differ by less than a clock tells");
        // On a device with room for short copies alone, these predict all others.
        let short = Transfer::measured(vec![(small, 1e-6), (16 * small, 2e-6), (64 * small, 2e-6)]);
        assert!(short.check(f64::INFINITY).is_err());
        let short = short.limited(f64::INFINITY);
        assert!(short.sound(|_| Ok(())).is_ok() && short.seconds(large) > short.seconds(64 * small), "{short:?}");
    }
}
