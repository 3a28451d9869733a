//! Plots as SVG: the error of every strategy, step by step.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use thiserror::Error;

/// Width and height in pixels.
const SIZE: (u32, u32) = (960, 600);

/// Colours that stay apart for most eyes (Okabe and Ito), and two more.
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

/// A line with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// Places from left to right; both numbers above 0.
    pub points: Vec<(f64, f64)>,
}

/// Why there is no plot.
#[derive(Debug, Error)]
#[error("{path}: the plot can't be written: {reason}")]
pub struct PlotError {
    path: String,
    reason: String,
}

/// Draws lines over logarithmic axes and writes them to an SVG file.
///
/// # Errors
/// [`PlotError`] when the file can't be written or there is nothing to draw.
pub fn error_per_step(path: &Path, title: &str, lines: &[Line]) -> Result<(), PlotError> {
    let refused = |reason: String| PlotError { path: path.display().to_string(), reason };
    let mut svg = String::new();
    draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), title, lines).map_err(refused)?;
    std::fs::write(path, svg).map_err(|error| refused(error.to_string()))
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, title: &str, lines: &[Line]) -> Result<(), String> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, 0.0), |(low, high), x| (low.min(x), f64::max(high, x)));
        (low > 0.0 && high.is_finite() && low <= high).then_some(low..high)
    };
    let steps = range(&mut points().map(|point| point.0)).ok_or("there are no steps to draw")?;
    let errors = range(&mut points().map(|point| point.1)).ok_or("the errors are no numbers above 0")?;
    let steps = steps.start..steps.end.max(steps.start * 1.01);
    let errors = errors.start / 1.1..errors.end * 1.1;
    let told = |error: &dyn std::fmt::Display| error.to_string();
    area.fill(&WHITE).map_err(|error| told(&error))?;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 20))
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(steps.log_scale(), errors.log_scale())
        .map_err(|error| told(&error))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("epoch")
        .y_desc("standard deviation of the error")
        .axis_desc_style(("sans-serif", 15))
        .draw()
        .map_err(|error| told(&error))?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(series)
            .map_err(|error| told(&error))?
            .label(&line.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()
        .map_err(|error| told(&error))?;
    area.present().map_err(|error| told(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> Line {
        Line { name: name.into(), points: points.to_vec() }
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
    fn one_step_can_be_drawn_and_nothing_cannot() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plot.svg");
        error_per_step(&path, "one", &[line("a", &[(1.0, 1.0)])]).unwrap();
        for lines in [vec![], vec![line("a", &[(1.0, 0.0)])], vec![line("a", &[(1.0, f64::NAN)])]] {
            assert!(error_per_step(&path, "none", &lines).is_err());
        }
        let absent = directory.path().join("absent/plot.svg");
        assert!(error_per_step(&absent, "one", &[line("a", &[(1.0, 1.0)])]).is_err());
    }
}
