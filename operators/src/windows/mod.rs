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
use crate::{ClosedEpoch, Fault, Records, ShardRelease, map_or_fault};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Broadcast;
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
    /// shard for each key. Epochs close as those of [`ReleaseMoments`](crate::ReleaseMoments) do:
    /// the last one is the largest that comes through `ends`, and an input that closes without one
    /// raises the fault. Keys with the same remainder share a worker and come in ascending order.
    ///
    /// Each record is in one window, so all windows together cost as much as one (parallel
    /// composition). The neighbour relation must keep a record in its window, as
    /// replace-one-in-place and zero-out do. Only a committed window is public: after a restart,
    /// windows from the first epoch that was not committed may be answered again.
    ///
    /// Records of an undeclared key or with another number of columns raise the fault, and so does
    /// an error of `answer`.
    ///
    /// A mean that 1 % of corrupt records cannot move far, for (4, 10⁻⁶) in all:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// use hushflow_estimators::mean::{self, MeanAnswer, MeanError, Question, Scale};
    /// use hushflow_mechanism::accounting::{Delta, Epsilon};
    /// use hushflow_mechanism::{noise::NoiseSource, release::Numbers};
    ///
    /// let question = Question {
    ///     method: mean::MeanMethod::PrimeHt,
    ///     epsilon: Epsilon::new(4.0)?,
    ///     delta: Delta::new(1e-6)?,
    ///     corruption: 0.01,
    ///     scale: Scale::Known(vec![1.0]),
    ///     range: None,
    /// };
    /// let answer = move |epoch, key: u32, rows: &[f64]| {
    ///     let generator = NoiseSource::System.generator(epoch, key.into());
    ///     let mut generator = generator.map_err(|error| error.to_string())?;
    ///     let mut numbers = Vec::new();
    ///     mean::estimate(rows, 1, &question, &mut generator).write(&mut numbers);
    ///     Ok(numbers)
    /// };
    /// let windows = Windows { columns: 1, keys: 1, first_epoch: 1, checkpoint_interval: 64 };
    /// let values = (0..20_000).map(|row| if row % 200 == 0 { 1e9 } else { 5.0 }).collect();
    /// let (keys, epochs) = (vec![0; 20_000], vec![1; 20_000]);
    /// let batch = Records { keys, epochs, values, ..Records::default() };
    /// timely::example(move |scope| {
    ///     let marks = Vec::<(u64, u64)>::new().to_stream(scope);
    ///     let ends = vec![2].to_stream(scope);
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>().epochs();
    ///     let releases = records.release_windows(ends, &windows, fault.clone(), answer);
    ///     let log = |_: &[EpochCommit<u64>]| Ok(()); // a real one writes to disk
    ///     let released = releases.commit(marks, &windows, Some(Box::new(log)), fault);
    ///     released.inspect(move |released| sender.send(released.to_vec()).expect("a receiver"));
    /// });
    /// type Window = Result<MeanAnswer, MeanError>;
    /// let read = |values: Vec<i128>| Window::read(&mut &values[..]).expect("an answer");
    /// let mut answers = receiver.iter().map(read);
    /// let mean = answers.next().expect("epoch 1")?.outcome?;
    /// assert!((mean.mean[0] - 5.0).abs() < 1.0 && mean.noise[0] < 0.5);
    /// assert!(answers.next().expect("epoch 2").is_err(), "there are no records");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        let (index, peers, windows) = (self.scope().index(), self.scope().peers(), *windows);
        let by_key = Exchange::new(|rows: &KeyRows| u64::from(rows.key));
        let rows = windows.by_keys(self, fault.clone());
        rows.binary_frontier(
            ends.broadcast(),
            by_key,
            Pipeline,
            "ReleaseWindows",
            move |capability, _info| {
                let mut epochs = EveryEpoch::new(capability, windows.first_epoch, fault);
                let owned: Vec<u32> =
                    (0..windows.keys).filter(|key| *key as usize % peers == index).collect();
                move |rows, ends, output| {
                    epochs.on_close(rows, ends, |run| {
                        for ClosedEpoch { epoch, times: [time], data: rows } in run {
                            let mut rows = rows_by_key(rows);
                            let due = epoch.is_multiple_of(windows.checkpoint_interval.max(1));
                            let answer = |&key: &u32| {
                                let numbers = answer(epoch, key, &rows.remove(&key).unwrap_or_default())?;
                                Ok(ShardRelease::of_numbers(windows.id(), key, epoch, numbers, due))
                            };
                            let answers = owned.iter().map(answer).collect::<Result<Vec<_>, String>>()?;
                            output.session(time).give_iterator(answers.into_iter());
                        }
                        Ok(())
                    });
                }
            },
        )
    }
}

/// Rows of one key on their way to its worker. Private, so they have no `Debug`; wiped when
/// dropped.
#[derive(Clone, Serialize, Deserialize)]
struct KeyRows {
    key: u32,
    /// (0, position of the batch in the stream), or (the worker that read it, number of batches it
    /// had read before).
    position: (usize, u64),
    values: Zeroizing<Vec<f64>>,
}

impl Windows {
    pub(crate) fn id(&self) -> MeasurementId {
        MeasurementId::of(("windows", self))
    }

    fn by_keys<'scope>(
        self,
        records: StreamVec<'scope, u64, Records>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, KeyRows> {
        let (worker, mut batches_read) = (records.scope().index(), 0);
        map_or_fault(records, Pipeline, "ByKeys", fault, move |_, records| {
            batches_read += 1;
            self.split(&records, (worker, batches_read)).map(BTreeMap::into_values)
        })
    }

    fn split(self, records: &Records, position: (usize, u64)) -> Result<BTreeMap<u32, KeyRows>, String> {
        let Windows { columns, keys, .. } = self;
        // Batches are runs of the stream: positions rise within each, and all positions of one
        // batch come before those of another.
        let position = records.positions.first().map_or(position, |&first| (0, first));
        if columns == 0 || records.values.len() != records.len() * columns {
            return Err(format!("a batch holds records of other than {columns} columns"));
        }
        if records.keys.iter().any(|key| *key >= keys) {
            return Err(format!("a record has a key that is not among the {keys} declared ones"));
        }
        let mut by_key: BTreeMap<u32, KeyRows> = BTreeMap::new();
        for (&key, row) in records.keys.iter().zip(records.values.chunks_exact(columns)) {
            let rows =
                by_key.entry(key).or_insert_with(|| KeyRows { key, position, values: Zeroizing::default() });
            rows.values.extend_from_slice(row);
        }
        Ok(by_key)
    }
}

fn rows_by_key(mut parts: Vec<KeyRows>) -> BTreeMap<u32, Zeroizing<Vec<f64>>> {
    parts.sort_by_key(|rows| (rows.key, rows.position));
    let mut windows: BTreeMap<u32, Zeroizing<Vec<f64>>> = BTreeMap::new();
    for rows in parts {
        windows.entry(rows.key).or_default().extend_from_slice(&rows.values);
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitEpochs;
    use std::sync::mpsc;
    use timely::dataflow::operators::{Inspect, vec::ToStream};

    /// Forty rows of two keys in two epochs, in batches of five that are dealt to workers in turn;
    /// a third epoch and a third key have none. Each answer lists the positions of the window's
    /// rows, by epoch and key, from `first_epoch` on.
    fn row_positions(workers: usize, first_epoch: u64) -> Vec<(u64, u32, Vec<i128>)> {
        let (sender, receiver) = mpsc::channel();
        let guards = timely::execute(timely::Config::process(workers), move |worker| {
            let sender = sender.clone();
            let batch = |first: u64| Records {
                keys: (first..first + 5).map(|row| row as u32 % 2).collect(),
                epochs: (first..first + 5).map(|row| 1 + row / 20).collect(),
                values: (first..first + 5).map(|row| row as f64).collect(),
                positions: (first..first + 5).collect(),
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
                let answer = |_, _, rows: &[f64]| Ok(rows.iter().map(|&row| row as i128).collect());
                let released = records.release_windows(ends, &windows, Fault::new(), answer);
                released.inspect_time(move |&time, release| {
                    let epoch = release.first;
                    assert!(time <= epoch && release.state.is_some() == (epoch == 2));
                    assert!(release.sums.iter().all(|sums| sums.is_empty()));
                    let positions = release.values.row().iter().collect();
                    sender.send((epoch, release.shard, positions)).expect("a receiver");
                });
            });
        })
        .expect("workers");
        drop(guards);
        let mut windows: Vec<_> = receiver.iter().collect();
        windows.sort();
        windows
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
            for workers in [1, 2, 3] {
                assert_eq!(
                    row_positions(workers, first_epoch),
                    expected,
                    "{workers} workers from {first_epoch}"
                );
            }
        }
    }
}
