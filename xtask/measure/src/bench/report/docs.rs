//! docs/measurements.md: figures with the command and the machine beside them.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Deserialize;

use super::super::Report;
use super::super::gpus::Gpus;
use super::super::measure::Series;
use super::super::models::Models;
use super::super::numbers::{digits, size};
use super::table::rate;
use super::{date, models as texts, pays};
use crate::Result;

/// One line of a bench's JSON.
#[derive(Debug, Deserialize)]
pub(in super::super) struct Figure {
    bench: String,
    case: String,
    threads: usize,
    isa: String,
    contender: String,
    unit: String,
    value: f64,
    kiln_is_faster_by: f64,
    clean: usize,
    #[serde(default)]
    quick: bool,
    limit: Option<f64>,
}

/// Reads the output of benches, whose figures are lines of JSON. Other lines are for the terminal.
pub(in super::super) fn read_peers(files: &[PathBuf]) -> Result<Vec<Figure>> {
    let mut figures: Vec<Figure> = Vec::new();
    for file in files {
        let problem = |e: &dyn std::fmt::Display| format!("--peers {}: {e}", file.display());
        let text = std::fs::read_to_string(file).map_err(|e| problem(&e))?;
        let before = figures.len();
        for line in text.lines().filter(|l| l.starts_with('{')) {
            figures.push(serde_json::from_str(line).map_err(|e| problem(&e))?);
        }
        if figures.len() == before {
            return Err(problem(&"no figures; `cargo bench -p kiln-benches --bench NAME -- --json` prints them").into());
        }
    }
    Ok(figures)
}

/// The heading of the tables that no run of `cargo xtask bench` writes.
const OTHER_MACHINES: &str = "\n## Other machines\n";

/// The part of an earlier page after the tables of a run, which a new page keeps.
pub(in super::super) fn other_machines(page: &str) -> &str {
    page.find(OTHER_MACHINES).map_or("", |at| &page[at..])
}

/// The tables of a run.
pub(in super::super) fn page(report: &Report, peers: &[Figure]) -> Result<String> {
    let mut page = String::new();
    let machine = &report.machine;
    write!(
        page,
        "# Measurements\n\nThis page has the tables behind [performance.md](performance.md), each with its command. One run of `cargo xtask bench` \
         wrote the tables\nbefore [Other machines](#other-machines); the benches of peers ran on the same machine. \
         Rates differ between machines and days; ratios to\nlimits and peers differ less. A run leaves the rows of its machine whose \
         figures moved by less than 10 %.\n\n\
         - machine: {}, {}, {}\n- instruction sets: {}\n{}- command: `{}`\n- date: {}, kiln {}\n",
        machine.processor,
        machine.threads(),
        machine.system,
        report.backends.iter().filter(|b| b.present).map(|b| b.name.as_str()).collect::<Vec<_>>().join(", "),
        if machine.caches.is_empty() { String::new() } else { format!("- caches: {}\n", machine.caches()) },
        report.command,
        date(report.when),
        report.version,
    )?;
    write!(page, "\n## Beside the limits of the machine\n\n")?;
    write!(
        page,
        "The limit is the rate of a loop of multiply-adds in registers, or of the fastest loop (ordinary or streaming stores) that touches the \
         same memory\nas the operation and does nothing else. Both are measured in turns, so noise may give more than 100 %. `~` marks \
         figures from fewer than {}\nundisturbed samples.\n\n| operation | size | one thread | limit | reached | all threads | limit | reached |\n\
         |---|---|---|---|---|---|---|---|\n",
        kiln_benches::measure::ENOUGH
    )?;
    report.measurements.iter().try_for_each(|series| rows(&mut page, series))?;
    if let Some(gpus) = &report.gpus {
        write_gpus(&mut page, gpus)?;
    }
    if let Some(models) = &report.language_models {
        write_models(&mut page, models)?;
    }
    if !peers.is_empty() {
        write_peers(&mut page, peers)?;
    }
    if let Some(routing) = &report.routing {
        write!(
            page,
            "\n## Routing\n\nRegret over {} problems, {} of them with shapes that the calibration has not seen (held out); a decision \
             takes {:.0} ns.\n{}\n\n| policy | geomean | p95 | worst | geomean of the held-out |\n|---|---|---|---|---|\n",
            routing.problems,
            routing.held_out,
            routing.decision_ns,
            routing.left_out()
        )?;
        for row in &routing.policies {
            writeln!(
                page,
                "| {} | {:.1} % | {:.1} % | {:.1} % | {} |",
                row.name,
                row.geomean * 100.0,
                row.p95 * 100.0,
                row.worst * 100.0,
                row.held_out.map_or("-".into(), |v| format!("{:.1} %", v * 100.0))
            )?;
        }
        write!(
            page,
            "\nThe largest regrets of the router:\n\n| problem | chosen | best | regret |\n|---|---|---|---|\n"
        )?;
        for row in routing.worst(5) {
            let (chosen, best) = (routing.timed(row, row.chosen), routing.timed(row, row.best));
            writeln!(page, "| {} | {chosen} | {best} | {:.1} % |", row.problem, row.regret * 100.0)?;
        }
    }
    Ok(page)
}

/// One operation at a few sizes: the best variant of one thread, and all threads.
fn rows(page: &mut String, series: &Series) -> Result<()> {
    let sizes: Vec<usize> = series.limits.first().map_or(Vec::new(), |c| c.points.iter().map(|p| p.0).collect());
    let step = sizes.len().div_ceil(5).max(1);
    let mut shown: Vec<usize> = sizes.iter().rev().step_by(step).copied().collect();
    shown.reverse();
    for n in shown {
        write!(page, "| {} | {} |", series.operation, size(n))?;
        let most = series.limits.iter().map(|c| c.threads).max().unwrap_or(1);
        for threads in [1, most] {
            let best = series
                .variants
                .iter()
                .filter(|v| v.threads == threads)
                .filter_map(|v| v.points.iter().find(|p| p.size == n))
                .max_by(|a, b| a.rate.total_cmp(&b.rate));
            match (best, series.limit(threads, n)) {
                (Some(point), Some(limit)) => write!(
                    page,
                    " {}{} {} | {} | {:.0} % |",
                    digits(point.rate),
                    if point.certain { "" } else { "~" },
                    series.unit,
                    digits(limit),
                    100.0 * point.rate / limit
                )?,
                _ => write!(page, " - | - | - |")?,
            }
        }
        page.push('\n');
    }
    Ok(())
}

/// Every operation at a few sizes on the CPU and on the adapters, and the sizes at which an adapter is faster.
fn write_gpus(page: &mut String, gpus: &Gpus) -> Result<()> {
    write!(
        page,
        "\n## GPUs beside the CPU\n\nCPU: the better of one thread and all threads. Resident: operands and results \
         stay in device memory, and a call includes the\nwait for the result. Host to host: a call includes upload and download. Copy: \
         a copy within device memory that touches as many\nbytes, with the wait. All are measured in turns.\n\n"
    )?;
    for adapter in &gpus.adapters {
        writeln!(page, "- {}: {}", adapter.name, adapter.detail)?;
    }
    let header = |page: &mut String, first: &str, ways: &[&str], last: &str| -> Result<()> {
        write!(page, "\n|{first}")?;
        for adapter in &gpus.adapters {
            ways.iter().try_for_each(|way| write!(page, " {} {way} |", adapter.name))?;
        }
        let columns = first.matches('|').count() + ways.len() * gpus.adapters.len() + last.matches('|').count();
        writeln!(page, "{last}\n|{}", "---|".repeat(columns))?;
        Ok(())
    };
    header(page, " operation | size | CPU |", &["resident", "host to host", "copy"], " unit |")?;
    for series in &gpus.series {
        let step = series.cpu.len().div_ceil(5).max(1);
        let mut sizes: Vec<usize> = series.cpu.iter().rev().step_by(step).map(|p| p.size).collect();
        sizes.reverse();
        for n in sizes {
            write!(page, "| {} | {} | {} |", series.operation, size(n), rate(&series.cpu, n))?;
            let columns = series.adapters.iter().flat_map(|on| [&on.resident, &on.host, &on.copy]);
            columns.map(|points| rate(points, n)).try_for_each(|cell| write!(page, " {cell} |"))?;
            writeln!(page, " {} |", series.unit)?;
        }
    }
    write!(page, "\nThe size from which a GPU stays faster than the CPU, up to the largest size:\n")?;
    header(page, " operation | meaning of size |", &["resident", "host to host"], "")?;
    for series in &gpus.series {
        write!(page, "| {} | {} |", series.operation, series.shape)?;
        let columns = series.adapters.iter().flat_map(|on| [on.resident_pays, on.host_pays]);
        columns.map(pays).try_for_each(|cell| write!(page, " {cell} |"))?;
        page.push('\n');
    }
    Ok(())
}

/// The tokens a second of every model on every device.
fn write_models(page: &mut String, models: &Models) -> Result<()> {
    let left_out = texts::left_out(models).map_or(String::new(), |left_out| format!(" {left_out}"));
    let text = wrapped(&format!("{} {}{left_out}", texts::about(models), texts::limits(models)));
    write!(page, "\n## Language models\n\n{text}\n\n")?;
    models.devices.iter().try_for_each(|device| writeln!(page, "- {}", texts::device(device)))?;
    let columns = texts::columns(&models.tests);
    writeln!(page, "\n| model | device | {} |\n|{}", columns.join(" | "), "---|".repeat(2 + columns.len()))?;
    for row in texts::rows(models) {
        writeln!(page, "| {} | {} | {} |", row.model, row.device, row.cells.join(" | "))?;
    }
    Ok(())
}

/// A text in lines of at most 140 characters.
fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        match line {
            0 => {}
            _ if line + 1 + length > 140 => {
                lines.push('\n');
                line = 0;
            }
            _ => {
                lines.push(' ');
                line += 1;
            }
        }
        lines += word;
        line += length;
    }
    lines
}

/// The tables of the peers, one for each bench and number of threads.
fn write_peers(page: &mut String, figures: &[Figure]) -> Result<()> {
    write!(
        page,
        "\n## Beside peers\n\nkiln and other libraries (peers), measured in turns in one process, on the same random data, with \
         the same number of\nthreads. The ratio is the time of the best peer divided by the time of kiln: above 1, kiln is faster.\n"
    )?;
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for figure in figures {
        if !groups.contains(&(&figure.bench, figure.threads)) {
            groups.push((&figure.bench, figure.threads));
        }
    }
    for (bench, threads) in groups {
        let of_group = || figures.iter().filter(|f| f.bench == bench && f.threads == threads);
        let isa = of_group().next().map_or("", |f| f.isa.as_str());
        let quick = if of_group().any(|f| f.quick) { " --quick" } else { "" };
        write!(
            page,
            "\n### {bench}, {threads} thread{}, {isa}\n\n`cargo bench -p kiln-benches --bench {bench} -- --threads {threads}{quick} \
             --json`\n\n| case | kiln | best peer | ratio | other peers | share of the limit |\n|---|---|---|---|---|---|\n",
            if threads == 1 { "" } else { "s" }
        )?;
        let mut cases: Vec<&str> = Vec::new();
        of_group().for_each(|f| {
            if !cases.contains(&f.case.as_str()) {
                cases.push(&f.case);
            }
        });
        for case in cases {
            let mut peers: Vec<&Figure> = of_group().filter(|f| f.case == case && f.contender != "kiln").collect();
            peers.sort_by(|a, b| a.kiln_is_faster_by.total_cmp(&b.kiln_is_faster_by));
            let Some(kiln) = of_group().find(|f| f.case == case && f.contender == "kiln") else { continue };
            let mark = |f: &Figure| if f.clean < kiln_benches::measure::ENOUGH { "~" } else { "" };
            let shown = |f: &Figure| format!("{} {}{}", f.contender, digits(f.value), mark(f));
            let best = peers.first();
            let share = kiln.limit.map_or("-".into(), |limit| {
                // Rates grow towards their limit, times fall towards it.
                let share = if kiln.unit.starts_with("ns") { limit / kiln.value } else { kiln.value / limit };
                format!("{:.0} %", 100.0 * share)
            });
            writeln!(
                page,
                "| {case} | {}{} {} | {} | {} | {} | {share} |",
                digits(kiln.value),
                mark(kiln),
                kiln.unit,
                best.map_or("-".into(), |f| shown(f)),
                best.map_or("-".into(), |f| format!("{:.2}", f.kiln_is_faster_by)),
                peers.iter().skip(1).map(|f| shown(f)).collect::<Vec<_>>().join(", "),
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::texts::tests::recorded;
    use super::*;

    #[test]
    fn the_page_has_the_table_of_language_models_in_lines_that_are_not_too_long() {
        let mut page = String::new();
        write_models(&mut page, &recorded()).unwrap();
        for line in [
            "| model | device | prompt of 512 | of the limit | generation | of the limit | 4 sequences | 16 sequences |",
            "| small | gpu 0 | 61234 | - | 912~ | 12 % | 3100 | 9000 |",
            "- cpu: avx2 × 2, reads 20.5 GB/s, 190 GFLOP/s",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is missing in {page}");
        }
        let text = page.lines().find(|line| line.starts_with("Tokens")).unwrap();
        assert!((100..=140).contains(&text.chars().count()), "{text}");
        assert!(page.lines().all(|line| line.chars().count() <= 140), "{page}");
        // No word is lost or joined to another.
        assert!(page.replace('\n', " ").contains(&texts::limits(&recorded())), "{page}");
    }
}
