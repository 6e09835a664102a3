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

/// Those of the ascending sizes that stand far enough from one another on a logarithmic axis for their labels.
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
    let (across, up) = (left / 1.15..right * 1.15, bottom / 1.3..top * 1.4);
    let mut sizes: Vec<f64> = measured().map(|p| p.0).collect();
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
        .x_desc(series.shape)
        .y_desc(series.unit)
        .x_label_formatter(&|x| super::size(x.round() as usize))
        .y_label_formatter(&|y| y.to_string())
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
    fn labels_do_not_run_into_one_another() {
        assert_eq!(apart(&[7.0, 28.0, 28.0, 112.0]), [7.0, 28.0, 112.0]);
        let sizes: Vec<f64> = (8..=24).map(|k| f64::from(1 << k)).collect();
        assert!((5..=LABELS + 1).contains(&apart(&sizes).len()));
        assert_eq!(apart(&[]), [0.0; 0]);
    }
}
