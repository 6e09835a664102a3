//! Rows of tables that a new run leaves as they were, because their figures moved by no more than noise.

use std::collections::HashMap;

/// How far a figure may move: by this share, and by the second one where either run was disturbed.
const NOISE: f64 = 0.10;
const NOISE_OF_DISTURBED: f64 = 0.25;

/// The new page with the rows of the earlier one whose figures are those of the new one within noise. All rows are new where the
/// earlier page is of another machine.
pub(in super::super) fn steady(page: &str, earlier: &str) -> String {
    if machine(page) != machine(earlier) {
        return page.to_owned();
    }
    let mut before: HashMap<(String, String), Vec<&str>> = HashMap::new();
    each_row(earlier, |heading, row| before.entry((heading.to_owned(), labels(row))).or_default().push(row));
    let mut kept = String::with_capacity(page.len());
    let mut heading = "";
    for line in page.lines() {
        heading = if line.starts_with('#') { line } else { heading };
        let rows = line.starts_with("| ").then(|| before.get(&(heading.to_owned(), labels(line)))).flatten();
        // Rows with the same labels cannot be distinguished.
        let row = rows.filter(|rows| rows.len() == 1 && is_noise(line, rows[0])).map_or(line, |rows| rows[0]);
        kept.push_str(row);
        kept.push('\n');
    }
    kept
}

/// The lines that say what the machine is.
fn machine(page: &str) -> Vec<&str> {
    let is_one =
        |line: &&str| ["- machine: ", "- instruction sets: ", "- caches: "].iter().any(|of| line.starts_with(of));
    page.lines().filter(is_one).collect()
}

fn each_row<'p>(page: &'p str, mut row: impl FnMut(&'p str, &'p str)) {
    let mut heading = "";
    for line in page.lines() {
        heading = if line.starts_with('#') { line } else { heading };
        if line.starts_with("| ") {
            row(heading, line);
        }
    }
}

fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

/// A figure of a cell: the number, whether it was disturbed, and its unit. `None` for a label.
fn figure(cell: &str) -> Option<(f64, bool, &str)> {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let plain = number.trim_end_matches('~');
    Some((plain.parse().ok()?, plain.len() < number.len(), unit))
}

/// What names a row: its cells but for figures. The size of a problem looks like a figure: it is one that does not change.
fn labels(row: &str) -> String {
    let label = |cell| if figure(cell).is_some() { "" } else { cell };
    let sizes = cells(row).skip(1).take(1).filter(|cell| cell.parse::<u64>().is_ok());
    cells(row).map(label).chain(sizes).collect::<Vec<_>>().join("|")
}

/// Whether all figures of two rows are equal within noise.
fn is_noise(new: &str, old: &str) -> bool {
    cells(new).count() == cells(old).count()
        && cells(new).zip(cells(old)).all(|(new, old)| match (figure(new), figure(old)) {
            (Some((new, disturbed, unit)), Some((old, was_disturbed, old_unit))) => {
                let most = if disturbed || was_disturbed { NOISE_OF_DISTURBED } else { NOISE };
                unit == old_unit && (new - old).abs() <= most * old.abs()
            }
            _ => new == old,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "- machine: A, 2 threads\n\n## Rates\n\n| operation | size | rate | limit | reached |\n|---|---|---|---|---|\n";

    #[test]
    fn rows_that_moved_by_noise_stay() {
        let page = |rows: &str| format!("{HEAD}{rows}");
        let earlier = page("| add | 256 | 85.0~ GB/s | 385 | 22 % |\n| add | 1024 | 90.0 GB/s | 385 | 23 % |\n");
        let of = |rows: &str| steady(&page(rows), &earlier);
        let noise = "| add | 256 | 70.0 GB/s | 400 | 20 % |\n| add | 1024 | 97.0 GB/s | 380 | 24 % |\n";
        assert_eq!(of(noise), earlier);
        let moved = "| add | 256 | 60.0 GB/s | 385 | 16 % |\n| add | 1024 | 101 GB/s | 385 | 26 % |\n";
        assert_eq!(of(moved), page(moved));
        // Another unit, another row, a dash.
        let others = "| add | 256 | 85.0~ MB/s | 385 | 22 % |\n| sub | 1024 | 90.0 GB/s | 385 | 23 % |\n| add | 1024 | - | 385 | - |\n";
        assert_eq!(of(others), page(others));
        let elsewhere = page(noise).replace("machine: A", "machine: B");
        assert_eq!(steady(&elsewhere, &earlier), elsewhere);
    }

    #[test]
    fn rows_belong_to_their_heading() {
        let page = |rate: &str| {
            format!(
                "{HEAD}| add | 256 | 85.0 GB/s | 385 | 22 % |\n\n## Others\n\n| add | 256 | {rate} | 385 | 22 % |\n"
            )
        };
        assert_eq!(steady(&page("85.0 GB/s"), &page("40.0 GB/s")), page("85.0 GB/s"));
    }
}
