//! Boundaries of epochs in a time zone: calendar days, weeks, months and years, or durations.

use std::ops::ControlFlow;

use hushflow_mechanism::epochs::{Calendar, ClockSource, LatePolicy, TimeSchedule};
use jiff::civil::{DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use super::{micros, parse_duration, parse_span, time_zone, zoned};

/// Maximum number of epochs of a calendar.
pub const LONGEST: u64 = 1 << 20;

/// Microseconds in an hour.
const HOUR: i64 = 3_600_000_000;

/// Length of an epoch in a time zone.
#[derive(Clone, Copy, Debug)]
pub enum EpochLength {
    /// Days, weeks, months or years of the calendar.
    Calendar(Span),
    /// Microseconds.
    Fixed(i64),
}

impl EpochLength {
    /// Parses `1 day`, `2 weeks`, `month` or `1 year` as lengths of the calendar, and anything else
    /// as a duration.
    pub fn parse(text: &str) -> Option<Self> {
        let span = parse_span(text)?;
        let units = [
            i64::from(span.get_years()),
            span.get_months().into(),
            span.get_weeks().into(),
            span.get_days().into(),
        ];
        let whole = [
            Span::new().try_years(units[0]),
            Span::new().try_months(units[1]),
            Span::new().try_weeks(units[2]),
            Span::new().try_days(units[3]),
        ];
        let single = units.iter().zip(whole).find(|(units, _)| **units > 0);
        match single {
            Some((_, Ok(single))) if single.fieldwise() == span.fieldwise() => Some(Self::Calendar(single)),
            _ => parse_duration(text).filter(|&length| length > 0).map(Self::Fixed),
        }
    }

    /// Whether the length is a number of weeks.
    pub fn is_weeks(self) -> bool {
        matches!(self, Self::Calendar(span) if span.get_weeks() > 0)
    }
}

/// The start of epoch 1, in local time.
pub struct LocalStart(DateTime);

impl LocalStart {
    /// Parses a time, in the zone where it has no offset.
    pub fn parse(text: &str, zone: &TimeZone) -> Option<Self> {
        match text.parse::<Timestamp>() {
            Ok(_) => zoned(text, zone).map(|zoned| LocalStart(zoned.datetime())),
            Err(_) => text.parse().ok().map(LocalStart),
        }
    }

    /// Returns its day of the week.
    pub fn weekday(&self) -> Weekday {
        self.0.weekday()
    }
}

/// Returns the start and the number of epochs of a length that cover the times from `first` to
/// `last`, in microseconds since 1970. They begin with a day, week, month or year of the zone, or
/// with a full hour.
///
/// ```
/// # use hushflow_formats::time::{epochs_over, parse_time};
/// let times = ["2013-01-15T10:17Z", "2013-03-01T00:00Z"];
/// let [first, last] = times.map(|text| parse_time(text).unwrap());
/// assert_eq!(epochs_over((first, last), "1 month", "UTC"), Some(("2013-01-01".into(), 3)));
/// assert_eq!(epochs_over((first, last), "12h", "UTC"), Some(("2013-01-15T10:00:00Z".into(), 90)));
/// ```
pub fn epochs_over((first, last): (i64, i64), length: &str, zone: &str) -> Option<(String, u64)> {
    let (name, zone) = (zone, time_zone(zone)?);
    let length = EpochLength::parse(length)?;
    let begin = Timestamp::from_microsecond(first).ok()?.to_zoned(zone.clone());
    let (start, text) = match length {
        EpochLength::Fixed(_) => {
            let hour = Timestamp::from_microsecond(first.div_euclid(HOUR) * HOUR).ok()?;
            (LocalStart(hour.to_zoned(zone.clone()).datetime()), hour.to_string())
        }
        EpochLength::Calendar(span) => {
            let date = match begin.date() {
                date if span.get_years() > 0 => date.first_of_year(),
                date if span.get_months() > 0 => date.first_of_month(),
                date if span.get_weeks() > 0 => {
                    let past = date.weekday().to_monday_zero_offset();
                    date.checked_sub(Span::new().days(past)).ok()?
                }
                date => date,
            };
            (LocalStart(date.to_datetime(Time::midnight())), date.to_string())
        }
    };
    if let EpochLength::Fixed(length) = length {
        let start = micros(&start.0.to_zoned(zone).ok()?)?;
        return Some((text, (last.saturating_sub(start) / length + 1).max(1).unsigned_abs()));
    }
    let mut horizon = 64;
    loop {
        let calendar = calendar(name, &zone, &start, length, horizon).ok()?;
        let by = TimeSchedule {
            start: calendar.runs.first()?.start,
            length: calendar.longest(),
            lateness: 0,
            horizon,
            late: LatePolicy::Drop,
            clock: ClockSource::EndOfInput,
            calendar: Some(calendar),
        };
        if let Some(count) = (1..=horizon).find(|&epoch| by.start_of(epoch + 1).is_some_and(|end| end > last))
        {
            return Some((text, count));
        }
        horizon *= 4;
    }
}

/// Returns the calendar of `horizon` epochs, or why there is none.
pub fn calendar(
    name: &str,
    zone: &TimeZone,
    start: &LocalStart,
    length: EpochLength,
    horizon: u64,
) -> Result<Calendar, String> {
    let late =
        || "the last epoch ends after the year 9999: choose a shorter length or a smaller horizon".to_owned();
    if horizon > LONGEST {
        return Err(format!("a time zone is for at most {LONGEST} epochs, and the horizon is {horizon}"));
    }
    let mut boundaries: Vec<(i64, i32)> = Vec::new();
    // Returns whether all boundaries are known. A day that the zone skips is not an epoch.
    let mut add = |time: jiff::Zoned| {
        let (Some(micros), offset) = (micros(&time), time.offset().seconds()) else {
            return ControlFlow::Continue(());
        };
        if boundaries.last().is_none_or(|(last, _)| *last < micros) {
            boundaries.push((micros, offset));
        }
        if boundaries.len() as u64 > horizon { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let first = start.0.to_zoned(zone.clone()).map_err(|_| late())?;
    for step in 0.. {
        let time = match length {
            EpochLength::Calendar(span) => {
                // Added to the start each time, so that months that begin on the 31st return to it.
                let span = span.checked_mul(step).map_err(|_| late())?;
                let local = start.0.checked_add(span).map_err(|_| late())?;
                local.to_zoned(zone.clone()).map_err(|_| late())?
            }
            EpochLength::Fixed(length) => {
                let past = length.checked_mul(step).ok_or_else(late)?;
                let time = first.timestamp().as_microsecond().checked_add(past).ok_or_else(late)?;
                Timestamp::from_microsecond(time).map_err(|_| late())?.to_zoned(zone.clone())
            }
        };
        if add(time).is_break() {
            break;
        }
    }
    Calendar::new(name, &boundaries).ok_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::super::{parse_local_time, parse_time};
    use super::*;

    fn schedule(zone: &str, start: &str, length: &str, horizon: u64) -> TimeSchedule {
        let time_zone = time_zone(zone).unwrap();
        let length = EpochLength::parse(length).unwrap();
        let start = LocalStart::parse(start, &time_zone).unwrap();
        let calendar = calendar(zone, &time_zone, &start, length, horizon).unwrap();
        TimeSchedule {
            start: calendar.runs[0].start,
            length: calendar.longest(),
            lateness: 0,
            horizon,
            late: LatePolicy::Fold,
            clock: ClockSource::EndOfInput,
            calendar: Some(calendar),
        }
    }

    /// Hours of each epoch.
    fn hours(by: &TimeSchedule) -> Vec<i64> {
        let start = |epoch| by.start_of(epoch).unwrap();
        (1..=by.horizon).map(|epoch| (start(epoch + 1) - start(epoch)) / 3_600_000_000).collect()
    }

    #[test]
    fn days_of_new_york_have_23_and_25_hours() {
        let spring = schedule("America/New_York", "2013-03-09", "1 day", 3);
        assert_eq!(hours(&spring), [24, 23, 24]);
        let starts: Vec<String> = (1..=3).map(|epoch| super::super::epoch_start(&spring, epoch)).collect();
        assert_eq!(
            starts,
            ["2013-03-09T00:00:00-05:00", "2013-03-10T00:00:00-05:00", "2013-03-11T00:00:00-04:00"]
        );
        assert_eq!(hours(&schedule("America/New_York", "2013-11-02", "1d", 3)), [24, 25, 24]);
        assert_eq!(hours(&schedule("America/New_York", "2013-11-02", "24h", 3)), [24, 24, 24]);
        assert_eq!(hours(&schedule("America/New_York", "2013-11-02", "1h", 40)), [1; 40]);
        assert_eq!(hours(&schedule("America/New_York", "2013-03-04", "1 week", 2)), [167, 168]);
    }

    #[test]
    fn months_have_their_own_lengths() {
        let days = |start, horizon| -> Vec<i64> {
            hours(&schedule("UTC", start, "1 month", horizon)).iter().map(|hours| hours / 24).collect()
        };
        assert_eq!(days("2016-01-01", 5), [31, 29, 31, 30, 31]);
        // The 31st, or the last day of the month.
        assert_eq!(days("2015-01-31", 4), [28, 31, 30, 31]);
    }

    #[test]
    fn a_skipped_or_repeated_midnight_begins_one_day() {
        // Clocks in Sao Paulo went forward at midnight, clocks in Havana go back at 1 o'clock.
        assert_eq!(hours(&schedule("America/Sao_Paulo", "2018-11-03", "1 day", 3)), [24, 23, 24]);
        assert_eq!(hours(&schedule("America/Havana", "2013-11-02", "1 day", 3)), [24, 25, 24]);
        // Samoa had no 30th of December 2011.
        let samoa = schedule("Pacific/Apia", "2011-12-29", "1 day", 3);
        assert_eq!(hours(&samoa), [24, 24, 24]);
        assert_eq!(super::super::epoch_start(&samoa, 2), "2011-12-31T00:00:00+14:00");
    }

    #[test]
    fn local_times_are_read_in_the_zone() {
        let zone = time_zone("America/New_York").unwrap();
        let check = |local, utc| assert_eq!(parse_local_time(local, &zone), parse_time(utc), "{local}");
        check("2013-01-01 05:00", "2013-01-01T10:00Z");
        check("2013-07-01T05:00:00", "2013-07-01T09:00:00Z");
        check("2013-07-01T05:00:00Z", "2013-07-01T05:00:00Z");
        // Half past one occurs twice, and the first is taken. Half past two is skipped and becomes
        // half past three.
        check("2013-11-03T01:30", "2013-11-03T05:30Z");
        check("2013-03-10T02:30", "2013-03-10T07:30Z");
        assert!(time_zone("America/Gotham").is_none());
    }

    #[test]
    fn lengths_follow_the_calendar_or_are_fixed() {
        let is_calendar =
            |text| EpochLength::parse(text).map(|length| matches!(length, EpochLength::Calendar(_)));
        for text in ["1 day", "1d", "day", "week", "2 weeks", "1 month", "month", "3 months", "1 year"] {
            assert_eq!(is_calendar(text), Some(true), "{text}");
        }
        for text in ["24h", "1d 2h", "15min"] {
            assert_eq!(is_calendar(text), Some(false), "{text}");
        }
        for text in ["1 month 1 day", "0 days", "-1 day", "soon"] {
            assert_eq!(is_calendar(text), None, "{text}");
        }
    }

    #[test]
    fn every_time_of_two_years_is_in_the_epoch_of_its_date() {
        for zone in ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca"] {
            let by = schedule(zone, "2023-01-01", "1 day", 730);
            let time_zone = time_zone(zone).unwrap();
            let first = by.start;
            for quarter in 0..(730 * 96) {
                let time = first + quarter * 900_000_000;
                let date = Timestamp::from_microsecond(time).unwrap().to_zoned(time_zone.clone()).date();
                let epoch =
                    1 + date.since("2023-01-01".parse::<jiff::civil::Date>().unwrap()).unwrap().get_days()
                        as u64;
                assert!(
                    by.start_of(epoch).unwrap() <= time && time < by.start_of(epoch + 1).unwrap(),
                    "{zone} {date}"
                );
            }
        }
    }
}
