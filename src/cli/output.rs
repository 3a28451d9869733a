//! Output helpers: aligned tables for people, one JSON object for programs, progress on a
//! terminal.

use std::time::Duration;

use hushflow::strategies::SearchProgress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write, stdout};

use serde::Serialize;

/// Significant digits in text output; JSON has all digits.
const DIGITS: i32 = 6;

/// Prints one JSON object. Numbers have enough digits to be read back exactly.
pub(super) fn print_json(object: &impl Serialize) -> io::Result<()> {
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, object)?;
    writeln!(out)
}

/// Prints text.
pub(super) fn print(text: &str) -> io::Result<()> {
    stdout().lock().write_all(text.as_bytes())
}

/// Formats rows as columns, two spaces apart: the first is left-aligned, the others are
/// right-aligned.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column| rows.iter().filter_map(move |row: &Vec<String>| row.get(column));
    let widths: Vec<usize> = (0..columns)
        .map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let cell = |(column, text): (usize, &String)| match column {
        0 => format!("{text:<width$}", width = widths[0]),
        _ => format!("  {text:>width$}", width = widths[column]),
    };
    rows.iter().flat_map(|row| row.iter().enumerate().map(cell).chain(["\n".into()])).collect()
}

/// Formats a number with six significant digits and no trailing zeros.
pub(super) fn number(value: f64) -> String {
    let rounded = format!("{value:.*e}", DIGITS as usize - 1);
    let Some((digits, exponent)) = rounded.split_once('e') else { return rounded };
    match exponent.parse() {
        Ok(exponent @ -4..DIGITS) => trimmed(&format!("{value:.*}", (DIGITS - 1 - exponent) as usize)).into(),
        _ => format!("{}e{exponent}", trimmed(digits)),
    }
}

/// Removes trailing zeros from a decimal fraction.
fn trimmed(decimal: &str) -> &str {
    match decimal.contains('.') {
        true => decimal.trim_end_matches('0').trim_end_matches('.'),
        false => decimal,
    }
}

/// A status line of a search on standard error, if that is a terminal.
pub(super) struct SearchStatus(ProgressBar);

impl SearchStatus {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows the current item.
    pub(super) fn name(&self, name: impl ToString) {
        self.0.set_prefix(name.to_string());
        self.0.set_message("");
    }

    /// Shows the progress of a search.
    pub(super) fn update(&self, progress: &SearchProgress) {
        let SearchProgress { iteration, objective, lower_bound, .. } = progress;
        self.name(&progress.strategy);
        let gap = match *lower_bound > 0.0 {
            true => format!(", gap {:.1e}", objective / lower_bound - 1.0),
            false => String::new(),
        };
        self.0.set_message(format!("step {iteration}: {objective:.6}{gap}"));
    }

    /// Clears the line.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// The number of rows read so far, on standard error if that is a terminal.
pub(super) struct RowProgress(ProgressBar);

impl RowProgress {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} rows {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows a number of rows.
    pub(super) fn update(&self, rows: u64) {
        self.0.set_position(rows);
    }

    /// Clears the line.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A progress bar on standard error, if that is a terminal.
pub(super) struct ProgressCounter(ProgressBar);

impl ProgressCounter {
    pub(super) fn new(total: u64, what: &'static str) -> Self {
        let bar = ProgressBar::new(total).with_message(what);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg} {eta}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Advances the bar.
    pub(super) fn add(&self, more: u64) {
        self.0.inc(more);
    }

    /// Clears the bar.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        let check = |value: f64, expected: &str| assert_eq!(number(value), expected);
        check(0.0, "0");
        check(1.0, "1");
        check(-2.5, "-2.5");
        check(100_000.0, "100000");
        check(999_999.4, "999999");
        check(999_999.6, "1e6");
        check(4.224_678_889, "4.22468");
        check(0.000_123_456_789, "0.000123457");
        check(0.000_012_345_67, "1.23457e-5");
        check(1e-6, "1e-6");
        check(1.234e300, "1.234e300");
        check(f64::INFINITY, "inf");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["σ", "1"], ["name", "22.5"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "σ        1\nname  22.5\n");
    }
}
