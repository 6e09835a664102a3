//! The page: one file, no network, light and dark.

use std::collections::BTreeMap;
use std::fmt::Write;

use xtask_verify::Row;

use super::super::Report;
use super::super::gpus::{Adapter, Gpus};
use super::super::models::Models;
use super::super::numbers::{digits, grouped, size};
use super::super::routing::Routing;
use super::super::verify::sample;
use super::table::share;
use super::{date, models as texts, pays, plot};
use crate::Result;

const STYLE: &str = include_str!("style.css");

/// Text as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The whole page.
pub(in super::super) fn page(report: &Report) -> Result<String> {
    let mut html = String::new();
    let title = format!("kiln on {}", escaped(&report.machine.processor));
    write!(
        html,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{STYLE}</style></head><body><main>"
    )?;
    let machine = &report.machine;
    write!(
        html,
        "<h1>{title}</h1><p class=\"sub\">{}{}, {}{} · kiln {} · {} · <code>{}</code></p>",
        machine.threads(),
        machine.memory_gib.map_or(String::new(), |g| format!(", {g:.0} GiB")),
        escaped(&machine.system),
        if machine.caches.is_empty() { String::new() } else { format!(" · {}", machine.caches()) },
        report.version,
        date(report.when),
        escaped(&report.command),
    )?;
    cards(&mut html, report)?;
    backends(&mut html, report)?;
    plots(&mut html, report)?;
    if let Some(found) = &report.gpus {
        gpus(&mut html, found)?;
    }
    if let Some(measured) = &report.language_models {
        models(&mut html, measured)?;
    }
    if let Some(image) = &report.image {
        write!(
            html,
            "<h2>Image filter</h2><p>{}: {}×{} pixels, blurred, then Sobel edges. One recorded batch computes them in \
             {} ms ({} Mpixel/s).</p><div class=\"pair\"><figure><img alt=\"original\" src=\"{}\">\
             <figcaption>original</figcaption></figure><figure><img alt=\"edges\" src=\"{}\">\
             <figcaption>edges</figcaption></figure></div>",
            escaped(&image.name),
            image.width,
            image.height,
            digits(image.seconds * 1e3),
            digits((image.width * image.height) as f64 / image.seconds * 1e-6),
            image.original,
            image.filtered,
        )?;
    }
    if let Some(routing) = &report.routing {
        routes(&mut html, routing)?;
    }
    accuracy(&mut html, &report.accuracy)?;
    limits(&mut html, report)?;
    write!(html, "<footer>The run took {:.0} s.</footer></main></body></html>", report.seconds)?;
    Ok(html)
}

/// The most important figures, in a row of cards.
fn cards(html: &mut String, report: &Report) -> Result<()> {
    let mut cards: Vec<(String, String)> = Vec::new();
    let cases: usize = report.accuracy.iter().map(|r| r.cases).sum();
    let failures: usize = report.accuracy.iter().map(|r| r.failures).sum();
    if cases > 0 {
        cards.push((format!("{} / {}", grouped(cases - failures), grouped(cases)), "cases within their bound".into()));
    }
    for series in &report.measurements {
        let reached = series
            .variants
            .iter()
            .flat_map(|v| v.points.iter().filter_map(|p| Some((p.rate, p.rate / series.limit(v.threads, p.size)?))));
        if let ("matmul" | "add" | "sum", Some((rate, share))) =
            (series.operation, reached.max_by(|a, b| a.0.total_cmp(&b.0)))
        {
            cards.push((
                format!("{} {}", digits(rate), series.unit),
                match series.operation {
                    "matmul" => format!("highest rate of a matrix product, {:.0} % of the limit", share * 100.0),
                    "add" => "highest rate of an addition".into(),
                    _ => "highest rate of a sum".into(),
                },
            ));
        }
    }
    cards.extend(report.language_models.as_ref().and_then(fastest));
    if let Some(routing) = &report.routing {
        if let Some(router) = routing.policies.first() {
            cards.push((format!("{:.1} %", router.geomean * 100.0), "geometric mean of the router's regret".into()));
        }
        cards.push((format!("{:.0} ns", routing.decision_ns), "time of a routing decision".into()));
    }
    write!(html, "<div class=\"cards\">")?;
    for (value, what) in cards {
        write!(html, "<div><b>{value}</b><span>{what}</span></div>")?;
    }
    write!(html, "</div>")?;
    Ok(())
}

/// The highest rate of generating a text.
fn fastest(models: &Models) -> Option<(String, String)> {
    let on = models.models.iter().flat_map(|model| model.on.iter().zip(&models.devices).map(move |on| (model, on)));
    let rates = on.filter_map(|(model, (on, device))| Some((on.decode?.tokens_per_second, model, device)));
    let (rate, model, device) = rates.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let what = format!("generated by {} on {}, the highest rate of a language model", model.name, device.name);
    Some((format!("{} tokens/s", digits(rate)), escaped(&what)))
}

fn backends(html: &mut String, report: &Report) -> Result<()> {
    write!(html, "<h2>Instruction sets and devices</h2><div class=\"scroll\"><table class=\"narrow text\"><tbody>")?;
    for backend in &report.backends {
        let (class, mark) = if backend.present { ("yes", "✓") } else { ("no", "–") };
        write!(
            html,
            "<tr class=\"{class}\"><td>{mark}</td><td>{}</td><td>{}</td></tr>",
            escaped(&backend.name),
            escaped(&backend.detail)
        )?;
    }
    write!(html, "</tbody></table></div>")?;
    Ok(())
}

fn plots(html: &mut String, report: &Report) -> Result<()> {
    let Some(widest) = report.measurements.iter().max_by_key(|s| s.variants.len()) else { return Ok(()) };
    write!(html, "<h2>Throughput over size</h2><p class=\"legend\">")?;
    for variant in &widest.variants {
        let colour = plot::css(plot::colour(&variant.name));
        write!(html, "<span><i style=\"background:{colour}\"></i>{}</span>", escaped(&variant.name))?;
    }
    write!(
        html,
        "<span><i class=\"dash\"></i>limit of one thread</span><span><i class=\"dash faint\"></i>limit of all \
         threads</span></p><div class=\"plots\">"
    )?;
    for series in &report.measurements {
        write!(html, "<figure><figcaption>{}</figcaption>{}</figure>", series.operation, plot::series(series)?)?;
    }
    write!(html, "</div>")?;
    Ok(())
}

/// Every operation on the CPU and on the adapters, and the size from which an adapter is faster.
fn gpus(html: &mut String, gpus: &Gpus) -> Result<()> {
    write!(
        html,
        "<h2>GPUs beside the CPU</h2><p>CPU: the better of one thread and all threads. Resident: operands and results \
         stay in device memory, and a call includes the wait for the result. Host to host: a call includes upload and download. \
         The limit is a copy within device memory that touches as many bytes as the operation, with the wait. \
         A GPU is faster from the size from which its curve stays above the curve of the CPU up to the largest size.</p>"
    )?;
    for adapter in &gpus.adapters {
        write!(html, "<p class=\"sub\">{}: {}</p>", escaped(&adapter.name), escaped(&adapter.detail))?;
    }
    write!(html, "<div class=\"scroll\"><table class=\"narrow\"><thead><tr><th>faster than the CPU</th>")?;
    for Adapter { name, .. } in &gpus.adapters {
        write!(html, "<th>{name}, resident</th><th>{name}, host to host</th>")?;
    }
    write!(html, "<th>meaning of size</th></tr></thead><tbody>")?;
    for series in &gpus.series {
        write!(html, "<tr><td>{}</td>", series.operation)?;
        for on in &series.adapters {
            let title = on.refused.as_ref().map_or(String::new(), |why| format!(" title=\"refused {}\"", escaped(why)));
            write!(html, "<td{title}>{}</td><td{title}>{}</td>", pays(on.resident_pays), pays(on.host_pays))?;
        }
        write!(html, "<td>{}</td></tr>", escaped(series.shape))?;
    }
    write!(html, "</tbody></table></div><p class=\"legend\">")?;
    let mut swatch = |style: &str, what: &str| write!(html, "<span><i {style}></i>{}</span>", escaped(what));
    swatch(&format!("style=\"background:{}\"", plot::css(plot::CPU)), "CPU")?;
    for (position, Adapter { name, .. }) in gpus.adapters.iter().enumerate() {
        let [resident, host] = plot::adapter(position).map(plot::css);
        swatch(&format!("style=\"background:{resident}\""), &format!("{name}, resident"))?;
        swatch(&format!("style=\"background:{host}\""), &format!("{name}, host to host"))?;
        swatch(&format!("class=\"dash\" style=\"border-color:{resident}\""), &format!("{name}, limit: a copy"))?;
    }
    swatch("class=\"pays\"", "size from which the GPU is faster, in the colour of its curve")?;
    write!(html, "</p><div class=\"plots\">")?;
    for series in &gpus.series {
        write!(html, "<figure><figcaption>{}", series.operation)?;
        for (adapter, on) in gpus.adapters.iter().zip(&series.adapters) {
            write!(
                html,
                "<small>{} is faster: resident {}, host to host {}</small>",
                adapter.name,
                pays(on.resident_pays),
                pays(on.host_pays)
            )?;
        }
        write!(html, "</figcaption>{}</figure>", plot::gpus(series)?)?;
    }
    write!(html, "</div>")?;
    Ok(())
}

/// The tokens a second of every model on every device.
fn models(html: &mut String, models: &Models) -> Result<()> {
    let limits = escaped(&texts::limits(models));
    write!(html, "<h2>Language models</h2><p>{}</p><p>{limits}</p>", texts::about(models))?;
    for device in &models.devices {
        write!(html, "<p class=\"sub\">{}</p>", escaped(&texts::device(device)))?;
    }
    write!(html, "<div class=\"scroll\"><table class=\"narrow\"><thead><tr><th>model</th><th>device</th>")?;
    texts::columns(&models.tests).iter().try_for_each(|column| write!(html, "<th>{column}</th>"))?;
    write!(html, "</tr></thead><tbody>")?;
    for row in texts::rows(models) {
        let title = row.refused.map_or(String::new(), |why| format!(" title=\"refused: {}\"", escaped(why)));
        write!(html, "<tr{title}><td>{}</td><td>{}</td>", escaped(row.model), escaped(row.device))?;
        row.cells.iter().try_for_each(|cell| write!(html, "<td>{cell}</td>"))?;
        write!(html, "</tr>")?;
    }
    write!(html, "</tbody></table></div>")?;
    for row in texts::rows(models) {
        if let Some(why) = row.refused {
            write!(html, "<p class=\"sub\">{} refused {}: {}</p>", row.device, escaped(row.model), escaped(why))?;
        }
    }
    if let Some(left_out) = texts::left_out(models) {
        write!(html, "<p class=\"sub\">{}</p>", escaped(&left_out))?;
    }
    write!(html, "<p class=\"legend\">")?;
    for (position, device) in models.devices.iter().enumerate() {
        let colour = plot::css(plot::device(position));
        write!(html, "<span><i style=\"background:{colour}\"></i>{}</span>", escaped(&device.name))?;
    }
    write!(html, "<span><i class=\"limit\"></i>limit of a device, in its colour</span></p><div class=\"plots\">")?;
    for rates in &models.models {
        let plot = plot::models(&models.tests, rates, &models.devices);
        write!(html, "<figure><figcaption>{}</figcaption>{plot}</figure>", escaped(&rates.name))?;
    }
    write!(html, "</div>")?;
    Ok(())
}

fn routes(html: &mut String, routing: &Routing) -> Result<()> {
    write!(
        html,
        "<h2>Routing</h2><p>The regret of a decision is the time on the chosen place divided by the time on the best place, less \
         one. The table is over {} problems; {} of them have shapes that the calibration has not seen (held out). {}</p>\
         <div class=\"scroll\"><table><thead><tr><th>policy</th><th>geomean</th><th>p95</th><th>worst</th><th>held out</th></tr></thead><tbody>",
        routing.problems,
        routing.held_out,
        routing.left_out()
    )?;
    for row in &routing.policies {
        let percent = |v: f64| format!("{:.1} %", v * 100.0);
        write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            row.name,
            percent(row.geomean),
            percent(row.p95),
            percent(row.worst),
            row.held_out.map_or(String::new(), percent)
        )?;
    }
    write!(
        html,
        "</tbody></table></div><h3>The largest regrets of the router</h3><div class=\"scroll\"><table class=\"text\"><thead><tr><th>problem</th><th>chosen</th>"
    )?;
    write!(html, "<th>best</th><th>regret</th><th>held out</th></tr></thead><tbody>")?;
    for row in routing.worst(10) {
        write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td></tr>",
            escaped(&row.problem),
            escaped(&routing.timed(row, row.chosen)),
            escaped(&routing.timed(row, row.best)),
            row.regret * 100.0,
            if row.held_out { "yes" } else { "no" }
        )?;
    }
    write!(html, "</tbody></table></div>")?;
    if !routing.graphs.is_empty() {
        graphs(html, routing)?;
    }
    let all = routing.measured.iter().flat_map(|row| row.seconds.iter().zip(&row.predicted).enumerate());
    let dots = all.map(|(place, (&measured, &predicted))| {
        let name = routing.places.get(place).map_or("", String::as_str);
        (measured, predicted, place_colour(name, routing))
    });
    write!(
        html,
        "<h3>Predicted and measured times</h3><p>Seconds of every problem on every place. On the line both are equal. They \
         differ by a factor of {:.2} in the geometric mean.</p>{}<h3>Chosen places by size</h3><p class=\"legend\">",
        routing.prediction_error,
        plot::predictions(dots)
    )?;
    for place in &routing.places {
        write!(html, "<span><i style=\"background:{}\"></i>{}</span>", place_colour(place, routing), escaped(place))?;
    }
    write!(html, "</p><div class=\"map\">")?;
    for row in &routing.map {
        write!(html, "<div><b>{}</b><small>{}</small></div><div>", row.operation, escaped(row.shape))?;
        for &(n, place, gain) in &row.cells {
            let name = routing.places.get(place).map_or("", String::as_str);
            write!(
                html,
                "<span style=\"background:{}\" title=\"{} at {}: {}, {:.1} times faster than the slowest place\">{}</span>",
                place_colour(name, routing),
                row.operation,
                n,
                escaped(name),
                gain,
                size(n)
            )?;
        }
        write!(html, "</div>")?;
    }
    write!(html, "</div>")?;
    Ok(())
}

/// Recorded graphs on each device, and as planned.
fn graphs(html: &mut String, routing: &Routing) -> Result<()> {
    write!(
        html,
        "<h3>Graphs</h3><p>Recorded graphs with resident weights, on each device alone and as the router places them. Each cell has the \
         measured and the (predicted) time.</p><div class=\"scroll\"><table class=\"text\"><thead><tr><th>graph</th><th>CPU</th>"
    )?;
    let gpus = routing.graphs.first().map_or(0, |row| row.seconds.len().saturating_sub(1));
    let names = &routing.places[routing.places.len().saturating_sub(gpus)..];
    names.iter().try_for_each(|name| write!(html, "<th>{}</th>", escaped(name)))?;
    write!(html, "<th>planned</th><th>segments</th><th>regret</th></tr></thead><tbody>")?;
    let times = |measured: f64, predicted: f64| format!("{} µs ({})", digits(measured * 1e6), digits(predicted * 1e6));
    for row in &routing.graphs {
        write!(html, "<tr><td>{}</td>", escaped(&row.graph))?;
        for (&measured, &predicted) in row.seconds.iter().zip(&row.predicted) {
            write!(html, "<td>{}</td>", times(measured, predicted))?;
        }
        let planned = times(row.planned, row.planned_predicted);
        write!(html, "<td>{planned}</td><td>{}</td><td>{:.1} %</td></tr>", row.segments, row.regret * 100.0)?;
    }
    write!(html, "</tbody></table></div>")?;
    Ok(())
}

/// The colour of a place in the plots; for several numbers of threads, more threads are darker.
fn place_colour(place: &str, routing: &Routing) -> String {
    let threads = |name: &str| name.rsplit_once(" x").and_then(|(_, n)| n.parse::<u32>().ok()).unwrap_or(1);
    let most = routing.places.iter().map(|p| threads(p)).max().unwrap_or(1);
    let colour = plot::colour(place);
    if threads(place) == 1 || threads(place) == most {
        return plot::css(colour);
    }
    let lighter = |c: u8| c.saturating_add((255 - c) / 3);
    format!("#{:02x}{:02x}{:02x}", lighter(colour.0), lighter(colour.1), lighter(colour.2))
}

fn accuracy(html: &mut String, rows: &[Row]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut backends: Vec<&str> = Vec::new();
    let mut by_op: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        if !backends.contains(&row.backend.as_str()) {
            backends.push(&row.backend);
        }
        by_op.entry(row.op).or_default().push(row);
    }
    write!(
        html,
        "<h2>Accuracy</h2><p>The worst error of each operation against the f64 reference, as a share of its bound. The \
         bound is in ULP, or in multiples of u = 2⁻²⁴ times the sum of magnitudes.{}</p><div class=\"scroll\"><table><thead><tr><th>operation</th><th>bound</th>",
        sample(rows).map_or(String::new(), |sample| format!(" {sample}"))
    )?;
    backends.iter().try_for_each(|backend| write!(html, "<th>{backend}</th>"))?;
    write!(html, "<th>cases</th><th>elements</th></tr></thead><tbody>")?;
    for (op, rows) in &by_op {
        write!(html, "<tr><td>{op}</td><td>{}</td>", escaped(&rows[0].bound))?;
        for backend in &backends {
            match rows.iter().find(|r| r.backend == *backend) {
                Some(row) if row.failures > 0 => write!(
                    html,
                    "<td class=\"fail\" title=\"{}\">{} fail</td>",
                    escaped(row.failure.as_deref().unwrap_or("")),
                    row.failures
                )?,
                Some(row) => write!(html, "<td>{}</td>", share(row))?,
                None => write!(html, "<td></td>")?,
            }
        }
        let elements: usize = rows.iter().map(|r| r.compared).sum();
        write!(html, "<td>{}</td><td>{}</td></tr>", rows[0].cases, grouped(elements))?;
    }
    write!(html, "</tbody></table></div>")?;
    Ok(())
}

fn limits(html: &mut String, report: &Report) -> Result<()> {
    if report.limits.is_empty() {
        return Ok(());
    }
    write!(
        html,
        "<h2>Limits of this machine</h2><div class=\"scroll\"><table class=\"narrow\"><thead><tr><th>loop</th><th>instruction set</th>\
         <th>threads</th><th>rate</th></tr></thead><tbody>"
    )?;
    for limit in &report.limits {
        write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{} {}</td></tr>",
            escaped(&limit.name),
            limit.isa,
            limit.threads,
            digits(limit.value),
            limit.unit
        )?;
    }
    write!(html, "</tbody></table></div>")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::texts::tests::recorded;
    use super::*;

    #[test]
    fn the_section_of_language_models_has_every_figure_and_no_raw_text() {
        let mut html = String::new();
        models(&mut html, &recorded()).unwrap();
        let text = ["A &amp; B through Vulkan", "&lt;large&gt;", "8 GB &lt; 16 GB", "left out: several sequences"];
        text.iter().for_each(|text| assert!(html.contains(text), "{text} is missing"));
        assert!(!html.contains("<large>") && !html.contains("A & B"));
        for cells in ["<td>450</td><td>50 %</td><td>75.2</td><td>80 %</td><td>160</td><td>322~</td>", "<td>912~</td>"] {
            assert!(html.contains(cells), "{cells} is missing");
        }
        assert_eq!(html.matches("<svg").count(), 2);
        // A dot for each rate, those of disturbed figures hollow, and a dash for each limit.
        assert_eq!((html.matches("<circle").count(), html.matches("fill=\"none\"").count()), (10, 2));
        assert_eq!(html.matches("stroke-width=\"3\"").count(), 5);
        let (rate, what) = fastest(&recorded()).unwrap();
        assert!(rate == "912 tokens/s" && what.starts_with("generated by small on gpu 0"), "{rate} {what}");
    }
}
