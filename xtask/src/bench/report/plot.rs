//! Throughput over size as SVG.
//!
//! Ink is written in a colour of its own and replaced by `currentColor`, so that a plot follows the page from light to
//! dark; the colours of the lines are of a middle tone that is readable on both. The legend stands in the page, once
//! for all plots and never over data.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::super::measure::Series;
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
        "avx2" | "neon" => RGBColor(47, 127, 209),
        _ => RGBColor(190, 60, 150),
    }
}

/// A colour for CSS.
pub(super) fn css(colour: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// One plot: rates of every variant over size, both logarithmic, and the limits dashed.
pub(super) fn series(series: &Series) -> Result<String> {
    let mut svg = String::new();
    draw(series, &SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area())?;
    let ink = format!("#{:02X}{:02X}{:02X}", INK.0, INK.1, INK.2);
    let label = format!("{} over size", series.operation);
    Ok(svg.replace(&ink, "currentColor").replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1))
}

fn draw(series: &Series, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
    let measured = || series.variants.iter().flat_map(|v| v.points.iter().map(|p| (p.size as f64, p.rate)));
    let limits = || series.limits.iter().flat_map(|c| c.points.iter().map(|p| (p.0 as f64, p.1)));
    let extremes = |values: &mut dyn Iterator<Item = f64>| {
        values.filter(|v| v.is_finite() && *v > 0.0).fold((f64::INFINITY, 0.0f64), |(lo, hi), v| (lo.min(v), hi.max(v)))
    };
    let (left, right) = extremes(&mut measured().map(|p| p.0));
    let (bottom, top) = extremes(&mut measured().chain(limits()).map(|p| p.1));
    if left >= right || bottom >= top {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(18)
        .x_label_area_size(50)
        .y_label_area_size(66)
        .build_cartesian_2d((left / 1.15..right * 1.15).log_scale().base(2.0), (bottom / 1.3..top * 1.4).log_scale())?;
    let text = ("sans-serif", 17).into_font().color(&INK);
    chart
        .configure_mesh()
        .light_line_style(INK.mix(0.0))
        .bold_line_style(INK.mix(0.13))
        .axis_style(INK.mix(0.5))
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(series.shape)
        .y_desc(series.unit)
        .x_labels(7)
        .y_labels(7)
        .x_label_formatter(&|x| super::size(x.round() as usize))
        .y_label_formatter(&|y| if *y >= 1.0 { format!("{y:.0}") } else { format!("{y}") })
        .draw()?;
    for curve in &series.limits {
        let style = INK.mix(if curve.threads == 1 { 0.85 } else { 0.5 }).stroke_width(2);
        let points = curve.points.iter().map(|&(x, y)| (x as f64, y));
        chart.draw_series(DashedLineSeries::new(points, 6, 5, style))?;
    }
    for variant in &series.variants {
        let colour = colour(&variant.name);
        let points: Vec<(f64, f64)> = variant.points.iter().map(|p| (p.size as f64, p.rate)).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|&p| Circle::new(p, 3, colour.filled())))?;
    }
    area.present()?;
    Ok(())
}
