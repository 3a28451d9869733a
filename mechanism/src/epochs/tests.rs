//! Tests the assignment of records to epochs, boundaries and clocks.

use super::Assignment::{Dropped, Epoch, Late};
use super::*;
use proptest::prelude::*;

fn by_time(late: LatePolicy, clock: ClockSource) -> Schedule {
    Schedule::ByTime(TimeSchedule {
        start: 100,
        length: 10,
        lateness: 5,
        horizon: 8,
        late,
        clock,
        calendar: None,
    })
}

fn at(time: i64) -> Clock {
    Clock { time, ..Clock::START }
}

#[test]
fn boundaries_and_late_policies() {
    let check = |event, clock, folded, dropped| {
        let fold = by_time(LatePolicy::Fold, ClockSource::Arrival);
        let drop = by_time(LatePolicy::Drop, ClockSource::Arrival);
        assert_eq!(fold.assign(event, at(clock)), folded, "fold: event {event} at {clock}");
        assert_eq!(drop.assign(event, at(clock)), dropped, "drop: event {event} at {clock}");
    };
    let both = |event, clock, expected| check(event, clock, expected, expected);
    both(100, 100, Epoch(1));
    both(109, 109, Epoch(1));
    both(110, 110, Epoch(2));
    // Epoch 1 ends at 110 and closes when the clock reaches 115.
    both(109, 114, Epoch(1));
    check(109, 115, Late(2), Dropped(DropReason::Late));
    // An event before the start is always late; a row that arrives before the start is dropped.
    check(99, 100, Late(1), Dropped(DropReason::Late));
    both(99, 99, Dropped(DropReason::BeforeStart));
    both(105, 99, Dropped(DropReason::BeforeStart));
    both(175, 112, Epoch(2));
    both(i64::MAX, 112, Epoch(2));
    // The horizon ends at 180.
    both(179, 179, Epoch(8));
    both(180, 180, Dropped(DropReason::AfterHorizon));
    check(100, 184, Late(8), Dropped(DropReason::Late));
    check(100, 185, Dropped(DropReason::AfterHorizon), Dropped(DropReason::Late));
    check(i64::MIN, i64::MAX, Dropped(DropReason::AfterHorizon), Dropped(DropReason::Late));
}

#[test]
fn without_a_clock_every_record_goes_to_its_own_epoch() {
    let schedule = by_time(LatePolicy::Fold, ClockSource::EndOfInput);
    let check = |event, expected| assert_eq!(schedule.assign(event, Clock::START), expected);
    check(99, Dropped(DropReason::BeforeStart));
    check(100, Epoch(1));
    check(179, Epoch(8));
    check(180, Dropped(DropReason::AfterHorizon));
    assert_eq!(schedule.oldest_open(at(i64::MAX)), 1);
    assert_eq!(schedule.last_at_end(Clock::START), 8);
}

#[test]
fn rows_decide_by_count() {
    let schedule = Schedule::ByCount(CountSchedule { records_per_epoch: 3, horizon: 2 });
    let check = |row, assigned, oldest, last| {
        let clock = Clock { row, ..Clock::START };
        assert_eq!(schedule.assign(0, clock), assigned, "row {row}");
        assert_eq!((schedule.oldest_open(clock), schedule.last_at_end(clock)), (oldest, last), "row {row}");
    };
    check(0, Epoch(1), 1, 0);
    check(2, Epoch(1), 1, 1);
    check(3, Epoch(2), 2, 1);
    check(5, Epoch(2), 2, 2);
    check(6, Dropped(DropReason::AfterHorizon), 3, 2);
    check(u64::MAX, Dropped(DropReason::AfterHorizon), 3, 2);
}

#[test]
fn end_of_input_closes_epochs() {
    let schedule = by_time(LatePolicy::Fold, ClockSource::Arrival);
    let check = |clock, last| assert_eq!(schedule.last_at_end(clock), last);
    check(Clock::START, 0);
    check(at(99), 0);
    check(at(100), 1);
    check(at(110), 2);
    check(at(i64::MAX), 8);
}

#[test]
fn epochs_closed_at_end_of_input_stay_closed() {
    let check = |schedule: Schedule, closed, expected| {
        let clock = Clock { time: 125, row: 5, closed };
        assert_eq!(schedule.assign(122, clock), expected, "{schedule:?} after {closed}");
        assert!(schedule.oldest_open(clock) > closed && schedule.last_at_end(clock) >= closed);
    };
    let fold = || by_time(LatePolicy::Fold, ClockSource::Arrival);
    let count = || Schedule::ByCount(CountSchedule { records_per_epoch: 2, horizon: 8 });
    for closed in [0, 2] {
        check(fold(), closed, Epoch(3));
        check(count(), closed, Epoch(3));
    }
    check(fold(), 3, Late(4));
    check(count(), 3, Late(4));
    check(by_time(LatePolicy::Drop, ClockSource::Arrival), 3, Dropped(DropReason::Late));
    check(fold(), 8, Dropped(DropReason::AfterHorizon));
}

#[test]
fn errors_of_impossible_schedules_name_the_field() {
    let check = |length, lateness, horizon, message: &str| {
        let late = LatePolicy::Fold;
        let schedule = TimeSchedule {
            start: 0,
            length,
            lateness,
            horizon,
            late,
            clock: ClockSource::Arrival,
            calendar: None,
        };
        assert_eq!(Schedule::ByTime(schedule).check().map_err(|e| e.to_string()), Err(message.into()));
    };
    check(0, 0, 1, "the length is 0: expected at least 1");
    check(1, -1, 1, "the lateness is -1: expected at least 0");
    check(1, 0, 0, "the horizon is 0: expected at least 1");
    let by_count = Schedule::ByCount(CountSchedule { records_per_epoch: 0, horizon: 1 });
    assert!(by_count.check().is_err());
    assert_eq!(by_time(LatePolicy::Fold, ClockSource::Arrival).check(), Ok(()));
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let late = prop_oneof![Just(LatePolicy::Fold), Just(LatePolicy::Drop)];
    let clock = prop_oneof![Just(ClockSource::Arrival), Just(ClockSource::EventTime)];
    prop_oneof![
        (any::<i64>(), 1..i64::MAX, 0..i64::MAX, 1..u64::MAX, late, clock).prop_map(
            |(start, length, lateness, horizon, late, clock)| {
                Schedule::ByTime(TimeSchedule {
                    start,
                    length,
                    lateness,
                    horizon,
                    late,
                    clock,
                    calendar: None,
                })
            }
        ),
        (1..u64::MAX, 1..u64::MAX).prop_map(|(records_per_epoch, horizon)| {
            Schedule::ByCount(CountSchedule { records_per_epoch, horizon })
        }),
    ]
}

proptest! {
    #[test]
    fn a_closed_epoch_takes_no_record(schedule in any_schedule(), event: i64, time: i64, row: u64) {
        let clock = Clock { time, row, closed: 0 };
        if let Some(epoch) = schedule.assign(event, clock).epoch() {
            prop_assert!(epoch >= schedule.oldest_open(clock));
            let after = Clock { row: row.saturating_add(1), ..clock };
            prop_assert!((1..=schedule.last_at_end(after)).contains(&epoch));
        }
    }

    #[test]
    fn with_an_earlier_clock_the_least_epoch_is_a_lower_bound(
        schedule in any_schedule(), event: i64, times: [i64; 2], rows: [u64; 2],
    ) {
        let known = Clock { time: times[0].min(times[1]), row: rows[0].min(rows[1]), closed: 0 };
        let clock = Clock { time: times[0].max(times[1]), row: rows[0].max(rows[1]), closed: 0 };
        if let Some(epoch) = schedule.assign(event, clock).epoch() {
            prop_assert!(schedule.least_epoch(event, known) <= clamp(epoch));
        }
    }

    #[test]
    fn epochs_never_open_again(schedule in any_schedule(), times: [i64; 2], rows: [u64; 2]) {
        let [first, last] = [times[0].min(times[1]), times[0].max(times[1])];
        let before = Clock { time: first, row: rows[0].min(rows[1]), closed: 0 };
        let after = Clock { time: last, row: rows[0].max(rows[1]), closed: 0 };
        prop_assert!(schedule.oldest_open(before) <= schedule.oldest_open(after));
        prop_assert!(schedule.last_at_end(before) <= schedule.last_at_end(after));
    }
}
