//! The texts about language models in every form of the report.

use super::super::models::{Device, Models, QUICK_SECONDS, Rate, Rates, Tests};
use super::super::numbers::digits;

/// A device with its limits: `cpu: avx2 × 2, reads 21.3 GB/s, 190 GFLOP/s`.
pub(super) fn device(device: &Device) -> String {
    let verb = if device.peak.is_some() { "reads" } else { "copies" };
    let bandwidth = device.bandwidth.map(|rate| format!(", {verb} {} GB/s", digits(rate)));
    let peak = device.peak.map(|rate| format!(", {} GFLOP/s", digits(rate)));
    format!("{}: {}{}{}", device.name, device.detail, bandwidth.unwrap_or_default(), peak.unwrap_or_default())
}

/// The names of the tests.
pub(super) fn tests(tests: &Tests) -> Vec<String> {
    let several = tests.sequences.iter().map(|count| format!("{count} sequences"));
    [format!("prompt of {}", tests.prompt), "generation".into()].into_iter().chain(several).collect()
}

/// The columns of [`Row::cells`].
pub(super) fn columns(of: &Tests) -> Vec<String> {
    let limited = |(i, test)| if i < 2 { vec![test, "of the limit".into()] } else { vec![test] };
    tests(of).into_iter().enumerate().flat_map(limited).collect()
}

/// One model on one device.
pub(super) struct Row<'a> {
    pub(super) model: &'a str,
    /// Whether it is the first row of its model.
    pub(super) is_first: bool,
    pub(super) device: &'a str,
    pub(super) cells: Vec<String>,
    pub(super) refused: Option<&'a str>,
}

/// The table.
pub(super) fn rows(models: &Models) -> Vec<Row<'_>> {
    let rate = |rate: &Option<Rate>| {
        rate.map_or("-".into(), |rate| digits(rate.tokens_per_second) + if rate.certain { "" } else { "~" })
    };
    let share = |rate: &Option<Rate>| {
        let share = rate.and_then(|rate| rate.share());
        share.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share))
    };
    let mut rows = Vec::new();
    for Rates { name, on, .. } in &models.models {
        for (position, (on, device)) in on.iter().zip(&models.devices).enumerate() {
            let one = [rate(&on.prompt), share(&on.prompt), rate(&on.decode), share(&on.decode)];
            rows.push(Row {
                model: name,
                is_first: position == 0,
                device: &device.name,
                cells: one.into_iter().chain(on.several.iter().map(rate)).collect(),
                refused: on.refused.as_deref(),
            });
        }
    }
    rows
}

/// The text about the measurements.
pub(super) fn about(models: &Models) -> String {
    let Tests { prompt, tokens, sequences, short_prompt, tokens_each, .. } = &models.tests;
    let several = match &sequences[..] {
        [] => String::new(),
        counts => {
            let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
            let counts = counts.join(" and ");
            format!(
                ", and {tokens_each} tokens for each of {counts} sequences at once, after prompts of {short_prompt} (all \
                 sequences together)"
            )
        }
    };
    let weights = match models.random {
        true => " Weights are random, which does not change rates.",
        false => "",
    };
    format!(
        "Tokens per second, measured as by the command bench of kiln-llm: a prompt of {prompt} tokens, {tokens} tokens \
         generated one by one{several}.{weights}"
    )
}

/// The text about the limits.
pub(super) fn limits(models: &Models) -> String {
    let bytes = |model: &Rates| format!("{} MB of weights in {}", digits(model.bytes as f64 * 1e-6), model.name);
    let bytes: Vec<String> = models.models.iter().filter(|model| model.bytes > 0).map(bytes).collect();
    let bytes = if bytes.is_empty() { String::new() } else { format!(" ({})", bytes.join(", ")) };
    format!(
        "The limit of generation is the rate at which the CPU reads or a GPU copies memory, divided by what a token \
         reads{bytes}. The limit of a prompt, on the CPU, is its peak of multiply-adds divided by the operations of products \
         with weights. ~ marks figures from disturbed or too few repetitions."
    )
}

/// The text about tests that were left out, if any.
pub(super) fn left_out(models: &Models) -> Option<String> {
    let why = match models.tests.is_quick() {
        true => format!("A quick run begins no test of a language model {QUICK_SECONDS} s after the first one"),
        false => "Several sequences would take too long on a slow device".into(),
    };
    (!models.left_out.is_empty()).then(|| format!("{why}; left out: {}.", models.left_out.join(", ")))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::models::OnDevice;
    use super::*;

    /// Figures of a CPU and a GPU. The GPU lacks memory for the second model.
    pub(in super::super) fn recorded() -> Models {
        let rate = |tokens_per_second, limit, certain| Some(Rate { tokens_per_second, limit, certain });
        let device = |name: &str, detail: &str, bandwidth, peak| Device {
            name: name.into(),
            detail: detail.into(),
            bandwidth: Some(bandwidth),
            peak,
        };
        let small = vec![
            OnDevice {
                prompt: rate(450.0, Some(900.0), true),
                decode: rate(75.2, Some(94.0), true),
                several: vec![rate(160.0, None, true), rate(321.5, None, false)],
                refused: None,
            },
            OnDevice {
                prompt: rate(61_234.0, None, true),
                decode: rate(912.0, Some(7600.0), false),
                several: vec![rate(3100.0, None, true), rate(9000.0, None, true)],
                refused: None,
            },
        ];
        let large = vec![
            OnDevice {
                prompt: rate(4.5, Some(9.0), true),
                decode: rate(2.25, Some(2.5), true),
                several: vec![None, None],
                refused: None,
            },
            OnDevice { several: vec![None, None], refused: Some("8 GB < 16 GB".into()), ..OnDevice::default() },
        ];
        Models {
            tests: Tests::new(false),
            random: false,
            devices: vec![
                device("cpu", "avx2 × 2", 20.5, Some(190.0)),
                device("gpu 0", "A & B through Vulkan", 1650.0, None),
            ],
            models: vec![
                Rates { name: "small".into(), bytes: 217_000_000, flops: 210_000_000, on: small },
                Rates { name: "<large>".into(), bytes: 8_200_000_000, flops: 16_000_000_000, on: large },
            ],
            left_out: vec!["several sequences of <large> on cpu".into()],
        }
    }

    #[test]
    fn a_row_has_the_rates_their_shares_and_their_marks() {
        let models = recorded();
        let columns = ["prompt of 512", "of the limit", "generation", "of the limit", "4 sequences", "16 sequences"];
        assert_eq!(super::columns(&models.tests), columns);
        let rows: Vec<_> =
            rows(&models).into_iter().map(|row| (row.model, row.is_first, row.device, row.cells)).collect();
        let cells = |cells: [&str; 6]| cells.map(str::to_owned).to_vec();
        assert_eq!(rows[0], ("small", true, "cpu", cells(["450", "50 %", "75.2", "80 %", "160", "322~"])));
        assert_eq!(rows[1], ("small", false, "gpu 0", cells(["61234", "-", "912~", "12 %", "3100", "9000"])));
        assert_eq!(rows[2], ("<large>", true, "cpu", cells(["4.50", "50 %", "2.25", "90 %", "-", "-"])));
        assert_eq!(rows[3], ("<large>", false, "gpu 0", cells(["-"; 6])));
    }

    #[test]
    fn texts_say_what_was_measured_and_what_was_not() {
        let mut models = recorded();
        assert_eq!(device(&models.devices[0]), "cpu: avx2 × 2, reads 20.5 GB/s, 190 GFLOP/s");
        assert_eq!(device(&models.devices[1]), "gpu 0: A & B through Vulkan, copies 1650 GB/s");
        let text = about(&models);
        assert!(text.contains("512 tokens, 128 tokens") && text.contains("each of 4 and 16 sequences"), "{text}");
        assert!(!text.contains("random"), "{text}");
        let text = limits(&models);
        assert!(text.contains("217 MB of weights in small, 8200 MB of weights in <large>"), "{text}");
        assert!(left_out(&models).unwrap().ends_with("left out: several sequences of <large> on cpu."));
        models.random = true;
        models.tests = Tests::new(true);
        models.left_out.clear();
        let text = about(&models);
        assert!(text.contains("Weights are random") && !text.contains("sequences"), "{text}");
        assert_eq!((left_out(&models), columns(&models.tests).len()), (None, 4));
    }
}
