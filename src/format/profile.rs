//! The columns of a file: their names, kinds and ranges, as a first guess of how to describe them.
//!
//! A profile is private: it is made for the operator's screen, and nothing of it may be published
//! without the operator's word that it is public knowledge.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use jiff::tz::TimeZone;

use super::csv::CsvRows;
use super::ndjson::{NdjsonRows, names_of};
use super::parquet::ParquetRows;
use super::row::{FileRows, Row, RowOutcome};
use super::{ByteStream, Format, FormatError, io_error};

/// Most distinct texts that are kept of a column.
const WORDS: usize = 100;

/// Most rows of a file that are read.
const ROWS: u64 = 1_000_000;

/// A column of a file. Private.
#[derive(Clone, Default)]
pub struct ColumnProfile {
    /// Its name.
    pub name: String,
    /// Rows with a value.
    pub present: u64,
    /// Rows with a number.
    pub numbers: u64,
    /// Rows with a whole number.
    pub whole: u64,
    /// Rows with a date or a time.
    pub times: u64,
    /// The least and the greatest number.
    pub range: Option<(f64, f64)>,
    /// The first and the last time, in microseconds since 1970.
    pub span: Option<(i64, i64)>,
    /// Offsets from UTC that times carry, such as `-05:00`.
    pub offsets: BTreeSet<String>,
    /// Rows with a time of day without an offset from UTC.
    pub local_times: u64,
    /// Texts and their rows; none if there are more than a hundred.
    pub words: Option<BTreeMap<String, u64>>,
    /// Distinct values.
    pub distinct: u64,
}

/// What most values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Numbers.
    Number,
    /// Dates or times.
    Time,
    /// A few words, which may be keys.
    Word,
    /// Many distinct texts or whole numbers, which may identify something.
    Name,
    /// Nothing.
    Empty,
}

/// The columns of files.
pub struct FileProfile {
    /// Rows that were read.
    pub rows: u64,
    /// The columns, in the order of the first file.
    pub columns: Vec<ColumnProfile>,
}

impl FileProfile {
    /// Reads up to a million rows of each file.
    ///
    /// # Errors
    /// [`FormatError`] if a file can't be read or lacks a column of the first one.
    pub fn of(paths: &[impl AsRef<Path>], format: Format) -> Result<Self, FormatError> {
        let mut profile = FileProfile { rows: 0, columns: Vec::new() };
        let mut distinct_values: Vec<HashSet<u64>> = Vec::new();
        let hasher = RandomState::new();
        for path in paths.iter().map(AsRef::as_ref) {
            if profile.columns.is_empty() {
                let words = Some(BTreeMap::new());
                let column = |name| ColumnProfile { name, words: words.clone(), ..ColumnProfile::default() };
                profile.columns = names(path, format)?.into_iter().map(column).collect();
                distinct_values.resize_with(profile.columns.len(), HashSet::new);
            }
            let wanted: Vec<String> = profile.columns.iter().map(|column| column.name.clone()).collect();
            let mut rows = open(path, format, &wanted)?;
            let mut row = Row::default();
            let mut read = 0;
            while read < ROWS
                && rows.read(&mut row).map_err(|source| io_error(path, source))? == RowOutcome::Row
            {
                read += 1;
                if row.defect.is_none() {
                    for (slot, column) in profile.columns.iter_mut().enumerate() {
                        column.add(&row, slot, &mut distinct_values[slot], &hasher);
                    }
                }
            }
            profile.rows += read;
        }
        for (column, distinct_values) in profile.columns.iter_mut().zip(&distinct_values) {
            column.distinct = distinct_values.len() as u64;
        }
        Ok(profile)
    }
}

impl ColumnProfile {
    fn add(&mut self, row: &Row, slot: usize, seen: &mut HashSet<u64>, hasher: &RandomState) {
        if !row.is_there(slot) || matches!(row.text(slot), Ok([]) | Err(super::Defect::Missing)) {
            return;
        }
        self.present += 1;
        if let Ok(number) = row.number(slot) {
            self.numbers += 1;
            self.whole += u64::from(number == number.trunc());
            let (least, greatest) = self.range.unwrap_or((number, number));
            self.range = Some((least.min(number), greatest.max(number)));
            seen.insert(hasher.hash_one(number.to_bits()));
        } else if let Ok(time) = row.time(slot, &TimeZone::UTC) {
            self.times += 1;
            let (first, last) = self.span.unwrap_or((time, time));
            self.span = Some((first.min(time), last.max(time)));
            let text = row.text(slot).unwrap_or_default();
            match offset(text) {
                Some(offset) => drop(self.offsets.insert(String::from_utf8_lossy(offset).into_owned())),
                None => self.local_times += u64::from(text.len() > DATE && !text.ends_with(b"Z")),
            }
        }
        if let Ok(text) = row.text(slot) {
            seen.insert(hasher.hash_one(text));
            let text = String::from_utf8_lossy(text);
            if let Some(words) = &mut self.words {
                if words.contains_key(&*text) || words.len() < WORDS {
                    *words.entry(text.into_owned()).or_default() += 1;
                } else {
                    self.words = None;
                }
            }
        }
    }

    /// Returns what nine tenths of the values are.
    pub fn kind(&self) -> ColumnKind {
        let is_most = |count: u64| 10 * count >= 9 * self.present;
        match self.present {
            0 => ColumnKind::Empty,
            _ if is_most(self.times) => ColumnKind::Time,
            _ if is_most(self.numbers) && !(self.is_identifier() && is_most(self.whole)) => {
                ColumnKind::Number
            }
            _ if is_most(self.numbers) => ColumnKind::Name,
            _ if self.words.as_ref().is_some_and(|words| words.len() <= WORDS / 2) => ColumnKind::Word,
            _ => ColumnKind::Name,
        }
    }

    /// Whether the name is that of an identifier.
    fn is_identifier(&self) -> bool {
        let name = self.name.to_lowercase();
        let ends = ["id", "uuid", "code", "zip"];
        name.split(|character: char| !character.is_alphanumeric()).any(|part| ends.contains(&part))
            || (self.name.len() > 2 && self.name.ends_with("Id"))
    }
}

/// Length of a date.
const DATE: usize = 10;

/// Returns the offset from UTC at the end of a time, except `Z`.
fn offset(time: &[u8]) -> Option<&[u8]> {
    let end = &time[time.len().checked_sub(6)?..];
    matches!(end, [b'+' | b'-', _, _, b':', _, _]).then_some(end)
}

/// Returns the names of the columns that can be read.
fn names(path: &Path, format: Format) -> Result<Vec<String>, FormatError> {
    match format {
        Format::Csv => Ok(CsvRows::open_all(ByteStream::of_file(path)?, path)?.1),
        Format::Parquet => ParquetRows::names(path),
        _ => names_of(ByteStream::of_file(path)?).map_err(|source| io_error(path, source)),
    }
}

fn open(path: &Path, format: Format, wanted: &[String]) -> Result<Box<dyn FileRows>, FormatError> {
    Ok(match format {
        Format::Csv => Box::new(CsvRows::open(ByteStream::of_file(path)?, path, wanted)?),
        Format::Parquet => Box::new(ParquetRows::open(path, (0, 1), wanted)?),
        _ => Box::new(NdjsonRows::open(ByteStream::of_file(path)?, 1, wanted)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_local_times_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.csv");
        std::fs::write(
            &path,
            "at\n2020-01-01T10:00:00-05:00\n2020-01-01 10:00\n2020-01-01\n2020-01-01T10:00Z\n",
        )
        .unwrap();
        let column = &FileProfile::of(&[path], Format::Csv).unwrap().columns[0];
        assert_eq!((column.times, column.local_times), (4, 1));
        assert_eq!(column.offsets, BTreeSet::from(["-05:00".into()]));
    }

    #[test]
    fn columns_have_kinds() {
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str, text: &str, format| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            let profile = FileProfile::of(&[path], format).unwrap();
            let kinds: Vec<_> =
                profile.columns.iter().map(|column| (column.name.clone(), column.kind())).collect();
            let expected = [
                ("at", ColumnKind::Time),
                ("user_id", ColumnKind::Name),
                ("city", ColumnKind::Word),
                ("x", ColumnKind::Number),
                ("none", ColumnKind::Empty),
            ];
            assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind)));
            assert_eq!((profile.rows, profile.columns[3].range), (3, Some((-1.5, 7.0))));
            assert_eq!(profile.columns[2].distinct, 2);
        };
        check(
            "a.csv",
            "at,user_id,city,x,none\n2020-01-01,1,Oslo,7,\n2020-01-02,2,Rome,-1.5,\n2020-01-03,1,Oslo,0,\n",
            Format::Csv,
        );
        let rows =
            [("2020-01-01", 1, "Oslo", 7.0), ("2020-01-02", 2, "Rome", -1.5), ("2020-01-03", 1, "Oslo", 0.0)];
        let lines = rows.map(|(at, id, city, x)| {
            format!("{{\"at\":\"{at}\",\"user_id\":{id},\"city\":\"{city}\",\"x\":{x},\"none\":null}}\n")
        });
        check("a.ndjson", &lines.concat(), Format::Ndjson);
    }
}
