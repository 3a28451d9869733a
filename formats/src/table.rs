//! A numeric file read as a whole: n rows of d columns, for estimators that use all records at
//! once.
//!
//! Formats, rows and fields are read like those of a pipeline's source. [`MissingRows`] is the
//! treatment of a row that lacks a value (empty, `NA`, `NaN`, `?` and similar, or not finite). Any
//! other text is an error, because the column is not numeric. Bounds are not applied here: the
//! caller clips the rows.

use std::path::Path;

use zeroize::Zeroize;

use super::error::{Defect, FormatError};
use super::row::{FileRows, RECORD_LIMIT, Row, RowOutcome};
use super::whole::WholeFile;
use super::{STANDARD_INPUT, io_error};

/// Treatment of a row that lacks a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingRows {
    /// Leaves it out. The number of rows then reveals how many were complete, and the guarantee
    /// covers only those.
    Skip,
    /// Reports an error.
    Reject,
    /// Keeps it, with NaN for all of its values. The number of rows is that of the file, for any
    /// content of its rows.
    Keep,
    /// Like [`Keep`](Self::Keep), also for a row that can't be read: no content of a record is an
    /// error.
    Blank,
}

/// Rows of a file. Private data: they can't be printed, and are wiped when dropped.
pub struct Table {
    columns: Vec<String>,
    values: Vec<f64>,
    incomplete: u64,
}

impl Table {
    /// Reads these columns of a CSV, NDJSON or Parquet file, or all of them; reads the standard
    /// input if the path is `-`.
    ///
    /// # Errors
    /// [`FormatError`] names the line and column that can't be used, never their contents.
    pub fn read(path: &Path, columns: Option<&[String]>, missing: MissingRows) -> Result<Self, FormatError> {
        let file = if path == Path::new("-") { WholeFile::standard_input() } else { WholeFile::open(path) }?;
        let path = if path == Path::new("-") { Path::new(STANDARD_INPUT) } else { path };
        let (rows, columns) = match columns {
            Some(columns) => (file.rows(columns)?, columns.to_vec()),
            None => file.all()?,
        };
        if let Some(index) = (1..columns.len()).find(|&index| columns[..index].contains(&columns[index])) {
            return Err(FormatError::AskedTwice { column: columns[index].clone() });
        }
        if columns.iter().all(|name| name.parse::<f64>().is_ok()) {
            return Err(FormatError::HeaderOfNumbers { path: path.into() });
        }
        TableReader { path, columns, missing, values: Vec::new(), labels: None, incomplete: 0 }
            .all(rows)
            .map(|(table, _)| table)
    }

    /// Reads these columns of a file, and the text of the column `label` in each
    /// row that is kept, empty if missing.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_labelled(
        path: &Path,
        columns: &[String],
        label: &str,
        missing: MissingRows,
    ) -> Result<(Self, Vec<String>), FormatError> {
        let wanted = [columns, &[label.into()]].concat();
        let rows = WholeFile::open(path)?.rows(&wanted)?;
        let (columns, labels) = (columns.to_vec(), Some(Vec::new()));
        TableReader { path, columns, missing, values: Vec::new(), labels, incomplete: 0 }.all(rows)
    }

    /// Returns the column names, in the order of a row's values.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns all rows, concatenated.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the number of rows n.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns.len()
    }

    /// Returns the number of rows that lack a value, skipped or kept. Private: for the operator
    /// only.
    pub fn incomplete(&self) -> u64 {
        self.incomplete
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.values.zeroize();
    }
}

/// A table while it is being read.
struct TableReader<'a> {
    path: &'a Path,
    columns: Vec<String>,
    missing: MissingRows,
    values: Vec<f64>,
    /// The label of each kept row, if requested.
    labels: Option<Vec<String>>,
    incomplete: u64,
}

impl TableReader<'_> {
    fn all(mut self, mut rows: Box<dyn FileRows>) -> Result<(Table, Vec<String>), FormatError> {
        let mut row = Row::default();
        loop {
            match rows.read(&mut row).map_err(|source| io_error(self.path, source))? {
                RowOutcome::End => break,
                RowOutcome::TooLong if self.missing == MissingRows::Blank => self.add_blank(),
                RowOutcome::TooLong => {
                    let (path, line) = (self.path.into(), rows.line());
                    return Err(FormatError::RecordTooLong { path, line, limit: RECORD_LIMIT });
                }
                RowOutcome::Row => self.add(&row, rows.line())?,
            }
        }
        let TableReader { columns, values, labels, incomplete, .. } = self;
        Ok((Table { columns, values, incomplete }, labels.unwrap_or_default()))
    }

    fn add(&mut self, row: &Row, line: u64) -> Result<(), FormatError> {
        if let Some(defect) = row.defect {
            if self.missing == MissingRows::Blank {
                self.add_blank();
                return Ok(());
            }
            return Err(self.bad(line, None, defect));
        }
        let start = self.values.len();
        let mut incomplete = None;
        for slot in 0..self.columns.len() {
            let value = match row.number(slot) {
                Ok(value) => value,
                Err(defect @ (Defect::Missing | Defect::NotFinite)) => {
                    incomplete.get_or_insert((slot, defect));
                    f64::NAN
                }
                Err(defect) if self.missing == MissingRows::Blank => {
                    incomplete.get_or_insert((slot, defect));
                    f64::NAN
                }
                Err(defect) => return Err(self.bad(line, Some(slot), defect)),
            };
            self.values.push(value);
        }
        if let Some((slot, defect)) = incomplete {
            self.incomplete += 1;
            match self.missing {
                // As in a stream, a record is used as a whole or not at all.
                MissingRows::Keep | MissingRows::Blank => self.values[start..].fill(f64::NAN),
                MissingRows::Skip => {
                    self.values.truncate(start);
                    return Ok(());
                }
                MissingRows::Reject => return Err(self.bad(line, Some(slot), defect)),
            }
        }
        if let Some(labels) = &mut self.labels {
            let slot = self.columns.len();
            // JSON and Parquet may have numbers as labels.
            let number = || row.number(slot).map(|number| number.to_string()).unwrap_or_default();
            let text = row.text(slot).ok().map(|text| String::from_utf8_lossy(text).into_owned());
            labels.push(text.unwrap_or_else(number));
        }
        Ok(())
    }

    fn add_blank(&mut self) {
        self.incomplete += 1;
        self.values.extend(std::iter::repeat_n(f64::NAN, self.columns.len()));
        self.labels.iter_mut().for_each(|labels| labels.push(String::new()));
    }

    fn bad(&self, line: u64, slot: Option<usize>, defect: Defect) -> FormatError {
        let (path, column) = (self.path.into(), slot.map(|slot| self.columns[slot].clone()));
        match defect {
            Defect::Missing | Defect::NotFinite => FormatError::MissingValue { path, line, column, defect },
            _ => FormatError::UnusableRow { path, line, column, defect },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str, columns: Option<&[&str]>, missing: MissingRows) -> Result<Table, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.csv");
        std::fs::write(&path, content).expect("a file");
        let columns: Option<Vec<String>> =
            columns.map(|names| names.iter().map(|&name| name.into()).collect());
        let shown = format!("{}:", path.display());
        Table::read(&path, columns.as_deref(), missing)
            .map_err(|error| error.to_string().replace(&shown, "t.csv:"))
    }

    fn check_error(content: &str, missing: MissingRows, expected: &str) {
        let found = read(content, None, missing).err().expect("an error");
        assert_eq!(found, expected, "{content:?}");
    }

    #[test]
    fn all_columns_or_those_that_are_named() {
        let table = read("a, b ,c\n1,2,3\n4.5,-5e0,6\n", None, MissingRows::Reject).unwrap();
        assert_eq!(table.columns(), ["a", "b", "c"]);
        assert_eq!((table.rows(), table.values()), (2, &[1.0, 2.0, 3.0, 4.5, -5.0, 6.0][..]));
        let table = read("a,b,c\n1,x,3\n", Some(&["c", "a"]), MissingRows::Reject).unwrap();
        assert_eq!(table.values(), [3.0, 1.0]);
    }

    #[test]
    fn rows_with_a_missing_value_are_skipped_kept_or_refused() {
        let content = "a,b\n1,\n2,NA\nnan,3\n?,4\n5,6\ninf,7\n";
        let skipped = read(content, None, MissingRows::Skip).unwrap();
        assert_eq!((skipped.values(), skipped.incomplete()), (&[5.0, 6.0][..], 5));
        let kept = read(content, None, MissingRows::Keep).unwrap();
        assert_eq!((kept.rows(), kept.incomplete()), (6, 5));
        assert!(kept.values()[..8].iter().chain(&kept.values()[10..]).all(|value| value.is_nan()));
        assert_eq!(kept.values()[8..10], [5.0, 6.0]);
        let remedy = "correct or remove the row, or use --missing where the command has it";
        let message = format!("t.csv:2: column \"b\": the value is missing: {remedy}");
        check_error(content, MissingRows::Reject, &message);
    }

    #[test]
    fn errors_name_line_and_column_and_no_value() {
        let remedy = "correct or remove the row, or name only numeric columns";
        let not_a_number = format!("t.csv:3: column \"b\": expected a number: {remedy}");
        check_error("a,b\n1,2\n3,secret\n", MissingRows::Skip, &not_a_number);
        let width = format!("t.csv:2: the row does not have as many fields as the header: {remedy}");
        check_error("a,b\n1\n", MissingRows::Skip, &width);
        let header = "t.csv:1: every name in the first line is a number: expected a header row with the columns' \
                      names, so that no record is taken for one";
        check_error("1,2\n3,4\n", MissingRows::Skip, header);
        let twice = "t.csv:1: the header has more than one column \"a\": rename one of them";
        check_error("a,a\n3,4\n", MissingRows::Skip, twice);
        let empty = "t.csv: the file is empty: expected a header row with the columns' names";
        check_error("", MissingRows::Skip, empty);
    }

    #[test]
    fn rows_that_are_kept_have_their_labels() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.csv");
        std::fs::write(&path, "key,a\nx,1\ny,\n,3\n z ,4\n").expect("a file");
        let (table, labels) = Table::read_labelled(&path, &["a".into()], "key", MissingRows::Skip).unwrap();
        assert_eq!((table.values(), labels), (&[1.0, 3.0, 4.0][..], ["x", "", "z"].map(String::from).into()));
    }

    #[test]
    fn a_table_without_rows_has_none() {
        assert_eq!(read("a,b\n", None, MissingRows::Skip).unwrap().rows(), 0);
    }
}
