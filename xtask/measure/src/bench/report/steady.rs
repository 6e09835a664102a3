//! Rows of tables that a new run leaves as they were, because their figures moved by no more than noise.

use std::collections::HashMap;

/// How far a figure may move: by this share, and by the second one where either run was disturbed.
const NOISE: f64 = 0.10;
const NOISE_OF_DISTURBED: f64 = 0.25;

/// The columns that name a row, beside its first one.
const NAMES: [&str; 2] = ["size", "device"];

/// A row of a table: its heading, its names, and the line.
struct Row<'p> {
    key: (&'p str, Vec<&'p str>),
    line: &'p str,
}

/// The new page with the rows of the earlier one whose figures are those of the new one within noise. All rows are new where the
/// earlier page is of another machine.
pub(in super::super) fn steady(page: &str, earlier: &str) -> String {
    if machine(page) != machine(earlier) {
        return page.to_owned();
    }
    let mut before: HashMap<_, Vec<&str>> = HashMap::new();
    for Row { key, line } in rows(earlier).flatten() {
        before.entry(key).or_default().push(line);
    }
    let mut kept = String::with_capacity(page.len());
    for (line, row) in page.lines().zip(rows(page)) {
        let same = row.and_then(|row| before.get(&row.key));
        // Rows with equal names cannot be distinguished.
        let old = same.and_then(|same| if let [old] = same[..] { Some(old) } else { None });
        kept.push_str(old.filter(|old| is_noise(line, old)).unwrap_or(line));
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

/// The row of each line; `None` for a line outside of tables, and for the first line of a table, which has the titles.
fn rows(page: &str) -> impl Iterator<Item = Option<Row<'_>>> {
    let (mut heading, mut titles) = ("", None::<Vec<&str>>);
    page.lines().map(move |line| {
        if line.starts_with('#') {
            heading = line;
        }
        if !line.starts_with('|') {
            titles = None;
            return None;
        }
        let Some(titles) = &titles else {
            titles = Some(cells(line).collect());
            return None;
        };
        let named = cells(line).zip(titles).enumerate();
        let names =
            named.filter(|(column, (_, title))| *column == 0 || NAMES.contains(title)).map(|(_, (cell, _))| cell);
        Some(Row { key: (heading, names.collect()), line })
    })
}

fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

/// The parts of a cell, by their labels: what is not a number, such as a unit or the name of a library; the number; and whether it was
/// disturbed.
fn parts(cell: &str) -> Vec<(String, Option<(f64, bool)>)> {
    let part = |part: &str| {
        let mut figure = None;
        let label = |word: &&str| match word.trim_end_matches('~').parse::<f64>() {
            Ok(number) if figure.is_none() => {
                figure = Some((number, word.ends_with('~')));
                false
            }
            _ => true,
        };
        let label = part.split(' ').filter(label).collect::<Vec<_>>().join(" ");
        (label, figure)
    };
    let mut parts: Vec<_> = cell.split(", ").map(part).collect();
    parts.sort_by(|a, b| a.0.cmp(&b.0));
    parts
}

/// Whether all figures of two rows are equal within noise.
fn is_noise(new: &str, old: &str) -> bool {
    let close = |new: Option<(f64, bool)>, old: Option<(f64, bool)>| match (new, old) {
        (Some((new, disturbed)), Some((old, was_disturbed))) => {
            let most = if disturbed || was_disturbed { NOISE_OF_DISTURBED } else { NOISE };
            (new - old).abs() <= most * old.abs()
        }
        (new, old) => new == old,
    };
    let is_noise = |new: &str, old: &str| {
        let (new, old) = (parts(new), parts(old));
        new.len() == old.len() && new.iter().zip(&old).all(|(new, old)| new.0 == old.0 && close(new.1, old.1))
    };
    cells(new).count() == cells(old).count() && cells(new).zip(cells(old)).all(|(new, old)| is_noise(new, old))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "- machine: A, 2 threads\n\n## Rates\n\n| operation | size | rate | limit | reached |\n|---|---|---|---|---|\n";

    fn page(rows: &str) -> String {
        format!("{HEAD}{rows}")
    }

    #[test]
    fn rows_that_moved_by_noise_stay() {
        let earlier = page("| add | 256 | 85.0~ GB/s | 385 | 22 % |\n| add | 16 Ki | 90.0 GB/s | 385 | 23 % |\n");
        let of = |rows: &str| steady(&page(rows), &earlier);
        let noise = "| add | 256 | 70.0 GB/s | 400 | 20 % |\n| add | 16 Ki | 97.0 GB/s | 380 | 24 % |\n";
        assert_eq!(of(noise), earlier);
        let moved = "| add | 256 | 60.0 GB/s | 385 | 16 % |\n| add | 16 Ki | 101 GB/s | 385 | 26 % |\n";
        assert_eq!(of(moved), page(moved));
        // Another unit, another operation, another size, a dash.
        for other in ["| add | 256 | 85.0~ MB/s | 385 | 22 % |", "| sub | 16 Ki | 90.0 GB/s | 385 | 23 % |"] {
            assert_eq!(of(&format!("{other}\n")), page(&format!("{other}\n")));
        }
        for other in ["| add | 17 Ki | 90.0 GB/s | 385 | 23 % |", "| add | 16 Ki | - | 385 | - |"] {
            assert_eq!(of(&format!("{other}\n")), page(&format!("{other}\n")));
        }
        let elsewhere = page(noise).replace("machine: A", "machine: B");
        assert_eq!(steady(&elsewhere, &earlier), elsewhere);
    }

    #[test]
    fn peers_may_change_their_order() {
        let titles = "## gemm\n\n| case | kiln | best peer | other peers |\n|---|---|---|---|\n";
        let row = |rate: &str, peers: &str| format!("{titles}| 64 | {rate} GFLOP/s | faer 90.0 | {peers} |\n");
        let earlier = row("100", "mkl 80.0~, gemm 79.0");
        assert_eq!(steady(&row("101", "gemm 81.0, mkl 78.0"), &earlier), earlier);
        let moved = row("101", "gemm 60.0, mkl 78.0");
        assert_eq!(steady(&moved, &earlier), moved);
    }

    #[test]
    fn rows_belong_to_their_heading() {
        let of = |rate: &str| {
            let table = HEAD.split_once("\n\n## Rates").unwrap().1;
            page(&format!(
                "| add | 256 | 85.0 GB/s | 385 | 22 % |\n\n## Others{table}| add | 256 | {rate} | 385 | 22 % |\n"
            ))
        };
        assert_eq!(steady(&of("85.0 GB/s"), &of("40.0 GB/s")), of("85.0 GB/s"));
        assert_eq!(steady(&of("41.0 GB/s"), &of("40.0 GB/s")), of("40.0 GB/s"));
    }

    #[test]
    fn a_page_of_the_repository_stays_as_it_is() {
        let page = include_str!("../../../../../docs/measurements.md");
        assert_eq!(steady(page, page), page);
    }
}
