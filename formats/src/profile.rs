//! Profiles the columns of a file: their names, kinds and ranges, as a first guess for a pipeline
//! file.
//!
//! A profile is private: it is for the operator's screen, and nothing in it may be published unless
//! the operator confirms that it is public knowledge.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

mod times;

use super::csv::CsvRows;
use super::ndjson::names_of;
use super::parquet::ParquetRows;
use super::row::{Row, RowOutcome, TimeForm};
use super::whole::WholeFile;
use super::{ByteStream, Defect, Format, FormatError, io_error};
use crate::time::TimeFormat;
use times::{Numbers, TimeForms};

/// Maximum number of distinct texts kept for a column.
const WORDS: usize = 100;

/// Nouns in names of columns that may identify a privacy unit.
const UNITS: [&str; 22] = [
    "customer",
    "client",
    "user",
    "patient",
    "person",
    "people",
    "member",
    "subject",
    "participant",
    "employee",
    "student",
    "household",
    "buyer",
    "driver",
    "rider",
    "guest",
    "tenant",
    "device",
    "meter",
    "vehicle",
    "sensor",
    "tailnum",
];

/// Maximum number of rows of a file that are read.
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
    /// Rows with a number that has a comma.
    pub decimal_commas: u64,
    /// Rows with a date or a time.
    pub times: u64,
    /// Format of its times other than RFC 3339.
    pub time_format: Option<TimeFormat>,
    /// Another form in which its times can be read as well, with days and months swapped.
    pub other_format: Option<TimeFormat>,
    /// Rows whose number or time is less than that of an earlier row.
    pub falls: u64,
    /// The least and the greatest number.
    pub range: Option<(f64, f64)>,
    /// The first and the last time, in microseconds since 1970.
    pub span: Option<(i64, i64)>,
    /// Offsets from UTC that times carry, such as `-05:00`.
    pub offsets: BTreeSet<String>,
    /// Rows with a time of day without an offset from UTC.
    pub local_times: u64,
    /// Texts and their numbers of rows; `None` if there are more than a hundred texts.
    pub words: Option<BTreeMap<String, u64>>,
    /// Distinct values.
    pub distinct: u64,
    /// Whether it is known to hold times.
    is_time: bool,
    /// Rows with a word such as `NA`, which means a missing number.
    absent_words: u64,
    forms: TimeForms,
}

/// The kind of most values of a column.
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
    /// Nothing that can be a number, a time or a key.
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
    /// Reads up to a million rows of each file. The columns `times` hold times, of this format if
    /// it is known.
    ///
    /// # Errors
    /// [`FormatError`] if a file can't be read or lacks a column of the first one.
    pub fn of(
        paths: &[impl AsRef<Path>],
        format: Format,
        times: &[&str],
        time_format: Option<&TimeFormat>,
    ) -> Result<Self, FormatError> {
        let mut profile = FileProfile { rows: 0, columns: Vec::new() };
        let mut seen: Vec<HashSet<u64>> = Vec::new();
        let hasher = RandomState::new();
        for path in paths.iter().map(AsRef::as_ref) {
            if profile.columns.is_empty() {
                let words = Some(BTreeMap::new());
                let column = |name: String| {
                    let is_time = times.contains(&name.as_str());
                    let time_format = time_format.filter(|_| is_time).cloned();
                    let words = words.clone();
                    ColumnProfile { name, words, is_time, time_format, ..ColumnProfile::default() }
                };
                profile.columns = names(path, format)?.into_iter().map(column).collect();
                seen.resize_with(profile.columns.len(), HashSet::new);
            }
            let wanted: Vec<String> = profile.columns.iter().map(|column| column.name.clone()).collect();
            let mut rows = WholeFile::with_format(path, format)?.rows(&wanted)?;
            let mut row = Row::default();
            let mut read = 0;
            while read < ROWS
                && rows.read(&mut row).map_err(|source| io_error(path, source))? == RowOutcome::Row
            {
                read += 1;
                if row.defect.is_none() {
                    for (slot, column) in profile.columns.iter_mut().enumerate() {
                        column.add(&row, slot, &mut seen[slot], &hasher);
                    }
                }
            }
            profile.rows += read;
        }
        for (column, seen) in profile.columns.iter_mut().zip(&seen) {
            column.distinct = seen.len() as u64;
            column.find_time_format();
            if column.numbers.max(column.times) > 0 {
                column.present -= column.absent_words;
            }
        }
        Ok(profile)
    }
}

/// Minimum and maximum numbers of columns.
pub type Ranges = Vec<Option<(f64, f64)>>;

/// Returns the range of these columns for each value of a key. Private.
///
/// # Errors
/// As [`FileProfile::of`].
pub fn ranges_by_key(
    paths: &[impl AsRef<Path>],
    format: Format,
    key: &str,
    columns: &[String],
) -> Result<BTreeMap<String, Ranges>, FormatError> {
    let wanted = [columns, &[key.into()]].concat();
    let mut ranges: BTreeMap<String, Ranges> = BTreeMap::new();
    for path in paths.iter().map(AsRef::as_ref) {
        let (mut rows, mut row) = (WholeFile::with_format(path, format)?.rows(&wanted)?, Row::default());
        for _ in 0..ROWS {
            if rows.read(&mut row).map_err(|source| io_error(path, source))? != RowOutcome::Row {
                break;
            }
            let Some(key) = row.defect.is_none().then(|| row.text(columns.len()).ok()).flatten() else {
                continue;
            };
            let key = String::from_utf8_lossy(key).into_owned();
            if !ranges.contains_key(&key) && ranges.len() == WORDS {
                continue;
            }
            let ranges = ranges.entry(key).or_insert_with(|| vec![None; columns.len()]);
            for (slot, range) in ranges.iter_mut().enumerate() {
                if let Ok(number) = row.number(slot) {
                    let (least, greatest) = range.unwrap_or((number, number));
                    *range = Some((least.min(number), greatest.max(number)));
                }
            }
        }
    }
    Ok(ranges)
}

impl ColumnProfile {
    fn add(&mut self, row: &Row, slot: usize, seen: &mut HashSet<u64>, hasher: &RandomState) {
        if !row.is_present(slot) || matches!(row.text(slot), Ok([]) | Err(Defect::Missing)) {
            return;
        }
        let number = row.number(slot);
        self.present += 1;
        self.absent_words += u64::from(number == Err(Defect::Missing));
        self.decimal_commas += u64::from(number == Err(Defect::DecimalComma));
        let time = match &self.time_format {
            Some(format) => row.time(slot, &TimeForm { format: Some(format.clone()), ..TimeForm::UTC }),
            None if number.is_ok() => Err(Defect::NotATime),
            None => row.time(slot, &TimeForm::UTC),
        };
        if let (Ok(number), None) = (number, &self.time_format) {
            self.numbers += 1;
            self.whole += u64::from(number == number.trunc());
            let (least, greatest) = self.range.unwrap_or((number, number));
            self.falls += u64::from(number < greatest);
            self.range = Some((least.min(number), greatest.max(number)));
            seen.insert(hasher.hash_one(number.to_bits()));
        } else if let Ok(time) = time {
            self.times += 1;
            let (first, last) = self.span.unwrap_or((time, time));
            self.falls += u64::from(time < last);
            self.span = Some((first.min(time), last.max(time)));
            let text = row.text(slot).unwrap_or_default();
            match offset(text) {
                Some(offset) => drop(self.offsets.insert(String::from_utf8_lossy(offset).into_owned())),
                None => self.local_times += u64::from(text.len() > DATE && !text.ends_with(b"Z")),
            }
        } else if let (Ok(text), None) = (row.text(slot), &self.time_format) {
            self.forms.add(text);
        }
        if let Ok(text) = row.text(slot) {
            if number.is_err() {
                seen.insert(hasher.hash_one(text));
            }
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

    /// Treats numbers as times if the name and the range suggest it, and texts if most have a known
    /// format.
    fn find_time_format(&mut self) {
        if let Some(format) = &self.time_format {
            if matches!(format, TimeFormat::SinceEpoch(_)) {
                self.local_times = 0;
            }
            return;
        }
        let is_most = 10 * self.numbers >= 9 * (self.present - self.absent_words);
        let number = self.range.filter(|_| is_most);
        if let Some((least, greatest)) = number
            && let Some(format) = times::of_numbers(&self.name, (least, greatest), self.numbers_hold())
        {
            let micros = |number: f64| {
                let digits = format!("{number}");
                format.of_number(number).or_else(|| format.read(digits.as_bytes(), &TimeForm::UTC.zone))
            };
            self.span = micros(least).zip(micros(greatest));
            (self.times, self.numbers) = (self.numbers, 0);
            self.time_format = Some(format);
        } else if let Some((form, other)) = self.forms.best()
            && form.times > self.times
        {
            (self.times, self.span, self.falls) = (form.times, Some(form.span), form.falls);
            (self.time_format, self.other_format) = (Some(form.format.clone()), other.cloned());
            let is_local = form.format.name().contains(['H', 'I']) && !form.format.name().contains("%z");
            self.local_times = if is_local { form.times } else { 0 };
        }
    }

    /// Returns the kind of the numbers, without regard to words for times in the name.
    fn numbers_hold(&self) -> Numbers {
        let is_whole = self.whole == self.numbers && !self.is_identifier() && !self.names_unit();
        match self.is_time {
            true => Numbers::Times,
            false if is_whole => Numbers::Whole,
            false => Numbers::Any,
        }
    }

    /// Returns the kind of at least nine tenths of the values.
    pub fn kind(&self) -> ColumnKind {
        let is_most = |count: u64| 10 * count >= 9 * self.present;
        match self.present {
            0 => ColumnKind::Empty,
            _ if is_most(self.times) => ColumnKind::Time,
            _ if is_most(self.numbers)
                && !(is_most(self.whole) && (self.is_identifier() || self.is_counter())) =>
            {
                ColumnKind::Number
            }
            _ if is_most(self.numbers) => ColumnKind::Name,
            // For example booleans, which can't be keys.
            _ if self.words.as_ref().is_some_and(BTreeMap::is_empty) => ColumnKind::Empty,
            _ if self.words.as_ref().is_some_and(|words| words.len() <= WORDS / 2) => ColumnKind::Word,
            _ => ColumnKind::Name,
        }
    }

    /// Whether the values are row numbers.
    fn is_counter(&self) -> bool {
        let steps = self.range.map(|(least, greatest)| greatest - least + 1.0);
        self.present > 1
            && self.falls == 0
            && self.distinct == self.present
            && steps == Some(self.present as f64)
    }

    /// Whether the name is that of an identifier.
    fn is_identifier(&self) -> bool {
        let parts = self.name_parts();
        let last = parts.last().map_or("", String::as_str);
        parts.iter().any(|part| ["id", "uuid", "guid", "code", "zip"].contains(&part.as_str()))
            || ["no", "nr", "serial", "phone", "account", "invoice"].contains(&last)
            || UNITS.contains(&last)
    }

    /// Whether the name is that of a person or device, such as `customer`, `patient_id` or
    /// `user.id`, but not `user.city`.
    pub fn names_unit(&self) -> bool {
        let (outer, last) = self.name.rsplit_once('.').unwrap_or(("", &self.name));
        let is_number = |part: &String| ["id", "uuid", "guid", "key"].contains(&part.as_str());
        let own = parts(last);
        let own = if own.iter().all(is_number) { parts(outer) } else { own };
        own.iter().any(|part| UNITS.contains(&part.as_str()))
    }

    fn name_parts(&self) -> Vec<String> {
        parts(&self.name)
    }
}

/// Returns the words of a name in lower case, also of one such as `customerId`.
fn parts(name: &str) -> Vec<String> {
    let mut spaced = String::new();
    for character in name.chars() {
        if character.is_uppercase() && spaced.ends_with(char::is_lowercase) {
            spaced.push(' ');
        }
        spaced.push(character);
    }
    let parts = spaced.split(|character: char| !character.is_alphanumeric());
    parts.filter(|part| !part.is_empty()).map(str::to_lowercase).collect()
}

/// Length of a date.
const DATE: usize = 10;

/// Returns the offset from UTC at the end of a time, except `Z`.
fn offset(time: &[u8]) -> Option<&[u8]> {
    let end = &time[time.len().checked_sub(6)?..];
    matches!(end, [b'+' | b'-', _, _, b':', _, _]).then_some(end)
}

/// Returns the names of the columns that can be read.
pub fn names(path: &Path, format: Format) -> Result<Vec<String>, FormatError> {
    match format {
        Format::Csv(delimiter) => Ok(CsvRows::open_all(ByteStream::of_file(path)?, path, delimiter)?.1),
        Format::Parquet => ParquetRows::names(path),
        _ => names_of(ByteStream::of_file(path)?).map_err(|source| io_error(path, source)),
    }
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
        let column = &FileProfile::of(&[path], Format::COMMAS, &[], None).unwrap().columns[0];
        assert_eq!((column.times, column.local_times), (4, 1));
        assert_eq!(column.offsets, BTreeSet::from(["-05:00".into()]));
    }

    #[test]
    fn names_of_units_are_told_from_what_describes_them() {
        let names_unit = |name: &str| ColumnProfile { name: name.into(), ..Default::default() }.names_unit();
        assert!(
            ["customer", "patient_id", "userId", "user.id", "order.customer"].into_iter().all(names_unit)
        );
        assert!(!["user.city", "id", "user.geo.code", "usage"].into_iter().any(names_unit));
    }

    #[test]
    fn columns_have_kinds() {
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str, text: &str, format| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            let profile = FileProfile::of(&[path], format, &[], None).unwrap();
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
            Format::COMMAS,
        );
        let rows =
            [("2020-01-01", 1, "Oslo", 7.0), ("2020-01-02", 2, "Rome", -1.5), ("2020-01-03", 1, "Oslo", 0.0)];
        let lines = rows.map(|(at, id, city, x)| {
            format!("{{\"at\":\"{at}\",\"user_id\":{id},\"city\":\"{city}\",\"x\":{x},\"none\":null}}\n")
        });
        check("a.ndjson", &lines.concat(), Format::Ndjson);
    }
}
