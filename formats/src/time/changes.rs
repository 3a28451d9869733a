//! Local times at which clocks change: those that a zone skips as clocks go forward, which hint at
//! data of another zone, and those that come twice as clocks go back.

use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

/// Longest change of any zone: Samoa left out a day.
const LONGEST: i64 = 24 * 3_600_000_000;

/// Effect of a change of the clocks on a local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChange {
    /// It does not exist. It is read as the time that is later by the length of the change.
    Skipped,
    /// It comes twice, and is read as the first of both.
    Repeated,
}

/// Finds local times of a zone at which its clocks change.
pub struct ClockChanges {
    zone: TimeZone,
    /// Range of microseconds since 1970 without a change nearby, so that the texts of these times
    /// need not be read.
    far: Range<i64>,
}

impl ClockChanges {
    /// Finds the changes of a zone; `None` for UTC, which has no changes.
    pub fn of(zone: &TimeZone) -> Option<Self> {
        (*zone != TimeZone::UTC).then(|| ClockChanges { zone: zone.clone(), far: 0..0 })
    }

    /// Returns the effect of a change on the local time from which `time` was read. `None` if there
    /// is no effect, or if the text had an offset.
    pub fn at(&mut self, time: i64, local: impl FnOnce() -> Option<DateTime>) -> Option<ClockChange> {
        if self.far.contains(&time) {
            return None;
        }
        self.far = self.far_from_changes(time);
        let local = if self.far.contains(&time) { None } else { local() };
        match self.zone.to_ambiguous_timestamp(local?).offset() {
            AmbiguousOffset::Unambiguous { .. } => None,
            AmbiguousOffset::Gap { .. } => Some(ClockChange::Skipped),
            AmbiguousOffset::Fold { .. } => Some(ClockChange::Repeated),
        }
    }

    /// Returns the times from a day after the last change of the zone to a day before the next one.
    fn far_from_changes(&self, time: i64) -> Range<i64> {
        let Ok(at) = Timestamp::from_microsecond(time.saturating_add(1)) else { return 0..0 };
        let last = self.zone.preceding(at).next().map(|change| change.timestamp().as_microsecond());
        let next = self.zone.following(at).next().map(|change| change.timestamp().as_microsecond());
        last.map_or(i64::MIN, |last| last.saturating_add(LONGEST))
            ..next.map_or(i64::MAX, |next| next.saturating_sub(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{TimeFormat, local_time, parse_local_time, time_zone};

    #[test]
    fn times_at_changes_are_found() {
        let check = |zone: &str, text: &str, expected: Option<ClockChange>| {
            let zone = time_zone(zone).unwrap();
            let mut changes = ClockChanges::of(&zone).unwrap();
            let time = parse_local_time(text, &zone).unwrap();
            // The second time, the stored range of the zone is used.
            for _ in 0..2 {
                let found = changes.at(time, || local_time(text.as_bytes(), None));
                assert_eq!(found, expected, "{text}");
            }
        };
        let (skipped, repeated) = (Some(ClockChange::Skipped), Some(ClockChange::Repeated));
        for (text, expected) in [
            ("2013-03-10T01:59:59", None),
            ("2013-03-10T02:00:00", skipped),
            ("2013-03-10 02:59", skipped),
            ("2013-03-10 03:00", None),
            // Read as the same time as 02:30, which is skipped.
            ("2013-03-10 03:30", None),
            ("2013-03-10T02:30:00-05:00", None),
            ("2013-11-03 00:59", None),
            ("2013-11-03 01:00", repeated),
            ("2013-11-03 01:30", repeated),
            ("2013-11-03 02:00", None),
            ("2013-11-03T01:30:00-05:00", None),
            ("2013-07-01", None),
        ] {
            check("America/New_York", text, expected);
        }
        check("Pacific/Apia", "2011-12-30T12:00:00", skipped);
        check("Pacific/Apia", "2011-12-31T12:00:00", None);
        assert!(ClockChanges::of(&TimeZone::UTC).is_none());
        let pattern = TimeFormat::parse("%d.%m.%Y %H:%M");
        assert!(local_time(b"10.03.2013 02:30", pattern.as_ref()).is_some());
        assert!(local_time(b"1362900000", TimeFormat::parse("seconds").as_ref()).is_none());
    }
}
