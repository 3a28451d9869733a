//! Formats of times in rows.

use jiff::Timestamp;
use jiff::civil::{DateTime, date};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;

/// A format of times other than RFC 3339.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeFormat {
    /// A number since 1970-01-01T00:00:00Z, with this many units in a second.
    SinceEpoch(u64),
    /// A pattern of `strftime`, such as `%d.%m.%Y %H:%M`.
    Pattern(String),
}

/// Units of times since 1970 in a second.
const UNITS: [(&str, u64); 4] =
    [("seconds", 1), ("milliseconds", 1_000), ("microseconds", 1_000_000), ("nanoseconds", 1_000_000_000)];

const MICROS_PER_SECOND: u64 = 1_000_000;

impl TimeFormat {
    /// Reads `seconds`, `milliseconds`, `microseconds`, `nanoseconds` or a pattern that holds at
    /// least a date.
    ///
    /// ```
    /// # use hushflow_formats::time::TimeFormat;
    /// assert_eq!(TimeFormat::parse("milliseconds"), Some(TimeFormat::SinceEpoch(1000)));
    /// assert!(TimeFormat::parse("%d.%m.%Y %H:%M").is_some());
    /// assert_eq!(TimeFormat::parse("%H:%M"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(&(_, units)) = UNITS.iter().find(|(name, _)| *name == text) {
            return Some(TimeFormat::SinceEpoch(units));
        }
        let sample = date(2013, 1, 31).to_zoned(TimeZone::UTC).ok()?;
        let written = BrokenDownTime::from(&sample).to_string(text).ok()?;
        let format = TimeFormat::Pattern(text.into());
        let read = format.read(written.as_bytes(), &TimeZone::UTC)?;
        (read == sample.timestamp().as_microsecond()).then_some(format)
    }

    /// Returns the name or the pattern.
    pub fn name(&self) -> &str {
        match self {
            TimeFormat::SinceEpoch(units) => {
                UNITS.iter().find(|(_, found)| found == units).map_or("", |(name, _)| name)
            }
            TimeFormat::Pattern(pattern) => pattern,
        }
    }

    /// Describes a time of this format, in a sentence.
    pub fn expected(&self) -> String {
        match self {
            TimeFormat::SinceEpoch(_) => format!("a time of our days in {} since 1970", self.name()),
            TimeFormat::Pattern(pattern) => format!("a time of the pattern {pattern:?}"),
        }
    }

    /// Returns microseconds since 1970. A time without an offset is local time in the zone.
    pub fn read(&self, text: &[u8], zone: &TimeZone) -> Option<i64> {
        match self {
            TimeFormat::SinceEpoch(units) => {
                let text = std::str::from_utf8(text).ok()?;
                match text.parse::<i64>() {
                    Ok(whole) => micros(i128::from(whole) * i128::from(MICROS_PER_SECOND), *units),
                    Err(_) => self.of_number(text.parse().ok()?),
                }
            }
            TimeFormat::Pattern(pattern) => {
                let parts = BrokenDownTime::parse(pattern, text).ok()?;
                // Named zones are not supported, because they would need a separate look-up.
                if parts.iana_time_zone().is_some() {
                    return None;
                }
                let time: Timestamp = match (parts.offset(), parts.timestamp()) {
                    (None, None) => parts.to_datetime().ok()?.to_zoned(zone.clone()).ok()?.timestamp(),
                    _ => parts.to_timestamp().ok()?,
                };
                i64::try_from(time.as_nanosecond().div_euclid(1000)).ok()
            }
        }
    }

    /// Returns the local time of a text without an offset from UTC.
    pub(super) fn local(&self, text: &[u8]) -> Option<DateTime> {
        let TimeFormat::Pattern(pattern) = self else { return None };
        let parts = BrokenDownTime::parse(pattern, text).ok()?;
        let is_local = parts.offset().is_none() && parts.timestamp().is_none();
        is_local.then(|| parts.to_datetime().ok()).flatten()
    }

    /// Returns microseconds since 1970 of a number.
    pub fn of_number(&self, number: f64) -> Option<i64> {
        let TimeFormat::SinceEpoch(units) = self else { return None };
        let scaled = number * MICROS_PER_SECOND as f64;
        (scaled.abs() < i128::MAX as f64 / 2.0).then(|| micros(scaled as i128, *units)).flatten()
    }
}

/// Returns a number of units as a whole number of microseconds, rounded towards the past, if it is
/// in the range of times.
fn micros(scaled: i128, units: u64) -> Option<i64> {
    let micros = i64::try_from(scaled.div_euclid(i128::from(units))).ok()?;
    Timestamp::from_microsecond(micros).ok().map(Timestamp::as_microsecond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{parse_time, time_zone};

    fn read(format: &str, text: &str, zone: &str) -> Option<i64> {
        TimeFormat::parse(format).unwrap().read(text.as_bytes(), &time_zone(zone).unwrap())
    }

    #[test]
    fn times_since_1970_and_by_patterns() {
        let check = |format: &str, text: &str, expected: &str| {
            assert_eq!(read(format, text, "UTC"), parse_time(expected), "{format}: {text}");
        };
        check("seconds", "1357016400", "2013-01-01T05:00:00Z");
        check("seconds", "1357016400.25", "2013-01-01T05:00:00.25Z");
        check("seconds", "1.3570164e9", "2013-01-01T05:00:00Z");
        check("seconds", "-1", "1969-12-31T23:59:59Z");
        check("milliseconds", "1357016400001", "2013-01-01T05:00:00.001Z");
        check("microseconds", "1357016400000001", "2013-01-01T05:00:00.000001Z");
        check("nanoseconds", "1357016400000001999", "2013-01-01T05:00:00.000001Z");
        check("%d.%m.%Y %H:%M", "31.01.2013 05:10", "2013-01-31T05:10:00Z");
        check("%d.%m.%Y", "3.1.2013", "2013-01-03T00:00:00Z");
        check("%m/%d/%Y %I:%M %p", "1/2/2013 5:10 PM", "2013-01-02T17:10:00Z");
        check("%d/%b/%Y:%H:%M:%S %z", "02/Jan/2013:17:10:00 +0100", "2013-01-02T16:10:00Z");
        check("%Y%m%d", "20130102", "2013-01-02");
    }

    #[test]
    fn other_texts_are_refused() {
        for (format, text) in [
            ("seconds", "2013-01-01"),
            ("seconds", ""),
            ("seconds", "nan"),
            ("seconds", "1e300"),
            ("seconds", "9223372036854775807"),
            ("milliseconds", "-inf"),
            ("%d.%m.%Y", "31.02.2013"),
            ("%d.%m.%Y", "2013-01-01"),
            ("%d.%m.%Y %H:%M", "01.01.2013"),
            ("%Y%m%d", "\u{fffd}"),
        ] {
            assert_eq!(read(format, text, "UTC"), None, "{format}: {text}");
        }
        assert_eq!(TimeFormat::parse("%d.%m.%Y").unwrap().of_number(1.0), None);
        assert_eq!(TimeFormat::parse("%d").and_then(|format| format.read(b"\xff", &TimeZone::UTC)), None);
    }

    #[test]
    fn local_times_are_converted_by_the_zone() {
        let (format, zone) = ("%d.%m.%Y %H:%M", "America/New_York");
        assert_eq!(read(format, "01.01.2013 00:00", zone), parse_time("2013-01-01T05:00:00Z"));
        // Clocks go back at 2, so 1:30 comes twice, and forward at 2, so 2:30 is skipped.
        assert_eq!(read(format, "03.11.2013 01:30", zone), parse_time("2013-11-03T05:30:00Z"));
        assert_eq!(read(format, "10.03.2013 02:30", zone), parse_time("2013-03-10T07:30:00Z"));
    }

    #[test]
    fn a_pattern_must_hold_a_date() {
        for text in ["", "s", "second", "%", "%H:%M", "%d.%m.", "%%", "%Y-%m-%d %Q", "%!", "minutes"] {
            assert_eq!(TimeFormat::parse(text), None, "{text}");
        }
        for text in ["seconds", "nanoseconds", "%d.%m.%y", "%F %T", "%s"] {
            assert_eq!(TimeFormat::parse(text).expect(text).name(), text);
        }
    }
}
