//! The wanted fields of one row as text, and their conversion to numbers and times.

use std::cell::Cell;
use std::ops::Range;

use super::error::Defect;
use crate::time::{TimeFormat, parse_local_time};
use jiff::tz::TimeZone;

/// Maximum size of a record in bytes, including its line end and, in NDJSON, the blanks before it.
/// Readers hold no more of a longer record.
pub const RECORD_LIMIT: usize = 1 << 20;

/// The wanted fields of the current row, in buffers reused for every row.
#[derive(Default)]
pub struct Row {
    /// The text that contains the fields.
    pub text: Vec<u8>,
    /// A field for every wanted column.
    pub fields: Vec<RowField>,
    /// A defect of the whole row.
    pub defect: Option<Defect>,
    /// The last date, cached for the next row.
    last_date: Cell<CachedDate>,
}

/// Days from 1970-01-01 to a date. Streams repeat the same date many times.
#[derive(Clone, Copy)]
struct CachedDate {
    text: [u8; 10],
    days: i64,
}

impl Default for CachedDate {
    fn default() -> Self {
        CachedDate { text: *b"1970-01-01", days: 0 }
    }
}

/// The format of times in a source.
#[derive(Clone)]
pub struct TimeForm {
    /// The format, if not RFC 3339.
    pub format: Option<TimeFormat>,
    /// The zone of times without an offset.
    pub zone: TimeZone,
}

impl TimeForm {
    /// RFC 3339, and UTC without an offset.
    pub const UTC: TimeForm = TimeForm { format: None, zone: TimeZone::UTC };
}

/// The value of one column in a row.
#[derive(Clone, PartialEq)]
pub enum RowField {
    /// Absent.
    Missing,
    /// Its range in the row's text.
    Text(Range<usize>),
    /// A number that the format does not store as text.
    Number(f64),
    /// A time that the format does not store as text, in microseconds since 1970.
    Time(i64),
    /// Present but unusable.
    Defective(Defect),
}

/// A reader of one file's rows.
pub trait FileRows: Send {
    /// Reads the next row, or reports the end or a row that is too long. It never waits for bytes
    /// after that row.
    fn read(&mut self, row: &mut Row) -> std::io::Result<RowOutcome>;

    /// Passes the line ends before the next row. May wait for bytes after them.
    fn settle(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    /// Returns the offset in bytes and the line at which the next row begins. The position may also
    /// be the end of the line before that row.
    fn position(&self) -> (u64, u64);

    /// Returns the line where the current row began.
    fn line(&self) -> u64;

    /// Returns whether a whole row is in memory, so the next read need not wait. May return false
    /// for such a row.
    fn has_buffered_row(&self) -> bool;
}

/// Result of reading a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOutcome {
    /// A row was read.
    Row,
    /// The input has ended.
    End,
    /// The row is longer than [`RECORD_LIMIT`].
    TooLong,
}

impl Row {
    /// Whether a field has any content, usable or not.
    pub fn is_present(&self, slot: usize) -> bool {
        !matches!(self.fields[slot], RowField::Missing)
    }

    /// Returns the text of a field without surrounding blanks.
    pub fn text(&self, slot: usize) -> Result<&[u8], Defect> {
        match &self.fields[slot] {
            RowField::Missing => Err(Defect::Missing),
            RowField::Number(_) | RowField::Time(_) => Err(Defect::NotAText),
            RowField::Defective(defect) => Err(*defect),
            RowField::Text(range) => match self.text[range.clone()].trim_ascii() {
                [] => Err(Defect::Missing),
                text => Ok(text),
            },
        }
    }

    /// Returns the number in a column.
    ///
    /// # Errors
    /// [`Defect`]: the column has none.
    pub fn number(&self, slot: usize) -> Result<f64, Defect> {
        let number = match self.fields[slot] {
            RowField::Number(number) => number,
            RowField::Time(_) => return Err(Defect::NotANumber),
            _ => {
                let text = self.text(slot)?;
                let other_form = || std::str::from_utf8(text).ok()?.parse().ok();
                short_decimal(text).or_else(other_form).ok_or_else(|| no_number(text))?
            }
        };
        if number.is_finite() { Ok(number) } else { Err(Defect::NotFinite) }
    }

    /// Returns microseconds since 1970.
    pub fn time(&self, slot: usize, form: &TimeForm) -> Result<i64, Defect> {
        let TimeForm { format, zone } = form;
        let time = match (&self.fields[slot], format) {
            (RowField::Time(time), _) => Some(*time),
            (RowField::Number(number), Some(format)) => format.of_number(*number),
            (RowField::Number(_), None) => None,
            (_, Some(format)) => format.read(self.text(slot)?, zone),
            (_, None) => {
                let text = self.text(slot)?;
                let other_form = || parse_local_time(std::str::from_utf8(text).ok()?, zone);
                utc_second(text, &self.last_date).or_else(other_form)
            }
        };
        time.ok_or(Defect::NotATime)
    }
}

/// Words for a missing value, in lower case.
const MISSING_WORDS: [&str; 7] = ["na", "n/a", "null", "none", "?", "-", "-nan"];

/// Returns the defect of a text that is not a number.
fn no_number(text: &[u8]) -> Defect {
    let is_decimal = |byte: &u8| byte.is_ascii_digit() || b"+-.,".contains(byte);
    match text {
        _ if MISSING_WORDS.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes())) => Defect::Missing,
        _ if text.iter().all(is_decimal) && text.contains(&b',') => Defect::DecimalComma,
        _ => Defect::NotANumber,
    }
}

/// Parses the most common form of a number, `-12.5` with at most 15 digits, much faster than a
/// general parser. Digits and power of ten are exact in an f64, so their quotient is the f64
/// nearest to the text (Clinger 1990).
fn short_decimal(text: &[u8]) -> Option<f64> {
    const POWERS: [f64; 16] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let negative = text.first() == Some(&b'-');
    let digits = &text[usize::from(negative)..];
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    let (mut mantissa, mut point) = (0, None);
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => mantissa = mantissa * 10 + i64::from(byte - b'0'),
            b'.' if point.is_none() && digits.len() > 1 => point = Some(at + 1),
            _ => return None,
        }
    }
    let decimals = point.map_or(0, |point| digits.len() - point);
    // Without a branch: signs of real data can't be predicted.
    Some([1.0, -1.0][usize::from(negative)] * (mantissa as f64 / POWERS[decimals]))
}

/// Parses the most common form of a time, `2013-01-01T10:59:00Z`, much faster than a general
/// parser.
fn utc_second(text: &[u8], last_date: &Cell<CachedDate>) -> Option<i64> {
    let (date, time) = text.split_first_chunk()?;
    if last_date.get().text != *date {
        last_date.set(CachedDate { text: *date, days: days_of(date)? });
    }
    Some((last_date.get().days * 86_400 + second_of_day(time)?) * 1_000_000)
}

/// Returns the seconds in `T10:59:00Z`.
fn second_of_day(text: &[u8]) -> Option<i64> {
    let [b'T', h1, h2, b':', m1, m2, b':', s1, s2, b'Z'] = text else { return None };
    let [hour, minute, second] = [number([*h1, *h2])?, number([*m1, *m2])?, number([*s1, *s2])?];
    let valid = hour < 24 && minute < 60 && second < 60;
    valid.then(|| i64::from(hour * 3600 + minute * 60 + second))
}

/// Returns the days from 1970-01-01 to `2013-01-01`.
fn days_of(date: &[u8; 10]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = *date else { return None };
    let [year, month, day] = [number([y1, y2, y3, y4])?, number([m1, m2])?, number([d1, d2])?];
    let valid = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    valid.then(|| i64::from(days_since_1970(year, month, day)))
}

/// Returns the number with these digits.
fn number<const DIGITS: usize>(digits: [u8; DIGITS]) -> Option<i32> {
    let longer = |number, &digit: &u8| digit.is_ascii_digit().then(|| number * 10 + i32::from(digit - b'0'));
    digits.iter().try_fold(0, longer)
}

fn days_in(year: i32, month: i32) -> i32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Returns days from 1970-01-01 in the Gregorian calendar, counted in years that begin in March, so
/// that the leap day is a year's last.
fn days_since_1970(year: i32, month: i32, day: i32) -> i32 {
    let year = year - i32::from(month <= 2);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse_time;
    use proptest::prelude::*;

    fn row(text: &str) -> Row {
        Row { text: text.into(), fields: vec![RowField::Text(0..text.len())], ..Row::default() }
    }

    #[test]
    fn numbers() {
        let check = |text, expected| assert_eq!(row(text).number(0), expected, "{text}");
        check("12", Ok(12.0));
        check(" -1.5e3 ", Ok(-1500.0));
        check("1e308", Ok(1e308));
        check("", Err(Defect::Missing));
        check("  ", Err(Defect::Missing));
        check("NaN", Err(Defect::NotFinite));
        check("-inf", Err(Defect::NotFinite));
        check("1e309", Err(Defect::NotFinite));
        check("1,5", Err(Defect::DecimalComma));
        check("-1.234,5", Err(Defect::DecimalComma));
        check("1,x", Err(Defect::NotANumber));
        check("NA", Err(Defect::Missing));
        check(" n/a ", Err(Defect::Missing));
        check("twelve", Err(Defect::NotANumber));
        check(".", Err(Defect::NotANumber));
        check("-", Err(Defect::Missing));
        check("--", Err(Defect::NotANumber));
        check("1.2.3", Err(Defect::NotANumber));
        check("-.5", Ok(-0.5));
        check("1\0", Err(Defect::NotANumber));
    }

    #[test]
    fn times() {
        let check = |text, expected| assert_eq!(row(text).time(0, &TimeForm::UTC), expected, "{text}");
        check("1970-01-01T00:00:01Z", Ok(1_000_000));
        check("2013-01-01T05:00:00Z", Ok(1_357_016_400_000_000));
        check("2013-01-01T05:00:00.25Z", Ok(1_357_016_400_250_000));
        check("2013-01-01 00:00:00-05:00", Ok(1_357_016_400_000_000));
        check("2000-02-29T00:00:00Z", Ok(951_782_400_000_000));
        check("1900-02-29T00:00:00Z", Err(Defect::NotATime));
        check("2013-13-01T05:00:00Z", Err(Defect::NotATime));
        check("2013-00-01T05:00:00Z", Err(Defect::NotATime));
        check("20x3-01-01T05:00:00Z", Err(Defect::NotATime));
        check("yesterday", Err(Defect::NotATime));
        check("", Err(Defect::Missing));
    }

    #[test]
    fn times_do_not_depend_on_earlier_times() {
        let last_date = Cell::default();
        let check = |text: &str, expected| {
            assert_eq!(utc_second(text.as_bytes(), &last_date), expected, "{text}");
        };
        check("\0\0\0\0\0\0\0\0\0\0T00:00:01Z", None);
        check("1970-01-02T00:00:00Z", Some(86_400_000_000));
        check("1970-01-02T00:00:61Z", None);
        check("1970-01-32T00:00:00Z", None);
        check("1970-01-02T00:00:01Z", Some(86_401_000_000));
        check("1970-01-01T00:00:01Z", Some(1_000_000));
    }

    proptest! {
        #[test]
        fn short_decimals_are_read_as_by_the_full_parser(text in "-?[0-9]{0,8}[.]?[0-9]{0,8}[.x]?") {
            if let Some(number) = short_decimal(text.as_bytes()) {
                prop_assert_eq!(text.parse().map(f64::to_bits), Ok(number.to_bits()), "{}", text);
            }
        }

        #[test]
        fn the_fast_form_is_read_as_by_the_full_parser(
            year in 0..10_000, month in 0..14, day in 0..33, hour in 0..25, minute in 0..61, second in 0..60,
        ) {
            let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
            let last_date = Cell::default();
            for _ in 0..2 {
                prop_assert_eq!(utc_second(text.as_bytes(), &last_date), parse_time(&text), "{}", text);
            }
        }
    }
}
