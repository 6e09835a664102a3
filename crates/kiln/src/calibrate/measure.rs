//! Timing an operation on several places, interleaved.

use kiln_core::{Buffer, DType, Data, DataMut, Operand, Operations, Result, TensorType, reserve, zeros};
use kiln_simd::Simd;
use web_time::Instant;

use super::{HOPELESS, LONG, Probe};

/// How long one problem is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Samples of each place.
    pub(crate) rounds: usize,
    /// Seconds that a sample lasts at least: a clock that ticks in tens of nanoseconds is then exact to a thousandth.
    pub(crate) sample: f64,
    /// Seconds after which three samples of each place are enough.
    pub(crate) seconds: f64,
}

/// Data to measure with, kept between problems so that memory is asked for and touched once.
#[derive(Debug, Default)]
pub(crate) struct Bench {
    inputs: Vec<Vec<f32>>,
    output: Vec<f32>,
}

impl Bench {
    /// The least time of each place, or `None` for those whose time is already expected.
    ///
    /// The least of several samples: whatever else runs on the machine only ever adds. Samples of all places alternate,
    /// so that a clock that changes its rate meets all of them.
    pub(crate) fn times(
        &mut self,
        probe: &Probe,
        places: &[Simd],
        expected: &[Option<f64>],
        budget: Budget,
    ) -> Result<Vec<Option<f64>>> {
        let types = probe.op.infer(&probe.inputs)?;
        self.grow(&probe.inputs, types.iter().map(|t| t.shape.numel()).max().unwrap_or(0))?;
        let rows = probe.inputs.first().map_or(1, |table| table.shape.rows());
        let packed = probe.inputs.iter().map(|ty| other_than_f32(ty, rows)).collect::<Result<Vec<Option<Buffer>>>>()?;
        let inputs: Vec<Operand<'_>> = probe
            .inputs
            .iter()
            .enumerate()
            .map(|(i, ty)| match &packed[i] {
                Some(buffer) => Operand::new(buffer.as_data(), ty.shape),
                None => Operand::new(Data::F32(&self.inputs[i][..ty.shape.numel()]), ty.shape),
            })
            .collect::<Result<_>>()?;
        // The first f32 result goes into the kept buffer; other results are rare and small.
        let mut others: Vec<Buffer> = types.iter().skip(1).map(Buffer::zeros).collect::<Result<_>>()?;
        let first_type = types[0];
        let mut first_other = (first_type.dtype != DType::F32).then(|| Buffer::zeros(&first_type)).transpose()?;
        let mut outputs: Vec<DataMut<'_>> = Vec::new();
        match &mut first_other {
            Some(buffer) => outputs.push(buffer.as_mut()),
            None => outputs.push(DataMut::F32(&mut self.output[..first_type.shape.numel()])),
        }
        outputs.extend(others.iter_mut().map(Buffer::as_mut));

        let mut least: Vec<Option<f64>> = vec![None; places.len()];
        let mut repeats = vec![1u32; places.len()];
        let start = Instant::now();
        for round in 0..=budget.rounds {
            for (i, simd) in places.iter().enumerate() {
                if expected.get(i).is_some_and(Option::is_some) {
                    continue;
                }
                // One long sample of a place that is far behind says enough.
                let best = least.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                if least[i].is_some_and(|seconds| seconds > LONG && seconds > HOPELESS * best) {
                    continue;
                }
                if least[i].is_none_or(|seconds| seconds < LONG) {
                    // Untimed: fetches the data back from the place before, and wakes threads. Operations follow one
                    // another in the programs that the times are for, so the times are those of a place at work.
                    simd.run_into(&probe.op, &inputs, &mut outputs)?;
                }
                let sample = Instant::now();
                for _ in 0..repeats[i] {
                    simd.run_into(&probe.op, &inputs, &mut outputs)?;
                }
                let mut seconds = sample.elapsed().as_secs_f64() / f64::from(repeats[i]);
                if round == 0 {
                    seconds = seconds.max(1e-8);
                    repeats[i] = ((budget.sample / seconds).ceil() as u32).clamp(1, 10_000);
                    if repeats[i] > 1 {
                        continue;
                    }
                }
                least[i] = Some(least[i].map_or(seconds, |least| least.min(seconds)));
            }
            if round >= 3 && start.elapsed().as_secs_f64() > budget.seconds {
                break;
            }
        }
        Ok(least)
    }

    /// Makes the kept buffers large enough. Values are between one half and two: valid for roots and logarithms, and
    /// products of many stay in range.
    fn grow(&mut self, inputs: &[TensorType], output: usize) -> Result<()> {
        if self.inputs.len() < inputs.len() {
            self.inputs.resize_with(inputs.len(), Vec::new);
        }
        let mut state = 0x9e37_79b9_u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            0.5 + (state >> 8) as f32 * (1.5 / 16_777_216.0)
        };
        for (buffer, ty) in self.inputs.iter_mut().zip(inputs) {
            let n = if ty.dtype == DType::F32 { ty.shape.numel() } else { 0 };
            if buffer.len() < n {
                reserve(buffer, n - buffer.len())?;
                buffer.resize_with(n, &mut random);
            }
        }
        if self.output.len() < output {
            self.output = zeros(output)?;
        }
        Ok(())
    }
}

/// Indices that jump about in a table of so many rows; blocks of zeros, which are valid in every format.
fn other_than_f32(ty: &TensorType, rows: usize) -> Result<Option<Buffer>> {
    Ok(match ty.dtype {
        DType::F32 => None,
        DType::U32 => {
            let index = |i: usize| (i.wrapping_mul(0x9e37_79b1) % rows.max(1)) as u32;
            let mut indices = Vec::new();
            reserve(&mut indices, ty.shape.numel())?;
            indices.extend((0..ty.shape.numel()).map(index));
            Some(Buffer::U32(indices))
        }
        DType::Blocks(_) => Some(Buffer::zeros(ty)?),
    })
}
