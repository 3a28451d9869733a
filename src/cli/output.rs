//! Output helpers: aligned tables for people, one JSON object for programs, progress on a
//! terminal.

use std::time::Duration;

use console::{Term, measure_text_width};
use hushflow::estimates::Intervals;
use hushflow::strategies::{SearchProgress, SearchQuantity};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write, stderr, stdout};

use serde::Serialize;

/// Significant digits in text output; JSON has all digits.
const DIGITS: i32 = 6;

/// Returns what ± means in every output: the half-width of the 95 % interval of Gaussian noise with
/// this standard deviation.
pub(super) fn half_width(deviation: f64) -> f64 {
    Intervals::default().count_reach() * deviation
}

/// Prints one JSON object. Numbers have enough digits to be read back exactly.
pub(super) fn print_json(object: &impl Serialize) -> io::Result<()> {
    let mut out = stdout().lock();
    serde_json::to_writer(&mut out, object)?;
    writeln!(out)
}

/// Returns the number of columns of the terminal on standard output, if it is one.
pub(super) fn terminal_width() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
}

/// Prints text, its lines wrapped at the width of the terminal.
pub(super) fn print_wrapped(text: &str) -> io::Result<()> {
    match terminal_width() {
        None => print(text),
        Some(width) => {
            print(&text.split_inclusive('\n').map(|line| wrapped(line, width)).collect::<String>())
        }
    }
}

/// Prints a message on standard error, its lines wrapped at the width of the terminal there.
pub(super) fn print_message(text: &str) {
    // A closed standard error has no reader.
    let _ = writeln!(stderr(), "{}", fit_message(text));
}

/// Prints a warning on standard error.
pub(super) fn warn(message: &str) {
    print_message(&format!("warning: {message}"));
}

/// Wraps text at the width of the terminal on standard error. Commands to copy stay whole.
pub(super) fn fit_message(text: &str) -> String {
    let width = Term::stderr().size_checked().map_or(usize::MAX, |(_, columns)| usize::from(columns));
    let is_command = |line: &str| ["hushflow ", "    --"].iter().any(|start| line.starts_with(start));
    let fit = |line: &str| if is_command(line) { line.into() } else { wrapped(line, width) };
    text.split_inclusive('\n').map(fit).collect()
}

/// Breaks a line that is wider than `width` between words, with the rest indented. ± stays with
/// its number.
pub(super) fn wrapped(line: &str, width: usize) -> String {
    if measure_text_width(line.trim_end()) <= width {
        return line.into();
    }
    let (mut text, mut reached) = (String::new(), 0);
    let line = line.replace("± ", "±\u{a0}");
    for word in line.split(' ') {
        let length = measure_text_width(word.trim_end());
        if reached > 2 && reached + 1 + length > width {
            text.truncate(text.trim_end().len());
            text += "\n  ";
            reached = 2;
        } else if !text.is_empty() {
            text.push(' ');
            reached += 1;
        }
        text += word;
        reached += length;
    }
    text.replace("±\u{a0}", "± ")
}

/// Leaves out columns of a table, in this order, until it fits the terminal. Returns their titles.
pub(super) fn fit_columns(rows: &mut [Vec<String>], width: Option<usize>, order: &[&str]) -> Vec<String> {
    let mut left_out = Vec::new();
    let is_wide = |rows: &[Vec<String>]| {
        let lines = table(rows);
        width.is_some_and(|width| lines.lines().any(|line| line.chars().count() > width))
    };
    for title in order {
        let found = rows.first().and_then(|titles| titles.iter().position(|other| other == title));
        let Some(index) = found.filter(|_| is_wide(rows)) else { continue };
        for row in rows.iter_mut().filter(|row| row.len() > index) {
            row.remove(index);
        }
        left_out.insert(0, (*title).into());
    }
    left_out
}

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

/// Formats rows as columns if these fit the terminal. Otherwise formats each row as a list of its
/// cells with their titles.
pub(super) fn fitting_table(rows: &[Vec<String>]) -> String {
    fit_table(rows, terminal_width().unwrap_or(usize::MAX))
}

fn fit_table(rows: &[Vec<String>], width: usize) -> String {
    let text = table(rows);
    let Some((titles, rows)) = rows.split_first() else { return text };
    if text.lines().all(|line| line.trim_end().chars().count() <= width) {
        return text;
    }
    let longest = titles.iter().skip(1).map(|title| title.chars().count()).max().unwrap_or(0);
    let cells = |row: &Vec<String>| -> String {
        let cells = titles.iter().zip(row).skip(1);
        cells.map(|(title, cell)| format!("  {title:<longest$}  {cell}\n")).collect()
    };
    rows.iter().map(|row| format!("{}\n{}", row.first().map_or("", String::as_str), cells(row))).collect()
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

/// Usual number of noise levels that calibration tries for random batches.
const TRIED: usize = 8;

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
        self.0.set_message(match progress.quantity {
            SearchQuantity::Epsilon => {
                let wanted = number(*lower_bound);
                let of = if *iteration <= TRIED { format!(" of about {TRIED}") } else { String::new() };
                match objective.is_finite() {
                    true => {
                        format!("noise level {iteration}{of}: ε = {} (stated: {wanted})", number(*objective))
                    }
                    false => format!("noise level {iteration}{of}: ε is too large (stated: {wanted})"),
                }
            }
            SearchQuantity::Loss if *lower_bound > 0.0 => {
                let gap = objective / lower_bound - 1.0;
                format!("step {iteration}: {objective:.6}, gap {gap:.1e}")
            }
            SearchQuantity::Loss => format!("step {iteration}: {objective:.6}"),
        });
    }

    /// Clears the line.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// The number of rows read so far, on standard error if that is a terminal.
#[derive(Clone)]
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

    /// Clears the line while `print` writes lines of its own.
    pub(super) fn interrupt(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    /// Clears the line.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A progress bar on standard error, if that is a terminal.
pub(super) struct ProgressCounter(ProgressBar);

impl ProgressCounter {
    pub(super) fn new(total: u64, unit: &'static str) -> Self {
        let bar = ProgressBar::new(total).with_message(unit);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg} {eta}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Clears the bar while `print` writes lines of its own.
    pub(super) fn interrupt(&self, print: impl FnOnce()) {
        self.0.suspend(print);
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
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three four\n", 9), "one two\n  three\n  four\n");
        assert_eq!(wrapped("one two\n", 7), "one two\n");
        assert_eq!(wrapped("a-very-long-word b\n", 6), "a-very-long-word\n  b\n");
        assert_eq!(wrapped("mean 12.5  ± 3.25\n", 12), "mean 12.5\n  ± 3.25\n");
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let rows = [["name", "x", "y", "z"], ["one", "1.25", "2", "3"]];
        let rows = || rows.map(|row| row.map(String::from).to_vec());
        let check = |width, expected: &[&str]| {
            let mut rows = rows();
            assert_eq!(fit_columns(&mut rows, width, &["z", "x"]), expected, "{width:?}");
            assert_eq!(rows[1].len() + expected.len(), 4);
        };
        check(None, &[]);
        check(Some(17), &[]);
        check(Some(15), &["z"]);
        check(Some(8), &["x", "z"]);
        check(Some(1), &["x", "z"]);
    }

    #[test]
    fn a_table_that_does_not_fit_becomes_lists() {
        let rows = [["column", "mean", "bounds"], ["age", "1.25", "0 to 100"]];
        let rows = rows.map(|row| row.map(String::from).to_vec());
        assert_eq!(fit_table(&rows, 22), table(&rows));
        assert_eq!(fit_table(&rows, 21), "age\n  mean    1.25\n  bounds  0 to 100\n");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["σ", "1"], ["name", "22.5"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "σ        1\nname  22.5\n");
    }
}
