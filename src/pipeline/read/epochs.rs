//! Section `[epochs]`: how records form epochs, and the public clock that closes them.

use super::ColumnRoles;
use crate::document::{Field, Section};
use crate::pipeline::Epochs;
use crate::pipeline::fields::{CLOCK, LATE, WEEKDAYS};
use crate::time::calendar::{EpochLength, LONGEST, LocalStart, calendar};
use crate::time::{is_varying_length, parse_time, time_zone};
use hushflow_mechanism::epochs::{Calendar, ClockSource, CountSchedule, LatePolicy, Schedule, TimeSchedule};

pub(super) fn epochs<'a>(section: &Section<'a>, roles: &mut ColumnRoles<'a>) -> Option<Epochs> {
    let horizon = section.require("horizon", section.count("horizon")).map(|horizon| horizon.value);
    match section.get("records") {
        Some(_) => Some(Epochs { schedule: by_count(section, horizon)?, time: None, arrival: None }),
        None => by_time(section, horizon, roles),
    }
}

fn by_count(section: &Section<'_>, horizon: Option<u64>) -> Option<Schedule> {
    let records_per_epoch = section.count("records")?.value;
    Some(Schedule::ByCount(CountSchedule { records_per_epoch, horizon: horizon? }))
}

fn by_time<'a>(section: &Section<'a>, horizon: Option<u64>, roles: &mut ColumnRoles<'a>) -> Option<Epochs> {
    let time = section.required_text("time");
    let time = time.inspect(|time| roles.claim(time));
    let boundaries = boundaries(section, horizon);
    let clock = clock(section, &mut |arrival| roles.claim(arrival));
    let late = section.word("late", LATE);
    let lateness = section.duration("allowed_lateness").unwrap_or(0);
    let (clock, arrival) = clock?;
    let Boundaries { start, length, calendar } = boundaries?;
    let schedule = Schedule::ByTime(TimeSchedule {
        start,
        length,
        lateness,
        horizon: horizon?,
        late: late.unwrap_or(LatePolicy::Fold),
        clock,
        calendar,
    });
    Some(Epochs { schedule, time: Some(time?.value.into()), arrival })
}

/// The boundaries of epochs: equal lengths, unless there is a calendar.
struct Boundaries {
    start: i64,
    length: i64,
    calendar: Option<Calendar>,
}

fn boundaries(section: &Section<'_>, horizon: Option<u64>) -> Option<Boundaries> {
    let start = section.get("start").and_then(Field::time_text);
    let Some(name) = section.text("timezone") else {
        let start = start.and_then(|start| start.map(|text| parse_time(text).ok_or_else(|| no_time(text))));
        let length = match section.get("length").and_then(Field::text) {
            Some(length) if is_varying_length(length.value) == Some(true) => {
                let message = "months and years vary, and are those of a time zone: add timezone = \"UTC\", or another one";
                length.report(format!("found {:?}: {message}", length.value));
                None
            }
            _ => section.duration("length"),
        };
        return Some(Boundaries { start: start?.value, length: length?, calendar: None });
    };
    let zone = name.map(|name| {
        let expected = "expected a name of the time zone database such as \"America/New_York\"";
        time_zone(name)
            .map(|zone| (name.to_string(), zone))
            .ok_or_else(|| format!("found {name:?}, {expected}"))
    });
    let length = section.text("length").and_then(|length| {
        let expected = "expected days, weeks, months or years of the calendar, such as \"1 week\", or a duration such as \"6h\"";
        length.map(|text| EpochLength::parse(text).ok_or_else(|| format!("found {text:?}, {expected}")))
    });
    let (name, zone) = zone?.value;
    let start = start?.map(|text| LocalStart::parse(text, &zone).ok_or_else(|| no_time(text)))?;
    let length = length?;
    match section.word("week_starts", WEEKDAYS) {
        Some(_) if !length.value.is_weeks() => {
            section
                .refuse("week_starts", "epochs are not weeks: leave it out, or choose length = \"1 week\"");
        }
        Some(day) if day != start.value.weekday() => {
            let found = start.value.weekday();
            let word = |day| WEEKDAYS.iter().find(|word| word.value == day).map_or("", |word| word.name);
            start.report(format!(
                "found a {found:?}, expected a {day:?}, on which weeks start by week_starts: choose another date, or week_starts = {:?}",
                word(found)
            ));
        }
        _ => {}
    }
    let horizon = horizon?;
    if let Some(field) = section.get("horizon").filter(|_| horizon > LONGEST) {
        field.report(format!("found {horizon}, expected at most {LONGEST} epochs with a timezone"));
        return None;
    }
    let calendar = length.map(|&length| calendar(&name, &zone, &start.value, length, horizon))?.value;
    Some(Boundaries {
        start: calendar.runs.first()?.start,
        length: calendar.longest(),
        calendar: Some(calendar),
    })
}

fn no_time(text: &str) -> String {
    format!("found {text:?}, expected a date or an RFC 3339 time such as 2013-01-01T05:00:00Z")
}

/// Reads the source of the clock, and its column, if any; `None` if the section has neither field.
pub(super) fn clock<'a>(
    section: &Section<'a>,
    claim: &mut dyn FnMut(&Field<'a, &'a str>),
) -> Option<(ClockSource, Option<String>)> {
    let arrival = section.text("arrival").inspect(|arrival| claim(arrival));
    match arrival {
        Some(arrival) => Some((ClockSource::Arrival, Some(arrival.value.into()))),
        None => section.word("clock", CLOCK).map(|clock| (clock, None)),
    }
}
