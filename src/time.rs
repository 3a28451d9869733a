//! Parses and formats times and durations, in microseconds.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp};

/// Microseconds since 1970-01-01T00:00:00Z of an RFC 3339 time or a date. Parts of a microsecond are cut towards
/// the past; without an offset from UTC, UTC is meant.
///
/// ```
/// # use hushflow::time::parse_time;
/// assert_eq!(parse_time("1970-01-02"), Some(86_400_000_000));
/// assert_eq!(parse_time("1970-01-01T02:00:00+01:00"), parse_time("1970-01-01 01:00"));
/// assert_eq!(parse_time("noon"), None);
/// ```
pub fn parse_time(text: &str) -> Option<i64> {
    let time = match text.parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp(),
    };
    i64::try_from(time.as_nanosecond().div_euclid(1000)).ok()
}

/// Microseconds in a duration such as `1d`, `6h 30m`, `15min` or `PT10S`. A day is 24 hours; months and years
/// have no fixed length and are refused.
///
/// ```
/// # use hushflow::time::parse_duration;
/// assert_eq!(parse_duration("1d 2h"), Some(26 * 3_600_000_000));
/// assert_eq!(parse_duration("1 month"), None);
/// ```
pub fn parse_duration(text: &str) -> Option<i64> {
    let span: Span = text.parse().ok()?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    i64::try_from(duration.as_micros()).ok()
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
