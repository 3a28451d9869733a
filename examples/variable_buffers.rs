//! Compares buffers that vary with time with the best strategy.
//!
//! Fits `variable-blt:b` and `blt:5`, computes the certified optimum of the total squared error,
//! and prints and draws the excess over it: by number of buffers at 512 steps, and by horizon for
//! running sums. `docs/variable-buffers.md` shows the drawing.
//!
//! ```sh
//! cargo run --release --example variable_buffers -- docs/figures/variable-buffers.svg
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::ops::ControlFlow;

use hushflow::mechanism::strategy::{Purpose, StrategyName, fit};
use hushflow::mechanism::workload::Workload;
use hushflow::plot::{LegendCorner, Panel, PlotPoint, PlotSeries, PlotStyle, write_panels};

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Horizon of the panel by number of buffers.
const STEPS: u64 = 512;

fn main() -> Fallible<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "variable-buffers.svg".into());
    let panels = [by_buffers()?, by_horizon()?];
    write_panels(path.as_ref(), &panels)?;
    println!("{path}");
    Ok(())
}

fn by_buffers() -> Fallible<Panel> {
    let mut series = Vec::new();
    for workload in ["prefix", "average", "exponential:0.99", "momentum:0.9"] {
        let purpose = Purpose::new(workload.parse()?, STEPS);
        let bound = bound(&purpose)?;
        let point = |buffers: u32| -> Fallible<_> {
            Ok((f64::from(buffers), excess(&format!("variable-blt:{buffers}"), &purpose, bound)?))
        };
        series.push((workload.into(), (1..=6).map(point).collect::<Fallible<_>>()?));
    }
    Ok(panel(format!("{STEPS} steps"), "buffers", LegendCorner::UpperRight, series))
}

fn by_horizon() -> Fallible<Panel> {
    let purposes = (3..=10).map(|power| Purpose::new(Workload::Prefix, 1 << power));
    let bounds = purposes.map(|purpose| Ok((bound(&purpose)?, purpose))).collect::<Fallible<Vec<_>>>()?;
    let mut series = Vec::new();
    for name in ["blt:5", "variable-blt:2", "variable-blt:3", "variable-blt:4", "variable-blt:5"] {
        let point = |(bound, purpose): &(f64, Purpose)| -> Fallible<_> {
            Ok((purpose.horizon as f64, excess(name, purpose, *bound)?))
        };
        series.push((name.into(), bounds.iter().map(point).collect::<Fallible<_>>()?));
    }
    Ok(panel("running sums".into(), "horizon", LegendCorner::UpperLeft, series))
}

/// Certified lower bound of the total squared error of all strategies.
fn bound(purpose: &Purpose) -> Fallible<f64> {
    let found = fit(&"coa".parse()?, purpose, &mut |_| ControlFlow::Continue(()))?;
    found.lower_bound.ok_or_else(|| "the optimum has no bound".into())
}

/// Excess of the total squared error over the bound, in per cent; at least 0.001 for the drawing.
fn excess(name: &str, purpose: &Purpose, bound: f64) -> Fallible<f64> {
    let name: StrategyName = name.parse()?;
    let found = fit(&name, purpose, &mut |_| ControlFlow::Continue(()))?;
    let total = found.objective * found.objective * purpose.horizon as f64;
    let excess = 100.0 * (total / bound - 1.0);
    println!("{:18} {:5} {name:16} {excess:.4} %", purpose.workload.to_string(), purpose.horizon);
    Ok(excess.max(1e-3))
}

type NamedPoints = (String, Vec<(f64, f64)>);

fn panel(title: String, x: &str, legend: LegendCorner, series: Vec<NamedPoints>) -> Panel {
    let line = |(colour, (name, points)): (usize, NamedPoints)| PlotSeries {
        name,
        mark: PlotStyle::Line,
        colour,
        points: points.into_iter().map(|(x, y)| PlotPoint::exact(x, y)).collect(),
    };
    let series = series.into_iter().enumerate().map(line).collect();
    Panel { title, x: x.into(), y: "excess over the optimum, %".into(), legend, series }
}
