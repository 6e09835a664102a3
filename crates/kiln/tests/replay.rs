//! The router's regret on machines that are not here: their profiles decide, and the times that were measured beside them judge.
//!
//! `cargo run --release --example regret -- --record FILE` makes such a recording.
#![cfg(not(target_arch = "wasm32"))]

use std::collections::HashMap;

use kiln::{Problem, Recording, Residency, Router, grid};

/// A machine, and the regret that its recording may show: geometric mean, 95th percentile and worst.
struct Recorded {
    name: &'static str,
    text: &'static str,
    most: [f64; 3],
}

const RECORDED: &[Recorded] = &[
    Recorded { name: "two cores", text: include_str!("recorded/epyc-2.json"), most: [0.006, 0.025, 0.20] },
    Recorded {
        name: "16 cores and an H100",
        text: include_str!("recorded/xeon-16-h100.json"),
        most: [0.012, 0.05, 0.30],
    },
    // A GPU six times as fast as the CPU at products and twice as fast at others, behind a link of 10 GB/s.
    Recorded {
        name: "a laptop made by hand",
        text: include_str!("recorded/laptop-by-hand.json"),
        most: [0.004, 0.02, 0.12],
    },
];

#[test]
fn recorded_machines_are_routed_as_well_as_before() {
    for Recorded { name, text, most } in RECORDED {
        let recording = Recording::from_json(text).unwrap();
        let mut named: HashMap<&str, Vec<&[Option<f64>]>> = HashMap::new();
        for problem in &recording.problems {
            named.entry(&problem.name).or_default().push(&problem.seconds);
        }
        let router = Router::new(recording.profile.clone());
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut regrets = Vec::new();
        for (probe, _) in grid::evaluation().unwrap() {
            let number = seen.entry(probe.to_string()).or_default();
            let measured = named.get(probe.to_string().as_str()).and_then(|all| all.get(*number));
            *number += 1;
            let Some(seconds) = measured else { continue };
            let problem = Problem::new(&probe.op, &probe.inputs).unwrap();
            let chosen = router.decide(&problem, &Residency::host()).index();
            let best = seconds.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            let taken = seconds[chosen].unwrap_or(f64::INFINITY);
            regrets.push((taken / best - 1.0, probe.to_string(), chosen));
        }
        assert!(10 * regrets.len() > 9 * recording.problems.len(), "{name}: problems have changed, record it anew");
        regrets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let count = regrets.len();
        let geomean = (regrets.iter().map(|regret| regret.0.ln_1p()).sum::<f64>() / count as f64).exp_m1();
        let found = [geomean, regrets[(count * 95).div_ceil(100) - 1].0, regrets[count - 1].0];
        println!("{name}: {found:.4?} over {count} problems");
        let within = found.iter().zip(most).all(|(found, most)| found <= most);
        assert!(
            within,
            "{name}: geomean, p95 and worst are {found:.3?}, at most {most:?}; {:?}",
            &regrets[count - 5..]
        );
    }
}
