//! Parses and formats times and durations, in microseconds.

pub mod calendar;
mod changes;
mod format;

pub use calendar::epochs_over;
pub use changes::{ClockChange, ClockChanges};
pub use format::TimeFormat;

use calendar::EpochLength;
use hushflow_mechanism::epochs::TimeSchedule;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use jiff::{Span, SpanRelativeTo, Timestamp, Zoned};

/// Microseconds since 1970-01-01T00:00:00Z of an RFC 3339 time or a date. Fractions of a
/// microsecond are rounded towards the past; without an offset from UTC, UTC is meant.
///
/// ```
/// # use hushflow_formats::time::parse_time;
/// assert_eq!(parse_time("1970-01-02"), Some(86_400_000_000));
/// assert_eq!(parse_time("1970-01-01T02:00:00+01:00"), parse_time("1970-01-01 01:00"));
/// assert_eq!(parse_time("noon"), None);
/// ```
pub fn parse_time(text: &str) -> Option<i64> {
    parse_local_time(text, &TimeZone::UTC)
}

/// Microseconds since 1970 of a time; without an offset from UTC, it is local time in the zone. A
/// local time that occurs twice, when clocks go back, is the first of the two. One that is skipped,
/// when clocks go forward, is moved forward by the length of the gap.
pub fn parse_local_time(text: &str, zone: &TimeZone) -> Option<i64> {
    zoned(text, zone).and_then(|zoned| micros(&zoned))
}

/// Returns a local time as it is written, in RFC 3339 unless it has another format; `None` if it
/// has an offset from UTC or is not a time.
pub fn local_time(text: &[u8], format: Option<&TimeFormat>) -> Option<DateTime> {
    let Some(format) = format else {
        let text = std::str::from_utf8(text).ok()?;
        return if text.parse::<Timestamp>().is_ok() { None } else { text.parse().ok() };
    };
    format.local(text)
}

fn zoned(text: &str, zone: &TimeZone) -> Option<Zoned> {
    match text.parse::<Timestamp>() {
        Ok(time) => Some(time.to_zoned(zone.clone())),
        Err(_) => text.parse::<DateTime>().ok()?.to_zoned(zone.clone()).ok(),
    }
}

fn micros(time: &Zoned) -> Option<i64> {
    i64::try_from(time.timestamp().as_nanosecond().div_euclid(1000)).ok()
}

/// Returns a time zone of the bundled database, such as `America/New_York`.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

/// Returns when an epoch begins, as RFC 3339: in UTC, or in local time with a calendar. Empty if
/// it is out of range.
pub fn epoch_start(schedule: &TimeSchedule, epoch: u64) -> String {
    let start = schedule.start_of(epoch).and_then(|micros| Timestamp::from_microsecond(micros).ok());
    let Some(start) = start else { return String::new() };
    let offset = schedule.offset_of(epoch).and_then(|seconds| Offset::from_seconds(seconds).ok());
    match offset {
        None => start.to_string(),
        Some(offset) => start.display_with_offset(offset).to_string(),
    }
}

/// Microseconds in a duration such as `1d`, `6h 30m`, `15min`, `PT10S` or `day`. A day is 24 hours;
/// months and years have no fixed length and are refused.
///
/// ```
/// # use hushflow_formats::time::parse_duration;
/// assert_eq!(parse_duration("1d 2h"), Some(26 * 3_600_000_000));
/// assert_eq!(parse_duration("week"), parse_duration("7d"));
/// assert_eq!(parse_duration("1 month"), None);
/// ```
pub fn parse_duration(text: &str) -> Option<i64> {
    let duration = parse_span(text)?.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    i64::try_from(duration.as_micros()).ok()
}

/// Parses a span. The name of a unit alone means one of that unit.
fn parse_span(text: &str) -> Option<Span> {
    const SHORTEST_NAME: usize = 3;
    let is_name = text.len() >= SHORTEST_NAME && text.bytes().all(|letter| letter.is_ascii_alphabetic());
    let one = || is_name.then(|| format!("1 {text}").parse().ok()).flatten();
    text.parse().ok().or_else(one)
}

/// Returns whether a length of epochs varies, as months and years do, which only a calendar has;
/// `None` if it is not a length.
///
/// ```
/// # use hushflow_formats::time::is_varying_length;
/// assert_eq!(is_varying_length("month"), Some(true));
/// assert_eq!(is_varying_length("6h"), Some(false));
/// assert_eq!(is_varying_length("soon"), None);
/// ```
pub fn is_varying_length(text: &str) -> Option<bool> {
    EpochLength::parse(text).map(|_| parse_duration(text).is_none())
}

/// Whether the bundled database has a time zone of this name.
pub fn is_time_zone(name: &str) -> bool {
    time_zone(name).is_some()
}

/// Formats microseconds since 1970 as RFC 3339 in UTC; as a number if they are beyond its range.
///
/// ```
/// # use hushflow_formats::time::time_text;
/// assert_eq!(time_text(86_400_000_000), "1970-01-02T00:00:00Z");
/// ```
pub fn time_text(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map_or_else(|_| format!("{micros} µs"), |time| time.to_string())
}

/// Returns this machine's time in whole seconds, as RFC 3339.
pub fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let check = |text, micros| assert_eq!(parse_time(text), micros, "{text}");
        check("1970-01-01T00:00:00Z", Some(0));
        check("1969-12-31T23:59:59.9999999Z", Some(-1));
        check("2013-01-01T05:00:00Z", Some(1_357_016_400_000_000));
        check("2013-01-01T00:00:00-05:00", Some(1_357_016_400_000_000));
        check("2013-01-01T05:00", Some(1_357_016_400_000_000));
        check("2013-02-29T05:00:00Z", None);
        check("2013-01-01T25:00:00Z", None);
        check("1357016400", None);
        check("", None);
    }

    #[test]
    fn durations() {
        let check = |text, micros| assert_eq!(parse_duration(text), micros, "{text}");
        check("10s", Some(10_000_000));
        check("15min", Some(900_000_000));
        check("6h 30m", Some(23_400_000_000));
        check("1w", Some(604_800_000_000));
        check("-1d", Some(-86_400_000_000));
        check("PT1H", Some(3_600_000_000));
        check("1y", None);
        check("ten minutes", None);
        check("10", None);
    }
}
