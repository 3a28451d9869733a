//! Local times that a zone skips as clocks go forward. Data with such times are of another zone.

use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

/// No zone skips more: Samoa left out a day.
const LONGEST_GAP: i64 = 24 * 3_600_000_000;

/// Finds skipped times of a zone.
pub(crate) struct SkippedTimes {
    zone: TimeZone,
    /// Microseconds since 1970 none of which follows a gap, so that their texts need not be read.
    far: Range<i64>,
}

impl SkippedTimes {
    /// Finds those of a zone; `None` for UTC, which skips none.
    pub(crate) fn of(zone: &TimeZone) -> Option<Self> {
        (*zone != TimeZone::UTC).then(|| SkippedTimes { zone: zone.clone(), far: 0..0 })
    }

    /// Whether a time was read from a local one that does not exist; none if it had an offset.
    pub(crate) fn has(&mut self, time: i64, local: impl FnOnce() -> Option<DateTime>) -> bool {
        let is_skipped = |local: DateTime| {
            matches!(self.zone.to_ambiguous_timestamp(local).offset(), AmbiguousOffset::Gap { .. })
        };
        !self.far.contains(&time) && {
            self.far = self.far_from_gaps(time);
            !self.far.contains(&time) && local().is_some_and(is_skipped)
        }
    }

    /// Returns the times from a day after the last change of the zone up to the next one.
    fn far_from_gaps(&self, time: i64) -> Range<i64> {
        let Ok(at) = Timestamp::from_microsecond(time.saturating_add(1)) else { return 0..0 };
        let last = self.zone.preceding(at).next().map(|change| change.timestamp().as_microsecond());
        let next = self.zone.following(at).next().map(|change| change.timestamp().as_microsecond());
        last.map_or(i64::MIN, |last| last.saturating_add(LONGEST_GAP))..next.unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{TimeFormat, local_time, parse_local_time, time_zone};

    #[test]
    fn times_in_gaps_are_found() {
        let check = |zone: &str, text: &str, expected: bool| {
            let zone = time_zone(zone).unwrap();
            let mut skipped = SkippedTimes::of(&zone).unwrap();
            let time = parse_local_time(text, &zone).unwrap();
            // The second time, what is known of the zone is used.
            for _ in 0..2 {
                let found = skipped.has(time, || local_time(text.as_bytes(), None));
                assert_eq!(found, expected, "{text}");
            }
        };
        for (text, expected) in [
            ("2013-03-10T01:59:59", false),
            ("2013-03-10T02:00:00", true),
            ("2013-03-10 02:59", true),
            ("2013-03-10 03:00", false),
            // Read as the same time as 02:30, which is skipped.
            ("2013-03-10 03:30", false),
            ("2013-03-10T02:30:00-05:00", false),
            ("2013-11-03 01:30", false),
            ("2013-07-01", false),
        ] {
            check("America/New_York", text, expected);
        }
        check("Pacific/Apia", "2011-12-30T12:00:00", true);
        check("Pacific/Apia", "2011-12-31T12:00:00", false);
        assert!(SkippedTimes::of(&TimeZone::UTC).is_none());
        let pattern = TimeFormat::parse("%d.%m.%Y %H:%M");
        assert!(local_time(b"10.03.2013 02:30", pattern.as_ref()).is_some());
        assert!(local_time(b"1362900000", TimeFormat::parse("seconds").as_ref()).is_none());
    }
}
