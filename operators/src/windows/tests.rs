//! Tests of windows: the order of rows, spans, restarts and entities.

use super::*;
use crate::{BoundEntities, RepeatPolicy, SplitEpochs};
use std::num::NonZeroU64;
use std::sync::mpsc;
use timely::dataflow::operators::{Inspect, vec::ToStream};

/// Release of a window: its last epoch, its key, the positions of its rows, the integers for the
/// private log, and the saved state.
#[derive(Clone, PartialEq)]
struct Answered {
    epoch: u64,
    key: u32,
    rows: Vec<i128>,
    private: Vec<i128>,
    state: Option<Vec<u8>>,
}

/// Forty rows of two keys, `per_epoch` rows in each epoch, then a last epoch without rows. A third
/// key has no rows either. Row i is of entity i mod 7. Batches of five rows go to the workers in
/// turn. Each answer lists the positions of the window's rows.
fn answered(workers: usize, windows: &Windows, per_epoch: u64) -> Vec<Answered> {
    let (sender, receiver) = mpsc::channel();
    let (windows, last) = (windows.clone(), 40 / per_epoch + 1);
    let guards = timely::execute(timely::Config::process(workers), move |worker| {
        let (sender, windows) = (sender.clone(), windows.clone());
        let has_entities = windows.entities.is_some();
        let batch = |first: u64| Records {
            keys: (first..first + 5).map(|row| row as u32 % 2).collect(),
            epochs: (first..first + 5).map(|row| 1 + row / per_epoch).collect(),
            values: (first..first + 5).map(|row| row as f64).collect(),
            positions: (first..first + 5).collect(),
            entities: match has_entities {
                true => (first..first + 5).map(|row| Entity((row as u128 % 7) << 90)).collect(),
                false => Vec::new(),
            },
        };
        let index = worker.index();
        let mine: Vec<Records> = (0..8)
            .filter(|number| number % workers == index)
            .map(|number| batch(5 * number as u64))
            .collect();
        worker.dataflow::<u64, _, _>(|scope| {
            let ends = if index == 0 { vec![last] } else { Vec::new() };
            let ends = ends.to_stream(scope).container::<Vec<_>>();
            let records = mine.to_stream(scope).container::<Vec<_>>().epochs();
            let answer = |_, _, rows: &[f64]| Ok(rows.iter().map(|&row| row as i128).collect());
            let fault = Fault::new();
            let released = match has_entities {
                true => records
                    .bound(&windows, fault.clone())
                    .records
                    .release_windows(ends, &windows, fault, answer),
                false => records.release_windows(ends, &windows, fault, answer),
            };
            released.inspect_time(move |&time, release| {
                assert!(time <= release.first);
                let answered = Answered {
                    epoch: release.first,
                    key: release.shard,
                    rows: release.values.row().iter().collect(),
                    private: release.sums.iter().flat_map(|sums| sums.row().iter()).collect(),
                    state: release.state.as_ref().map(|state| state.to_vec()),
                };
                sender.send(answered).expect("a receiver");
            });
        });
    })
    .expect("workers");
    drop(guards);
    let mut answers: Vec<_> = receiver.iter().collect();
    answers.sort_by_key(|answer| (answer.epoch, answer.key));
    answers
}

fn of_keys(keys: u32) -> Windows {
    Windows { keys, checkpoint_interval: 2, ..Windows::default() }
}

#[test]
fn rows_keep_stream_order_for_any_number_of_workers() {
    let of = |epoch: u64, key: u32| {
        let rows = (20 * (epoch - 1)..20 * epoch).filter(|row| epoch < 3 && *row as u32 % 2 == key);
        (epoch, key, rows.map(i128::from).collect::<Vec<_>>())
    };
    for first_epoch in [1, 2] {
        let expected: Vec<_> =
            (first_epoch..=3).flat_map(|epoch| (0..3).map(move |key| of(epoch, key))).collect();
        let windows = Windows { first_epoch, ..of_keys(3) };
        for workers in [1, 2, 3] {
            let found = answered(workers, &windows, 20);
            for answer in &found {
                assert_eq!(answer.state, (answer.epoch == 2).then(Vec::new));
                assert!(answer.private.is_empty(), "a single epoch keeps nothing");
            }
            let found: Vec<_> =
                found.into_iter().map(|answer| (answer.epoch, answer.key, answer.rows)).collect();
            assert_eq!(found, expected, "{workers} workers from {first_epoch}");
        }
    }
}

fn at_least_one(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

fn spans() -> [WindowSpan; 4] {
    let sliding =
        |length, stride| WindowSpan::Sliding { length: at_least_one(length), stride: at_least_one(stride) };
    [sliding(3, 1), sliding(4, 2), sliding(3, 3), WindowSpan::Growing { first: at_least_one(1) }]
}

/// Eight epochs of five rows, and a ninth without rows.
#[test]
fn windows_of_several_epochs_have_their_rows_after_any_restart() {
    for span in spans() {
        let windows = Windows { span, ..of_keys(2) };
        let whole = answered(1, &windows, 5);
        assert!(answered(3, &windows, 5) == whole, "{span}: other workers");
        for answer in &whole {
            let epochs = span.first_epoch(answer.epoch)..=answer.epoch;
            let rows = (0..40).filter(|row| {
                span.ends_at(answer.epoch) && epochs.contains(&(1 + row / 5)) && *row as u32 % 2 == answer.key
            });
            assert_eq!(answer.rows, rows.map(i128::from).collect::<Vec<_>>(), "{span} {}", answer.epoch);
        }
        for first_epoch in 2..=9 {
            // Restores the checkpoint before this epoch, and replays the private log after it.
            let checkpoint = (first_epoch - 1) / 2 * 2;
            let mut states = EncoderStates::new();
            for key in 0..2 {
                let of_key = || whole.iter().filter(|answer| answer.key == key);
                let saved = of_key().find(|answer| answer.epoch == checkpoint);
                let saved = saved.map(|answer| answer.state.clone().unwrap()).unwrap_or_default();
                let mut rows = WindowRows::restored(1, &saved).expect("saved rows");
                for answer in of_key().filter(|answer| (checkpoint + 1..first_epoch).contains(&answer.epoch))
                {
                    let mut private = &answer.private[..];
                    if !private.is_empty() {
                        rows.replay(answer.epoch, &mut private).expect("kept rows");
                    }
                    assert!(private.is_empty());
                    rows.drop_before(span.first_needed_after(answer.epoch));
                }
                states.insert(key, rows.save());
            }
            let resumed = Windows { first_epoch, states: Arc::new(states), ..windows.clone() };
            let rest: Vec<_> = whole.iter().filter(|answer| answer.epoch >= first_epoch).cloned().collect();
            assert!(answered(2, &resumed, 5) == rest, "{span} from {first_epoch}");
        }
    }
}

#[test]
fn entities_count_within_their_limits_in_stream_order() {
    let limits = EntityLimits {
        participations: 1,
        min_separation: 1,
        records_per_epoch: 2,
        repeat_policy: RepeatPolicy::Keep,
        sent_limit: None,
    };
    let entities = WindowEntities { limits, bounds: [(0.0, 40.0)].into(), histories: Arc::default() };
    let windows = Windows { entities: Some(entities), ..of_keys(2) };
    let expected: Vec<(u64, u32, Vec<i128>)> =
        vec![(1, 0, (0..14).step_by(2).collect()), (1, 1, (1..14).step_by(2).collect())];
    for workers in [1, 2, 3] {
        let found = answered(workers, &windows, 20).into_iter();
        let found: Vec<_> = found.map(|answer| (answer.epoch, answer.key, answer.rows)).collect();
        assert_eq!(found[..2], expected, "{workers} workers");
        assert!(found[2..].iter().all(|(_, _, rows)| rows.is_empty()), "once is all");
    }
}

#[test]
fn malformed_saved_rows_are_refused() {
    let mut rows = WindowRows::new(2);
    rows.add(3, Zeroizing::new(vec![1.0, f64::NAN]));
    rows.add(5, Zeroizing::default());
    let saved = rows.save();
    assert!(WindowRows::restored(2, &saved).is_some_and(|found| found.save() == saved));
    for cut in 1..saved.len() {
        let is_whole = cut == 32;
        assert_eq!(WindowRows::restored(2, &saved[..cut]).is_some(), is_whole, "{cut}");
    }
    let swapped = [&saved[32..], &saved[..32]].concat();
    assert!(WindowRows::restored(2, &swapped).is_none(), "epochs ascend");
    let huge = [3, u64::MAX, 0].map(u64::to_le_bytes).concat();
    assert!(WindowRows::restored(2, &huge).is_none());
    for wrong in [&[][..], &[2, 1, 1], &[-1, 1, 1], &[1, 1, 1 << 70]] {
        assert!(WindowRows::new(2).replay(1, &mut &wrong[..]).is_none(), "{wrong:?}");
    }
}
