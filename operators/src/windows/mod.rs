//! `windows`: passes all records of a key in a window of epochs together to estimators that need
//! them at once.
//!
//! Rows are sent to the worker that owns their key. They wait until their epoch closes, and then as
//! long as a later window contains that epoch (`rows`). Every declared key has an answer for every
//! window, even without rows, so the set of windows reveals nothing.
//!
//! An estimate cannot be merged from parts as sums can, so rows are exchanged here. Batches with
//! positions come in the order of the stream, for any assignment to workers. Other batches come in
//! the order in which each worker read them, one worker after another. The order never depends on
//! values, because neighbours must agree on the position of every other row.

mod rows;
#[cfg(test)]
mod tests;

use crate::closing::EveryEpoch;
use crate::measurement::{BoundSetup, MeasurementId};
use crate::{
    BoundPlan, BoundedRecords, ClosedEpoch, EncoderStates, Entity, EntityHistory, EntityLimits, Fault,
    Records, ShardRelease, map_or_fault, shard_owner,
};
use hushflow_mechanism::windows::WindowSpan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Broadcast;
use zeroize::Zeroizing;

pub use rows::WindowRows;

/// Defines the windows. [`Commit`](crate::Commit) takes the same value. It has no `Debug`: after a
/// restart it holds private rows.
#[derive(Clone)]
pub struct Windows {
    /// Columns of a record.
    pub columns: usize,
    /// Number of keys. Keys are numbered from 0.
    pub keys: u32,
    /// The first epoch of the run: 1, or a later one after a restart.
    pub first_epoch: u64,
    /// A checkpoint is due after every epoch that is a multiple of this number, at least 1. It
    /// holds the rows that later windows contain.
    pub checkpoint_interval: u64,
    /// Determines which epochs a window contains, and when windows end.
    pub span: WindowSpan,
    /// Entities that are protected as a whole: records must pass
    /// [`BoundEntities`](crate::BoundEntities).
    pub entities: Option<WindowEntities>,
    /// By key, the saved [rows](WindowRows) of the epochs before `first_epoch`.
    pub states: Arc<EncoderStates>,
}

/// Entities that windows protect as a whole.
#[derive(Clone)]
pub struct WindowEntities {
    /// Limits of their contribution.
    pub limits: EntityLimits,
    /// Public bounds of each column, lower and upper, between which means of an entity are taken.
    pub bounds: Arc<[(f64, f64)]>,
    /// Histories after the epochs before `first_epoch`.
    pub histories: Arc<Vec<(Entity, EntityHistory)>>,
}

/// One column and one key, single records, each epoch a window, from the first epoch on.
impl Default for Windows {
    fn default() -> Self {
        Windows {
            columns: 1,
            keys: 1,
            first_epoch: 1,
            checkpoint_interval: 64,
            span: WindowSpan::default(),
            entities: None,
            states: Arc::default(),
        }
    }
}

impl From<&Windows> for BoundPlan {
    fn from(windows: &Windows) -> Self {
        let setup = windows.entities.as_ref().map(|entities| BoundSetup {
            limits: entities.limits,
            discovers: false,
            by_column: false,
            dimension: windows.columns,
            columns: Arc::clone(&entities.bounds),
            histories: Arc::clone(&entities.histories),
            first_epoch: windows.first_epoch,
        });
        Self { id: windows.id(), setup }
    }
}

/// Releases answers about windows.
pub trait ReleaseWindows<'scope> {
    /// Applies `answer` to the records of every key in every window, also if there are no records.
    /// `answer` gets the last epoch of the window and the key. The answers are public
    /// [numbers](hushflow_mechanism::release::Numbers) for [`Commit`](crate::Commit), with a shard
    /// for each key. Epochs close as those of [`ReleaseMoments`](crate::ReleaseMoments) do:
    /// the last one is the largest that comes through `ends`, and an input that closes without one
    /// raises the fault. Keys with the same remainder modulo the number of workers share a worker
    /// and come in ascending order.
    ///
    /// A record costs as much as the windows that contain it ([`hushflow_mechanism::windows`]): one
    /// if windows do not overlap. The neighbour relation must keep a record in its epoch, as
    /// replace-one-in-place and zero-out do. Only a committed window is public: after a restart,
    /// windows from the first epoch that was not committed may be answered again.
    ///
    /// Records of an undeclared key or with another number of columns raise the fault, and so do
    /// records that should have been bounded, and an error of `answer`.
    ///
    /// This example estimates a mean that 1 % of corrupt records cannot move far, for ε = 4 and δ =
    /// 10⁻⁶ in all:
    ///
    /// ```
    #[doc = include_str!("../../doc/setup.txt")]
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
    /// let windows = Windows::default();
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
        answer: impl FnMut(u64, u32, &[f64]) -> Result<Vec<i128>, String> + 'static,
    ) -> StreamVec<'scope, u64, ShardRelease> {
        if windows.entities.is_some() {
            fault.raise("windows that protect entities got records that were not bounded: bound them first");
        }
        let (worker, mut batches_read, splits) = (self.scope().index(), 0, windows.clone());
        let rows = map_or_fault(self, Pipeline, "ByKeys", fault.clone(), move |_, records| {
            batches_read += 1;
            splits.split(&records, Order::Batches(worker, batches_read)).map(BTreeMap::into_values)
        });
        release(rows, ends, windows, fault, answer)
    }
}

impl<'scope> ReleaseWindows<'scope> for StreamVec<'scope, u64, BoundedRecords> {
    fn release_windows(
        self,
        ends: StreamVec<'scope, u64, u64>,
        windows: &Windows,
        fault: Fault,
        answer: impl FnMut(u64, u32, &[f64]) -> Result<Vec<i128>, String> + 'static,
    ) -> StreamVec<'scope, u64, ShardRelease> {
        let splits = windows.clone();
        let rows = map_or_fault(self, Pipeline, "ByKeys", fault.clone(), move |_, bounded| {
            bounded.measurement.check(splits.id(), "bounded records")?;
            splits.split(&bounded.records, Order::Rows).map(BTreeMap::into_values)
        });
        release(rows, ends, windows, fault, answer)
    }
}

/// Answers each window on the worker that owns its key.
fn release<'scope>(
    rows: StreamVec<'scope, u64, KeyRows>,
    ends: StreamVec<'scope, u64, u64>,
    windows: &Windows,
    fault: Fault,
    mut answer: impl FnMut(u64, u32, &[f64]) -> Result<Vec<i128>, String> + 'static,
) -> StreamVec<'scope, u64, ShardRelease> {
    let (index, peers, windows) = (rows.scope().index(), rows.scope().peers(), windows.clone());
    let by_key = Exchange::new(|rows: &KeyRows| u64::from(rows.key));
    let name = "ReleaseWindows";
    rows.binary_frontier(ends.broadcast(), by_key, Pipeline, name, move |capability, _info| {
        let own = (0..windows.keys).filter(|&key| shard_owner(key, peers) == index);
        let held: Option<BTreeMap<u32, WindowRows>> =
            own.map(|key| Some((key, windows.restored(key)?))).collect();
        let mut held = held.unwrap_or_else(|| {
            fault.raise("the saved rows of windows can't be read: use the state directory of this pipeline");
            BTreeMap::new()
        });
        let (id, columns) = (windows.id(), windows.columns);
        let mut epochs = EveryEpoch::new(capability, windows.first_epoch, fault);
        move |rows, ends, output| {
            epochs.on_close(rows, ends, |run| {
                for ClosedEpoch { epoch, times: [time], data: rows } in run {
                    let mut rows = rows_by_key(rows, columns);
                    let due = epoch.is_multiple_of(windows.checkpoint_interval.max(1));
                    let answer = |(&key, held): (&u32, &mut WindowRows)| {
                        held.add(epoch, rows.remove(&key).unwrap_or_default());
                        let numbers = match windows.span.ends_at(epoch) {
                            true => answer(epoch, key, &held.since(windows.span.first_epoch(epoch)))?,
                            false => Vec::new(),
                        };
                        held.drop_before(windows.span.first_needed_after(epoch));
                        let state = due.then(|| held.save());
                        Ok(ShardRelease::of_numbers(id, (key, epoch), numbers, held.kept_of(epoch), state))
                    };
                    let answers = held.iter_mut().map(answer).collect::<Result<Vec<_>, String>>()?;
                    output.session(time).give_iterator(answers.into_iter());
                }
                Ok(())
            });
        }
    })
}

/// Rows of one key on their way to its worker. Private, so they have no `Debug`; wiped when
/// dropped.
#[derive(Clone, Serialize, Deserialize)]
struct KeyRows {
    key: u32,
    /// (0, position of the batch in the stream), or (the worker that read it, number of batches it
    /// had read before).
    position: (usize, u64),
    /// Position of each row, if batches are not runs of the stream.
    of_rows: Vec<u64>,
    values: Zeroizing<Vec<f64>>,
}

/// The order of rows.
#[derive(Clone, Copy)]
enum Order {
    /// Batches are runs of the stream. A batch without positions is placed by the numbers given
    /// here: of its worker, and of the batch on that worker.
    Batches(usize, u64),
    /// Every row has a position.
    Rows,
}

impl Windows {
    pub(crate) fn id(&self) -> MeasurementId {
        let Windows { columns, keys, first_epoch, checkpoint_interval, span, entities, .. } = self;
        let limits = format!("{:?}", entities.as_ref().map(|entities| entities.limits));
        MeasurementId::of(("windows", columns, keys, first_epoch, checkpoint_interval, span, limits))
    }

    /// Returns the rows of a key before the first epoch; `None` if the saved ones are malformed.
    fn restored(&self, key: u32) -> Option<WindowRows> {
        let saved = self.states.get(&key).map(|state| &state[..]).unwrap_or_default();
        WindowRows::restored(self.columns, saved)
    }

    fn split(&self, records: &Records, order: Order) -> Result<BTreeMap<u32, KeyRows>, String> {
        let &Windows { columns, keys, .. } = self;
        // Batches are runs of the stream: positions rise within each, and all positions of one
        // batch come before those of another.
        let position = match (order, records.positions.first()) {
            (Order::Batches(worker, number), None) => (worker, number),
            (_, first) => (0, first.copied().unwrap_or_default()),
        };
        if columns == 0 || records.values.len() != records.len() * columns {
            return Err(format!("a batch holds records of other than {columns} columns"));
        }
        if records.keys.iter().any(|key| *key >= keys) {
            return Err(format!("a record has a key that is not among the {keys} declared ones"));
        }
        let mut by_key: BTreeMap<u32, KeyRows> = BTreeMap::new();
        for (at, (&key, row)) in records.keys.iter().zip(records.values.chunks_exact(columns)).enumerate() {
            let new = || KeyRows { key, position, of_rows: Vec::new(), values: Zeroizing::default() };
            let rows = by_key.entry(key).or_insert_with(new);
            rows.values.extend_from_slice(row);
            if let (Order::Rows, Some(&position)) = (order, records.positions.get(at)) {
                rows.of_rows.push(position);
            }
        }
        Ok(by_key)
    }
}

/// Returns the rows of each key in the order of the stream.
fn rows_by_key(mut parts: Vec<KeyRows>, columns: usize) -> BTreeMap<u32, Zeroizing<Vec<f64>>> {
    parts.sort_by_key(|rows| (rows.key, rows.position));
    let mut by_key: BTreeMap<u32, Zeroizing<Vec<f64>>> = BTreeMap::new();
    for parts in parts.chunk_by(|one, next| one.key == next.key) {
        let rows = by_key.entry(parts[0].key).or_default();
        if parts.iter().all(|part| part.of_rows.is_empty()) {
            parts.iter().for_each(|part| rows.extend_from_slice(&part.values));
            continue;
        }
        fn placed(part: &KeyRows, columns: usize) -> impl Iterator<Item = (u64, &[f64])> {
            part.of_rows.iter().copied().zip(part.values.chunks_exact(columns))
        }
        let mut placed: Vec<_> = parts.iter().flat_map(|part| placed(part, columns)).collect();
        placed.sort_by_key(|(position, _)| *position);
        placed.iter().for_each(|(_, row)| rows.extend_from_slice(row));
    }
    by_key
}
