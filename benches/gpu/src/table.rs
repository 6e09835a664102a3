//! The one table, or its figures as JSON.

use serde::Serialize;

use crate::case::Work;

pub(crate) struct Table {
    json: bool,
    names: &'static [&'static str],
}

#[derive(Serialize)]
struct Figure<'a> {
    case: &'a str,
    /// A contender, `copy`, or `wanted` on an H200.
    of: &'a str,
    unit: &'a str,
    value: f64,
    /// Seconds of a call.
    seconds: f64,
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

impl Table {
    /// Prints the headings of the columns.
    pub(crate) fn new(json: bool, adapter: String, names: &'static [&'static str]) -> Self {
        let table = Self { json, names };
        if !json {
            println!("on {adapter}\n");
            let columns: String = names.iter().map(|name| format!("{name:>11}")).collect();
            println!("{:<34}{:>8}{:>11}{columns}{:>12}{:>16}", "case", "unit", "copy", "best peer", "wanted, H200");
        }
        table
    }

    /// One row: seconds of a copy, of every contender, and the target on an H200.
    pub(crate) fn row(&self, case: &str, work: Work, copy: Option<f64>, all: &[Option<f64>], wanted: Option<f64>) {
        if self.json {
            let figures = [("copy", copy)].into_iter().chain(self.names.iter().copied().zip(all.iter().copied()));
            let mut figures: Vec<Figure<'_>> = figures
                .filter_map(|(of, seconds)| {
                    let value = work.value(seconds?);
                    Some(Figure { case, of, unit: work.unit(), value, seconds: seconds? })
                })
                .collect();
            figures.extend(wanted.map(|seconds| Figure {
                case,
                of: "wanted",
                unit: work.unit(),
                value: work.value(seconds),
                seconds,
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
        println!("{case:<34}{:>8}{:>11}{columns}{ratio:>12}{:>16}", work.unit(), shown(copy), shown(wanted));
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
    fn times_are_rates_where_the_amount_is_known() {
        assert_eq!((Work::Flops(4e9).value(2.0), Work::Time.value(2e-6)), (2.0, 2.0));
        assert_eq!([0.5, 12.34, 123.4].map(digits), ["0.50", "12.3", "123"]);
    }
}
