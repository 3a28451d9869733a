//! `windows`: all records of a key in an epoch together, for estimators that need them at once.
//!
//! Rows are sent to the worker that owns their key and wait until their epoch closes. Every
//! declared key answers for every epoch, even without rows, so the set of windows reveals nothing.
//!
//! An estimate cannot be merged from parts as sums can, so rows are exchanged here. Batches with
//! positions come in the order of the stream, whichever worker read them. Other batches come in the
//! order in which each worker read them, one worker after another. The order never depends on
//! values, because neighbours must agree on the position of every other row.

use crate::closing::EveryEpoch;
use crate::measurement::MeasurementId;
use crate::{ClosedEpoch, Fault, Records, ShardRelease};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::{Broadcast, ToStream};
use zeroize::Zeroizing;

/// Defines the windows. All of it is public. [`Commit`](crate::Commit) takes the same value.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Windows {
    /// Columns of a record.
    pub columns: usize,
    /// Number of keys. Keys are numbered from 0.
    pub keys: u32,
    /// The first epoch of the run: 1, or a later one after a restart.
    pub first_epoch: u64,
    /// A checkpoint is due after every epoch that is a multiple of this number, at least 1. It is
    /// empty, because windows leave no state.
    pub checkpoint_interval: u64,
}

/// Releases answers about windows.
pub trait ReleaseWindows<'scope> {
    /// Applies `answer` to the records of every key in every epoch, even to none. The answers are
    /// public [numbers](hushflow_mechanism::release::Numbers) for [`Commit`](crate::Commit), with a
    /// shard for each key. Epochs close as those of [`Release`](crate::Release) do: the last
    /// one is the largest that comes through `ends`, and an input that closes without one raises
    /// the fault.
    ///
    /// Records of an undeclared key or with another number of columns raise the fault, and so does
    /// an error of `answer`.
    fn release_windows(
        self,
        ends: StreamVec<'scope, u64, u64>,
        windows: &Windows,
        fault: Fault,
        answer: impl FnMut(u64, u32, &[f64]) -> Result<Vec<i128>, String> + 'static,
    ) -> StreamVec<'scope, u64, ShardRelease>;
}

impl<'scope> ReleaseWindows<'scope> for StreamVec<'scope, u64, Records> {
    fn release_windows(
        self,
        ends: StreamVec<'scope, u64, u64>,
        windows: &Windows,
        fault: Fault,
        mut answer: impl FnMut(u64, u32, &[f64]) -> Result<Vec<i128>, String> + 'static,
    ) -> StreamVec<'scope, u64, ShardRelease> {
        let (id, checkpoint_interval) = (windows.id(), windows.checkpoint_interval.max(1));
        windows.answers(self, ends, "ReleaseWindows", fault, move |epoch, key, rows| {
            let due = epoch.is_multiple_of(checkpoint_interval);
            answer(epoch, key, rows).map(|numbers| ShardRelease::of_numbers(id, key, numbers, due))
        })
    }
}

/// Rows of one key on their way to its worker. Private, so they have no `Debug`; wiped when
/// dropped.
#[derive(Clone, Serialize, Deserialize)]
struct KeyRows {
    key: u32,
    /// (0, position of the batch in the stream), or (the worker that read it, number of batches it
    /// had read before).
    place: (usize, u64),
    values: Zeroizing<Vec<f64>>,
}

impl Windows {
    pub(crate) fn id(&self) -> MeasurementId {
        MeasurementId::of(("windows", self))
    }

    /// Like [`answers`](Self::answers), up to a last epoch that is known beforehand.
    pub(crate) fn answers_until<'scope, T: 'static>(
        self,
        records: StreamVec<'scope, u64, Records>,
        last_epoch: u64,
        name: &str,
        fault: Fault,
        answer: impl FnMut(u64, u32, &[f64]) -> Result<T, String> + 'static,
    ) -> StreamVec<'scope, u64, T> {
        let ends = vec![last_epoch].to_stream(records.scope()).container::<Vec<_>>();
        self.answers(records, ends, name, fault, answer)
    }

    /// Applies `answer` to every key's rows in every epoch when the epoch closes. Keys with the
    /// same remainder share a worker and come in ascending order.
    ///
    /// Records of an undeclared key or with another number of columns raise the fault, and so does
    /// an error of `answer`.
    fn answers<'scope, T: 'static>(
        self,
        records: StreamVec<'scope, u64, Records>,
        ends: StreamVec<'scope, u64, u64>,
        name: &str,
        fault: Fault,
        mut answer: impl FnMut(u64, u32, &[f64]) -> Result<T, String> + 'static,
    ) -> StreamVec<'scope, u64, T> {
        let (index, peers) = (records.scope().index(), records.scope().peers());
        let by_key = Exchange::new(|rows: &KeyRows| u64::from(rows.key));
        let rows = self.by_keys(records, fault.clone());
        rows.binary_frontier(ends.broadcast(), by_key, Pipeline, name, move |capability, _info| {
            let mut epochs = EveryEpoch::new(capability, self.first_epoch, fault);
            let owned: Vec<u32> = (0..self.keys).filter(|key| *key as usize % peers == index).collect();
            move |rows, ends, output| {
                epochs.on_close(rows, ends, |run| {
                    for ClosedEpoch { epoch, times: [time], data: rows } in run {
                        let mut rows = whole(rows);
                        let answer = |&key: &u32| answer(epoch, key, &rows.remove(&key).unwrap_or_default());
                        let answers = owned.iter().map(answer).collect::<Result<Vec<_>, _>>()?;
                        output.session(time).give_iterator(answers.into_iter());
                    }
                    Ok(())
                });
            }
        })
    }

    fn by_keys<'scope>(
        self,
        records: StreamVec<'scope, u64, Records>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, KeyRows> {
        let worker = records.scope().index();
        records.unary(Pipeline, "ByKeys", move |_capability, _info| {
            // Keep the times of failed batches: dropping them would look like the end of the
            // stream.
            let (mut batches_read, mut failed) = (0, Vec::new());
            move |input, output| {
                input.for_each_time(|time, batches| {
                    for records in batches.flat_map(|batch| batch.drain(..)) {
                        batches_read += 1;
                        match self.split(&records, (worker, batches_read)) {
                            Ok(rows) => output.session(&time).give_iterator(rows.into_values()),
                            Err(reason) => {
                                failed.push(time.retain(0));
                                fault.raise(reason);
                            }
                        }
                    }
                });
            }
        })
    }

    fn split(self, records: &Records, place: (usize, u64)) -> Result<BTreeMap<u32, KeyRows>, String> {
        let Windows { columns, keys, .. } = self;
        // Batches are runs of the stream: positions rise within each, and all positions of one
        // batch come before those of another.
        let place = records.places.first().map_or(place, |&first| (0, first));
        if columns == 0 || records.values.len() != records.len() * columns {
            return Err(format!("a batch holds records of other than {columns} columns"));
        }
        if records.keys.iter().any(|key| *key >= keys) {
            return Err(format!("a record has a key that is not among the {keys} declared ones"));
        }
        let mut by_key: BTreeMap<u32, KeyRows> = BTreeMap::new();
        for (&key, row) in records.keys.iter().zip(records.values.chunks_exact(columns)) {
            let rows =
                by_key.entry(key).or_insert_with(|| KeyRows { key, place, values: Zeroizing::default() });
            rows.values.extend_from_slice(row);
        }
        Ok(by_key)
    }
}

fn whole(mut parts: Vec<KeyRows>) -> BTreeMap<u32, Zeroizing<Vec<f64>>> {
    parts.sort_by_key(|rows| (rows.key, rows.place));
    let mut windows: BTreeMap<u32, Zeroizing<Vec<f64>>> = BTreeMap::new();
    for rows in parts {
        windows.entry(rows.key).or_default().extend_from_slice(&rows.values);
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epochs;
    use std::sync::{Mutex, mpsc};
    use timely::dataflow::operators::Inspect;

    /// Forty rows of two keys in two epochs, in batches of five that are dealt to workers in turn;
    /// a third epoch and a third key have none. Each answer lists the positions of the window's
    /// rows, by epoch and key, from `first_epoch` on.
    fn places(workers: usize, first_epoch: u64) -> Vec<(u64, u32, Vec<i128>)> {
        let (sender, receiver) = mpsc::channel();
        let sender = Mutex::new(sender);
        let guards = timely::execute(timely::Config::process(workers), move |worker| {
            let seen = sender.lock().expect("no panic").clone();
            let batch = |first: u64| Records {
                keys: (first..first + 5).map(|place| place as u32 % 2).collect(),
                epochs: (first..first + 5).map(|place| 1 + place / 20).collect(),
                values: (first..first + 5).map(|place| place as f64).collect(),
                places: (first..first + 5).collect(),
                ..Records::default()
            };
            let index = worker.index();
            let mine: Vec<Records> = (0..8)
                .filter(|number| number % workers == index)
                .map(|number| batch(5 * number as u64))
                .collect();
            worker.dataflow::<u64, _, _>(|scope| {
                let ends = if index == 0 { vec![3] } else { Vec::new() };
                let ends = ends.to_stream(scope).container::<Vec<_>>();
                let records = mine.to_stream(scope).container::<Vec<_>>().epochs();
                let windows = Windows { columns: 1, keys: 3, first_epoch, checkpoint_interval: 2 };
                let said = |_, _, rows: &[f64]| Ok(rows.iter().map(|&place| place as i128).collect());
                let released = records.release_windows(ends, &windows, Fault::new(), said);
                released.inspect_time(move |&epoch, release| {
                    assert!(release.sums.is_empty() && release.state.is_some() == (epoch == 2));
                    let places = release.values.row().iter().collect();
                    seen.send((epoch, release.shard, places)).expect("heard");
                });
            });
        })
        .expect("workers");
        drop(guards);
        let mut found: Vec<_> = receiver.iter().collect();
        found.sort();
        found
    }

    #[test]
    fn rows_come_in_the_order_of_the_stream_whoever_reads_them() {
        let of = |epoch: u64, key: u32| {
            let rows = (20 * (epoch - 1)..20 * epoch).filter(|place| epoch < 3 && *place as u32 % 2 == key);
            (epoch, key, rows.map(i128::from).collect::<Vec<_>>())
        };
        for first_epoch in [1, 2] {
            let expected: Vec<_> =
                (first_epoch..=3).flat_map(|epoch| (0..3).map(move |key| of(epoch, key))).collect();
            for workers in [1, 2, 3] {
                assert_eq!(places(workers, first_epoch), expected, "{workers} workers from {first_epoch}");
            }
        }
    }
}
