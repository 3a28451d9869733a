//! Tables: one line for a key at an epoch, as wide as a person can take in.

use std::fmt::Write;

use hushflow_mechanism::estimate::density::Density;
use hushflow_mechanism::workload::Workload;

use super::Line;

/// Columns that a table shows; the rest are in JSON and CSV.
const SHOWN: usize = 4;

/// Width of `number ± noise`.
const CELL: usize = 19;

pub(super) fn header(line: &Line<'_>) -> String {
    let mut text = lead(line, "epoch", "from", "view", "key");
    let counted = if line.view.workload == Workload::Prefix { "records" } else { "weight" };
    let _ = write!(text, "{counted:>CELL$}");
    for title in titles(line) {
        let _ = write!(text, "{title:>CELL$}");
    }
    text
}

pub(super) fn line(line: &Line<'_>) -> String {
    let (epoch, start) = (line.moments.epoch.to_string(), line.start());
    let mut text = lead(line, &epoch, short(&start), &line.view.name, line.key());
    let noise = line.moments.noise;
    push(&mut text, line.moments.count(), noise.count);
    match line.density {
        None => {
            line.moments.first().iter().take(SHOWN).for_each(|&sum| push(&mut text, sum, noise.first));
            let squares = line.pairs().into_iter().zip(line.moments.second()).filter(|((i, j), _)| i == j);
            squares.take(SHOWN).for_each(|(_, &sum)| push(&mut text, sum, noise.second));
        }
        Some(Ok(density)) => {
            push_density(&mut text, line, density);
            if line.quality() != "good" {
                text.push_str("  mostly noise");
            }
        }
        Some(Err(error)) => {
            let _ = write!(text, "  no estimate: {error}");
        }
    }
    text
}

/// What the columns of numbers are called.
fn titles(line: &Line<'_>) -> Vec<String> {
    let columns: Vec<&str> = line.columns().take(SHOWN).collect();
    let per_column =
        |prefix: &str| columns.iter().map(move |name| cut(&format!("{prefix}{name}"))).collect::<Vec<_>>();
    match line.density {
        None if line.pairs().is_empty() => per_column("Σ "),
        None if line.squares_epoch_sums() => [per_column("Σ "), per_column("(Σ)² ")].concat(),
        None => [per_column("Σ "), per_column("Σ² ")].concat(),
        Some(_) => {
            let mut titles = [per_column("mean "), per_column("sd ")].concat();
            if line.is_full() && columns.len() > 1 {
                titles.push(cut(&format!("corr {},{}", columns[0], columns[1])));
            }
            titles
        }
    }
}

fn push_density(text: &mut String, line: &Line<'_>, density: &Density) {
    let shown = density.mean.len().min(SHOWN);
    (0..shown).for_each(|i| push(text, density.mean[i], density.mean_noise[i]));
    let deviation = |i: usize| density.covariance[(i, i)].sqrt();
    // To the first order: the noise of a square root is that of its square over twice the root.
    (0..shown)
        .for_each(|i| push(text, deviation(i), density.covariance_noise[(i, i)] / (2.0 * deviation(i))));
    if line.is_full() && shown > 1 {
        let scale = deviation(0) * deviation(1);
        push(text, density.covariance[(0, 1)] / scale, density.covariance_noise[(0, 1)] / scale);
    }
}

fn lead(line: &Line<'_>, epoch: &str, from: &str, view: &str, key: &str) -> String {
    let mut text = format!("{epoch:>7}  ");
    if !line.start().is_empty() {
        let _ = write!(text, "{from:<16}  ");
    }
    if line.named {
        let _ = write!(text, "{view:<12}  ");
    }
    let _ = write!(text, "{key:<8}");
    text
}

/// `2013-01-05 05:00` of `2013-01-05T05:00:00Z`, when the rest is zero.
fn short(start: &str) -> &str {
    start.strip_suffix(":00Z").unwrap_or(start)
}

fn cut(title: &str) -> String {
    if title.chars().count() < CELL {
        title.into()
    } else {
        title.chars().take(CELL - 2).chain(['…']).collect()
    }
}

/// `value ± noise`, both to the place of the noise's second digit.
fn push(text: &mut String, value: f64, noise: f64) {
    let places =
        if noise > 0.0 && noise.is_finite() { (1.0 - noise.log10().floor()).clamp(0.0, 6.0) } else { 0.0 };
    let places = places as usize;
    let cell = if noise > 0.0 { format!("{value:.places$} ± {noise:.places$}") } else { format!("{value}") };
    let _ = write!(text, " {cell:>width$}", width = CELL - 1);
}
