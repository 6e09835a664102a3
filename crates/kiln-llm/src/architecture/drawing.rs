//! Draws a token among candidates on the device, so that the next step can begin before the token is read.

use kiln::graph::TensorId;
use kiln::op::{Arithmetic, IntegerFunction};
use kiln::{Batch, Record};

use super::candidates::{Candidates, PARTS};
use crate::Result;
use crate::sampling::Draw;

/// Of the k likeliest tokens with logits `v`, greatest first, in f32:
///
/// ```text
/// p = softmax(v)
/// w = softmax(v / T)    over those with p_0 + .. + p_(i-1) < top_p and exp(v_i - v_0) >= min_p
/// the first i with w_0 + .. + w_i > u
/// ```
///
/// These are the steps of [`Sampler`](crate::Sampler), which the host computes in f64: with rounding the two can choose different tokens.
#[derive(Debug)]
pub(super) struct Drawing {
    candidates: Candidates,
    /// k.
    count: usize,
    inputs: Inputs,
    /// The values of the inputs, if all were set.
    set: Option<Draw>,
    token: TensorId,
}

/// Numbers, each repeated for all k tokens, `[1, k]`: element-wise functions take equal shapes.
#[derive(Debug, Clone, Copy)]
struct Inputs {
    top_p: TensorId,
    /// `ln(min_p)`.
    least: TensorId,
    /// `1 / T`.
    sharpness: TensorId,
    /// u, in `[0, 1)`.
    at: TensorId,
}

/// Turns a difference into a condition: whatever is not 0, times this, is clipped.
const STEEP: f32 = 1e30;

impl Drawing {
    /// Records it for the first `count` candidates of one row.
    pub(super) fn record(batch: &mut Batch<'_>, candidates: Candidates, count: usize) -> Result<Self> {
        let mut row = || batch.upload(&vec![0.0; count], &[1, count]);
        let inputs = Inputs { top_p: row()?, least: row()?, sharpness: row()?, at: row()? };

        let v = batch.slice(candidates.values, 1, 0..count, 1)?;
        let p = batch.softmax(v)?;
        let sums = batch.cumsum(p, 1)?;
        let first = batch.slice(v, 1, 0..1, 1)?;
        let first = batch.broadcast_to(first, &[1, count])?;
        // Conditions as addends of logits, 0 or far below: a chain of functions of numbers is one kernel, comparisons are several.
        let before = batch.sub(sums, p)?;
        let room = batch.sub(inputs.top_p, before)?;
        let room = batch.scale(room, STEEP)?;
        let room = batch.clip(room, 0.0, 1.0)?;
        let likely = batch.ln(room)?;
        let relative = batch.sub(v, first)?;
        let above = batch.sub(relative, inputs.least)?;
        let above = batch.scale(above, STEEP)?;
        let great = batch.clip(above, f32::MIN, 0.0)?;
        let scaled = batch.mul(relative, inputs.sharpness)?;
        let left = batch.add(scaled, likely)?;
        let left = batch.add(left, great)?;
        let w = batch.softmax(left)?;
        let sums = batch.cumsum(w, 1)?;
        let reached = batch.sub(sums, inputs.at)?;
        let reached = batch.scale(reached, STEEP)?;
        let reached = batch.clip(reached, 0.0, 1.0)?;
        // The first of equal ones; where rounding lets no sum reach the number, the first candidate.
        let chosen = batch.argmax_axis(reached, 1)?;

        let pick = |batch: &mut Batch<'_>, of: TensorId| {
            let column = batch.reshape(of, &[candidates.count, 1])?;
            let picked = batch.gather(column, chosen)?;
            batch.reshape(picked, &[1])
        };
        let index = pick(batch, candidates.indices)?;
        let (first, within) = match candidates.parts {
            None => (batch.upload_indices(&[0], &[1])?, index),
            Some(parts) => {
                let all = 0..(PARTS * candidates.count) as u32;
                let firsts: Vec<u32> = all.map(|index| parts.first(index, candidates.count)).collect();
                let firsts = batch.upload_indices(&firsts, &[firsts.len(), 1])?;
                let first = batch.gather(firsts, index)?;
                (batch.reshape(first, &[1])?, pick(batch, parts.within)?)
            }
        };
        // A sum in either case: its memory is that of the next step's input, which a reshaped tensor cannot be.
        let token = batch.record(Arithmetic { function: IntegerFunction::Add }, &[first, within])?;
        Ok(Self { candidates, count, inputs, set: None, token })
    }

    /// The number of candidates that it draws among.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The candidates. It draws among the first `count`.
    pub(super) fn candidates(&self) -> Candidates {
        self.candidates
    }

    /// The token, `[1]`.
    pub(super) fn token(&self) -> TensorId {
        self.token
    }

    /// Sets how the next execution draws: only what changes.
    pub(super) fn set(&mut self, batch: &mut Batch<'_>, draw: Draw) -> Result<()> {
        let Inputs { top_p, least, sharpness, at } = self.inputs;
        // An error in between leaves `None`, so the next call sets all inputs.
        let was = self.set.take();
        let numbers = |draw: Draw| [draw.top_p, draw.min_p.ln().max(f32::MIN), 1.0 / draw.temperature, draw.at];
        // Nothing equals NaN.
        let was = was.map_or([f32::NAN; 4], numbers);
        for ((id, x), was) in [top_p, least, sharpness, at].into_iter().zip(numbers(draw)).zip(was) {
            if x != was {
                batch.set(id, &vec![x; self.count])?;
            }
        }
        self.set = Some(draw);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use kiln::waiting::{WAITING, wait};

    use crate::architecture::outcome::Outcome;
    use crate::sampling::DeviceChoice;
    use crate::{Sampler, Surprises};

    /// Settings under which different steps exclude tokens, and each position draws another number.
    #[test]
    fn a_device_draws_the_token_that_the_sampler_does() {
        let samplers = [
            Sampler::default(),
            Sampler { temperature: 2.0, top_k: 5, top_p: 1.0, min_p: 0.0, ..Sampler::default() },
            Sampler { temperature: 0.3, top_k: 128, top_p: 0.7, min_p: 0.0, ..Sampler::default() },
            Sampler { temperature: 5.0, top_k: 128, top_p: 1.0, min_p: 0.2, ..Sampler::default() },
            Sampler { temperature: 1e-30, ..Sampler::default() },
            Sampler { top_k: 1, ..Sampler::default() },
        ];
        let engine = kiln::Engine::builder().without_profile().build().unwrap();
        // A small vocabulary, and one that is divided.
        for vocabulary in [12, 8192] {
            let mut batch = engine.batch();
            let logits = |round: usize| -> Vec<f32> {
                let logit = |at: usize| ((at * 7919 + round * 104_729) % 5003) as f32 / 5003.0;
                (0..vocabulary).map(|at| (logit(at).powi(8) - 0.2 * logit(at)) * 9.0).collect()
            };
            let uploaded = batch.upload(&logits(0), &[1, vocabulary]).unwrap();
            let mut outcome = Outcome::of(&mut batch, uploaded, [1, vocabulary]).unwrap();
            let mut different = std::collections::HashSet::new();
            for sampler in &samplers {
                for position in 0..20 {
                    let Some(DeviceChoice::Drawn(draw)) = sampler.on_device(position) else { panic!("it is drawn") };
                    batch.set(uploaded, &logits(position)).unwrap();
                    let ranked =
                        wait(outcome.candidates(&mut batch, draw.count, &[0], WAITING)).unwrap().remove(0).unwrap();
                    let expected =
                        sampler.choose_among(&ranked, &vec![0; position], &mut Surprises::default()).unwrap();
                    let token = outcome.drawing(&mut batch, draw).unwrap().token();
                    let read = wait(batch.run_waiting(&[token], WAITING)).unwrap().remove(0);
                    assert_eq!(read.as_data().u32(), [expected], "{draw:?}, {vocabulary}");
                    different.insert(expected);
                }
            }
            assert!(different.len() > vocabulary.min(200) / 3, "{} of {vocabulary} were drawn", different.len());
        }
    }

    #[test]
    fn a_device_does_not_draw_what_needs_other_steps() {
        let drawn = |sampler: Sampler| sampler.on_device(3).is_some();
        assert!(drawn(Sampler::default()) && drawn(Sampler::greedy()));
        for sampler in [
            Sampler { top_k: 0, ..Sampler::default() },
            Sampler { top_k: 1000, ..Sampler::default() },
            Sampler { typical_p: 0.9, ..Sampler::default() },
            Sampler { xtc_probability: 0.1, ..Sampler::default() },
            Sampler { dynatemp_range: 0.1, ..Sampler::default() },
            Sampler { repeat_penalty: 1.1, ..Sampler::default() },
            Sampler { mirostat_tau: 3.0, ..Sampler::default() },
            Sampler { repeat_penalty: 1.1, ..Sampler::greedy() },
        ] {
            assert!(!drawn(sampler.clone()), "{sampler:?}");
        }
    }
}
