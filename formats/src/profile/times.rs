//! Guesses the format of times in a column, if it is not RFC 3339.

use jiff::tz::TimeZone;

use crate::time::{TimeFormat, parse_time};

const DATES: [&str; 14] = [
    "%d.%m.%y",
    "%d.%m.%Y",
    "%d/%m/%y",
    "%d/%m/%Y",
    "%m/%d/%y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%Y%m%d",
    "%d %b %Y",
    "%d-%b-%Y",
    "%b %d, %Y",
];

const HOURS: [&str; 8] =
    ["", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S", " %H%M"];

const WHOLE: [&str; 2] = ["%d/%b/%Y:%H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %z"];

/// Maximum number of texts that are tried until one has a known format.
const TRIED: u64 = 100;

/// Parts of names of columns with times.
const TIME_NAMES: [&str; 8] = ["time", "date", "stamp", "epoch", "unix", "created", "started", "logged"];
const SHORT_TIME_NAMES: [&str; 9] = ["t", "ts", "at", "on", "when", "day", "dt", "ended", "finished"];

/// Suffixes of names, and the unit that the numbers then have if they are times. Durations have
/// such names too, but as times since 1970 in that unit they are not plausible.
const UNIT_ENDS: [(&str, &str); 4] =
    [("_s", "seconds"), ("_ms", "milliseconds"), ("_us", "microseconds"), ("_ns", "nanoseconds")];

/// Formats in which the texts of a column can be read.
#[derive(Clone, Default)]
pub(super) struct TimeForms {
    /// Texts that were tried before one had a known form.
    tried: u64,
    forms: Vec<FoundForm>,
}

/// A format of times, and the times read with it.
#[derive(Clone)]
pub(super) struct FoundForm {
    pub(super) format: TimeFormat,
    pub(super) times: u64,
    pub(super) span: (i64, i64),
    /// The largest time so far.
    last: i64,
    /// Times before the largest one so far.
    pub(super) falls: u64,
}

impl TimeForms {
    /// Tries a text.
    pub(super) fn add(&mut self, text: &[u8]) {
        if self.forms.is_empty() && self.tried < TRIED {
            self.tried += 1;
            let dated = DATES.iter().flat_map(|date| HOURS.iter().map(move |hour| format!("{date}{hour}")));
            let patterns = dated.chain(WHOLE.map(String::from));
            let found = patterns.filter_map(|pattern| {
                let format = TimeFormat::Pattern(pattern);
                let time = read(&format, text)?;
                Some(FoundForm { format, times: 0, span: (time, time), last: time, falls: 0 })
            });
            self.forms = found.collect();
        }
        for form in &mut self.forms {
            if let Some(time) = read(&form.format, text) {
                form.times += 1;
                form.span = (form.span.0.min(time), form.span.1.max(time));
                form.falls += u64::from(time < form.last);
                form.last = form.last.max(time);
            }
        }
    }

    /// Returns the format that fits most texts. Also returns another format that fits the same
    /// number of texts but reads them differently, because days and months may be swapped.
    pub(super) fn best(&self) -> Option<(&FoundForm, Option<&TimeFormat>)> {
        let most = self.forms.iter().map(|form| form.times).max()?;
        let mut best = self.forms.iter().filter(|form| form.times == most);
        let first = best.next()?;
        let other = best.find(|form| form.span != first.span || form.falls != first.falls);
        Some((first, other.map(|form| &form.format)))
    }
}

/// Reads a text as a plausible time, so that a year of two digits is not read as one of four.
fn read(format: &TimeFormat, text: &[u8]) -> Option<i64> {
    format.read(text, &TimeZone::UTC).filter(is_of_our_days)
}

fn is_of_our_days(time: &i64) -> bool {
    let limit = |text| parse_time(text).unwrap_or_default();
    (limit("1900-01-01")..limit("2100-01-01")).contains(time)
}

/// What is known about a column of numbers in addition to its name and range.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Numbers {
    /// They are times.
    Times,
    /// They are whole, and the name is not that of an identifier.
    Whole,
    /// Any other column.
    Any,
}

/// Returns the format of a column of numbers that is known to hold times, or whose name suggests
/// it: seconds since 1970 or parts of them, or the digits of a date. Whole numbers that are times
/// of recent decades in parts of a second are times under any name.
pub(super) fn of_numbers(name: &str, (least, greatest): (f64, f64), numbers: Numbers) -> Option<TimeFormat> {
    let name = name.to_lowercase();
    let mut parts = name.split(|character: char| !character.is_alphanumeric());
    let is_time = numbers == Numbers::Times
        || TIME_NAMES.iter().any(|part| name.contains(part))
        || parts.any(|part| SHORT_TIME_NAMES.contains(&part));
    let is_recent = |format: &TimeFormat| {
        let from = parse_time("1980-01-01").unwrap_or_default();
        let is_time =
            |number| format.of_number(number).filter(is_of_our_days).is_some_and(|time| time > from);
        is_time(least) && is_time(greatest)
    };
    let units = ["seconds", "milliseconds", "microseconds", "nanoseconds"];
    let digits = || TimeFormat::parse("%Y%m%d").filter(|_| least >= 19_000_101.0 && greatest <= 21_001_231.0);
    let found = units.iter().filter_map(|unit| TimeFormat::parse(unit)).find(is_recent).or_else(digits);
    let has_unit = |format: &TimeFormat| {
        UNIT_ENDS.iter().any(|(end, unit)| name.ends_with(end) && format.name() == *unit)
    };
    let is_clock = |format: &TimeFormat| {
        let is_late = |number, limit| format.of_number(number) >= parse_time(limit);
        let is_of_decades = is_late(least, "1995-01-01") && !is_late(greatest, "2050-01-01");
        numbers == Numbers::Whole && is_of_decades && least >= 1e11
    };
    found.filter(|format| is_time || has_unit(format) || is_clock(format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_found_by_their_texts() {
        let check = |texts: &[&str], expected: Option<&str>, other: Option<&str>| {
            let mut forms = TimeForms::default();
            texts.iter().for_each(|text| forms.add(text.as_bytes()));
            let (format, swapped) = forms.best().unzip();
            assert_eq!(format.map(|form| form.format.name()), expected, "{texts:?}");
            assert_eq!(swapped.flatten().map(TimeFormat::name), other, "{texts:?}");
        };
        check(&["31.01.2013 10:15", "1.2.2013 10:30"], Some("%d.%m.%Y %H:%M"), None);
        check(&["31.01.13", "01.02.13"], Some("%d.%m.%y"), None);
        check(&["01/31/2013 1:15 PM"], Some("%m/%d/%Y %I:%M %p"), None);
        check(&["03/04/2013", "05/04/2013"], Some("%d/%m/%Y"), Some("%m/%d/%Y"));
        check(&["03/04/2013", "13/04/2013"], Some("%d/%m/%Y"), None);
        check(&["x", "2013/04/13 10:15:30"], Some("%Y/%m/%d %H:%M:%S"), None);
        check(&["10/Oct/2000:13:55:36 -0700"], Some("%d/%b/%Y:%H:%M:%S %z"), None);
        check(&["Oslo", "Rome"], None, None);
        check(&[], None, None);
    }

    #[test]
    fn numbers_are_times_if_name_and_range_say_so() {
        let check = |name: &str, range, expected: Option<&str>| {
            assert_eq!(
                of_numbers(name, range, Numbers::Any).as_ref().map(TimeFormat::name),
                expected,
                "{name}"
            );
        };
        check("timestamp", (1.6e9, 1.61e9), Some("seconds"));
        check("recorded_at", (1.6e12, 1.61e12), Some("milliseconds"));
        check("ts", (1.6e18, 1.61e18), Some("nanoseconds"));
        check("date", (20_130_101.0, 20_131_231.0), Some("%Y%m%d"));
        check("started_ms", (1.6e12, 1.61e12), Some("milliseconds"));
        check("logged", (1.6e9, 1.61e9), Some("seconds"));
        check("ended", (1.6e15, 1.61e15), Some("microseconds"));
        check("sent_ns", (1.6e18, 1.61e18), Some("nanoseconds"));
        check("took_us", (1.6e9, 1.61e9), None);
        check("took_ms", (3.0, 4e5), None);
        check("bytes", (1.6e9, 1.61e9), None);
        check("time", (0.0, 86_400.0), None);
        let known = of_numbers("rec", (1.6e12, 1.61e12), Numbers::Times);
        assert_eq!(known.as_ref().map(TimeFormat::name), Some("milliseconds"));
        assert_eq!(of_numbers("rec", (0.0, 86_400.0), Numbers::Times), None);
        let whole = |range| of_numbers("rec", range, Numbers::Whole).map(|format| format.name().to_owned());
        assert_eq!(whole((1.6e12, 1.61e12)).as_deref(), Some("milliseconds"));
        assert_eq!(whole((1.6e18, 1.61e18)).as_deref(), Some("nanoseconds"));
        assert_eq!(whole((1.6e9, 1.61e9)), None);
        assert_eq!(whole((4.0e12, 4.01e12)), None);
        check("rec", (1.6e12, 1.61e12), None);
    }
}
