//! The one table, or its figures as JSON.

use serde::Serialize;

use crate::case::{Wanted, Work};

pub(crate) struct Table {
    json: bool,
    names: &'static [&'static str],
}

#[derive(Serialize)]
struct Figure<'a> {
    case: &'a str,
    /// A contender, `copy` or `wanted`.
    of: &'a str,
    unit: &'a str,
    value: f64,
    /// Seconds of a call; none for what is wanted.
    seconds: Option<f64>,
}

impl Work {
    fn unit(self) -> &'static str {
        match self {
            Self::Flops(_) => "GFLOP/s",
            Self::Bytes(_) => "GB/s",
            Self::Time => "us",
        }
    }

    /// A time in the unit of the case.
    fn value(self, seconds: f64) -> f64 {
        match self {
            Self::Flops(amount) | Self::Bytes(amount) => amount / seconds * 1e-9,
            Self::Time => seconds * 1e6,
        }
    }
}

/// The longest that kiln should take.
fn seconds_wanted(wanted: Wanted, copy: Option<f64>, all: &[Option<f64>]) -> Option<f64> {
    match wanted {
        Wanted::OfCopy(share) => copy.map(|copy| copy / share),
        Wanted::OverPeers(factor) => {
            all.iter().skip(1).flatten().copied().min_by(f64::total_cmp).map(|best| best / factor)
        }
    }
}

impl Table {
    /// Prints what the columns are.
    pub(crate) fn new(json: bool, adapter: String, names: &'static [&'static str]) -> Self {
        let table = Self { json, names };
        if !json {
            println!("on {adapter}\n");
            let columns: String = names.iter().map(|name| format!("{name:>11}")).collect();
            println!("{:<34}{:>8}{:>11}{columns}{:>12}  {:<30}", "case", "unit", "copy", "best peer", "wanted of kiln");
        }
        table
    }

    /// One row: seconds of a copy, and of every contender.
    pub(crate) fn row(&self, case: &str, work: Work, copy: Option<f64>, all: &[Option<f64>], wanted: Option<Wanted>) {
        let goal = wanted.and_then(|wanted| seconds_wanted(wanted, copy, all));
        if self.json {
            let figures = [("copy", copy)].into_iter().chain(self.names.iter().copied().zip(all.iter().copied()));
            let mut figures: Vec<Figure<'_>> = figures
                .filter_map(|(of, seconds)| {
                    let value = work.value(seconds?);
                    Some(Figure { case, of, unit: work.unit(), value, seconds })
                })
                .collect();
            figures.extend(goal.map(|goal| Figure {
                case,
                of: "wanted",
                unit: work.unit(),
                value: work.value(goal),
                seconds: None,
            }));
            figures.iter().filter_map(|figure| serde_json::to_string(figure).ok()).for_each(|line| println!("{line}"));
            return;
        }
        let shown = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |seconds| digits(work.value(seconds)));
        let columns: String = all.iter().map(|seconds| format!("{:>11}", shown(*seconds))).collect();
        let ratio = match (all.first().copied().flatten(), all.iter().skip(1).flatten().copied().min_by(f64::total_cmp))
        {
            (Some(kiln), Some(peer)) => format!("{:.2} x", peer / kiln),
            _ => "-".to_owned(),
        };
        let rule = match wanted {
            Some(Wanted::OfCopy(share)) => format!("{:.0} % of the copy", 100.0 * share),
            Some(Wanted::OverPeers(factor)) => format!("{factor:.1} x the best peer"),
            None => String::new(),
        };
        let met = match (goal, all.first().copied().flatten()) {
            (Some(goal), Some(kiln)) => {
                format!(": {} {}", digits(work.value(goal)), if kiln <= goal { "met" } else { "missed" })
            }
            _ => String::new(),
        };
        println!("{case:<34}{:>8}{:>11}{columns}{ratio:>12}  {rule}{met}", work.unit(), shown(copy));
    }
}

/// Three significant digits.
fn digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_a_share_of_the_copy_or_a_multiple_of_the_best_peer() {
        let all = [Some(1.0), Some(3.0), None, Some(2.0)];
        assert_eq!(seconds_wanted(Wanted::OfCopy(0.5), Some(2.0), &all), Some(4.0));
        assert_eq!(seconds_wanted(Wanted::OfCopy(0.5), None, &all), None);
        assert_eq!(seconds_wanted(Wanted::OverPeers(2.0), None, &all), Some(1.0));
        assert_eq!(seconds_wanted(Wanted::OverPeers(2.0), None, &all[..1]), None);
        assert_eq!((Work::Flops(4e9).value(2.0), Work::Time.value(2e-6)), (2.0, 2.0));
    }
}
