//! Throughput over size as SVG.
//!
//! Ink is written in a colour of its own and replaced by `currentColor`, so that a plot follows the page from light to
//! dark; the colours of the lines are of a middle tone that is readable on both. The page has one legend
//! for all plots, beside the data.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::super::gpus::{self, Pays};
use super::super::measure::{Point, Series};
use super::super::models::{Device, Rate, Rates, Tests};
use super::super::numbers::{digits, size};
use crate::Result;

const INK: RGBColor = RGBColor(1, 2, 3);
const WIDTH: u32 = 560;
const HEIGHT: u32 = 340;

/// The colour of an instruction set, and of all threads of the best one.
pub(super) fn colour(name: &str) -> RGBColor {
    if !name.ends_with(" × 1") && (name.contains('×') || name.rsplit_once(" x").is_some_and(|(_, n)| n != "1")) {
        return RGBColor(22, 150, 84);
    }
    match name.split(' ').next().unwrap_or("") {
        "scalar" => RGBColor(125, 133, 144),
        "sse2" | "simd128" => RGBColor(199, 119, 0),
        "avx2" | "neon" | "relaxed-simd" => RGBColor(47, 127, 209),
        _ => RGBColor(190, 60, 150),
    }
}

/// A colour for CSS.
pub(super) fn css(colour: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// The most labels that an axis has room for.
const LABELS: usize = 8;

/// The numbers 1, 2 and 5 of every decade between two bounds; decades alone where those are too many.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = || low.log10().floor() as i32..=high.log10().floor() as i32;
    // Whole powers and quotients of them print without a tail of digits.
    let scaled = |s: f64, k: i32| if k < 0 { s / 10f64.powi(-k) } else { s * 10f64.powi(k) };
    let of = |steps: &[f64]| {
        let all = decades().flat_map(|k| steps.iter().map(move |&s| scaled(s, k)));
        all.filter(|tick| (low..=high).contains(tick)).collect::<Vec<f64>>()
    };
    let fine = of(&[1.0, 2.0, 5.0]);
    if fine.len() <= LABELS { fine } else { of(&[1.0]) }
}

/// Those of the ascending sizes whose labels have room on a logarithmic axis.
fn apart(sizes: &[f64]) -> Vec<f64> {
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return Vec::new() };
    let step = (last / first).powf(0.9 / LABELS as f64);
    let mut kept: Vec<f64> = Vec::new();
    for &size in sizes {
        if kept.last().is_none_or(|k| size >= k * step) {
            kept.push(size);
        }
    }
    kept
}

/// The content of one pair of axes.
struct Plot<'a> {
    name: &'a str,
    /// The meaning of the size.
    across: &'a str,
    /// The unit of the rates.
    up: &'a str,
    lines: Vec<Line>,
    /// Sizes that are marked across the whole height.
    marks: Vec<(f64, RGBColor)>,
}

/// Rates over sizes.
struct Line {
    points: Vec<(f64, f64)>,
    style: Style,
}

/// The style of a line.
enum Style {
    /// Measured: with a dot at every point.
    Measured(RGBColor),
    /// A limit: dashed.
    Limit(RGBAColor),
}

/// One plot: rates of every variant over size, both logarithmic, and the limits dashed.
pub(super) fn series(series: &Series) -> Result<String> {
    let limits = series.limits.iter().map(|curve| Line {
        points: curve.points.iter().map(|&(x, y)| (x as f64, y)).collect(),
        style: Style::Limit(INK.mix(if curve.threads == 1 { 0.85 } else { 0.5 })),
    });
    let variants = series.variants.iter().map(|variant| measured(&variant.points, colour(&variant.name)));
    let lines = limits.chain(variants).collect();
    svg(&Plot { name: series.operation, across: series.shape, up: series.unit, lines, marks: Vec::new() })
}

/// The colour of the CPU beside adapters.
pub(super) const CPU: RGBColor = RGBColor(22, 150, 84);

/// The colours of an adapter: of resident operands, and from host to host.
pub(super) fn adapter(position: usize) -> [RGBColor; 2] {
    const COLOURS: [[RGBColor; 2]; 3] = [
        [RGBColor(47, 127, 209), RGBColor(199, 119, 0)],
        [RGBColor(190, 60, 150), RGBColor(126, 98, 200)],
        [RGBColor(0, 150, 165), RGBColor(205, 70, 60)],
    ];
    COLOURS[position % COLOURS.len()]
}

/// One plot: the CPU and every adapter over size, both logarithmic, the copies of the adapters dashed, and a line where
/// an adapter starts to pay.
pub(super) fn gpus(series: &gpus::Series) -> Result<String> {
    let (mut lines, mut marks) = (Vec::new(), Vec::new());
    for (position, on) in series.adapters.iter().enumerate() {
        let [resident, host] = adapter(position);
        lines.push(Line { style: Style::Limit(resident.mix(0.8)), ..measured(&on.copy, resident) });
        lines.push(measured(&on.host, host));
        lines.push(measured(&on.resident, resident));
        for (pays, colour) in [(on.resident_pays, resident), (on.host_pays, host)] {
            marks.extend(if let Pays::From(size) = pays { Some((size, colour)) } else { None });
        }
    }
    lines.push(measured(&series.cpu, CPU));
    svg(&Plot { name: series.operation, across: series.shape, up: series.unit, lines, marks })
}

/// Predicted over measured seconds, both logarithmic, a dot each in its colour; invalid times are left out.
pub(super) fn predictions(dots: impl Iterator<Item = (f64, f64, String)>) -> String {
    const SIDE: f64 = 440.0;
    const MARGIN: f64 = 56.0;
    /// A place that never runs something takes longer than this.
    const NEVER: f64 = 1e4;
    let real = |seconds: f64| seconds > 0.0 && seconds < NEVER;
    let dots: Vec<_> = dots.filter(|&(measured, predicted, _)| real(measured) && real(predicted)).collect();
    let all = || dots.iter().flat_map(|&(measured, predicted, _)| [measured, predicted]);
    let low = all().fold(f64::INFINITY, f64::min).log10().floor();
    let high = all().fold(0.0, f64::max).log10().ceil();
    if dots.is_empty() || low >= high {
        return String::new();
    }
    let along = |seconds: f64| (seconds.log10() - low) / (high - low) * SIDE;
    let (x, y) = (|seconds: f64| MARGIN + along(seconds), |seconds: f64| SIDE - along(seconds) + 10.0);
    let (width, height) = (SIDE + MARGIN + 30.0, SIDE + MARGIN);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" style=\"max-width:{width}px\" role=\"img\" aria-label=\"predicted over \
         measured seconds\" font-size=\"12\" fill=\"currentColor\">"
    );
    for decade in low as i32..=high as i32 {
        let at = 10f64.powi(decade);
        let label = match decade {
            ..=-7 => format!("{} ns", 10i64.pow((decade + 9).max(0) as u32)),
            -6..=-4 => format!("{} µs", 10i64.pow((decade + 6) as u32)),
            -3..=-1 => format!("{} ms", 10i64.pow((decade + 3) as u32)),
            _ => format!("{} s", 10i64.pow(decade as u32)),
        };
        svg += &format!(
            "<path d=\"M{0:.1} 10V{1:.1}M{2:.1} {3:.1}H{4:.1}\" stroke=\"currentColor\" stroke-opacity=\".15\"/>\
             <text x=\"{0:.1}\" y=\"{5:.1}\" text-anchor=\"middle\">{label}</text>\
             <text x=\"{6:.1}\" y=\"{7:.1}\" text-anchor=\"end\">{label}</text>",
            x(at),
            SIDE + 10.0,
            MARGIN,
            y(at),
            MARGIN + SIDE,
            SIDE + 28.0,
            MARGIN - 6.0,
            y(at) + 4.0,
        );
    }
    let (start, end) = (10f64.powf(low), 10f64.powf(high));
    svg += &format!(
        "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"currentColor\" stroke-dasharray=\"4 3\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">measured</text>\
         <text x=\"{MARGIN}\" y=\"8\" dx=\"4\" dy=\"14\">predicted</text>",
        x(start),
        y(start),
        x(end),
        y(end),
        MARGIN + SIDE / 2.0,
        SIDE + 48.0,
    );
    for (measured, predicted, colour) in dots {
        svg += &format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2\" fill=\"{colour}\" fill-opacity=\".6\"/>",
            x(measured),
            y(predicted)
        );
    }
    svg + "</svg>"
}

/// The colour of a device in the plots of language models: the CPU is the first.
pub(super) fn device(position: usize) -> RGBColor {
    position.checked_sub(1).map_or(CPU, |position| adapter(position)[0])
}

/// The rates of one model: a line for each test and device, with a dot at the rate and a dash at its limit, on a
/// logarithmic axis. Dots of disturbed figures are hollow.
pub(super) fn models(tests: &Tests, rates: &Rates, devices: &[Device]) -> String {
    /// The end of the names of tests, room for the figure to the left of the first dot, the end of the axis, the height of a
    /// device's line, and the space between tests.
    const LEFT: f64 = 130.0;
    const ROOM: f64 = 75.0;
    const RIGHT: f64 = 545.0;
    const LANE: f64 = 24.0;
    const GAP: f64 = 14.0;
    let of_tests = |on: &super::super::models::OnDevice| -> Vec<Option<Rate>> {
        [on.prompt, on.decode].into_iter().chain(on.several.iter().copied()).collect()
    };
    let on: Vec<Vec<Option<Rate>>> = rates.on.iter().map(of_tests).collect();
    let all = || on.iter().flatten().flatten();
    let values = || all().flat_map(|rate| [Some(rate.tokens_per_second), rate.limit]).flatten();
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(0.0, f64::max) * 1.3;
    if !(low > 0.0 && high.is_finite() && low < high) {
        return String::new();
    }
    let x = |rate: f64| LEFT + ROOM + (rate / low).ln() / (high / low).ln() * (RIGHT - LEFT - ROOM);
    let names = super::models::tests(tests);
    let of_test = devices.len() as f64 * LANE + GAP;
    let bottom = of_test * names.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" style=\"max-width:640px\" role=\"img\" aria-label=\"tokens per second of {}\" font-size=\"16\" \
         fill=\"currentColor\">",
        bottom + 52.0,
        rates.name.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;"),
    );
    for tick in ticks(low, high) {
        svg += &format!(
            "<path d=\"M{0:.1} 0V{bottom:.1}\" stroke=\"currentColor\" stroke-opacity=\".15\"/>\
             <text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{tick}</text>",
            x(tick),
            bottom + 20.0,
        );
    }
    svg += &format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">tokens per second</text>",
        (LEFT + ROOM + RIGHT) / 2.0,
        bottom + 44.0
    );
    for (test, name) in names.iter().enumerate() {
        let top = test as f64 * of_test;
        let middle = top + of_test / 2.0;
        svg += &format!("<text x=\"{LEFT}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>", middle + 5.0);
        if test > 0 {
            svg += &format!("<path d=\"M0 {top:.1}H{RIGHT}\" stroke=\"currentColor\" stroke-opacity=\".15\"/>");
        }
        for (position, on) in on.iter().enumerate() {
            let Some(rate) = on[test] else { continue };
            let (colour, y) = (css(device(position)), top + GAP / 2.0 + LANE * (position as f64 + 0.5));
            let at = x(rate.tokens_per_second);
            if let Some(limit) = rate.limit {
                svg += &format!(
                    "<path d=\"M{at:.1} {y:.1}H{0:.1}\" stroke=\"{colour}\" stroke-dasharray=\"2 4\"/>\
                     <path d=\"M{0:.1} {1:.1}V{2:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>",
                    x(limit),
                    y - 8.0,
                    y + 8.0
                );
            }
            let fill = if rate.certain { &colour } else { "none" };
            svg += &format!(
                "<circle cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}{}</text>",
                at - 11.0,
                y + 5.5,
                digits(rate.tokens_per_second),
                if rate.certain { "" } else { "~" }
            );
        }
    }
    svg + "</svg>"
}

fn measured(points: &[Point], colour: RGBColor) -> Line {
    Line { points: points.iter().map(|p| (p.size as f64, p.rate)).collect(), style: Style::Measured(colour) }
}

fn svg(plot: &Plot<'_>) -> Result<String> {
    let mut svg = String::new();
    draw(plot, &SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area())?;
    let ink = format!("#{:02X}{:02X}{:02X}", INK.0, INK.1, INK.2);
    let label = format!("{} over size", plot.name);
    Ok(svg.replace(&ink, "currentColor").replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1))
}

fn draw(plot: &Plot<'_>, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
    let of = |measured: bool| {
        let lines = plot.lines.iter().filter(move |line| !measured || matches!(line.style, Style::Measured(_)));
        lines.flat_map(|line| line.points.iter().copied())
    };
    let extremes = |values: &mut dyn Iterator<Item = f64>| {
        values.filter(|v| v.is_finite() && *v > 0.0).fold((f64::INFINITY, 0.0f64), |(lo, hi), v| (lo.min(v), hi.max(v)))
    };
    let (left, right) = extremes(&mut of(true).map(|p| p.0));
    let (bottom, top) = extremes(&mut of(false).map(|p| p.1));
    if left >= right || bottom >= top {
        return Ok(());
    }
    let (across, up) = (left / 1.15..right * 1.15, bottom / 1.3..top * 1.4);
    let mut sizes: Vec<f64> = of(true).map(|p| p.0).collect();
    sizes.sort_by(f64::total_cmp);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(18)
        .x_label_area_size(50)
        .y_label_area_size(66)
        .build_cartesian_2d(
            across.clone().log_scale().with_key_points(apart(&sizes)),
            up.clone().log_scale().with_key_points(ticks(up.start, up.end)),
        )?;
    let text = ("sans-serif", 17).into_font().color(&INK);
    chart
        .configure_mesh()
        .light_line_style(INK.mix(0.0))
        .bold_line_style(INK.mix(0.13))
        .axis_style(INK.mix(0.5))
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(plot.across)
        .y_desc(plot.up)
        .x_label_formatter(&|x| size(x.round() as usize))
        .y_label_formatter(&|y| y.to_string())
        .draw()?;
    for &(size, colour) in &plot.marks {
        let line = [(size, up.start), (size, up.end)];
        chart.draw_series(DashedLineSeries::new(line, 2, 4, colour.stroke_width(2)))?;
    }
    for line in &plot.lines {
        let points = line.points.iter().copied();
        match line.style {
            Style::Limit(colour) => {
                chart.draw_series(DashedLineSeries::new(points, 6, 5, colour.stroke_width(2)))?;
            }
            Style::Measured(colour) => {
                chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
                chart.draw_series(points.map(|p| Circle::new(p, 3, colour.filled())))?;
            }
        }
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_a_few_round_labels() {
        assert_eq!(ticks(0.3, 7.0), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(ticks(12.0, 90.0), [20.0, 50.0]);
        assert_eq!(ticks(0.04, 0.3), [0.05, 0.1, 0.2]);
        assert_eq!(ticks(0.5, 5000.0), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn where_an_adapter_starts_to_pay_is_drawn_across_the_plot() {
        let points = |seconds: [f64; 3]| -> Vec<Point> {
            let sizes = [256, 4096, 65_536].into_iter().zip(seconds);
            sizes.map(|(size, s)| Point { size, rate: size as f64 / s * 1e-9, seconds: s, certain: true }).collect()
        };
        let drawn = |host_pays| {
            let on = gpus::OnAdapter {
                resident: points([2e-5, 2e-5, 2e-5]),
                host: points([5e-5, 6e-5, 9e-5]),
                copy: points([1e-5, 1e-5, 1.2e-5]),
                resident_pays: Pays::From(20_000.0),
                host_pays,
                refused: None,
            };
            let (cpu, adapters) = (points([1e-7, 2e-6, 3e-5]), vec![on]);
            gpus(&gpus::Series { operation: "exp", shape: "n", unit: "GB/s", cpu, adapters }).unwrap()
        };
        // Dashes are separate lines.
        let dashes = |svg: &str| svg.matches("<polyline").count() + svg.matches("<line").count();
        let (one, two) = (drawn(Pays::Never), drawn(Pays::From(40_000.0)));
        assert!(dashes(&two) > dashes(&one) + 10, "{} {}", dashes(&one), dashes(&two));
    }

    #[test]
    fn dots_of_language_models_are_in_the_order_of_their_rates() {
        let models = super::super::models::tests::recorded();
        let svg = super::models(&models.tests, &models.models[0], &models.devices);
        let along = |attribute: &str| -> Vec<f64> {
            svg.split(attribute).skip(1).map(|rest| rest[..rest.find('"').unwrap()].parse().unwrap()).collect()
        };
        // Test by test: the CPU, then the GPU.
        let dots = along("circle cx=\"");
        let rates = [450.0, 61_234.0, 75.2, 912.0, 160.0, 3100.0, 321.5, 9000.0];
        assert_eq!(dots.len(), rates.len());
        for (a, rate) in dots.iter().zip(rates) {
            assert!(dots.iter().zip(rates).all(|(b, other)| (rate < other) == (a < b)), "{dots:?}");
        }
        // Every figure has room between the names of the tests and the right end.
        assert!(dots.iter().all(|x| (200.0..540.0).contains(x)), "{dots:?}");
        let empty = Rates { on: Vec::new(), name: String::new(), bytes: 0, flops: 0 };
        assert_eq!(super::models(&models.tests, &empty, &models.devices), "");
    }

    #[test]
    fn labels_do_not_run_into_one_another() {
        assert_eq!(apart(&[7.0, 28.0, 28.0, 112.0]), [7.0, 28.0, 112.0]);
        let sizes: Vec<f64> = (8..=24).map(|k| f64::from(1 << k)).collect();
        assert!((5..=LABELS + 1).contains(&apart(&sizes).len()));
        assert_eq!(apart(&[]), [0.0; 0]);
    }
}
