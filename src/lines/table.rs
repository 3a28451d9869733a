//! Tables for people: one line per key and epoch, with the first columns only.

use std::fmt::Write;

use hushflow_mechanism::estimate::density::Density;
use hushflow_mechanism::estimate::intervals::Interval;
use hushflow_mechanism::workload::Workload;

use super::Line;
use crate::pipeline::Intervals;

/// Number of columns in a table; JSON and CSV have all.
pub(super) const SHOWN: usize = 4;

const CELL: usize = 19;

pub(super) fn header(line: &Line<'_>) -> String {
    let mut text = legend(line);
    text.push_str(&lead(line, "epoch", "from", "view", "key"));
    let counted = if line.view.workload == Workload::Prefix { "records" } else { "weight" };
    let _ = write!(text, "{counted:>CELL$}");
    for title in titles(line) {
        let _ = write!(text, "{title:>CELL$}");
    }
    if line.density.is_some() {
        text.push_str("  quality");
    }
    text
}

/// Explains ±, in a line before the header.
fn legend(line: &Line<'_>) -> String {
    let Intervals { level, joint, population } = line.view.intervals;
    match line.density {
        None => "±: standard deviation of the noise\n".into(),
        Some(_) => format!(
            "±: reach of a {} % confidence interval for {}, {}\n",
            level * 100.0,
            if population { "the population of the records" } else { "the records themselves" },
            if joint { "all of a line together" } else { "each by itself" },
        ),
    }
}

pub(super) fn line(line: &Line<'_>) -> String {
    let (epoch, start) = (line.moments.epoch.to_string(), line.start());
    let mut text = lead(line, &epoch, short(&start), &line.view.name, line.key());
    let noise = line.moments.noise;
    let reach = if line.density.is_some() { line.view.intervals.count_reach() } else { 1.0 };
    push(&mut text, line.moments.count(), noise.count * reach);
    match line.density {
        None => {
            line.moments.first().iter().take(SHOWN).for_each(|&sum| push(&mut text, sum, noise.first));
            let squares = line.pairs().into_iter().zip(line.moments.second()).filter(|((i, j), _)| i == j);
            squares.take(SHOWN).for_each(|(_, &sum)| push(&mut text, sum, noise.second));
        }
        Some(Ok(density)) => {
            push_density(&mut text, line, density);
            let _ = write!(text, "  {}", line.quality());
        }
        Some(Err(error)) => {
            let _ = write!(text, "  no estimate: {error}");
        }
    }
    text
}

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
    for i in 0..shown {
        push_interval(text, density.mean[i], line.mean_interval(i));
    }
    for i in 0..shown {
        let variance = density.covariance[(i, i)];
        let interval = line.covariance_interval((i, i)).map(Interval::square_root);
        match interval {
            // The variance may be 0: only its upper bound is known.
            Some(interval) if interval.lower == 0.0 => push_bound(text, interval.upper),
            interval => push_interval(text, variance.max(0.0).sqrt(), interval),
        }
    }
    if line.is_full() && shown > 1 {
        match line.correlation((0, 1)) {
            Some((correlation, interval)) => push_interval(text, correlation, Some(interval)),
            None => push_cell(text, "-"),
        }
    }
}

fn push_interval(text: &mut String, value: f64, interval: Option<Interval>) {
    push(text, value, interval.map_or(0.0, |interval| interval.reach_from(value)));
}

/// `≤ bound`, to three digits.
fn push_bound(text: &mut String, bound: f64) {
    let places = (2.0 - bound.log10().floor()).clamp(0.0, 6.0) as usize;
    push_cell(text, &format!("≤ {bound:.places$}"));
}

pub(super) fn push_cell(text: &mut String, cell: &str) {
    let _ = write!(text, " {cell:>width$}", width = CELL - 1);
}

fn lead(line: &Line<'_>, epoch: &str, from: &str, view: &str, key: &str) -> String {
    let (view, key) = (plain(view), plain(key));
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

/// Shortens `2013-01-05T05:00:00Z` to `2013-01-05 05:00` if the rest is zero.
pub(super) fn short(start: &str) -> &str {
    start.strip_suffix(":00Z").unwrap_or(start)
}

/// Replaces control characters in a name from a log, which could move a terminal's cursor or end
/// the line.
pub(super) fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

pub(super) fn cut(title: &str) -> String {
    let title = plain(title);
    if title.chars().count() < CELL { title } else { title.chars().take(CELL - 2).chain(['…']).collect() }
}

/// `value ± reach`, both to the reach's second digit.
pub(super) fn push(text: &mut String, value: f64, noise: f64) {
    let places =
        if noise > 0.0 && noise.is_finite() { (1.0 - noise.log10().floor()).clamp(0.0, 6.0) } else { 0.0 };
    let places = places as usize;
    let cell = if noise > 0.0 { format!("{value:.places$} ± {noise:.places$}") } else { format!("{value}") };
    push_cell(text, &cell);
}
