//! The tables of the terminal.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use xtask_verify::Row;

use super::super::find::{Backend, Machine};
use super::super::gpus::Gpus;
use super::super::measure::{Limit, Point, Series};
use super::super::models::Models;
use super::super::numbers::{digits, size};
use super::{models as texts, pays};

/// Prints the heading of a step.
pub(in super::super) fn heading(text: &str) {
    if std::io::stdout().is_terminal() {
        println!("\n\x1b[1m{text}\x1b[0m");
    } else {
        println!("\n{text}");
    }
}

/// The machine, its instruction sets and its devices.
pub(in super::super) fn machine(machine: &Machine, backends: &[Backend]) {
    let memory = machine.memory_gib.map_or(String::new(), |g| format!(", {g:.0} GiB of memory"));
    println!("  {}, {}{memory}, {}", machine.processor, machine.threads(), machine.system);
    if !machine.caches.is_empty() {
        println!("  caches: {}", machine.caches());
    }
    for backend in backends {
        println!("  {:8} {:4} {}", backend.name, if backend.present { "yes" } else { "no" }, backend.detail);
    }
}

/// The worst error as a share of the bound of its case.
pub(super) fn share(row: &Row) -> String {
    if row.bound == "exact" { "exact".to_owned() } else { format!("{:.0} %", row.share * 100.0) }
}

/// The worst error of every operation as a share of its bound, one column an instruction set.
pub(in super::super) fn accuracy(rows: &[Row]) {
    let mut backends: Vec<&str> = Vec::new();
    let mut by_op: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        if !backends.contains(&row.backend.as_str()) {
            backends.push(&row.backend);
        }
        by_op.entry(row.op).or_default().push(row);
    }
    let columns: String = backends.iter().map(|backend| format!("{backend:>9}")).collect();
    println!("  {:<22}{:<22}{columns}{:>8}", "operation", "bound", "cases");
    for (op, rows) in &by_op {
        let cell = |backend: &&str| match rows.iter().find(|r| r.backend == *backend) {
            Some(row) if row.failures > 0 => format!("{:>9}", format!("{} fail", row.failures)),
            Some(row) => format!("{:>9}", share(row)),
            None => format!("{:>9}", ""),
        };
        let cells: String = backends.iter().map(cell).collect();
        println!("  {op:<22}{:<22}{cells}{:>8}", rows[0].bound, rows[0].cases);
    }
    let compared: usize = rows.iter().map(|r| r.compared).sum();
    let cases: usize = rows.iter().map(|r| r.cases).sum();
    let failures: Vec<&Row> = rows.iter().filter(|r| r.failures > 0).collect();
    println!("  {cases} cases, {compared} elements compared; a column has the worst error as a share of its bound");
    for row in failures {
        println!("  FAIL {} on {}: {}", row.op, row.backend, row.failure.as_deref().unwrap_or(""));
    }
}

/// The rates of every operation at a few sizes, beside the limits.
pub(in super::super) fn measurements(limits: &[Limit], series: &[Series]) {
    let Some(first) = series.iter().max_by_key(|s| s.variants.len()) else { return };
    let names: Vec<&str> = first.variants.iter().map(|v| v.name.as_str()).collect();
    let columns: String = names.iter().map(|n| format!("{n:>12}")).collect();
    println!("  {:<16}{:>8}{columns}{:>10}{:>9}  unit", "operation", "size", "limit", "reached");
    for series in series {
        let sizes: Vec<usize> = series.limits.first().map_or(Vec::new(), |c| c.points.iter().map(|p| p.0).collect());
        for (row, &n) in few(&sizes).iter().enumerate() {
            let mut cells = String::new();
            let mut best: Option<(f64, usize)> = None;
            for variant in &series.variants {
                let point = variant.points.iter().find(|p| p.size == n);
                let text = point.map_or("-".into(), |p| digits(p.rate) + if p.certain { "" } else { "~" });
                cells += &format!("{text:>12}");
                if let Some(point) = point
                    && best.is_none_or(|b| point.rate > b.0)
                {
                    best = Some((point.rate, variant.threads));
                }
            }
            let limit = best.and_then(|(rate, threads)| Some((rate, series.limit(threads, n)?)));
            let limit =
                limit.map_or(String::new(), |(rate, l)| format!("{:>10}{:>7.0} %", digits(l), 100.0 * rate / l));
            let name = if row == 0 { series.operation } else { "" };
            println!("  {name:<16}{:>8}{cells}{limit}  {}", size(n), series.unit);
        }
    }
    println!("  the limit is for the threads of the fastest column; ~ marks figures from disturbed samples");
    for limit in limits.iter().filter(|l| l.unit == "GFLOP/s") {
        println!("  {} {} of {} on {} thread(s)", limit.name, digits(limit.value), limit.unit, limit.threads);
    }
}

/// The rate at a size.
pub(super) fn rate(points: &[Point], size: usize) -> String {
    let point = points.iter().find(|p| p.size == size);
    point.map_or("-".into(), |p| digits(p.rate) + if p.certain { "" } else { "~" })
}

/// The rates of every operation on the CPU and on every adapter, and the sizes at which an adapter is faster.
pub(in super::super) fn gpus(gpus: &Gpus) {
    for adapter in &gpus.adapters {
        println!("  {} is {}", adapter.name, adapter.detail);
    }
    let columns = |of: &dyn Fn(&str) -> String| gpus.adapters.iter().map(|a| of(&a.name)).collect::<String>();
    println!("  {:<24}{:>8}{:>12}{}", "", "", "", columns(&|name| format!("{name:>12}{name:>12}{name:>12}")));
    let ways = columns(&|_| format!("{:>12}{:>12}{:>12}", "resident", "host-host", "copy"));
    println!("  {:<24}{:>8}{:>12}{ways}  unit", "operation", "size", "cpu");
    for series in &gpus.series {
        let sizes: Vec<usize> = series.cpu.iter().map(|p| p.size).collect();
        for (row, &n) in few(&sizes).iter().enumerate() {
            let on = series.adapters.iter().flat_map(|a| [&a.resident, &a.host, &a.copy]);
            let cells: String = on.map(|points| format!("{:>12}", rate(points, n))).collect();
            let name = if row == 0 { series.operation } else { "" };
            println!("  {name:<24}{:>8}{:>12}{cells}  {}", size(n), rate(&series.cpu, n), series.unit);
        }
    }
    println!(
        "  resident: submit and wait; host-host: upload, run and download; copy: the limit, a copy within device memory"
    );
    println!("\n  Sizes at which a GPU is faster than the CPU");
    println!(
        "  {:<24}{}",
        "operation",
        columns(&|name| format!("{:>24}{:>24}", format!("{name} resident"), "host-host"))
    );
    for series in &gpus.series {
        let both = series.adapters.iter().flat_map(|a| [a.resident_pays, a.host_pays]);
        let cells: String = both.map(|from| format!("{:>24}", pays(from))).collect();
        println!("  {:<24}{cells}", series.operation);
        for (adapter, on) in gpus.adapters.iter().zip(&series.adapters) {
            on.refused.iter().for_each(|why| println!("    {} refused {why}", adapter.name));
        }
    }
}

/// The tokens a second of every model on every device.
pub(in super::super) fn models(models: &Models) {
    for device in &models.devices {
        println!("  {}", texts::device(device));
    }
    let columns = texts::columns(&models.tests);
    let head: String = columns.iter().map(|column| format!("{column:>16}")).collect();
    let width = models.models.iter().map(|model| model.name.chars().count() + 2).max().unwrap_or(0).max(8);
    println!("  {:<width$}{:<8}{head}", "model", "device");
    for row in texts::rows(models) {
        let name = if row.is_first { row.model } else { "" };
        let cells: String = row.cells.iter().map(|cell| format!("{cell:>16}")).collect();
        println!("  {name:<width$}{:<8}{cells}", row.device);
        row.refused.iter().for_each(|why| println!("    {} refused {}: {why}", row.device, row.model));
    }
    println!("  {}", texts::about(models));
    println!("  {}", texts::limits(models));
    texts::left_out(models).iter().for_each(|left_out| println!("  {left_out}"));
}

/// A small, a middle and the largest size.
fn few(sizes: &[usize]) -> Vec<usize> {
    let n = sizes.len();
    if n <= 3 { sizes.to_vec() } else { vec![sizes[n / 4], sizes[n / 2], sizes[n - 1]] }
}
