//! Plots as SVG: lines, bands and points over logarithmic axes.

use std::path::Path;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use thiserror::Error;

/// Width and height of a single plot, in pixels.
const SIZE: (u32, u32) = (960, 600);

/// Width and height of one of several panels.
const PANEL: (u32, u32) = (600, 440);

/// Colours that most people can distinguish (Okabe and Ito), and two more.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(117, 76, 36),
    RGBColor(120, 120, 120),
];

/// A named line.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotCurve {
    /// Its name in the legend.
    pub name: String,
    /// Points from left to right; both numbers above 0.
    pub points: Vec<(f64, f64)>,
}

/// A value y at x, with a band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlotPoint {
    /// Above 0.
    pub x: f64,
    /// Above 0.
    pub y: f64,
    /// Lower end of the band.
    pub low: f64,
    /// Upper end of the band.
    pub high: f64,
}

impl PlotPoint {
    /// Makes a point without a band.
    pub fn exact(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

/// Style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlotStyle {
    /// A line without its band.
    Line,
    /// A line with its band.
    Band,
    /// A dashed line without its band.
    Dashes,
    /// Circles with bars; not in the legend.
    Circles,
}

/// A named series of points.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotSeries {
    /// Its name in the legend.
    pub name: String,
    /// Its style.
    pub mark: PlotStyle,
    /// Series with the same number have the same colour.
    pub colour: usize,
    /// From left to right.
    pub points: Vec<PlotPoint>,
}

/// Position of a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegendCorner {
    /// For rising curves.
    UpperLeft,
    /// For curves that fall fast at first.
    UpperRight,
    /// For falling curves.
    LowerLeft,
}

/// A diagram.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Title above the diagram.
    pub title: String,
    /// Label of x.
    pub x: String,
    /// Label of y.
    pub y: String,
    /// Position of the legend.
    pub legend: LegendCorner,
    /// Later ones are drawn over earlier ones.
    pub series: Vec<PlotSeries>,
}

/// Reasons why a plot can't be made.
#[derive(Debug, Error)]
#[error("{path}: the plot can't be written: {reason}")]
pub struct PlotError {
    path: String,
    reason: String,
}

/// Draws lines over logarithmic axes into an SVG file.
///
/// # Errors
/// [`PlotError`] if the file can't be written or there is nothing to draw.
pub fn error_per_step(path: &Path, title: &str, lines: &[PlotCurve]) -> Result<(), PlotError> {
    let series = lines.iter().enumerate().map(|(colour, line)| PlotSeries {
        name: line.name.clone(),
        mark: PlotStyle::Line,
        colour,
        points: line.points.iter().map(|&(x, y)| PlotPoint::exact(x, y)).collect(),
    });
    let panel = Panel {
        title: title.into(),
        x: "epoch".into(),
        y: "standard deviation of the error".into(),
        legend: LegendCorner::UpperLeft,
        series: series.collect(),
    };
    write_panels(path, &[panel])
}

/// Draws panels, two per row, into an SVG file.
///
/// # Errors
/// [`PlotError`] if the file can't be written or a panel has nothing to draw.
pub fn write_panels(path: &Path, panels: &[Panel]) -> Result<(), PlotError> {
    let refused = |reason: String| PlotError { path: path.display().to_string(), reason };
    let columns = panels.len().min(2);
    let rows = panels.len().div_ceil(2);
    let size = if panels.len() == 1 { SIZE } else { (PANEL.0 * columns as u32, PANEL.1 * rows as u32) };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(|error| refused(error.to_string()))?;
        for (area, panel) in area.split_evenly((rows, columns)).iter().zip(panels) {
            let ranges = ranges(panel).map_err(|reason| refused(reason.into()))?;
            draw(area, panel, ranges).map_err(|error| refused(error.to_string()))?;
        }
        area.present().map_err(|error| refused(error.to_string()))?;
    }
    std::fs::write(path, svg).map_err(|error| refused(error.to_string()))
}

/// Ranges of the axes.
type AxisRanges = [std::ops::Range<f64>; 2];

/// Returns the ranges of x and y; bands may extend below.
fn ranges(panel: &Panel) -> Result<AxisRanges, &'static str> {
    let range = |value: fn(&PlotPoint) -> f64, top: fn(&PlotPoint) -> f64| {
        let points = || panel.series.iter().flat_map(|series| &series.points);
        let low = points().map(value).fold(f64::INFINITY, f64::min);
        let high = points().map(top).fold(0.0, f64::max);
        let sound = points().all(|point| value(point) > 0.0 && top(point).is_finite());
        (sound && low <= high).then_some(low..high)
    };
    let x = range(|point| point.x, |point| point.x).ok_or("there are no steps to draw")?;
    let y = range(|point| point.y, |point| point.y.max(point.high))
        .ok_or("the errors are not numbers above 0")?;
    Ok([x.start..x.end.max(x.start * 1.01), y.start / 1.1..y.end * 1.1])
}

/// Formats an axis label.
fn tick(value: f64) -> String {
    // Products of powers of ten are slightly inexact.
    let rounded = (value * 1e6).round() / 1e6;
    if (1e-3..1e5).contains(&value) { format!("{rounded}") } else { format!("{value:e}") }
}

type DrawResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, panel: &Panel, [x, y]: AxisRanges) -> DrawResult {
    let floor = y.start;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(&panel.title, ("sans-serif", 20))
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .axis_desc_style(("sans-serif", 15))
        .x_label_formatter(&|x| tick(*x))
        .y_label_formatter(&|y| tick(*y))
        .draw()?;
    for series in &panel.series {
        let colour = COLOURS[series.colour % COLOURS.len()];
        let points = || series.points.iter().map(|point| (point.x, point.y));
        let band = || {
            let upper = series.points.iter().map(|point| (point.x, point.high));
            let lower = series.points.iter().rev().map(|point| (point.x, point.low.max(floor)));
            upper.chain(lower).collect::<Vec<_>>()
        };
        if series.mark == PlotStyle::Band {
            chart.draw_series([Polygon::new(band(), colour.mix(0.15))])?;
        }
        let drawn = match series.mark {
            PlotStyle::Line | PlotStyle::Band => {
                chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            }
            PlotStyle::Dashes => {
                let style = colour.stroke_width(2);
                chart.draw_series(DashedLineSeries::new(points().collect::<Vec<_>>(), 7, 5, style))?
            }
            PlotStyle::Circles => {
                let bar = |point: &PlotPoint| [(point.x, point.low.max(floor)), (point.x, point.high)];
                let bars = series.points.iter().map(|point| PathElement::new(bar(point), colour));
                chart.draw_series(bars)?;
                chart.draw_series(points().map(|point| Circle::new(point, 4, colour.stroke_width(2))))?;
                continue;
            }
        };
        drawn
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(match panel.legend {
            LegendCorner::UpperLeft => SeriesLabelPosition::UpperLeft,
            LegendCorner::UpperRight => SeriesLabelPosition::UpperRight,
            LegendCorner::LowerLeft => SeriesLabelPosition::LowerLeft,
        })
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> PlotCurve {
        PlotCurve { name: name.into(), points: points.to_vec() }
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plot.svg");
        let lines = [line("identity", &[(1.0, 1.0), (10.0, 3.2)]), line("blt:4", &[(1.0, 1.4), (10.0, 2.0)])];
        error_per_step(&path, "prefix over 10 epochs", &lines).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["<svg", "identity", "blt:4", "prefix over 10 epochs", "#0072B2", "#D55E00", "epoch"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.matches("<polyline").count() >= 4, "two lines and their legend");
    }

    #[test]
    fn a_plot_needs_at_least_one_step() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plot.svg");
        error_per_step(&path, "one", &[line("a", &[(1.0, 1.0)])]).unwrap();
        for lines in [vec![], vec![line("a", &[(1.0, 0.0)])], vec![line("a", &[(1.0, f64::NAN)])]] {
            assert!(error_per_step(&path, "none", &lines).is_err());
        }
        let absent = directory.path().join("absent/plot.svg");
        assert!(error_per_step(&absent, "one", &[line("a", &[(1.0, 1.0)])]).is_err());
    }

    #[test]
    fn panels_have_bands_and_points_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("panels.svg");
        let point = |x: f64| PlotPoint { x, y: x, low: -1.0, high: 2.0 * x };
        let series = |name: &str, mark| PlotSeries {
            name: name.into(),
            mark,
            colour: 0,
            points: vec![point(1.0), point(10.0)],
        };
        let panel = |title: &str, mark| Panel {
            title: title.into(),
            x: "steps".into(),
            y: "error".into(),
            legend: LegendCorner::LowerLeft,
            series: vec![series("theory", mark)],
        };
        let panels = [
            panel("left", PlotStyle::Band),
            panel("right", PlotStyle::Dashes),
            panel("below", PlotStyle::Circles),
        ];
        write_panels(&path, &panels).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["left", "right", "below", "width=\"1200\"", "height=\"880\"", "<polygon", "<circle"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("theory").count(), 2, "circles are not in the legend");
    }
}
